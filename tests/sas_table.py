"""A table of numbers as a real SAS7BDAT file (32 bit, little endian, uncompressed): what nothing but SAS writes, so the test writes it."""

from __future__ import annotations

import math
import struct
from pathlib import Path

_MAGIC = bytes.fromhex("000000000000000000000000c2ea8160b31411cfbd92080009c7318c181f1011")
_PAGE, _FIRST = 1 << 16, 24  # bytes of a page, and where its pointers or rows begin


def write_sas7bdat(path: Path, columns: list[str], rows: list[list[float]]) -> None:
    """Numbers as doubles; NaN is SAS's missing value."""
    width = 8 * len(columns)
    per_page = (_PAGE - _FIRST) // width
    pages = [_meta_page(columns, len(rows), width)]
    for start in range(0, len(rows), per_page):
        part = rows[start : start + per_page]
        page = bytearray(_PAGE)
        struct.pack_into("<HH", page, 16, 0x0100, len(part))
        for n, row in enumerate(part):
            struct.pack_into(f"<{len(row)}d", page, _FIRST + n * width, *row)
        pages.append(page)
    header = bytearray(1024)
    header[: len(_MAGIC)] = _MAGIC
    header[37], header[70] = 1, 29
    struct.pack_into("<III", header, 196, len(header), _PAGE, len(pages))
    path.write_bytes(b"".join([header, *pages]))


def _meta_page(columns: list[str], rows: int, width: int) -> bytearray:
    n = len(columns)
    size = bytearray(480)
    size[:4] = b"\xf7" * 4
    struct.pack_into("<II", size, 20, width, rows)
    struct.pack_into("<II", size, 36, n, 0)
    count = bytearray(12)
    count[:4] = b"\xf6" * 4
    struct.pack_into("<I", count, 4, n)
    names, at = bytearray(28), []
    for name in columns:
        at.append(len(names))
        names += name.encode().ljust(math.ceil(len(name) / 4) * 4)
    names += b"end."
    struct.pack_into("<H", names, 0, len(names))
    pointers, attributes = (
        bytearray(b"\xff" * 4 + bytes(8 * n + 16)),
        bytearray(b"\xfc\xff\xff\xff" + bytes(12 * n + 16)),
    )
    for i, name in enumerate(columns):
        struct.pack_into("<HHH", pointers, 4 + 8 * (i + 1), 0, at[i], len(name))
        struct.pack_into("<IIHB", attributes, 12 + 12 * i, 8 * i, 8, 0, 1)
    parts = [
        size,
        count,
        bytearray(b"\xfd\xff\xff\xff") + names,
        pointers,
        attributes,
        *(bytearray(b"\xfe\xfb\xff\xff" + bytes(48)) for _ in columns),
    ]
    page = bytearray(_PAGE)
    struct.pack_into("<HHH", page, 16, 0x0000, len(parts), len(parts))
    end = _PAGE
    for i, part in enumerate(parts):
        end -= math.ceil(len(part) / 4) * 4
        struct.pack_into("<IIBB", page, _FIRST + 12 * i, end, len(part), 0, 0)
        page[end : end + len(part)] = part
    return page
