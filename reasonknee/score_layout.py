"""The layout of what the scorer reads and writes, as JSON Schemas: a line of predictions, and scores.json. Standard library only."""

from __future__ import annotations

from typing import Any

SCORES_VERSION = 1
AVERAGES = ("attribute_micro", "question_macro", "category_macro")
MODES = ("strict", "answered")  # what was not answered is wrong, or left out
STATUSES = ("parsed", "invalid", "unparsed", "missing")
BASELINES = ("majority", "stratified", "constant_box")
HISTOGRAM = 20  # bins of IoU from 0 to 1, of the boxes that were wanted

_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}


def predictions_schema() -> dict[str, Any]:
    """What a line must look like. Whether a grade is legal is not asked here: an illegal one is an answer, and counted as invalid."""
    text = {"type": ["string", "null"]}
    properties = {
        "id": {"type": "string", "description": "The quintuple's id"},
        "response": {**text, "description": "The model's text; null if it gave none"},
        "grades": {"type": "object", "additionalProperties": {"type": ["integer", "null"]}, "description": "Attribute id -> grade"},
        "box": {"type": ["object", "array", "null"], "description": "A box in the convention that the scorer is told"},
        "reasoning": {**text, "description": "The model's reasoning, where grades and box are given ready"},
    }
    forms = [{"required": ["response"], "not": {"required": ["grades"]}}, {"required": ["grades"], "not": {"required": ["response"]}}]
    return {"type": "object", "properties": properties, "required": ["id"], "oneOf": forms}


def scores_schema() -> dict[str, Any]:
    tree, leaf = {"$ref": "#/$defs/node"}, {"$ref": "#/$defs/leaf"}
    average = _closed(dict.fromkeys((*MODES, "coverage"), leaf))
    ids = {"type": "array", "items": _TEXT}
    named = ("asked", "patients", "lines", *STATUSES, "unknown", "repeated", "contradictory")
    counts = _closed({**dict.fromkeys(named, _COUNT), "unknown_ids": ids, "repeated_ids": ids})
    texts = ("code_version", "model", "release_version", "questions", "split", "box_convention")
    properties: dict[str, Any] = {
        "scores_version": {"const": SCORES_VERSION},
        **dict.fromkeys(texts, _TEXT),
        "bootstrap": _COUNT,
        "seed": _COUNT,
        "counts": counts,
        "warnings": ids,
        "averages": _closed(dict.fromkeys(AVERAGES, average)),
        "diagnosis": tree,
        "localisation": tree,
        "together": tree,
        "consistency": tree,
        "baselines": {"anyOf": [_closed(dict.fromkeys(BASELINES, tree)), {"type": "null"}]},
    }
    return {**_closed(properties), "$defs": {"leaf": _leaf(), "node": _node()}}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _leaf() -> dict[str, Any]:
    """An estimate with the central 95 % of its resamples. What is undefined is null, and says why."""
    number = {"type": ["number", "null"]}
    return {
        "type": "object",
        "properties": {"value": number, "low": number, "high": number, "n": _COUNT, "reason": _TEXT},
        "required": ["value", "low", "high", "n"],
        "additionalProperties": False,
        "if": {"properties": {"value": {"type": "null"}}},
        "then": {"required": ["reason"]},
    }


def _node() -> dict[str, Any]:
    """Estimates by name, down to any depth."""
    matrix = {"type": "array", "items": {"type": "array", "items": _COUNT}}
    histogram = {"type": "array", "items": _COUNT, "minItems": HISTOGRAM, "maxItems": HISTOGRAM}
    return {
        "type": "object",
        "properties": {"confusion": matrix, "histogram": histogram, "scale": _TEXT, "counts": {"additionalProperties": _COUNT}},
        "additionalProperties": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}]},
    }
