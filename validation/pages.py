"""A shard's pages, walked one by one from their own headers: what a row group unpacks to before any of it is
unpacked, and whether every byte belongs to a page.

A footer may claim what it likes. A decoder allocates what a page's header says and fills no more than that,
so the headers bound what a reader will have to hold.
"""

from __future__ import annotations

import mmap
from collections.abc import Container, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reasonknee.errors import shown
from reasonknee.layout.bounds import MAX_GROUP, OF_A_VALUE, most_unpacked, page_header
from reasonknee.layout.parquet import Unusual
from reasonknee.validation.findings import Findings

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_MAX_ROWS = 1 << 20  # rows of a row group
_MAGIC = 4  # bytes at either end of the file
_AFTER = 8  # and the length of the footer
_INDEX = 256  # bytes of a column chunk's page index
_DATA, _DICTIONARY = 0, 2  # types of pages
_PLAIN, _RLE, _BY_DICTIONARY = 0, 3, (2, 8)  # encodings: of others a few bytes may stand for any number
_CHECKSUM = 4


class Size(NamedTuple):
    """Of a row group: its bytes in the file, and at most in memory."""

    packed: int
    unpacked: int

    @property
    def most(self) -> int:
        return min(MAX_GROUP, most_unpacked(self.packed))

    def __add__(self, other: object) -> Size:
        assert isinstance(other, Size)
        return Size(self.packed + other.packed, self.unpacked + other.unpacked)


class _Chunk(NamedTuple):
    start: int
    stop: int
    values: int  # nulls included
    unpacked: int
    unchecked: bool  # a page has no checksum


def check_pages(
    root: Path, path: str, file: pq.ParquetFile, shared: Container[str], findings: Findings
) -> list[Size | None]:
    """The size of each row group, None where it must not be read; `shared` names the columns that are read as
    dictionaries. Pages lie side by side from the first byte to the index of pages."""
    sizes: list[Size | None] = []
    spans: list[tuple[int, int]] = [(0, _MAGIC)]
    with (root / path).open("rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for number in range(file.metadata.num_row_groups):
            place = f"{path} row group {number}"
            try:
                chunks = list(_chunks(data, file, number, shared))
            except (ValueError, Unusual, IndexError) as error:
                findings.add("X406", place, shown(error, 160))
                sizes.append(None)
                continue
            spans += [(c.start, c.stop) for c in chunks]
            unchecked = [n for n, chunk in enumerate(chunks) if chunk.unchecked]
            if unchecked:
                name = file.schema.column(unchecked[0]).path
                findings.add("X416", place, f"{len(unchecked)} columns, such as {shown(name)}")
            sizes.append(_bounded(place, chunks, findings))
        end = len(data) - _AFTER - file.metadata.serialized_size
    if None not in sizes:
        _side_by_side(path, sorted(spans), end, findings)
    return sizes


def _bounded(place: str, chunks: list[_Chunk], findings: Findings) -> Size | None:
    size = Size(sum(c.stop - c.start for c in chunks), sum(c.unpacked for c in chunks))
    if size.unpacked > size.most:
        findings.add(
            "X417", place, f"{size.packed} bytes become {size.unpacked}, {size.most} at most are read"
        )
        return None
    return size


def _side_by_side(path: str, spans: list[tuple[int, int]], end: int, findings: Findings) -> None:
    gaps = [(a[1], b[0]) for a, b in pairwise(spans) if a[1] != b[0]]
    if gaps:
        start, stop = gaps[0]
        what = (
            f"{stop - start} bytes from byte {start} on" if stop > start else f"pages overlap at byte {stop}"
        )
        findings.add("X414", path, f"{what} belong to no page")
    index = end - spans[-1][1]
    if index > _INDEX * len(spans):
        findings.add("X414", path, f"{index} bytes besides {len(spans) - 1} column chunks and the footer")


def _chunks(data: mmap.mmap, file: pq.ParquetFile, number: int, shared: Container[str]) -> Iterator[_Chunk]:
    group = file.metadata.row_group(number)
    if not 0 <= group.num_rows <= _MAX_ROWS:
        raise ValueError(f"it claims {group.num_rows} rows")
    for n in range(group.num_columns):
        column = group.column(n)
        if column.path_in_schema != (path := file.schema.column(n).path):
            raise ValueError(f"{shown(column.path_in_schema)} in the place of {path}")
        chunk = _chunk(data, column, column.path_in_schema in shared)
        flat = file.schema.column(n).max_repetition_level == 0
        if column.num_values != chunk.values or (flat and chunk.values != group.num_rows):
            told = (
                f"{chunk.values} values where {column.num_values if not flat else group.num_rows} are claimed"
            )
            raise ValueError(f"{shown(column.path_in_schema)}: {told}")
        yield chunk


def _chunk(data: mmap.mmap, column: Any, by_dictionary: bool) -> _Chunk:
    offsets = (column.dictionary_page_offset, column.data_page_offset)
    at = start = min(o for o in offsets if o is not None)
    stop = start + column.total_compressed_size
    if not _MAGIC <= start <= stop <= len(data):
        raise ValueError(f"{shown(column.path_in_schema)} lies outside the file")
    values = unpacked = dictionary = 0
    unchecked = False
    while at < stop:
        try:
            page, at = _page(data, at)
        except Unusual as error:
            raise Unusual(f"{shown(column.path_in_schema)}: {error}") from None
        if page.kind == _DICTIONARY:
            dictionary = page.unpacked
        else:
            values += page.values
        unpacked += page.unpacked
        unchecked |= not page.checked
    if at != stop:
        raise ValueError(f"{shown(column.path_in_schema)}: its pages do not end where it does")
    if column.physical_type == "BYTE_ARRAY" and not by_dictionary:
        unpacked += values * dictionary  # each may be as long as all of it
    return _Chunk(start, stop, values, unpacked + OF_A_VALUE * values, unchecked)


class _Page(NamedTuple):
    kind: int
    unpacked: int
    values: int
    checked: bool


def _page(data: mmap.mmap, at: int) -> tuple[_Page, int]:
    """The page at a byte, and where the next one starts."""
    header, length = page_header(data, at)
    kind, about = header.get(1), header.get(5 if header.get(1) == _DATA else 7)
    if kind not in (_DATA, _DICTIONARY) or not isinstance(about, dict):
        raise Unusual(f"a page of type {kind}")
    size, packed, count, encoding = header.get(2), header.get(3), about.get(1), about.get(2)
    if not (isinstance(size, int) and isinstance(packed, int) and isinstance(count, int)) or (
        min(size, packed, count) < 0
    ):
        raise Unusual("a page without its numbers")
    if encoding not in (_PLAIN, *_BY_DICTIONARY) or (kind == _DATA and about.get(3) != _RLE):
        raise Unusual(f"a page in encoding {encoding}")
    return _Page(int(kind), int(size or 0), int(count or 0), _CHECKSUM in header), at + length + int(
        packed or 0
    )
