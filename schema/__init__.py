"""JSON Schemas (draft 2020-12) of answers, rows and the manifest: generated from the question table by `make
gen`, committed, and part of a release.

>>> from reasonknee import schema
>>> schema.validator("answers", "acl").is_valid({"box": None, "grades": {"complete_tear": 0,
"insertion_bml_cyst": 1, "repair": 0}}) True
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee.layout import CONFIGS
from reasonknee.layout.manifest import manifest_schema
from reasonknee.layout.records import answer_schema, json_schema
from reasonknee.layout.scores import comparison_schema, predictions_schema, rows_schema, scores_schema
from reasonknee.layout.sgmri import CONFIGS as QA_CONFIGS
from reasonknee.layout.sgmri import manifest_schema as qa_manifest_schema
from reasonknee.layout.sgmri import row_schema as qa_row_schema
from reasonknee.questions import QUESTIONS
from reasonknee.version import VERSION

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

__all__ = ["derive", "files", "load", "text", "validator", "write"]

FOLDER = Path(__file__).parent
_DRAFT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$comment": f"reasonknee {VERSION}",  # a release that claims another version is told by it
}


def derive() -> dict[str, dict[str, Any]]:
    """Every schema as the table has it now, by file name."""
    answers = {
        "title": "Answers, one definition per question",
        "$defs": {q.id: answer_schema(q) for q in QUESTIONS.values()},
    }
    rows = {
        f"{config}.schema.json": {**_DRAFT, "title": f"A row of {config}", **json_schema(config)}
        for config in CONFIGS
    }
    manifest = {**_DRAFT, "title": "The manifest of a release", **manifest_schema()}
    predictions = {**_DRAFT, "title": "A line of predictions", **predictions_schema()}
    scores = {**_DRAFT, "title": "The scores of a model", **scores_schema()}
    around = {
        "manifest.schema.json": manifest,
        "predictions.schema.json": predictions,
        "comparison.schema.json": {**_DRAFT, "title": "Models compared", **comparison_schema()},
        "rows.schema.json": {**_DRAFT, "title": "A row of rows.parquet", **rows_schema()},
        "scores.schema.json": scores,
    }
    return {"answers.schema.json": {**_DRAFT, **answers}, **around, **rows}


def derive_sgmri() -> dict[str, dict[str, Any]]:
    """Those of the second benchmark, which lie in a folder of their own and in no release of knees."""
    rows = {
        f"sgmri/{config}.schema.json": {**_DRAFT, "title": f"A row of {config}", **qa_row_schema(config)}
        for config in QA_CONFIGS
    }
    manifest = {**_DRAFT, "title": "The manifest of a release of SGMRI-VQA", **qa_manifest_schema()}
    return {"sgmri/manifest.schema.json": manifest, **rows}


def text(schema: dict[str, Any]) -> str:
    """A schema as its file has it."""
    return json.dumps(schema, indent=1) + "\n"


def write() -> list[Path]:
    """Writes the schemas that are committed here; `make gen` calls it."""
    paths = []
    for name, schema in {**derive(), **derive_sgmri()}.items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(text(schema), encoding="utf-8")
        paths.append(FOLDER / name)
    return paths


def files() -> list[Path]:
    """The committed schemas of knees."""
    return sorted(FOLDER.glob("*.schema.json"))


@cache
def load(name: str) -> dict[str, Any]:
    """The committed schema: `answers`, `manifest`, `predictions`, `rows`, `scores`, `comparison`, or of a
    config; `sgmri/manifest` and `sgmri/qa` of the second benchmark."""
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    return loaded


@cache
def validator(name: str, definition: str | None = None) -> Validator:
    """A ready validator of a schema, or of one of its `$defs`: `validator("answers", "acl")`."""
    from jsonschema import Draft202012Validator

    schema = load(name)
    return Draft202012Validator({**_DRAFT, **schema["$defs"][definition]} if definition else schema)
