"""Row groups of Parquet shards, whole or not at all: lengths and page checksums are checked, failures are
loud. Where the bytes come from, `folder` and `hub` know.

Nothing in a shard is believed. What it may unpack to is bounded before it is unpacked (`Bounds`): a file of a
few kilobytes can say that it holds gigabytes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from reasonknee.errors import DataError, StorageError
from reasonknee.layout import Shard
from reasonknee.layout.bounds import (
    MAX_FOOTER,
    MAX_GROUP,
    bytes_of,
    check_chunks,
    chunks_of,
    extent,
    footer_is_too_long,
    most_unpacked,
    page_sizes,
)
from reasonknee.layout.index import IndexedShard
from reasonknee.stream.pages import Bytes, Unusual, from_arrow, read_chunk
from reasonknee.system.memory import Recycled

if TYPE_CHECKING:
    import pyarrow as pa

MOST_TEXT = 64 << 20  # bytes of a file that is not a shard
_SLACK = 1 << 20  # bytes of levels and dictionaries, beside the values that are counted


class Group(NamedTuple):
    """A row group: the columns that were asked for, and the bytes in the struct column that was asked for
    as payload."""

    table: pa.Table
    stored: Bytes | None


class Bounds(NamedTuple):
    """How much a row group may unpack to: so many bytes a row in all columns but the payload, and for the
    payload what its rows, once read, say of themselves."""

    a_row: int
    payload: Callable[[pa.Table], int] = lambda table: 0


class Wanted(NamedTuple):
    """What is read of some row groups of a shard."""

    shard: int
    groups: Sequence[int]
    columns: Sequence[str]
    payload: str | None = None


class Shards(Protocol):
    stored: Sequence[Shard]  # what the manifest says of each
    remote: bool

    def text(self, name: str) -> bytes:
        """A small file beside the shards, whole."""

    def check(self, indexed: Mapping[str, IndexedShard]) -> None:
        """From now on a shard is what the index says, or refused."""

    def footer(self, number: int) -> Any:
        """The metadata of a shard."""

    def fields(self, number: int) -> pa.Schema:
        """The columns of a shard."""

    def read(self, wanted: Wanted, bounds: Bounds) -> list[Group]:
        """Some row groups of a shard."""


class ParsedFooters:
    """The footers used last, parsed, for all threads of a process: one of 16 volumes takes 3 MB, and 3 ms
    to parse."""

    def __init__(self, most: int) -> None:
        self._most, self._pid = most, os.getpid()
        self._kept, self._lock = OrderedDict[int, Any](), threading.Lock()
        self._reading: dict[int, threading.Lock] = {}  # of each shard: threads that want one wait for one

    def get(self, number: int, read: Callable[[], Any]) -> Any:
        if self._pid != os.getpid():  # forked, perhaps while another thread held the lock
            self.__init__(self._most)  # type: ignore[misc]
        with self._lock:
            reading = self._reading.setdefault(number, threading.Lock())
        with reading:
            with self._lock:
                if number in self._kept:
                    return recent(self._kept, number, read, self._most)
            footer = read()
            with self._lock:
                return recent(self._kept, number, lambda: footer, self._most)


def recent(kept: OrderedDict[int, Any], key: int, make: Callable[[], Any], most: int) -> Any:
    if key not in kept:
        kept[key] = make()
        while len(kept) > most:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]


def open_parquet(file: Any, metadata: Any = None, shared: Sequence[str] = ()) -> Any:
    import pyarrow.parquet as pq

    if metadata is None and (told := footer_is_too_long(file)):
        raise ValueError(told)
    return pq.ParquetFile(
        file, metadata=metadata, read_dictionary=list(shared), page_checksum_verification=True
    )


class OpenShard(NamedTuple):
    """A shard that can be read: for pyarrow as a file, for ourselves by `chunk(start, stop)`."""

    stored: Shard
    file: Any
    footer: Any
    chunk: Callable[[int, int], Any]


class Reader:
    """Reads row groups of open shards, within bounds."""

    def __init__(self) -> None:
        self.memory, self.depths = Recycled(), dict[str, int]()
        self.small: set[tuple[str, int, tuple[str, ...]]] = set()  # row groups that were found in bounds

    def read(self, shard: OpenShard, wanted: Wanted, bounds: Bounds) -> list[Group]:
        parquet = open_parquet(shard.file, shard.footer)
        groups = []
        for group in wanted.groups:
            self._bound(shard, group, wanted.columns, bounds.a_row)
            table = parquet.read_row_group(group, columns=list(wanted.columns), use_threads=False)
            stored = None
            if wanted.payload:
                most = min(bounds.payload(table), 2 * shard.stored.arrow_bytes)
                stored = self._payload(shard, group, wanted.payload, most)
            groups.append(Group(table, stored))
        return groups

    def _bound(self, shard: OpenShard, group: int, columns: Sequence[str], a_row: int) -> None:
        """Refuses a row group whose pages say that they unpack to more than its rows may hold; looked at
        once, since it costs as much as reading."""
        key = (shard.stored.path, group, tuple(columns))
        if key in self.small:
            return
        about = shard.footer.row_group(group)
        if about.num_rows > shard.stored.rows:
            raise ValueError(f"{about.num_rows} rows where the manifest says {shard.stored.rows}")
        chunks = chunks_of(shard.footer, group, columns)
        told = min(about.num_rows * a_row, 2 * shard.stored.arrow_bytes)
        parts = ((about.num_rows, chunk, shard.chunk(*extent(chunk))) for chunk in chunks)
        check_chunks(parts, partial(self._bytes_of, shard, group), _most(told, chunks))
        self.small.add(key)

    def _bytes_of(self, shard: OpenShard, group: int, leaf: str) -> int:
        return bytes_of(open_parquet(shard.file, shard.footer), shard.file, group, leaf)

    def _payload(self, shard: OpenShard, group: int, name: str, most: int) -> Bytes:
        """The bytes in a struct column. What only pyarrow understands, it reads."""
        about, leaf = shard.footer.row_group(group), f"{name}.bytes"
        place = next(i for i in range(about.num_columns) if about.column(i).path_in_schema == leaf)
        where = about.column(place)
        most = _most(most, [where])
        if leaf not in self.depths:
            # Once for all shards, which have the same columns: a footer and its schema refer to each other,
            # and stay until cycles are collected.
            kind = shard.footer.schema.column(place)
            self.depths[leaf] = -1 if kind.max_repetition_level else kind.max_definition_level
        chunk = shard.chunk(*extent(where))
        try:
            if where.physical_type != "BYTE_ARRAY" or self.depths[leaf] < 0:
                raise Unusual(where.physical_type)
            return read_chunk(chunk, where.compression, self.depths[leaf], about.num_rows, self.memory, most)
        except Unusual:
            if page_sizes(chunk).unpacked > most:
                raise ValueError(f"its column {name} unpacks to more than {most} bytes") from None
            return self._by_arrow(shard, group, name)

    def _by_arrow(self, shard: OpenShard, group: int, name: str) -> Bytes:
        column = (
            open_parquet(shard.file, shard.footer, [f"{name}.bytes"])
            .read_row_group(group, columns=[name], use_threads=False)
            .column(0)
        )
        return from_arrow(column.combine_chunks())


def _most(told: int, chunks: Sequence[Any]) -> int:
    """Bytes that column chunks may unpack to: as many as is told of them, or follow from their size."""
    packed = sum(chunk.total_compressed_size for chunk in chunks)
    return min(told + _SLACK, most_unpacked(packed), MAX_GROUP)


def parsed(tail: bytes, indexed: IndexedShard) -> Any:
    """A footer, if it is the one that the index lists: to take a damaged one apart can end the process."""
    import pyarrow as pa

    if len(tail) > MAX_FOOTER:
        raise ValueError(f"a footer of {len(tail)} bytes")
    if hashlib.sha256(tail).hexdigest() != indexed.footer_sha256:
        raise DataError(
            "D025", f"{indexed.path} has another footer than the index says", "copy or download it again"
        )
    return open_parquet(pa.BufferReader(tail[-4:] + tail)).metadata


def named(path: str, groups: Sequence[int]) -> str:
    return f"{path}, row group {'-'.join(str(g) for g in dict.fromkeys((groups[0], groups[-1])))}"


def failed(where: str, error: Exception) -> DataError | StorageError:
    if isinstance(error, StorageError | DataError):
        return error
    if isinstance(error, MemoryError):
        return StorageError("D034", f"{where}: not enough memory", "fewer workers, or a smaller pool")
    return damaged(where, error)


def damaged(where: str, error: Exception) -> DataError:
    return DataError(
        "D031",
        f"{where}: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}",
        "damaged: copy or download it again",
    )
