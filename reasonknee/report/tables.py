"""The paper's own pictures from any release: Table 1's row for it, Tables 2 and 3 with our rows beside the
published ones, and figure 4a, as Markdown, LaTeX, CSV and one page with vector charts."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reasonknee import schema
from reasonknee.errors import DataError
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions import CATEGORIES, QUESTIONS
from reasonknee.release.reader import Release
from reasonknee.report import published
from reasonknee.report.markdown import plain
from reasonknee.report.page import environment, has_jinja2
from reasonknee.report.rows import Row, number, table2, table2_columns, table3
from reasonknee.scoring.measures import TABLE3
from reasonknee.scoring.protocol import check_truth
from reasonknee.scoring.truth import NONE, TABLE, Truth, read_truth
from reasonknee.system.files import write_text
from reasonknee.system.folders import note_ours

NEITHER = "This row stands for the release that was read, not for the paper's own data."


class Table(NamedTuple):
    name: str
    title: str
    header: list[str]
    rows: list[list[str]]
    note: str


def write_tables(release: str | Path, scores: Sequence[Path], out: Path) -> list[Path]:
    """All files, in a folder that may exist and hold others."""
    opened = Release(release)
    truths = {split: read_truth(opened, split) for split in opened.splits}
    scored = [_scores(path, truths) for path in scores]
    shares = grade_shares(truths.values())
    tables = [
        _table1(opened, truths),
        _results("table2", "Table 2: accuracy", table2_columns(), scored, table2),
        _results("table3", "Table 3: IoU", list(TABLE3), scored, table3),
        _figure4a(shares),
    ]
    texts = {f"{table.name}.csv": _csv(table) for table in tables}
    texts["tables.md"] = "\n".join(map(_markdown, tables))
    texts["tables.tex"] = "\n".join([r"% \usepackage{graphicx,longtable,lscape}", *map(_latex, tables)])
    if has_jinja2():  # which comes with the extra `report`
        texts["tables.html"] = _page(tables, shares)
    note_ours(out, texts)
    for name, content in texts.items():
        write_text(out / name, content)
    return [out / name for name in texts]


def _scores(path: Path, truths: dict[str, Truth]) -> dict[str, Any]:
    """The scores of a model on this release."""
    file = path / "scores.json" if path.is_dir() else path
    try:
        scores = parse_json(file.read_bytes(), file.name)
    except OSError as error:
        raise DataError(
            "S052", f"{file}: {error.strerror}", "name what `reasonknee score --out` wrote"
        ) from None
    wrong = next(schema.validator("scores").iter_errors(scores), None)
    if wrong is not None:
        raise DataError("S052", f"{file.name}: {wrong.message[:100]}", "score again with this version")
    if scores["split"] not in truths:
        told = f"{file}: of the split {scores['split']}, which the release does not have"
        raise DataError("S052", told, "name the release that the scores are of")
    check_truth(scores, truths[scores["split"]].part(**scores["part"]), file)
    return scores


# --- the tables ---------------------------------------------------------------------------------------------


def _table1(release: Release, truths: dict[str, Truth]) -> Table:
    manifest = release.manifest
    asked = {q for truth in truths.values() for q in truth.questions}
    row = {
        "dataset": f"3DReasonKnee {manifest.release_version}" + " (synthetic)" * manifest.synthetic,
        "volumes": f"{sum(manifest.volumes.values()):,}",
        "patients": f"{sum(manifest.patients.values()):,}",
        "quintuples": f"{sum(manifest.quintuples.values()):,}",
        "train / validation / test": " / ".join(f"{n:,}" for n in manifest.volumes.values()),
        "questions": str(len(asked)),
        "categories": str(len({q.category.id for q in asked})),
        "regions": str(len({q.region.id for q in asked})),
        "graded attributes": str(sum(len(q.attributes) for q in asked)),
        "3D boxes": f"{sum(int(t.has_box.sum()) for t in truths.values()):,}",
        "grades": f"{sum(int((t.grades != NONE).sum()) for t in truths.values()):,}",
        "reasoning steps": "yes",
    }
    return Table("table1", "Table 1: this release", list(row), [list(row.values())], NEITHER)


def _results(name: str, title: str, columns: list[str], scored: list[dict[str, Any]], of: Any) -> Table:
    rows: list[Row] = []
    for scores in scored:
        rows += [row for row in of(scores) if row.source != "published"]
    ours = [row for row in rows if row.source == "ours"]
    baselines = {row.name: row for row in rows if row.source == "baseline"}  # the same beside every model
    rows = [*ours, *baselines.values()]
    blank = {"model": "", "baselines": None}
    rows += [row for row in of(blank) if row.source == "published"]
    header = ["", "source", *(c.replace("_", " ") for c in columns)]
    cells = [[row.name, row.source, *(number(cell) for cell in row.cells)] for row in rows]
    return Table(name, title, header, cells, published.NOTE)


class Share(NamedTuple):
    """How the first attribute of a question is graded."""

    category: str
    region: str
    question: str
    counts: list[int]


def grade_shares(truths: Iterable[Truth]) -> list[Share]:
    """Of each question its region, and how often its first attribute has each grade, over all splits."""
    counts = {q.id: np.zeros(len(q.attributes[0].space.grades), np.int64) for q in TABLE}
    for truth in truths:
        for index in np.unique(truth.question):
            grades = truth.grades[truth.question == index, 0]
            known = np.bincount(grades[grades != NONE], minlength=len(counts[TABLE[index].id]))
            counts[TABLE[index].id] += known
    return [
        Share(q.category.id, q.region.title, q.id, counts[q.id].tolist()) for q in TABLE if counts[q.id].any()
    ]


def _figure4a(shares: list[Share]) -> Table:
    most = max((len(share.counts) for share in shares), default=0)
    rows = []
    for share in shares:
        total = sum(share.counts)
        parts = [f"{count / total:.3f}" for count in share.counts]
        rows.append(
            [share.category, share.region, share.question, str(total), *parts, *[""] * (most - len(parts))]
        )
    header = ["category", "region", "question", "n", *(f"grade {g}" for g in range(most))]
    return Table(
        "figure4a", "Figure 4a: grades by region", header, rows, "Share of the first attribute's grades."
    )


# --- their forms --------------------------------------------------------------------------------------------


def _csv(table: Table) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(table.header)
    # a cell that a spreadsheet would take for a formula is text
    writer.writerows([["'" + c if c[:1] in ("=", "+", "@", "\t") else c for c in row] for row in table.rows])
    return file.getvalue()


def _markdown(table: Table) -> str:
    lines = [f"## {table.title}", "", f"| {' | '.join(table.header)} |", "|" + "---|" * len(table.header)]
    lines += [f"| {' | '.join(map(plain, row))} |" for row in table.rows]
    return "\n".join([*lines, "", table.note, ""])


_MOST_ROWS = 40  # of a LaTeX table on one page
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    **{c: "{" + c + "}" for c in "[]*"},  # which would belong to the end of the line before
    "<": r"\textless{}",  # this and the next print as other signs in plain LaTeX
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    **{c: "\\" + c for c in "&%$#_{}"},
}


def _latex(table: Table) -> str:
    def cells(row: Sequence[str]) -> str:
        return " & ".join("".join(_LATEX.get(c, c) if c.isprintable() else " " for c in cell) for cell in row)

    body = " \\\\\n".join(map(cells, table.rows))
    top = [r"\hline", rf"{cells(table.header)} \\", r"\hline"]
    columns, caption = "l" * len(table.header), rf"\caption{{{cells([table.title])}}}"
    if len(table.rows) > _MOST_ROWS:  # which goes over several pages
        small = r"\tiny\setlength{\tabcolsep}{2pt}"
        opened = [
            r"\begin{landscape}",
            small,
            rf"\begin{{longtable}}{{{columns}}}",
            rf"{caption} \\",
            *top,
            r"\endhead",
        ]
        closed = [r"\end{longtable}", r"\end{landscape}"]
    else:
        opened = [
            r"\begin{table}",
            caption,
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{{columns}}}",
            *top,
        ]
        closed = [r"\end{tabular}}", r"\end{table}"]
    return "\n".join([f"% {table.note}", *opened, rf"{body} \\", r"\hline", *closed, ""])


def _page(tables: Sequence[Table], shares: list[Share]) -> str:
    """One page with the numbers, and a bar for each question, cut into its grades."""
    bars = []
    for category in CATEGORIES:
        members = [share for share in shares if share.category == category.id]
        if members:
            bars.append((category.title, [_bar(share, _label(share, members)) for share in members]))
    made: str = environment().get_template("tables.html").render(tables=tables, bars=bars)
    return made


class Piece(NamedTuple):
    """A grade's part of a bar: where it starts and how wide it is, in percent, and how dark."""

    start: float
    width: float
    dark: float
    told: str


def _label(share: Share, members: Sequence[Share]) -> str:
    """The region, or what is looked for, or both, whichever tells it from the others of its category."""
    lesion = QUESTIONS[share.question].lesion.title
    if [other.region for other in members].count(share.region) == 1:
        return share.region
    if [QUESTIONS[other.question].lesion.title for other in members].count(lesion) == 1:
        return lesion
    return f"{lesion}, {share.region}"


def _bar(share: Share, label: str) -> tuple[str, list[Piece]]:
    total = sum(share.counts)
    pieces, start = [], 0.0
    for grade, count in enumerate(share.counts):
        width = 100 * count / total
        dark = 0.08 + 0.84 * grade / max(len(share.counts) - 1, 1)
        pieces.append(Piece(start, width, dark, f"{share.question}, grade {grade}: {count} of {total}"))
        start += width
    return label, pieces
