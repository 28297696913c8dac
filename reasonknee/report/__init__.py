"""Scores as files: scores.json, scores.md, rows.parquet, report.html, and what the Hub reads.

Everything a model wrote is text in them, never markup.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.layout.strict_text import parse_json
from reasonknee.release.reader import Release
from reasonknee.report.hub import DATASET, SYNTHETIC, eval_results_yaml, eval_yaml, model_card_yaml
from reasonknee.report.markdown import markdown
from reasonknee.report.page import has_jinja2, page
from reasonknee.scoring import Scored
from reasonknee.scoring.protocol import check_truth
from reasonknee.scoring.rows import ROWS_FILE, read_rows, write_rows
from reasonknee.scoring.tally import judge
from reasonknee.scoring.truth import read_truth
from reasonknee.system.files import write_text
from reasonknee.system.folders import note_ours

__all__ = ["markdown", "write_page", "write_report"]

SCORES_FILE = "scores.json"
_RESULT = ".eval_results/reasonknee-bench.yaml"
FILES = (SCORES_FILE, "scores.md", "eval.yaml", "model-index.yaml", _RESULT, "report.html", ROWS_FILE)


def write_report(scored: Scored, out: Path, release: str | Path, predictions: Path) -> list[Path]:
    """Writes all files to a folder, which may exist: those of an earlier report are replaced, others never.

    Without jinja2, which comes with the extra `report`, there is no report.html.
    """
    scores, opened = scored.scores, Release(release)
    dataset = SYNTHETIC if opened.manifest.synthetic else DATASET
    texts = {
        SCORES_FILE: json.dumps(scores, indent=1, allow_nan=False) + "\n",
        "scores.md": markdown(scores),
        "eval.yaml": eval_yaml(scores["split"]),
        "model-index.yaml": model_card_yaml(scores, dataset),
        _RESULT: eval_results_yaml(scores, dataset),
    }
    if has_jinja2():
        texts["report.html"] = page([scored], opened, [Path(predictions)])
    paths = []
    note_ours(out, FILES)
    for name, text in texts.items():
        write_text(out / name, text)
        paths.append(out / name)
    write_rows(out / ROWS_FILE, scored.truth, scored.predicted, scored.judged, _about(scores))
    return [*paths, out / ROWS_FILE]


def write_page(release: str | Path, folders: Sequence[Path], predictions: Sequence[Path], out: Path) -> None:
    """The page again, of one or two models, from what `score --out` wrote: nothing is scored anew."""
    opened = Release(release)
    models = [_read(folder, opened) for folder in folders]
    if len({scored.scores["split"] for scored in models}) > 1:
        raise UsageError("O002", "the models were scored on different splits", "score both on the same split")
    words = [predictions[k] if k < len(predictions) else None for k in range(len(models))]
    write_text(out, page(models, opened, words))


def _read(folder: Path, release: Release) -> Scored:
    import jsonschema

    from reasonknee.layout.scores import scores_schema

    path = folder / SCORES_FILE
    try:
        scores = parse_json(path.read_bytes(), path.name)
    except OSError as error:
        raise StorageError(
            "O005", f"{path}: {error.strerror}", "`reasonknee score --out` writes it"
        ) from None
    try:
        jsonschema.validate(scores, scores_schema())
    except jsonschema.ValidationError as error:
        told = f"{path}: {error.message[:120]}"
        raise DataError("O004", told, "another version wrote it: score again") from None
    truth = read_truth(release, scores["split"]).part(**scores["part"])
    check_truth(scores, truth, path)
    predicted = read_rows(folder / ROWS_FILE, truth)
    return Scored(scores, truth, predicted, judge(truth, predicted))


def _about(scores: dict[str, Any]) -> dict[str, str]:
    names = ("model", "split", "release_version", "questions", "box_convention", "code_version")
    return {name: str(scores[name]) for name in names}
