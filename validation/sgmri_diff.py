"""What changed between two releases of SGMRI-VQA, told as of two of knees.

MAJOR  rows or configs were removed, a patient changed its split
MINOR  rows or configs were added; answers, boxes, what is known of a volume, or pixels were corrected
PATCH  words only: wording, reasoning, card
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reasonknee.layout import Shard
from reasonknee.layout.places import release_folder
from reasonknee.layout.sgmri import SGMRI, QaManifest, read_qa_manifest
from reasonknee.system.progress import Progress, silent
from reasonknee.validation import diff
from reasonknee.validation.diff import Difference, Facts, Meter, Step
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import opened, row_groups

PARTS: dict[str, Step] = {
    "answers": "minor",
    "boxes": "minor",
    "volume": "minor",
    "text": "patch",
    "voxels": "minor",
}
_FIELDS = {
    "answers": ("answer", "choices"),
    "boxes": ("findings", "frame", "first_frame"),
    "volume": ("volume_id", "patient", "sequence", "shape", "source"),
    "text": ("question", "reasoning"),
}


def compare(old: str | Path, new: str | Path, *, progress: Progress = silent) -> Difference:
    """Questions and pixels, and the version step they ask for."""
    before, after = (_checked(release_folder(place)) for place in (old, new))
    difference = Difference(before.release_version, after.release_version)
    difference.declared = diff.version_step(before.release_version, after.release_version)
    diff.configs_changed(before, after, difference)
    if before.rendering != after.rendering:
        difference.need("minor", f"rendering was {before.rendering}, is {after.rendering}")
    shared = {c for c in before.configs if c in after.configs}
    read = [s for m in (before, after) for s in m.shards if s.config in shared]
    tell = Meter(progress, sum(s.bytes for s in read))
    equal = diff.equal_shards(before, after, shared, tell)

    def differing(manifest: QaManifest, config: str) -> list[Shard]:
        return [s for s in manifest.of(config) if diff.key_of(s) not in equal]

    first, second = (_facts(differing(m, SGMRI.public), tell) for m in (before, after))
    diff.rows_changed(first, second, difference, PARTS)
    changed: list[str] = []
    for config in sorted(shared - {SGMRI.public}):
        one, two = (_pixels(differing(m, config), tell) for m in (before, after))
        changed += [f"{config} {n}" for n in one if n in two and one[n] != two[n]]
    diff.tell_changed(difference, "voxels", changed, PARTS["voxels"])
    if difference.needed == "none" and before.files != after.files:
        difference.need("patch", "the card changed")
    return difference


def _checked(root: Path) -> QaManifest:
    return diff.with_sound_files(root, read_qa_manifest(root))


def _rows(shards: list[Shard], tell: Meter) -> Iterator[dict[str, Any]]:
    findings = Findings()
    for shard in shards:
        file = opened(Path(), shard, findings, dataset=SGMRI)
        for group in row_groups(file, findings) if file else ():
            yield from group.table.to_pylist()
        diff.refuse(findings)
        tell(shard)


def _facts(shards: list[Shard], tell: Meter) -> Facts:
    facts = Facts()
    for row in _rows(shards, tell):
        facts.splits.setdefault(row["patient"] or row["volume_id"], set()).add(row["split"])
        facts.rows[row["id"]] = {
            part: diff.digest([row[name] for name in names]) for part, names in _FIELDS.items()
        }
    return facts


def _pixels(shards: list[Shard], tell: Meter) -> dict[str, bytes]:
    return {
        row.get("id") or row["volume_id"]: diff.short((row["image"] or {}).get("bytes") or b"")
        for row in _rows(shards, tell)
    }
