"""The one reader of a release's shards, for scores, reports, inspection and the viewer (a training loop has
`stream`).

    release = Release("release")
    release.columns("test", ["id", "grades"])       # flat: one row per quintuple, whatever the config
    release.row("1000001-00m-right-acl", "cropped")   # one row of a config
    release.volume("1000001-00m-right")               # its voxels

What is asked for is read, and no more: of a split its columns, of a row its row group. A shard that would
unpack to more than its size allows is refused. `pyarrow` is imported where it is needed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reasonknee.errors import DataError, ReasonKneeError, shown
from reasonknee.layout import PER_VOLUME, Manifest, Shard, read_manifest, release_folder
from reasonknee.layout.bounds import SECONDS, check_groups, footer_is_too_long, raw_bytes, walked
from reasonknee.layout.index import index_names, read_index
from reasonknee.layout.parquet import Unusual
from reasonknee.layout.places import fetched, in_part, unreachable
from reasonknee.layout.records import fields
from reasonknee.system.limits import look_first

if TYPE_CHECKING:
    import pyarrow as pa

    from reasonknee.volumes import Volume

LIGHTEST = ("annotations", "cropped", "embeddings", "full")  # the config with least beside the answers first
_LIST = "quintuples"
Groups = dict[str, list[int]]  # volume id -> row groups


class Release:
    """A release that was opened, in a folder or from the Hub: its manifest, and ways to its rows.

    Of a repo on the Hub the texts are fetched first, and `annotations` when they are read. Of the other
    configs, which are a thousand times as large, the row groups and columns that are read are fetched.
    """

    def __init__(self, place: str | Path) -> None:
        self.folder = release_folder(place, configs=())
        self._repo = "" if Path(place).is_dir() else str(place)
        self._fetched = False  # whether `annotations` were
        self._sound: set[str] = set()  # shards whose footer was looked at
        self._indices: dict[str, dict[str, Groups]] = {}  # config -> shard -> its row groups
        self._scanned: dict[str, Groups] = {}
        self._footers: dict[str, tuple[str, Any]] = {}  # config -> the shard that was read last: its footer

    @cached_property
    def manifest(self) -> Manifest:
        return read_manifest(self.folder)

    @property
    def splits(self) -> list[str]:
        """Those that have a shard."""
        return list(dict.fromkeys(shard.split for shard in self.manifest.shards))

    def lightest(self, split: str) -> str | None:
        """The config that tells a split's quintuples with the fewest bytes; None without such a split."""
        return next((config for config in LIGHTEST if self.manifest.of(config, split)), None)

    # --- columns --------------------------------------------------------------------------------------------

    def columns(self, split: str, names: Sequence[str], config: str = "") -> pa.Table:
        """Columns of a split, one row per quintuple; a column that the release does not have is left out."""
        import pyarrow as pa

        parts = [*self.parts(split, names, config)]
        return pa.concat_tables(parts) if parts else pa.table({name: [] for name in names})

    def parts(self, split: str, names: Sequence[str], config: str = "") -> Iterator[pa.Table]:
        """The same, shard by shard."""
        config = config or self.lightest(split) or ""
        for shard in self.manifest.of(config, split):
            yield self._flat(shard, names)

    def _flat(self, shard: Shard, names: Sequence[str]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        with self._open(shard) as opened:
            if shard.config not in PER_VOLUME:
                return opened.read([n for n in names if n in opened.names])
            known = {field.name for field in opened.file.schema_arrow.field(_LIST).type.value_type}
            of_volume = [n for n in names if n in opened.names and n not in known]
            of_question = [n for n in names if n in known]
            nested = [f"{_LIST}.list.element.{name}" for name in of_question or ["id"]]
            table = opened.read([*of_volume, *nested])
            lists = table[_LIST].combine_chunks()
            elements, parents = pc.list_flatten(lists), pc.list_parent_indices(lists)
            flat = {name: table[name].take(parents) for name in of_volume}
            flat |= {name: elements.field(name) for name in of_question}
            return pa.table({name: flat[name] for name in names if name in flat})

    # --- rows -----------------------------------------------------------------------------------------------

    def row(self, id_: str, config: str, without: Sequence[str] = ()) -> dict[str, Any] | None:
        """The row of a config that tells a quintuple; where rows are volumes, that of its volume."""
        names = [field.name for field in fields(config) if field.name not in without]
        return next(self.rows([_key_of(id_, config)], config, columns=names), None)

    def rows(
        self, keys: Sequence[str], config: str, split: str | None = None, columns: Sequence[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        """The rows with these ids (of volumes, where rows are volumes), one row group in memory at a time."""
        import pyarrow as pa
        import pyarrow.compute as pc

        name = "volume_id" if config in PER_VOLUME else "id"
        left, shards = set(keys), self.manifest.of(config, split)
        for groups_of in self._ways(config):
            for shard in shards:
                if not left:
                    return
                volumes = {key if config in PER_VOLUME else key.rsplit("-", 1)[0] for key in left}
                groups = groups_of(shard)
                chosen = sorted({group for volume in volumes & groups.keys() for group in groups[volume]})
                for group in chosen:
                    with self._open(shard) as opened:
                        if group >= opened.groups:  # the index is not of this shard
                            break
                        inside = opened.read([name], group)[name]
                        places = pc.indices_nonzero(pc.is_in(inside, value_set=pa.array(sorted(left))))
                        if not len(places):
                            continue
                        present = [n for n in columns or opened.names if n in opened.names]
                        table = opened.read(list(dict.fromkeys([name, *present])), group)
                    for place in places.to_pylist():
                        (row,) = table.slice(place, 1).to_pylist()
                        left.discard(row[name])
                        yield row

    def volume(self, volume_id: str) -> Volume | None:
        """The voxels of a whole volume; None if the release does not hold them."""
        from reasonknee.volumes import volume_from_bytes

        row = next(self.rows([volume_id], "full", columns=["volume"]), None)
        return volume_from_bytes(row["volume"]["bytes"]) if row else None

    def _ways(self, config: str) -> Iterator[Callable[[Shard], Groups]]:
        """How to find the row groups of a volume: by the index, and in a folder, where shards may have been
        changed since, by the shards themselves."""
        indexed = self._indexed(config)
        if indexed:
            yield lambda shard: indexed.get(shard.path, {})
        if not (indexed and self._repo):
            yield self._scan

    def _indexed(self, config: str) -> dict[str, Groups]:
        """Shard -> volume id -> row groups, as the release's own index says; empty if it has none."""
        if config in self._indices:
            return self._indices[config]
        found = self._indices[config] = {}
        for name in sorted(index_names(self.manifest.of(config)) & self.manifest.files.keys()):
            path = fetched(self._repo, self.folder.name, name) if self._repo else self.folder / name
            try:
                shards = read_index(path.read_bytes(), name)
            except (OSError, DataError):
                if self._repo:
                    raise
                continue  # the shards themselves tell
            for shard in shards:
                groups = found.setdefault(shard.path, {})
                for run in shard.runs:
                    groups.setdefault(run.volume_id, []).append(run.group)
        return found

    def _scan(self, shard: Shard) -> Groups:
        """Which row groups of a shard hold which volume; kept, because whoever looks at one looks at more."""
        if shard.path not in self._scanned:
            groups: Groups = {}
            with self._open(shard) as opened:
                for group in range(opened.groups):
                    for id_ in opened.read(["volume_id"], group)["volume_id"].unique():
                        groups.setdefault(id_.as_py(), []).append(group)
            self._scanned[shard.path] = groups
        return self._scanned[shard.path]

    @contextmanager
    def _open(self, shard: Shard) -> Iterator[_Opened]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with self._file(shard) as place:
                if shard.path not in self._sound:  # once, as whoever looks at one looks at more
                    self._look_at_footer(shard, place)
                path, footer = self._footers.get(shard.config, ("", None))
                with pq.ParquetFile(place, metadata=footer if path == shard.path else None) as file:
                    if self._repo:  # at one commit, so a shard does not change
                        self._footers[shard.config] = shard.path, file.metadata
                    yield _Opened(file, place)
        except Exception as error:
            damage = isinstance(error, KeyError | ValueError | Unusual | pa.ArrowException)
            if isinstance(error, ReasonKneeError | UnicodeEncodeError) or not (
                damage or self._repo or isinstance(error, OSError)
            ):
                raise
            number = error.errno if isinstance(error, OSError) else None
            if number is not None and number != errno.ENOENT:  # says nothing of the data
                raise OSError(number, os.strerror(number), shard.path) from None
            if self._repo and not damage:  # the network's errors are of many types
                raise unreachable(self._repo, error) from None
            raise _unreadable(shard, str(error)) from None

    def _look_at_footer(self, shard: Shard, place: Any) -> None:
        """In a process of its own where the shard is on this machine."""
        with raw_bytes(place) as raw:
            if told := footer_is_too_long(raw):
                raise _unreadable(shard, told)
        if isinstance(place, Path):
            str(place).encode()  # pyarrow's names are UTF-8: one that cannot be is no damage
            try:
                look_first(place, walked, SECONDS)
            except DataError as error:
                raise _unreadable(shard, error.message) from None
        self._sound.add(shard.path)

    def _file(self, shard: Shard) -> AbstractContextManager[Any]:
        path = self.folder / shard.path
        if self._repo and shard.config == "annotations" and not self._fetched:
            # of the commit whose manifest was read
            release_folder(self._repo, revision=self.folder.name, configs=[shard.config])
            self._fetched = True
        if self._repo and not path.is_file():
            return closing(in_part(self._repo, self.folder.name, shard.path))
        return nullcontext(path)


class _Opened(NamedTuple):
    """A shard that is open, and where: its path, or on the Hub the file of which parts are fetched."""

    file: Any
    place: Any

    @property
    def names(self) -> list[str]:
        return list(self.file.schema_arrow.names)

    @property
    def groups(self) -> int:
        return int(self.file.num_row_groups)

    def read(self, columns: list[str], group: int | None = None) -> pa.Table:
        """Columns of a row group, or of all, if they unpack to no more than the shard's size allows."""
        groups = range(self.groups) if group is None else [group]
        check_groups(self.file, self.place, groups, columns)
        return self.file.read_row_groups(list(groups), columns=columns)


def _unreadable(shard: Shard, told: str) -> DataError:
    hint = "is the release whole? `reasonknee validate` tells"
    return DataError("R020", f"{shard.path}: {shown(told, 120)}", hint)


def _key_of(id_: str, config: str) -> str:
    return id_.rsplit("-", 1)[0] if config in PER_VOLUME else id_
