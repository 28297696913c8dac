"""The few elements of an uncompressed little endian DICOM file that make a slice of a volume, found by walking over all others.

pydicom reads everything, and trusts the file while it does: undefined lengths, a million elements or a deflated data set take it minutes, and a
damaged sequence any memory. Here nothing is unpacked, nothing that was not asked for is decoded, and the walk has an end. It is also ten times as
fast; the tests compare both on pydicom's own files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from pathlib import Path

from reasonknee.errors import DataError, shown

Value = str | int | bytes | None
_TAGS: dict[str, tuple[int, Callable[[bytes], Value]]] = {}
_SYNTAX = 0x00020010
_PIXELS = (0x7FE00008, 0x7FE00009, 0x7FE00010)  # as floats, as doubles, as they are
_ITEM, _ITEM_END, _SEQUENCE_END = 0xFFFEE000, 0xFFFEE00D, 0xFFFEE0DD
_LONG = {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"}  # types whose length has four bytes
_UNDEFINED = 0xFFFFFFFF
_PLAIN = {"1.2.840.10008.1.2": True, "1.2.840.10008.1.2.1": False}  # little endian, and whether types are implicit: no codec, so no bomb
_HEAD = 1 << 16  # bytes that are read before anything is known: more than the header of most slices
MAX_FILE = 64 << 20
_MAX_ELEMENTS = 1 << 14  # a slice has some hundred
_MAX_DEPTH = 16  # of sequences in sequences


def _text(value: bytes) -> str:
    return value.decode("ascii", "replace").strip("\0 \t\r\n")


def _short(value: bytes) -> int | None:
    """None where there is not one number."""
    return int(struct.unpack("<H", value)[0]) if len(value) == 2 else None


def _register(kind: Callable[[bytes], Value], **tags: int) -> None:
    _TAGS.update({name: (tag, kind) for name, tag in tags.items()})


_register(_short, SamplesPerPixel=0x00280002, Rows=0x00280010, Columns=0x00280011, PixelRepresentation=0x00280103)
_register(_short, BitsAllocated=0x00280100, BitsStored=0x00280101, HighBit=0x00280102)
_register(_text, SeriesDescription=0x0008103E, SpacingBetweenSlices=0x00180088, SeriesInstanceUID=0x0020000E, ImagePositionPatient=0x00200032)
_register(_text, ImageOrientationPatient=0x00200037, Laterality=0x00200060, ImageLaterality=0x00200062, PhotometricInterpretation=0x00280004)
_register(_text, NumberOfFrames=0x00280008, PixelSpacing=0x00280030, RescaleIntercept=0x00281052, RescaleSlope=0x00281053)
_register(bytes, ModalityLUTSequence=0x00283000, PixelData=0x7FE00010)


def read_elements(path: Path, names: Iterable[str]) -> dict[str, Value]:
    """The elements of these names that the file has. Whatever stands after the pixels is not looked at."""
    wanted = {_TAGS[name][0]: name for name in names}
    with path.open("rb") as file:
        data = file.read(_HEAD)
        if data[128:132] != b"DICM":
            raise DataError("Y002", "not a DICOM file", "only the slices of one series belong in the folder")
        try:
            if "PixelData" in names:
                raise _Short
            found = _walk_file(data, wanted)
        except _Short:
            data += file.read(MAX_FILE + 1 - len(data))
            if len(data) > MAX_FILE:
                raise DataError("Y008", f"larger than {MAX_FILE >> 20} MB", "one slice a file is wanted") from None
            try:
                found = _walk_file(data, wanted)
            except _Short:
                raise DataError("Y002", "it ends in the middle of an element", "copy or download the series again") from None
    return {name: _TAGS[name][1](found[tag]) for tag, name in wanted.items() if tag in found}


class _Short(Exception):  # noqa: N818 - no error yet: the rest of the file may have it
    """The walk went beyond the bytes that there are."""


def _walk_file(data: bytes, wanted: dict[int, str]) -> dict[int, bytes]:
    walk = _Walk(data)
    about = walk.elements(132, False, {_SYNTAX}, lambda tag: tag >> 16 != 2)
    syntax = _text(about.get(_SYNTAX, b""))
    if syntax not in _PLAIN:
        told = f"transfer syntax {shown(syntax, 64)!r}"
        raise DataError("Y003", told, "convert it to uncompressed little endian DICOM or NIfTI")
    stop = (lambda tag: False) if _TAGS["PixelData"][0] in wanted else (lambda tag: tag in _PIXELS)
    return walk.elements(walk.position, _PLAIN[syntax], set(wanted), stop)


class _Walk:
    """Over the elements of a file, which are counted."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position, self.seen = data, 0, 0

    def elements(self, start: int, implicit: bool, wanted: set[int], stop: Callable[[int], bool]) -> dict[int, bytes]:
        """The values of the elements that are wanted; ends before the element at which to stop, after the pixels, or at the end of the file."""
        data, found = self.data, {}
        self.position = start
        while self.position < len(data):
            at = self.position
            tag, kind, length = self._next(implicit)
            if stop(tag):
                self.position = at
                break
            if length == _UNDEFINED:
                if tag in wanted:
                    found[tag] = b""
                self._skip_sequence(implicit or kind == b"UN", 0)
                continue
            end = self.position + length
            if tag in wanted:
                if end > len(data):
                    raise _Short
                if tag in found:
                    raise DataError("Y002", f"the element {tag:08X} stands twice", "which one holds? export the series again")
                found[tag] = data[self.position : end]
            self.position = end
            if tag in _PIXELS:
                break
        if self.position > len(data):
            raise _Short
        return found

    def _next(self, implicit: bool) -> tuple[int, bytes, int]:
        """Tag, type and length of the next element, the position after them."""
        self.seen += 1
        if self.seen > _MAX_ELEMENTS:
            raise DataError("Y008", f"more than {_MAX_ELEMENTS} elements", "a slice has some hundred; export the series again")
        at, data = self.position, self.data
        if at + 8 > len(data):
            raise _Short
        group, element = struct.unpack_from("<HH", data, at)
        kind = data[at + 4 : at + 6]
        if implicit or group == 0xFFFE or not kind.isalpha() or not kind.isupper():  # some writers change to implicit within a sequence
            self.position = at + 8
            return group << 16 | element, b"", struct.unpack_from("<I", data, at + 4)[0]
        if kind not in _LONG:
            self.position = at + 8
            return group << 16 | element, kind, struct.unpack_from("<H", data, at + 6)[0]
        if at + 12 > len(data):
            raise _Short
        self.position = at + 12
        return group << 16 | element, kind, struct.unpack_from("<I", data, at + 8)[0]

    def _skip_sequence(self, implicit: bool, depth: int) -> None:
        """Beyond the end of a sequence of undefined length: it has to be looked for."""
        if depth > _MAX_DEPTH:
            raise DataError("Y002", f"more than {_MAX_DEPTH} sequences in each other", "export the series again")
        while True:
            tag, _, length = self._next(implicit)
            if tag == _SEQUENCE_END:
                return
            if tag != _ITEM:
                raise DataError("Y002", f"{tag:08X} where an item of a sequence is wanted", "copy or download the series again")
            if length != _UNDEFINED:
                self.position += length
                continue
            while True:
                tag, kind, length = self._next(implicit)
                if tag == _ITEM_END:
                    break
                if length == _UNDEFINED:
                    self._skip_sequence(implicit or kind == b"UN", depth + 1)
                else:
                    self.position += length
