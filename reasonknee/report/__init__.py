"""Scores as files: scores.json, scores.md, report.html, and what the Hub reads. Everything a model wrote is text in them, never markup."""

from __future__ import annotations

import json
from pathlib import Path

from reasonknee.manifest import read_manifest
from reasonknee.report.browser import browser
from reasonknee.report.hub import DATASET, SYNTHETIC, eval_results_yaml, eval_yaml
from reasonknee.report.markdown import markdown
from reasonknee.report.page import page
from reasonknee.scoring import Scored

__all__ = ["markdown", "write_report"]


def write_report(scored: Scored, out: Path, release: Path, predictions: Path) -> list[Path]:
    """Writes all files to a folder, which may exist: files of an earlier report are replaced."""
    scores = scored.scores
    texts = {
        "scores.json": json.dumps(scores, indent=1, allow_nan=False) + "\n",
        "scores.md": markdown(scores),
        "report.html": page(scores, browser(scored, release, predictions)),
        "eval.yaml": eval_yaml(scores["split"]),
        ".eval_results/reasonknee-bench.yaml": eval_results_yaml(scores, SYNTHETIC if read_manifest(release).synthetic else DATASET),
    }
    paths = []
    for name, text in texts.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_text(text, encoding="utf-8", newline="\n")
        temporary.replace(path)
        paths.append(path)
    return paths
