"""The fields of SGMRI-VQA's records and rows, as `records` has those of the quintuples."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError, shown
from reasonknee.layout.dataset import Dataset
from reasonknee.layout.manifest import FILE_NAME, MAX_BYTES, Shard, inside, shard_paths
from reasonknee.layout.places import REPO, release_folder
from reasonknee.layout.records import BINARY, INT8, INT32, TEXT, Field, Repeated, Struct, object_schema
from reasonknee.layout.strict_text import parse_json

ANATOMIES = ("knee", "brain")
SPLITS = ("train", "test")  # test is fastMRI's val
LEVELS = ("slice", "volume")
TASKS = {
    "slice": ("detection", "localization", "classification", "diagnosis", "captioning"),
    "volume": ("detection", "localization", "counting", "classification", "captioning"),
}
KINDS = ("yes_no", "count", "single_choice", "multiple_choice", "text")
ALL_TASKS = tuple(dict.fromkeys(task for tasks in TASKS.values() for task in tasks))

_PIXEL = {"y0": "First row", "y1": "One past the last row", "x0": "First column", "x1": "One past the last"}
FRAME_BOX = Struct(
    (
        Field("frame", INT32, "Array index of the frame, from 0"),
        *(Field(name, INT32, f"{doc}, pixels of the stored image") for name, doc in _PIXEL.items()),
    )
)
QA = (
    Field("id", TEXT, "Stable id: anatomy, split, level, file, position and volume"),
    Field("anatomy", TEXT, "What was scanned", choices=ANATOMIES),
    Field("split", TEXT, "Split; test is fastMRI's val", choices=SPLITS),
    Field("level", TEXT, "Whether the question is about one slice or the whole volume", choices=LEVELS),
    Field("task", TEXT, "What is asked for", choices=ALL_TASKS),
    Field("source", TEXT, "Where the question comes from", choices=("published", "derived")),
    Field("volume_id", TEXT, "fastMRI's file name without its ending"),
    Field("patient", TEXT, "fastMRI's patient, where an image file told it", nullable=True),
    Field("sequence", TEXT, "Kind of scan", nullable=True),
    Field(
        "shape",
        Struct(
            (
                Field("frames", INT32, "Frames"),
                Field("height", INT32, "Rows"),
                Field("width", INT32, "Columns"),
            )
        ),
        "Size of the volume, where an image file told it",
        nullable=True,
    ),
    Field("frame", INT32, "The frame of a slice's question: array index, from 0", nullable=True),
    Field("first_frame", INT32, "The number that texts give to array index 0"),
    Field("question", TEXT, "The question"),
    Field(
        "choices",
        Repeated(Struct((Field("letter", TEXT, "Letter"), Field("text", TEXT, "What it stands for")))),
        "What can be chosen; empty where nothing is",
    ),
    Field(
        "answer",
        Struct(
            (
                Field("kind", TEXT, "How it is compared", choices=KINDS),
                Field("text", TEXT, "The answer in words"),
                Field("yes", INT8, "1 for yes, 0 for no", nullable=True),
                Field("count", INT32, "A count", nullable=True),
                Field("unit", TEXT, "What is counted", nullable=True),
                Field("letters", Repeated(TEXT), "The right choices"),
            )
        ),
        "The right answer",
    ),
    Field(
        "findings",
        Repeated(
            Struct((Field("label", TEXT, "Finding"), Field("boxes", Repeated(FRAME_BOX), "Where it is seen")))
        ),
        "What the question is about and where it is seen",
    ),
    Field("reasoning", Repeated(TEXT), "Reasoning steps. They state the answer"),
)
PIXELS = Struct(
    (
        Field("frames", INT32, "Frames"),
        Field("height", INT32, "Rows"),
        Field("width", INT32, "Columns"),
        Field("bytes", BINARY, "uint8 (frames, rows, columns), C order"),
    )
)
RENDERINGS = ("slice", "volume")  # how floats become bytes: each frame by itself, or by one window
CONFIG_DOCS = {
    "qa": "one row per question, no pixels",
    "slices": "one row per question on a slice, with the frame",
    "volumes": "one row per volume, with all frames and the list of its questions",
}
CONFIGS: dict[str, tuple[Field, ...]] = {
    "qa": QA,
    "slices": (*QA, Field("image", PIXELS, "The frame of the question")),
    "volumes": (
        Field("volume_id", TEXT, "fastMRI's file name without its ending"),
        Field("anatomy", TEXT, "What was scanned", choices=ANATOMIES),
        Field("patient", TEXT, "fastMRI's patient, where an image file told it", nullable=True),
        Field("image", PIXELS, "All frames"),
        Field("questions", Repeated(Struct(QA)), "The questions on this volume"),
    ),
}

SGMRI = Dataset(
    configs=CONFIGS,
    splits=SPLITS,
    public="qa",
    volumes_per_row_group={"qa": 16, "slices": 1, "volumes": 1},
    packed=(".bytes", "question", "reasoning.list.element", "answer.text"),
    selected=("id", "volume_id", "patient", "anatomy", "level", "task"),
    shares_bytes=frozenset({"slices"}),
)
NAME = "sgmri-vqa"  # what tells its manifest from that of another dataset
LAYOUT = 1
_SHARD_PATH = shard_paths(SGMRI)
_HINT = "is it a release of SGMRI-VQA? `reasonknee sgmri build` makes one"


@dataclass(frozen=True)
class QaManifest:
    """As the knee's manifest: every shard, every other file, what the release was made of. No times, no
    paths."""

    dataset: str
    release_version: str
    layout_version: int
    code_version: str
    versions: dict[str, str]
    restricted: bool  # holds pixels: for a private or gated place only
    synthetic: bool
    rendering: str
    sources: str
    volumes: dict[str, int]  # by split
    patients: dict[str, int] | None  # None where the patient of a volume is not known
    questions: dict[str, int]
    quarantined: dict[str, str]  # volumes that were left out, with the code of the reason
    shards: tuple[Shard, ...]
    files: dict[str, str]  # sha256 of every other file

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def of(self, config: str, split: str | None = None) -> list[Shard]:
        return [s for s in self.shards if s.config == config and split in (None, s.split)]

    @property
    def configs(self) -> list[str]:
        return [c for c in CONFIGS if self.of(c)]


def is_release(place: str | Path) -> bool:
    """Whether a folder, or a dataset repo on the Hub, is a release of SGMRI-VQA, and not of another dataset.
    Of a repo the texts are fetched, which whatever reads it next finds in the cache."""
    folder = Path(place)
    if not folder.is_dir() and isinstance(place, str) and REPO.fullmatch(place):
        folder = release_folder(place, configs=())
    path = folder / FILE_NAME
    if not path.is_file() or path.stat().st_size > MAX_BYTES:
        return False
    try:
        return bool(parse_json(path.read_bytes(), FILE_NAME).get("dataset") == NAME)
    except DataError:
        return False


def read_qa_manifest(release: Path) -> QaManifest:
    """The manifest of a release folder, from wherever it comes: what it names lies within the release, and
    its values are of the types that readers count on."""
    path = release / FILE_NAME
    if not path.is_file():
        raise DataError("Z040", f"{release} has no {FILE_NAME}", _HINT)
    if path.stat().st_size > MAX_BYTES:
        raise DataError("Z040", f"{FILE_NAME} is larger than {MAX_BYTES >> 20} MB", _HINT)
    raw = parse_json(path.read_bytes(), FILE_NAME)
    if raw.get("dataset") != NAME or raw.get("layout_version") != LAYOUT:
        what = f"{shown(raw.get('dataset'), 40)}, layout {shown(raw.get('layout_version'), 20)}"
        raise DataError("Z040", f"{FILE_NAME} is of {what}", _HINT)
    wrong = next(_errors(raw), None)
    if wrong:
        raise DataError("Z040", f"{FILE_NAME}: {wrong}", _HINT)
    return QaManifest(**{**raw, "shards": tuple(Shard(**s) for s in raw["shards"])})


def _errors(raw: dict[str, Any]) -> Any:
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(manifest_schema()).iter_errors(raw):
        yield f"{'.'.join(map(str, error.path)) or 'it'}: {shown(error.message, 100)}"
    for shard in raw.get("shards", ()):
        match = _SHARD_PATH.fullmatch(str(shard.get("path")))
        if not match or match.groups() != (shard.get("config"), shard.get("split")):
            yield f"{shown(shard.get('path'), 60)} is no shard of {shown(shard.get('config'), 20)}"
    for name in raw.get("files", ()):
        if not inside(name):
            yield f"{shown(name, 60)} leaves the release"


def manifest_schema() -> dict[str, Any]:
    count = {"type": "integer", "minimum": 0}
    digest = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    text = {"type": "string", "maxLength": 100}
    by_split = {"type": "object", "properties": dict.fromkeys(SPLITS, count), "additionalProperties": False}
    shard = {"path": text, "config": {"enum": list(CONFIGS)}, "split": {"enum": list(SPLITS)}}
    shard |= {"rows": count, "bytes": count, "arrow_bytes": count, "sha256": digest}
    properties = {
        "dataset": {"const": NAME},
        "release_version": {"type": "string", "pattern": "^[0-9]+[.][0-9]+[.][0-9]+$"},
        "layout_version": {"const": LAYOUT},
        "code_version": text,
        "versions": {"type": "object", "additionalProperties": text},
        "restricted": {"type": "boolean"},
        "synthetic": {"type": "boolean"},
        "rendering": {"enum": list(RENDERINGS)},
        "sources": digest,
        "volumes": by_split,
        "patients": {"anyOf": [by_split, {"type": "null"}]},
        "questions": by_split,
        "quarantined": {
            "type": "object",
            "additionalProperties": {"type": "string", "pattern": "^[A-Z][0-9]{3}$"},
        },
        "shards": {"type": "array", "items": _closed(shard)},
        "files": {"type": "object", "additionalProperties": digest},
    }
    return _closed(properties)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def row_schema(config: str) -> dict[str, Any]:
    """JSON Schema of a row."""
    return object_schema(CONFIGS[config])
