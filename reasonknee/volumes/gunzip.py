"""Gzip read as a stream with every checksum verified, in bounded memory and time.

`gzip.GzipFile` will do for files that one made oneself; from elsewhere, a member whose name is 100 MB long,
or a million empty members, hold it up for minutes. Here the library parses headers, members are counted, and
a file that is longer than what comes out of it is given up. Intel's ISA-L inflates a knee in half of zlib's
time; where it has no build (see pyproject.toml), zlib does.
"""

from __future__ import annotations

import zlib
from typing import IO, Any

try:
    from isal import isal_zlib

    _library: Any = isal_zlib
except ImportError:
    _library = zlib

MAX_MEMBERS = 1 << 14  # block gzip has a member per 64 kB: enough for a gigabyte
MAX_RATIO = 1040  # deflate cannot do better than 1032 to 1
_MOST_OVERHEAD, _SLACK = (
    1.02,
    1 << 18,
)  # what cannot be compressed takes 0.05 % more, 1 % in blocks of 3 kB; and a name, and padding at the end
_BLOCK = 1 << 16  # small, since what follows a member is copied
_EXTRA, _NAME, _COMMENT, _HEADER_CRC, _RESERVED = 4, 8, 16, 2, 0xE0  # flags of a member's header


class GunzipReader:
    """Raises zlib.error for damage and EOFError for a file that ends too early; `read` gives nothing only
    at a sound end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflate = _library.decompressobj(31)
        self._pending = b""
        self._members, self._at_header = 1, True
        self._taken = self._given = 0

    def read(self, size: int) -> bytes:
        """At least one and at most `size` bytes, or none at the end."""
        while True:
            if (
                self._inflate.eof and not self._next_member()
            ):  # asked first: fed again after its end, zlib would count its input twice
                return b""
            if self._at_header:
                self._gather_header()
            try:
                out: bytes = self._inflate.decompress(self._pending, size)
            except _library.error as error:
                raise zlib.error(str(error)) from None
            self._pending = self._inflate.unconsumed_tail
            if out:
                self._given += len(out)
                return out
            if not self._inflate.eof and not self._pending:
                self._pending = self._block()
                if not self._pending:
                    raise EOFError("the compressed data ends before its end mark")

    def readinto(self, target: memoryview) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def _block(self) -> bytes:
        block = self._file.read(_BLOCK)
        self._taken += len(block)
        if self._taken > self._given * _MOST_OVERHEAD + _SLACK:
            raise zlib.error("it is longer than what it holds")
        return block

    def _gather_header(self) -> None:
        """The whole of a member's header in one piece: ISA-L forgets its flags, and so its checksum,
        where it is given in two."""
        while not _whole_header(self._pending):
            block = self._block()
            if not block or len(self._pending) > _BLOCK:
                raise (
                    zlib.error("a gzip header without an end")
                    if block
                    else EOFError("the file ends in a gzip header")
                )
            self._pending += block
        self._at_header = False

    def _next_member(self) -> bool:
        """Whether another member follows; zeros that pad the file do not count."""
        rest = self._inflate.unused_data.lstrip(b"\0")
        while not rest:
            block = self._block()
            if not block:
                return False
            rest = block.lstrip(b"\0")
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise zlib.error(f"more than {MAX_MEMBERS} gzip members")
        self._inflate, self._pending, self._at_header = _library.decompressobj(31), rest, True
        return True


def _whole_header(data: bytes) -> bool:
    """Whether a gzip header ends in these bytes."""
    if len(data) < 10:
        return False
    flags, end = data[3], 10
    if flags & _RESERVED:
        raise zlib.error("a gzip header with flags that mean nothing")
    if flags & _EXTRA:
        end += 2 + int.from_bytes(data[10:12], "little")
    for text in (_NAME, _COMMENT):
        if flags & text:
            end = data.find(b"\0", end) + 1 if end < len(data) else 0
            if not end:
                return False
    return len(data) >= end + (2 if flags & _HEADER_CRC else 0)
