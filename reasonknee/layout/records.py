"""The quintuple, typed once: the fields of every config.

`datasets.Features`, the Arrow schema, the JSON Schema, the card's YAML and the Croissant fields are all read
off the `Field`s below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from reasonknee.boxes import BOX_FIELDS
from reasonknee.errors import UsageError
from reasonknee.questions import ATTRIBUTES, QUESTIONS, Question
from reasonknee.questions.prompts import WORDINGS

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

# --- a small algebra of types -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    name: Literal["string", "bool", "int8", "int32", "int64", "float64", "binary"]


@dataclass(frozen=True)
class Struct:
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Repeated:
    of: Scalar | Struct


@dataclass(frozen=True)
class NiftiFile:
    """Bytes of an uncompressed NIfTI-1 file whose voxels, from byte 352, are the C-contiguous (z, y, x)
    array."""


Type = Scalar | Struct | Repeated | NiftiFile


@dataclass(frozen=True)
class Field:
    name: str
    type: Type
    doc: str
    nullable: bool = False
    choices: tuple[str, ...] = ()  # the only legal texts, where there is a fixed list


TEXT, BOOL, INT8, INT32, INT64, FLOAT64, BINARY = (
    Scalar("string"),
    Scalar("bool"),
    Scalar("int8"),
    Scalar("int32"),
    Scalar("int64"),
    Scalar("float64"),
    Scalar("binary"),
)
BOX = Struct(
    tuple(
        Field(name, INT32, f"{name[0]} voxel, {'first' if name[1] == '0' else 'one past the last'}")
        for name in BOX_FIELDS
    )
)

# --- the fields ---------------------------------------------------------------------------------------------

_AXES = ("z", "y", "x")
_THW = ("slices", "rows", "columns")
SIDES = ("left", "right")
"""The sides of a knee."""
# where a box comes from: the published files, a mask, or our rule that cuts a portion of a mask
BOX_SOURCES = ("published", "mask", "rule")

_OF_VOLUME = (
    Field("volume_id", TEXT, "Stable id of the scan: patient-visit-side"),
    Field("patient", TEXT, "Patient id, seven digits; a patient is in one split only"),
    Field("visit", TEXT, "Visit in months after baseline: 00m, 12m, ..."),
    Field("side", TEXT, "The knee", choices=SIDES),
    Field("study", TEXT, "OAI study folder, to join with one's own images"),
    Field("series", TEXT, "OAI series folder, to join with one's own images"),
    Field(
        "shape", Struct(tuple(Field(a, INT32, f"Voxels along {a}") for a in _AXES)), "Size of the full volume"
    ),
    Field(
        "spacing",
        Struct(tuple(Field(a, FLOAT64, f"Millimetres along {a}") for a in _AXES)),
        "Voxel size of the full volume",
    ),
    Field("orientation", TEXT, "Where z, y and x grow to, e.g. LIP: left, inferior, posterior"),
    Field(
        "provenance",
        Struct(
            (
                Field("grades", TEXT, "The table that the grades are from, or `published`", nullable=True),
                Field("project", TEXT, "The reading project that they are of", nullable=True),
                Field("package", TEXT, "OAI's image package, e.g. 0.C.2", nullable=True),
                Field(
                    "image_sha256",
                    TEXT,
                    "Of the image file; of a DICOM series, of the list of its files with theirs",
                    nullable=True,
                ),
            )
        ),
        "Where the volume's grades and image come from; null where nobody has said",
    ),
)
_WORDING_DOCS = {
    "zero_shot": "The question, the codes of its grades and the wanted output",
    "instruction": "The same, with the look on DESS and the rules of grading",
    "region": "The instruction where the true region is shown: no box is asked",
}
_OF_QUESTION = (
    Field("id", TEXT, "Stable id of the quintuple: volume id and question id"),
    Field("question_id", TEXT, "Stable id of the question"),
    Field("category", TEXT, "Category of the lesion"),
    Field("region", TEXT, "Region of the knee that the box encloses"),
    Field(
        "question",
        Struct(tuple(Field(name, TEXT, _WORDING_DOCS[name], nullable=True) for name in WORDINGS)),
        "The question in several wordings",
    ),
    Field(
        "box",
        BOX,
        "Region box in voxels of the full volume, half-open; null if the region was not found",
        nullable=True,
    ),
    Field(
        "box_source",
        TEXT,
        "Where the box comes from; null without a box, or where nobody has said",
        nullable=True,
        choices=BOX_SOURCES,
    ),
    Field(
        "reasoning",
        Repeated(TEXT),
        "Our reasoning, derived from grades and box: locate, assess, then grade each attribute that is "
        "known. It states the answer",
    ),
    Field(
        "published_reasoning",
        TEXT,
        "The published dataset's own reasoning, word for word; null where there is none",
        nullable=True,
    ),
    Field(
        "grades",
        Struct(
            tuple(
                Field(a, INT8, "Grade; null where it is unknown, or not asked for", nullable=True)
                for a in ATTRIBUTES
            )
        ),
        "MOAKS grades; the question says which are asked for, and of those at least one is known",
    ),
    Field(
        "second_readings",
        Repeated(
            Struct(
                (
                    Field("project", TEXT, "The reading project"),
                    Field("attribute", TEXT, "The attribute that it grades", choices=ATTRIBUTES),
                    Field("grade", INT8, "Its grade"),
                )
            )
        ),
        "Other readings of the same knee and visit, grade by grade: how far readers agree",
    ),
)
_ID, *_REST = _OF_QUESTION
_QUINTUPLE = (_ID, *_OF_VOLUME, *_REST)
_CROP = Field(
    "crop",
    BOX,
    "Where the crop lies in the full volume: the box plus the margin; null without a box",
    nullable=True,
)
_CROPPED_VOLUME = Field(
    "volume",
    NiftiFile(),
    "The region's voxels as NIfTI, with the crop's affine; null without a box",
    nullable=True,
)
_FULL_VOLUME = Field("volume", NiftiFile(), "The whole volume as NIfTI")
_EMBEDDING = Field(
    "embedding",
    Struct(
        (
            Field("dtype", TEXT, "Type of a number", choices=("float16", "bfloat16")),
            Field("tokens", INT32, "Rows"),
            Field("width", INT32, "Columns"),
            Field("bytes", BINARY, "tokens x width little-endian numbers, C order"),
            Field(
                "grid",
                Struct(tuple(Field(n, INT32, f"Along {axis}") for n, axis in zip("thw", _THW, strict=True))),
                "Patches before merging, as position ids are built from; null for an encoder without a grid",
                nullable=True,
            ),
            Field("slices", Repeated(INT32), "Sagittal slices that were encoded; null if not told", True),
            Field("fps", FLOAT64, "Frames a second that the model was told", nullable=True),
            Field(
                "window",
                Struct((Field("low", FLOAT64, "Shown as black"), Field("high", FLOAT64, "Shown as white"))),
                "Intensity window of the frames",
                nullable=True,
            ),
            Field("model", TEXT, "The vision encoder", nullable=True),
            Field("revision", TEXT, "Its revision", nullable=True),
            Field("versions", TEXT, "Versions of the software that made it", nullable=True),
        )
    ),
    "Vision embedding of the whole volume",
)
_QUINTUPLES = Field("quintuples", Repeated(Struct(_OF_QUESTION)), "The questions on this volume")

DEFAULT_CONFIG = "cropped"
CONFIGS: dict[str, tuple[Field, ...]] = {
    "cropped": (*_QUINTUPLE, _CROP, _CROPPED_VOLUME),
    "full": (*_OF_VOLUME, _FULL_VOLUME, _QUINTUPLES),
    "embeddings": (*_OF_VOLUME, _EMBEDDING, _QUINTUPLES),
    "annotations": _QUINTUPLE,
}
"""Config -> the fields of its rows, in order."""
CONFIG_DOCS = {
    "cropped": "one row per quintuple, with the voxels of the ground-truth region",
    "full": "one row per volume, with its voxels and the list of its quintuples",
    "embeddings": "one row per volume, with its vision embedding in place of the voxels",
    "annotations": "one row per quintuple, no pixels",
}
PER_VOLUME = frozenset({"full", "embeddings"})  # configs with one row per volume
"""The configs that have one row per volume."""


def fields(config: str) -> tuple[Field, ...]:
    if config not in CONFIGS:
        raise UsageError("C001", f"unknown config {config!r}", f"choose among {', '.join(CONFIGS)}")
    return CONFIGS[config]


# --- what is read off them ----------------------------------------------------------------------------------


def features(config: str) -> datasets.Features:
    """Typed features; where `datasets` has no Nifti feature (before 4.4) the volume is `{bytes, path}`."""
    import datasets

    def convert(kind: Type) -> Any:
        match kind:
            case Scalar(name):
                return datasets.Value(name)
            case Struct(of):
                return {f.name: convert(f.type) for f in of}
            case Repeated(of):
                return [convert(of)]
            case NiftiFile():
                if hasattr(datasets, "Nifti"):
                    return datasets.Nifti()
                return {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}

    return datasets.Features({f.name: convert(f.type) for f in fields(config)})


def arrow_schema(config: str) -> pa.Schema:
    return arrow_fields(fields(config))


def arrow_fields(of: Sequence[Field]) -> pa.Schema:
    import pyarrow as pa

    def convert(kind: Type) -> pa.DataType:
        match kind:
            case Scalar(name):
                return getattr(pa, "bool_" if name == "bool" else name)()
            case Struct(parts):
                return pa.struct([(f.name, convert(f.type)) for f in parts])
            case Repeated(item):
                return pa.list_(convert(item))
            case NiftiFile():
                return pa.struct([("bytes", pa.binary()), ("path", pa.string())])

    return pa.schema([(f.name, convert(f.type)) for f in of])


def yaml_features(config: str) -> list[dict[str, Any]]:
    """The `dataset_info.features` of a card, as `datasets` >= 4.4 writes it, without needing `datasets`."""
    return yaml_fields(fields(config))


def yaml_fields(of: Sequence[Field]) -> list[dict[str, Any]]:

    def convert(kind: Type) -> dict[str, Any]:
        match kind:
            case Scalar(name):
                return {"dtype": name}
            case Struct(parts):
                return {"struct": [{"name": f.name, **convert(f.type)} for f in parts]}
            case Repeated(item):
                (inner,) = convert(item).values()
                return {"list": inner}
            case NiftiFile():
                return {"dtype": "nifti"}

    return [{"name": f.name, **convert(f.type)} for f in of]


_INT_RANGE = {"int8": 2**7, "int32": 2**31, "int64": 2**63}


def _json_type(field: Field) -> dict[str, Any]:
    schema: dict[str, Any]
    match field.type:
        case Scalar("string"):
            schema = {"enum": list(field.choices)} if field.choices else {"type": "string"}
        case Scalar("float64"):
            schema = {"type": "number"}
        case Scalar("bool"):
            schema = {"type": "boolean"}
        case Scalar("binary"):
            schema = {"contentEncoding": "base64"}  # base64 text in JSON, bytes in memory: so no type
        case Scalar(name):
            schema = {"type": "integer", "minimum": -_INT_RANGE[name], "maximum": _INT_RANGE[name] - 1}
        case Struct(of):
            schema = object_schema(of)
        case Repeated(of):
            schema = {"type": "array", "items": _json_type(Field("item", of, field.doc))}
        case NiftiFile():
            parts = {
                "bytes": {"contentEncoding": "base64", "contentMediaType": "application/x-nifti"},
                "path": {"type": "null"},
            }
            schema = {
                "type": "object",
                "properties": parts,
                "required": list(parts),
                "additionalProperties": False,
            }
    if field.nullable:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {"description": field.doc, **schema}


def object_schema(of: Sequence[Field]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {f.name: _json_type(f) for f in of},
        "required": [f.name for f in of],
        "additionalProperties": False,
    }


def grades_schema(question: Question) -> dict[str, Any]:
    """The legal grades of an answer to a question: all of its attributes, and nothing else."""
    properties = {
        a.id: {
            "type": "integer",
            "enum": list(a.space.grades),
            "description": "; ".join(f"{g} = {m}" for g, m in enumerate(a.space.meanings)),
        }
        for a in question.attributes
    }
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def answer_schema(question: Question) -> dict[str, Any]:
    """The canonical answer to a question: the region's box, or null, and the grades."""
    box = {"anyOf": [{**object_schema(BOX.fields)}, {"type": "null"}]}
    return {
        "type": "object",
        "title": f"{question.lesion.title}, {question.region.title}",
        "properties": {"box": box, "grades": grades_schema(question)},
        "required": ["box", "grades"],
        "additionalProperties": False,
    }


def json_schema(config: str) -> dict[str, Any]:
    """A row of a config. `$defs.legal` holds, for each question, what its row must say: category, region,
    and grades in their spaces."""
    schema = object_schema(fields(config))
    rules = []
    for q in QUESTIONS.values():
        asked = {a.id: {"enum": [*a.space.grades, None]} for a in q.attributes}
        unasked = {a: {"type": "null"} for a in ATTRIBUTES if a not in asked}
        some_known = [{"properties": {a: {"type": "integer"}}} for a in asked]
        then = {
            "category": {"const": q.category.id},
            "region": {"const": q.region.id},
            "grades": {"properties": {**asked, **unasked}, "anyOf": some_known},
        }
        rules.append(
            {
                "if": {"properties": {"question_id": {"const": q.id}}, "required": ["question_id"]},
                "then": {"properties": then},
            }
        )
    schema["$defs"] = {"legal": {"properties": {"question_id": {"enum": list(QUESTIONS)}}, "allOf": rules}}
    legal = {"$ref": "#/$defs/legal"}
    if config in PER_VOLUME:
        schema["properties"]["quintuples"]["items"]["allOf"] = [legal]
    else:
        schema["allOf"] = [legal]
    return schema
