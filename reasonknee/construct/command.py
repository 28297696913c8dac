"""What `reasonknee construct` and `reasonknee attach` do and say."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from reasonknee.cohort.annotations import FILE_NAME
from reasonknee.cohort.review import corrected, read_review
from reasonknee.construct import account, assemble, columns
from reasonknee.construct.assemble import Options, Outcome
from reasonknee.construct.attach import REPORT as ATTACHED
from reasonknee.construct.attach import attach, write_cohort_of_links
from reasonknee.construct.upstream import construct_upstream
from reasonknee.construct.write import check_free, save, save_report
from reasonknee.errors import DataError, UsageError, counted
from reasonknee.layout import quintuple_id
from reasonknee.questions.contradictions import RULES, of_knee
from reasonknee.system.files import write_text
from reasonknee.system.progress import Progress

REPORT, PAGE = "construct.report.json", "construct.report.md"  # for programs and for people


def run(
    cohort: Path | None,
    upstream: Path | None,
    out: Path | None,
    options: Options,
    *,
    max_bad: int,
    force: bool,
    progress: Progress,
    pool: Executor | None = None,
    corrections: Path | None = None,
) -> Iterator[str]:
    """Writes annotations and their report, then tells what was made and what was not."""
    out = out or (cohort / FILE_NAME if cohort else None)
    if out is None:
        raise UsageError(
            "J000",
            "no cohort folder and no --out",
            "reasonknee construct COHORT, or --upstream FOLDER --out FILE",
        )
    check_free(out, force)
    reviewed = read_review(corrections) if corrections else []  # before the work: a damaged file ends it
    if upstream is not None:
        outcome = construct_upstream(upstream, cohort, options.splits, options.seed, progress)
    elif cohort is not None:
        outcome = assemble.construct(cohort, options, progress, pool)
    else:
        raise UsageError(
            "J000", "no cohort folder", "reasonknee construct COHORT, or --upstream FOLDER --out FILE"
        )
    if outcome.annotations and corrections:
        outcome.annotations, outcome.report["corrections"] = corrected(outcome.annotations, reviewed)
    outcome.report["contradictions"] = _contradictions(outcome)
    outcome.report["graded"] = account.counted_grades(outcome.annotations)
    outcome.report["boxes"] = account.counted_boxes(outcome.annotations)
    outcome.report["boxes_from"] = account.counted_sources(outcome.annotations)
    save_report(out.with_name(REPORT), outcome.report)
    write_text(out.with_name(PAGE), account.page(outcome.report))
    if not outcome.annotations:
        raise DataError("J006", f"no volume can be annotated: {_why(outcome)}", f"{REPORT} names each")
    save(out, outcome.annotations)
    yield from _told(outcome, out)
    yield f"what every decision did: {out.with_name(PAGE)}"
    if cohort is not None and out == cohort / FILE_NAME:
        yield f"next: reasonknee build {quote(str(cohort))} release"
    elif upstream is not None:
        yield f"next: reasonknee attach {quote(str(out))} --images YOUR_SCANS --out cohort"
    if len(outcome.bad) > max_bad:
        first = outcome.bad[0]
        message = (
            f"{counted(len(outcome.bad), 'volume')} failed and left out, the first: {first['volume']}, "
            f"{first['code']}: {first['reason']}"
        )
        raise DataError(
            "J100", message, f"{out.with_name(REPORT).name} names them; --max-bad allows for some"
        )


def _contradictions(outcome: Outcome) -> dict[str, list[str]]:
    """By rule, the questions whose grades cannot all be true; they are told, and kept as they are."""
    broken: dict[str, list[str]] = {}
    for a in outcome.annotations:
        for rule, asked in of_knee(a.grades, a.visit):
            broken.setdefault(RULES[rule], []).append(quintuple_id(a.volume_id, asked))
    return dict(sorted(broken.items()))


def _why(outcome: Outcome) -> str:
    counts = Counter({reason: len(names) for reason, names in outcome.report["volumes"]["left_out"].items()})
    counts.update(f"{each['code']} {each['reason']}"[:80] for each in outcome.bad)
    counts.update(outcome.report.get("rows", {}).get("unused", {}))
    return ", ".join(f"{n} x {reason}" for reason, n in counts.most_common(4)) or "there are none"


def _told(outcome: Outcome, out: Path) -> Iterator[str]:
    report = outcome.report
    patients = len({a.patient for a in outcome.annotations})
    yield (
        f"{counted(len(outcome.annotations), 'volume')} of {counted(patients, 'patient')}, "
        f"{counted(report['questions'], 'graded question')}: {out}"
    )
    for name in ("cells", "rows"):
        if name in report:
            unused: dict[str, int] = report[name]["unused"]
            rest = "; ".join(f"{n:,} {reason}" for reason, n in unused.items())
            yield f"{name}: {report[name]['used']:,} used of {report[name].get('total', 0):,}" + (
                f"; not used: {rest}" if rest else ""
            )
    if "published_reasoning" in report:
        words = report["published_reasoning"]
        yield f"published reasoning: {words['kept']:,} kept word for word"
        if words["not_kept"]:
            names = _some(words["too_long_or_no_plain_text"])
            yield f"published reasoning that is too long or no plain text: {words['not_kept']:,}: {names}"
    yield from columns.missing(report.get("tables", ()))
    if report.get("tables_not_read"):
        yield f"tables that are not read: {_some(report['tables_not_read'])}"
    if "readings" in report:
        yield (
            f"readings: {counted(report['readings']['with_a_choice'], 'knee')} had several at one visit; "
            f"{report['rules']['reading']}"
        )
        missing = report["readings"]["without_a_scan"]
        if missing:
            told = ", ".join(f"{visit} {len(names):,}" for visit, names in missing.items())
            yield f"readings without a scan that can be used: {told}; `reasonknee plan` tells where they are"
    if report.get("folders_closed"):
        yield f"folders that cannot be opened: {_some(report['folders_closed'], 3)}"
    for name, series in list(report.get("series", {}).get("choices", {}).items())[:5]:
        yield f"two DESS series: {name}: {series['chosen']} was taken, not {', '.join(series['besides'])}"
    for reason, names in report["volumes"]["left_out"].items():
        yield f"left out, {reason}: {_some(names)}"
    if "corrections" in report:
        applied, lost = (len(report["corrections"][name]) for name in ("applied", "unused"))
        rest = "; 1 names a row that is not here" if lost == 1 else f"; {lost} name rows that are not here"
        yield f"{applied:,} correction{'' if applied == 1 else 's'} applied" + (rest if lost else "")
    for rule, names in report["contradictions"].items():
        yield f"contradiction: {len(names):,} x {rule}: {_some(names, 3)}"
    yield _splits(report["splits"])
    if str(report["rules"].get("grid", "")).startswith("ASSUMED"):
        yield f"grid {report['rules']['grid']}; `reasonknee attach` compares it with your scans"


def _splits(splits: dict[str, Any]) -> str:
    parts = [f"{name} {n['volumes']:,} volumes (visits off by at most {n['visit_largest']:.1%}, grades by "
        f"{n['grade_mean']:.1%} in the mean)"
             for name, n in splits["difference_from_the_cohort"].items()]  # fmt: skip
    return f"splits ({splits['rule']}): " + ", ".join(parts)


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


@dataclass(frozen=True)
class Joining:
    """What `reasonknee attach` was asked for."""

    annotations: Path
    images: Path
    out: Path | None = None
    max_bad: int = 0
    accept: frozenset[str] = frozenset()  # volumes that are taken though they look like no scan
    quick: bool = False


def run_attach(wish: Joining, progress: Progress, pool: Executor | None = None) -> Iterator[str]:
    """Joins annotations with scans, and yields the lines that a user reads."""
    out = wish.out
    if out is not None and os.path.lexists(out):
        raise UsageError("J042", f"{out} exists", "choose a new folder, or remove it")
    attached = attach(
        wish.annotations, wish.images, progress, accept=wish.accept, quick=wish.quick, pool=pool
    )
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
        yield f"cohort: {out}\nnext: reasonknee build {quote(str(out))} release"
    if attached.bad > wish.max_bad:
        names = (
            f"{out / ATTACHED} names them all; the rest is attached"
            if out
            else "with --out a report names them all"
        )
        raise DataError(
            "J101",
            f"{attached.bad} annotations have no scan that fits",
            f"{names}; --max-bad allows for some",
        )
