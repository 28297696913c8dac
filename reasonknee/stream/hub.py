"""Row groups of the shards of a dataset repo on the Hub, at one commit, by ranged requests.

The Hub's client repeats what fails. What it does not look at is checked here: that an answer is as long as
was asked for, that all answers are of the same bytes (their ETag), and that it comes at all, since a server
that sends a byte now and then keeps a connection alive for ever.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.layout import Manifest, Shard, read_manifest
from reasonknee.layout.bounds import chunks_of, extent
from reasonknee.layout.index import IndexedShard
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.stream.parquet import (
    MOST_TEXT,
    Bounds,
    Group,
    OpenShard,
    ParsedFooters,
    Reader,
    Wanted,
    failed,
    named,
    open_parquet,
    parsed,
)

if TYPE_CHECKING:
    import pyarrow as pa

PATIENCE = 60.0  # seconds in which a server has to send `_PROGRESS`, or all that is left
_PROGRESS = 1 << 16
_TAIL = 1 << 16  # bytes of a shard that pyarrow reads first, and mostly the whole footer
_ATTEMPTS = 3
_PARSED = 32  # footers that a process keeps
_GAP = 1 << 16  # ranges closer than this come in one request
Read = TypeVar("Read")


@dataclass
class Repo:
    """Shards in a dataset repo."""

    name: str
    commit: str
    options: dict[str, Any]  # of the client: endpoint, token
    patience: float = PATIENCE
    stored: Sequence[Shard] = ()
    indexed: dict[str, IndexedShard] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)  # of the files that were asked for
    remote = True

    def __post_init__(self) -> None:
        self._footers, self._reader = ParsedFooters(_PARSED), Reader()

    @classmethod
    def at(cls, name: str, revision: str | None, options: dict[str, Any]) -> tuple[Repo, Manifest]:
        rest = dict(options)
        patience = rest.pop("patience", PATIENCE)
        if isinstance(patience, bool) or not isinstance(patience, int | float) or not 0 < patience < 1e6:
            raise UsageError("D009", f"patience={patience!r}"[:80], "seconds, such as 60")
        if unknown := sorted({str(name) for name in rest} - {"token", "endpoint"}):
            raise UsageError("D009", f"hub has no option {unknown[0][:60]!r}", "token, endpoint or patience")
        repo = cls(name, "", rest, float(patience))
        repo.commit = repo._commit(revision or "main")
        with TemporaryDirectory() as folder:
            Path(folder, FILE_NAME).write_bytes(repo.text(FILE_NAME))
            return repo, read_manifest(Path(folder))

    def _commit(self, revision: str) -> str:
        """What a branch or a tag is now. By a request of our own, since the client's would wait for ever."""
        import huggingface_hub.utils
        from huggingface_hub import constants

        client: Any = huggingface_hub.utils  # it says nothing of what it exports
        where = f"{self.name}@{revision}"
        try:
            client.validate_repo_id(self.name)
        except ValueError as error:
            raise _unreachable(where, error) from None
        endpoint = self.options.get("endpoint") or constants.ENDPOINT
        url = f"{endpoint}/api/datasets/{self.name}/revision/{quote(revision, safe='')}"
        try:
            return str(json.loads(self._whole(where, url, retries=0))["sha"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise _unreachable(where, error) from None

    def of(self, stored: Sequence[Shard]) -> Repo:
        return replace(self, stored=stored)

    def text(self, path: str) -> bytes:
        """A small file, whole."""
        return self._whole(path, self._url(path))

    def _whole(self, path: str, url: str, retries: int = 5) -> bytes:
        for attempt in range(_ATTEMPTS):
            try:
                return self.received(url, path, retries=retries)
            except _Short as error:
                if attempt == _ATTEMPTS - 1:
                    raise _cut_short(path, error) from None
        raise AssertionError

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()

    def check(self, indexed: Mapping[str, IndexedShard]) -> None:
        self.indexed = dict(indexed)

    def footer(self, number: int) -> Any:
        path, size = self.stored[number].path, self.stored[number].bytes
        indexed = self.indexed.get(path)

        def read(file: _Ranges) -> Any:
            if indexed is None:
                file.fetch([(max(0, size - _TAIL), size)])
                return open_parquet(file).metadata
            return parsed(bytes(file.view(size - indexed.footer_bytes, size)), indexed)

        return self._footers.get(number, lambda: self._repeat(number, path, read))

    def fields(self, number: int) -> pa.Schema:
        return open_parquet(_Ranges(self, self.stored[number]), self.footer(number)).schema_arrow

    def read(self, wanted: Wanted, bounds: Bounds) -> list[Group]:
        number, footer = wanted.shard, self.footer(wanted.shard)
        columns = [*wanted.columns, *([f"{wanted.payload}.bytes"] if wanted.payload else [])]

        def once(file: _Ranges) -> list[Group]:
            file.fetch(_joined(footer, wanted.groups, columns))
            return self._reader.read(OpenShard(self.stored[number], file, footer, file.view), wanted, bounds)

        return self._repeat(number, named(self.stored[number].path, wanted.groups), once)

    def _repeat(self, number: int, where: str, read: Callable[[_Ranges], Read]) -> Read:
        """Bytes that arrive damaged are asked for again, a few times."""
        for attempt in range(_ATTEMPTS):
            try:
                return read(_Ranges(self, self.stored[number]))
            except Exception as error:
                ours = failed(where, error)
                if attempt == _ATTEMPTS - 1 or isinstance(error, MemoryError | StorageError | DataError):
                    raise ours from None
        raise AssertionError

    def part(self, path: str, start: int, stop: int) -> bytes:
        """A part of a file of the repo."""
        return self.received(self._url(path), path, (start, stop))

    def _url(self, path: str) -> str:
        import huggingface_hub

        endpoint = self.options.get("endpoint")
        return str(
            huggingface_hub.hf_hub_url(
                self.name, path, repo_type="dataset", revision=self.commit, endpoint=endpoint
            )
        )

    def received(self, url: str, path: str, part: tuple[int, int] | None = None, retries: int = 5) -> bytes:
        """Bytes, by one request that is answered in time and of the same file as the others."""
        import huggingface_hub.utils

        client: Any = huggingface_hub.utils
        if not hasattr(client, "http_stream_backoff"):
            hint = "pip install 'huggingface_hub>=1.0', or download the release and stream the folder"
            raise UsageError("D035", "a stream from the Hub needs a newer huggingface_hub", hint)
        headers = {**client.build_hf_headers(token=self.options.get("token")), "Accept-Encoding": "identity"}
        if part:
            headers["Range"] = f"bytes={part[0]}-{part[1] - 1}"
        most = part[1] - part[0] if part else MOST_TEXT
        ask = partial(client.http_stream_backoff, headers=headers, timeout=self.patience, max_retries=retries)
        fault: Exception | None = None
        body = bytearray()
        try:
            with ask("GET", url) as answer:
                try:  # inside, since the client takes an error in its `with` for one of its own
                    client.hf_raise_for_status(answer)
                    self._same(path, answer.headers)
                    self._receive(path, answer, body, most)
                except Exception as error:
                    fault = error
        except Exception as error:
            fault = error
        if isinstance(fault, StorageError | DataError):
            raise fault
        told = int(answer.headers.get("Content-Length", -1)) if fault is None or body else -1
        wanted = part[1] - part[0] if part else told
        if body and len(body) < wanted:
            raise _Short(len(body), wanted)
        if fault is not None:
            raise _unreachable(path, fault) from None
        if part and len(body) != wanted:
            raise _Short(len(body), wanted)
        return bytes(body)

    def _receive(self, path: str, answer: Any, body: bytearray, most: int) -> None:
        began, had = time.monotonic(), 0
        for block in answer.iter_raw():
            body += block
            if len(body) > most:
                raise DataError("D038", f"{path}: more than the {most} bytes asked for", "check the server")
            now = time.monotonic()
            if len(body) - had >= _PROGRESS:
                began, had = now, len(body)
            elif now - began > self.patience and len(body) < most:
                raise StorageError(
                    "D036",
                    f"{path}: {len(body) - had} bytes in {self.patience:g} s",
                    'the server hardly sends: try later, or hub={"patience": more seconds}',
                )

    def _same(self, path: str, headers: Any) -> None:
        etag = re.sub(r'^W/|"', "", headers.get("ETag", ""))
        if etag and self.etags.setdefault(path, etag) != etag:
            raise DataError(
                "D037",
                f"{path} has changed at commit {self.commit[:12]} while it was read",
                "start anew: rows of two versions would be mixed",
            )


class _Short(Exception):  # noqa: N818 - asked for again
    """Fewer bytes than were asked for."""


def _cut_short(path: str, error: _Short) -> StorageError:
    had, wanted = error.args
    return StorageError(
        "D033", f"{path}: {had} bytes where {wanted} were asked for", "the server cuts its answers short"
    )


def _unreachable(where: str, error: Exception) -> StorageError:
    return StorageError(
        "D032",
        f"{where}: {type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}",
        "check the name, the token and the network",
    )


def _joined(footer: Any, groups: Sequence[int], columns: Sequence[str]) -> list[tuple[int, int]]:
    """Where the column chunks of some row groups lie, neighbours joined."""
    joined: list[tuple[int, int]] = []
    chunks = (chunk for group in groups for chunk in chunks_of(footer, group, columns))
    for start, stop in sorted(map(extent, chunks)):
        if joined and start - joined[-1][1] <= _GAP:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


class _Ranges(io.RawIOBase):
    """A remote file for pyarrow: what `fetch` brought is served from memory, anything else by a request
    of its own; never fewer bytes than asked, and none beyond the size that the manifest says."""

    def __init__(self, repo: Repo, stored: Shard) -> None:
        self.repo, self.stored, self.at = repo, stored, 0
        self.kept: list[tuple[int, bytes]] = []

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.kept = [(start, self._get(start, stop)) for start, stop in ranges]

    def _get(self, start: int, stop: int) -> bytes:
        if not 0 <= start < stop <= self.stored.bytes:
            raise ValueError(f"bytes {start} to {stop} of a file of {self.stored.bytes}")
        for attempt in range(_ATTEMPTS):
            try:
                return self.repo.part(self.stored.path, start, stop)
            except _Short as error:
                if attempt == _ATTEMPTS - 1:
                    raise _cut_short(self.stored.path, error) from None
        raise AssertionError

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        most = self.stored.bytes
        stop = most if size is None or size < 0 else min(self.at + size, most)
        start, self.at = self.at, max(stop, self.at)
        return bytes(self.view(start, stop)) if stop > start else b""

    def view(self, start: int, stop: int) -> memoryview:
        for first, data in self.kept:
            if first <= start and stop <= first + len(data):
                return memoryview(data)[start - first : stop - first]
        return memoryview(self._get(start, stop))

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.stored.bytes)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
