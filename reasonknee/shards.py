"""Shards: which volumes go together, and how one group of them becomes Parquet files that are either whole or not there.

A group is a run of volumes of one split, the unit of work: it reads each image once and writes one shard for each of its configs. A finished group
leaves a record of its shards, of the volumes it had to leave out, and of what it was made of; a later run takes it over if that still holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee.cohort import UNREADABLE, Cohort, Entry
from reasonknee.errors import DataError, StorageError
from reasonknee.manifest import Shard, sha256_of
from reasonknee.materialise import Options, read_sources, rows
from reasonknee.records import arrow_schema
from reasonknee.regions import REGIONS
from reasonknee.splits import SPLITS
from reasonknee.version import LAYOUT_VERSION, VERSION

if TYPE_CHECKING:
    import pyarrow as pa

# 16 full-size volumes are 450 MB of `full`, and 3 MB of parsed footer for `cropped`, which a reader in random order parses for nearly each volume.
VOLUMES_PER_SHARD = {"annotations": 1024, "cropped": 16, "full": 16, "embeddings": 16}
VOLUMES_PER_ROW_GROUP = {"annotations": 16, "full": 1, "embeddings": 1}  # `cropped` has several a volume, one for each section of the knee
# What rows are selected by. Statistics of the rest would double the footers, which a reader of a Hub repo fetches before anything else.
_SELECTED = ("id", "volume_id", "patient", "visit", "side", "question_id", "category", "region", "box.z0")
_PACKED = (".bytes", "question.zero_shot", "question.instruction", "reasoning.list.element")
_MANY = 64  # shard counts above are rounded up to a multiple of this, below to a power of two, so that nodes and workers share evenly


@dataclass(frozen=True)
class Bad:
    """A volume that cannot be used, and why."""

    volume_id: str
    code: str
    reason: str


@dataclass(frozen=True)
class Member:
    """A volume and the files that go with it."""

    entry: Entry
    image: Path | None = None
    masks: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Group:
    """All that a worker needs: which volumes, from where, into which shards."""

    root: str
    folder: str
    records: str  # beside the folder, so that they outlast its renaming
    split: str
    index: int
    count: int
    configs: tuple[str, ...]
    options: Options
    volumes: tuple[Member, ...]

    def path(self, config: str) -> str:
        return shard_path(config, self.split, self.index, self.count)

    @property
    def record(self) -> Path:
        return Path(self.records, f"{'+'.join(self.configs)}-{self.split}-{self.index:05d}-of-{self.count:05d}.json")

    def made_of(self) -> str:
        """A digest of everything that decides the bytes; images by size and time of change, annotations by their text."""
        cohort = Cohort(self.root)
        import pyarrow as pa

        sources: list[object] = [VERSION, LAYOUT_VERSION, pa.__version__, asdict(self.options), self.configs]  # shards name their writer's version
        for each in self.volumes:
            files = [each.image, *each.masks] if each.image else []
            sources.append([each.entry.volume_id, cohort.annotation(each.entry).to_json(), [_stamp(path) for path in files]])
        if "embeddings" in self.configs:
            sources.append(_stamp(cohort.embeddings))
        return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


@dataclass(frozen=True)
class Done:
    """What a finished group left: its shards, and the volumes that are not in them."""

    shards: tuple[Shard, ...]
    bad: tuple[Bad, ...]


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of change of a file, or of every file of a DICOM series; what cannot even be looked at is told when it is read."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        return [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    except OSError:
        return []


def shard_path(config: str, split: str, index: int, count: int) -> str:
    return f"{config}/{split}-{index:05d}-of-{count:05d}.parquet"


# --- planning ---------------------------------------------------------------------------------------------------------------------


def shard_count(volumes: int, per_shard: int) -> int:
    wanted = -(-volumes // per_shard)
    if wanted > _MANY:
        return -(-wanted // _MANY) * _MANY
    return min(volumes, 1 << (wanted - 1).bit_length())


def plan(root: Path, folder: Path, records: Path, volumes: list[Member], configs: Iterable[str], options: Options) -> list[Group]:
    """The groups of some configs that share a shard size, in the order of a release."""
    chosen = tuple(configs)
    groups = []
    for split in SPLITS if chosen else ():
        members = [m for m in volumes if m.entry.split == split]
        n = shard_count(len(members), VOLUMES_PER_SHARD[chosen[0]]) if members else 0
        for i in range(n):
            part = tuple(members[len(members) * i // n : len(members) * (i + 1) // n])
            groups.append(Group(str(root), str(folder), str(records), split, i, n, chosen, options, part))
    return groups


# --- writing one group ------------------------------------------------------------------------------------------------------------


def write_group(group: Group) -> Done:
    """Writes the shards of a group. A volume that cannot be read is left out of all of them, and named."""
    found = finished(group)
    if found:
        return found
    cohort, bad = Cohort(group.root), []
    made_of = group.made_of()
    with contextlib.ExitStack() as stack:
        writers = {c: stack.enter_context(_Writer(Path(group.folder, group.path(c)), c)) for c in group.configs}
        for each in group.volumes:
            try:
                sources = read_sources(cohort, each.entry, group.configs, each.image, each.masks)
            except (DataError, StorageError) as error:
                bad.append(Bad(each.entry.volume_id, error.code, error.message.removeprefix(f"{each.entry.volume_id}: ")))
                continue
            for config, writer in writers.items():
                writer.add(rows(sources, config, group.options))
    shards = tuple(writer.shard(group.path(c), group.split) for c, writer in writers.items() if writer.rows)
    done = Done(shards, tuple(bad))
    if any(b.code in UNREADABLE for b in bad):
        made_of = ""  # nothing about the file need change before it can be read: the next run tries again
    write_text(group.record, json.dumps({"made_of": made_of, **asdict(done)}))
    return done


def finished(group: Group) -> Done | None:
    """What an earlier run left of this group, if it is whole and its sources have not changed since."""
    if not group.record.is_file():
        return None
    try:
        raw = json.loads(group.record.read_text(encoding="utf-8"))
        done = Done(tuple(Shard(**s) for s in raw["shards"]), tuple(Bad(**b) for b in raw["bad"]))
    except (ValueError, TypeError, KeyError):
        return None
    there = all(Path(group.folder, s.path).is_file() and Path(group.folder, s.path).stat().st_size == s.bytes for s in done.shards)
    return done if there and raw.get("made_of") == group.made_of() else None


class _Writer:
    """One Parquet file, under a temporary name of its own until it is whole."""

    def __init__(self, final: Path, config: str) -> None:
        self.final, self.config = final, config
        self.temporary = temporary_name(final)
        self.schema = arrow_schema(config)
        self.rows = self.arrow_bytes = 0
        self.waiting: list[dict[str, Any]] = []
        self.volumes = 0

    def __enter__(self) -> _Writer:
        import pyarrow.parquet as pq

        self.final.parent.mkdir(parents=True, exist_ok=True)
        self.file = pq.ParquetWriter(self.temporary, self.schema, **writer_settings(self.config))
        return self

    def add(self, of_one_volume: Iterable[dict[str, Any]]) -> None:
        if self.config == "cropped":
            for _, rows in groupby(of_one_volume, key=lambda row: REGIONS[row["region"]].section):
                self.waiting = list(rows)
                self._flush()
            return
        self.waiting += of_one_volume
        self.volumes += 1
        if self.volumes % VOLUMES_PER_ROW_GROUP[self.config] == 0:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self.waiting:
            table = pa.Table.from_pylist(self.waiting, schema=self.schema)
            self.file.write_table(table, row_group_size=len(table))
            self.rows, self.arrow_bytes = self.rows + len(table), self.arrow_bytes + table.nbytes
            self.waiting = []

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self._flush()
            self.file.close()
            if self.rows:
                commit(self.temporary, self.final)
                return
        else:
            with contextlib.suppress(OSError):  # the disk is full: closing writes the footer, and fails again
                self.file.close()
        self.temporary.unlink(missing_ok=True)

    def shard(self, path: str, split: str) -> Shard:
        return Shard(path, self.config, split, self.rows, self.final.stat().st_size, self.arrow_bytes, sha256_of(self.final))


def writer_settings(config: str) -> dict[str, Any]:
    """Pinned, so that the same rows are the same bytes. Questions on one region share its bytes by dictionary encoding.

    Only voxels and long texts are compressed: for the few numbers of a row group, a reader would spend its time on setting up decompression.
    """
    leaves = dict(_leaves(arrow_schema(config)))
    packed = [name for name in leaves if name.endswith(_PACKED)]
    return {
        "version": "2.6",
        "data_page_version": "1.0",
        "compression": {name: "zstd" if name in packed else "none" for name in leaves},
        "compression_level": dict.fromkeys(packed, 3),
        "use_dictionary": [name for name, kind in leaves.items() if kind == "text" or (kind == "bytes" and config == "cropped")],
        "dictionary_pagesize_limit": 1 << 30,  # a region's bytes stay in the dictionary however large they are
        "write_statistics": [name for name in leaves if name.rpartition("element.")[2] in _SELECTED],
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
            yield name, "bytes" if pa.types.is_binary(kind) else "text" if pa.types.is_string(kind) else "number"

    for field in arrow:
        yield from walk(field.name, field.type)


# --- files that are whole or not there --------------------------------------------------------------------------------------------


def temporary_name(final: Path) -> Path:
    """Unique to this process, so that two that write the same file by accident cannot mix their bytes."""
    return final.with_name(f".{final.name}.{socket.gethostname()}.{os.getpid()}.tmp")


def commit(temporary: Path, final: Path) -> None:
    """Under its final name a file is whole, even after a power cut."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    temporary.write_text(text, encoding="utf-8", newline="\n")
    commit(temporary, path)
