"""Byte strings straight from Parquet pages: what pyarrow reads, or a clear no; and memory that is used again only when nobody looks at it."""

from __future__ import annotations

import gc
import io
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee.layout.bounds import extent
from reasonknee.stream.pages import Unusual, from_arrow, read_chunk
from reasonknee.system.memory import Recycled

KIND = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
Values = list[bytes | None]


def written(values: Values, **how: Any) -> bytes:
    rows = [None if v is None else {"bytes": v, "path": None} for v in values]
    out = io.BytesIO()
    defaults = {
        "compression": "zstd",
        "write_page_checksum": True,
        "use_dictionary": True,
        "write_statistics": False,
    }
    pq.write_table(pa.table({"volume": pa.array(rows, KIND)}), out, **{**defaults, **how})
    return out.getvalue()


def chunk_of(data: bytes) -> tuple[memoryview, str, int, int]:
    footer = pq.read_metadata(io.BytesIO(data))
    column, group = footer.row_group(0).column(0), footer.row_group(0)
    start, stop = extent(column)
    return (
        memoryview(data)[start:stop],
        column.compression,
        footer.schema.column(0).max_definition_level,
        group.num_rows,
    )


def by_hand(data: bytes) -> Values:
    values, keys = read_chunk(*chunk_of(data), Recycled())
    return [None if key is None else bytes(values[key]) for key in keys]


some_bytes = st.one_of(
    st.none(), st.binary(max_size=40), st.sampled_from([b"", b"a" * 5000, bytes(range(256)) * 8])
)


@settings(max_examples=150)
@given(
    values=st.lists(some_bytes, min_size=1, max_size=80),
    dictionary=st.booleans(),
    packed=st.sampled_from(["zstd", "none"]),
    page=st.sampled_from([1, 300, 1 << 20]),
    limit=st.sampled_from([1, 4000, 1 << 30]),
)
def test_what_pyarrow_wrote_is_read(
    values: Values, dictionary: bool, packed: str, page: int, limit: int
) -> None:
    data = written(
        values,
        use_dictionary=dictionary,
        compression=packed,
        data_page_size=page,
        dictionary_pagesize_limit=limit,
        write_batch_size=4,
    )
    assert by_hand(data) == values
    column = pq.read_table(io.BytesIO(data), read_dictionary=["volume.bytes"] if dictionary else [])[
        "volume"
    ].combine_chunks()
    stored = from_arrow(column)
    assert [None if key is None else bytes(stored.values[key]) for key in stored.keys] == values


@pytest.mark.parametrize(
    "how", [{"data_page_version": "2.0"}, {"compression": "snappy"}, {"write_page_checksum": False}]
)
def test_what_is_not_understood_is_left_to_pyarrow(how: dict[str, Any]) -> None:
    with pytest.raises(Unusual):
        by_hand(written([b"abc", None, b"abc" * 500], **how))


@pytest.mark.parametrize(
    "how", [{"use_dictionary": True}, {"use_dictionary": False}, {"compression": "none"}]
)
def test_a_flipped_bit_is_never_read_as_a_value(how: dict[str, Any]) -> None:
    noise = np.random.default_rng(0)
    values: Values = [noise.bytes(100) for _ in range(6)]
    values += [None, values[2]]
    data = written(values, **how)
    start, stop = extent(pq.read_metadata(io.BytesIO(data)).row_group(0).column(0))
    refused = 0
    for place in range(start, stop):
        for bit in (0, 5):
            bad = bytearray(data)
            bad[place] ^= 1 << bit
            try:
                assert by_hand(bytes(bad)) == values  # a flag that nobody reads
            except (ValueError, OSError, Unusual):
                refused += 1
    assert refused > 1.8 * (stop - start)


@settings(max_examples=200)
@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 50))
def test_any_bytes_are_a_chunk_or_an_error(data: bytes, depth: int, rows: int) -> None:
    try:
        found = read_chunk(memoryview(data), "ZSTD", depth, rows, Recycled())
    except (ValueError, OSError, Unusual):
        return
    assert len(found.keys) == rows


def test_memory_is_used_again_when_its_last_view_is_gone() -> None:
    memory = Recycled()
    first = memory.take(3 << 20)
    place = first.ctypes.data
    first[:] = 7
    view = np.frombuffer(first[1000:2000].data, np.uint16)
    del first
    gc.collect()
    second = memory.take(3 << 20)
    assert second.ctypes.data != place
    second[:] = 9
    assert (view == 7 * 257).all()
    del view
    gc.collect()
    assert memory.take(3 << 20).ctypes.data == place


def test_no_more_than_some_memory_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reasonknee.system.memory._SPARE", 4 << 20)
    memory = Recycled()
    held = [memory.take(1 << 20) for _ in range(40)]
    del held
    gc.collect()
    assert memory.spare() == 4 << 20


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 9 << 20), st.integers(0, 20)), max_size=120))
def test_memory_is_little_more_than_what_was_in_use_at_once(steps: list[tuple[int, int]]) -> None:
    memory, held, most = Recycled(), list[np.ndarray](), 0
    for size, let_go in steps:
        held.append(memory.take(size))
        most = max(most, memory.used())
        del held[: max(0, let_go - 10)]
        assert memory.used() + memory.spare() <= most + (32 << 20)


def test_a_forked_process_has_memory_of_its_own() -> None:
    memory = Recycled()
    first = memory.take(1 << 20)
    first[:] = 7
    pid = os.fork()
    if pid == 0:
        del first
        again = memory.take(1 << 20)
        again[:] = 9
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert (first == 7).all()
