"""The account of `construct` as a page: what every decision did to the data, for a person to read before the
release is built. The same facts as `construct.report.json`, which programs read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reasonknee.cohort import Annotation
from reasonknee.errors import counted
from reasonknee.questions import CATEGORIES, QUESTIONS, REGIONS

_NAMED = 20  # of each list; the JSON has them all
_SOURCES = {
    "mask": "boxes of label masks",
    "rule": "boxes made by rule from tissue masks, which no reader has seen",
    "published": "the published boxes",
    "none": "no boxes",
}
Report = Mapping[str, Any]


def counted_boxes(annotations: Iterable[Annotation]) -> dict[str, dict[str, int]]:
    """By region, the volumes with and without a box."""
    found: dict[str, Counter[str]] = {r.id: Counter() for r in REGIONS.values() if r.labels}
    for a in annotations:
        for region, counts in found.items():
            counts["boxes" if a.boxes.get(region) else "none"] += 1
    return {region: {what: counts[what] for what in ("boxes", "none")} for region, counts in found.items()}


def counted_sources(annotations: Iterable[Annotation]) -> dict[str, int]:
    """Where the boxes of a volume come from, and of how many volumes."""
    return dict(sorted(Counter(a.provenance.boxes or "none" for a in annotations).items()))


def counted_grades(annotations: Iterable[Annotation]) -> dict[str, dict[str, int]]:
    """By question, how often it is asked, and how many of the grades that it asks for are known and not."""
    found = {q.id: {"asked": 0, "known": 0, "unknown": 0} for q in QUESTIONS.values()}
    for a in annotations:
        for question, grades in a.grades.items():
            counts = found[question]
            counts["asked"] += 1
            counts["known"] += len(grades)
            counts["unknown"] += len(QUESTIONS[question].attributes) - len(grades)
    return found


def page(report: Report) -> str:
    """Markdown, a section for each decision."""
    sections = (_made, _scans, _lost, _tables, _cells, _readings, _questions, _boxes, _rest, _splits)
    parts = ["# What was made of the sources", *(p for section in sections for p in section(report))]
    text = "\n\n".join(parts) + "\n"
    return text.encode(errors="backslashreplace").decode()  # names of files need not be text


def _made(report: Report) -> Iterator[str]:
    volumes, questions = report["volumes"], report["graded"]
    asked = sum(n["asked"] for n in questions.values())
    known, unknown = (sum(n[name] for n in questions.values()) for name in ("known", "unknown"))
    patients = sum(n["patients"] for n in report["splits"]["difference_from_the_cohort"].values())
    yield (
        f"{volumes['used']:,} of {volumes['found']:,} volumes, of {counted(patients, 'patient')}, have "
        f"annotations. Of {len(QUESTIONS) * volumes['used']:,} questions ({len(QUESTIONS)} a volume) they "
        f"answer {asked:,}, with {known:,} grades; {unknown:,} more grades of these questions are unknown. "
        f"Made by {report['software']}."
    )
    yield "Rules:\n\n" + "\n".join(f"- *{name}*: {rule}." for name, rule in report["rules"].items())


def _scans(report: Report) -> Iterator[str]:
    series = report.get("series")
    if not series:
        return
    yield "## Scans"
    yield f"{series['of_other_sequences']:,} series of other sequences were passed over."
    if series["choices"]:
        yield f"{len(series['choices']):,} knees have several DESS series at one visit:"
        yield _table(
            ("volume", "taken", "not taken"),
            ((name, c["chosen"], ", ".join(c["besides"])) for name, c in series["choices"].items()),
        )


def _lost(report: Report) -> Iterator[str]:
    left, bad = report["volumes"]["left_out"], report["quarantine"]
    yield "## Volumes that were left out"
    if not left and not bad:
        yield "None."
    if left:
        yield _table(
            ("why", "volumes", "which"),
            ((why, f"{len(names):,}", _some(names)) for why, names in left.items()),
        )
    missing = report.get("readings", {}).get("without_a_scan", {})
    if missing:
        yield "Of these knees the tables have grades, but no volume that can be used was found:"
        yield _table(
            ("visit", "knees", "which"),
            ((visit, f"{len(names):,}", _some(names, 5)) for visit, names in missing.items()),
        )
    if report.get("folders_closed"):
        yield f"Folders that cannot be opened: {_some(report['folders_closed'])}."
    if bad:
        yield "These failed:"
        yield _table(("volume", "code", "why"), ((b["volume"], b["code"], b["reason"]) for b in bad))


def _tables(report: Report) -> Iterator[str]:
    if "tables" not in report:
        return
    yield "## Tables"
    yield _table(
        ("table", "visit", "rows", "variables that are absent", "columns named by --columns"),
        (
            (
                t["file"],
                t["visit"],
                f"{t['rows']:,}",
                _some(t["columns_absent"]) or "none",
                _some([f"{ours} = {theirs}" for ours, theirs in t["columns_named"].items()]) or "none",
            )
            for t in report["tables"]
        ),
    )
    if report["tables_not_read"]:
        yield f"Not read: {_some(report['tables_not_read'])}."
    if report["columns_absent"]:
        yield f"No table has these variables, so their grades are unknown: {report['columns_absent']}."


def _cells(report: Report) -> Iterator[str]:
    for name in ("cells", "rows"):
        if name in report:
            yield f"## {name.capitalize()}"
            counts = report[name]
            rows = [
                ("used", counts["used"]),
                *((f"not used: {why}", n) for why, n in counts["unused"].items()),
                ("all", counts["total"]),
            ]
            yield _table(("what became of them", name), ((what, f"{n:,}") for what, n in rows))
            if name == "cells":
                yield "A cell of cartilage holds two grades, size and full thickness; any other holds one."
    kept = report.get("published_reasoning")
    if kept:
        yield (
            f"The published reasoning of {kept['kept']:,} rows is kept word for word. Too long or no plain "
            f"text: {_some(kept['too_long_or_no_plain_text']) or 'none'}."
        )
    if report.get("within_grade"):
        yield (
            "Cells of 0.5, -0.5 and -1 say that a knee changed within its grade. They are no grades, so "
            "these are unknown, in all tables. What is left out so are knees that changed a little: the "
            "grades that remain at follow-up lean to what did not change."
        )
        yield _table(
            ("question", "cells by code"),
            (
                (q, ", ".join(f"{n:,} of {code}" for code, n in by.items()))
                for q, by in report["within_grade"].items()
            ),
        )
    if report.get("recoded"):
        yield "Read by their label and not by their code:"
        yield _table(("cell", "cells"), ((what, f"{n:,}") for what, n in report["recoded"].items()))
    if report.get("rows_refused"):
        yield f"Rows of tables that could not be read: {_some(report['rows_refused'])}."


def _readings(report: Report) -> Iterator[str]:
    if "readings" not in report:
        return
    readings = report["readings"]
    yield "## Readings"
    yield (
        f"Of {readings['knees']:,} knees and visits that the tables name, {readings['with_a_choice']:,} have "
        "several readings."
    )
    yield _table(
        ("project that was taken", "knees and visits"),
        ((p, f"{n:,}") for p, n in readings["projects"].items()),
    )


def _questions(report: Report) -> Iterator[str]:
    yield "## Questions"
    rows = []
    for category in CATEGORIES:
        mine = [n for q, n in report["graded"].items() if QUESTIONS[q].category is category]
        rows.append(
            (category.title, *(f"{sum(n[name] for n in mine):,}" for name in ("asked", "known", "unknown")))
        )
    yield _table(("category", "questions", "grades known", "grades unknown"), rows)
    never = [q for q, n in report["graded"].items() if not n["asked"]]
    if never:
        yield f"Asked of no volume: {', '.join(never)}."


def _boxes(report: Report) -> Iterator[str]:
    yield "## Boxes"
    yield (
        "; ".join(
            f"{counted(n, 'volume')}: {_SOURCES.get(source, source)}"
            for source, n in report["boxes_from"].items()
        )
        + "."
    )
    lacking = {region: n for region, n in report["boxes"].items() if n["none"]}
    if not lacking:
        yield "Every region has its box in every volume."
    elif not any(n["boxes"] for n in report["boxes"].values()):
        yield "No region has a box in any volume."
    else:
        yield "Every other region has its box in every volume; these do not:"
        yield _table(
            ("region", "with a box", "without"),
            ((region, f"{n['boxes']:,}", f"{n['none']:,}") for region, n in lacking.items()),
        )


def _rest(report: Report) -> Iterator[str]:
    yield "## Grades that cannot all be true"
    told = report["contradictions"]
    yield "They are kept as they are." if told else "None."
    if told:
        yield _table(("rule", "times", "which"), ((r, f"{len(n):,}", _some(n, 3)) for r, n in told.items()))
    if "corrections" in report:
        applied, lost = (len(report["corrections"][name]) for name in ("applied", "unused"))
        yield f"## Corrections\n\n{applied:,} applied; {lost:,} name rows that are not here."


def _splits(report: Report) -> Iterator[str]:
    splits = report["splits"]
    yield f"## Splits\n\nRule: {splits['rule']}."
    yield _table(
        (
            "split",
            "patients",
            "volumes",
            "largest difference of a visit's share",
            "mean difference of a grade's share",
        ),
        (
            (
                name,
                f"{n['patients']:,}",
                f"{n['volumes']:,}",
                f"{n['visit_largest']:.1%}",
                f"{n['grade_mean']:.1%}",
            )
            for name, n in splits["difference_from_the_cohort"].items()
        ),
    )


def _some(names: Sequence[str], most: int = _NAMED) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
