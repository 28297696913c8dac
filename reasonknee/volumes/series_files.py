"""The files of one DICOM series: those of a folder, or of a tar archive, which is read as it stands and never
unpacked to disk."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from reasonknee.errors import DataError, StorageError
from reasonknee.volumes.grid import MAX_BYTES
from reasonknee.volumes.gunzip import GunzipReader

MAX_FILE = 64 << 20
MAX_FILES = 512
_MAX_ENTRIES = 4096  # of a folder or archive, hidden files and folders among them
_END = 1024  # zeros that end a tar
_MAX_PADDING = 256  # blocks of 64 kB that may follow them
_ARCHIVES = (".tar.gz", ".tgz", ".tar")


@dataclass(frozen=True)
class Slice:
    """One file of a series: on disk, or the bytes of a member of an archive."""

    series: str
    name: str
    source: Path | bytes

    @property
    def place(self) -> str:
        return f"{self.series}/{self.name}"

    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else self.source.stat().st_size

    def open(self) -> BinaryIO:
        return io.BytesIO(self.source) if isinstance(self.source, bytes) else self.source.open("rb")

    def is_dicom(self) -> bool:
        with self.open() as file:
            return file.read(132)[128:] == b"DICM"


def is_archive(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).lower().endswith(_ARCHIVES)


def series_name(path: str | os.PathLike[str]) -> str:
    """The name of a folder or archive without what says that it is an archive."""
    name = os.path.basename(os.fspath(path))
    return next((name[: -len(end)] for end in _ARCHIVES if name.lower().endswith(end)), name)


def slices(path: str | os.PathLike[str], most: int = MAX_FILES + 1) -> list[Slice]:
    """The files of a series in the order of their names, hidden ones left out; at most so many."""
    try:
        if is_archive(path) and not os.path.isdir(path):
            return sorted(itertools.islice(_members(Path(path)), most), key=lambda s: s.name)
        with os.scandir(path) as entries:
            shown = [
                Slice(os.path.basename(os.fspath(path)), e.name, Path(e.path))
                for e in itertools.islice(entries, _MAX_ENTRIES)
                if not e.name.startswith(".") and e.is_file()
            ]
        return sorted(shown, key=lambda s: s.name)
    except OSError as error:
        raise StorageError(
            "Y000", f"cannot be read: {error.strerror or error}", "check the path and its permissions"
        ).at(os.path.basename(os.fspath(path))) from None


class _Tar:
    """The bytes of a tar, unpacked where they are packed, and whether they end as a tar does."""

    def __init__(self, file: BinaryIO) -> None:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        self._file: BinaryIO | GunzipReader = GunzipReader(file) if packed else file
        self._last = b""

    def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        self._last = (self._last + data)[-_END:]
        return bytes(data)

    def ended(self) -> bool:
        """Reads the rest, of which there is little."""
        for _ in range(_MAX_PADDING):
            if not self.read(1 << 16):
                break
        return len(self._last) == _END and not any(self._last)


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[_Tar]:
    with path.open("rb") as file:
        yield _Tar(file)


def _members(path: Path) -> Iterator[Slice]:
    """The regular files of an archive, in its order, each held in memory.

    Whoever takes them all knows that none is missing: checksums are compared, and the end mark must be there.
    A tar that was cut between two files would else pass for a short one.
    """
    total = 0
    try:
        # of a stream it calls `read` alone
        with _unpacked(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for member in itertools.islice(archive, _MAX_ENTRIES):
                name = os.path.basename(member.name)
                if not member.isreg() or not name or name.startswith("."):
                    continue
                total += member.size
                if member.size > MAX_FILE or total > 2 * MAX_BYTES:
                    raise DataError("Y008", "more bytes than a volume has", "one series an archive is wanted")
                content = archive.extractfile(member)
                yield Slice(series_name(path), name, content.read() if content else b"")
            if not stream.ended():
                raise tarfile.ReadError("it has no end mark")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        told = f"damaged: {str(error)[:80]}" if str(error) else "damaged"
        raise DataError("Y002", told, "download the archive again").at(path.name) from None
