"""Where quintuples come from: the Parquet shards of a release, in a folder or on the Hub, or a map-style
dataset in the `datasets` cache.

A source knows its volumes without having read them (`entries`) and opens one at a time (`open`). What is not
selected is not read: row groups are passed over by the statistics in a shard's footer, and only the wanted
columns are fetched. Parquet pages are checked against their checksums. A source is light and travels to
worker processes; each process, and each thread in it, opens its own handles.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from reasonknee.errors import DataError, UsageError
from reasonknee.layout import PER_VOLUME, Manifest, Shard, read_manifest
from reasonknee.layout.index import index_name, read_index
from reasonknee.layout.records import fields
from reasonknee.questions import question_set
from reasonknee.stream.entries import (
    NESTED,
    Entry,
    Footers,
    Rows,
    Run,
    bytes_a_row,
    entries_of,
    selected,
    stored_questions,
)
from reasonknee.stream.folder import Folder
from reasonknee.stream.hub import Repo
from reasonknee.stream.pages import Bytes, from_arrow
from reasonknee.stream.parquet import Bounds, Group, Shards, Wanted
from reasonknee.stream.selection import Selection
from reasonknee.stream.served import Crops, Embedded, Opened, Payload, Row, Whole, ordered
from reasonknee.volumes.grid import MAX_BYTES
from reasonknee.volumes.nifti import VOXEL_OFFSET

if TYPE_CHECKING:
    import pyarrow as pa

_WIDEST = 8  # bytes of a voxel
_PAYLOAD = {"cropped": "volume", "full": "volume", "embeddings": "embedding"}
_ALWAYS = ("id", "question_id")  # what a row is; kept whatever columns are asked for


class Source(Protocol):
    entries: list[Entry]
    config: str
    remote: bool
    identity: str  # the same for the same rows, wherever they are

    def open(self, entry: Entry, margin_mm: float | None = None) -> Opened:
        """Reads one volume; with a margin, its regions are served in place of the whole."""


@dataclass(frozen=True)
class Request:
    """What of which source: the release or dataset, its config and split, and what is wanted of it."""

    source: Any
    config: str | None
    split: str
    selection: Selection
    columns: frozenset[str] | None = None  # None: all
    revision: str | None = None
    hub: dict[str, Any] = field(default_factory=dict)


def find(request: Request) -> Source:
    """The source that a user means: a release folder, the id of a Hub repo, or a dataset that
    `load_dataset` gave."""
    source = request.source
    if isinstance(source, str | Path):
        chosen = Columns(request.config or "cropped", request.columns)
        if Path(source).is_dir():
            manifest = read_manifest(Path(source))
            stored = _stored(manifest, chosen.config, request)
            return _from_release(Folder(Path(source), stored), manifest, chosen, request)
        if isinstance(source, str) and source.count("/") == 1 and not source.startswith((".", "/", "~")):
            repo, manifest = Repo.at(source, request.revision, request.hub)
            stored = _stored(manifest, chosen.config, request)
            return _from_release(repo.of(stored), manifest, chosen, request)
        raise UsageError(
            "D020",
            f"no release at {source}",
            "give a release folder, a Hub repo id, or a dataset from `load_dataset`",
        )
    if isinstance(source, dict) and request.split in source:  # a DatasetDict
        source = source[request.split]
    if not (hasattr(source, "features") and hasattr(source, "__len__")):
        raise UsageError(
            "D020",
            f"{type(source).__name__} cannot be read at random",
            "stream a Hub repo by its id; for rows that come one by one there is `explode`",
        )
    return Cached(source, request)


def _stored(manifest: Manifest, config: str, request: Request) -> tuple[Shard, ...]:
    """The shards that the manifest lists."""
    shards = manifest.of(config, request.split)
    if not shards:
        have = ", ".join(sorted({f"{s.config}/{s.split}" for s in manifest.shards}))
        raise UsageError("D021", f"{request.source} has no {config}/{request.split}", f"it has {have}")
    return tuple(shards)


@dataclass(frozen=True)
class Columns:
    """The columns of a config to read: all, or those that rows are to have and what it takes to make them."""

    config: str
    wanted: frozenset[str] | None

    def __post_init__(self) -> None:
        known = {
            f.name
            for f in (*fields(self.config), *(fields("annotations") if self.config in PER_VOLUME else ()))
        } - {"quintuples"}
        if self.wanted is not None and (unknown := sorted(self.wanted - known)):
            raise UsageError(
                "D022",
                f"{self.config} has no column {unknown[0][:60]!r}",
                f"choose among {', '.join(sorted(known))}",
            )

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
            return sorted(n if n in own else NESTED + n for n in names)
        return sorted(names)


# --- a volume out of Arrow ----------------------------------------------------------------------------------


def opened(
    parts: Sequence[Group], columns: Columns, entry: Entry, where: str, margin_mm: float | None
) -> Opened:
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
        raise DataError(
            "D023",
            f"{where} holds other rows than {entry.volume_id} with its questions",
            "the shard is damaged, or changed meanwhile",
        )
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
    if len(data) == len(
        keys
    ):  # each row has bytes of its own, as in the `datasets` cache: those of one place are the same
        by_place: dict[tuple[int, ...], int] = {}
        keys = [
            key if key is None or not place else by_place.setdefault(tuple(place.values()), key)
            for key, place in zip(keys, crops, strict=True)
        ]
    return Crops(keys, data, crops)


# --- a release ----------------------------------------------------------------------------------------------


def _from_release(shards: Shards, manifest: Manifest, columns: Columns, request: Request) -> Source:
    name = index_name(columns.config, request.split)
    if name in manifest.files:
        runs = _by_index(shards, name, manifest.files[name], request.selection)
        return Release(shards, columns, entries_of(runs))
    found = Footers(shards, columns.config, question_set(manifest.questions), request.selection)
    with ThreadPoolExecutor(8 if shards.remote else 1) as pool:
        runs = [run for part in pool.map(found.shard, range(len(shards.stored))) for run in part]
    return Release(shards, columns, entries_of(runs))


def _by_index(shards: Shards, name: str, digest: str, wanted: Selection) -> list[Run]:
    """What the release's own index says, which spares the footers of shards that are not read, and tells
    those that are from damaged ones."""
    raw = shards.text(name)
    if hashlib.sha256(raw).hexdigest() != digest:
        raise DataError(
            "D029", f"{name} is not the file that the manifest lists", "copy or download it again"
        )
    indexed = {shard.path: shard for shard in read_index(raw, name)}
    if lost := [s.path for s in shards.stored if s.path not in indexed]:
        raise DataError("D029", f"{name} has nothing on {lost[0]}", "copy or download it again")
    shards.check(indexed)
    runs = []
    for number, stored in enumerate(shards.stored):
        for run in indexed[stored.path].runs:
            rows = Rows(number, run.group, run.first, run.rows)
            runs.append(Run(run.volume_id, run.questions, run.boxed, rows))
    return list(selected(wanted, runs))


def voxel_bytes(table: pa.Table) -> int:
    """How many bytes the volumes of some rows can be, by the shapes that the rows state."""
    if "crop" not in table.column_names:
        return sum(
            _volume_bytes(tuple(shape.values())) for shape in table.column("shape").to_pylist() if shape
        )
    places = {
        (row["volume_id"], *row["crop"].values())
        for row in table.select(["volume_id", "crop"]).to_pylist()
        if row["crop"]
    }
    return sum(_volume_bytes((z1 - z0, y1 - y0, x1 - x0)) for _, z0, z1, y0, y1, x0, x1 in places)


def _volume_bytes(shape: tuple[int, ...]) -> int:
    return VOXEL_OFFSET + min(math.prod(max(n, 0) for n in shape) * _WIDEST, MAX_BYTES)


class Release:
    """The shards of one config and split."""

    def __init__(self, shards: Shards, columns: Columns, entries: list[Entry]) -> None:
        self.shards, self.columns, self.entries = shards, columns, entries
        self.config, self.remote = columns.config, shards.remote
        hashes = json.dumps([[s.path, s.sha256] for s in shards.stored])
        self.identity = hashlib.sha256(hashes.encode()).hexdigest()[:16]

    def open(self, entry: Entry, margin_mm: float | None = None) -> Opened:
        parts = []
        payload = "volume" if self.columns.payload == "volume" else None
        for number, places in groupby(entry.parts, key=lambda rows: rows.shard):
            where = list(places)
            wanted = Wanted(number, [rows.group for rows in where], self.columns.names(), payload)
            read = self.shards.read(wanted, Bounds(bytes_a_row(self.config), voxel_bytes))
            for rows, (table, stored) in zip(where, read, strict=True):
                stop = rows.first + rows.many
                kept = None if stored is None else Bytes(stored.values, stored.keys[rows.first : stop])
                parts.append(Group(table.slice(rows.first, rows.many), kept))
        place = self.shards.stored[entry.parts[0].shard].path
        return opened(parts, self.columns, entry, place, margin_mm)


# --- a map-style dataset ------------------------------------------------------------------------------------

# rows of a dataset whose ids are looked at together: bounds what a dataset with an indices mapping copies
_BLOCK = 256


class Cached:
    """A map-style dataset: rows are views of its memory-mapped Arrow table, nothing is decoded."""

    remote = False

    def __init__(self, dataset: Any, request: Request) -> None:
        self.config = _config_of(dataset.column_names, request.config)
        self.identity = f"{self.config}-map"
        self.columns = Columns(self.config, request.columns)
        own = [f.name for f in fields(self.config)]
        top = {*self.columns.names(), "quintuples", self.columns.payload}
        self.rows = dataset.select_columns([n for n in own if n in top]).with_format("arrow")
        small = (
            ["volume_id", "quintuples"] if self.config in PER_VOLUME else ["volume_id", "question_id", "box"]
        )
        ids = dataset.select_columns(small).with_format("arrow")
        runs = []
        for start in range(0, len(ids), _BLOCK):
            for run in selected(request.selection, stored_questions(ids[start : start + _BLOCK])):
                runs.append(run._replace(rows=Rows(0, 0, start + run.rows.first, run.rows.many)))
        self.entries = entries_of(runs)

    def open(self, entry: Entry, margin_mm: float | None = None) -> Opened:
        parts = []
        for place in entry.parts:
            table = self.rows[place.first : place.first + place.many]
            if self.columns.payload != "volume":
                parts.append(Group(table, None))
                continue
            plain, stored = (
                table.drop_columns(["volume"]),
                [from_arrow(chunk) for chunk in table.column("volume").chunks],
            )
            at = 0
            for bytes_ in stored:  # rows that span files of the cache come in several pieces
                parts.append(Group(plain.slice(at, len(bytes_.keys)), bytes_))
                at += len(bytes_.keys)
        return opened(parts, self.columns, entry, f"row {entry.parts[0].first}", margin_mm)


def _config_of(names: Sequence[str], config: str | None) -> str:
    kind = "full" if "volume" in names else "embeddings" if "embedding" in names else ""
    kind = (
        (kind if "quintuples" in names else "cropped" if "volume" in names else "annotations")
        if {"volume_id"} <= set(names)
        else ""
    )
    if not kind or config not in (None, kind):
        raise UsageError(
            "D026",
            f"a dataset with the columns {', '.join(names)[:100]}" + (f" is not {config}" if config else ""),
            "one config a stream",
        )
    return kind
