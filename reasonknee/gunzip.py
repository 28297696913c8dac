"""Gzip read as a stream with every checksum verified, in bounded memory and time. Standard library only.

`gzip.GzipFile` will do for files that one made oneself; from elsewhere, a member whose name is 100 MB long, or a million empty members, hold it up
for minutes. Here headers are parsed by zlib, and members are counted.
"""

from __future__ import annotations

import zlib
from typing import IO

MAX_MEMBERS = 1 << 14  # block gzip has a member per 64 kB: enough for a gigabyte
MAX_RATIO = 1040  # deflate cannot do better than 1032 to 1
_BLOCK = 1 << 16  # small, since what follows a member is copied


class GunzipReader:
    """Raises zlib.error for damage and EOFError for a file that ends too early; `read` gives nothing only at a sound end."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(31)
        self._pending = b""
        self._members = 1

    def read(self, size: int) -> bytes:
        """At least one and at most `size` bytes, or none at the end."""
        while True:
            if self._inflate.eof and not self._next_member():  # asked first: fed again after its end, zlib would count its input twice
                return b""
            out = self._inflate.decompress(self._pending, size)
            self._pending = self._inflate.unconsumed_tail
            if out:
                return out
            if not self._inflate.eof and not self._pending:
                self._pending = self._file.read(_BLOCK)
                if not self._pending:
                    raise EOFError("the compressed data ends before its end mark")

    def readinto(self, target: memoryview) -> int:
        data = self.read(len(target))
        target[: len(data)] = data
        return len(data)

    def _next_member(self) -> bool:
        """Whether another member follows; zeros that pad the file do not count."""
        rest = self._inflate.unused_data.lstrip(b"\0")
        while not rest:
            block = self._file.read(_BLOCK)
            if not block:
                return False
            rest = block.lstrip(b"\0")
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise zlib.error(f"more than {MAX_MEMBERS} gzip members")
        self._inflate, self._pending = zlib.decompressobj(31), rest
        return True
