"""The manifest of a release: every shard with its rows, bytes and sha256, and what the release was made of. No times, no paths of a machine."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError
from reasonknee.prompts import WORDINGS
from reasonknee.questions import QUESTION_SETS
from reasonknee.records import CONFIGS
from reasonknee.splits import SPLITS
from reasonknee.tables import parse_json

FILE_NAME = "manifest.json"


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
    release_version: str
    layout_version: int
    code_version: str
    restricted: bool  # holds image bytes or what is computed from them: for a private or gated place only
    synthetic: bool  # every patient is a phantom
    questions: str
    margin_mm: float
    wording: str
    volumes: dict[str, int]  # by split
    patients: dict[str, int]
    quintuples: dict[str, int]
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


def read_manifest(release: Path) -> Manifest:
    path = release / FILE_NAME
    if not path.is_file():
        if not release.is_dir():
            raise DataError("M001", f"no folder at {release}", "name a release folder")
        cohort = (release / "annotations.jsonl").is_file()
        raise DataError("M001", f"{release} has no {FILE_NAME}", "a cohort: `reasonknee build` it first" if cohort else "is it a release folder?")
    raw = parse_json(path.read_bytes(), FILE_NAME)
    try:
        return Manifest(**{**raw, "shards": tuple(Shard(**s) for s in raw["shards"])})
    except (TypeError, KeyError) as error:
        raise DataError("M001", f"{FILE_NAME}: {error}", "it was made by another version, or by hand") from None


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def manifest_schema() -> dict[str, Any]:
    count = {"type": "integer", "minimum": 0}
    digest = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
    by_split = {"type": "object", "properties": dict.fromkeys(SPLITS, count), "additionalProperties": False}
    shard = {
        "path": {"type": "string", "pattern": f"^({'|'.join(CONFIGS)})/({'|'.join(SPLITS)})-[0-9]{{5}}-of-[0-9]{{5}}[.]parquet$"},
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
        "restricted": {"type": "boolean"},
        "synthetic": {"type": "boolean"},
        "questions": {"enum": list(QUESTION_SETS)},
        "margin_mm": {"type": "number", "minimum": 0, "maximum": 100},
        "wording": {"enum": ["both", *WORDINGS]},
        "volumes": by_split,
        "patients": by_split,
        "quintuples": by_split,
        "quarantined": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{7}-[0-9]{2,3}m-(left|right)$"},
            "additionalProperties": {"type": "string", "pattern": "^[A-Z][0-9]{3}$"},
        },
        "shards": {"type": "array", "items": _closed(shard)},
        "files": {"type": "object", "additionalProperties": digest},
    }
    return _closed(properties)


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
