"""scores.md: the numbers for a README."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reasonknee.layout.scores import AVERAGES
from reasonknee.report.published import NOTE
from reasonknee.report.rows import Row, at, interval, number, table2, table2_columns, table3
from reasonknee.scoring.measures import TABLE3


def markdown(scores: dict[str, Any]) -> str:
    """The scores as a page of Markdown tables, as scores.md has them."""
    counts = scores["counts"]
    lines = [
        f"# {plain(scores['model'])} on ReasonKnee-Bench",
        "",
        f"**{plain(scores['evidence']['sentence'])}**",
        "",
        f"Split `{scores['split']}` of release {scores['release_version']} (`{scores['questions']}`): "
        f"{counts['asked']:,} questions on "
        f"{_patients(counts['patients'])}. Answers: {counts['parsed']:,} parsed, {counts['invalid']:,} "
        f"invalid, {counts['unparsed']:,} unparsed, "
        f"{counts['missing']:,} missing; {counts['unknown']:,} unknown and {counts['repeated']:,} repeated "
        "ids. In brackets: 95 % intervals from "
        f"{scores['bootstrap']:,} resamples of patients.",
        "",
        *([plain(scores["asked"], 600), ""] if "asked" in scores else []),
        *([_sources(scores["provenance"]), ""] if "provenance" in scores else []),
        *(f"> {plain(w)}" for w in scores["warnings"]),
        "",
        *_averages(scores),
        "",
        *_detection(scores),
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


def _sources(told: dict[str, Any]) -> str:
    """What the truth rests on, in the whole release."""

    def counts(name: str) -> str:
        return ", ".join(f"{plain(kind, 80)} {n:,}" for kind, n in told.get(name, {}).items()) or "none"

    return (
        f"What the release rests on. Grades, volumes by table: {counts('grades')}. Boxes, questions by "
        f"source: {counts('boxes')}. Unknown grades: {told.get('unknown_grades', 0):,}."
    )


def plain(text: str, most: int = 400) -> str:
    """Text from elsewhere on one line of Markdown, as text."""
    marked = ("\\" + c if c in "\\`*_{}[]<>#|!~$" else c if c.isprintable() else " " for c in text)
    return "".join(marked)[:most]


def _averages(scores: dict[str, Any]) -> list[str]:
    rows = [
        "| average | strict | answered only | coverage | majority grade | stratified random |",
        "|---|---|---|---|---|---|",
    ]
    for name in AVERAGES:
        leaves = [at(scores, "averages", name, mode) for mode in ("strict", "answered", "coverage")]
        leaves += [at(scores["baselines"], b, "averages", name, "strict") for b in ("majority", "stratified")]
        shown = [
            number(leaf) + (f" ({interval(leaf)})" if i < 2 and interval(leaf) else "")
            for i, leaf in enumerate(leaves)
        ]
        rows.append(f"| {name.replace('_', ' ')} | {' | '.join(shown)} |")
    exact = [at(scores, "diagnosis", "exact_match", mode) for mode in ("strict", "answered")]
    means = [
        ("quadratic kappa, mean of ordinal attributes", "quadratic_kappa"),
        ("kappa, mean of nominal attributes", "kappa"),
    ]
    means.append(("balanced accuracy, mean of binary attributes", "balanced_accuracy"))
    rows += ["", f"Whole answers right: {number(exact[0])} strict, {number(exact[1])} answered only."]
    for title, name in means:
        leaf = at(scores, "diagnosis", "mean", name)
        rows.append(f"{title.capitalize()} (answered only, {leaf['n']} defined): {number(leaf)}.")
    return rows


def _table(header: list[str], rows: Iterable[Row]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for row in rows:
        name = (
            f"**{plain(row.name)}**"
            if row.source == "ours"
            else plain(row.name) + (" (published)" if row.source == "published" else "")
        )
        lines.append(f"| {name} | {' | '.join(number(c) for c in row.cells)} |")
    return lines


def _patients(count: int) -> str:
    return f"{count:,} patient{'' if count == 1 else 's'}"


def comparison(result: dict[str, Any]) -> str:
    """Models side by side, a table for each pair and part."""
    lines = [
        f"Split `{result['split']}`, {_patients(result['patients'])}. Difference: first minus second. "
        f"Interval: 95 % over {result['bootstrap']:,} resamples of patients; p: {result['permutations']:,} "
        "swaps of patients between the two, two-sided, also corrected for all that is in the same kind of "
        "table (Holm); smallest: the difference that such a sample shows in four of five trials.",
        "",
        *(f"> {plain(w)}" for w in result["warnings"]),
        *([""] if result["warnings"] else []),
    ]
    for pair in result["pairs"]:
        a, b = plain(pair["a"]), plain(pair["b"])
        for part, entries in pair["measures"].items():
            lines += [
                f"### {a} and {b}, {part}",
                "",
                f"| | {a} | {b} | difference | 95 % | p | p, Holm | smallest |",
                "|---|---|---|---|---|---|---|---|",
                *(_compared(name, entry) for name, entry in entries.items()),
                "",
            ]
    return "\n".join(lines).rstrip()


def _compared(name: str, entry: dict[str, Any]) -> str:
    def shown(value: float | None, digits: int = 3) -> str:
        return "–" if value is None else f"{value:.{digits}f}"

    difference = entry["difference"]
    cells = [
        " ".join(name.split(".")).replace("_", " "),
        shown(entry["a"]),
        shown(entry["b"]),
        number(difference),
        interval(difference) or "–",
        shown(entry["p"], 4),
        shown(entry["p_holm"], 4),
        shown(entry["smallest_difference"]),
    ]
    return f"| {' | '.join(cells)} |"


def _detection(scores: dict[str, Any]) -> list[str]:
    """Is there a finding at all; and what the confidence is worth, where one is given."""
    whole = scores["detection"]["all"]
    parts = [
        f"{name} {number(at(whole, name, 'strict'))}"
        + (f" ({interval(at(whole, name, 'strict'))})" if interval(at(whole, name, "strict")) else "")
        for name in ("sensitivity", "specificity")
    ]
    lines = [
        f"Any finding (grade 1 or more): {', '.join(parts)}, strict; {number(whole['prevalence'])} have one."
    ]
    if scores["confidence"]:
        sure = scores["confidence"]
        told = [
            f"AUC of the finding {number(sure['auc_finding']['all'])}",
            f"AUC of being right {number(sure['auc_right'])}",
            f"Brier score {number(sure['brier'])}",
            f"calibration error {number(sure['calibration_error'])}",
        ]
        lines += ["", f"Confidence: {', '.join(told)}."]
    if scores["readers"]:
        told = []
        for who in ("readers", "model"):
            tree = scores["readers"][who]
            kappa, same = (
                at(tree, "diagnosis", "mean", "quadratic_kappa"),
                at(tree, "averages", "attribute_micro"),
            )
            told.append(f"{who} {number(at(same, 'answered'))} equal, quadratic kappa {number(kappa)}")
        read = scores["readers"]["judgments"]
        lines += ["", f"Readers' ceiling, on the {read:,} judgments that were read twice: {'; '.join(told)}."]
    if scores["runs"]:
        micro = scores["runs"]["measures"]["averages.attribute_micro.strict"]
        spread = "–" if micro["standard_deviation"] is None else f"{micro['standard_deviation']:.4f}"
        lines += [
            "",
            f"Over {len(scores['runs']['names'])} runs: attribute micro {micro['mean']:.3f}, SD {spread}.",
        ]
    return lines


def _boxes(scores: dict[str, Any]) -> list[str]:
    local = scores["localisation"]["box_micro"]
    counts = local["counts"]
    distances = (
        f"centre {number(at(local, 'centre_mm', 'answered'), 1)} mm off, sizes "
        f"{number(at(local, 'size_mm', 'answered'), 1)} mm off"
    )
    return [
        f"Boxes: {counts['wanted']:,} wanted, {counts['given']:,} given, {counts['missing']:,} missing, "
        f"{counts['unreadable']:,} unreadable, "
        f"{counts['spurious']:,} spurious. Over all wanted boxes: IoU {number(at(local, 'iou', 'strict'))}, "
        "slice-range IoU "
        f"{number(at(local, 'slice_iou', 'strict'))}, IoU of at least 0.25 in "
        f"{number(at(local, 'at_25', 'strict'))} and 0.5 in "
        f"{number(at(local, 'at_50', 'strict'))} of them; {distances} where given. Constant box: IoU "
        f"{number(at(scores['baselines'], 'constant_box', 'localisation', 'box_micro', 'iou', 'strict'))}."
    ]


def _consistency(scores: dict[str, Any]) -> list[str]:
    every = scores["consistency"]["all"]
    parts = [f"{name.replace('_', ' ')} {number(every[name])} (n = {every[name]['n']:,})" for name in every]
    return [f"Consistency of the reasoning (not its quality): {', '.join(parts)}."]
