"""The bytes of volumes: whole and well-formed, on the row's grid, without a word about people, and prints
that a copy under another id shares."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError
from reasonknee.validation.copies import picture
from reasonknee.validation.findings import Findings
from reasonknee.validation.geometry import margin_voxels, sites
from reasonknee.validation.reading import NONE, Batch
from reasonknee.validation.rows import Terms
from reasonknee.volumes import Grid, Volume, volume_from_bytes
from reasonknee.volumes.nifti import VOXEL_OFFSET, nifti_header
from reasonknee.volumes.plausible import is_constant, why_no_scan

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes of the header that depend on the volume: dimensions, voxel type, spacing, affine. All others are as in
# any header that we write.
_OWN = ((42, 48), (70, 74), (80, 92), (280, 328))
_SIZE = 348 & 0xFF  # the first byte of a little-endian header: its length
_FEW = 256  # voxels; smaller slices of different knees may well be equal
_OF_A_CROP = 4  # slices that are looked at: there are many crops of one volume


@dataclass
class Seen:
    """What the voxels of one row told: prints of their slices, where the full volume starts in the world,
    and a checksum of each region's crop."""

    prints: set[int] = field(default_factory=set)
    picture: np.ndarray | None = None  # of a whole volume
    affine: np.ndarray | None = None
    crops: dict[int, int] = field(default_factory=dict)  # site -> checksum of its voxels


def check_voxels(batch: Batch, terms: Terms, boxed: np.ndarray, findings: Findings) -> dict[int, Seen]:
    """Every different volume of a row group, once.

    Returns what was seen by number of the row it was seen in.
    """
    seen: dict[int, Seen] = {}
    for row in _paths(batch):
        findings.add("X409", batch.place_of_row(row), "volume.path is set")
    checked: dict[tuple[int, int], Volume | None] = {}
    for row, key, data in _cells(batch):
        if key not in checked:
            checked[key] = _volume(batch, row, data, findings)
            volume = checked[key]
            if volume is not None and batch.config == "full" and _is_blank(volume.array):
                findings.add("X310", batch.place_of_row(row), f"each is {volume.array.flat[0]}")
            elif volume is not None and batch.config == terms.compared:
                wrong = why_no_scan(volume.array)
                if wrong and batch.table["volume_id"][row].as_py() not in terms.accepted:
                    findings.add("X311", batch.place_of_row(row), wrong)
                mine, whole = seen.setdefault(row, Seen()), batch.config == "full"
                mine.prints |= prints(volume.array if whole else _some_slices(volume.array))
                mine.picture = picture(volume.array) if whole else None
        volume = checked[key]
        if volume is not None:
            affine = _on_its_grid(batch, row, volume, data, findings)
            if affine is not None:
                mine = seen.setdefault(row, Seen())
                mine.affine, mine.crops = affine, _crops(batch, row, volume, terms.margin_mm, boxed)
    return seen


def _paths(batch: Batch) -> list[int]:
    import pyarrow.compute as pc

    rows: list[int] = np.flatnonzero(
        pc.is_valid(pc.struct_field(batch.table["volume"], "path")).to_numpy(zero_copy_only=False)
    ).tolist()
    return rows


def _cells(batch: Batch) -> Iterator[tuple[int, tuple[int, int], memoryview]]:
    """Row, key and bytes of each different (volume, crop); bytes that several rows of a row group share
    have one key."""
    start = 0
    for number, cells in enumerate(
        batch.table["volume"].chunks
    ):  # as they are: in one piece, the voxels would be copied
        column, there = (
            cells.field("bytes"),
            cells.is_valid().to_numpy(zero_copy_only=False),
        )  # a view: `struct_field` would copy them, too
        if batch.config == "cropped":
            yield from (
                (start + row, (number, code), data)
                for row, code, data in _different(column, there, batch.crop[start : start + len(cells)])
            )
        else:
            there &= column.is_valid().to_numpy(zero_copy_only=False)
            yield from (
                (start + row, (number, row), _bytes_of(column, row)) for row in np.flatnonzero(there).tolist()
            )
        start += len(cells)


def _different(
    column: pa.DictionaryArray, there: np.ndarray, crops: np.ndarray
) -> Iterator[tuple[int, int, memoryview]]:
    codes = np.where(there, column.indices.fill_null(-1).to_numpy(zero_copy_only=False), -1).tolist()
    done: set[tuple[int, tuple[int, ...]]] = set()
    for row, (code, crop) in enumerate(zip(codes, crops.tolist(), strict=True)):
        if code >= 0 and (code, tuple(crop)) not in done:
            done.add((code, tuple(crop)))
            yield row, code, _bytes_of(column.dictionary, code)


def _bytes_of(column: pa.BinaryArray, row: int) -> memoryview:
    """A view of one value: a scalar would be a copy of its voxels."""
    _, offsets, data = column.buffers()
    start, stop = np.frombuffer(offsets, np.int32)[column.offset + row :][:2].tolist()
    return memoryview(data or b"")[start:stop]


def _volume(batch: Batch, row: int, data: memoryview, findings: Findings) -> Volume | None:
    try:
        volume = volume_from_bytes(data)
    except DataError as error:
        findings.add("X407", batch.place_of_row(row), f"{error.code}: {error.message}")
        return None
    wrong = _not_blank(data, volume)
    if wrong:  # what it says is not repeated here
        findings.add("X501", batch.place_of_row(row), wrong)
    elif volume.array.flags.owndata:  # it had to be turned or swapped
        findings.add("X408", batch.place_of_row(row), "its axes are in another order, or it is big-endian")
    return volume


@functools.cache
def _usual_header() -> np.ndarray:
    usual = nifti_header(Grid((1, 1, 1), np.diag([1.0, 1.0, 1.0, 1.0])), np.dtype("u1"))
    return np.frombuffer(usual, np.uint8)


def _not_blank(data: memoryview, volume: Volume) -> str:
    """Which bytes of the header hold something that they should not.

    A big-endian one is left to another check.
    """
    if data[0] != _SIZE:
        return ""
    if len(data) != VOXEL_OFFSET + volume.array.nbytes:
        return f"{len(data) - VOXEL_OFFSET - volume.array.nbytes} bytes between header and voxels"
    differs = np.frombuffer(data[:VOXEL_OFFSET], np.uint8) != _usual_header()
    for start, stop in _OWN:
        differs[start:stop] = False
    return (
        f"{int(differs.sum())} bytes of the header, from byte {int(differs.argmax())} on"
        if differs.any()
        else ""
    )


def _on_its_grid(
    batch: Batch, row: int, volume: Volume, data: memoryview, findings: Findings
) -> np.ndarray | None:
    """Shape, spacing and orientation as the row says.

    Returns the affine of the full volume as it follows from this one.
    """
    place, grid = functools.partial(batch.place_of_row, row), volume.grid
    crop = batch.crop[row] if batch.config == "cropped" else None
    if crop is not None and crop[0] == NONE:
        return None  # voxels without a crop: named by the geometry checks
    shape = (crop[1::2] - crop[0::2] if crop is not None else batch.shape[row]).tolist()
    if list(grid.shape) != shape:
        findings.add("X303", place(), f"voxels of shape {list(grid.shape)} where {shape} is said (z, y, x)")
        return None
    orientation = batch.table["orientation"][row].as_py()
    if grid.orientation != orientation:
        findings.add(
            "X304", place(), f"the header's orientation is {grid.orientation}, the row's {orientation}"
        )
        return None
    pixdim = np.frombuffer(data[80:92], "<f4" if data[0] == _SIZE else ">f4")[::-1]
    if (
        np.abs(pixdim - batch.spacing[row]).max() > 1e-3
        and np.abs(np.array(grid.spacing) - batch.spacing[row]).max() <= 1e-3
    ):
        findings.add(
            "X304",
            place(),
            f"the header's pixdim is {pixdim.tolist()}, the row's spacing {batch.spacing[row].tolist()}",
        )
    if np.abs(np.array(grid.spacing) - batch.spacing[row]).max() > 1e-3:
        findings.add(
            "X304",
            place(),
            f"the header's spacing is {np.round(grid.spacing, 4).tolist()}, the row's "
            f"{batch.spacing[row].tolist()}",
        )
        return None
    affine: np.ndarray = grid.affine.copy()
    if crop is not None:
        affine[:3, 3] -= affine[:3, :3] @ crop[[4, 2, 0]]
    return affine


def _crops(
    batch: Batch, row: int, volume: Volume, margin_mm: float | str, boxed: np.ndarray
) -> dict[int, int]:
    """A checksum of the voxels of each site: of the one crop here, or of what should be the crops of a
    full volume."""
    mine = np.flatnonzero((batch.row == row) & boxed)
    of = dict(zip(mine.tolist(), sites(margin_mm, batch.question[mine]).tolist(), strict=True))
    if batch.config == "cropped":
        return {site: _checksum(volume.array) for site in of.values()}
    margins = margin_voxels(margin_mm, batch.spacing[row], batch.question)
    margins = np.broadcast_to(margins, (len(batch.question), 3))
    boxes = {
        site: Box(*batch.box[i].tolist()).grown(tuple(margins[i].tolist()), volume.grid.shape)
        for i, site in reversed(of.items())
    }
    return {site: _checksum(volume.array[box.slices]) for site, box in boxes.items()}


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B"))


def same_place(a: np.ndarray, b: np.ndarray, shape: tuple[int, int, int]) -> bool:
    return Grid(shape, a).same_place(Grid(shape, b))


def _some_slices(array: np.ndarray) -> np.ndarray:
    return array[:: max(1, len(array) // _OF_A_CROP)]


def _is_blank(array: np.ndarray) -> bool:
    first = array.flat[0]
    return all(plane.flat[0] == first and is_constant(plane) for plane in array)


def prints(array: np.ndarray) -> set[int]:
    """A number for each slice that is the same for the same values in whatever order, whatever type they
    have; none for what is small or blank.

    So a copy is found however its axes run, if it lacks slices, and if some of it was changed. The middle of
    a slice is enough, and a quarter of the work.
    """
    numbers = set()
    for plane in array:
        if plane.size >= 16 * _FEW:
            (y, x) = plane.shape
            plane = plane[y // 4 : y - y // 4, x // 4 : x - x // 4]
        if plane.size < _FEW or is_constant(plane):
            continue
        mixed = _as_bits(plane)  # a copy
        mixed *= np.uint32(2654435761)
        mixed ^= mixed >> np.uint32(15)
        mixed *= np.uint32(2246822519)
        numbers.add(int(mixed.sum(dtype=np.uint64)))
    return numbers


def _as_bits(plane: np.ndarray) -> np.ndarray:
    """Whole numbers as such, though they are floats."""
    if plane.dtype.kind == "f":
        whole = np.rint(plane)
        return (
            whole.astype(np.int64).astype(np.uint32)
            if np.array_equal(whole, plane)
            else plane.astype(np.float32).view(np.uint32)
        )
    return plane.astype(np.uint32)
