"""Boxes as a NIfTI label map on the volume's own grid, for 3D Slicer and ITK-SNAP.

A voxel has one label: where boxes overlap, the smaller one is on top, and of equal ones the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.scoring.truth import TABLE
from reasonknee.system.files import whole, write_text
from reasonknee.viewer.source import Shown, Source, open_source
from reasonknee.volumes import Grid, Volume, write_nifti

Labelled = tuple[str, Box]


def grid_of(source: Source, n: int, shown: Shown | None) -> Grid:
    """The grid of the full volume that row n is about, also where only a crop of it is there."""
    if shown is None:
        told = f"{source.truth.ids[n]}: there are no voxels, so nothing says where in the world they lie"
        raise DataError("H004", told, "join the annotations with your scans: `reasonknee attach`")
    z, y, x = shown.origin
    affine = shown.volume.grid.affine.copy()
    affine[:3, 3] -= affine[:3, :3] @ np.array([x, y, z])
    return Grid(tuple(int(v) for v in source.truth.shape[n]), affine)  # type: ignore[arg-type]


def label_map(grid: Grid, boxes: Sequence[Labelled]) -> Volume:
    """Label i + 1 for the i-th box; 0 elsewhere."""
    labels = np.zeros(grid.shape, np.uint8)
    for number, (_, box) in sorted(enumerate(boxes, start=1), key=lambda each: -each[1][1].voxels):
        labels[box.slices] = number
    return Volume(labels, grid)


def boxes_of_volume(source: Source, n: int) -> list[Labelled]:
    """The true box of every region of row n's volume that has one, in the order of the questions."""
    truth, volume = source.truth, source.truth.ids[n].rpartition("-")[0]
    found: dict[str, Box] = {}
    for row in volume_rows(source, volume):
        if truth.has_box[row]:
            found.setdefault(TABLE[truth.question[row]].region.id, Box(*(int(v) for v in truth.boxes[row])))
    return list(found.items())


def write_label_map(place: str | Path, row_id: str, out: Path) -> Iterator[str]:
    """The boxes of a row's volume as a `.nii.gz`, and their names beside it as ITK-SNAP reads them."""
    source = open_source(place)
    n = source.truth.rows.get(row_id or source.truth.ids[0], -1)
    if n < 0:
        raise UsageError("L001", f"no quintuple {row_id[:80]!r} here", "ids look like 1000001-00m-right-acl")
    if not out.name.endswith(".nii.gz"):
        raise UsageError("H022", f"{out.name} is no name of a label map", "give it the ending .nii.gz")
    boxes = boxes_of_volume(source, n)
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole(out) as temporary:
        write_nifti(temporary, label_map(grid_of(source, n, source.voxels(n)), boxes))
    names = out.with_name(out.name.removesuffix(".nii.gz") + ".label.txt")
    write_text(names, legend(boxes))
    yield f"{len(boxes)} boxes of {source.truth.ids[n].rpartition('-')[0]}: {out}, their names: {names}"


def volume_rows(source: Source, volume: str) -> list[int]:
    """The rows of a volume, which stand together."""
    ids = source.truth.ids
    return [row for row in range(len(ids)) if ids[row].startswith(volume + "-")]


def legend(boxes: Sequence[Labelled]) -> str:
    """ITK-SNAP's label descriptions: number, colour, opacity, visibility, name."""
    lines = ["# ITK-SNAP label descriptions", '0 0 0 0 0 0 0 "clear"']
    for number, (name, _) in enumerate(boxes, start=1):
        red, green, blue = ((number * step) % 200 + 55 for step in (67, 131, 193))
        lines.append(f'{number} {red} {green} {blue} 1 1 1 "{name}"')
    return "\n".join(lines) + "\n"
