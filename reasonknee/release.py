"""A release: the Parquet shards of each config, the card, Croissant, schemas and the manifest.

The work goes on in `<release>.partial`, and the folder gets its name when everything in it is whole. It may be killed at any point: the next run
takes over the groups that were finished. Groups run on any `concurrent.futures.Executor`: here, in a process pool, or on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, as_completed
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

from reasonknee import schema
from reasonknee.card import card_text
from reasonknee.cohort import UNREADABLE, Cohort, Entry
from reasonknee.croissant import croissant_text
from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.locks import Lock
from reasonknee.manifest import FILE_NAME, Manifest, Shard, sha256_of
from reasonknee.materialise import NEEDS_IMAGES, Options
from reasonknee.records import CONFIGS, fields
from reasonknee.shards import Bad, Done, Group, Member, finished, plan, shard_path, write_group, write_text
from reasonknee.splits import SPLITS, is_synthetic
from reasonknee.version import LAYOUT_VERSION, VERSION
from reasonknee.workers import worker_pool

QUARANTINE = "quarantine.json"
_VERSION = re.compile(r"[0-9]+[.][0-9]+[.][0-9]+")
Progress = Callable[[str, int, int], object]  # what, done, of


def available_configs(cohort: Cohort) -> list[str]:
    """The configs whose source the cohort has."""
    has = {"cropped": (cohort.root / "images").is_dir(), "full": (cohort.root / "images").is_dir(), "embeddings": cohort.embeddings.is_file()}
    return [c for c in CONFIGS if has.get(c, True)]


class Build:
    """One release in the making. `run` does it all; `run_part` and a later `run` do it from many array jobs."""

    def __init__(
        self,
        cohort: Cohort,
        out: Path,
        configs: Iterable[str] | None = None,
        options: Options | None = None,
        *,
        release_version: str = "1.0.0",
        max_bad: int = 0,
        progress: Progress = lambda what, done, of: None,
    ) -> None:
        wanted = list(configs) if configs is not None else available_configs(cohort)
        for config in wanted:
            fields(config)
        self.configs = [c for c in CONFIGS if c in wanted]  # `cropped` comes first in the card, so that it is the default
        self.cohort, self.out, self.options = cohort, out, options or Options()
        self.release_version, self.max_bad, self.progress = release_version, max_bad, progress
        if out.exists():
            raise UsageError("R001", f"{out} exists", "choose a new folder, or remove it")
        if not _VERSION.fullmatch(release_version):
            raise UsageError("R008", f"{release_version!r} is not a version", "MAJOR.MINOR.PATCH, such as 1.0.0")
        out = out.absolute()
        self.folder, self.records, self.lock = (out.with_name(out.name + suffix) for suffix in (".partial", ".records", ".lock"))

    def run(self, executor: Executor | None = None, workers: int = 1) -> Manifest:
        """Everything that is still to do, then the finish."""
        with Lock(self.lock):
            volumes, unasked = self._volumes()
            done = self._write(self._groups(volumes), executor, workers)
            bad = sorted((b for each in done for b in each.bad), key=lambda b: b.volume_id)
            self._judge(bad, len(volumes))
            left_out = {b.volume_id: b.code for b in bad}
            usable = [v.entry for v in volumes if v.entry.volume_id not in left_out]
            if "annotations" in self.configs:  # last, so that it holds the same volumes as the rest
                members = [Member(e) for e in usable]
                done += self._write(plan(self.cohort.root, self.folder, self.records, members, ["annotations"], self.options), executor, workers)
            manifest = self._finish(usable, done, left_out | {e.volume_id: "K010" for e in unasked})
            self.folder.rename(self.out)
            shutil.rmtree(self.records)
        return manifest

    def run_part(self, part: int, of: int, workers: int = 1) -> int:
        """Every `of`-th group, starting with `part` (from 1): what one of many array jobs does. Returns the number of its groups."""
        if not 1 <= part <= of:
            raise UsageError("R003", f"part {part} of {of}", "parts count from 1: --shard 1/16 to --shard 16/16")
        with Lock(self.lock, shared=True), Lock(self.lock.with_name(f"{self.lock.name}.{part}-of-{of}")):
            mine = self._groups(self._volumes()[0])[part - 1 :: of]
            self._write(mine, None, workers)
        return len(mine)

    # --- steps --------------------------------------------------------------------------------------------------------------------

    def _volumes(self) -> tuple[list[Member], list[Entry]]:
        """The volumes and their files, and the volumes that no question of the set is about: they would have no rows, so they are in no config and
        no count. What is missing is told before any work, unless so many bad volumes are allowed."""
        known = self.cohort.entries()
        entries = [e for e in known if self.options.asked(e.questions)]
        unasked = [e for e in known if not self.options.asked(e.questions)]
        if not entries:
            hint = "`reasonknee questions` lists them; `--questions all69` has them all"
            raise DataError("K010", f"no volume has grades for a question of {self.options.questions}", hint)
        if "embeddings" in self.configs:
            self.cohort.check_embeddings(entries, self.max_bad)
        if not NEEDS_IMAGES & set(self.configs):
            return [Member(e) for e in entries], unasked
        images, masks = self.cohort.images(entries, self.max_bad), self.cohort.masks()
        return [Member(e, images.get(e.volume_id), masks.get(e.key, ())) for e in entries], unasked

    def _groups(self, volumes: list[Member]) -> list[Group]:
        """Groups of all volumes, bad ones too: a group that meets one leaves it out, and its neighbours stay where they are."""
        return plan(self.cohort.root, self.folder, self.records, volumes, [c for c in self.configs if c != "annotations"], self.options)

    def _write(self, groups: list[Group], executor: Executor | None, workers: int) -> list[Done]:
        """Every group, written now or found finished, in the order of the plan."""
        done: dict[int, Done] = {}
        for i, group in enumerate(groups):
            found = finished(group)
            if found:
                done[i] = found
        total = sum(len(g.volumes) for g in groups)

        def tell() -> None:
            self.progress(f"writing {', '.join(groups[0].configs)}", sum(len(groups[i].volumes) for i in done), total)

        if not groups:
            return []
        tell()
        todo = [i for i in range(len(groups)) if i not in done]
        if executor is None and (workers <= 1 or len(todo) <= 1):
            for i in todo:
                done[i] = write_group(groups[i])
                tell()
            return [done[i] for i in range(len(groups))]
        with nullcontext(executor) if executor else worker_pool(workers) as pool:
            futures: dict[Future[Done], int] = {pool.submit(write_group, groups[i]): i for i in todo}
            try:
                for future in as_completed(futures):
                    done[futures[future]] = future.result()
                    tell()
            finally:
                for future in futures:
                    future.cancel()
        return [done[i] for i in range(len(groups))]

    def _judge(self, bad: list[Bad], volumes: int) -> None:
        """Writes the quarantine report; more bad volumes than were allowed end the build, with all its finished work kept."""
        if not bad:
            return
        write_text(self.folder / QUARANTINE, json.dumps([asdict(b) for b in bad], indent=1) + "\n")
        if len(bad) > self.max_bad or len(bad) == volumes:
            some = "; ".join(f"{b.volume_id} {b.code}: {b.reason}" for b in bad[:3]) + (f"; and {len(bad) - 3} more" if len(bad) > 3 else "")
            some_left = len(bad) < volumes
            hint = f"all in {self.folder / QUARANTINE}; mend them" + (f", or build without them by --max-bad {len(bad)}" if some_left else "")
            kind = DataError if some_left or any(b.code not in UNREADABLE for b in bad) else StorageError  # not one can be read: it is the disk
            raise kind("R005", f"{len(bad)} of {volumes} volumes cannot be used: {some}", hint)

    def _finish(self, entries: list[Entry], done: list[Done], left_out: dict[str, str]) -> Manifest:
        """Everything around the shards; whatever else an earlier run left goes."""
        shards = self._numbered([s for each in done for s in each.shards])
        used = [s for s in SPLITS if any(e.split == s for e in entries)]
        described = {
            "release_version": self.release_version,
            "layout_version": LAYOUT_VERSION,
            "code_version": VERSION,
            "restricted": any(s.config != "annotations" for s in shards),
            "synthetic": all(is_synthetic(e.patient) for e in entries),
            **asdict(self.options),
            "volumes": {s: sum(e.split == s for e in entries) for s in used},
            "patients": {s: len({e.patient for e in entries if e.split == s}) for s in used},
            "quintuples": {s: sum(len(self.options.asked(e.questions)) for e in entries if e.split == s) for s in used},
            "quarantined": dict(sorted(left_out.items())),
            "shards": tuple(shards),
        }
        manifest = _write_texts(self.folder, Manifest(**described, files={}))
        known = {s.path for s in shards} | set(manifest.files) | {FILE_NAME}
        for path in sorted(self.folder.rglob("*"), reverse=True):  # files before the folders that they leave empty
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.is_file() and str(path.relative_to(self.folder)) not in known:
                path.unlink()
        return manifest

    def _numbered(self, shards: list[Shard]) -> list[Shard]:
        """Shards without gaps in their numbers: a group whose volumes were all bad has left none. Killed here, such groups are written again."""
        found = []
        for config in CONFIGS:
            for split in SPLITS:
                own = [s for s in shards if s.config == config and s.split == split]
                for i, shard in enumerate(own):
                    path = shard_path(config, split, i, len(own))
                    if path != shard.path:
                        (self.folder / shard.path).rename(self.folder / path)
                    found.append(replace(shard, path=path))
        return found


def _write_texts(folder: Path, manifest: Manifest) -> Manifest:
    """Card, Croissant and schemas that go with a manifest's shards, and the manifest that lists them, too."""
    texts = {"README.md": card_text(manifest), "croissant.json": croissant_text(manifest)}
    texts |= {f"schema/{path.name}": path.read_text(encoding="utf-8") for path in schema.files()}
    for name, text in texts.items():
        write_text(folder / name, text)
    manifest = replace(manifest, files={name: sha256_of(folder / name) for name in sorted(texts)})
    write_text(folder / FILE_NAME, manifest.to_json())
    return manifest


def annotations_alone(release: Path, manifest: Manifest, out: Path) -> Manifest:
    """The part of a release that holds no image and nothing computed from one, as a release of its own: the same shards, other texts."""
    shards = manifest.of("annotations")
    for shard in shards:
        source, target = Path(os.path.realpath(release / shard.path)), out / shard.path
        if not source.is_file():
            continue  # for the check to tell, with all else
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another disk, or one that has no links
            shutil.copyfile(source, target)
    return _write_texts(out, replace(manifest, restricted=False, code_version=VERSION, shards=tuple(shards)))


def build(
    cohort: Cohort,
    out: Path,
    configs: Iterable[str] | None = None,
    options: Options | None = None,
    *,
    workers: int = 1,
    executor: Executor | None = None,
) -> Manifest:
    """A release of the cohort in `out`, which must not exist."""
    return Build(cohort, out, configs, options).run(executor, workers)
