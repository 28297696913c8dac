"""What changed between two releases, and which version step that asks for.

MAJOR  readers or results break: fields, question set, grade spaces or crop margin changed, rows or configs were removed, a patient changed its split
MINOR  what is there stays comparable in form: rows or configs were added, or grades, boxes or voxels were corrected
PATCH  words only: wording, reasoning, card
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reasonknee.errors import DataError, shown
from reasonknee.manifest import Manifest, read_manifest
from reasonknee.questions import ATTRIBUTES
from reasonknee.records import PER_VOLUME
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import NONE, batches, opened

Step = Literal["none", "patch", "minor", "major"]
STEPS: tuple[Step, ...] = ("none", "patch", "minor", "major")
_SHOWN = 5
_PARTS = ("grades", "boxes", "text", "voxels")


@dataclass(frozen=True)
class _Row:
    """A quintuple in eight bytes for each part, so that two whole releases fit in memory."""

    split: str
    grades: bytes
    boxes: bytes
    text: bytes


@dataclass
class Difference:
    """What `reasonknee diff` prints."""

    old_version: str
    new_version: str
    needed: Step = "none"
    declared: Step = "none"
    reasons: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)  # added, removed, and changed in each part
    examples: dict[str, list[str]] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)  # patient -> "train to test"
    histograms: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)  # attribute -> grade -> old and new count

    @property
    def enough(self) -> bool:
        return STEPS.index(self.declared) >= STEPS.index(self.needed)

    def need(self, step: Step, reason: str) -> None:
        self.reasons.append(f"{step}: {reason}")
        self.needed = max(self.needed, step, key=STEPS.index)


def compare(old: Path, new: Path) -> Difference:
    before, after = read_manifest(old), read_manifest(new)
    difference = Difference(before.release_version, after.release_version)
    difference.declared = version_step(before.release_version, after.release_version)
    _layout(before, after, difference)
    first, second = _facts(old, before), _facts(new, after)
    _rows(first, second, difference)
    _voxels(old, before, new, after, difference)
    _histograms(first, second, difference)
    if difference.needed == "none" and before.files != after.files:
        difference.need("patch", "card, Croissant or schemas changed")
    return difference


def version_step(old: str, new: str) -> Step:
    """The step from one version to the next; a version that does not grow is no step."""
    try:
        a, b = ([int(part) for part in text.split(".")] for text in (old, new))
    except ValueError:
        raise DataError("X003", f"versions {shown(old, 20)!r} and {shown(new, 20)!r} cannot be compared", "MAJOR.MINOR.PATCH is wanted") from None
    if len(a) != 3 or len(b) != 3 or b <= a:
        return "none"
    return "major" if a[0] != b[0] else "minor" if a[1] != b[1] else "patch"


def _layout(before: Manifest, after: Manifest, difference: Difference) -> None:
    for name in ("layout_version", "questions", "margin_mm"):
        if getattr(before, name) != getattr(after, name):
            difference.need("major", f"{name} was {getattr(before, name)}, is {getattr(after, name)}")
    if before.wording != after.wording:
        difference.need("patch", f"wording was {shown(before.wording, 20)}, is {shown(after.wording, 20)}")
    for gone in set(before.configs) - set(after.configs):
        difference.need("major", f"the config {gone} is gone")
    for added in set(after.configs) - set(before.configs):
        difference.need("minor", f"the config {added} is new")
    old, new = (m.files.get("schema/answers.schema.json") for m in (before, after))
    if old != new:
        difference.need("major", "the grade spaces or questions of schema/answers.schema.json changed")


# --- rows -------------------------------------------------------------------------------------------------------------------------


@dataclass
class _Facts:
    rows: dict[str, _Row] = field(default_factory=dict)
    splits: dict[str, set[str]] = field(default_factory=dict)  # patient -> splits
    grades: Counter[tuple[str, int]] = field(default_factory=Counter)


def _facts(root: Path, manifest: Manifest) -> _Facts:
    """Read from the lightest config that there is; `reasonknee validate` has made sure that the others agree."""
    facts, config = _Facts(), manifest.configs[-1]
    for batch in _batches(root, manifest, config):
        ids, texts = batch.flat["id"].to_pylist(), _texts(batch)
        patients = batch.table["patient"].to_pylist()
        for patient in set(patients):
            facts.splits.setdefault(patient, set()).add(batch.split)
        for i, name in enumerate(ids):
            facts.rows[name] = _Row(batch.split, _short(batch.grades[i].tobytes()), _short(batch.box[i].tobytes()), texts[i])
        for column, attribute in enumerate(ATTRIBUTES):
            for grade, count in zip(*np.unique(batch.grades[:, column], return_counts=True), strict=True):
                if grade != NONE:
                    facts.grades[attribute, int(grade)] += int(count)
    return facts


def _batches(root: Path, manifest: Manifest, config: str) -> Iterator[Any]:
    found = Findings()
    for shard in manifest.of(config):
        file = opened(root, shard.path, config, found)
        if file is not None:
            yield from batches(file, config, shard.split, shard.path, found)
        for group in found.groups.values():
            raise DataError("X003", f"{group.examples[0].place}: {group.title}", "`reasonknee validate` says more")


def _texts(batch: Any) -> list[bytes]:
    rows = zip(batch.flat["question"].to_pylist(), batch.flat["reasoning"].to_pylist(), strict=True)
    return [_short(json.dumps(row).encode()) for row in rows]


def _short(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def _rows(first: _Facts, second: _Facts, difference: Difference) -> None:
    old, new = first.rows, second.rows
    both = [name for name in old if name in new]
    listed = {
        "added": [n for n in new if n not in old],
        "removed": [n for n in old if n not in new],
        "grades": [n for n in both if old[n].grades != new[n].grades],
        "boxes": [n for n in both if old[n].boxes != new[n].boxes],
        "text": [n for n in both if old[n].text != new[n].text],
    }
    steps: dict[str, Step] = {"added": "minor", "removed": "major", "grades": "minor", "boxes": "minor", "text": "patch"}
    for what, names in listed.items():
        difference.rows[what] = len(names)
        if names:
            difference.examples[what] = [shown(n) for n in names[:_SHOWN]]
            difference.need(steps[what], f"{len(names)} rows {what}" if what in ("added", "removed") else f"{what} of {len(names)} rows changed")
    for patient in sorted(first.splits.keys() & second.splits.keys()):
        if first.splits[patient] != second.splits[patient]:
            difference.moved[shown(patient, 20)] = f"{'+'.join(sorted(first.splits[patient]))} to {'+'.join(sorted(second.splits[patient]))}"
    if difference.moved:
        difference.need("major", f"{len(difference.moved)} patients moved between splits")


def _histograms(first: _Facts, second: _Facts, difference: Difference) -> None:
    for attribute in ATTRIBUTES:
        keys = sorted(k for k in {*first.grades, *second.grades} if k[0] == attribute)
        if any(first.grades[k] != second.grades[k] for k in keys):
            difference.histograms[attribute] = {str(k[1]): (first.grades[k], second.grades[k]) for k in keys}


# --- voxels -----------------------------------------------------------------------------------------------------------------------


def _voxels(old: Path, before: Manifest, new: Path, after: Manifest, difference: Difference) -> None:
    """Only shards whose bytes differ are opened. Compared are the pixels' own bytes, by row."""
    changed: list[str] = []
    for config in [c for c in before.configs if c in after.configs and c != "annotations"]:
        untouched = {s.sha256 for s in before.of(config)} & {s.sha256 for s in after.of(config)}
        digests = [_digests(root, manifest, config, untouched) for root, manifest in ((old, before), (new, after))]
        changed += [f"{config} {n}" for n in digests[0] if n in digests[1] and digests[0][n] != digests[1][n]]
    difference.rows["voxels"] = len(changed)
    if changed:
        difference.examples["voxels"] = [shown(n) for n in changed[:_SHOWN]]
        difference.need("minor", f"voxels or embeddings of {len(changed)} rows changed")


def _digests(root: Path, manifest: Manifest, config: str, untouched: set[str]) -> dict[str, bytes]:
    column, name = ("embedding" if config == "embeddings" else "volume"), ("volume_id" if config in PER_VOLUME else "id")
    part = Manifest(**{**vars(manifest), "shards": tuple(s for s in manifest.of(config) if s.sha256 not in untouched)})
    digests: dict[str, bytes] = {}
    for batch in _batches(root, part, config):
        cells = [cell.as_py() for cell in batch.table[column]]
        digests |= {n: _short(c["bytes"] if c else b"") for n, c in zip(batch.table[name].to_pylist(), cells, strict=True)}
    return digests


# --- output -----------------------------------------------------------------------------------------------------------------------


def as_json(difference: Difference) -> str:
    return json.dumps({**asdict(difference), "enough": difference.enough}, indent=1)


def as_text(difference: Difference) -> str:
    d = difference
    lines = [f"{d.old_version} to {d.new_version}"]
    lines.append("rows: " + ", ".join(f"{d.rows[k]} {k}" for k in ("added", "removed")))
    lines.append("changed rows: " + ", ".join(f"{d.rows[k]} {k}" for k in _PARTS))
    lines += [f"  {what}: {', '.join(names)}" for what, names in d.examples.items()]
    lines += [f"patient {p} moved from {way}" for p, way in list(d.moved.items())[:_SHOWN]]
    lines += [f"patients moved: {len(d.moved)}"] if d.moved else []
    for attribute, counts in d.histograms.items():
        lines.append(f"{attribute}: " + ", ".join(f"grade {g} {a} to {b}" for g, (a, b) in counts.items() if a != b))
    lines += [f"  needs {r}" for r in d.reasons]
    verdict = "which is enough" if d.enough else "which is NOT enough"
    lines.append(f"version step needed: {d.needed}; declared: {d.declared}, {verdict}")
    return "\n".join(lines)
