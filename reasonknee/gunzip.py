"""Gzip read as a stream with every checksum verified, in bounded memory and time.

`gzip.GzipFile` will do for files that one made oneself; from elsewhere, a member whose name is 100 MB long, or a million empty members, hold it up
for minutes. Here the library parses headers, members are counted, and a file that is longer than what comes out of it is given up.
Intel's ISA-L inflates a knee in half of zlib's time; where it has no build (see pyproject.toml), zlib does.
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
_MOST_OVERHEAD, _SLACK = 1.02, 1 << 18  # what cannot be compressed takes 0.05 % more, 1 % in blocks of 3 kB; and a name, and padding at the end
_BLOCK = 1 << 16  # small, since what follows a member is copied


class GunzipReader:
    """Raises zlib.error for damage and EOFError for a file that ends too early; `read` gives nothing only at a sound end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflate = _library.decompressobj(31)
        self._pending = b""
        self._members = 1
        self._taken = self._given = 0

    def read(self, size: int) -> bytes:
        """At least one and at most `size` bytes, or none at the end."""
        while True:
            if self._inflate.eof and not self._next_member():  # asked first: fed again after its end, zlib would count its input twice
                return b""
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
        self._inflate, self._pending = _library.decompressobj(31), rest
        return True
