"""Which volumes a source has, which questions are asked of each, and in which rows they lie: found without
reading a volume.

What is not selected is passed over by the statistics in a shard's footer; small columns are read only where
the footer does not tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from reasonknee.errors import DataError
from reasonknee.layout import PER_VOLUME
from reasonknee.layout.records import arrow_schema
from reasonknee.questions import QUESTIONS, REGIONS, Question
from reasonknee.questions.regions import SECTIONS
from reasonknee.stream.parquet import Bounds, Shards, Wanted
from reasonknee.stream.selection import Selection
from reasonknee.volumes.grid import MAX_BYTES

if TYPE_CHECKING:
    import pyarrow as pa

NESTED = "quintuples.list.element."
_TEXT = 1 << 16  # bytes of a quintuple without voxels, ten times what one takes
_RANK = {name: i for i, name in enumerate(QUESTIONS)}


@dataclass(frozen=True)
class Entry:
    """A volume of a source: its wanted questions in the table's order, and which rows hold them."""

    volume_id: str
    questions: tuple[str, ...]
    parts: tuple[Rows, ...]


class Rows(NamedTuple):
    """Rows of a source that lie together."""

    shard: int
    group: int
    first: int
    many: int


class Run(NamedTuple):
    """Neighbouring rows on one volume, and what is asked in them."""

    volume_id: str
    questions: Sequence[str]
    boxed: Sequence[bool]  # of each question; empty where that was not read
    rows: Rows


def bytes_a_row(config: str) -> int:
    """The most that a row of a config may unpack to, but for its volume."""
    text = _TEXT * (len(QUESTIONS) if config in PER_VOLUME else 1)
    return text + MAX_BYTES if config == "embeddings" else text


def entries_of(runs: Iterable[Run]) -> list[Entry]:
    """Neighbouring runs of one volume make one entry, its questions in the table's order however they are
    stored: the same in every config."""
    entries = []
    for volume_id, parts in groupby((r for r in runs if r.questions), key=lambda r: r.volume_id):
        members = list(parts)
        asked = sorted((q for run in members for q in run.questions), key=lambda q: _RANK.get(q, len(_RANK)))
        if len(set(asked)) < len(asked):
            raise DataError(
                "D056", f"{volume_id} is asked a question twice", "give each row once; a release is damaged"
            )
        entries.append(Entry(volume_id, tuple(asked), tuple(run.rows for run in members)))
    return entries


class Footers:
    """Finds volumes and their questions in a shard's footer; reads their small columns only where the
    footer does not tell."""

    def __init__(self, shards: Shards, config: str, asked: Sequence[Question], wanted: Selection) -> None:
        self.shards, self.config, self.wanted = shards, config, wanted
        self.prefix = NESTED if config in PER_VOLUME else ""
        self.asked = {
            section: tuple(q.id for q in asked if section in ("", q.region.section))
            for section in ("", *SECTIONS)
        }

    def shard(self, number: int) -> list[Run]:
        footer, stored = self.shards.footer(number), self.shards.stored[number]
        try:
            same_fields = self.shards.fields(number).equals(arrow_schema(self.config))
            runs = [
                run
                for group in range(footer.num_row_groups)
                for run in self._group(number, group, footer.row_group(group))
            ]
        except (
            ArithmeticError,
            LookupError,
            ValueError,
        ) as error:  # names and numbers that a damaged footer makes up
            raise DataError(
                "D025",
                f"{stored.path}: {type(error).__name__}: {error}"[:200],
                "its footer is damaged: copy or download it again",
            ) from None
        if not same_fields or footer.num_rows != stored.rows:
            raise DataError(
                "D025",
                f"{stored.path} has other columns, or another number of rows, than the manifest says",
                "copy or download it again",
            )
        return runs

    def _group(self, number: int, group: int, meta: Any) -> Iterator[Run]:
        chunks = {meta.column(i).path_in_schema: meta.column(i) for i in range(meta.num_columns)}
        only = _only_value(chunks["volume_id"].statistics)
        if only is not None and not self.wanted.takes(only):
            return
        complete = self.asked[self._section(chunks)]
        if (
            only is not None
            and chunks[f"{self.prefix}question_id"].num_values == len(complete)
            and self._all_boxed(chunks)
        ):
            yield Run(only, chosen(self.wanted, complete, ()), (), Rows(number, group, 0, meta.num_rows))
            return
        names = [
            "volume_id",
            f"{self.prefix}question_id",
            *([f"{self.prefix}box.z0"] if self.wanted.boxed else []),
        ]
        table = self.shards.read(Wanted(number, [group], names), Bounds(bytes_a_row(self.config)))[0].table
        for run in selected(self.wanted, stored_questions(table)):
            yield run._replace(rows=run.rows._replace(shard=number, group=group))

    def _section(self, chunks: dict[str, Any]) -> str:
        """The section of the knee that a row group of `cropped` is on; "" for other configs."""
        regions = chunks["region"].statistics if self.config == "cropped" else None
        return REGIONS[regions.min].section if regions is not None and regions.has_min_max else ""

    def _all_boxed(self, chunks: dict[str, Any]) -> bool:
        stats = chunks[f"{self.prefix}box.z0"].statistics
        return not self.wanted.boxed or bool(stats and stats.has_null_count and stats.null_count == 0)


def selected(wanted: Selection, runs: Iterable[Run]) -> Iterator[Run]:
    for run in runs:
        if wanted.takes(run.volume_id):
            yield run._replace(questions=chosen(wanted, run.questions, run.boxed))


def chosen(wanted: Selection, questions: Sequence[str], boxed: Sequence[bool]) -> tuple[str, ...]:
    """The questions that are wanted; all count as boxed where nothing says otherwise."""
    kept = wanted.questions
    return tuple(
        q
        for i, q in enumerate(questions)
        if (kept is None or q in kept) and (not wanted.boxed or not boxed or boxed[i])
    )


def _only_value(statistics: Any) -> str | None:
    """The one value that a column chunk holds, if its statistics say so."""
    if (
        statistics is None
        or not statistics.has_min_max
        or statistics.min != statistics.max
        or statistics.min.count("-") != 2
    ):
        return None
    return str(statistics.min)


def stored_questions(table: pa.Table) -> Iterator[Run]:
    """A run for all neighbouring rows of a table on one volume."""
    ids = table.column("volume_id").to_pylist()
    if "quintuples" in table.column_names:
        for i, cell in enumerate(table.column("quintuples")):
            struct = cell.values
            questions = struct.field("question_id").to_pylist() if struct is not None else []
            has_box = struct is not None and "box" in {f.name for f in struct.type}
            boxed = struct.field("box").is_valid().to_pylist() if has_box else []
            yield Run(ids[i], questions, boxed, Rows(0, 0, i, 1))
        return
    questions = table.column("question_id").to_pylist()
    boxed = table.column("box").is_valid().to_pylist() if "box" in table.column_names else []
    first = 0
    for volume_id, run in groupby(ids):
        stop = first + len(list(run))
        yield Run(volume_id, questions[first:stop], boxed[first:stop], Rows(0, 0, first, stop - first))
        first = stop
