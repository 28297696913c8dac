"""A column of byte strings straight from the pages of its Parquet chunk: checked, decompressed once, and
viewed where it lies.

pyarrow decompresses a page into new memory and then copies its values out, which for voxels is a third of the
time of reading them. Here a page is decompressed into memory that is used again (`memory`), and a value is a
view of it. Understood is what releases hold: version 1 pages with a checksum, zstd or no compression, plain
or dictionary encoding, in nullable structs but not in lists. `Unusual` is raised for anything else that may
be right, for which there is pyarrow, and ValueError for what cannot be.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reasonknee.layout.parquet import Unusual as Unusual
from reasonknee.layout.parquet import thrift_struct, varint
from reasonknee.system.memory import Recycled

if TYPE_CHECKING:
    import pyarrow as pa

_MOST = 1 << 30  # bytes of one page, 20 times a full-size volume
_MOST_ROWS = 1 << 20
_HEADER = 1 << 12  # bytes of a page header: a few dozen, as no statistics of byte strings are written
_DATA, _DICTIONARY = 0, 2  # types of pages
_PLAIN, _RLE, _BY_DICTIONARY = 0, 3, (2, 8)  # encodings


class Bytes(NamedTuple):
    """The values of a column, each once, and for each row which one it has, or None."""

    values: list[Any]
    keys: list[int | None]


def from_arrow(array: pa.StructArray) -> Bytes:
    """The same of the field `bytes` of a struct that pyarrow has read: views of Arrow's memory."""
    stored = array.field("bytes")
    there = [
        a and b for a, b in zip(array.is_valid().to_pylist(), stored.is_valid().to_pylist(), strict=True)
    ]
    if hasattr(stored, "dictionary"):
        return Bytes(
            _views(stored.dictionary),
            [i if valid else None for i, valid in zip(stored.indices.to_pylist(), there, strict=True)],
        )
    return Bytes(_views(stored), [i if valid else None for i, valid in enumerate(there)])


def _views(array: pa.Array) -> list[pa.Buffer]:
    """The bytes of each value of a binary array, not copied, as its scalars would be."""
    _, offsets, data = array.buffers()
    wide = np.int64 if str(array.type).startswith("large") else np.int32
    bounds = (
        np.frombuffer(offsets, wide)[array.offset : array.offset + len(array) + 1].tolist()
        if len(array)
        else [0]
    )
    return [data.slice(start, stop - start) if data is not None else b"" for start, stop in pairwise(bounds)]


class _Page(NamedTuple):
    kind: int
    about: dict[int, Any]  # the fields of its own header, by number
    data: np.ndarray  # decompressed


def read_chunk(
    chunk: memoryview, codec: str, depth: int, rows: int, memory: Recycled, most: int = _MOST
) -> Bytes:
    """The byte strings of a column chunk of so many rows, together at most `most` bytes; `depth` is the
    number of nullable levels that it lies in."""
    if rows > _MOST_ROWS:
        raise Unusual(f"{rows} rows")
    values: list[Any] = []
    keys: list[int | None] = []
    shared = 0  # values of the dictionary
    for page in _pages(chunk, codec, memory, most):
        if page.kind == _DICTIONARY:
            if values or keys or page.about.get(2) not in (_PLAIN, *_BY_DICTIONARY):
                raise Unusual("a dictionary in a strange place or encoding")
            values = list(_strings(page.data, page.about[1]))
            shared = len(values)
            continue
        count, encoding = page.about[1], page.about[2]
        if count > rows - len(keys):
            raise ValueError("more rows than the footer says")
        there, rest = _levels(page.data, count, depth, page.about[3])
        if max(there, default=0) > depth:
            raise ValueError("a row set deeper than its column")
        if encoding == _PLAIN:
            first = len(values)
            values += _strings(rest, there.count(depth))
            found = list(range(first, len(values)))
        elif encoding in _BY_DICTIONARY:
            found = _runs(rest[1:], int(rest[0]), there.count(depth)) if len(rest) else []
            if len(found) != there.count(depth) or any(i >= shared for i in found):
                raise ValueError("a value that the dictionary does not have")
        else:
            raise Unusual(f"encoding {encoding}")
        taken = iter(found)
        keys += [next(taken) if level == depth else None for level in there]
    if len(keys) != rows:
        raise ValueError(f"{len(keys)} rows where the footer says {rows}")
    return Bytes(values, keys)


def _pages(chunk: memoryview, codec: str, memory: Recycled, most: int) -> Iterator[_Page]:
    at = unpacked = 0
    while at < len(chunk):
        try:
            header, length = thrift_struct(bytes(chunk[at : at + _HEADER]))
        except ValueError:
            if len(chunk) - at > _HEADER:
                raise Unusual("a long page header") from None
            raise
        kind, size, packed = header.get(1), header.get(2), header.get(3)
        about = header.get(5 if kind == _DATA else 7)
        if kind not in (_DATA, _DICTIONARY) or 4 not in header or not isinstance(about, dict):
            raise Unusual(f"a page of type {kind}, or without a checksum")
        if (
            not isinstance(size, int)
            or not isinstance(packed, int)
            or not 0 <= size <= _MOST
            or not 0 <= packed <= len(chunk) - at - length
        ):
            raise ValueError(f"a page of {packed} and {size} bytes")
        if (
            not all(isinstance(about.get(i), int) for i in ((1, 2, 3) if kind == _DATA else (1, 2)))
            or not 0 <= about[1] <= _MOST
        ):
            raise ValueError("a page header without its numbers")
        unpacked += size
        if unpacked > most:
            raise ValueError(f"it unpacks to more than {most} bytes")
        at += length
        body = chunk[at : at + packed]
        if zlib.crc32(body) != header[4] & 0xFFFFFFFF:
            raise ValueError("a page whose checksum is wrong")
        at += packed
        yield _Page(kind, about, _unpacked(body, size, codec, memory))


def _unpacked(body: memoryview, size: int, codec: str, memory: Recycled) -> np.ndarray:
    if codec == "UNCOMPRESSED":
        if len(body) != size:
            raise ValueError(f"{len(body)} bytes where {size} are said")
        return np.frombuffer(body, np.uint8)
    if codec != "ZSTD":
        raise Unusual(codec)
    import pyarrow as pa

    out = memory.take(size)
    at = 0
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(body)), "zstd") as stream:
        while at < size and (got := stream.readinto(out[at:])):
            at += got
        if at < size or stream.read(1):
            raise ValueError(f"a page that is not {size} bytes once it is decompressed")
    out.flags.writeable = False  # questions share it
    return out


def _strings(data: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Views of `count` values, each after its length."""
    at, end = 0, len(data)
    whole = data.data
    for _ in range(count):
        if at + 4 > end:
            raise ValueError("a page that ends too early")
        (length,) = struct.unpack_from("<I", whole, at)
        at += 4
        if at + length > end:
            raise ValueError("a value longer than its page")
        yield data[at : at + length]
        at += length


def _levels(data: np.ndarray, count: int, depth: int, encoding: int) -> tuple[list[int], np.ndarray]:
    """How deep each row is set, and what comes after."""
    if not depth:
        return [0] * count, data
    if encoding != _RLE:
        raise Unusual(f"levels in encoding {encoding}")
    if len(data) < 4:
        raise ValueError("a page that ends too early")
    (length,) = struct.unpack_from("<I", data.data)
    if 4 + length > len(data):
        raise ValueError("levels longer than their page")
    return _runs(data[4 : 4 + length], depth.bit_length(), count), data[4 + length :]


def _runs(data: np.ndarray, width: int, count: int) -> list[int]:
    """Parquet's mixture of runs and packed bits: `count` numbers of `width` bits."""
    if width == 0:
        return [0] * count
    if width > 32:
        raise ValueError(f"numbers of {width} bits")
    raw, at, found = data.tobytes(), 0, list[int]()
    while len(found) < count:
        head, at = varint(raw, at)
        if head & 1:  # groups of eight, packed from the lowest bit
            size = (head >> 1) * width
            bits = np.unpackbits(np.frombuffer(raw[at : at + size], np.uint8), bitorder="little")
            numbers = bits[: len(bits) // width * width].reshape(-1, width) @ (
                1 << np.arange(width, dtype=np.int64)
            )
            found += numbers[: count - len(found)].tolist()
        else:
            size = (width + 7) // 8
            found += [int.from_bytes(raw[at : at + size], "little")] * min(head >> 1, count - len(found))
        at += size
        if at > len(raw) or not head >> 1:
            raise ValueError("numbers that end too early")
    return found
