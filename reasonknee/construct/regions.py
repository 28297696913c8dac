"""A folder of tissue masks becomes a folder of subregion masks, which `construct` takes as masks/ and whose
boxes it marks as made by rule."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from reasonknee.cohort.scans import find_scans
from reasonknee.construct import tissues
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.questions import QUESTION_SETS
from reasonknee.questions.regions import LABELS
from reasonknee.system.folders import whole_folder
from reasonknee.system.progress import Progress
from reasonknee.version import VERSION
from reasonknee.volumes import Volume, read_volume, write_nifti

MARK = "regions.json"  # beside masks that were made by rule


def made_by_rule(masks: Path) -> bool:
    return (masks / MARK).is_file()


def make_regions(masks: Path, out: Path, labels: str, progress: Progress) -> Iterator[str]:
    """Writes the masks, then tells how many questions get a box from them."""
    known = tissues.labeling(labels)
    if os.path.lexists(out):
        raise UsageError("J050", f"{out} exists", "choose a new folder, or remove it")
    scans = [scan for scan in find_scans(masks) if scan.side and not scan.is_dicom]
    if not scans:
        raise DataError(
            "J051",
            f"no mask in {masks}",
            "<patient>/<VISIT>/<study>_<series>_<side>.nii.gz and the like are wanted",
        )
    counts: Counter[str] = Counter()
    failed: list[str] = []
    with whole_folder(out) as folder:
        for done, scan in enumerate(scans, start=1):
            try:
                volume = read_volume(scan.path)
                made = tissues.subregions(volume.array, volume.grid, str(scan.side), known)
            except ReasonKneeError as error:
                failed.append(f"{scan.path.name}: {error.code}: {error.told}")
                continue
            path = folder / scan.path.relative_to(masks)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_nifti(path, Volume(made, volume.grid))
            present = set(made[made > 0].tolist())
            counts.update(name for name, number in LABELS.items() if number in present)
            progress("making regions", done, len(scans))
        if len(failed) == len(scans):  # nothing is written: the same command can be typed again
            raise DataError("J052", f"all {len(failed)} masks failed, the first: {failed[0]}", "see --labels")
        rules = {"femur_mm": tissues.FEMUR_MM, "tibia_mm": tissues.TIBIA_MM, "labels": labels}
        told = {
            "software": f"reasonknee {VERSION}",
            "boxes": "rule",
            **rules,
            "regions": counts,
            "failed": failed,
        }
        (folder / MARK).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    yield f"{len(scans) - len(failed):,} masks of {len(counts)} regions in {out}"
    asked = QUESTION_SETS["paper62"]
    boxed = sum(any(counts[name] for name in q.region.labels) for q in asked)
    yield f"{boxed} of {len(asked)} questions get a box; it is marked as made by rule, not by a reader"
    yield f"next: put {out} in place of masks/ of your cohort, and run reasonknee construct"
    if failed:
        raise DataError("J052", f"{len(failed)} masks failed, the first: {failed[0]}", f"{MARK} names them")
