"""The layout of what the scorer reads and writes: a line of predictions, scores.json, and rows.parquet.

Standard library only.
"""

from __future__ import annotations

from typing import Any

from reasonknee.layout.manifest import provenance_schema
from reasonknee.layout.records import (
    BOOL,
    BOX,
    FLOAT64,
    INT8,
    INT64,
    SIDES,
    TEXT,
    Field,
    Repeated,
    Struct,
    object_schema,
)
from reasonknee.questions import ATTRIBUTES

SCORES_VERSION = 2
AVERAGES = ("attribute_micro", "question_macro", "category_macro")
MODES = ("strict", "answered")  # what was not answered is wrong, or left out
STATUSES = ("parsed", "invalid", "unparsed", "missing")
BOX_STATES = ("none", "given", "unreadable")
BASELINES = ("majority", "stratified", "text_only", "box_only", "image_mean", "constant_box")
HISTOGRAM = 20  # bins of IoU from 0 to 1, of the boxes that were wanted


def _by_attribute(doc: str, kind: Any = INT8) -> Struct:
    return Struct(tuple(Field(a, kind, doc, nullable=True) for a in ATTRIBUTES))


# rows.parquet: one row per quintuple that was asked, whether it was answered or not.
ROW_FIELDS = (
    Field("id", TEXT, "The quintuple's id"),
    Field("volume_id", TEXT, "The scan's id"),
    Field("patient", TEXT, "Patient id"),
    Field("visit", TEXT, "Visit in months after baseline"),
    Field("side", TEXT, "The knee", choices=SIDES),
    Field("question_id", TEXT, "Stable id of the question"),
    Field("category", TEXT, "Category of the lesion"),
    Field("region", TEXT, "Region of the knee"),
    Field("status", TEXT, "What became of the grades", choices=STATUSES),
    Field("line", INT64, "Byte at which its line starts in the predictions; null if missing", nullable=True),
    Field("grades", _by_attribute("Grade that was given; null if none or not asked"), "The model's grades"),
    Field("true_grades", _by_attribute("True grade; null if unknown or not asked"), "The release's grades"),
    Field(
        "right",
        _by_attribute("Whether it is the true grade, no answer is not; null if there is none", BOOL),
        "The judgments",
    ),
    Field("box_status", TEXT, "What became of the box", choices=BOX_STATES),
    Field("box", BOX, "The model's box in voxels of the full volume; null unless given", nullable=True),
    Field("true_box", BOX, "The release's box; null if the region has none", nullable=True),
    Field("iou", FLOAT64, "0 if no box was given; null if none is wanted", nullable=True),
    Field("giou", FLOAT64, "Generalised IoU, -1 if no box was given; null if none is wanted", nullable=True),
    Field("centre_mm", FLOAT64, "Distance of the centres; null unless both boxes are there", nullable=True),
    Field("confidence", FLOAT64, "As the model gave it, from 0 to 1", nullable=True),
    Field(
        "reasoning",
        Struct(
            (
                Field("written", BOOL, "There is one"),
                Field("names_region", BOOL, "A sentence names the region"),
                Field("states_grade", BOOL, "A grade is stated"),
                Field("agrees_with_grades", BOOL, "Each stated grade is the one concluded"),
                Field("follows_steps", BOOL, "Region and finding come before the last grade"),
            )
        ),
        "Checks of the reasoning's form",
    ),
    Field(
        "problems",
        Repeated(Struct((Field("code", TEXT, "Stable code"), Field("text", TEXT, "In words")))),
        "What is odd in the answer",
    ),
)


def rows_schema() -> dict[str, Any]:
    return object_schema(ROW_FIELDS)


_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}


def predictions_schema() -> dict[str, Any]:
    """What a line must look like.

    Whether a grade is legal is not asked here: an illegal one is an answer, and counted as invalid.
    """
    text = {"type": ["string", "null"]}
    properties = {
        "id": {"type": "string", "description": "The quintuple's id"},
        "response": {**text, "description": "The model's text; null if it gave none"},
        "grades": {
            "type": "object",
            "additionalProperties": {"type": ["integer", "null"]},
            "description": "Attribute id -> grade",
        },
        "box": {
            "type": ["object", "array", "null"],
            "description": "A box in the convention that the scorer is told",
        },
        "reasoning": {**text, "description": "The model's reasoning, where grades and box are given ready"},
        "confidence": {
            "type": ["number", "null"],
            "minimum": 0,
            "maximum": 1,
            "description": "How sure the model is that its whole answer is right",
        },
    }
    forms = [
        {"required": ["response"], "not": {"required": ["grades"]}},
        {"required": ["grades"], "not": {"required": ["response"]}},
    ]
    return {"type": "object", "properties": properties, "required": ["id"], "oneOf": forms}


def scores_schema() -> dict[str, Any]:
    tree, leaf = {"$ref": "#/$defs/node"}, {"$ref": "#/$defs/leaf"}
    average = _closed(dict.fromkeys((*MODES, "coverage"), leaf))
    ids = {"type": "array", "items": _TEXT}
    named = ("asked", "patients", "lines", *STATUSES, "aside", "unknown", "repeated", "contradictory")
    counts = _closed({**dict.fromkeys(named, _COUNT), "unknown_ids": ids, "repeated_ids": ids})
    texts = ("code_version", "model", "release_version", "questions", "split", "box_convention")
    properties: dict[str, Any] = {
        "scores_version": {"const": SCORES_VERSION},
        **dict.fromkeys(texts, _TEXT),
        "protocol": _closed({**dict.fromkeys(("name", "version", "digest", "truth"), _TEXT), "differs": ids}),
        "part": _closed({"questions": ids, "categories": ids}),
        "bootstrap": _COUNT,
        "seed": _COUNT,
        "counts": counts,
        "warnings": ids,
        "averages": _closed(dict.fromkeys(AVERAGES, average)),
        "diagnosis": tree,
        "localisation": tree,
        "together": tree,
        "consistency": tree,
        "detection": tree,
        "strata": tree,
        "confidence": _or_null(_confidence()),
        "baselines": _or_null(
            {"type": "object", "properties": dict.fromkeys(BASELINES, tree), "additionalProperties": False}
        ),
        "evidence": _evidence(),
        "readers": _or_null(
            _closed({"judgments": _COUNT, "patients": _COUNT, "readers": tree, "model": tree})
        ),
        "runs": _or_null(_runs()),
    }
    closed = _closed(properties)
    closed["properties"]["asked"] = {**_TEXT, "description": "What made the predictions, where `ask` did"}
    summed = "Where the release's grades, boxes and images come from, as its manifest sums it"
    closed["properties"]["provenance"] = {**provenance_schema(), "description": summed}
    return {**closed, "$defs": {"leaf": _leaf(), "node": _node()}}


_NUMBER = {"type": ["number", "null"]}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _confidence() -> dict[str, Any]:
    leaf = {"$ref": "#/$defs/leaf"}
    ends = {"low": _NUMBER, "high": _NUMBER, "n": _COUNT, "confidence": _NUMBER, "right": _NUMBER}
    named = dict.fromkeys(("given", "auc_right", "brier", "calibration_error"), leaf)
    by_category = {"type": "object", "additionalProperties": leaf}
    return _closed({**named, "auc_finding": by_category, "bins": {"type": "array", "items": _closed(ends)}})


def difference_schema() -> dict[str, Any]:
    """What two models differ by in one measure."""
    numbers = dict.fromkeys(("a", "b", "p", "p_holm", "smallest_difference"), _NUMBER)
    return {**numbers, "difference": {"$ref": "#/$defs/leaf"}}


def _evidence() -> dict[str, Any]:
    entry = _closed({**difference_schema(), "measure": _TEXT, "beaten": {"type": "boolean"}})
    against = {"type": "object", "propertyNames": {"enum": list(BASELINES)}, "additionalProperties": entry}
    told = {"uses_image": {"type": "boolean"}, "sentence": _TEXT}
    categories = {
        "type": "object",
        "additionalProperties": entry,
        "description": "Against the most frequent grade",
    }
    return _closed({**told, "against": against, "categories": categories})


def _runs() -> dict[str, Any]:
    values = {"type": "array", "items": _NUMBER}
    entry = _closed({"values": values, "mean": _NUMBER, "standard_deviation": _NUMBER})
    names = {"type": "array", "items": _TEXT}
    return _closed({"names": names, "measures": {"type": "object", "additionalProperties": entry}})


def comparison_schema() -> dict[str, Any]:
    """What `reasonknee compare --out` writes."""
    names = {"type": "array", "items": _TEXT}
    part = {"type": "object", "additionalProperties": _closed(difference_schema())}
    sections = {"enum": ["headline", "categories", "regions", "structures"]}
    measures = {"type": "object", "propertyNames": sections, "additionalProperties": part}
    pair = _closed({"a": _TEXT, "b": _TEXT, "measures": measures})
    counts = dict.fromkeys(("patients", "bootstrap", "permutations", "seed"), _COUNT)
    lists = dict.fromkeys(("models", "baselines", "warnings"), names)
    properties = {**lists, "split": _TEXT, **counts, "pairs": {"type": "array", "items": pair}}
    return {**_closed(properties), "$defs": {"leaf": _leaf()}}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _leaf() -> dict[str, Any]:
    """An estimate with its 95 % interval over patients. What is undefined is null, and says why."""
    number = {"type": ["number", "null"]}
    return {
        "type": "object",
        "properties": {
            "value": number,
            "low": number,
            "high": number,
            "n": _COUNT,
            "reason": {"type": "string", "description": "Why the value is undefined"},
            "no_interval": {"type": "string", "description": "Why there is a value, but no interval"},
        },
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
        "properties": {
            "confusion": matrix,
            "histogram": histogram,
            "scale": _TEXT,
            "counts": {"additionalProperties": _COUNT},
        },
        "additionalProperties": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/node"}]},
    }
