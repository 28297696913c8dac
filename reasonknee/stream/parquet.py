"""Row groups of Parquet shards, from a folder or from the Hub, whole or not at all: lengths and page checksums are checked, failures are loud."""

from __future__ import annotations

import io
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from reasonknee.errors import DataError, StorageError
from reasonknee.manifest import FILE_NAME, Manifest, read_manifest
from reasonknee.memory import Recycled
from reasonknee.stream.pages import Bytes, Unusual, from_arrow, read_chunk

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPTS = 3
_OPEN = 64  # files a thread has open
_PARSED, _PARSED_REMOTE = 2, 32  # footers that a process keeps
_GAP = 1 << 16  # ranges closer than this come in one request


class Group(NamedTuple):
    """A row group: the columns that were asked for, and the bytes in the struct column that was asked for as payload."""

    table: pa.Table
    stored: Bytes | None


class Shards(Protocol):
    paths: Sequence[str]
    rows: Sequence[int]
    remote: bool

    def footer(self, number: int) -> Any:
        """The metadata of a shard."""

    def fields(self, number: int) -> pa.Schema:
        """The columns of a shard."""

    def read(self, number: int, groups: Sequence[int], columns: Sequence[str], payload: str | None = None) -> list[Group]:
        """Some row groups of a shard."""


class _Handles(threading.local):
    """Open shards of one thread of one process: a handle has a place in its file, and a connection does not survive a fork."""

    def __init__(self) -> None:
        self.pid, self.files = os.getpid(), OrderedDict[int, Any]()

    def get(self, number: int, open_: Callable[[], Any]) -> Any:
        if self.pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        return _recent(self.files, number, open_, _OPEN)


class _Footers:
    """The footers used last, parsed, for all threads of a process: one of 16 volumes takes 3 MB, and 3 ms to parse."""

    def __init__(self, most: int) -> None:
        self._most, self._pid, self._kept, self._lock = most, os.getpid(), OrderedDict[int, Any](), threading.Lock()

    def get(self, number: int, read: Callable[[], Any]) -> Any:
        if self._pid != os.getpid():  # forked, perhaps while another thread held the lock
            self.__init__(self._most)  # type: ignore[misc]
        with self._lock:
            if number in self._kept:
                return _recent(self._kept, number, read, self._most)
        found = read()
        with self._lock:
            return _recent(self._kept, number, lambda: found, self._most)


def _recent(kept: OrderedDict[int, Any], key: int, make: Callable[[], Any], most: int) -> Any:
    if key not in kept:
        kept[key] = make()
        while len(kept) > most:
            kept.popitem(last=False)
    kept.move_to_end(key)
    return kept[key]


def _open(file: Any, metadata: Any = None, shared: Sequence[str] = ()) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, metadata=metadata, read_dictionary=list(shared), page_checksum_verification=True)


class _Reader:
    """Reads row groups of open files whose bytes `chunk(start, stop)` gives."""

    def __init__(self) -> None:
        self.memory, self.depths = Recycled(), dict[str, int]()

    def read(
        self, file: Any, footer: Any, groups: Sequence[int], columns: Sequence[str], payload: str | None, chunk: Callable[[int, int], Any]
    ) -> list[Group]:
        parquet = _open(file, footer)
        found = []
        for group in groups:
            table = parquet.read_row_group(group, columns=columns, use_threads=False)
            found.append(Group(table, self._payload(file, footer, group, payload, chunk) if payload else None))
        return found

    def _payload(self, file: Any, footer: Any, group: int, name: str, chunk: Callable[[int, int], Any]) -> Bytes:
        """The bytes in a struct column. What only pyarrow understands, it reads."""
        about, leaf = footer.row_group(group), f"{name}.bytes"
        place = next(i for i in range(about.num_columns) if about.column(i).path_in_schema == leaf)
        where = about.column(place)
        if leaf not in self.depths:
            # Once for all shards, which have the same columns: a footer and its schema refer to each other, and stay until cycles are collected.
            kind = footer.schema.column(place)
            self.depths[leaf] = -1 if kind.max_repetition_level else kind.max_definition_level
        try:
            if where.physical_type != "BYTE_ARRAY" or self.depths[leaf] < 0:
                raise Unusual(where.physical_type)
            return read_chunk(memoryview(chunk(*_extent(where))), where.compression, self.depths[leaf], about.num_rows, self.memory)
        except Unusual:
            return self._by_arrow(file, footer, group, name)

    def _by_arrow(self, file: Any, footer: Any, group: int, name: str) -> Bytes:
        column = _open(file, footer, [f"{name}.bytes"]).read_row_group(group, columns=[name], use_threads=False).column(0)
        return from_arrow(column.combine_chunks())


class Folder:
    """Shards on disk, memory-mapped."""

    remote = False

    def __init__(self, root: Path, paths: Sequence[str], rows: Sequence[int]) -> None:
        self.root, self.paths, self.rows = root, paths, rows
        self._handles, self._footers, self._reader = _Handles(), _Footers(_PARSED), _Reader()

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "paths": self.paths, "rows": self.rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def footer(self, number: int) -> Any:
        file = self._file(number)
        try:
            return self._footers.get(number, lambda: _open(file).metadata)
        except Exception as error:  # pyarrow's errors on a damaged footer are of many types
            raise _damaged(self.paths[number], error) from None

    def fields(self, number: int) -> pa.Schema:
        return _open(self._file(number), self.footer(number)).schema_arrow

    def _file(self, number: int) -> Any:
        import pyarrow as pa

        path = self.root / self.paths[number]
        try:
            return self._handles.get(number, lambda: pa.memory_map(str(path)))
        except FileNotFoundError:
            raise StorageError("D030", f"{path} is missing", "the manifest lists it: copy the release again") from None
        except Exception as error:  # an empty file cannot be mapped
            raise _damaged(self.paths[number], error) from None

    def read(self, number: int, groups: Sequence[int], columns: Sequence[str], payload: str | None = None) -> list[Group]:
        footer, file = self.footer(number), self._file(number)

        def chunk(start: int, stop: int) -> Any:
            file.seek(start)
            return file.read_buffer(stop - start)  # not copied

        try:
            return self._reader.read(file, footer, groups, columns, payload, chunk)
        except Exception as error:  # as above
            raise _failed(_named(self.paths[number], groups), error) from None


def _named(path: str, groups: Sequence[int]) -> str:
    return f"{path}, row group {'-'.join(str(g) for g in dict.fromkeys((groups[0], groups[-1])))}"


def _failed(where: str, error: Exception) -> DataError | StorageError:
    if isinstance(error, MemoryError):
        return StorageError("D034", f"{where}: not enough memory", "fewer workers, or a smaller pool")
    return _damaged(where, error)


def _damaged(where: str, error: Exception) -> DataError:
    return DataError(
        "D031", f"{where}: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}", "damaged: copy or download it again"
    )


# --- the Hub ----------------------------------------------------------------------------------------------------------------------


@dataclass
class Repo:
    """Shards in a dataset repo, at one commit. Every byte comes by a ranged request, which the Hub's client repeats when it fails."""

    name: str
    commit: str
    options: dict[str, Any]
    paths: Sequence[str] = ()
    rows: Sequence[int] = ()
    remote = True

    def __post_init__(self) -> None:
        self._handles, self._footers, self._reader = _Handles(), _Footers(_PARSED_REMOTE), _Reader()

    @classmethod
    def at(cls, name: str, revision: str | None, options: dict[str, Any]) -> tuple[Repo, Manifest]:
        from huggingface_hub import HfApi

        try:
            commit = str(HfApi(**options).dataset_info(name, revision=revision).sha)
        except Exception as error:  # the client's errors are of many types
            raise _unreachable(f"{name}@{revision or 'main'}", error) from None
        repo = cls(name, commit, options, [FILE_NAME])
        with TemporaryDirectory() as folder:
            Path(folder, FILE_NAME).write_bytes(repo._file(0).read())
            return repo, read_manifest(Path(folder))

    def of(self, paths: Sequence[str], rows: Sequence[int]) -> Repo:
        return replace(self, paths=paths, rows=rows)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def _file(self, number: int) -> _Ranges:
        from huggingface_hub import HfFileSystem

        path = f"datasets/{self.name}@{self.commit}/{self.paths[number]}"
        try:
            return self._handles.get(  # type: ignore[no-any-return]
                number, lambda: _Ranges(HfFileSystem(**self.options).open(path, "rb", cache_type="none"), self.paths[number])
            )
        except Exception as error:  # as above
            raise _unreachable(path, error) from None

    def footer(self, number: int) -> Any:
        return self._footers.get(number, lambda: self._repeat(number, self.paths[number], lambda file: _open(file).metadata))

    def fields(self, number: int) -> pa.Schema:
        return _open(self._file(number), self.footer(number)).schema_arrow

    def read(self, number: int, groups: Sequence[int], columns: Sequence[str], payload: str | None = None) -> list[Group]:
        footer = self.footer(number)
        wanted = [*columns, *([f"{payload}.bytes"] if payload else [])]

        def once(file: _Ranges) -> list[Group]:
            file.fetch(_ranges([footer.row_group(group) for group in groups], wanted))
            return self._reader.read(file, footer, groups, columns, payload, file.view)

        found: list[Group] = self._repeat(number, _named(self.paths[number], groups), once)
        return found

    def _repeat(self, number: int, where: str, read: Any) -> Any:
        """Bytes that arrive damaged are asked for again, a few times."""
        for attempt in range(_ATTEMPTS):
            file = self._file(number)
            try:
                return read(file)
            except StorageError:
                raise
            except Exception as error:
                if attempt == _ATTEMPTS - 1 or isinstance(error, MemoryError):
                    raise _failed(where, error) from None
            finally:
                file.forget()
        raise AssertionError


def _unreachable(where: str, error: Exception) -> StorageError:
    return StorageError(
        "D032",
        f"{where}: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}",
        "check the name, the token and the network",
    )


def _extent(chunk: Any) -> tuple[int, int]:
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return start, start + chunk.total_compressed_size


def _ranges(groups: Sequence[Any], columns: Sequence[str]) -> list[tuple[int, int]]:
    """Where the column chunks of some row groups lie, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for chunk in (group.column(i) for group in groups for i in range(group.num_columns)):
        if any(chunk.path_in_schema == c or chunk.path_in_schema.startswith(f"{c}.") for c in columns):
            ranges.append(_extent(chunk))
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start - joined[-1][1] <= _GAP:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


class _Ranges(io.RawIOBase):
    """A remote file for pyarrow: what `fetch` brought is served from memory, anything else by a request of its own; never fewer bytes than asked."""

    def __init__(self, file: Any, name: str) -> None:
        self.file, self.name, self.at = file, name, 0
        self.kept: list[tuple[int, bytes]] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.kept = [(start, self._get(start, stop)) for start, stop in ranges]

    def forget(self) -> None:
        self.kept = []

    def _get(self, start: int, stop: int) -> bytes:
        for _ in range(_ATTEMPTS):
            try:
                self.file.seek(start)
                data: bytes = self.file.read(stop - start)
            except Exception as error:  # the client has tried again and given up
                raise _unreachable(self.name, error) from None
            if len(data) == stop - start:
                return data
        raise StorageError("D033", f"{self.name}: {len(data)} bytes where {stop - start} were asked for", "the server cuts its answers short")

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        stop = self.file.size if size is None or size < 0 else min(self.at + size, self.file.size)
        start, self.at = self.at, max(stop, self.at)
        return bytes(self.view(start, stop)) if stop > start else b""

    def view(self, start: int, stop: int) -> memoryview:
        for first, data in self.kept:
            if first <= start and stop <= first + len(data):
                return memoryview(data)[start - first : stop - first]
        return memoryview(self._get(start, stop))

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.file.size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
