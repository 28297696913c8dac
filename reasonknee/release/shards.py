"""Shards: which volumes go together, and how one group of them becomes Parquet files that are either whole or
not there.

A group is a run of volumes of one split, the unit of work: it reads each image once and writes one shard for
each of its configs. A finished group leaves a record of its shards, of the volumes it had to leave out, and
of what it was made of; a later run takes it over if that still holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee.cohort import Cohort
from reasonknee.cohort.folder import UNREADABLE
from reasonknee.errors import DataError, ReasonKneeError, StorageError, UsageError
from reasonknee.layout import SPLITS, Shard
from reasonknee.layout.parquet import writer_settings
from reasonknee.layout.records import arrow_schema
from reasonknee.questions import REGIONS
from reasonknee.release.rows import Member, Options, read_sources, rows
from reasonknee.system.files import sha256_of, whole, write_text
from reasonknee.version import LAYOUT_VERSION, VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# 16 full-size volumes are 450 MB of `full`, and 3 MB of parsed footer for `cropped`, which a reader in random
# order parses for nearly each volume.
VOLUMES_PER_SHARD = {"annotations": 1024, "cropped": 16, "full": 16, "embeddings": 16}
VOLUMES_PER_ROW_GROUP = {
    "annotations": 16,
    "full": 1,
    "embeddings": 1,
}  # `cropped` has several a volume, one for each section of the knee
# shard counts above are rounded up to a multiple of this, below to a power of two, so that nodes and workers
# share evenly
_MANY = 64


@dataclass(frozen=True)
class Bad:
    """A volume that cannot be used, and why."""

    volume_id: str
    code: str
    reason: str

    @classmethod
    def of(cls, volume_id: str, error: ReasonKneeError) -> Bad:
        return cls(volume_id, error.code, error.message if error.place == volume_id else error.told)


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
    pyarrow: str  # its version: shards name it, and may differ by it

    def path(self, config: str) -> str:
        return shard_path(config, self.split, self.index, self.count)

    @property
    def record(self) -> Path:
        return Path(
            self.records, f"{'+'.join(self.configs)}-{self.split}-{self.index:05d}-of-{self.count:05d}.json"
        )

    def made_of(self) -> str:
        """A digest of everything that decides the bytes: annotations by their lines, images by what the file
        system knows of them."""
        cohort = Cohort(self.root)
        sources: list[object] = [VERSION, LAYOUT_VERSION, self.pyarrow, asdict(self.options), self.configs]
        for each in self.volumes:
            line = hashlib.sha256(cohort.line(each.entry)).hexdigest()
            stamps = [_stamp(path) for path in each.files]
            sources.append([each.entry.volume_id, line, stamps, each.accepted])
        if "embeddings" in self.configs:
            sources.append(_stamp(cohort.embeddings))
        return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


@dataclass(frozen=True)
class Done:
    """What a finished group left: its shards, and the volumes that are not in them."""

    shards: tuple[Shard, ...]
    bad: tuple[Bad, ...]


def _stamp(path: Path) -> list[list[str | int]]:
    """Of a file, or of every file of a DICOM series: name, size, times and number. A file that was put in
    place of another may have its size and its time of change, but not the time that the system keeps itself.
    What cannot even be looked at is told when it is read."""
    try:
        return [
            [f.name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino]
            for f in files_of(path)
            for s in [f.stat()]
        ]
    except OSError:
        return []


def files_of(path: Path) -> list[Path]:
    """The file, or the files of a DICOM series."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def shard_path(config: str, split: str, index: int, count: int) -> str:
    return f"{config}/{split}-{index:05d}-of-{count:05d}.parquet"


# --- planning -----------------------------------------------------------------------------------------------


def shard_count(volumes: int, per_shard: int) -> int:
    wanted = -(-volumes // per_shard)
    if wanted > _MANY:
        return -(-wanted // _MANY) * _MANY
    return min(volumes, 1 << (wanted - 1).bit_length())


def plan(
    root: Path, folder: Path, records: Path, volumes: list[Member], configs: Iterable[str], options: Options
) -> list[Group]:
    """The groups of some configs that share a shard size, in the order of a release."""
    import pyarrow as pa

    chosen = tuple(configs)
    groups = []
    for split in SPLITS if chosen else ():
        members = [m for m in volumes if m.entry.split == split]
        n = shard_count(len(members), VOLUMES_PER_SHARD[chosen[0]]) if members else 0
        for i in range(n):
            part = tuple(members[len(members) * i // n : len(members) * (i + 1) // n])
            where = (str(root), str(folder), str(records))
            groups.append(Group(*where, split, i, n, chosen, options, part, pa.__version__))
    return groups


# --- writing one group --------------------------------------------------------------------------------------


def write_group(group: Group) -> Done:
    """Writes the shards of a group, or takes over those of an earlier run. A volume that cannot be read is
    left out of all of them, and named."""
    import pyarrow as pa

    if pa.__version__ != group.pyarrow:
        told = f"this worker has pyarrow {pa.__version__}, the build {group.pyarrow}"
        raise UsageError("R014", told, "install the same packages on all machines")
    made_of = group.made_of()
    done = _finished(group, made_of)
    if done:
        return done
    cohort, bad = Cohort(group.root), []
    with contextlib.ExitStack() as stack:
        writers = {
            c: stack.enter_context(writing(Path(group.folder, group.path(c)), c)) for c in group.configs
        }
        for each in group.volumes:
            try:
                sources = read_sources(cohort, each, group.configs)
            except (DataError, StorageError) as error:
                bad.append(Bad.of(each.entry.volume_id, error))
                continue
            for config, writer in writers.items():
                writer.add(rows(sources, config, group.options))
    shards = tuple(writer.shard(group.path(c), group.split) for c, writer in writers.items() if writer.rows)
    done = Done(shards, tuple(bad))
    if any(b.code in UNREADABLE for b in bad):
        made_of = ""  # nothing about the file need change before it can be read: the next run tries again
    write_text(group.record, json.dumps({"made_of": made_of, **asdict(done)}))
    return done


def _finished(group: Group, made_of: str) -> Done | None:
    """What an earlier run left of this group, if its sources have not changed since, and not a byte of its
    shards has."""
    if not group.record.is_file():
        return None
    try:
        raw = json.loads(group.record.read_text(encoding="utf-8"))
        done = Done(tuple(Shard(**s) for s in raw["shards"]), tuple(Bad(**b) for b in raw["bad"]))
    except (ValueError, TypeError, KeyError):
        return None
    if raw.get("made_of") != made_of:
        return None
    paths = [(Path(group.folder, s.path), s) for s in done.shards]
    whole_shards = all(
        path.is_file() and path.stat().st_size == s.bytes and sha256_of(path) == s.sha256 for path, s in paths
    )
    return done if whole_shards else None


@contextlib.contextmanager
def writing(final: Path, config: str) -> Iterator[Writer]:
    """One Parquet file, whole under its name at the end; none without rows."""
    import pyarrow.parquet as pq

    # pyarrow takes no name that is not UTF-8, so it gets the open file
    with whole(final) as temporary, temporary.open("wb") as sink:
        file = pq.ParquetWriter(sink, arrow_schema(config), **writer_settings(config))
        try:
            writer = Writer(final, config, file)
            yield writer
            writer.flush()
        except BaseException:
            with contextlib.suppress(OSError):  # the disk is full: closing writes the footer, and fails again
                file.close()
            raise
        file.close()
        if not writer.rows:
            temporary.unlink()


class Writer:
    """Rows of a config into an open Parquet file."""

    def __init__(self, final: Path, config: str, file: pq.ParquetWriter) -> None:
        self.final, self.config, self.file = final, config, file
        self.rows = self.arrow_bytes = 0
        self.waiting: list[dict[str, Any]] = []
        self.volumes = 0

    def add(self, of_one_volume: Iterable[dict[str, Any]]) -> None:
        if self.config == "cropped":
            for _, rows in groupby(of_one_volume, key=lambda row: REGIONS[row["region"]].section):
                self.waiting = list(rows)
                self.flush()
            return
        self.waiting += of_one_volume
        self.volumes += 1
        if self.volumes % VOLUMES_PER_ROW_GROUP[self.config] == 0:
            self.flush()

    def flush(self) -> None:
        import pyarrow as pa

        if self.waiting:
            self.write(pa.Table.from_pylist(self.waiting, schema=self.file.schema))
            self.waiting = []

    def write(self, table: pa.Table) -> None:
        """A row group."""
        self.file.write_table(table, row_group_size=len(table))
        self.rows, self.arrow_bytes = self.rows + len(table), self.arrow_bytes + table.nbytes

    def shard(self, path: str, split: str) -> Shard:
        return Shard(
            path,
            self.config,
            split,
            self.rows,
            self.final.stat().st_size,
            self.arrow_bytes,
            sha256_of(self.final),
        )
