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
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee.cohort import Cohort
from reasonknee.cohort.folder import UNREADABLE
from reasonknee.errors import DataError, ReasonKneeError, StorageError, UsageError
from reasonknee.layout import Shard
from reasonknee.layout.dataset import KNEE, Dataset
from reasonknee.layout.parquet import writer_settings
from reasonknee.release.rows import Member, Options, Sources, read_sources, rows
from reasonknee.system.files import sha256_of, whole, write_text
from reasonknee.version import LAYOUT_VERSION, VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# 16 full-size volumes are 450 MB of `full`, and 3 MB of parsed footer for `cropped`, which a reader in random
# order parses for nearly each volume.
VOLUMES_PER_SHARD = {"annotations": 1024, "cropped": 16, "full": 16, "embeddings": 16}
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
class Group(ABC):
    """All that a worker needs: which volumes, from where, into which shards. A dataset says what they are
    made of."""

    root: str
    folder: str
    records: str  # beside the folder, so that they outlast its renaming
    split: str
    index: int
    count: int
    configs: tuple[str, ...]
    options: Any
    volumes: tuple[Any, ...]
    pyarrow: str  # its version: shards name it, and may differ by it

    @property
    @abstractmethod
    def dataset(self) -> Dataset: ...

    @abstractmethod
    def made_of(self) -> str:
        """A digest of everything that decides the bytes: annotations by their lines, images by what the file
        system knows of them."""

    @abstractmethod
    def volume_id(self, volume: Any) -> str: ...

    @abstractmethod
    def read(self, volume: Any) -> Any:
        """All that the rows of a volume are made of, read once for all configs."""

    @abstractmethod
    def rows(self, sources: Any, config: str) -> Iterable[dict[str, Any]]: ...

    def path(self, config: str) -> str:
        return shard_path(config, self.split, self.index, self.count)

    @property
    def record(self) -> Path:
        return Path(
            self.records, f"{'+'.join(self.configs)}-{self.split}-{self.index:05d}-of-{self.count:05d}.json"
        )


@dataclass(frozen=True)
class KneeGroup(Group):
    options: Options
    volumes: tuple[Member, ...]

    @property
    def dataset(self) -> Dataset:
        return KNEE

    def made_of(self) -> str:
        cohort = Cohort(self.root)
        sources: list[object] = [VERSION, LAYOUT_VERSION, self.pyarrow, asdict(self.options), self.configs]
        for each in self.volumes:
            line = hashlib.sha256(cohort.line(each.entry)).hexdigest()
            stamps = [stamp(path) for path in each.files]
            sources.append([each.entry.volume_id, line, stamps, each.accepted])
        if "embeddings" in self.configs:
            sources.append(stamp(cohort.embeddings))
        return hashlib.sha256(json.dumps(sources).encode()).hexdigest()

    def volume_id(self, volume: Member) -> str:
        return volume.entry.volume_id

    def read(self, volume: Member) -> Sources:
        return read_sources(Cohort(self.root), volume, self.configs)

    def rows(self, sources: Sources, config: str) -> Iterator[dict[str, Any]]:
        return rows(sources, config, self.options)


@dataclass(frozen=True)
class Done:
    """What a finished group left: its shards, and the volumes that are not in them."""

    shards: tuple[Shard, ...]
    bad: tuple[Bad, ...]


def stamp(path: Path) -> list[list[str | int]]:
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
    chosen = tuple(configs)
    by_split = {split: [m for m in volumes if m.entry.split == split] for split in KNEE.splits}
    per_shard = VOLUMES_PER_SHARD[chosen[0]] if chosen else 0
    return groups_of(KneeGroup, (root, folder, records), by_split, chosen, per_shard, options)


def groups_of(
    kind: Callable[..., Group],
    where: tuple[Path, Path, Path],
    by_split: Mapping[str, Sequence[Any]],
    configs: tuple[str, ...],
    per_shard: int,
    options: Any,
) -> list[Group]:
    """Runs of volumes of one split. `where` is the root of the sources, the working folder and that of the
    records."""
    import pyarrow as pa

    groups = []
    for split, members in by_split.items() if configs else ():
        n = shard_count(len(members), per_shard) if members else 0
        for i in range(n):
            part = tuple(members[len(members) * i // n : len(members) * (i + 1) // n])
            groups.append(kind(*map(str, where), split, i, n, configs, options, part, pa.__version__))
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
    bad = []
    with contextlib.ExitStack() as stack:
        writers = {
            c: stack.enter_context(writing(Path(group.folder, group.path(c)), c, group.dataset))
            for c in group.configs
        }
        for each in group.volumes:
            try:
                sources = group.read(each)
            except (DataError, StorageError) as error:
                bad.append(Bad.of(group.volume_id(each), error))
                continue
            for config, writer in writers.items():
                writer.add(group.rows(sources, config))
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
def writing(final: Path, config: str, dataset: Dataset = KNEE) -> Iterator[Writer]:
    """One Parquet file, whole under its name at the end; none without rows."""
    import pyarrow.parquet as pq

    # pyarrow takes no name that is not UTF-8, so it gets the open file
    with whole(final) as temporary, temporary.open("wb") as sink:
        file = pq.ParquetWriter(sink, dataset.arrow_schema(config), **writer_settings(config, dataset))
        try:
            writer = Writer(final, config, file, dataset)
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

    def __init__(self, final: Path, config: str, file: pq.ParquetWriter, dataset: Dataset) -> None:
        self.final, self.config, self.file, self.dataset = final, config, file, dataset
        self.rows = self.arrow_bytes = 0
        self.waiting: list[dict[str, Any]] = []
        self.volumes = 0

    def add(self, of_one_volume: Iterable[dict[str, Any]]) -> None:
        parts = self.dataset.row_group_of.get(self.config)
        if parts:
            for _, rows in groupby(of_one_volume, key=parts):
                self.waiting = list(rows)
                self.flush()
            return
        self.waiting += of_one_volume
        self.volumes += 1
        if self.volumes % self.dataset.volumes_per_row_group[self.config] == 0:
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
