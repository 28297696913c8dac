"""scores.md: the numbers for a README."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from reasonknee.report.published import NOTE
from reasonknee.report.rows import Row, at, interval, number, table2, table2_columns, table3
from reasonknee.score_layout import AVERAGES
from reasonknee.scoring.measures import TABLE3


def markdown(scores: dict[str, Any]) -> str:
    counts = scores["counts"]
    lines = [
        f"# {plain(scores['model'])} on ReasonKnee-Bench",
        "",
        f"Split `{scores['split']}` of release {scores['release_version']} (`{scores['questions']}`): {counts['asked']:,} questions on "
        f"{counts['patients']:,} patients. Answers: {counts['parsed']:,} parsed, {counts['invalid']:,} invalid, {counts['unparsed']:,} unparsed, "
        f"{counts['missing']:,} missing; {counts['unknown']:,} unknown and {counts['repeated']:,} repeated ids. In brackets: the central 95 % of "
        f"{scores['bootstrap']:,} bootstrap samples of patients.",
        "",
        *(f"> {plain(w)}" for w in scores["warnings"]),
        "",
        *_averages(scores),
        "",
        "## Accuracy, by the columns of the paper's Table 2",
        "",
        *_table(["", *(c.replace("_", " ") for c in table2_columns())], table2(scores)),
        "",
        "## IoU, by the columns of the paper's Table 3",
        "",
        *_table(["", *TABLE3], table3(scores)),
        "",
        NOTE,
        "",
        *_boxes(scores),
        "",
        *_consistency(scores),
    ]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Text from elsewhere on one line of Markdown, as text."""
    return "".join("\\" + c if c in "\\`*_{}[]<>#|!~$" else c if c.isprintable() else " " for c in text)[:400]


def _averages(scores: dict[str, Any]) -> list[str]:
    rows = ["| average | strict | answered only | coverage | majority grade | stratified random |", "|---|---|---|---|---|---|"]
    for name in AVERAGES:
        leaves = [at(scores, "averages", name, mode) for mode in ("strict", "answered", "coverage")]
        leaves += [at(scores["baselines"], b, "averages", name, "strict") for b in ("majority", "stratified")]
        shown = [number(leaf) + (f" ({interval(leaf)})" if i < 2 and interval(leaf) else "") for i, leaf in enumerate(leaves)]
        rows.append(f"| {name.replace('_', ' ')} | {' | '.join(shown)} |")
    exact = [at(scores, "diagnosis", "exact_match", mode) for mode in ("strict", "answered")]
    means = [("quadratic kappa, mean of ordinal attributes", "quadratic_kappa"), ("kappa, mean of nominal attributes", "kappa")]
    means.append(("balanced accuracy, mean of binary attributes", "balanced_accuracy"))
    rows += ["", f"Whole answers right: {number(exact[0])} strict, {number(exact[1])} answered only."]
    for title, name in means:
        leaf = at(scores, "diagnosis", "mean", name)
        rows.append(f"{title.capitalize()} (answered only, {leaf['n']} defined): {number(leaf)}.")
    return rows


def _table(header: list[str], rows: Iterable[Row]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows:
        name = f"**{plain(row.name)}**" if row.source == "ours" else plain(row.name) + (" (published)" if row.source == "published" else "")
        lines.append(f"| {name} | {' | '.join(number(c) for c in row.cells)} |")
    return lines


def comparison(found: dict[str, Any]) -> str:
    """Two models side by side, as a table."""
    lines = [
        f"Difference: {plain(found['a'])} minus {plain(found['b'])}, split `{found['split']}`, {found['patients']} patients. Interval: central "
        f"95 % of {found['bootstrap']:,} bootstrap samples of patients; p: {found['permutations']:,} swaps of patients between them, two-sided.",
        "",
        *(f"> {plain(w)}" for w in found["warnings"]),
        *([""] if found["warnings"] else []),
        f"| | {plain(found['a'])} | {plain(found['b'])} | difference | 95 % | p |",
        "|---|---|---|---|---|---|",
    ]
    for path, entry in _entries(found["measures"]):
        difference = entry["difference"]
        shown = ["–" if entry[name] is None else f"{entry[name]:.3f}" for name in ("a", "b")]
        p = "–" if entry["p"] is None else f"{entry['p']:.4f}"
        lines.append(f"| {' '.join(path).replace('_', ' ')} | {' | '.join(shown)} | {number(difference)} | {interval(difference) or '–'} | {p} |")
    return "\n".join(lines)


def _entries(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if "difference" in tree:
        yield path, tree
    else:
        for name, branch in tree.items():
            yield from _entries(branch, (*path, name))


def _boxes(scores: dict[str, Any]) -> list[str]:
    local = scores["localisation"]["box_micro"]
    counts = local["counts"]
    distances = f"centre {number(at(local, 'centre_mm', 'answered'), 1)} mm off, sizes {number(at(local, 'size_mm', 'answered'), 1)} mm off"
    return [
        f"Boxes: {counts['wanted']:,} wanted, {counts['found']:,} given, {counts['missing']:,} missing, {counts['unreadable']:,} unreadable, "
        f"{counts['spurious']:,} spurious. Over all wanted boxes: IoU {number(at(local, 'iou', 'strict'))}, slice-range IoU "
        f"{number(at(local, 'slice_iou', 'strict'))}, IoU of at least 0.25 in {number(at(local, 'at_25', 'strict'))} and 0.5 in "
        f"{number(at(local, 'at_50', 'strict'))} of them; {distances} where given. Constant box: IoU "
        f"{number(at(scores['baselines'], 'constant_box', 'localisation', 'box_micro', 'iou', 'strict'))}."
    ]


def _consistency(scores: dict[str, Any]) -> list[str]:
    every = scores["consistency"]["all"]
    parts = [f"{name.replace('_', ' ')} {number(every[name])} (n = {every[name]['n']:,})" for name in every]
    return [f"Consistency of the reasoning (not its quality): {', '.join(parts)}."]
