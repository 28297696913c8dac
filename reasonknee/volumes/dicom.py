"""A volume from the DICOM files of one series, in a folder or an archive, as OAI ships its scans, read by
pydicom.

Slices are ordered by where they lie, never by file name or number: towards the patient's left (sagittal),
back or head. Only the elements listed here are read, so that nothing else a file says about a person can go
any further. Whatever is doubtful is refused:

    Y000 cannot be read          Y002 not a DICOM file, or damaged     Y003 pixels compressed or scaled
    Y004 no usable position      Y005 more than one series             Y006 two slices in one place
    Y007 slices missing          Y008 no volume, or too large          Y009 left and right contradict
    Y010 pydicom is not installed

pydicom trusts a file: it inflates what is deflated and follows what is nested. So it reads in a process with
limits (`reasonknee.system.limits`): what was made by hand to be slow or large ends that process alone.
Slices that are missing at an end cannot be seen in the files: the grid of the mask or of the annotation shows
it.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reasonknee.errors import DataError, ReasonKneeError, StorageError, UsageError, shown
from reasonknee.system.limits import MEMORY, PATIENT, Answer, limited_bytes
from reasonknee.volumes.grid import MAX_AXIS, MAX_BYTES, Grid, Volume, canonical, place
from reasonknee.volumes.series_files import MAX_FILE, MAX_FILES, Slice, is_archive, slices

Value = str | int | bytes | None
_PLAIN = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")  # little endian, nothing compressed
_SAME = (
    "SeriesInstanceUID",
    "Rows",
    "Columns",
    "ImageOrientationPatient",
    "PixelSpacing",
    "BitsAllocated",
    "PixelRepresentation",
)
_SPACING = "SpacingBetweenSlices"
_PIXELS = (
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "NumberOfFrames",
    "RescaleSlope",
    "RescaleIntercept",
    "ModalityLUTSequence",
)
_BITS = ("BitsStored", "HighBit")
_LATERALITY = ("Laterality", "ImageLaterality", "SeriesDescription")
_SIDE = re.compile(r"(?<![a-z])(left|right)(?![a-z])", re.IGNORECASE)
_META = 1 << 14  # bytes that the group before the image is looked for in
_DTYPES = {(8, 0): "u1", (16, 0): "<u2", (16, 1): "<i2"}
_TOLERANCE_MM = 0.02  # between where a slice is and where an even step would put it


@dataclass(frozen=True)
class _Series:
    """What the files say, checked, and how their pixels become a volume."""

    planes: list[np.ndarray]  # in the order of slices, if they were asked for
    dtype: np.dtype[Any]
    permutation: tuple[int, int, int]
    grid: Grid


def is_series(folder: str | os.PathLike[str]) -> bool:
    """Whether a file of a folder starts as a DICOM file does; an archive is told by its name."""
    if is_archive(folder):
        return True
    try:
        return any(file.is_dicom() for file in slices(folder)[:MAX_FILES])
    except (OSError, ReasonKneeError):
        return False


def said(folder: str | os.PathLike[str]) -> tuple[str, tuple[str, ...]]:
    """What the first file of a series calls it, such as SAG_3D_DESS_LEFT, empty where it does not; and the
    sides that it names."""
    text, _ = _within_limits(folder, lambda: (json.dumps(_said(folder)), b""))
    name, sides = json.loads(text)
    return name, tuple(sides)


def _said(folder: str | os.PathLike[str]) -> tuple[str, list[str]]:
    first = next((file for file in slices(folder, 1) if file.is_dicom()), None)
    if first is None:
        return "", []
    header = _header(first, _LATERALITY)
    name = str(header.get(_LATERALITY[2]) or "")[:64]
    letters = {"L": "left", "R": "right"}
    sides = {
        letters[v] for tag in _LATERALITY[:2] if (v := str(header.get(tag) or "").strip().upper()) in letters
    }
    return name, sorted(sides | {word.lower() for word in _SIDE.findall(name)})


def side(folder: str | os.PathLike[str]) -> str | None:
    """Left or right as the series itself says, or None where it does not."""
    return one_side(said(folder)[1], folder)


def one_side(sides: Sequence[str], folder: str | os.PathLike[str]) -> str | None:
    if len(sides) > 1:
        raise DataError("Y009", "the series says both left and right", "list its side in a split file").at(
            os.path.basename(os.fspath(folder))
        )
    return next(iter(sides), None)


def read_grid(folder: str | os.PathLike[str]) -> Grid:
    """Shape and affine of a series; reads headers only."""
    return _grid_of(_within_limits(folder, lambda: (_as_text(_series(folder)), b""))[0])[0]


def read_volume(folder: str | os.PathLike[str]) -> Volume:
    def work() -> tuple[str, Any]:
        series = _series(folder, pixels="kept")
        array = np.ascontiguousarray(canonical(np.stack(series.planes), series.permutation))
        return _as_text(series), array.data.cast("B")

    text, data = _within_limits(folder, work)
    grid, dtype = _grid_of(text)
    return Volume(np.frombuffer(data, dtype).reshape(grid.shape), grid)


def check_volume(folder: str | os.PathLike[str]) -> tuple[Grid, np.dtype[Any]]:
    """All that `read_volume` checks, a slice at a time; for one who has set limits already."""
    series = _series(folder, pixels="checked")
    return series.grid, series.dtype


def _within_limits(folder: str | os.PathLike[str], work: Callable[[], Answer]) -> tuple[str, bytearray]:
    _needed_pydicom()  # here: what is imported before the child begins costs it nothing
    try:
        return limited_bytes(work, PATIENT, MEMORY + 2 * MAX_BYTES)
    except ReasonKneeError as error:
        raise error.at(Path(folder).name) from None


def _as_text(series: _Series) -> str:
    return json.dumps([series.grid.shape, series.grid.affine.tolist(), series.dtype.str])


def _grid_of(text: str) -> tuple[Grid, np.dtype[Any]]:
    shape, affine, dtype = json.loads(text)
    return Grid(tuple(shape), np.array(affine)), np.dtype(dtype)


def _needed_pydicom() -> Any:
    try:
        import pydicom
    except ImportError:
        raise UsageError("Y010", "DICOM is read by pydicom", "pip install 'reasonknee[construct]'") from None
    return pydicom


def _plane(header: dict[str, Value], path: Slice, shape: tuple[int, int], dtype: np.dtype[Any]) -> np.ndarray:
    pixels = header.get("PixelData")
    size = math.prod(shape) * dtype.itemsize
    if not isinstance(pixels, bytes) or len(pixels) not in (
        size,
        size + size % 2,
    ):  # an odd number of bytes is padded
        raise DataError(
            "Y002",
            f"its pixels do not fill {shape[0]} x {shape[1]}",
            "copy or download the series again",
        ).at(path.place)
    plane = np.frombuffer(pixels, dtype, math.prod(shape)).reshape(shape)
    stored = int(_number(header, "BitsStored", dtype.itemsize * 8))
    least, most = (-(1 << stored - 1), (1 << stored - 1) - 1) if dtype.kind == "i" else (0, (1 << stored) - 1)
    if plane.min() < least or plane.max() > most:
        raise DataError(
            "Y003",
            f"pixels that do not fit into its {stored} bits",
            "what stands in the other bits? convert the series to NIfTI",
        ).at(path.place)
    return plane


# --- headers ------------------------------------------------------------------------------------------------


def _files(folder: str | os.PathLike[str]) -> list[Slice]:
    files, name = slices(folder), os.path.basename(os.fspath(folder))
    try:
        dicom = any(file.is_dicom() for file in files[: MAX_FILES + 1])
    except OSError as error:
        raise StorageError(
            "Y000", f"cannot be read: {error.strerror}", "check the path and its permissions"
        ).at(name) from None
    if not dicom:
        raise DataError(
            "Y008",
            "there is no DICOM file in this folder",
            "name the folder of one series, or a NIfTI file",
        ).at(name)
    if not 2 <= len(files) <= MAX_FILES:
        told = f"{len(files)} files" if len(files) <= MAX_FILES else f"more than {MAX_FILES} files"
        raise DataError(
            "Y008",
            told,
            f"a series of 2 to {MAX_FILES} slices, one file each, is wanted",
        ).at(name)
    return files


def _header(path: Slice, names: tuple[str, ...]) -> dict[str, Value]:
    """The elements of these names that a file has, as texts, numbers and bytes."""
    try:
        if path.size() > MAX_FILE:
            raise DataError("Y008", f"larger than {MAX_FILE >> 20} MB", "one slice a file is wanted")
        return _elements(path, names)
    except ReasonKneeError as error:
        raise error.at(path.place) from None
    except OSError as error:
        raise StorageError(
            "Y000", f"cannot be read: {error.strerror}", "check the path and its permissions", path.place
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # pydicom's errors on a damaged file are of many types
        told = "not a DICOM file" if not path.is_dicom() else f"damaged: {shown(error, 100)}"
        hint = "only the slices of one series belong in the folder; copy or download it again"
        raise DataError("Y002", told, hint, path.place) from None


def _elements(path: Slice, names: tuple[str, ...]) -> dict[str, Value]:
    pydicom = _needed_pydicom()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it finds odd in elements that nobody asked for
        with path.open() as file:  # asked first: what is deflated is inflated when it is read
            start = file.read(_META)
            syntax = str(_syntax(pydicom, start))
            if syntax not in _PLAIN:
                told = f"transfer syntax {shown(syntax, 64)!r}"
                raise DataError("Y003", told, "convert it to uncompressed little endian DICOM or NIfTI")
            file.seek(0)
            pixels = "PixelData" in names
            elements = pydicom.dcmread(file, stop_before_pixels=not pixels, specific_tags=list(names))
        return {name: _value(elements, name) for name in names if name in elements}


def _syntax(pydicom: Any, start: bytes) -> str:
    """How a file is written, as its first group says."""
    file = io.BytesIO(start)
    pydicom.filereader.read_preamble(file, force=False)
    group = pydicom.filereader.read_dataset(
        file, is_implicit_VR=False, is_little_endian=True, stop_when=lambda tag, vr, length: tag.group != 2
    )
    return str(group.get("TransferSyntaxUID", ""))


def _value(elements: Any, name: str) -> Value:
    """As the file has it: of several values a text, so that numbers are read in one way."""
    if name == "ModalityLUTSequence":  # that it is there is enough
        return ""
    value = elements[name].value
    if value is None or isinstance(value, bytes | int):
        return value
    if isinstance(value, str) or not isinstance(value, Sequence):
        return str(value).strip("\0 \t\r\n")
    return "\\".join(str(part).strip() for part in value)


def _series(
    folder: str | os.PathLike[str], pixels: Literal["unread", "checked", "kept"] = "unread"
) -> _Series:
    """What the files say. Pixels that are checked are let go, a slice at a time."""
    files = _files(folder)
    wanted = (*_SAME, *_PIXELS, *_BITS, _SPACING, "ImagePositionPatient")
    headers: list[dict[str, Value]] = []
    planes: list[np.ndarray] = []
    for path in files:
        header = _header(path, wanted if pixels == "unread" else (*wanted, "PixelData"))
        columns, rows, dtype = _checked_pixels(header, path, len(files))
        other = next(
            (tag for tag in _SAME if headers and _comparable(header, tag) != _comparable(headers[0], tag)),
            None,
        )
        if other:
            raise DataError(
                "Y005", f"{other} differs from {files[0].name}", "one series a folder is wanted"
            ).at(path.place)
        if pixels != "unread":
            plane = _plane(header, path, (rows, columns), dtype)
            planes += [plane] if pixels == "kept" else []
            header.pop("PixelData", None)
        headers.append(header)
    across, down, normal = _directions(headers[0], files[0])
    positions = np.array(
        [_numbers(h, "ImagePositionPatient", 3, p) for h, p in zip(headers, files, strict=True)]
    )
    order = np.argsort(positions @ normal, kind="stable")
    positions, files = positions[order], [files[i] for i in order]
    step = _step(positions, normal, headers[0].get(_SPACING), files)
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1], affine[:3, 2], affine[:3, 3] = across, down, step, positions[0]
    affine[:2] *= -1  # DICOM counts towards left and back, NIfTI towards right and front
    try:
        permutation, grid = place((columns, rows, len(files)), affine)
    except DataError as error:
        raise error.at(os.path.basename(os.fspath(folder))) from None
    return _Series([planes[i] for i in order] if planes else [], dtype, permutation, grid)


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


def _checked_pixels(header: dict[str, Value], path: Slice, slices: int) -> tuple[int, int, np.dtype[Any]]:
    try:
        columns, rows, bits, signed = (
            int(header[name] or 0) for name in ("Columns", "Rows", "BitsAllocated", "PixelRepresentation")
        )
        single = all(_number(header, name, 1) == 1 for name in ("SamplesPerPixel", "NumberOfFrames"))
        grey = header.get("PhotometricInterpretation") == "MONOCHROME2"
        plain = (
            _number(header, "RescaleSlope", 1) == 1
            and _number(header, "RescaleIntercept", 0) == 0
            and "ModalityLUTSequence" not in header
        )
        stored = int(_number(header, "BitsStored", bits))
        low = 1 <= stored <= bits and _number(header, "HighBit", stored - 1) == stored - 1
    except (KeyError, ValueError, OverflowError):
        raise DataError("Y003", "its pixels are not described", "is it an image?").at(path.place) from None
    kind = (bits, signed)
    if not (single and grey and plain and low and kind in _DTYPES):
        raise DataError(
            "Y003",
            "not one unscaled grey frame of 8 or 16 bits",
            "convert the series to NIfTI",
        ).at(path.place)
    dtype = np.dtype(_DTYPES[kind])
    if not (
        1 <= columns <= MAX_AXIS
        and 1 <= rows <= MAX_AXIS
        and math.prod((columns, rows, slices)) * dtype.itemsize <= MAX_BYTES
    ):
        raise DataError(
            "Y008",
            f"{slices} slices of {rows} x {columns}",
            f"at most {MAX_BYTES} bytes of voxels are accepted",
        ).at(path.place)
    return columns, rows, dtype


def _numbers(header: dict[str, Value], tag: str, count: int, path: Slice) -> np.ndarray:
    try:
        numbers = np.array([_float(part) for part in str(header.get(tag, "")).split("\\")])
    except ValueError:
        numbers = np.array([])
    if len(numbers) != count or not np.isfinite(numbers).all() or np.abs(numbers).max() > 1e5:
        raise DataError(
            "Y004",
            f"{tag} is missing or not {count} numbers",
            "the slices cannot be placed without it",
        ).at(path.place)
    return numbers


def _directions(header: dict[str, Value], path: Slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What one column and one row further mean in millimetres, and the direction in which slices are
    counted."""
    cosines = _numbers(header, "ImageOrientationPatient", 6, path).reshape(2, 3)
    if np.abs(cosines @ cosines.T - np.eye(2)).max() > 1e-3:
        raise DataError(
            "Y004",
            "its rows and columns are not at right angles",
            "the slices cannot be placed",
        ).at(path.place)
    between_rows, between_columns = _numbers(header, "PixelSpacing", 2, path)
    if between_rows < 0 or between_columns < 0:
        raise DataError(
            "Y004",
            "a negative PixelSpacing",
            "which way do rows and columns run? export the series again",
        ).at(path.place)
    normal = np.cross(*cosines)
    normal *= np.sign(normal[np.abs(normal).argmax()])
    return cosines[0] * between_columns, cosines[1] * between_rows, normal


def _step(positions: np.ndarray, normal: np.ndarray, said: Any, files: list[Slice]) -> np.ndarray:
    """From one slice to the next, the same all the way."""
    gaps = np.diff(positions @ normal)
    usual = float(np.median(gaps))
    for n, gap in enumerate(gaps):
        pair = f"{files[n].place} and {files[n + 1].name}"
        if gap < 1e-3:
            raise DataError("Y006", f"{pair} lie in one place", "keep one of them")
        if abs(gap - usual) > max(_TOLERANCE_MM, 0.02 * usual):
            raise DataError(
                "Y007",
                f"{gap:.3f} mm between {pair}, {usual:.3f} mm elsewhere",
                "slices are missing; download the series again",
            )
    try:
        told = abs(_float(str(said))) if said else usual
        if not math.isfinite(told):
            raise ValueError
    except ValueError:
        raise DataError("Y004", f"SpacingBetweenSlices is {str(said)[:40]!r}", "one number is wanted").at(
            files[0].place
        ) from None
    if abs(told - usual) > max(_TOLERANCE_MM, 0.02 * usual):
        raise DataError(
            "Y007",
            f"slices are {usual:.3f} mm apart, the header says {told:.3f}",
            "download the series again",
        ).at(files[0].place)
    step: np.ndarray = (positions[-1] - positions[0]) / (len(positions) - 1)
    off = np.abs(positions - (positions[0] + np.arange(len(positions))[:, None] * step)).max()
    if off > max(_TOLERANCE_MM, 0.02 * usual):
        raise DataError(
            "Y007",
            f"a slice lies {off:.3f} mm off the line of the others",
            "is it one acquisition?",
        ).at(files[0].place)
    return step
