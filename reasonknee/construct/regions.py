"""A folder of tissue masks becomes a folder of subregion masks, which `construct` takes as masks/ and whose
boxes it marks as made by rule."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from reasonknee.cohort.scans import find_scans
from reasonknee.construct import tissues
from reasonknee.errors import DataError, ReasonKneeError, UsageError, counted
from reasonknee.questions import QUESTION_SETS
from reasonknee.questions.regions import LABELS
from reasonknee.system.folders import whole_folder
from reasonknee.system.progress import Progress
from reasonknee.version import VERSION
from reasonknee.volumes import Volume, read_volume, write_nifti

_PACKED = re.compile(r"\.nii(\.gz)?$", re.IGNORECASE)
MARK = "regions.json"  # beside masks that were made by rule


def made_by_rule(mask: Path, masks: Path) -> bool:
    """Whether a mask lies in a folder that carries the mark, be it a folder within `masks`."""
    above = (folder for folder in mask.parents if folder.is_relative_to(masks))
    return any((folder / MARK).is_file() for folder in above)


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
    asked = QUESTION_SETS["paper62"]
    counts: Counter[str] = Counter()
    boxed: dict[str, int] = {}  # mask -> questions that get a box from it
    failed: list[str] = []
    with whole_folder(out) as folder:
        for done, scan in enumerate(scans, start=1):
            try:
                volume = read_volume(scan.path)
                made = tissues.subregions(volume.array, volume.grid, str(scan.side), known)
            except ReasonKneeError as error:
                failed.append(f"{scan.path.name}: {error.code}: {error.told}")
                continue
            path = folder / scan.path.relative_to(masks).with_name(_PACKED.sub(".nii.gz", scan.path.name))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_nifti(path, Volume(made, volume.grid))
            present = tissues.values_in(made)
            mine = {name for name, number in LABELS.items() if number in present}
            counts.update(mine)
            boxed[path.relative_to(folder).as_posix()] = sum(
                not mine.isdisjoint(q.region.labels) for q in asked
            )
            progress("making regions", done, len(scans))
        if len(failed) == len(scans):  # nothing is written: the same command can be typed again
            raise DataError("J052", f"all {len(failed)} masks failed, the first: {failed[0]}", "see --labels")
        rules = {"femur_mm": tissues.FEMUR_MM, "tibia_mm": tissues.TIBIA_MM, "labels": labels}
        most = max(boxed.values())
        fewer = {name: n for name, n in boxed.items() if n < most}
        told = {
            "software": f"reasonknee {VERSION}",
            "boxes": "rule",
            **rules,
            "regions": counts,
            "with_fewer_boxes": fewer,
            "failed": failed,
        }
        (folder / MARK).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    yield f"{counted(len(scans) - len(failed), 'mask')} of {len(counts)} regions in {out}"
    yield f"{most} of {len(asked)} questions get a box; it is marked as made by rule, not by a reader"
    if fewer:
        worst = min(fewer, key=lambda name: fewer[name])
        yield f"{counted(len(fewer), 'mask')} of fewer tissues, the worst {worst}: {fewer[worst]} questions"
    yield f"next: mv {quote(str(out))} COHORT/masks && reasonknee construct COHORT"
    if failed:
        raise DataError("J052", f"{len(failed)} masks failed, the first: {failed[0]}", f"{MARK} names them")
