"""Row groups of Parquet shards, from a folder or from the Hub, whole or not at all: lengths and page checksums are checked, failures are loud."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from reasonknee.errors import DataError, StorageError
from reasonknee.manifest import FILE_NAME, Manifest, read_manifest

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPTS = 3
_GAP = 1 << 16  # ranges closer than this come in one request


class Shards(Protocol):
    paths: Sequence[str]
    rows: Sequence[int]
    remote: bool
    shared: Sequence[str]  # columns to read as they are stored, each value once: questions on one region share its bytes

    def footer(self, number: int) -> Any:
        """The metadata of a shard."""

    def read(self, number: int, group: int, columns: Sequence[str] | None) -> pa.Table:
        """A row group of a shard."""


class _Handles(threading.local):
    """Open shards of one thread of one process: a handle has a place in its file, and a connection does not survive a fork."""

    def __init__(self) -> None:
        self.pid, self.files = os.getpid(), dict[int, Any]()

    def get(self) -> dict[int, Any]:
        if self.pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        return self.files


def _open(file: Any, shared: Sequence[str], **settings: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, read_dictionary=list(shared), page_checksum_verification=True, **settings)


class Folder:
    """Shards on disk, memory-mapped."""

    remote = False

    def __init__(self, root: Path, paths: Sequence[str], rows: Sequence[int], shared: Sequence[str]) -> None:
        self.root, self.paths, self.rows, self.shared = root, paths, rows, shared
        self._handles = _Handles()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_handles"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def footer(self, number: int) -> Any:
        return self._handle(number).metadata

    def _handle(self, number: int) -> Any:
        files = self._handles.get()
        if number not in files:
            path = self.root / self.paths[number]
            try:
                files[number] = _open(path, self.shared, memory_map=True)
            except FileNotFoundError:
                raise StorageError("D030", f"{path} is missing", "the manifest lists it: copy the release again") from None
            except Exception as error:  # pyarrow's errors on a damaged footer are of many types
                raise _damaged(self.paths[number], error) from None
        return files[number]

    def read(self, number: int, group: int, columns: Sequence[str] | None) -> pa.Table:
        handle = self._handle(number)
        try:
            return handle.read_row_group(group, columns=columns, use_threads=False)
        except Exception as error:  # as above
            raise _damaged(f"{self.paths[number]}, row group {group}", error) from None


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
    shared: Sequence[str] = ()
    footers: dict[int, Any] = field(default_factory=dict)
    remote = True

    def __post_init__(self) -> None:
        self._handles = _Handles()

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

    def of(self, paths: Sequence[str], rows: Sequence[int], shared: Sequence[str]) -> Repo:
        return replace(self, paths=paths, rows=rows, shared=shared)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_handles"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def _file(self, number: int) -> _Ranges:
        from huggingface_hub import HfFileSystem

        files = self._handles.get()
        if number not in files:
            path = f"datasets/{self.name}@{self.commit}/{self.paths[number]}"
            try:
                files[number] = _Ranges(HfFileSystem(**self.options).open(path, "rb", cache_type="none"), self.paths[number])
            except Exception as error:  # as above
                raise _unreachable(path, error) from None
        return files[number]  # type: ignore[no-any-return]

    def footer(self, number: int) -> Any:
        if number not in self.footers:
            self.footers[number] = self._repeat(number, self.paths[number], lambda file: _open(file, self.shared).metadata)
        return self.footers[number]

    def read(self, number: int, group: int, columns: Sequence[str] | None) -> pa.Table:
        footer = self.footer(number)

        def once(file: _Ranges) -> Any:
            file.fetch(_ranges(footer.row_group(group), columns))
            return _open(file, self.shared, metadata=footer).read_row_group(group, columns=columns, use_threads=False)

        return self._repeat(number, f"{self.paths[number]}, row group {group}", once)

    def _repeat(self, number: int, where: str, read: Any) -> Any:
        """Bytes that arrive damaged are asked for again, a few times."""
        for attempt in range(_ATTEMPTS):
            file = self._file(number)
            try:
                return read(file)
            except StorageError:
                raise
            except Exception as error:
                if attempt == _ATTEMPTS - 1:
                    raise _damaged(where, error) from None
            finally:
                file.forget()
        raise AssertionError


def _unreachable(where: str, error: Exception) -> StorageError:
    return StorageError(
        "D032",
        f"{where}: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}",
        "check the name, the token and the network",
    )


def _ranges(group: Any, columns: Sequence[str] | None) -> list[tuple[int, int]]:
    """Where the column chunks of a row group lie, neighbours joined."""
    ranges: list[tuple[int, int]] = []
    for i in range(group.num_columns):
        chunk = group.column(i)
        if columns is None or any(chunk.path_in_schema == c or chunk.path_in_schema.startswith(f"{c}.") for c in columns):
            start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
            ranges.append((start, start + chunk.total_compressed_size))
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
        for first, data in self.kept:
            if first <= start and stop <= first + len(data):
                return data[start - first : stop - first]
        return self._get(start, stop) if stop > start else b""

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.file.size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
