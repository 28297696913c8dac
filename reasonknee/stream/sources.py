"""Where quintuples come from: the Parquet shards of a release, in a folder or on the Hub, or a map-style dataset in the `datasets` cache.

A source knows its volumes without having read them (`entries`) and opens one at a time (`open`). What is not selected is not read: row groups are
passed over by the statistics in a shard's footer, and only the wanted columns are fetched. Parquet pages are checked against their checksums.
A source is light and travels to worker processes; each process, and each thread in it, opens its own handles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reasonknee.errors import DataError, UsageError
from reasonknee.manifest import Manifest, read_manifest
from reasonknee.questions import QUESTIONS, Question, question_set
from reasonknee.records import PER_VOLUME, arrow_schema, fields
from reasonknee.regions import REGIONS, SECTIONS
from reasonknee.stream.opened import Crops, Embedded, Opened, Payload, Row, Whole, ordered
from reasonknee.stream.pages import Bytes, from_arrow
from reasonknee.stream.parquet import Folder, Group, Repo, Shards
from reasonknee.stream.selection import Selection

if TYPE_CHECKING:
    import pyarrow as pa

_PAYLOAD = {"cropped": "volume", "full": "volume", "embeddings": "embedding"}
_ALWAYS = ("id", "question_id")  # what a row is; kept whatever columns are asked for
_RANK = {name: i for i, name in enumerate(QUESTIONS)}
_NESTED = "quintuples.list.element."


@dataclass(frozen=True)
class Entry:
    """A volume of a source: its wanted questions in the table's order, and which rows hold them as (shard, row group, first row, rows)."""

    volume_id: str
    questions: tuple[str, ...]
    parts: tuple[tuple[int, int, int, int], ...]


class Source(Protocol):
    entries: list[Entry]
    config: str
    remote: bool

    def open(self, entry: Entry, margin_mm: float | None = None) -> Opened:
        """Reads one volume; with a margin, its regions are served in place of the whole."""


def find(
    source: Any, config: str | None, split: str, wanted: Selection, columns: frozenset[str] | None, revision: str | None, hub: dict[str, Any]
) -> Source:
    """The source that a user means: a release folder, the id of a Hub repo, or a dataset that `load_dataset` gave."""
    if isinstance(source, str | Path):
        config = config or "cropped"
        chosen = Columns(config, columns)
        if Path(source).is_dir():
            manifest = read_manifest(Path(source))
            return _from_release(Folder(Path(source), *_paths(manifest, config, split, source)), manifest, chosen, wanted)
        if isinstance(source, str) and source.count("/") == 1 and not source.startswith((".", "/", "~")):
            repo, manifest = Repo.at(source, revision, hub)
            return _from_release(repo.of(*_paths(manifest, config, split, source)), manifest, chosen, wanted)
        raise UsageError("D020", f"no release at {source}", "give a release folder, a Hub repo id, or a dataset from `load_dataset`")
    if isinstance(source, dict) and split in source:  # a DatasetDict
        source = source[split]
    if not (hasattr(source, "features") and hasattr(source, "__len__")):
        raise UsageError(
            "D020",
            f"{type(source).__name__} cannot be read at random",
            "stream a Hub repo by its id; for rows that come one by one there is `explode`",
        )
    return Cached(source, config, wanted, columns)


def _paths(manifest: Manifest, config: str, split: str, source: object) -> tuple[list[str], list[int]]:
    shards = manifest.of(config, split)
    if not shards:
        have = ", ".join(sorted({f"{s.config}/{s.split}" for s in manifest.shards}))
        raise UsageError("D021", f"{source} has no {config}/{split}", f"it has {have}")
    return [s.path for s in shards], [s.rows for s in shards]


@dataclass(frozen=True)
class Columns:
    """The columns of a config to read: all, or those that rows are to have and what it takes to make them."""

    config: str
    wanted: frozenset[str] | None

    def __post_init__(self) -> None:
        known = {f.name for f in (*fields(self.config), *(fields("annotations") if self.config in PER_VOLUME else ()))} - {"quintuples"}
        if self.wanted is not None and (unknown := sorted(self.wanted - known)):
            raise UsageError("D022", f"{self.config} has no column {unknown[0][:60]!r}", f"choose among {', '.join(sorted(known))}")

    @property
    def payload(self) -> str | None:
        name = _PAYLOAD.get(self.config)
        return name if self.wanted is None or name in self.wanted else None

    def names(self) -> list[str]:
        """Parquet's names of them, less the volume, whose bytes are read apart."""
        if self.wanted is None:
            return [f.name for f in fields(self.config) if f.name != "volume"]
        names = {*self.wanted, *_ALWAYS, "volume_id"} - {"volume"}
        if self.payload == "volume":
            names |= {"cropped": {"crop", "box"}, "full": {"shape", "spacing", "box"}}[self.config]
        if self.config in PER_VOLUME:
            own = {f.name for f in fields(self.config)}
            return sorted(n if n in own else _NESTED + n for n in names)
        return sorted(names)


# --- a volume out of Arrow --------------------------------------------------------------------------------------------------------


def opened(parts: Sequence[Group], columns: Columns, entry: Entry, where: str, margin_mm: float | None) -> Opened:
    rows: list[Row] = []
    for part in parts:
        plain = part.table.drop_columns(["embedding"]) if columns.payload == "embedding" else part.table
        rows += plain.to_pylist()
    payload: Payload | None = None
    if columns.config in PER_VOLUME:
        (about,) = rows
        rows = [ordered({**about, **q}) for q in about.pop("quintuples")]
        payload = _payload(parts[0], columns.payload, about, margin_mm) if columns.payload else None
    else:
        crops = [row.pop("crop", None) for row in rows]
        rows = [ordered(row) for row in rows]
        payload = _crops(parts, crops) if columns.payload else None
    found = Opened(rows, payload, where)
    if {r["volume_id"] for r in rows} != {entry.volume_id} or not set(entry.questions) <= set(found.index):
        raise DataError("D023", f"{where} holds other rows than {entry.volume_id} with its questions", "the shard is damaged, or changed meanwhile")
    return found


def _payload(part: Group, name: str, about: Row, margin_mm: float | None) -> Payload:
    stored = part.stored
    if name == "embedding":
        column = part.table.column(name).chunk(0)
        stored = from_arrow(column)
    if stored is None or stored.keys != [0]:
        raise DataError("D024", f"{about['volume_id']} has no {name}", "the release is damaged")
    if name == "volume":
        return Whole(stored.values[0], about, margin_mm)
    return Embedded({k: column.field(k)[0].as_py() for k in ("dtype", "tokens", "width")}, stored.values[0])


def _crops(parts: Sequence[Group], crops: Sequence[Any]) -> Crops:
    keys: list[int | None] = []
    data: list[Any] = []
    for stored in (part.stored for part in parts if part.stored is not None):
        keys += [None if key is None else len(data) + key for key in stored.keys]
        data += stored.values
    if len(data) == len(keys):  # each row has bytes of its own, as in the `datasets` cache: those of one place are the same
        by_place: dict[tuple[int, ...], int] = {}
        keys = [key if key is None or not place else by_place.setdefault(tuple(place.values()), key) for key, place in zip(keys, crops, strict=True)]
    return Crops(keys, data, crops)


# --- a release --------------------------------------------------------------------------------------------------------------------


def _from_release(shards: Shards, manifest: Manifest, columns: Columns, wanted: Selection) -> Source:
    index = _Index(shards, columns.config, question_set(manifest.questions), wanted)
    with ThreadPoolExecutor(8 if shards.remote else 1) as pool:
        runs = [run for found in pool.map(index.shard, range(len(shards.paths))) for run in found]
    return Release(shards, columns, _entries(runs))


Run = tuple[str, tuple[str, ...], tuple[int, int, int, int]]  # volume, its wanted questions, where


def _entries(runs: Iterable[Run]) -> list[Entry]:
    """Neighbouring runs of one volume make one entry, its questions in the table's order however they are stored: the same in every config."""
    entries = []
    for volume_id, parts in groupby((r for r in runs if r[1]), key=lambda r: r[0]):
        members = list(parts)
        asked = sorted((q for _, questions, _ in members for q in questions), key=lambda q: _RANK.get(q, len(_RANK)))
        entries.append(Entry(volume_id, tuple(asked), tuple(where for *_, where in members)))
    return entries


class _Index:
    """Finds volumes and their questions in a shard's footer; reads their small columns only where the footer does not tell."""

    def __init__(self, shards: Shards, config: str, asked: Sequence[Question], wanted: Selection) -> None:
        self.shards, self.config, self.wanted = shards, config, wanted
        self.prefix = _NESTED if config in PER_VOLUME else ""
        self.asked = {section: tuple(q.id for q in asked if section in ("", q.region.section)) for section in ("", *SECTIONS)}

    def shard(self, number: int) -> list[Run]:
        footer, path = self.shards.footer(number), self.shards.paths[number]
        try:
            same_fields = self.shards.fields(number).equals(arrow_schema(self.config))
            runs = [run for group in range(footer.num_row_groups) for run in self._group(number, group, footer.row_group(group))]
        except (ArithmeticError, LookupError, ValueError) as error:  # names and numbers that a damaged footer makes up
            raise DataError("D025", f"{path}: {type(error).__name__}: {error}"[:200], "its footer is damaged: copy or download it again") from None
        if not same_fields or footer.num_rows != self.shards.rows[number]:
            raise DataError("D025", f"{path} has other columns, or another number of rows, than the manifest says", "copy or download it again")
        return runs

    def _group(self, number: int, group: int, meta: Any) -> Iterator[Run]:
        chunks = {meta.column(i).path_in_schema: meta.column(i) for i in range(meta.num_columns)}
        only = _only_value(chunks["volume_id"].statistics)
        if only is not None and not self.wanted.takes(only):
            return
        complete = self.asked[self._section(chunks)]
        if only is not None and chunks[f"{self.prefix}question_id"].num_values == len(complete) and self._all_boxed(chunks):
            yield only, self._chosen(complete, None), (number, group, 0, meta.num_rows)
            return
        names = ["volume_id", f"{self.prefix}question_id", *([f"{self.prefix}box.z0"] if self.wanted.boxed else [])]
        for volume_id, questions, boxed, first, rows in stored_questions(self.shards.read(number, [group], names)[0].table):
            if self.wanted.takes(volume_id):
                yield volume_id, self._chosen(questions, boxed), (number, group, first, rows)

    def _section(self, chunks: dict[str, Any]) -> str:
        """The section of the knee that a row group of `cropped` is on; "" for other configs."""
        regions = chunks["region"].statistics if self.config == "cropped" else None
        return REGIONS[regions.min].section if regions is not None and regions.has_min_max else ""

    def _all_boxed(self, chunks: dict[str, Any]) -> bool:
        stats = chunks[f"{self.prefix}box.z0"].statistics
        return not self.wanted.boxed or bool(stats and stats.has_null_count and stats.null_count == 0)

    def _chosen(self, questions: Sequence[str], boxed: Sequence[bool] | None) -> tuple[str, ...]:
        return chosen(self.wanted, questions, boxed)


def chosen(wanted: Selection, questions: Sequence[str], boxed: Sequence[bool] | None) -> tuple[str, ...]:
    kept = wanted.questions
    return tuple(q for i, q in enumerate(questions) if (kept is None or q in kept) and (not wanted.boxed or boxed is None or boxed[i]))


def _only_value(statistics: Any) -> str | None:
    """The one value that a column chunk holds, if its statistics say so."""
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max or statistics.min.count("-") != 2:
        return None
    return str(statistics.min)


def stored_questions(table: pa.Table) -> Iterator[tuple[str, list[str], list[bool], int, int]]:
    """Volume, its questions, whether each has a box, first row and rows, for each run of rows on one volume."""
    ids = table.column("volume_id").to_pylist()
    if "quintuples" in table.column_names:
        for i, cell in enumerate(table.column("quintuples")):
            struct = cell.values
            questions = struct.field("question_id").to_pylist() if struct is not None else []
            has_box = "box" in {f.name for f in struct.type} if struct is not None else False
            yield ids[i], questions, struct.field("box").is_valid().to_pylist() if has_box else [], i, 1
        return
    questions = table.column("question_id").to_pylist()
    boxed = table.column("box").is_valid().to_pylist() if "box" in table.column_names else []
    first = 0
    for volume_id, run in groupby(ids):
        stop = first + len(list(run))
        yield volume_id, questions[first:stop], boxed[first:stop], first, stop - first
        first = stop


class Release:
    """The shards of one config and split."""

    def __init__(self, shards: Shards, columns: Columns, entries: list[Entry]) -> None:
        self.shards, self.columns, self.entries = shards, columns, entries
        self.config, self.remote = columns.config, shards.remote

    def open(self, entry: Entry, margin_mm: float | None = None) -> Opened:
        parts = []
        payload = "volume" if self.columns.payload == "volume" else None
        for number, places in groupby(entry.parts, key=lambda part: part[0]):
            where = list(places)
            read = self.shards.read(number, [group for _, group, _, _ in where], self.columns.names(), payload)
            for (_, _, first, rows), (table, stored) in zip(where, read, strict=True):
                kept = None if stored is None else Bytes(stored.values, stored.keys[first : first + rows])
                parts.append(Group(table.slice(first, rows), kept))
        return opened(parts, self.columns, entry, self.shards.paths[entry.parts[0][0]], margin_mm)


# --- a map-style dataset ----------------------------------------------------------------------------------------------------------

_BLOCK = 256  # rows of a dataset whose ids are looked at together: bounds what a dataset with an indices mapping copies


class Cached:
    """A map-style dataset: rows are views of its memory-mapped Arrow table, nothing is decoded."""

    remote = False

    def __init__(self, dataset: Any, config: str | None, wanted: Selection, columns: frozenset[str] | None) -> None:
        self.config = _config_of(dataset.column_names, config)
        self.columns = Columns(self.config, columns)
        own = [f.name for f in fields(self.config)]
        top = {*self.columns.names(), "quintuples", self.columns.payload}
        self.rows = dataset.select_columns([n for n in own if n in top]).with_format("arrow")
        runs = []
        small = ["volume_id", "quintuples"] if self.config in PER_VOLUME else ["volume_id", "question_id", "box"]
        ids = dataset.select_columns(small).with_format("arrow")
        for start in range(0, len(ids), _BLOCK):
            for volume_id, questions, boxed, first, rows in stored_questions(ids[start : start + _BLOCK]):
                if wanted.takes(volume_id):
                    runs.append((volume_id, chosen(wanted, questions, boxed), (0, 0, start + first, rows)))
        self.entries = _entries(runs)

    def open(self, entry: Entry, margin_mm: float | None = None) -> Opened:
        parts = []
        for _, _, first, rows in entry.parts:
            table = self.rows[first : first + rows]
            if self.columns.payload != "volume":
                parts.append(Group(table, None))
                continue
            plain, stored = table.drop_columns(["volume"]), [from_arrow(chunk) for chunk in table.column("volume").chunks]
            at = 0
            for bytes_ in stored:  # rows that span files of the cache come in several pieces
                parts.append(Group(plain.slice(at, len(bytes_.keys)), bytes_))
                at += len(bytes_.keys)
        return opened(parts, self.columns, entry, f"row {entry.parts[0][2]}", margin_mm)


def _config_of(names: Sequence[str], config: str | None) -> str:
    kind = "full" if "volume" in names else "embeddings" if "embedding" in names else ""
    kind = (kind if "quintuples" in names else "cropped" if "volume" in names else "annotations") if {"volume_id"} <= set(names) else ""
    if not kind or config not in (None, kind):
        raise UsageError(
            "D026", f"a dataset with the columns {', '.join(names)[:100]}" + (f" is not {config}" if config else ""), "one config a stream"
        )
    return kind
