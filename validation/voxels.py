"""The bytes of volumes: whole and well-formed, on the row's grid, without a word about people, and a digest that a copy under another id shares."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError
from reasonknee.validation.findings import Findings
from reasonknee.validation.geometry import REGION_OF_QUESTION, margin_voxels
from reasonknee.validation.reading import NONE, Batch
from reasonknee.validation.rows import Terms
from reasonknee.volumes import VOXEL_OFFSET, Grid, Volume, volume_from_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS = {
    "data_type": (4, 14),
    "db_name": (14, 32),
    "descrip": (148, 228),
    "aux_file": (228, 252),
    "intent_name": (328, 344),
    "extension": (348, 352),
}
_FEW = 512  # voxels; smaller crops of different knees may well be equal
_LIP = "LIP"


@dataclass
class Seen:
    """What the voxels of one row told: their digests, where the full volume starts in the world, and a checksum of each region's crop."""

    digests: set[bytes] = field(default_factory=set)
    affine: np.ndarray | None = None
    crops: dict[int, int] = field(default_factory=dict)  # region number -> checksum of its voxels


def check_voxels(batch: Batch, terms: Terms, boxed: np.ndarray, found: Findings) -> dict[int, Seen]:
    """Every different volume of a row group, once. Returns what was seen by number of the row it was seen in."""
    seen: dict[int, Seen] = {}
    for row in _paths(batch):
        found.add("X409", batch.place_of_row(row), "volume.path is set")
    checked: dict[tuple[int, int], Volume | None] = {}
    for row, key, data in _cells(batch):
        if key not in checked:
            checked[key] = _volume(batch, row, data, found)
            volume = checked[key]
            if volume is not None and batch.config == terms.compared:
                seen.setdefault(row, Seen()).digests |= {d for d in (digest(volume),) if d}
        volume = checked[key]
        if volume is not None:
            affine = _on_its_grid(batch, row, volume, found)
            if affine is not None:
                mine = seen.setdefault(row, Seen())
                mine.affine, mine.crops = affine, _crops(batch, row, volume, terms.margin_mm, boxed)
    return seen


def _paths(batch: Batch) -> list[int]:
    import pyarrow.compute as pc

    rows: list[int] = np.flatnonzero(pc.is_valid(pc.struct_field(batch.table["volume"], "path")).to_numpy(zero_copy_only=False)).tolist()
    return rows


def _cells(batch: Batch) -> Iterator[tuple[int, tuple[int, int], memoryview]]:
    """Row, key and bytes of each different (volume, crop); bytes that several rows of a row group share have one key."""
    start = 0
    for number, cells in enumerate(batch.table["volume"].chunks):  # as they are: in one piece, the voxels would be copied
        column, there = cells.field("bytes"), cells.is_valid().to_numpy(zero_copy_only=False)  # a view: `struct_field` would copy them, too
        if batch.config == "cropped":
            yield from ((start + row, (number, code), data) for row, code, data in _different(column, there, batch.crop[start : start + len(cells)]))
        else:
            yield from ((start + row, (number, row), memoryview(cell.as_buffer())) for row, cell in enumerate(column) if there[row] and cell.is_valid)
        start += len(cells)


def _different(column: pa.DictionaryArray, there: np.ndarray, crops: np.ndarray) -> Iterator[tuple[int, int, memoryview]]:
    codes = np.where(there, column.indices.fill_null(-1).to_numpy(zero_copy_only=False), -1).tolist()
    done: set[tuple[int, tuple[int, ...]]] = set()
    for row, (code, crop) in enumerate(zip(codes, crops.tolist(), strict=True)):
        if code >= 0 and (code, tuple(crop)) not in done:
            done.add((code, tuple(crop)))
            yield row, code, memoryview(column.dictionary[code].as_buffer())


def _volume(batch: Batch, row: int, data: memoryview, found: Findings) -> Volume | None:
    place = batch.place_of_row(row)
    try:
        volume = volume_from_bytes(data)
    except DataError as error:
        found.add("X407", place, f"{error.code}: {error.message}")
        return None
    texts = [name for name, (start, stop) in _TEXTS.items() if bytes(data[start:stop]).strip(b"\0 ")]
    if texts:  # what it says is not repeated here
        found.add("X501", place, f"{', '.join(texts)} not blank")
    if len(data) != VOXEL_OFFSET + volume.array.nbytes and "extension" not in texts:
        found.add("X501", place, f"{len(data) - VOXEL_OFFSET - volume.array.nbytes} bytes between header and voxels")
    elif volume.array.flags.owndata:  # it had to be turned or swapped
        found.add("X408", place, "its axes are in another order, or it is big-endian")
    return volume


def _on_its_grid(batch: Batch, row: int, volume: Volume, found: Findings) -> np.ndarray | None:
    """Shape, spacing and orientation as the row says. Returns the affine of the full volume as it follows from this one."""
    place, grid = batch.place_of_row(row), volume.grid
    crop = batch.crop[row] if batch.config == "cropped" else None
    if crop is not None and crop[0] == NONE:
        return None  # voxels without a crop: named by the geometry checks
    shape = (crop[1::2] - crop[0::2] if crop is not None else batch.shape[row]).tolist()
    if list(grid.shape) != shape:
        found.add("X303", place, f"voxels of shape {list(grid.shape)} where {shape} is said (z, y, x)")
        return None
    orientation = batch.table["orientation"][row].as_py()
    if grid.orientation != orientation:
        found.add("X304", place, f"the header's orientation is {grid.orientation}, the row's {orientation}")
        return None
    if np.abs(np.array(grid.spacing) - batch.spacing[row]).max() > 1e-3:
        found.add("X304", place, f"the header's spacing is {np.round(grid.spacing, 4).tolist()}, the row's {batch.spacing[row].tolist()}")
        return None
    affine: np.ndarray = grid.affine.copy()
    if crop is not None:
        affine[:3, 3] -= affine[:3, :3] @ crop[[4, 2, 0]]
    return affine


def _crops(batch: Batch, row: int, volume: Volume, margin_mm: float, boxed: np.ndarray) -> dict[int, int]:
    """A checksum of the voxels of each region: of the one crop here, or of what should be the crops of a full volume."""
    mine = np.flatnonzero((batch.row == row) & boxed)
    if batch.config == "cropped":
        return {int(REGION_OF_QUESTION[batch.question[i]]): _checksum(volume.array) for i in mine}
    first = {int(REGION_OF_QUESTION[batch.question[i]]): batch.box[i] for i in mine[::-1]}
    margin = margin_voxels(margin_mm, batch.spacing[row])
    boxes = {region: Box(*box.tolist()).grown(tuple(margin.tolist()), volume.grid.shape) for region, box in first.items()}
    return {region: _checksum(volume.array[box.slices]) for region, box in boxes.items()}


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B"))


def same_place(a: np.ndarray, b: np.ndarray, shape: tuple[int, int, int]) -> bool:
    return Grid(shape, a).same_place(Grid(shape, b))


def digest(volume: Volume) -> bytes | None:
    """The same for the same voxels, however the axes run, and for their mirror image along z. None for what is too small or all alike.

    A checksum per slice, and the list of them read from whichever end comes first: one pass gives both images."""
    array = volume.array
    if array.size < _FEW:
        return None
    flips = tuple(axis for axis in (1, 2) if volume.grid.orientation[axis] != _LIP[axis])
    if flips:
        array = np.flip(array, flips)
    sums = [_checksum(s) for s in array]
    if len(set(sums)) == 1 and array.min() == array.max():
        return None
    return hashlib.sha256(repr((array.dtype.str, array.shape, min(sums, sums[::-1]))).encode()).digest()[:16]
