"""report.html: one file that opens offline. No script, nothing fetched; a policy in the page forbids both, whatever a model wrote."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reasonknee.lesions import CATEGORIES
from reasonknee.questions import QUESTIONS
from reasonknee.report.knee import diagram
from reasonknee.report.published import NOTE
from reasonknee.report.rows import Row, at, interval, number, table2, table2_columns, table3
from reasonknee.report.svg import GREY, OURS, PLAIN, diverging, dots, histogram, matrix, scatter, shade, text
from reasonknee.score_layout import AVERAGES
from reasonknee.scoring.measures import BIN_NAMES, STRUCTURES, TABLE3

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;color:#1f2937;max-width:1180px;margin:0 auto;
padding:24px;background:#fff}
h1{font-size:27px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:20px;margin:44px 0 10px;border-bottom:1px solid #e5e7eb;padding-bottom:4px}
h3{font-size:16px;margin:0}p{margin:6px 0 12px;max-width:85ch}.lead,.id,figcaption,caption{color:#6b7280}.id,figcaption,caption{font-size:13px}
.warning{background:#fff7ed;border-left:4px solid #c46a1b;padding:6px 12px;margin:6px 0;max-width:none}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13.5px}
td,th{padding:4px 9px;text-align:right;border-bottom:1px solid #eceef1}
td:first-child,th:first-child{text-align:left}tr.ours td{background:#eff6ff;font-weight:600}tr.baseline td{background:#fff7ed}
tr.published td{color:#4b5563}td small{display:block;font-weight:400;color:#6b7280;font-size:11px;white-space:nowrap}.wide{overflow-x:auto}
h3.inner{margin:18px 0 6px}.pair{display:grid;grid-template-columns:1fr 1fr;gap:20px}.pair figure{margin:0}
.row{display:flex;flex-wrap:wrap;gap:20px;align-items:flex-start}svg{max-width:100%;height:auto}svg text{font-family:inherit}
.matrix{margin:0 16px 16px 0;font-size:12px}.matrix td,.matrix th{padding:3px 7px;text-align:right;border:1px solid #fff}
.matrix caption{text-align:left;padding-bottom:3px}details>summary{cursor:pointer;margin:4px 0;font-weight:600}
.browser>input{position:absolute;opacity:0}.browser>label{display:inline-block;padding:4px 12px;margin:0 6px 8px 0;border:1px solid #d1d5db;
border-radius:999px;cursor:pointer;font-size:13px}.browser>input:checked+label{background:#1f5f99;color:#fff;border-color:#1f5f99}
.browser>input:focus-visible+label{outline:2px solid #c46a1b}.error{border:1px solid #e5e7eb;border-radius:10px;padding:14px 16px;margin:10px 0}
.sides{display:grid;grid-template-columns:minmax(240px,360px) minmax(0,1fr);gap:20px}
.sides figure{margin:0}.slice{width:100%;background:#000;border-radius:6px}
.sides td,.sides th{text-align:left}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f7f9;padding:10px;border-radius:6px;font-size:12.5px;
max-height:320px;overflow-y:auto;unicode-bidi:isolate;margin:4px 0}
.right{color:#15803d}.wrong{color:#b45309}.none{color:#6b7280}
@media(max-width:760px){.sides,.pair{grid-template-columns:1fr}}
"""


def page(scores: dict[str, Any], browser: str) -> str:
    sections = (
        ("Averages, beside guessing", _averages(scores)),
        (
            "Accuracy, by the columns of the paper's Table 2",
            _table(table2_columns(), table2(scores), NOTE),
        ),
        ("IoU, by the columns of the paper's Table 3", _table(list(TABLE3), table3(scores), "Strict counts a missing or unreadable box as 0.")),
        ("Where in the knee", _knee(scores)),
        ("Calibration against the baseline: does it beat the majority grade?", _scatter(scores)),
        ("Boxes", _boxes(scores)),
        ("Diagnosis given localisation", _together(scores)),
        ("Consistency of the reasoning", _consistency(scores)),
        ("Confusion matrices", _matrices(scores)),
        ("Error browser", browser),
    )
    body = "".join(f"<section><h2>{text(title)}</h2>{content}</section>" for title, content in sections)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{text(scores['model'])} on ReasonKnee-Bench</title><style>{STYLE}</style></head><body>{_head(scores)}{body}</body></html>\n"
    )


def _head(scores: dict[str, Any]) -> str:
    counts = scores["counts"]
    told = (
        f"Split {scores['split']} of release {scores['release_version']} ({scores['questions']}): {counts['asked']:,} questions on "
        f"{counts['patients']:,} patients. Answers: {counts['parsed']:,} parsed, {counts['invalid']:,} invalid, {counts['unparsed']:,} unparsed, "
        f"{counts['missing']:,} missing; {counts['unknown']:,} unknown and {counts['repeated']:,} repeated ids. Intervals: central 95 % of "
        f"{scores['bootstrap']:,} bootstrap samples of patients, seed {scores['seed']}."
    )
    warnings = "".join(f'<p class="warning">{text(w)}</p>' for w in scores["warnings"])
    ids = "".join(
        f"<p>{text(name.replace('_', ' '))}: {text(', '.join(counts[name]))}</p>" for name in ("unknown_ids", "repeated_ids") if counts[name]
    )
    shown = f"<details><summary>Ids that do not fit</summary>{ids}</details>" if ids else ""
    return f'<h1>{text(scores["model"])}</h1><p class="lead">ReasonKnee-Bench. {text(told)}</p>{warnings}{shown}'


def _averages(scores: dict[str, Any]) -> str:
    rows = []
    for name in AVERAGES:
        shown = name.replace("_", " ")
        rows += [(f"{shown}, strict", OURS, at(scores, "averages", name, "strict"))]
        rows += [(f"{shown}, answered only", OURS, at(scores, "averages", name, "answered"))]
        for baseline in ("majority", "stratified"):
            if scores["baselines"]:
                rows.append((f"{shown}, {baseline} baseline", PLAIN, at(scores["baselines"], baseline, "averages", name, "strict")))
    exact = at(scores, "diagnosis", "exact_match", "strict")
    rows.append(("whole answer right, strict", OURS, exact))
    coverage = at(scores, "averages", "attribute_micro", "coverage")
    means = "".join(
        f"<li>{text(title)}: {number(leaf)} ({leaf['n']} attributes have one)</li>"
        for title, leaf in (
            ("mean quadratic weighted kappa of ordinal attributes", at(scores, "diagnosis", "mean", "quadratic_kappa")),
            ("mean kappa of nominal attributes", at(scores, "diagnosis", "mean", "kappa")),
            ("mean balanced accuracy of binary attributes", at(scores, "diagnosis", "mean", "balanced_accuracy")),
        )
    )
    return (
        f"<p>Strict counts every judgment without a legal answer as wrong; answered only leaves it out. Coverage: {number(coverage)} of the "
        f"judgments.</p>{dots(rows, 'averages and baselines')}<ul>{means}</ul>"
    )


def _table(columns: list[str], rows: Iterable[Row], note: str) -> str:
    head = "".join(f"<th>{text(c.replace('_', ' '))}</th>" for c in columns)
    body = ""
    for row in rows:
        cells = "".join(f"<td>{number(c)}" + (f"<small>{interval(c, 2)}</small>" if interval(c) else "") + "</td>" for c in row.cells)
        source = "<small>published</small>" if row.source == "published" else ""
        body += f'<tr class="{row.source}"><td>{text(row.name)}{source}</td>{cells}</tr>'
    return f'<div class="wide"><table><tr><th></th>{head}</tr>{body}</table></div><p class="lead">{text(note)}</p>'


def _knee(scores: dict[str, Any]) -> str:
    regions = scores["diagnosis"]["regions"]
    gains: dict[str, float | None] = {}
    for region in regions:
        ours = at(scores, "diagnosis", "regions", region, "accuracy", "strict")["value"]
        plain = at(scores["baselines"], "majority", "diagnosis", "regions", region, "accuracy", "strict")["value"]
        gains[region] = None if ours is None or plain is None else ours - plain
    overlap = {r: at(scores, "localisation", "regions", r, "iou", "strict")["value"] for r in regions}
    pictures = (
        (
            "Accuracy above the majority grade, strict (blue is better, orange worse)",
            diagram(gains, diverging, "accuracy above the majority grade", sign=True),
        ),
        ("IoU, strict", diagram(overlap, shade, "IoU")),
    )
    return '<div class="pair">' + "".join(f"<figure><figcaption>{c}</figcaption>{p}</figure>" for c, p in pictures) + "</div>"


def _scatter(scores: dict[str, Any]) -> str:
    points = []
    for name in scores["diagnosis"]["attributes"]:
        ours = at(scores, "diagnosis", "attributes", name, "accuracy", "strict")["value"]
        plain = at(scores["baselines"], "majority", "diagnosis", "attributes", name, "accuracy", "strict")["value"]
        if ours is not None and plain is not None:
            points.append((name, plain, ours))
    if not points:
        return "<p>There are no baselines without a training split.</p>"
    better = sum(y > x for _, x, y in points)
    told = f"{better} of {len(points)} attributes are above the line, where the model knows more than the training frequencies."
    return f"<p>{told} Point at a dot for its name.</p>{scatter(points, 'model against majority grade')}"


def _boxes(scores: dict[str, Any]) -> str:
    local = scores["localisation"]
    order = [name for name in STRUCTURES if name in local["structures"]]
    rows = ""
    for name in ["box_micro", *order]:
        entry = local[name] if name == "box_micro" else local["structures"][name]
        c = entry["counts"]
        cells = [number(at(entry, m, "strict")) for m in ("iou", "slice_iou", "at_25", "at_50")]
        cells += [number(at(entry, m, "answered"), 1) for m in ("centre_mm", "size_mm")]
        cells += [f"{c[k]:,}" for k in ("wanted", "missing", "unreadable", "spurious")]
        title = "all boxes" if name == "box_micro" else name.replace("_", " ")
        rows += f"<tr><td>{text(title)}</td>" + "".join(f"<td>{v}</td>" for v in cells) + "</tr>"
    heads = ("IoU", "slice-range IoU", "IoU ≥ 0.25", "IoU ≥ 0.5", "centre, mm", "size, mm", "wanted", "missing", "unreadable", "spurious")
    head = "".join(f"<th>{h}</th>" for h in heads)
    charts = histogram(local["box_micro"]["histogram"], "all boxes")
    charts += "".join(
        histogram(local["structures"][n]["histogram"], n.replace("_", " ")) for n in order if local["structures"][n]["counts"]["wanted"]
    )
    table = f'<div class="wide"><table><tr><th></th>{head}</tr>{rows}</table></div>'
    return f'{table}<h3 class="inner">How IoU is distributed</h3><div class="row">{charts}</div>'


def _together(scores: dict[str, Any]) -> str:
    given = scores["together"]["accuracy_given_iou"]
    rows = [("no box given" if n == "no_box" else f"IoU {n.replace('-', ' to ')}", OURS if i else GREY, given[n]) for i, n in enumerate(BIN_NAMES)]
    by_patient = scores["together"]["correlation_by_patient"]
    told = ", ".join(f"{name.capitalize()} {number(leaf, 2)} ({interval(leaf, 2) or leaf.get('reason', '')})" for name, leaf in by_patient.items())
    note = (
        f"Accuracy of the judgments, by the IoU of the same answer. By patient, mean IoU against accuracy: {told}, n = {by_patient['pearson']['n']}."
    )
    return f"<p>{text(note)}</p>{dots(rows, 'accuracy given IoU')}"


def _consistency(scores: dict[str, Any]) -> str:
    rows = [(name.replace("_", " "), OURS, leaf) for name, leaf in scores["consistency"]["all"].items()]
    told = "Whether the text names the region, states the grades that it concludes, and follows the steps. A check of form, not of quality."
    return f"<p>{told}</p>{dots(rows, 'consistency')}"


def _matrices(scores: dict[str, Any]) -> str:
    attributes = scores["diagnosis"]["attributes"]
    shown = ""
    for category in CATEGORIES:
        names = [n for n in attributes if QUESTIONS[n.split(".")[0]].category is category]
        if names:
            tables = "".join(matrix(attributes[n]["confusion"], n) for n in names)
            shown += f'<details><summary>{text(category.title)} ({len(names)})</summary><div class="row">{tables}</div></details>'
    return f"<p>Rows are true grades, columns are given ones; shades are shares of a row.</p>{shown}"
