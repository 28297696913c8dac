"""A release of any dataset in the making: its folders, what is taken over, what is left out.

The work goes on in `<release>.partial`, and the folder gets its name when everything in it is whole. It may
be killed at any point: the next run takes over the groups that were finished, as `<release>.records` tells.
Groups run on any `concurrent.futures.Executor`: here, in a process pool, or on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import asdict, replace
from pathlib import Path

from reasonknee.cohort.folder import UNREADABLE
from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.layout import Shard
from reasonknee.layout.dataset import Dataset
from reasonknee.layout.manifest import FILE_NAME, shard_paths
from reasonknee.release.shards import Bad, Done, Group, shard_path, write_group
from reasonknee.system.files import write_text
from reasonknee.system.folders import claim, is_ours, not_ours, refuse_links
from reasonknee.system.progress import Progress
from reasonknee.system.workers import as_finished

QUARANTINE = "quarantine.json"
_VERSION = re.compile(r"[0-9]+[.][0-9]+[.][0-9]+")


def _own_names(dataset: Dataset) -> re.Pattern[str]:
    """What a build leaves in its working folder: shards, texts, and what it was writing when it was
    killed."""
    configs, splits = "|".join(dataset.configs), "|".join(dataset.splits)
    return re.compile(
        rf"{shard_paths(dataset).pattern}|{configs}|schema(/[a-z]+[.]schema[.]json)?"
        rf"|index(/({configs})-({splits})[.]jsonl)?"
        rf"|README[.]md|croissant[.]json|{FILE_NAME}|{QUARANTINE}|(?:[a-z]+/)?[.][^/]+[.]tmp"
    )


def link_shards(release: Path, shards: Iterable[Shard], out: Path) -> None:
    """The same shards in another release: links where the disk has them."""
    for shard in shards:
        source, target = Path(os.path.realpath(release / shard.path)), out / shard.path
        if not source.is_file():
            continue  # for the check to tell, with all else
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another disk, or one that has no links
            shutil.copyfile(source, target)


class Making:
    """What is the same for every dataset."""

    def __init__(
        self,
        dataset: Dataset,
        out: Path,
        configs: Iterable[str],
        release_version: str,
        max_bad: int,
        progress: Progress,
    ) -> None:
        chosen = list(configs)
        self.dataset, self.own_name = dataset, _own_names(dataset)
        self.configs = [c for c in dataset.configs if c in chosen]  # the first is the card's default
        self.release_version, self.max_bad, self.progress = release_version, max_bad, progress
        self.was_finished = False  # by an earlier run of the same build
        if not _VERSION.fullmatch(release_version):
            raise UsageError(
                "R008", f"{release_version!r} is not a version", "MAJOR.MINOR.PATCH, such as 1.0.0"
            )
        self.out = out = Path(os.path.abspath(out))
        if not out.name or (os.path.lexists(out) and not (out / FILE_NAME).is_file()):  # or it is /
            raise self._exists()
        self.folder, self.records, self.lock = (
            out.with_name(out.name + suffix) for suffix in (".partial", ".records", ".lock")
        )

    def _exists(self) -> UsageError:
        return UsageError("R001", f"{self.out} exists", "choose a new folder, or remove it")

    @property
    def _purpose(self) -> str:
        return f"records of the build of {self.out.name}"

    def _claim(self) -> None:
        """Working folders that are ours, or new ones; nobody else's, and nothing in them that is not ours."""
        if not is_ours(self.records, self._purpose) and os.path.lexists(self.folder):
            raise not_ours(self.folder)
        claim(self.records, self._purpose)
        for folder in (self.records, self.folder):
            refuse_links(folder)
        self._refuse_strange()

    def _refuse_strange(self) -> None:
        strange = [name for name in _names_in(self.folder) if not self.own_name.fullmatch(name)]
        if strange:
            told = f"{self.folder / strange[0]} is not from this build"
            raise UsageError("R013", told, "move it away; the same command goes on")

    def _write(self, groups: list[Group], pool: Executor | None) -> list[Done]:
        """Every group, written now or taken over, in the order of the plan."""
        if not groups:
            return []
        done: dict[Group, Done] = {}
        total = sum(len(g.volumes) for g in groups)
        for group, written in as_finished(write_group, groups, pool):
            done[group] = written
            stage = f"writing {', '.join(group.configs)}"
            self.progress(stage, sum(len(each.volumes) for each in done), total)
        return [done[group] for group in groups]

    def _judge(self, bad: list[Bad], volumes: int) -> None:
        """Writes the quarantine report; more bad volumes than were allowed end the build, with all its
        finished work kept."""
        if not bad:
            return
        write_text(self.folder / QUARANTINE, json.dumps([asdict(b) for b in bad], indent=1) + "\n")
        if len(bad) > self.max_bad or len(bad) == volumes:
            some = "; ".join(f"{b.volume_id} {b.code}: {b.reason}" for b in bad[:3]) + (
                f"; and {len(bad) - 3} more" if len(bad) > 3 else ""
            )
            some_left = len(bad) < volumes
            hint = f"all in {self.folder / QUARANTINE}; mend them" + (
                f", or build without them by --max-bad {len(bad)}" if some_left else ""
            )
            kind = (
                DataError if some_left or any(b.code not in UNREADABLE for b in bad) else StorageError
            )  # not one can be read: it is the disk
            raise kind("R005", f"{len(bad)} of {volumes} volumes cannot be used: {some}", hint)

    def _tidy(self, shards: list[Shard], files: Iterable[str]) -> None:
        """Whatever else an earlier run left goes."""
        self._refuse_strange()
        known = {s.path for s in shards} | set(files) | {FILE_NAME}
        for name in _names_in(self.folder):  # files before the folders that they leave empty
            path = self.folder / name
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.is_file() and name not in known:
                path.unlink()

    def _numbered(self, shards: list[Shard]) -> list[Shard]:
        """Shards without gaps in their numbers: a group whose volumes were all bad has left none.

        Killed here, such groups are written again.
        """
        numbered = []
        for config in self.dataset.configs:
            for split in self.dataset.splits:
                own = [s for s in shards if s.config == config and s.split == split]
                for i, shard in enumerate(own):
                    path = shard_path(config, split, i, len(own))
                    if path != shard.path:
                        (self.folder / shard.path).rename(self.folder / path)
                    numbered.append(replace(shard, path=path))
        return numbered


def _names_in(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"), reverse=True)]
