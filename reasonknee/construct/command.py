"""What `reasonknee construct` and `reasonknee attach` do and say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from reasonknee.annotations import FILE_NAME
from reasonknee.construct import assemble
from reasonknee.construct.assemble import Options, Outcome
from reasonknee.construct.attach import REPORT as ATTACHED
from reasonknee.construct.attach import attach, write_cohort_of_links
from reasonknee.construct.upstream import construct_upstream
from reasonknee.construct.write import check_free, save, save_report
from reasonknee.errors import DataError, UsageError

REPORT = "construct.report.json"
Progress = Callable[[str, int, int], object]


def run(
    cohort: Path | None, upstream: Path | None, out: Path | None, options: Options, *, max_bad: int, force: bool, progress: Progress
) -> Iterator[str]:
    """Writes annotations and their report, then tells what was made and what was not."""
    out = out or (cohort / FILE_NAME if cohort else None)
    if out is None:
        raise UsageError("J000", "no cohort folder and no --out", "reasonknee construct COHORT, or --upstream FOLDER --out FILE")
    check_free(out, force)
    if upstream is not None:
        outcome = construct_upstream(upstream, cohort, options.splits, options.seed, progress)
    elif cohort is not None:
        outcome = assemble.construct(cohort, options, progress)
    else:
        raise UsageError("J000", "no cohort folder", "reasonknee construct COHORT, or --upstream FOLDER --out FILE")
    if not outcome.annotations:
        save_report(out.with_name(REPORT), outcome.report)
        raise DataError("J006", f"no volume can be annotated: {_why(outcome)}", f"{REPORT} names each")
    save_report(out.with_name(REPORT), outcome.report)
    save(out, outcome.annotations)
    yield from _told(outcome, out)
    if cohort is not None and out == cohort / FILE_NAME:
        yield f"next: reasonknee build {cohort} <release folder>"
    elif upstream is not None:
        yield f"next: reasonknee attach {out} --images <your scans> --out <cohort folder>"
    if len(outcome.bad) > max_bad:
        first = outcome.bad[0]
        message = f"{len(outcome.bad)} volumes failed and were left out, the first: {first['volume']}, {first['code']}: {first['reason']}"
        raise DataError("J100", message, f"{out.with_name(REPORT).name} names them; --max-bad allows for some")


def _why(outcome: Outcome) -> str:
    counts = Counter({reason: len(names) for reason, names in outcome.report["volumes"]["left_out"].items()})
    counts.update(f"{each['code']} {each['reason']}"[:80] for each in outcome.bad)
    counts.update(outcome.report.get("rows", {}).get("unused", {}))
    return ", ".join(f"{n} x {reason}" for reason, n in counts.most_common(4)) or "there are none"


def _told(outcome: Outcome, out: Path) -> Iterator[str]:
    report = outcome.report
    patients = len({a.patient for a in outcome.annotations})
    yield f"{len(outcome.annotations):,} volumes of {patients:,} patients, {report['questions']:,} graded questions: {out}"
    for name in ("cells", "rows"):
        if name in report:
            unused: dict[str, int] = report[name]["unused"]
            rest = "; ".join(f"{n:,} {reason}" for reason, n in unused.items())
            yield f"{name}: {report[name]['used']:,} used of {report[name].get('total', 0):,}" + (f"; not used: {rest}" if rest else "")
    if "readings" in report:
        yield f"readings: {report['readings']['with_a_choice']:,} knees had several; {report['rules']['reading']}"
    for reason, names in report["volumes"]["left_out"].items():
        yield f"left out, {reason}: {_some(names)}"
    for warning, n in report.get("warnings", {}).items():
        yield f"warning: {n:,} x {warning}"
    yield _splits(report["splits"])
    if str(report["rules"].get("grid", "")).startswith("ASSUMED"):
        yield f"grid {report['rules']['grid']}; `reasonknee attach` compares it with your scans"


def _splits(splits: dict[str, Any]) -> str:
    parts = [f"{name} {n['volumes']:,} volumes (visits off by at most {n['visit_largest']:.1%}, grades by {n['grade_mean']:.1%} in the mean)"
             for name, n in splits["difference_from_the_cohort"].items()]  # fmt: skip
    return f"splits ({splits['rule']}): " + ", ".join(parts)


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def run_attach(annotations: Path, images: Path, out: Path | None, max_bad: int, progress: Progress) -> Iterator[str]:
    if out is not None and out.exists():
        raise UsageError("J042", f"{out} exists", "choose a new folder, or remove it")
    attached = attach(annotations, images, progress)
    counts = {name: len(names) for name, names in attached.report().items() if name != "turned"}
    yield ", ".join(f"{name} {n:,}" for name, n in counts.items())
    if attached.turned:
        yield f"turned with their images: {_some(attached.turned)}"
    if attached.missing:
        yield f"missing: {_some(attached.missing)}"
    for name, paths in list(attached.ambiguous.items())[:5]:
        yield f"ambiguous: {name}: {', '.join(paths)}"
    for name, why in list(attached.refused.items())[:5]:
        yield f"refused: {name}: {why}"
    if out is not None:
        write_cohort_of_links(attached, out)
        yield f"cohort: {out}\nnext: reasonknee build {out} <release folder>"
    if attached.bad > max_bad:
        names = f"{out / ATTACHED} names them all; the rest is attached" if out else "with --out a report names them all"
        raise DataError("J101", f"{attached.bad} annotations have no scan that fits", f"{names}; --max-bad allows for some")
