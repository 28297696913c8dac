"""Files that are well-formed and made by hand to take long."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from reasonknee.phantom.cohort import phantom_grid
from reasonknee.volumes.nifti import nifti_header


def slow_gzip(path: Path, shape: tuple[int, int, int]) -> None:
    """A sound `.nii.gz` of bytes, whose deflate blocks have a Huffman table of their own for 120 bytes each."""
    header, (count, rest) = (
        nifti_header(phantom_grid(shape), np.dtype("u1")),
        divmod(int(np.prod(shape)), 120),
    )
    text = bytes(np.random.default_rng(0).choice([97, 98], 120).astype(np.uint8))
    packer = zlib.compressobj(9, wbits=-15)
    start = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(text) + packer.flush(zlib.Z_FULL_FLUSH)
    assert block[0] >> 1 & 3 == 2, "a block with its own table"
    tail = packer.compress(bytes(rest)) + packer.flush()
    whole = header + text * count + bytes(rest)
    path.write_bytes(
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
        + start
        + block * count
        + tail
        + struct.pack("<II", zlib.crc32(whole), len(whole))
    )


def many_elements(path: Path, count: int, where: str) -> None:
    """Adds empty elements to a DICOM file: to its `meta` group, its `dataset`, the one item of a `sequence` of undefined length, or `items` to it."""
    from pydicom import dcmread

    data = path.read_bytes()
    begin = 144 + dcmread(path).file_meta.FileMetaInformationGroupLength
    many = struct.pack("<HH2sH", 2 if where == "meta" else 9, 0x1001, b"LO", 0) * count
    if where in ("sequence", "items"):
        item, empty, item_end, end = (
            struct.pack("<HHL", 0xFFFE, tag, length)
            for tag, length in ((0xE000, 2**32 - 1), (0xE000, 0), (0xE00D, 0), (0xE0DD, 0))
        )
        inside = item + many + item_end if where == "sequence" else empty * count
        many = struct.pack("<HH2sHL", 8, 0x1110, b"SQ", 0, 2**32 - 1) + inside + end
    path.write_bytes(data[:begin] + many + data[begin:])
