"""The manifest of a release: every shard with its rows, bytes and sha256, and what the release was made of.

No times, no paths of a machine.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError, shown
from reasonknee.layout.dataset import KNEE, Dataset
from reasonknee.layout.records import BOX_SOURCES, CONFIGS
from reasonknee.layout.splits import SPLITS, VISIT
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions import QUESTION_SETS
from reasonknee.questions.contradictions import RULES
from reasonknee.questions.prompts import WORDINGS
from reasonknee.version import LAYOUT_VERSION

FILE_NAME = "manifest.json"
EVIDENCE = "evidence"  # a margin by name


def shard_paths(dataset: Dataset) -> re.Pattern[str]:
    configs, splits = "|".join(dataset.configs), "|".join(dataset.splits)
    return re.compile(f"({configs})/({splits})-[0-9]{{5}}-of-[0-9]{{5}}[.]parquet")


SHARD_PATH = shard_paths(KNEE)
MAX_BYTES = 16 << 20  # of a manifest: more than any cohort of knees asks for
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Shard:
    """One Parquet file; `arrow_bytes` is its size once read into memory."""

    path: str
    config: str
    split: str
    rows: int
    bytes: int
    arrow_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What manifest.json says of a release: versions, choices, and every shard with its hash."""

    release_version: str
    layout_version: int
    code_version: str
    versions: dict[str, str]  # of Python and of the packages that its bytes depend on
    restricted: bool  # holds image bytes or what is computed from them: for a private or gated place only
    synthetic: bool  # every patient is a phantom
    questions: str
    margin_mm: float | str  # a number, or EVIDENCE: each question the margin that its lesion needs
    wording: str
    sources: str  # sha256 of the lines of its annotations, and of how long its images and embeddings are
    volumes: dict[str, int]  # by split
    patients: dict[str, int]
    quintuples: dict[str, int]
    quarantined: dict[str, str]  # volumes that were left out, with the code of the reason
    provenance: dict[str, Any]  # sums: volumes by table, quintuples by source of box and reasoning, ...
    shards: tuple[Shard, ...]
    files: dict[str, str]  # sha256 of every other file

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def of(self, config: str, split: str | None = None) -> list[Shard]:
        """The shards of a config, or of one of its splits."""
        return [s for s in self.shards if s.config == config and split in (None, s.split)]

    @property
    def configs(self) -> list[str]:
        """The configs that the release holds, in their order."""
        return [c for c in CONFIGS if self.of(c)]


def read_manifest(release: Path) -> Manifest:
    """The manifest of a release folder, from wherever it comes: what it names lies within the release, and
    its values are of the types that readers count on. (`validate` looks at all the rest.)"""
    path = release / FILE_NAME
    if not path.is_file():
        if not release.is_dir():
            raise DataError("M001", f"no folder at {release}", "name a release folder")
        cohort = (release / "annotations.jsonl").is_file()
        raise DataError(
            "M001",
            f"{release} has no {FILE_NAME}",
            "a cohort: `reasonknee build` it first" if cohort else "is it a release folder?",
        )
    if path.stat().st_size > MAX_BYTES:
        raise DataError("M005", f"{FILE_NAME} is larger than {MAX_BYTES >> 20} MB", _NOT_OURS)
    raw = parse_json(path.read_bytes(), FILE_NAME)
    if "dataset" in raw:
        told = f"{FILE_NAME} is of the dataset {shown(raw['dataset'], 40)}, which this does not read"
        hint = "of sgmri-vqa, validate, diff, view, publish, ask and train do, and `reasonknee sgmri`"
        raise DataError("M011", told, hint)
    layout = raw.get("layout_version")
    if type(layout) is int and layout != LAYOUT_VERSION:
        hint = (
            "`reasonknee migrate OLD NEW` writes it anew"
            if layout < LAYOUT_VERSION
            else "it was made by a newer reasonknee: install that one"
        )
        told = f"{FILE_NAME}: layout version {layout}; this program knows {LAYOUT_VERSION}"
        raise DataError("M006", told, hint)
    try:
        manifest = Manifest(**{**raw, "shards": tuple(Shard(**s) for s in raw["shards"])})
    except (TypeError, KeyError) as error:
        raise DataError("M005", f"{FILE_NAME}: {error}", _NOT_OURS) from None
    _check(manifest)
    return manifest


_NOT_OURS = "it was made by another version, or by hand"


def _check(manifest: Manifest) -> None:
    for shard in manifest.shards:
        match = SHARD_PATH.fullmatch(shard.path) if isinstance(shard.path, str) else None
        if not match or match.groups() != (shard.config, shard.split):
            told = f"{FILE_NAME}: {shown(shard.path)!r} is no shard of {shown(shard.config)}"
            raise DataError("M007", told, "a release names its own files alone; do not use this one")
    counts = [manifest.volumes, manifest.patients, manifest.quintuples]
    right = (
        all(type(n) is int and n >= 0 for s in manifest.shards for n in (s.rows, s.bytes, s.arrow_bytes))
        and all(_of_texts(texts) for texts in (manifest.files, manifest.versions, manifest.quarantined))
        and all(_DIGEST.fullmatch(digest) for digest in manifest.files.values())
        and all(isinstance(s.sha256, str) and _DIGEST.fullmatch(s.sha256) for s in manifest.shards)
        and all(isinstance(by_split, dict) and set(by_split) <= set(SPLITS) for by_split in counts)
        and all(type(n) is int and n >= 0 for by_split in counts for n in by_split.values())
        and manifest.questions in list(QUESTION_SETS)
        and manifest.wording in ("all", *WORDINGS)
        and (manifest.margin_mm == EVIDENCE or type(manifest.margin_mm) in (int, float))
        and isinstance(manifest.sources, str)
        and type(manifest.restricted) is type(manifest.synthetic) is bool
        and all(isinstance(text, str) for text in (manifest.release_version, manifest.code_version))
        and _of_sums(manifest.provenance)
    )
    if not right:
        raise DataError("M005", f"{FILE_NAME}: values of another kind than it should have", _NOT_OURS)
    for name in manifest.files:
        if not inside(name):
            told = f"{FILE_NAME}: {shown(name)!r} leaves the release"
            raise DataError("M007", told, "a release names its own files alone; do not use this one")


def _of_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _of_sums(value: object) -> bool:
    return isinstance(value, dict) and all(
        type(n) is int
        for counts in value.values()
        for n in (counts.values() if isinstance(counts, dict) else [counts])
    )


def inside(name: str) -> bool:
    """Whether a name stays within the folder that it is looked up in."""
    parts = name.split("/")
    return bool(name) and not any(p in ("", ".", "..") for p in parts) and not any(c in name for c in ":\\\0")


def manifest_schema() -> dict[str, Any]:
    count = {"type": "integer", "minimum": 0}
    digest = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    by_split = {"type": "object", "properties": dict.fromkeys(SPLITS, count), "additionalProperties": False}
    shard = {
        "path": {
            "type": "string",
            "pattern": f"^{SHARD_PATH.pattern}$",
        },
        "config": {"enum": list(CONFIGS)},
        "split": {"enum": list(SPLITS)},
        "rows": count,
        "bytes": count,
        "arrow_bytes": count,
        "sha256": digest,
    }
    properties = {
        "release_version": {"type": "string", "pattern": "^[0-9]+[.][0-9]+[.][0-9]+$"},
        "layout_version": {"type": "integer", "minimum": 1},
        "code_version": {"type": "string", "pattern": "^[0-9]+[.][0-9]+[.][0-9a-z.+-]+$"},
        "versions": {
            "type": "object",
            "required": ["python", "pyarrow"],
            "propertyNames": {"pattern": "^[a-z0-9_-]{1,40}$"},
            "additionalProperties": {"type": "string", "pattern": "^[0-9A-Za-z.+!-]{1,40}$"},
        },
        "restricted": {"type": "boolean"},
        "synthetic": {"type": "boolean"},
        "questions": {"enum": list(QUESTION_SETS)},
        "margin_mm": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 100}, {"const": EVIDENCE}]},
        "wording": {"enum": ["all", *WORDINGS]},
        "sources": digest,
        "volumes": by_split,
        "patients": by_split,
        "quintuples": by_split,
        "quarantined": {
            "type": "object",
            "propertyNames": {"pattern": f"^[0-9]{{7}}-{VISIT}-(left|right)$"},
            "additionalProperties": {"type": "string", "pattern": "^[A-Z][0-9]{3}$"},
        },
        "provenance": provenance_schema(),
        "shards": {"type": "array", "items": _closed(shard)},
        "files": {"type": "object", "additionalProperties": digest},
    }
    return _closed(properties)


def provenance_schema() -> dict[str, Any]:
    """What is summed of where the rows come from."""
    count = {"type": "integer", "minimum": 0}
    by_name = {"type": "object", "additionalProperties": count}
    return _closed(
        {
            **dict.fromkeys(("grades", "projects", "images"), by_name),
            "boxes": _counts(*BOX_SOURCES, "none", "unknown"),
            "reasoning": _counts("derived", "published"),
            "contradictions": _counts(*RULES),
            "unknown_grades": count,
            "second_readings": count,
        }
    )


def _counts(*names: str) -> dict[str, Any]:
    count = {"type": "integer", "minimum": 1}
    return {"type": "object", "properties": dict.fromkeys(names, count), "additionalProperties": False}


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
