"""Annotations joined with a user's own scans: which volumes are there, which are missing, which are
ambiguous; and a cohort folder of links.

Scans are found by (patient, study, series) anywhere below a folder, as NIfTI or DICOM. An annotation whose
image runs the other way along an axis is turned with it, which is exact; one whose image has another shape or
spacing belongs to another image and is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reasonknee.boxes import Box, Shape
from reasonknee.cohort import Annotation
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations
from reasonknee.cohort.folder import check_grids
from reasonknee.cohort.scans import Scan, image_sha256, scans_by_key
from reasonknee.construct.write import save, save_report
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.system.folders import whole_folder
from reasonknee.system.progress import Progress, silent
from reasonknee.system.workers import in_order
from reasonknee.volumes import Grid, read_grid, read_volume
from reasonknee.volumes.plausible import check_scan
from reasonknee.volumes.series_files import is_archive, series_name

REPORT = "attach.report.json"


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


@dataclass(frozen=True)
class _Pair:
    annotation: Annotation
    scan: Scan
    voxels: bool  # whether they are looked at, too
    digest: bool  # whether the file is hashed


def attach(
    annotations: Path,
    images: Path,
    progress: Progress = silent,
    *,
    accept: Iterable[str] = (),
    quick: bool = False,
    pool: Executor | None = None,
) -> Attached:
    """Finds the image of each annotation below `images`, compares their grids, and looks whether its voxels
    are those of a scan, unless it is accepted by name. Package and hash become those of this image. `quick`
    reads headers only, so that no hash is known."""
    if not images.is_dir():
        raise UsageError("J040", f"no folder at {images}", "--images is the folder of your OAI scans")
    scans_of, accepted = scans_by_key(images), frozenset(accept)
    result = Attached({}, [], [], {}, {})
    pairs = []
    for _, a in scan_annotations(annotations):
        scans = scans_of.get((a.patient, a.study, a.series), [])
        if not scans:
            result.missing.append(a.volume_id)
        elif len(scans) > 1:
            result.ambiguous[a.volume_id] = [s.path.relative_to(images).as_posix() for s in scans]
        else:
            pairs.append(_Pair(a, scans[0], not quick and a.volume_id not in accepted, not quick))
    for done, (pair, matched) in enumerate(in_order(_match, pairs, pool), start=1):
        name = pair.annotation.volume_id
        if isinstance(matched, ReasonKneeError):
            result.refused[name] = f"{matched.code}: {matched.told}"
        else:
            result.matched[name] = (matched, pair.scan.path)
            result.turned.extend([name] if matched.orientation != pair.annotation.orientation else [])
        progress("matching scans", done, len(pairs))
    return result


def _match(pair: _Pair) -> Annotation | ReasonKneeError:
    """The annotation in the axes of its image, or why it does not fit."""
    path = pair.scan.path
    try:
        _agrees(pair.annotation, pair.scan)
        volume = read_volume(path) if pair.voxels else None
        grid = volume.grid if volume else read_grid(path)
        turned = turn(pair.annotation, grid)
        check_grids(turned, grid)
        if volume:
            check_scan(volume)
        digest = image_sha256(path) if pair.digest else None
    except UsageError:
        raise  # an extra that is not installed concerns every volume
    except ReasonKneeError as error:
        return error.at(path.name)
    told = turned.provenance
    package = pair.scan.package or told.package
    return replace(turned, provenance=replace(told, package=package, image_sha256=digest))


def _agrees(a: Annotation, scan: Scan) -> None:
    for what, mine, theirs in (("visit", a.visit, scan.visit), ("side", a.side, scan.side)):
        if theirs is not None and theirs != mine:
            raise DataError(
                "J041",
                f"the {what} of the image is {theirs}, of the annotation {mine}",
                "mend one of them",
            ).at(scan.path.name)


def turn(a: Annotation, grid: Grid) -> Annotation:
    """The annotation in the axes of an image of the same voxels: where an axis runs the other way, boxes
    are counted from its other end."""
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
    """A cohort folder that `reasonknee build` takes: the matched annotations, and a link to each image
    where it is."""
    if out.exists():
        raise UsageError("J042", f"{out} exists", "choose a new folder, or remove it")
    if not attached.matched:
        first = next(iter(attached.refused.values()), "")
        hint = "`construct COHORT --upstream` takes grids from COHORT/images"
        if attached.missing or not first:
            hint = "is --images right?"
        elif first.startswith("V015"):
            hint = "are these masks? a scan that looks so is taken by --accept with its volume id"
        raise DataError(
            "J043",
            f"no scan matches: {len(attached.missing)} missing, {len(attached.ambiguous)} ambiguous, "
            f"{len(attached.refused)} refused" + (f"; the first: {first}" if first else ""),
            hint,
        )
    with whole_folder(out) as folder:
        for a, path in attached.matched.values():
            series, archive = path.is_dir(), is_archive(path)
            below = (
                f"{a.visit}DESS/{a.patient}/{a.study}/{a.series}"
                if series or archive
                else f"{a.patient}/{a.visit.upper()}/{a.study}_{a.series}_{a.side}"
            )
            nifti = ".nii.gz" if path.name.lower().endswith(".gz") else ".nii"
            suffix = "" if series else path.name[len(series_name(path)) :] if archive else nifti
            link = folder / "images" / (below + suffix)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.abspath(path), target_is_directory=series)
        save_report(folder / REPORT, attached.report())
        save(folder / FILE_NAME, (a for a, _ in attached.matched.values()))
