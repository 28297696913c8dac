"""Annotations joined with a user's own scans: which volumes are there, which are missing, which are ambiguous; and a cohort folder of links.

Scans are found by (patient, study, series) anywhere below a folder, as NIfTI or DICOM. An annotation whose image runs the other way along an axis
is turned with it, which is exact; one whose image has another shape or spacing belongs to another image and is left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reasonknee.annotations import FILE_NAME, Annotation, scan_annotations
from reasonknee.boxes import Box, Shape
from reasonknee.cohort import check_grids
from reasonknee.construct.write import save, save_report
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.scans import Scan, scans_by_key
from reasonknee.volumes import Grid, read_grid

REPORT = "attach.report.json"
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class Attached:
    """What became of each annotation, by volume id."""

    matched: dict[str, tuple[Annotation, Path]]
    turned: list[str]
    missing: list[str]
    ambiguous: dict[str, list[str]]
    refused: dict[str, str]  # why the image does not fit

    @property
    def bad(self) -> int:
        return len(self.missing) + len(self.ambiguous) + len(self.refused)

    def report(self) -> dict[str, Any]:
        return {
            "matched": sorted(self.matched),
            "turned": self.turned,
            "missing": self.missing,
            "ambiguous": self.ambiguous,
            "refused": self.refused,
        }


def attach(annotations: Path, images: Path, progress: Progress = lambda stage, done, of: None) -> Attached:
    """Finds the image of each annotation below `images` and compares their grids; reads headers only."""
    if not images.is_dir():
        raise UsageError("J040", f"no folder at {images}", "--images is the folder of your OAI scans")
    found = scans_by_key(images)
    known = [a for _, a in scan_annotations(annotations)]
    result = Attached({}, [], [], {}, {})
    for done, a in enumerate(known, start=1):
        scans = found.get((a.patient, a.study, a.series), [])
        if not scans:
            result.missing.append(a.volume_id)
        elif len(scans) > 1:
            result.ambiguous[a.volume_id] = [s.path.relative_to(images).as_posix() for s in scans]
        else:
            _match(a, scans[0], result)
        progress("matching scans", done, len(known))
    return result


def _match(a: Annotation, scan: Scan, result: Attached) -> None:
    try:
        _agrees(a, scan)
        grid = read_grid(scan.path)
        turned = turn(a, grid)
        check_grids(turned, grid)
    except UsageError:
        raise
    except ReasonKneeError as error:
        result.refused[a.volume_id] = f"{error.code}: {error.message}"
        return
    result.matched[a.volume_id] = (turned, scan.path)
    if turned is not a:
        result.turned.append(a.volume_id)


def _agrees(a: Annotation, scan: Scan) -> None:
    for what, mine, theirs in (("visit", a.visit, scan.visit), ("side", a.side, scan.side)):
        if theirs is not None and theirs != mine:
            raise DataError("J041", f"{scan.path.name}: the {what} of the image is {theirs}, of the annotation {mine}", "mend one of them")


def turn(a: Annotation, grid: Grid) -> Annotation:
    """The annotation in the axes of an image of the same voxels: where an axis runs the other way, boxes are counted from its other end."""
    flips = [axis for axis in range(3) if a.orientation[axis] != grid.orientation[axis]]
    if not flips:
        return a
    boxes = {region: box and _flipped(box, flips, a.shape) for region, box in a.boxes.items()}
    return replace(a, orientation=grid.orientation, boxes=boxes)


def _flipped(box: Box, axes: list[int], shape: Shape) -> Box:
    ends = [(start, stop) for start, stop in zip(box.start, box.stop, strict=True)]
    for axis in axes:
        start, stop = ends[axis]
        ends[axis] = (shape[axis] - stop, shape[axis] - start)
    return Box(*(end for pair in ends for end in pair))


def write_cohort_of_links(attached: Attached, out: Path) -> None:
    """A cohort folder that `reasonknee build` takes: the matched annotations, and a link to each image where it is."""
    if out.exists():
        raise UsageError("J042", f"{out} exists", "choose a new folder, or remove it")
    if not attached.matched:
        raise DataError("J043", f"no scan matches: {len(attached.missing)} missing, {len(attached.ambiguous)} ambiguous", "is --images right?")
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    for a, path in attached.matched.values():
        folder = path.is_dir()
        below = f"{a.visit}DESS/{a.patient}/{a.study}/{a.series}" if folder else f"{a.patient}/{a.visit.upper()}/{a.study}_{a.series}_{a.side}"
        suffix = "" if folder else ".nii.gz" if path.name.endswith(".gz") else ".nii"
        link = partial / "images" / (below + suffix)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.abspath(path), target_is_directory=folder)
    save_report(partial / REPORT, attached.report())
    save(partial / FILE_NAME, (a for a, _ in attached.matched.values()))
    partial.rename(out)
