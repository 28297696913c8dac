"""Scores as files: scores.json, scores.md, rows.parquet and report.html, with the published table beside
ours."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from reasonknee.sgmri.measures import TEXT_TASKS, THRESHOLDS
from reasonknee.sgmri.scores import COLUMNS, Scored
from reasonknee.system.files import whole, write_text
from reasonknee.system.folders import note_ours

# arXiv 2604.15808, in per cent, in the order of COLUMNS.
PUBLISHED = {
    "slice": {
        "GPT-4o": (50.74, 52.49, 44.71, 3.41, 26.22, 16.90),
        "Gemini-2.5-Flash": (67.36, 86.31, 89.68, 5.95, 27.85, 21.72),
        "Qwen3-VL-8B": (46.11, 76.02, 80.29, 3.11, 24.55, 19.86),
        "Qwen3-VL-8B, fine-tuned": (95.11, 97.56, 94.50, 15.51, 28.99, 25.05),
    },
    "volume": {
        "GPT-4o": (70.57, 67.51, 35.97, 1.20, 24.83, 20.19),
        "Qwen3-VL-8B": (62.23, 64.72, 30.98, 0.16, 21.93, 19.05),
        "Qwen3-VL-8B, fine-tuned": (99.18, 97.70, 37.77, 5.97, 28.24, 26.54),
    },
}
_NOTE = (
    "Published rows are the paper's own numbers on its own questions, images and scorer. They stand here for "
    "orientation and cannot be compared digit by digit: docs/sgmri.md says why."
)
Row = tuple[str, list[str], str]  # name, cells, kind: ours, baseline or published


def table(level: str, runs: dict[str, dict[str, Any]]) -> list[Row]:
    """Ours and the baselines with intervals, then the published rows. `runs` is model -> scores."""
    rows: list[Row] = []
    for position, (name, scores) in enumerate(runs.items()):
        if level in scores["levels"]:
            columns = scores["levels"][level]["columns"]
            rows.append(
                (name, [_cell(columns[c]) for c in COLUMNS[level]], "ours" if not position else "baseline")
            )
    rows += [
        (f"{name} (published)", [f"{v:.1f}" for v in values], "published")
        for name, values in PUBLISHED[level].items()
    ]
    return rows


def _cell(entry: dict[str, Any]) -> str:
    if entry["value"] is None:
        return "–"
    text = f"{100 * entry['value']:.1f}"
    return text if entry["low"] is None else f"{text} [{100 * entry['low']:.1f}, {100 * entry['high']:.1f}]"


def _boxes(level: str, runs: dict[str, dict[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for position, (name, scores) in enumerate(runs.items()):
        boxes = scores["levels"].get(level, {}).get("boxes", {})
        cells = [
            _cell(boxes[str(t)][part])
            for part in ("f1", "precision", "recall")
            for t in THRESHOLDS
            if boxes.get(str(t))
        ]
        if cells:
            cells.insert(0, _cell(scores["levels"][level]["columns"]["localization V"]))
            rows.append((name, cells, "ours" if not position else "baseline"))
    return rows


def _texts(level: str, runs: dict[str, dict[str, Any]]) -> list[Row]:
    return [
        (
            name,
            [_cell(scores["levels"][level]["texts"][task][what]) for task in TEXT_TASKS for what in _WORDS],
            "ours" if not position else "baseline",
        )
        for position, (name, scores) in enumerate(runs.items())
        if level in scores["levels"]
    ]


_BOX_HEAD = ["V", *(f"{part} at {t:g}" for part in ("F1", "precision", "recall") for t in THRESHOLDS)]
_WORDS = {"bleu": "BLEU", "rouge_l": "ROUGE-L"}
_TEXT_HEAD = [f"{task} {word}" for task in TEXT_TASKS for word in _WORDS.values()]


def sections(runs: dict[str, dict[str, Any]]) -> list[tuple[str, list[str], list[Row]]]:
    """Title, head and rows of every table."""
    made = []
    for level, title in (("slice", "Slices"), ("volume", "Volumes")):
        if any(level in scores["levels"] for scores in runs.values()):
            made.append(
                (f"{title}: the benchmark's columns, in per cent", list(COLUMNS[level]), table(level, runs))
            )
            made.append((f"{title}: boxes, in per cent", _BOX_HEAD, _boxes(level, runs)))
            made.append((f"{title}: texts, in per cent", _TEXT_HEAD, _texts(level, runs)))
    return made


def opening(scores: dict[str, Any]) -> list[str]:
    """What a reader has to know before any number."""
    statuses = scores["statuses"]
    lines = [
        f"{scores['items']:,} questions; {statuses['answered']:,} answered, {statuses['unread']:,} not "
        "readable, "
        f"{statuses['missing']:,} missing. What is not readable or missing counts as wrong.",
        f"Intervals are the central 95 % over {scores['clusters']} resampled "
        f"{'patients' if scores['by'] == 'patient' else 'volumes, because the patients are not known'}.",
    ]
    if not scores["judge"] or not scores["bertscore"]:
        lines.append("AR is not given: it needs a judge's and BERTScore's numbers, which were not there.")
    else:
        lines.append(f"AR was judged by {scores['judge']}; BERTScore is of {scores['bertscore']}.")
    if scores["unknown_ids"]:
        lines.append(f"{scores['unknown_ids']:,} predictions have an id that no question has.")
    return lines


def markdown(runs: dict[str, dict[str, Any]]) -> str:
    name, scores = next(iter(runs.items()))
    parts = [f"# SGMRI-VQA: {name}", *opening(scores)]
    for title, head, rows in sections(runs):
        lines = [f"## {title}", "", f"| model | {' | '.join(head)} |", f"|---|{'---|' * len(head)}"]
        lines += [f"| {row[0].replace('|', '/')} | {' | '.join(row[1])} |" for row in rows]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, _NOTE]) + "\n"


_STYLE = """body{font:16px/1.5 system-ui,sans-serif;color:#1b1f24;max-width:72rem;
margin:0 auto;padding:1.5rem}
h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9rem}td,th{padding:.3rem .6rem;border-bottom:1px solid #ddd;
text-align:right;vertical-align:bottom}td:first-child,th:first-child{text-align:left;white-space:nowrap}
.ours td{font-weight:600;background:#eef4fb}.published td{color:#59636e}"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(runs: dict[str, dict[str, Any]]) -> str:
    """The same as one file for a browser; everything from elsewhere is escaped."""
    name, scores = next(iter(runs.items()))
    e = html.escape
    parts = [f"<h1>SGMRI-VQA: {e(name)}</h1>", *(f"<p>{e(line)}</p>" for line in opening(scores))]
    for title, head, rows in sections(runs):
        cells = "".join(f"<th>{e(h)}</th>" for h in ("model", *head))
        lines = "".join(
            f'<tr class="{row[2]}"><td>{e(row[0])}</td>'
            + "".join(f"<td>{e(c).replace(', ', ',&nbsp;')}</td>" for c in row[1])  # an interval stays whole
            + "</tr>"
            for row in rows
        )
        parts.append(f'<h2>{e(title)}</h2><div class="wide"><table><tr>{cells}</tr>{lines}</table></div>')
    parts.append(f"<p>{e(_NOTE)}</p>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>SGMRI-VQA: {e(name)}</title><style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )


FILES = ("scores.json", "scores.md", "report.html", "rows.parquet")


def write_report(scored: Scored, baselines: dict[str, dict[str, Any]], out: Path) -> list[Path]:
    runs = {scored.scores["model"] or "this model": scored.scores, **baselines}
    paths = []
    note_ours(out, FILES)
    for name, text in (
        (
            "scores.json",
            json.dumps({**scored.scores, "baselines": baselines}, indent=1, allow_nan=False) + "\n",
        ),
        ("scores.md", markdown(runs)),
        ("report.html", page(runs)),
    ):
        write_text(out / name, text)
        paths.append(out / name)
    return [*paths, _write_rows(scored, out / "rows.parquet")]


def _write_rows(scored: Scored, path: Path) -> Path:
    """Every item's scores: NaN is null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    items = list(zip(scored.records, scored.measured, scored.said, strict=True))
    nested = pa.list_(pa.struct([(name, pa.int32()) for name in ("frame", "y0", "y1", "x0", "x1")]))
    columns: dict[str, pa.Array] = {
        name: pa.array([getattr(record, name) for record, _, _ in items], pa.string())
        for name in ("id", "anatomy", "level", "task", "volume_id", "patient")
    }
    columns["status"] = pa.array([m.status for _, m, _ in items], pa.string())
    for name in ("a", "v", "bleu", "rouge"):
        columns[name] = pa.array([getattr(m, name) for _, m, _ in items], pa.float64(), from_pandas=True)
    for i, threshold in enumerate(THRESHOLDS):
        columns[f"f1_{round(100 * threshold)}"] = pa.array(
            [m.f1(i) for _, m, _ in items], pa.float64(), from_pandas=True
        )
    columns["boxes"] = pa.array(
        [[b.as_dict() for b in said.boxes] if said else [] for _, _, said in items], nested
    )
    columns["problems"] = pa.array(
        [said.problems if said else [] for _, _, said in items], pa.list_(pa.string())
    )
    with whole(path) as temporary:
        pq.write_table(pa.table(columns), temporary, compression="zstd")
    return path
