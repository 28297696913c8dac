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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee.errors import DataError, shown
from reasonknee.layout import PER_VOLUME, Manifest, Shard, read_manifest, release_folder
from reasonknee.layout.bounds import SECONDS, check_groups, footer_is_too_long, walked
from reasonknee.layout.parquet import Unusual
from reasonknee.layout.records import fields
from reasonknee.system.limits import limited

if TYPE_CHECKING:
    import pyarrow as pa

    from reasonknee.volumes import Volume

LIGHTEST = ("annotations", "cropped", "embeddings", "full")  # the config with least beside the answers first
_LIST = "quintuples"


class Release:
    """A release that was opened, in a folder or from the Hub: its manifest, and ways to its rows.

    Of a repo on the Hub the texts are fetched first, and the shards of a config when one of them is read.
    """

    def __init__(self, place: str | Path) -> None:
        self.folder = release_folder(place, configs=())
        self._repo = "" if Path(place).is_dir() else str(place)
        self._fetched: set[str] = set()
        self._sound: set[str] = set()  # shards whose footer was looked at
        self._groups: dict[str, dict[str, list[int]]] = {}  # shard -> volume id -> row groups

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

        with self._open(shard) as file:
            if shard.config not in PER_VOLUME:
                return self._read(shard, file, [n for n in names if n in file.schema_arrow.names])
            known = {field.name for field in file.schema_arrow.field(_LIST).type.value_type}
            of_volume = [n for n in names if n in file.schema_arrow.names and n not in known]
            of_question = [n for n in names if n in known]
            nested = [f"{_LIST}.list.element.{name}" for name in of_question or ["id"]]
            table = self._read(shard, file, [*of_volume, *nested])
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
        left = set(keys)
        for shard in self.manifest.of(config, split):
            if not left:
                return
            groups = self._volumes_of(shard)
            volumes = {key if config in PER_VOLUME else key.rsplit("-", 1)[0] for key in left}
            chosen = sorted({group for volume in volumes & groups.keys() for group in groups[volume]})
            for group in chosen:
                with self._open(shard) as file:
                    inside = self._read(shard, file, [name], group)[name]
                    places = pc.indices_nonzero(pc.is_in(inside, value_set=pa.array(sorted(left))))
                    if not len(places):
                        continue
                    present = [n for n in columns or file.schema_arrow.names if n in file.schema_arrow.names]
                    table = self._read(shard, file, list(dict.fromkeys([name, *present])), group)
                for place in places.to_pylist():
                    (row,) = table.slice(place, 1).to_pylist()
                    left.discard(row[name])
                    yield row

    def volume(self, volume_id: str) -> Volume | None:
        """The voxels of a whole volume; None if the release does not hold them."""
        from reasonknee.volumes import volume_from_bytes

        row = next(self.rows([volume_id], "full", columns=["volume"]), None)
        return volume_from_bytes(row["volume"]["bytes"]) if row else None

    def _volumes_of(self, shard: Shard) -> dict[str, list[int]]:
        """Which row groups of a shard hold which volume; kept, because whoever looks at one looks at more."""
        if shard.path not in self._groups:
            groups: dict[str, list[int]] = {}
            with self._open(shard) as file:
                for group in range(file.num_row_groups):
                    for id_ in self._read(shard, file, ["volume_id"], group)["volume_id"].unique():
                        groups.setdefault(id_.as_py(), []).append(group)
            self._groups[shard.path] = groups
        return self._groups[shard.path]

    def _read(self, shard: Shard, file: Any, columns: list[str], group: int | None = None) -> pa.Table:
        """Columns of a row group, or of all, if they unpack to no more than the shard's size allows."""
        groups = range(file.num_row_groups) if group is None else [group]
        check_groups(file, self.folder / shard.path, groups, columns)
        return file.read_row_groups(list(groups), columns=columns)

    @contextmanager
    def _open(self, shard: Shard) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._repo and shard.config not in self._fetched:  # of the commit whose manifest was read
            release_folder(self._repo, revision=self.folder.name, configs=[shard.config])
            self._fetched.add(shard.config)
        try:
            self._look_at_footer(shard)
            with pq.ParquetFile(self.folder / shard.path) as file:
                yield file
        except (OSError, KeyError, ValueError, Unusual, pa.ArrowException) as error:
            number = error.errno if isinstance(error, OSError) else None
            if number is not None and number != errno.ENOENT:  # says nothing of the data
                raise OSError(number, os.strerror(number), shard.path) from None
            raise _unreadable(shard, str(error)) from None

    def _look_at_footer(self, shard: Shard) -> None:
        """Once for each shard, as whoever looks at one looks at more."""
        if shard.path in self._sound:
            return
        path = self.folder / shard.path
        with path.open("rb") as raw:
            if told := footer_is_too_long(raw):
                raise _unreadable(shard, told)
        try:
            limited(partial(walked, path), SECONDS)
        except DataError as error:
            raise _unreadable(shard, error.message) from None
        self._sound.add(shard.path)


def _unreadable(shard: Shard, told: str) -> DataError:
    hint = "is the release whole? `reasonknee validate` tells"
    return DataError("R020", f"{shard.path}: {shown(told, 120)}", hint)


def _key_of(id_: str, config: str) -> str:
    return id_.rsplit("-", 1)[0] if config in PER_VOLUME else id_
