"""Pictures inside a page: a grey PNG as an address, and how strongly a number is coloured."""

from __future__ import annotations

from typing import Any


def strength(value: float | None, most: float = 1.0) -> int:
    """How strongly a number is coloured, from 0 to 100; what is undefined is not."""
    return 0 if value is None else round(100 * min(max(value / most, 0.0), 1.0))


def png_uri(pixels: Any) -> str:
    """A (rows, columns) array of bytes as a grey PNG inside a page."""
    import base64
    import struct
    import zlib

    height, width = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    whole = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines, 6))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(whole).decode()
