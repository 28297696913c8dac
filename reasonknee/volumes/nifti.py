"""NIfTI files in and out.

Files from elsewhere are untrusted: every byte of a header is checked before anything is made of it.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import stat
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from reasonknee.errors import DataError, StorageError
from reasonknee.volumes.grid import MAX_AXIS, MAX_BYTES, Grid, Volume, canonical, place
from reasonknee.volumes.gunzip import MAX_RATIO, GunzipReader

_MAX_OFFSET = 1 << 20  # NIfTI extensions before the voxels
_HEADER = 348
_MILLIMETRES = (0, 2)  # codes of units: not told, and told
VOXEL_OFFSET = 352  # where the voxels start in the files that we write
_DTYPES = {
    2: "u1",
    4: "i2",
    8: "i4",
    16: "f4",
    64: "f8",
    256: "i1",
    512: "u2",
    768: "u4",
}  # NIfTI datatype codes that we accept
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}


# --- NIfTI in -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layout:
    """What a NIfTI header says, checked: how to turn the bytes that follow into a volume."""

    dims: tuple[int, int, int]  # as in the file: the first varies fastest
    dtype: np.dtype[Any]
    offset: int
    permutation: tuple[int, int, int]  # which file axis is x, y, z
    grid: Grid

    @property
    def nbytes(self) -> int:
        return math.prod(self.dims) * self.dtype.itemsize

    def view(self, data: bytes | bytearray | memoryview) -> Volume:
        array = canonical(
            np.frombuffer(data, self.dtype).reshape(self.dims[::-1]), self.permutation
        )  # C order of the reversed dims
        _check_finite(array)
        return Volume(array, self.grid)


def read_grid(path: str | os.PathLike[str]) -> Grid:
    """Shape and affine; reads the header only."""
    with _opened(path) as stream:
        return _read_header(stream).grid


def read_volume(path: str | os.PathLike[str]) -> Volume:
    """The volume in a `.nii` or `.nii.gz` file, read to the end so that a gzip checksum is never skipped."""
    opened = _opened(path)
    with opened as stream:
        layout = _read_header(stream)
        _check_size(layout, opened.most)
        _skip(stream, layout.offset - _HEADER)
        data = np.empty(layout.nbytes, np.uint8).data  # a bytearray would be filled with zeros first
        _fill(stream, data)
        _check_end(stream)
        return layout.view(data)


def volume_from_bytes(data: bytes | memoryview) -> Volume:
    """The volume in the bytes of an uncompressed NIfTI file, such as a release's rows hold; a view, no
    copy, for those."""
    layout = _read_header(io.BytesIO(data[: _HEADER + 4]))
    if len(data) != layout.offset + layout.nbytes:
        raise DataError(
            "V007",
            f"{len(data)} bytes where the header asks for {layout.offset + layout.nbytes}",
            "the row is damaged",
        )
    return layout.view(memoryview(data)[layout.offset :])


def check_volume(path: str | os.PathLike[str]) -> tuple[Grid, np.dtype[Any]]:
    """All that `read_volume` checks of a NIfTI file, a piece at a time: the voxels are never held
    together."""
    opened = _opened(path)
    with opened as stream:
        layout = _read_header(stream)
        _check_size(layout, opened.most)
        _skip(stream, layout.offset - _HEADER)
        left, piece = layout.nbytes, memoryview(bytearray(1 << 20))
        while left:
            part = piece[: min(left, len(piece))]
            _fill(stream, part)
            _check_finite(np.frombuffer(part, layout.dtype))
            left -= len(part)
        _check_end(stream)
        return layout.grid, layout.dtype


def _check_size(layout: _Layout, most: int) -> None:
    """Before any memory is taken: the file can hold what its header claims."""
    if layout.offset + layout.nbytes > most:
        raise DataError(
            "V006",
            f"truncated: {layout.nbytes} bytes of voxels are claimed, and cannot be there",
            "copy or download the file again",
        )


def _check_finite(array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError("V009", "the volume holds NaN or infinite voxels", "replace them before use")


def _check_end(stream: IO[bytes]) -> None:
    if stream.read(1):
        raise DataError(
            "V008",
            "the file goes on after the last voxel",
            "the header does not describe it; export the volume again",
        )


def regular_file(path: Path) -> IO[bytes]:
    """The file, open for reading, if it is one: a pipe would keep us waiting, a device never end."""
    name = place_of(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError("V001", "not a regular file", "name a .nii or .nii.gz file").at(name)
        return path.open("rb")
    except OSError as error:
        raise StorageError(
            "V000", f"cannot be read: {error.strerror}", "check the path and its permissions"
        ).at(name) from None


def place_of(path: Path) -> str:
    """What messages call a file: an image and its mask have the same base name."""
    return Path(*path.parts[-4:]).as_posix()


class _opened:  # noqa: N801 - reads as a function
    """A file open for reading, decompressed if it is gzip; every way to fail becomes one clear error that
    names the file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.name = place_of(self.path)

    def __enter__(self) -> IO[bytes]:
        self.file = regular_file(self.path)
        try:
            packed = self.file.read(2) == b"\x1f\x8b"
            self.file.seek(0)
        except OSError as error:
            raise StorageError(
                "V000", f"cannot be read: {error.strerror}", "check the path and its permissions"
            ).at(self.name) from None
        size = os.fstat(self.file.fileno()).st_size
        self.most = size * MAX_RATIO if packed else size  # bytes that can come out of the file
        self.stream: IO[bytes] = GunzipReader(self.file) if packed else self.file  # type: ignore[assignment]
        return self.stream

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.file.close()
        if isinstance(error, DataError):
            raise error.at(self.name) from None
        if isinstance(error, EOFError | zlib.error):
            raise DataError("V006", f"damaged gzip data: {error}", "copy or download the file again").at(
                self.name
            ) from None


def _read_header(stream: IO[bytes]) -> _Layout:
    raw = b""
    while len(raw) < _HEADER and (
        more := stream.read(_HEADER - len(raw))
    ):  # the end of a gzip member ends a read
        raw += more
    if len(raw) < _HEADER or raw[344:348] not in (b"n+1\0",):
        raise DataError("V001", "not a single-file NIfTI-1 volume", "convert it to .nii or .nii.gz")
    order = next((o for o in "<>" if struct.unpack(o + "i", raw[:4])[0] == _HEADER), "")
    if not order:
        raise DataError("V001", "not a NIfTI-1 header", "convert it to .nii or .nii.gz")
    dim = struct.unpack(order + "8h", raw[40:56])
    datatype, bitpix = struct.unpack(order + "2h", raw[70:74])
    offset, slope, inter = struct.unpack(order + "3f", raw[108:120])
    dims = dim[1:4]
    if dim[0] != 3 or not all(1 <= n <= MAX_AXIS for n in dims):
        raise DataError(
            "V002",
            f"{dim[0]} dimensions of {dim[1 : max(dim[0], 0) + 1]} voxels",
            f"a knee volume has three, of 1 to {MAX_AXIS}",
        )
    if datatype not in _DTYPES or np.dtype(_DTYPES[datatype]).itemsize * 8 != bitpix:
        raise DataError(
            "V003",
            f"voxel type {datatype} of {bitpix} bits",
            f"use one of {', '.join(np.dtype(t).name for t in _DTYPES.values())}",
        )
    dtype = np.dtype(order + _DTYPES[datatype])
    if math.prod(dims) * dtype.itemsize > MAX_BYTES:
        hint = f"at most {MAX_BYTES} are accepted" + (
            "; float32 holds all that a scanner measures" if dtype.name == "float64" else ""
        )
        raise DataError("V002", f"{math.prod(dims) * dtype.itemsize} bytes of voxels", hint)
    if not (math.isfinite(offset) and VOXEL_OFFSET <= offset <= _MAX_OFFSET and offset == int(offset)):
        raise DataError("V001", f"voxels at byte {offset}", "the header is damaged")
    if slope != 0 and not math.isnan(slope) and (slope != 1 or inter != 0):
        raise DataError(
            "V004",
            f"scaled voxels (slope {slope}, intercept {inter})",
            "save the volume with its real values, without scaling",
        )
    if raw[123] & 7 not in _MILLIMETRES:
        raise DataError("V005", "its unit of length is not the millimetre", "save the volume in millimetres")
    permutation, grid = place(dims, _affine(raw, order))
    return _Layout(dims, dtype, int(offset), permutation, grid)


def _affine(raw: bytes, order: str) -> np.ndarray:
    """Voxel to world, from the sform or else the qform."""
    qform, sform = struct.unpack(order + "2h", raw[252:256])
    if qform <= 0 and sform <= 0:
        raise DataError(
            "V005", "no orientation: neither sform nor qform is set", "export the volume with its orientation"
        )
    if sform > 0:
        return np.array([*struct.unpack(order + "12f", raw[280:328]), 0, 0, 0, 1], dtype=np.float64).reshape(
            4, 4
        )
    return _of_quaternion(struct.unpack(order + "4f", raw[76:92]), struct.unpack(order + "6f", raw[256:280]))


def _of_quaternion(pixdim: tuple[float, ...], qform: tuple[float, ...]) -> np.ndarray:
    """Of the unit quaternion a + bi + cj + dk the file holds b, c, d; `pixdim` starts with the sign of
    the third axis."""
    b, c, d, *origin = qform
    left = 1 - (b * b + c * c + d * d)
    if not (math.isfinite(left) and left > -1e-6 and abs(pixdim[0]) == 1 and min(pixdim[1:]) > 0):
        raise DataError(
            "V005", "the qform is not a rotation with a spacing", "export the volume with its orientation"
        )
    a = math.sqrt(max(left, 0))
    rotation = np.array(
        [
            [a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)],
            [2 * (b * c + a * d), a * a + c * c - b * b - d * d, 2 * (c * d - a * b)],
            [2 * (b * d - a * c), 2 * (c * d + a * b), a * a + d * d - b * b - c * c],
        ]
    )
    affine = np.eye(4)
    affine[:3, :3] = rotation * (pixdim[1], pixdim[2], pixdim[3] * pixdim[0])
    affine[:3, 3] = origin
    return affine


def _skip(stream: IO[bytes], count: int) -> None:
    _fill(stream, memoryview(bytearray(count)))


def _fill(stream: IO[bytes], target: memoryview) -> None:
    done = 0
    while done < len(target):
        chunk = stream.readinto(target[done : done + (1 << 22)])  # type: ignore[attr-defined]
        if not chunk:
            raise DataError(
                "V006",
                f"truncated: {len(target) - done} bytes of voxels are missing",
                "copy or download the file again",
            )
        done += chunk


# --- NIfTI out ----------------------------------------------------------------------------------------------


def nifti_header(grid: Grid, dtype: np.dtype[Any]) -> bytes:
    """The 352 bytes before the voxels of a (z, y, x) array.

    Says where the voxels are and nothing about who or when.
    """
    from nibabel.nifti1 import Nifti1Header

    header = Nifti1Header(endianness="<")
    z, y, x = grid.shape
    header.set_data_shape((x, y, z))
    header["datatype"] = _CODES[dtype.newbyteorder("=")]
    header["bitpix"] = dtype.itemsize * 8
    header["pixdim"][1:4] = grid.spacing[::-1]
    header.set_sform(grid.affine, code=1)
    header.set_xyzt_units("mm")
    header["vox_offset"] = VOXEL_OFFSET
    header["magic"] = b"n+1"
    return bytes(header.binaryblock) + b"\0\0\0\0"


def nifti_bytes(volume: Volume) -> bytes:
    """The volume as an uncompressed NIfTI file."""
    voxels = np.ascontiguousarray(volume.array, volume.array.dtype.newbyteorder("<"))
    return b"".join(
        (nifti_header(volume.grid, volume.array.dtype), voxels.data)
    )  # one copy; `tobytes` and `+` would be two


def write_nifti(path: Path, volume: Volume) -> None:
    """A `.nii.gz` with the same bytes for the same volume: no name, no time in the gzip header."""
    with (
        path.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=1, fileobj=file, mtime=0) as packed,
    ):
        packed.write(nifti_bytes(volume))
