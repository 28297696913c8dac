"""What changed between two releases, and which version step that asks for.

MAJOR  readers or results break: fields, question set, grade spaces or crop margin changed, rows or configs were removed, a patient changed its split
MINOR  what is there stays comparable in form: rows or configs were added, or grades, boxes or voxels were corrected
PATCH  words only: wording, reasoning, card
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from reasonknee.errors import DataError, UsageError, shown
from reasonknee.manifest import Manifest, Shard, sha256_of
from reasonknee.questions import ATTRIBUTES
from reasonknee.records import PER_VOLUME
from reasonknee.validation.files import check_shard_file, checked_manifest
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import NONE, Batch, batches, opened, storage_error
from reasonknee.validation.report import counted

Progress = Callable[[str, int, int], object]  # what, done, of
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


def compare(old: Path, new: Path, *, progress: Progress = lambda *_: None) -> Difference:
    """Rows and voxels, and the version step they ask for. What a manifest says is believed of files that are as it says."""
    before, after = _checked(old), _checked(new)
    difference = Difference(before.release_version, after.release_version)
    difference.declared = version_step(before.release_version, after.release_version)
    _layout(before, after, difference)
    both = [c for c in before.configs if c in after.configs and c != "annotations"]
    read = [s for m in (before, after) for config in (m.configs[-1], *both) for s in m.of(config)]
    tell = _Meter(progress, sum(s.bytes for s in read))
    first, second = _facts(before, tell), _facts(after, tell)
    _rows(first, second, difference)
    _voxels(before, after, both, tell, difference)
    _histograms(first, second, difference)
    if difference.needed == "none" and before.files != after.files:
        difference.need("patch", "card, Croissant or schemas changed")
    return difference


class _Meter:
    """Told of every shard that was read, it tells of all of them."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, shard: Shard) -> None:
        self.done += shard.bytes
        self.progress("comparing shards, MB", self.done // 1_000_000, self.total // 1_000_000 + 1)


def _checked(root: Path) -> Manifest:
    """The manifest of a release whose texts are unchanged and whose shards have their sizes. Its shards' paths get the root before them: a place
    in one of two releases says in which."""
    if not root.is_dir():
        raise UsageError("X001", f"no folder at {root}", "name two release folders")
    found = Findings()
    manifest = checked_manifest(root, found)
    _refuse(found, f"{root}/")
    assert manifest is not None  # else there was a finding
    for name, digest in manifest.files.items():
        try:
            if sha256_of(root / name) != digest:
                found.add("X404", str(root / name), "its sha256 is another one")
        except OSError as error:
            storage_error(error, str(root / name))
            raise
    manifest = replace(manifest, shards=tuple(replace(s, path=str(root / s.path)) for s in manifest.shards))
    for shard in manifest.shards:
        check_shard_file(Path(), shard, True, found)
    _refuse(found)
    return manifest


def _refuse(found: Findings, within: str = "") -> None:
    for group in found.ordered():
        first = group.examples[0]
        raise DataError(group.code, f"{within}{first.place}: {first.detail}", "validate it first: `reasonknee validate` says more")


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
    for name in ("questions", "margin_mm"):
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


def _facts(manifest: Manifest, tell: _Meter) -> _Facts:
    """Read from the lightest config that there is; `reasonknee validate` has made sure that the others agree."""
    facts, config = _Facts(), manifest.configs[-1]
    for batch in _batches(manifest.of(config), tell):
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


def _batches(shards: list[Shard], tell: _Meter) -> Iterator[Batch]:
    found = Findings()
    for shard in shards:
        file = opened(Path(), shard.path, shard.config, found)
        if file is not None:
            for batch in batches(file, shard.config, shard.split, shard.path, found):
                if any(column.null_count for column in (batch.table["patient"], batch.table["volume_id"], batch.flat["id"])):
                    found.add("X102", batch.path, "a row without a patient or an id cannot be compared")
                    break
                yield batch
        _refuse(found)
        tell(shard)


def _texts(batch: Batch) -> list[bytes]:
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
            rows = counted(len(names), "row")
            difference.need(steps[what], f"{rows} {what}" if what in ("added", "removed") else f"{what} of {rows} changed")
    for patient in sorted(first.splits.keys() & second.splits.keys()):
        if first.splits[patient] != second.splits[patient]:
            difference.moved[shown(patient, 20)] = f"{'+'.join(sorted(first.splits[patient]))} to {'+'.join(sorted(second.splits[patient]))}"
    if difference.moved:
        difference.need("major", f"{counted(len(difference.moved), 'patient')} moved between splits")


def _histograms(first: _Facts, second: _Facts, difference: Difference) -> None:
    for attribute in ATTRIBUTES:
        keys = sorted(k for k in {*first.grades, *second.grades} if k[0] == attribute)
        if any(first.grades[k] != second.grades[k] for k in keys):
            difference.histograms[attribute] = {str(k[1]): (first.grades[k], second.grades[k]) for k in keys}


# --- voxels -----------------------------------------------------------------------------------------------------------------------


def _voxels(before: Manifest, after: Manifest, configs: list[str], tell: _Meter, difference: Difference) -> None:
    """Only shards whose bytes differ are opened. Compared are the pixels' own bytes, by row."""
    changed: list[str] = []
    for config in configs:
        same = {s.sha256 for s in before.of(config)} & {s.sha256 for s in after.of(config)}
        old, new = (_digests(manifest.of(config), same, tell) for manifest in (before, after))
        changed += [f"{config} {n}" for n in old if n in new and old[n] != new[n]]
    difference.rows["voxels"] = len(changed)
    if changed:
        difference.examples["voxels"] = [shown(n) for n in changed[:_SHOWN]]
        difference.need("minor", f"voxels or embeddings of {counted(len(changed), 'row')} changed")


def _digests(shards: list[Shard], same: set[str], tell: _Meter) -> dict[str, bytes]:
    """Of each row whose shard is not the same in both releases. That one is the same is believed once it has the sha256 that its manifest says."""
    found = Findings()
    for shard in [s for s in shards if s.sha256 in same]:
        check_shard_file(Path(), shard, False, found)
        _refuse(found)
        tell(shard)
    digests: dict[str, bytes] = {}
    for batch in _batches([s for s in shards if s.sha256 not in same], tell):
        column, name = ("embedding" if batch.config == "embeddings" else "volume"), ("volume_id" if batch.config in PER_VOLUME else "id")
        cells = [(cell.as_py() or {}).get("bytes") for cell in batch.table[column]]
        digests |= {n: b"" if c is None else _short(c) for n, c in zip(batch.table[name].to_pylist(), cells, strict=True)}
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
