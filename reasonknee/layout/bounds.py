"""What a shard may unpack to, for all who read one: by the headers of its pages, before anything is unpacked.

A footer may claim what it likes. A decoder takes the memory that a page's header says and fills no more than
that, so the headers bound what a reader will have to hold. Knees unpack to a few times their size; what grows
two hundredfold was made to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from reasonknee.layout.parquet import thrift_struct

if TYPE_CHECKING:
    import pyarrow.parquet as pq

MAX_GROUP = 1 << 30  # bytes of a row group once unpacked: 20 times a full-size volume
MAX_FOOTER = 4 << 20  # bytes: ten times that of sixteen volumes in `cropped`
MOST_PARTS = 1 << 14  # of any list in a footer
SECONDS = 20.0  # of the processor for a look at a footer: a hundred times what a long one takes
OF_A_VALUE = 16  # bytes for its levels, its place in a dictionary or in a list
_FREE, _MOST_TIMES = 64 << 20, 200
_MAGIC, _AFTER = 4, 8  # bytes at either end of a file, and those with the length of the footer
_HEADER = 128  # bytes of a page header: a few dozen, as no statistics of byte strings are written
_LONG_HEADER = 1 << 16  # with statistics of long texts, as others write them
_DICTIONARY, _SECOND = 2, 3  # types of pages: a dictionary, and data of the second version
_ENCODINGS = (0, 2, 3, 8)  # plain, by a dictionary, or truths in runs: those that pyarrow writes by itself


def most_unpacked(packed: int) -> int:
    """Of so many bytes in a file."""
    return _FREE + _MOST_TIMES * packed


def footer_is_too_long(file: IO[bytes]) -> str:
    """Why a footer is better not parsed: it grows a hundredfold."""
    size = file.seek(0, 2)
    if size < _MAGIC + _AFTER:
        return ""
    file.seek(size - _AFTER)
    length = int.from_bytes(file.read(4), "little")
    return f"a footer of {length} bytes" if MAX_FOOTER < length <= size - _AFTER - _MAGIC else ""


def walked(path: Path) -> str:
    """Looks at what a footer says of each column chunk, in a process of its own: pyarrow ends it, rather than
    raise, where lengths in a footer do not agree."""
    import pyarrow.parquet as pq

    about = pq.ParquetFile(path, thrift_container_size_limit=MOST_PARTS).metadata
    for group in map(about.row_group, range(about.num_row_groups)):
        for n in range(about.num_columns):
            column = group.column(n)
            column.statistics  # noqa: B018 - what it is made of is what may not agree
            _check_path(column, about.schema.column(n).path)
    return ""


class Part:
    """Some bytes of a file, of which only those are read that are looked at."""

    def __init__(self, file: IO[bytes], start: int, stop: int) -> None:
        size = file.seek(0, 2)
        if not 0 <= start <= stop <= size:
            raise ValueError(f"bytes {start} to {stop} of a file of {size}")
        self._file, self._start, self._stop = file, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, where: slice) -> bytes:
        start, stop, _ = where.indices(len(self))
        self._file.seek(self._start + start)
        return self._file.read(stop - start)


class PageSizes(NamedTuple):
    """What the headers of a chunk's pages say: bytes once unpacked, of all and of the dictionary, and
    values."""

    unpacked: int
    dictionary: int
    values: int


def page_header(chunk: Any, at: int) -> tuple[dict[int, Any], int]:
    """The fields of the header that begins at a byte, and its length."""
    try:
        return thrift_struct(bytes(chunk[at : at + _HEADER]))
    except ValueError:
        return thrift_struct(bytes(chunk[at : at + _LONG_HEADER]))


def page_sizes(chunk: memoryview | Part) -> PageSizes:
    """Nothing is unpacked. It is by these numbers that a reader takes memory, not by those of the footer."""
    at, unpacked, dictionary, values = 0, 0, 0, 0
    while at < len(chunk):
        header, length = page_header(chunk, at)
        kind, size, packed = header.get(1), header.get(2), header.get(3)
        about = header.get({0: 5, 2: 7, 3: 8}.get(kind, 0)) if isinstance(kind, int) else None
        if not (isinstance(size, int) and isinstance(packed, int) and isinstance(about, dict)):
            raise ValueError("a page header without its numbers")
        if size < 0 or not 0 <= packed <= len(chunk) - at - length or not isinstance(about.get(1), int):
            raise ValueError(f"a page of {packed} and {size} bytes")
        if about.get(4 if kind == _SECOND else 2) not in _ENCODINGS:
            raise ValueError("a page in an encoding that may grow without bound")
        unpacked += size
        dictionary += size if kind == _DICTIONARY else 0
        values += 0 if kind == _DICTIONARY else max(about[1], 0)
        at += length + packed
    return PageSizes(unpacked, dictionary, values)


def check_chunks(
    chunks: Iterable[tuple[int, Any, memoryview | Part]], expanded: Callable[[str], int], most: int
) -> None:
    """Refuses column chunks, each given with the rows of its group and its bytes, that unpack to more than
    `most` bytes together.

    Each value may be a copy of the longest in its dictionary. Only where that would be too much, `expanded`
    is asked what they are, which costs as much as reading them.
    """
    total, copied = 0, dict[str, int]()
    for rows, column, chunk in chunks:
        pages, leaf = page_sizes(chunk), column.path_in_schema
        if not rows <= pages.values == column.num_values:
            told = f"{rows} rows and {column.num_values} values"
            raise ValueError(f"{pages.values} values in {leaf} where the footer says {told}")
        total += pages.unpacked + OF_A_VALUE * pages.values
        if total > most:
            raise ValueError(f"it unpacks to more than {most} bytes")
        if column.physical_type == "FIXED_LEN_BYTE_ARRAY":  # no release has one
            raise ValueError(f"{leaf} is of {column.physical_type}")
        if column.physical_type == "BYTE_ARRAY":
            copied[leaf] = copied.get(leaf, 0) + pages.dictionary * pages.values
    for leaf in sorted(copied, key=copied.__getitem__, reverse=True):
        if total + sum(copied.values()) <= most:
            return
        copied[leaf] = expanded(leaf)
        if total + copied[leaf] > most:
            raise ValueError(f"its column {leaf} unpacks to {copied[leaf]} bytes")
    if total + sum(copied.values()) > most:
        raise ValueError(f"it unpacks to more than {most} bytes")


def check_groups(
    file: pq.ParquetFile,
    place: Path | IO[bytes],
    groups: Sequence[int],
    columns: Sequence[str] | None = None,
) -> None:
    """Refuses row groups of an open shard before columns of them are read, all by default."""
    names = columns if columns is not None else file.schema_arrow.names
    about = [(file.metadata.row_group(group), group) for group in groups]
    with raw_bytes(place) as raw:
        packed = sum(g.column(i).total_compressed_size for g, _ in about for i in range(g.num_columns))
        most = most_unpacked(min(raw.seek(0, 2), packed))
        if len(groups) == 1:
            most = min(most, MAX_GROUP)
        chunks = (
            (group.num_rows, c, Part(raw, *extent(c)))
            for group, number in about
            for c in chunks_of(file.metadata, number, names)
            if c.num_values
        )
        check_chunks(chunks, lambda leaf: sum(bytes_of(file, place, g, leaf) for g in groups), most)


def raw_bytes(place: Path | IO[bytes]) -> AbstractContextManager[IO[bytes]]:
    """Of a shard by its path, or of one that is open already, which stays so."""
    return place.open("rb") if isinstance(place, Path) else nullcontext(place)


def bytes_of(file: pq.ParquetFile, place: Any, group: int, leaf: str) -> int:
    """Bytes of a column of text once every row has its own; its dictionary is read, not its rows."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(place, metadata=file.metadata, read_dictionary=[leaf])
    total = 0
    for chunk in parquet.read_row_group(group, columns=[leaf], use_threads=False).column(0).chunks:
        for array in _leaves(chunk):
            if not hasattr(array, "dictionary"):
                total += array.nbytes
                continue
            lengths = pc.binary_length(array.dictionary)
            total += pc.sum(pc.take(lengths, array.indices)).as_py() or 0
    return int(total)


def _leaves(array: Any) -> Iterator[Any]:
    """The values at the bottom of structs and lists."""
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        for number in range(array.type.num_fields):
            yield from _leaves(array.field(number))
    elif pa.types.is_list(array.type):
        yield from _leaves(array.flatten())
    else:
        yield array


def chunks_of(footer: Any, group: int, columns: Sequence[str]) -> list[Any]:
    """The column chunks of a row group that belong to some columns, whole or by their parts: found by their
    place in the schema, as pyarrow finds them."""
    about, schema, chunks = footer.row_group(group), footer.schema, []
    for i in range(about.num_columns):
        path = schema.column(i).path
        if any(path == c or path.startswith(f"{c}.") for c in columns):
            chunks.append(_check_path(about.column(i), path))
    return chunks


def _check_path(chunk: Any, path: str) -> Any:
    if chunk.path_in_schema != path:
        raise ValueError(f"a chunk of {chunk.path_in_schema} in the place of {path}")
    return chunk


def extent(chunk: Any) -> tuple[int, int]:
    """Where the bytes of a column chunk start, and where they end."""
    start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    return start, start + chunk.total_compressed_size
