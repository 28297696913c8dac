"""Row groups of the shards of a release in a folder.

A shard is read, not mapped, since a mapped file that somebody cuts ends the process. What somebody exchanges
meanwhile is compared with the manifest again, so that rows of two versions do not mix. Nothing is opened
outside of the folder.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee.errors import DataError, StorageError
from reasonknee.layout import Shard
from reasonknee.layout.index import IndexedShard
from reasonknee.stream.parquet import (
    MOST_TEXT,
    Bounds,
    Group,
    OpenShard,
    ParsedFooters,
    Reader,
    Wanted,
    damaged,
    failed,
    named,
    open_parquet,
    parsed,
    recent,
)
from reasonknee.system.memory import Recycled

if TYPE_CHECKING:
    import pyarrow as pa

_OPEN = 64  # files a thread has open
_PARSED = 2  # footers that a process keeps
_SMALL = 1 << 16  # bytes that are not worth memory of their own


class Handles(threading.local):
    """Open shards of one thread of one process: a handle has a place in its file, and a connection does
    not survive a fork."""

    def __init__(self) -> None:
        self.pid, self.files = os.getpid(), OrderedDict[int, Any]()

    def get(self, number: int, open_: Callable[[], Any]) -> Any:
        if self.pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        return recent(self.files, number, open_, _OPEN)


class Folder:
    """Shards on disk."""

    remote = False

    def __init__(
        self, root: Path, stored: Sequence[Shard], indexed: Mapping[str, IndexedShard] | None = None
    ) -> None:
        self.root, self.stored, self.indexed = root, stored, dict(indexed or {})
        self._handles, self._footers, self._reader = Handles(), ParsedFooters(_PARSED), Reader()
        self._known: dict[int, set[tuple[int, ...]]] = {}  # of each shard: files that are what they were

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "stored": self.stored, "indexed": self.indexed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def text(self, name: str) -> bytes:
        path = self.root / name
        try:
            with _inside(self.root, path).open("rb") as file:
                text = file.read(MOST_TEXT + 1)
        except FileNotFoundError:
            raise _missing(path) from None
        if len(text) > MOST_TEXT:
            raise DataError("D029", f"{path} is larger than {MOST_TEXT >> 20} MB", "copy it again")
        return text

    def check(self, indexed: Mapping[str, IndexedShard]) -> None:
        self.indexed = dict(indexed)
        for path in (self.root / stored.path for stored in self.stored):
            try:
                _inside(self.root, path)
            except FileNotFoundError:
                raise _missing(path) from None

    def footer(self, number: int) -> Any:
        return self._footers.get(number, lambda: self._footer(number))

    def _footer(self, number: int) -> Any:
        stored, file = self.stored[number], self._file(number)
        indexed = self.indexed.get(stored.path)
        try:
            if indexed is None:
                return open_parquet(file).metadata
            size = os.fstat(file.fileno()).st_size
            tail = bytes(_chunk(file.fileno(), self._reader.memory, size - indexed.footer_bytes, size))
            return parsed(tail, indexed)
        except Exception as error:  # pyarrow's errors on a damaged footer are of many types
            raise failed(stored.path, error) from None

    def fields(self, number: int) -> pa.Schema:
        return open_parquet(self._file(number), self.footer(number)).schema_arrow

    def _file(self, number: int) -> Any:
        import pyarrow as pa

        path = self.root / self.stored[number].path
        try:
            return self._handles.get(number, lambda: pa.OSFile(str(_inside(self.root, path))))
        except FileNotFoundError:
            raise _missing(path) from None
        except OSError as error:
            raise damaged(self.stored[number].path, error) from None

    def read(self, wanted: Wanted, bounds: Bounds) -> list[Group]:
        number = wanted.shard
        footer, file = self.footer(number), self._file(number)
        shard = OpenShard(
            self.stored[number], file, footer, partial(_chunk, file.fileno(), self._reader.memory)
        )
        try:
            read = self._reader.read(shard, wanted, bounds)
            self._compare(number, file.fileno())
        except Exception as error:  # as above
            raise failed(named(self.stored[number].path, wanted.groups), error) from None
        return read

    def _compare(self, number: int, descriptor: int) -> None:
        """Refuses a shard that is another than before, by its bytes: a file that is only touched, or copied
        again, is the same."""
        about = os.fstat(descriptor)
        now = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns)
        known = self._known.setdefault(number, {now})
        if now in known:
            return
        stored, digest, at = self.stored[number], hashlib.sha256(), 0
        while block := os.pread(descriptor, 1 << 20, at):
            digest.update(block)
            at += len(block)
        if digest.hexdigest() != stored.sha256:
            raise DataError(
                "D037",
                f"{stored.path} has changed while it was read",
                "start anew: rows of two versions would be mixed",
            )
        known.add(now)


def _chunk(descriptor: int, memory: Recycled, start: int, stop: int) -> Any:
    """A part of a file in memory of our own."""
    size = os.fstat(descriptor).st_size
    if not 0 <= start <= stop <= size:
        raise ValueError(f"bytes {start} to {stop} of a file of {size}: it was cut, or its footer is wrong")
    if stop - start < _SMALL:
        small = os.pread(descriptor, stop - start, start)
        if len(small) < stop - start:
            raise ValueError("it was cut while it was read")
        return memoryview(small)
    part = memory.take(stop - start)
    raw: Any = part
    at = 0
    while at < len(part):
        got = os.preadv(descriptor, [raw[at:]], start + at)
        if not got:
            raise ValueError("it was cut while it was read")
        at += got
    part.flags.writeable = False
    return part.data


def _inside(root: Path, path: Path) -> Path:
    """The file that a path leads to: an ordinary one, in the release's folder, or in the blobs of the Hub's
    cache, whose snapshots are links to them."""
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    homes = [folder, *([folder.parent.parent / "blobs"] if folder.parent.name == "snapshots" else [])]
    if not any(target.is_relative_to(home) for home in homes):
        raise DataError("D028", f"{path} leads out of its release", "copy the file to where the link is")
    if not stat.S_ISREG(target.stat().st_mode):
        raise DataError("D028", f"{path} is no ordinary file", "copy the release again")
    return target


def _missing(path: Path) -> StorageError:
    return StorageError("D030", f"{path} is missing", "the manifest lists it: copy the release again")
