"""How rows become Parquet: the writer's settings, and the headers of its pages.

A file is a run of column chunks, a chunk a run of pages, a page a header in Thrift's compact form and its
bytes. Whoever does not believe a footer walks along these headers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from reasonknee.layout.dataset import KNEE, Dataset

if TYPE_CHECKING:
    import pyarrow as pa


class Unusual(Exception):  # noqa: N818 - not an error: another reader is asked
    """A chunk written in a way that no release is."""


def writer_settings(config: str, dataset: Dataset = KNEE) -> dict[str, Any]:
    """Pinned, so that the same rows are the same bytes. Questions on one region share its bytes by dictionary
    encoding.

    Only voxels and long texts are compressed: for the few numbers of a row group, a reader would spend its
    time on setting up decompression.
    """
    leaves = dict(_leaves(dataset.arrow_schema(config)))
    packed = [name for name in leaves if name.endswith(dataset.packed)]
    return {
        "version": "2.6",
        "data_page_version": "1.0",
        "compression": {name: "zstd" if name in packed else "none" for name in leaves},
        "compression_level": dict.fromkeys(packed, 3),
        "use_dictionary": [
            name
            for name, kind in leaves.items()
            # what readers have said is said once: a dictionary would only bound it badly
            if (kind == "text" and not name.endswith(dataset.said_once))
            or (kind == "bytes" and config in dataset.shares_bytes)
        ],
        "dictionary_pagesize_limit": 1
        << 30,  # a region's bytes stay in the dictionary however large they are
        "write_statistics": [name for name in leaves if name.rpartition("element.")[2] in dataset.selected],
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": True,
    }


def _leaves(arrow: pa.Schema) -> Iterator[tuple[str, str]]:
    """Parquet's name of each column, and whether it holds "bytes", "text" or a "number"."""
    import pyarrow as pa

    def walk(name: str, kind: pa.DataType) -> Iterator[tuple[str, str]]:
        if pa.types.is_struct(kind):
            for field in kind:
                yield from walk(f"{name}.{field.name}", field.type)
        elif pa.types.is_list(kind):
            yield from walk(f"{name}.list.element", kind.value_type)
        else:
            yield (
                name,
                "bytes" if pa.types.is_binary(kind) else "text" if pa.types.is_string(kind) else "number",
            )

    for field in arrow:
        yield from walk(field.name, field.type)


# --- Thrift's compact form, as far as page headers need it --------------------------------------------------


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def thrift_struct(data: bytes, at: int = 0, level: int = 0) -> tuple[dict[int, Any], int]:
    """The fields of a struct by number, and where it ends.

    Numbers, truths and structs are kept, bytes passed over.
    """
    fields: dict[int, Any] = {}
    number, end = 0, len(data)
    while True:
        if at >= end or level > 4:
            raise ValueError("a page header that does not end")
        head = data[at]
        at += 1
        kind = head & 0x0F
        if kind == 0:
            return fields, at
        if head >> 4:
            number += head >> 4
        else:
            raw, at = varint(data, at)
            number = raw >> 1 ^ -(raw & 1)
        if number in fields:  # of which a decoder may believe the other one
            raise Unusual("a page header with a field that stands twice")
        if kind in (1, 2):
            fields[number] = kind == 1
        elif kind in (3, 4, 5, 6):
            if kind == 3 or (at < end and data[at] < 0x80):  # one byte: most of them
                raw, at = data[at] if at < end else 0, at + 1
            else:
                raw, at = varint(data, at)
            fields[number] = raw >> 1 ^ -(raw & 1)
        elif kind == 8:
            size, at = varint(data, at)
            at += size
        elif kind == 12:
            fields[number], at = thrift_struct(data, at, level + 1)
        else:
            raise Unusual(f"a page header with a field of type {kind}")
