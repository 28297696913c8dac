"""A volume from the DICOM files of one series folder, as OAI ships its scans.

Slices are ordered by where they lie, never by file name or number: towards the patient's left (sagittal), back or head. Only the tags listed here
are read, so that nothing else a file says about a person can go any further. Whatever is doubtful is refused:

    Y000 cannot be read        Y002 not a DICOM file, or damaged      Y003 pixels that are compressed, scaled or of another kind
    Y004 no usable position    Y005 more than one series              Y006 two slices in one place
    Y007 slices missing        Y008 no volume, or too large           Y009 left and right contradict each other

Slices that are missing at an end cannot be seen in the files: the grid of the mask or of the annotation shows it.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.dicom_elements import Value, read_elements
from reasonknee.errors import DataError, StorageError
from reasonknee.volumes import MAX_AXIS, MAX_BYTES, Grid, Volume, canonical, place

_MAX_FILES = 512
_MAX_ENTRIES = 4096  # of a folder, hidden files and folders among them
_SAME = ("SeriesInstanceUID", "Rows", "Columns", "ImageOrientationPatient", "PixelSpacing", "BitsAllocated", "PixelRepresentation")
_SPACING = "SpacingBetweenSlices"
_PIXELS = ("SamplesPerPixel", "PhotometricInterpretation", "NumberOfFrames", "RescaleSlope", "RescaleIntercept", "ModalityLUTSequence")
_BITS = ("BitsStored", "HighBit")
_LATERALITY = ("Laterality", "ImageLaterality", "SeriesDescription")
_SIDE = re.compile(r"(?<![a-z])(left|right)(?![a-z])", re.IGNORECASE)
_DTYPES = {(8, 0): "u1", (16, 0): "<u2", (16, 1): "<i2"}
_TOLERANCE_MM = 0.02  # between where a slice is and where an even step would put it


@dataclass(frozen=True)
class _Series:
    """What the headers say, checked: the files in order, and how their pixels become a volume."""

    files: list[Path]
    dims: tuple[int, int, int]  # columns, rows, slices
    dtype: np.dtype[Any]
    permutation: tuple[int, int, int]
    grid: Grid


def is_series(folder: str | os.PathLike[str]) -> bool:
    """Whether the first file of a folder starts as a DICOM file does."""
    try:
        first = min(_shown_files(folder), default="")
        return bool(first) and _is_dicom(first)
    except OSError:
        return False


def _shown_files(folder: str | os.PathLike[str]) -> list[str]:
    with os.scandir(folder) as entries:
        return [e.path for e in itertools.islice(entries, _MAX_ENTRIES) if not e.name.startswith(".") and e.is_file()]


def _is_dicom(path: str | os.PathLike[str]) -> bool:
    with open(path, "rb") as file:
        return file.read(132)[128:] == b"DICM"


def read_grid(folder: str | os.PathLike[str]) -> Grid:
    """Shape and affine of a series; reads headers only."""
    return _series(Path(folder)).grid


def read_volume(folder: str | os.PathLike[str]) -> Volume:
    series = _series(Path(folder))
    columns, rows, slices = series.dims
    stack = np.empty((slices, rows, columns), series.dtype)
    for n, path in enumerate(series.files):
        stack[n] = _plane(_header(path, ("PixelData", "BitsStored")), path, (rows, columns), series.dtype)
    return Volume(canonical(stack, series.permutation), series.grid)


def check_volume(folder: str | os.PathLike[str]) -> tuple[Grid, np.dtype[Any]]:
    """All that `read_volume` checks, a slice at a time."""
    series = _series(Path(folder), with_pixels=True)
    return series.grid, series.dtype


def _plane(header: dict[str, Value], path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> np.ndarray:
    pixels = header.get("PixelData")
    size = math.prod(shape) * dtype.itemsize
    if not isinstance(pixels, bytes) or len(pixels) not in (size, size + size % 2):  # an odd number of bytes is padded
        raise DataError("Y002", f"{_name(path)}: its pixels do not fill {shape[0]} x {shape[1]}", "copy or download the series again")
    plane = np.frombuffer(pixels, dtype, math.prod(shape)).reshape(shape)
    stored = int(_number(header, "BitsStored", dtype.itemsize * 8))
    least, most = (-(1 << stored - 1), (1 << stored - 1) - 1) if dtype.kind == "i" else (0, (1 << stored) - 1)
    if plane.min() < least or plane.max() > most:
        raise DataError(
            "Y003", f"{_name(path)}: pixels that do not fit into its {stored} bits", "what stands in the other bits? convert the series to NIfTI"
        )
    return plane


def side(folder: str | os.PathLike[str]) -> str | None:
    """Left or right as the series itself says, or None where it does not."""
    path = _files(Path(folder))[0]
    header = _header(path, _LATERALITY)
    letters = {"L": "left", "R": "right"}
    said = {letters[v] for tag in _LATERALITY[:2] if (v := str(header.get(tag) or "").strip().upper()) in letters}
    said |= {word.lower() for word in _SIDE.findall(str(header.get(_LATERALITY[2]) or "")[:64])}
    if len(said) > 1:
        raise DataError("Y009", f"{_name(path)}: the series says both left and right", "list its side in a split file")
    return next(iter(said), None)


# --- headers ----------------------------------------------------------------------------------------------------------------------


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _files(folder: Path) -> list[Path]:
    try:
        files = [Path(name) for name in sorted(_shown_files(folder))]
        dicom = any(map(_is_dicom, files[: _MAX_FILES + 1]))
    except OSError as error:
        raise StorageError("Y000", f"{folder.name}: cannot be read: {error.strerror}", "check the path and its permissions") from None
    if not dicom:
        raise DataError("Y008", f"{folder.name}: there is no DICOM file in this folder", "name the folder of one series, or a NIfTI file")
    if not 2 <= len(files) <= _MAX_FILES:
        told = f"{len(files)} files" if len(files) <= _MAX_FILES else f"more than {_MAX_FILES} files"
        raise DataError("Y008", f"{folder.name}: {told}", f"a series of 2 to {_MAX_FILES} slices, one file each, is wanted")
    return files


def _header(path: Path, names: tuple[str, ...]) -> dict[str, Value]:
    try:
        return read_elements(path, names)
    except DataError as error:
        raise DataError(error.code, f"{_name(path)}: {error.message}", error.hint) from None
    except OSError as error:
        raise StorageError("Y000", f"{_name(path)}: cannot be read: {error.strerror}", "check the path and its permissions") from None


def _series(folder: Path, with_pixels: bool = False) -> _Series:
    """What the headers say. With pixels, each file's are looked at in passing and let go."""
    files = _files(folder)
    wanted = (*_SAME, *_PIXELS, *_BITS, _SPACING, "ImagePositionPatient", *(["PixelData"] if with_pixels else []))
    headers: list[dict[str, Value]] = []
    for path in files:
        header = _header(path, wanted)
        columns, rows, dtype = _checked_pixels(header, path, len(files))
        other = next((tag for tag in _SAME if headers and _comparable(header, tag) != _comparable(headers[0], tag)), None)
        if other:
            raise DataError("Y005", f"{_name(path)}: {other} differs from {files[0].name}", "one series a folder is wanted")
        if with_pixels:
            _plane(header, path, (rows, columns), dtype)
            del header["PixelData"]
        headers.append(header)
    across, down, normal = _directions(headers[0], files[0])
    positions = np.array([_numbers(h, "ImagePositionPatient", 3, p) for h, p in zip(headers, files, strict=True)])
    order = np.argsort(positions @ normal, kind="stable")
    positions, files = positions[order], [files[i] for i in order]
    step = _step(positions, normal, headers[0].get(_SPACING), files)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1], affine[:3, 2], affine[:3, 3] = across, down, step, positions[0]
    affine[:2] *= -1  # DICOM counts towards left and back, NIfTI towards right and front
    dims = (columns, rows, len(files))
    try:
        permutation, grid = place(dims, affine)
    except DataError as error:
        raise DataError(error.code, f"{folder.name}: {error.message}", error.hint) from None
    return _Series(files, dims, dtype, permutation, grid)


def _float(text: str) -> float:
    """As DICOM writes numbers; Python would take 1_0 for ten."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _number(header: dict[str, Value], name: str, default: float) -> float:
    """One number, or the default where the element is missing or empty."""
    value = header.get(name)
    return default if value is None or value == "" else _float(str(value))


def _comparable(header: dict[str, Value], tag: str) -> object:
    """Numbers as numbers: 0.5 may be 0.50 in the next slice."""
    value = header.get(tag)
    try:
        return [_float(part) for part in value.split("\\")] if isinstance(value, str) else value
    except ValueError:
        return value


def _checked_pixels(header: dict[str, Value], path: Path, slices: int) -> tuple[int, int, np.dtype[Any]]:
    try:
        columns, rows, bits, signed = (int(header[name] or 0) for name in ("Columns", "Rows", "BitsAllocated", "PixelRepresentation"))
        single = all(_number(header, name, 1) == 1 for name in ("SamplesPerPixel", "NumberOfFrames"))
        grey = header.get("PhotometricInterpretation") == "MONOCHROME2"
        plain = _number(header, "RescaleSlope", 1) == 1 and _number(header, "RescaleIntercept", 0) == 0 and "ModalityLUTSequence" not in header
        stored = int(_number(header, "BitsStored", bits))
        low = 1 <= stored <= bits and _number(header, "HighBit", stored - 1) == stored - 1
    except (KeyError, ValueError, OverflowError):
        raise DataError("Y003", f"{_name(path)}: its pixels are not described", "is it an image?") from None
    kind = (bits, signed)
    if not (single and grey and plain and low and kind in _DTYPES):
        raise DataError("Y003", f"{_name(path)}: not one unscaled grey frame of 8 or 16 bits", "convert the series to NIfTI")
    dtype = np.dtype(_DTYPES[kind])
    if not (1 <= columns <= MAX_AXIS and 1 <= rows <= MAX_AXIS and math.prod((columns, rows, slices)) * dtype.itemsize <= MAX_BYTES):
        raise DataError("Y008", f"{_name(path)}: {slices} slices of {rows} x {columns}", f"at most {MAX_BYTES} bytes of voxels are accepted")
    return columns, rows, dtype


def _numbers(header: dict[str, Value], tag: str, count: int, path: Path) -> np.ndarray:
    try:
        numbers = np.array([_float(part) for part in str(header.get(tag, "")).split("\\")])
    except ValueError:
        numbers = np.array([])
    if len(numbers) != count or not np.isfinite(numbers).all() or np.abs(numbers).max() > 1e5:
        raise DataError("Y004", f"{_name(path)}: {tag} is missing or not {count} numbers", "the slices cannot be placed without it")
    return numbers


def _directions(header: dict[str, Value], path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What one column and one row further mean in millimetres, and the direction in which slices are counted."""
    cosines = _numbers(header, "ImageOrientationPatient", 6, path).reshape(2, 3)
    if np.abs(cosines @ cosines.T - np.eye(2)).max() > 1e-3:
        raise DataError("Y004", f"{_name(path)}: its rows and columns are not at right angles", "the slices cannot be placed")
    between_rows, between_columns = _numbers(header, "PixelSpacing", 2, path)
    if between_rows < 0 or between_columns < 0:
        raise DataError("Y004", f"{_name(path)}: a negative PixelSpacing", "which way do rows and columns run? export the series again")
    normal = np.cross(*cosines)
    normal *= np.sign(normal[np.abs(normal).argmax()])
    return cosines[0] * between_columns, cosines[1] * between_rows, normal


def _step(positions: np.ndarray, normal: np.ndarray, said: Any, files: list[Path]) -> np.ndarray:
    """From one slice to the next, the same all the way."""
    gaps = np.diff(positions @ normal)
    usual = float(np.median(gaps))
    for n, gap in enumerate(gaps):
        pair = f"{_name(files[n])} and {files[n + 1].name}"
        if gap < 1e-3:
            raise DataError("Y006", f"{pair} lie in one place", "keep one of them")
        if abs(gap - usual) > max(_TOLERANCE_MM, 0.02 * usual):
            raise DataError("Y007", f"{gap:.3f} mm between {pair}, {usual:.3f} mm elsewhere", "slices are missing; download the series again")
    try:
        told = abs(_float(said)) if said else usual
        if not math.isfinite(told):
            raise ValueError
    except ValueError:
        raise DataError("Y004", f"{_name(files[0])}: SpacingBetweenSlices is {str(said)[:40]!r}", "one number is wanted") from None
    if abs(told - usual) > max(_TOLERANCE_MM, 0.02 * usual):
        raise DataError("Y007", f"{_name(files[0])}: slices are {usual:.3f} mm apart, the header says {told:.3f}", "download the series again")
    step: np.ndarray = (positions[-1] - positions[0]) / (len(positions) - 1)
    off = np.abs(positions - (positions[0] + np.arange(len(positions))[:, None] * step)).max()
    if off > max(_TOLERANCE_MM, 0.02 * usual):
        raise DataError("Y007", f"{_name(files[0])}: a slice lies {off:.3f} mm off the line of the others", "is it one acquisition?")
    return step
