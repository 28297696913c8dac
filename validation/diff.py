"""What changed between two releases, and which version step that asks for.

MAJOR  readers or results break: fields, question set, grade spaces or crop margin changed, rows or configs
       were removed, a patient changed its split, a knee its side
MINOR  what is there stays comparable in form: rows or configs were added, or grades, boxes, voxels, shape,
       spacing, orientation, scan or crop were corrected
PATCH  words only: wording, reasoning, sources, card
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from reasonknee.errors import DataError, counted, shown
from reasonknee.layout import PER_VOLUME, Manifest, Shard, read_manifest
from reasonknee.layout.places import release_folder
from reasonknee.layout.sgmri import QaManifest, is_release
from reasonknee.questions import ATTRIBUTES
from reasonknee.system.files import sha256_of
from reasonknee.system.progress import Progress, silent
from reasonknee.validation.files import check_shard_file, checked_manifest
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import NONE, Batch, batches, opened, storage_error

Step = Literal["none", "patch", "minor", "major"]
STEPS: tuple[Step, ...] = ("none", "patch", "minor", "major")
_SHOWN = 5
# What may differ in a row, and the step that asks for; `side` is a scan that is now another knee.
PARTS: dict[str, Step] = {
    "grades": "minor",
    "boxes": "minor",
    "text": "patch",
    "sources": "patch",
    "shape": "minor",
    "spacing": "minor",
    "orientation": "minor",
    "side": "major",
    "scan": "minor",
    "crop": "minor",
    "voxels": "minor",
}
_SOURCES = ("box_source", "published_reasoning", "second_readings")


M = TypeVar("M", Manifest, QaManifest)
_Row = dict[str, bytes]  # part -> eight bytes of its digest, so that two whole releases fit in memory


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
    histograms: dict[str, dict[str, int]] = field(default_factory=dict)  # attribute -> grade -> more or fewer

    @property
    def enough(self) -> bool:
        return STEPS.index(self.declared) >= STEPS.index(self.needed)

    def need(self, step: Step, reason: str) -> None:
        self.reasons.append(f"{step}: {reason}")
        self.needed = max(self.needed, step, key=STEPS.index)


def compare(old: str | Path, new: str | Path, *, progress: Progress = silent) -> Difference:
    """Rows and voxels, and the version step they ask for.

    What a manifest says is believed of files that are as it says.
    """
    before, after = _checked(release_folder(old)), _checked(release_folder(new))
    difference = Difference(before.release_version, after.release_version)
    difference.declared = version_step(before.release_version, after.release_version)
    _layout(before, after, difference)
    both = [c for c in before.configs if c in after.configs and c != "annotations"]
    shared = {*both, before.configs[-1], after.configs[-1]}
    read = [s for m in (before, after) for s in m.shards if s.config in shared]
    tell = Meter(progress, sum(s.bytes for s in read))
    equal = equal_shards(before, after, shared, tell)
    first, second = _facts(before, equal, tell), _facts(after, equal, tell)
    rows_changed(first, second, difference)
    _sides(first, second, difference)
    _voxels(before, after, both, equal, tell, difference)
    _histograms(first, second, difference)
    if difference.needed == "none" and before.files != after.files:
        difference.need("patch", "card, Croissant or schemas changed")
    return difference


class Meter:
    """Told of every shard that was read, it tells of all of them."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, shard: Shard) -> None:
        self.done += shard.bytes
        self.progress("comparing shards, MB", self.done // 1_000_000, self.total // 1_000_000 + 1)


def _checked(root: Path) -> Manifest:
    if is_release(root):
        read_manifest(root)  # refuses another dataset, and says what reads it
    findings = Findings()
    manifest = checked_manifest(root, findings)
    refuse(findings, f"{root}/")
    assert manifest is not None  # else there was a finding
    return with_sound_files(root, manifest)


def with_sound_files(root: Path, manifest: M) -> M:
    """The manifest of a release whose texts are unchanged and whose shards have their sizes. Its shards'
    paths get the root before them: a place in one of two releases says in which."""
    findings = Findings()
    for name, digest in manifest.files.items():
        if (root / name).exists() and not (root / name).is_file():  # of a pipe there is no end
            findings.add("X402", str(root / name), "it is not a file")
            continue
        try:
            if sha256_of(root / name) != digest:
                findings.add("X404", str(root / name), "its sha256 is another one")
        except OSError as error:
            storage_error(error, str(root / name))
            raise
    manifest = replace(manifest, shards=tuple(replace(s, path=str(root / s.path)) for s in manifest.shards))
    for shard in manifest.shards:
        check_shard_file(Path(), shard, True, findings)
    refuse(findings)
    return manifest


def refuse(findings: Findings, within: str = "") -> None:
    for group in findings.ordered():
        first = group.examples[0]
        raise DataError(
            group.code,
            f"{within}{first.place}: {first.detail}",
            "validate it first: `reasonknee validate` says more",
        )


def version_step(old: str, new: str) -> Step:
    """The step from one version to the next; a version that does not grow is no step."""
    try:
        a, b = ([int(part) for part in text.split(".")] for text in (old, new))
    except ValueError:
        raise DataError(
            "X003",
            f"versions {shown(old, 20)!r} and {shown(new, 20)!r} cannot be compared",
            "MAJOR.MINOR.PATCH is wanted",
        ) from None
    if len(a) != 3 or len(b) != 3 or b <= a:
        return "none"
    return "major" if a[0] != b[0] else "minor" if a[1] != b[1] else "patch"


def configs_changed(before: M, after: M, difference: Difference) -> None:
    for gone in set(before.configs) - set(after.configs):
        difference.need("major", f"the config {gone} is gone")
    for added in set(after.configs) - set(before.configs):
        difference.need("minor", f"the config {added} is new")


def _layout(before: Manifest, after: Manifest, difference: Difference) -> None:
    for name in ("questions", "margin_mm"):
        if getattr(before, name) != getattr(after, name):
            difference.need("major", f"{name} was {getattr(before, name)}, is {getattr(after, name)}")
    if before.wording != after.wording:
        difference.need("patch", f"wording was {shown(before.wording, 20)}, is {shown(after.wording, 20)}")
    configs_changed(before, after, difference)
    old, new = (m.files.get("schema/answers.schema.json") for m in (before, after))
    if old != new:
        difference.need("major", "the grade spaces or questions of schema/answers.schema.json changed")


# --- rows ---------------------------------------------------------------------------------------------------


_Key = tuple[str, str, str]  # config, split and sha256 of a shard


def key_of(shard: Shard) -> _Key:
    return shard.config, shard.split, shard.sha256


def equal_shards(before: M, after: M, configs: set[str], tell: Meter) -> set[_Key]:
    """Shards that both releases have: their rows are the same, so they are hashed and never opened."""
    equal = {key_of(s) for s in before.shards} & {key_of(s) for s in after.shards}
    hashed: set[str] = set()
    findings = Findings()
    for shard in [s for m in (before, after) for s in m.shards if key_of(s) in equal and s.config in configs]:
        where = os.path.realpath(shard.path)
        if where not in hashed:
            check_shard_file(Path(), shard, False, findings)
            refuse(findings)
            hashed.add(where)
        tell(shard)
    return equal


@dataclass
class Facts:
    """What the shards that are not the same in both releases say."""

    rows: dict[str, _Row] = field(default_factory=dict)
    splits: dict[str, set[str]] = field(default_factory=dict)  # patient -> splits
    grades: Counter[tuple[str, int]] = field(default_factory=Counter)
    scans: dict[tuple[str, str], tuple[str, str]] = field(
        default_factory=dict
    )  # study, series -> side, volume


def _facts(manifest: Manifest, equal: set[_Key], tell: Meter) -> Facts:
    """Read from the lightest config that there is; `reasonknee validate` has made sure that the others
    agree."""
    facts, config = Facts(), manifest.configs[-1]
    for batch in _batches([s for s in manifest.of(config) if key_of(s) not in equal], tell):
        about, parts = batch.table.select(_OF_SCAN).to_pylist(), _parts(batch)
        for row in about:
            facts.splits.setdefault(row["patient"], set()).add(batch.split)
            facts.scans[row["study"], row["series"]] = (row["side"], row["volume_id"])
        facts.rows |= zip(batch.flat["id"].to_pylist(), parts, strict=True)
        for column, attribute in enumerate(ATTRIBUTES):
            for grade, count in zip(*np.unique(batch.grades[:, column], return_counts=True), strict=True):
                if grade != NONE:
                    facts.grades[attribute, int(grade)] += int(count)
    return facts


_OF_SCAN = ["patient", "study", "series", "side", "volume_id"]
_OF_VOLUME = {
    "shape": ["shape"],
    "spacing": ["spacing"],
    "orientation": ["orientation"],
    "scan": ["study", "series"],
}


def _parts(batch: Batch) -> list[_Row]:
    """The parts of each quintuple, digested."""
    of_volume = [
        {part: digest([row[name] for name in names]) for part, names in _OF_VOLUME.items()}
        for row in batch.table.select([n for names in _OF_VOLUME.values() for n in names]).to_pylist()
    ]
    texts, sources = (batch.flat.select(names).to_pylist() for names in (["question", "reasoning"], _SOURCES))
    provenance = batch.table["provenance"].to_pylist()
    return [
        {
            "grades": short(batch.grades[i].tobytes()),
            "boxes": short(batch.box[i].tobytes()),
            "text": digest(texts[i]),
            "sources": digest([sources[i], provenance[row]]),
            **of_volume[row],
        }
        for i, row in enumerate(batch.row.tolist())
    ]


def digest(value: object) -> bytes:
    return short(json.dumps(value).encode())


def _batches(shards: list[Shard], tell: Meter) -> Iterator[Batch]:
    findings = Findings()
    for shard in shards:
        file = opened(Path(), shard, findings)
        if file is not None:
            for batch in batches(file, findings):
                if any(
                    column.null_count
                    for column in (batch.table["patient"], batch.table["volume_id"], batch.flat["id"])
                ):
                    findings.add("X102", batch.path, "a row without a patient or an id cannot be compared")
                    break
                yield batch
        refuse(findings)
        tell(shard)


def short(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()


def rows_changed(
    first: Facts, second: Facts, difference: Difference, parts: Mapping[str, Step] = PARTS
) -> None:
    """Rows that came, went or changed, and patients that moved."""
    old, new = first.rows, second.rows
    both = [name for name in old if name in new]
    tell_changed(difference, "added", [n for n in new if n not in old], "minor")
    tell_changed(difference, "removed", [n for n in old if n not in new], "major")
    for part in next(iter({**old, **new}.values()), {}):
        tell_changed(difference, part, [n for n in both if old[n][part] != new[n][part]], parts[part])
    for patient in sorted(first.splits.keys() & second.splits.keys()):
        if first.splits[patient] != second.splits[patient]:
            difference.moved[shown(patient, 20)] = (
                f"{'+'.join(sorted(first.splits[patient]))} to {'+'.join(sorted(second.splits[patient]))}"
            )
    if difference.moved:
        difference.need("major", f"{counted(len(difference.moved), 'patient')} moved between splits")


def tell_changed(difference: Difference, what: str, names: list[str], step: Step) -> None:
    """Counts what differs, shows some of it, and says which step it asks for."""
    difference.rows[what] = len(names)
    if names:
        difference.examples[what] = [shown(n) for n in names[:_SHOWN]]
        rows = counted(len(names), "row")
        said = f"{rows} {what}" if what in ("added", "removed") else f"{what} of {rows} changed"
        difference.need(step, said)


def _sides(first: Facts, second: Facts, difference: Difference) -> None:
    """A knee's side is part of its id, so its rows go and come; the scan tells that they are the same."""
    turned = [
        f"{volume} is now {second.scans[scan][1]}"
        for scan, (side, volume) in sorted(first.scans.items())
        if scan in second.scans and second.scans[scan][0] != side
    ]
    difference.rows["side"] = len(turned)
    if turned:
        difference.examples["side"] = [shown(text) for text in turned[:_SHOWN]]
        difference.need(PARTS["side"], f"the side of {counted(len(turned), 'volume')} changed")


def _histograms(first: Facts, second: Facts, difference: Difference) -> None:
    for attribute, grade in sorted({*first.grades, *second.grades}):
        more = second.grades[attribute, grade] - first.grades[attribute, grade]
        if more:
            difference.histograms.setdefault(attribute, {})[str(grade)] = more


# --- voxels -------------------------------------------------------------------------------------------------


class _Cell(NamedTuple):
    """Pixels or embedding of a row, and where its crop lies."""

    payload: bytes
    crop: bytes


def _voxels(
    before: Manifest,
    after: Manifest,
    configs: list[str],
    equal: set[_Key],
    tell: Meter,
    difference: Difference,
) -> None:
    """Compared are the pixels' own bytes, by row."""
    payloads: list[str] = []
    crops: list[str] = []
    for config in configs:
        old, new = (
            _cells([s for s in manifest.of(config) if key_of(s) not in equal], tell)
            for manifest in (before, after)
        )
        both = [n for n in old if n in new]
        payloads += [f"{config} {n}" for n in both if old[n].payload != new[n].payload]
        crops += [n for n in both if old[n].crop != new[n].crop]
    tell_changed(difference, "crop", crops, PARTS["crop"])
    tell_changed(difference, "voxels", payloads, PARTS["voxels"])


def _cells(shards: list[Shard], tell: Meter) -> dict[str, _Cell]:
    cells: dict[str, _Cell] = {}
    for batch in _batches(shards, tell):
        column, name = (
            ("embedding" if batch.config == "embeddings" else "volume"),
            ("volume_id" if batch.config in PER_VOLUME else "id"),
        )
        for row, (n, cell) in enumerate(zip(batch.table[name].to_pylist(), batch.table[column], strict=True)):
            data = (cell.as_py() or {}).get("bytes")
            crop = batch.crop[row].tobytes() if batch.config == "cropped" else b""
            cells[n] = _Cell(b"" if data is None else short(data), short(crop))
    return cells


# --- output -------------------------------------------------------------------------------------------------


def as_json(difference: Difference) -> str:
    return json.dumps({**asdict(difference), "enough": difference.enough}, indent=1)


def as_text(difference: Difference, parts: Iterable[str] = PARTS) -> str:
    d = difference
    lines = [f"{d.old_version} to {d.new_version}"]
    lines.append("rows: " + ", ".join(f"{d.rows[k]} {k}" for k in ("added", "removed")))
    lines.append("changed rows: " + ", ".join(f"{d.rows.get(k, 0)} {k}" for k in parts))
    lines += [f"  {what}: {', '.join(names)}" for what, names in d.examples.items()]
    lines += [f"patient {p} moved from {way}" for p, way in list(d.moved.items())[:_SHOWN]]
    lines += [f"patients moved: {len(d.moved)}"] if d.moved else []
    for attribute, counts in d.histograms.items():
        lines.append(f"{attribute}: " + ", ".join(f"grade {g} {more:+d}" for g, more in counts.items()))
    lines += [f"  needs {r}" for r in d.reasons]
    verdict = "which is enough" if d.enough else "which is NOT enough"
    lines.append(f"version step needed: {d.needed}; declared: {d.declared}, {verdict}")
    return "\n".join(lines)
