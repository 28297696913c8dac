"""Shards read a few row groups at a time, with page checksums verified, and laid flat: quintuples are
quintuples whatever the config."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.boxes import BOX_FIELDS
from reasonknee.errors import ReasonKneeError, StorageError, shown
from reasonknee.layout import PER_VOLUME, Shard
from reasonknee.layout.bounds import MOST_PARTS, SECONDS, footer_is_too_long, walked
from reasonknee.layout.dataset import KNEE, Dataset
from reasonknee.questions import ATTRIBUTES, QUESTIONS, REGIONS
from reasonknee.system.limits import look_first
from reasonknee.validation.findings import Findings
from reasonknee.validation.pages import Size, check_pages

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

NONE = -(1 << 40)  # stands for null in the arrays below: no int32 has this value
# Values that many rows share are read as a dictionary and looked at once.
_SHARED = (
    "volume.bytes",
    "question.zero_shot",
    "question.instruction",
    "question.region",
    "reasoning.list.element",
    "question_id",
    "category",
    "region",
)
_IN_LIST = "quintuples.list.element."


@dataclass(frozen=True)
class Batch:
    """A row group, or those that one volume is spread over."""

    config: str
    split: str
    path: str
    table: pa.Table
    number: np.ndarray  # of each row in the shard

    @cached_property
    def _flat(self) -> tuple[pa.Table, np.ndarray]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.config not in PER_VOLUME:
            return self.table, np.arange(len(self.table))
        lists = whole(self.table["quintuples"])
        flat = lists.flatten()
        return pa.Table.from_arrays(
            flat.flatten(), names=[f.name for f in flat.type]
        ), pc.list_parent_indices(lists).to_numpy()

    @property
    def flat(self) -> pa.Table:
        """A row per quintuple."""
        return self._flat[0]

    @property
    def row(self) -> np.ndarray:
        """For each quintuple, its row in `table`."""
        return self._flat[1]

    def place(self, quintuple: int) -> str:
        row = int(self.row[quintuple])
        return f"{self.path} row {self.number[row]}, id {shown(self.flat['id'][quintuple].as_py())}"

    def place_of_row(self, row: int) -> str:
        name = "volume_id" if self.config in PER_VOLUME else "id"
        return f"{self.path} row {self.number[row]}, id {shown(self.table[name][row].as_py())}"

    @cached_property
    def question(self) -> np.ndarray:
        """For each quintuple the number of its question in the table, -1 if there is no such question."""
        numbers = {name: n for n, name in enumerate(QUESTIONS)}
        codes, values = encoded(self.flat["question_id"])
        of_value = np.array([numbers.get(v, -1) for v in values] + [-1])  # a null has the code -1
        asked: np.ndarray = of_value[codes]
        return asked

    @cached_property
    def grades(self) -> np.ndarray:
        """quintuples x attributes, NONE for null."""
        return _matrix(self.flat["grades"], ATTRIBUTES)

    @cached_property
    def box(self) -> np.ndarray:
        """quintuples x 6, NONE for null."""
        return _matrix(self.flat["box"], BOX_FIELDS)

    @cached_property
    def crop(self) -> np.ndarray:
        return _matrix(self.flat["crop"], BOX_FIELDS)

    @cached_property
    def shape(self) -> np.ndarray:
        """rows x 3."""
        return _matrix(self.table["shape"], "zyx")

    @cached_property
    def spacing(self) -> np.ndarray:
        return _matrix(self.table["spacing"], "zyx", "float64")


def whole(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; `combine_chunks` alone would copy the one piece that there is.

    Voxels are left in their pieces.
    """
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def encoded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """A column as codes and the values they stand for; null is -1."""
    import pyarrow as pa

    array = whole(column) if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    return array.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(
        np.int64
    ), array.dictionary.to_pylist()


def _matrix(column: pa.ChunkedArray, names: Iterable[str], dtype: str = "int64") -> np.ndarray:
    import pyarrow.compute as pc

    return np.stack(
        [pc.fill_null(pc.cast(pc.struct_field(column, name), dtype), NONE).to_numpy() for name in names],
        axis=1,
    )


@dataclass(frozen=True)
class ShardFile:
    """A shard that is Parquet of its config, ready to be read with checksums."""

    config: str
    split: str
    path: str
    parquet: pq.ParquetFile
    sizes: list[Size | None]  # of its row groups; None for one that must not be read


def opened(
    root: Path, shard: Shard, findings: Findings, *, quick: bool = False, dataset: Dataset = KNEE
) -> ShardFile | None:
    """The shard; None, and a finding, if it is not Parquet or not of its config. To be `quick`, its footer
    alone is looked at."""
    import pyarrow.parquet as pq

    path, limits = shard.path, {"thrift_container_size_limit": MOST_PARTS}
    try:
        with (root / path).open("rb") as raw:
            if told := footer_is_too_long(raw):
                findings.add("X417", path, told)
                return None
        look_first(root / path, walked, SECONDS)
        file = pq.ParquetFile(root / path, **limits)
        leaves = [file.schema.column(i).path for i in range(len(file.schema))]
        shared = [
            leaf
            for leaf in leaves
            if leaf.removeprefix(_IN_LIST) in _SHARED
            and (leaf != "volume.bytes" or shard.config == "cropped")
        ]
        schema, wanted = file.schema_arrow.remove_metadata(), dataset.arrow_schema(shard.config)
        file = pq.ParquetFile(
            root / path,
            metadata=file.metadata,
            read_dictionary=shared,
            page_checksum_verification=True,
            pre_buffer=False,  # which would copy what is read from a disk once more
            **limits,
        )
    except Exception as error:  # Arrow's errors on a damaged footer are of many types
        storage_error(error, path)
        why = error.message if isinstance(error, ReasonKneeError) else error
        findings.add("X406", path, shown(why, 160))
        return None
    if schema != wanted:
        got, want = ({f.name: f.type for f in s} for s in (schema, wanted))
        wrong = [name for name in {**want, **got} if got.get(name) != want.get(name)]
        findings.add(
            "X101",
            path,
            f"missing, unknown or of another type: {shown(', '.join(wrong) or 'the order of columns')}",
        )
        return None
    sizes = [] if quick else check_pages(root, path, file, shared, findings)
    return ShardFile(shard.config, shard.split, path, file, sizes)


def storage_error(error: Exception, path: str) -> None:
    """An error of the disk is not a finding about the release."""
    if isinstance(error, StorageError):  # told by a process of its own
        raise error.at(path)
    if isinstance(error, OSError) and error.errno is not None:
        raise StorageError(
            "X000", f"{path}: {error.strerror}", "check the disk and the permissions"
        ) from None


def batches(shard: ShardFile, findings: Findings) -> Iterator[Batch]:
    """The row groups that can be read, those that share a volume together; the others become findings."""
    if shard.config in PER_VOLUME:  # a row that is a volume ends with itself
        for group in row_groups(shard, findings):
            _check_members(group.table, shard.config, group.place, findings)
            yield _joined([group], shard)
            del group  # before the next is read: half the memory
        return
    pending: list[_Group] = []
    together = Size(0, 0)
    for group in row_groups(shard, findings):
        _check_members(group.table, shard.config, group.place, findings)
        more = together + group.size
        if pending and not (_goes_on(pending[-1], group) and more.unpacked <= more.most):
            yield _joined(pending, shard)
            pending, more = [], group.size
        pending.append(group)
        together = more
    if pending:
        yield _joined(pending, shard)


@dataclass(frozen=True)
class _Group:
    start: int  # number of its first row in the shard
    size: Size
    table: pa.Table
    place: str


def row_groups(shard: ShardFile, findings: Findings) -> Iterator[_Group]:
    """Those of any dataset that can be read and hold a row, with their statistics compared."""
    start = 0
    for number, size in enumerate(shard.sizes):
        group, place = shard.parquet.metadata.row_group(number), f"{shard.path} row group {number}"
        start, first = start + group.num_rows, start
        if size is None:
            continue
        try:
            table = shard.parquet.read_row_group(number, use_threads=False)
            table.validate(full=True)
        except Exception as error:  # a damaged page raises errors of many types
            storage_error(error, shard.path)
            findings.add("X406", place, shown(error, 160))
            continue
        try:
            _check_statistics(table, group, place, findings)
        except Exception as error:  # statistics may be of any bytes
            findings.add("X415", place, f"they cannot be read: {shown(error, 120)}")
        if len(table):
            yield _Group(first, size, table, place)
        del table  # before the next is read


def _check_members(table: pa.Table, config: str, place: str, findings: Findings) -> None:
    """Whose rows a row group holds: readers take it for granted."""
    ids = table["volume_id"].unique().to_pylist()
    sections = (
        {REGIONS[r].section for r in encoded(table["region"])[1] if r in REGIONS}
        if config == "cropped"
        else set()
    )
    if config != "annotations" and (
        len(ids) > 1 or len(sections) > 1 or (config in PER_VOLUME and len(table) > 1)
    ):
        told = f"{len(table)} rows of {len(ids)} volumes"
        findings.add("X114", place, told + (f" and {len(sections)} sections" if sections else ""))


def _check_statistics(table: pa.Table, group: Any, place: str, findings: Findings) -> None:
    """Smallest, largest and nulls of every column that has them told, nested ones too: readers skip a row
    group by them."""
    for number in range(group.num_columns):
        column = group.column(number)
        told, name = column.statistics if column.is_stats_set else None, column.path_in_schema
        if told is None:
            continue
        values, nulls = _leaf(table, name)
        different = [v for v in encoded(values)[1] if v is not None]
        real = (min(different), max(different)) if different else (None, None)
        if told.has_min_max and (told.min, told.max) != real:
            findings.add(
                "X415",
                f"{place}, {name}",
                f"{shown(told.min)!r} to {shown(told.max)!r} where the rows hold {shown(real[0])!r} to "
                f"{shown(real[1])!r}",
            )
        if told.has_null_count and told.null_count != nulls:
            findings.add("X415", f"{place}, {name}", f"{told.null_count} nulls where there are {nulls}")


def _leaf(table: pa.Table, name: str) -> tuple[pa.Array, int]:
    """The values of a column by its name in Parquet, and how many nulls it counts: a list that is empty, or
    not there, is one of them."""
    import pyarrow.compute as pc

    first, *rest = name.split(".")
    values, absent = whole(table[first]), 0
    while rest:
        step = rest.pop(0)
        if step == "list":
            rest.pop(0)
            absent += int(pc.sum(pc.equal(pc.fill_null(pc.list_value_length(values), 0), 0)).as_py() or 0)
            values = pc.list_flatten(values)
        else:
            values = pc.struct_field(values, step)
    return values, absent + values.null_count


def _goes_on(before: _Group, after: _Group) -> bool:
    """Whether the second group starts with the volume that the first one ends with."""
    last, first = before.table["volume_id"][-1].as_py(), after.table["volume_id"][0].as_py()
    return bool(last == first)


def _joined(groups: list[_Group], shard: ShardFile) -> Batch:
    import pyarrow as pa

    table = pa.concat_tables([g.table for g in groups])  # the pieces stay where they are
    number = np.concatenate([np.arange(g.start, g.start + len(g.table)) for g in groups])
    return Batch(shard.config, shard.split, shard.path, table, number)
