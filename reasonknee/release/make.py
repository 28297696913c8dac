"""A release of knees: the Parquet shards of each config, the card, Croissant, schemas and the manifest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import asdict, replace
from pathlib import Path

from reasonknee import schema
from reasonknee.cohort import Cohort, Entry
from reasonknee.errors import DataError, UsageError
from reasonknee.layout import CONFIGS, SPLITS, Manifest, read_manifest
from reasonknee.layout.dataset import KNEE
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.records import fields
from reasonknee.layout.splits import is_synthetic
from reasonknee.release.card import card_text
from reasonknee.release.croissant import croissant_text
from reasonknee.release.index import index_texts
from reasonknee.release.making import Making, link_shards
from reasonknee.release.provenance import summed
from reasonknee.release.rows import Member, Options, members
from reasonknee.release.shards import Done, Group, files_of, plan
from reasonknee.system.files import sha256_of, write_text
from reasonknee.system.folders import clear, is_ours
from reasonknee.system.locks import Lock
from reasonknee.system.progress import Progress, silent
from reasonknee.system.workers import executor
from reasonknee.version import LAYOUT_VERSION, VERSION, versions


def available_configs(cohort: Cohort) -> list[str]:
    """The configs whose source the cohort has."""
    has = {
        "cropped": (cohort.root / "images").is_dir(),
        "full": (cohort.root / "images").is_dir(),
        "embeddings": cohort.embeddings.is_file(),
    }
    return [c for c in CONFIGS if has.get(c, True)]


class Build(Making):
    """One release of knees in the making.

    `run` does it all; `run_part` and a later `run` do it from many array jobs.
    """

    def __init__(
        self,
        cohort: Cohort,
        out: Path,
        configs: Iterable[str] | None = None,
        options: Options | None = None,
        *,
        release_version: str = "1.0.0",
        max_bad: int = 0,
        accept: Iterable[str] = (),
        progress: Progress = silent,
    ) -> None:
        chosen = list(configs) if configs is not None else available_configs(cohort)
        for config in chosen:
            fields(config)
        super().__init__(KNEE, out, chosen, release_version, max_bad, progress)
        self.cohort, self.options = cohort, options or Options()
        self.accept = frozenset(accept)

    def run(self, pool: Executor | None = None) -> Manifest:
        """Everything that is still to do, then the finish."""
        with Lock(self.lock):
            volumes, unasked = self._volumes()
            if os.path.lexists(self.out):
                return self._taken_as_it_is(volumes)
            self._claim()
            done = self._write(self._groups(volumes), pool)
            bad = sorted((b for each in done for b in each.bad), key=lambda b: b.volume_id)
            self._judge(bad, len(volumes))
            left_out = {b.volume_id: b.code for b in bad}
            usable = [v for v in volumes if v.entry.volume_id not in left_out]
            if "annotations" in self.configs:  # last, so that it holds the same volumes as the rest
                alone = [Member(v.entry) for v in usable]
                where = (self.cohort.root, self.folder, self.records)
                done += self._write(plan(*where, alone, ["annotations"], self.options), pool)
            manifest = self._finish(usable, done, left_out | {e.volume_id: "K010" for e in unasked})
            self.folder.rename(self.out)
            clear(self.records, "*.json")
        return manifest

    def run_part(self, part: int, of: int, pool: Executor | None = None) -> int:
        """Every `of`-th group, starting with `part` (from 1): what one of many array jobs does.

        Returns the number of its groups.
        """
        if not 1 <= part <= of:
            raise UsageError(
                "R003", f"part {part} of {of}", "parts count from 1: --shard 1/16 to --shard 16/16"
            )
        with Lock(self.lock, shared=True), Lock(self.lock.with_name(f"{self.lock.name}.{part}-of-{of}")):
            if os.path.lexists(self.out):
                raise self._exists()
            volumes, _ = self._volumes()
            self._claim()
            mine = self._groups(volumes)[part - 1 :: of]
            self._write(mine, pool)
        return len(mine)

    # --- what is there already ------------------------------------------------------------------------------

    def _taken_as_it_is(self, volumes: list[Member]) -> Manifest:
        """The release that the same build finished before; any other is refused."""
        try:
            manifest = read_manifest(self.out)
        except DataError:
            raise self._exists() from None
        used = [v for v in volumes if v.entry.volume_id not in manifest.quarantined]
        same = (
            manifest.configs == self.configs
            and manifest.release_version == self.release_version
            and (manifest.code_version, manifest.versions) == (VERSION, versions())
            and all(getattr(manifest, name) == value for name, value in asdict(self.options).items())
            and manifest.sources == self._sources(used)
            and not self._changed_since((self.out / FILE_NAME).stat().st_mtime_ns, used)
            and all(_has_size(self.out / s.path, s.bytes) for s in manifest.shards)
        )
        if not same:
            raise self._exists()
        self.was_finished = True
        if is_ours(self.records, self._purpose):  # left by a kill at the very end
            clear(self.records, "*.json")
        return manifest

    def _sources(self, volumes: list[Member]) -> str:
        """A digest of what a release is made of: the lines of its annotations, and how long its files are."""
        digest = hashlib.sha256()
        for each in volumes:
            sizes = [f.stat().st_size for path in each.files for f in files_of(path)]
            digest.update(self.cohort.line(each.entry).strip() + repr(sizes).encode())
        if "embeddings" in self.configs:
            digest.update(repr(self.cohort.embeddings.stat().st_size).encode())
        return digest.hexdigest()

    def _changed_since(self, then: int, volumes: list[Member]) -> bool:
        """Whether a source was changed, replaced or put in place after that moment."""
        files = [f for each in volumes for path in each.files for f in (path, *files_of(path))]
        files += [self.cohort.embeddings] if "embeddings" in self.configs else []
        return any(max(s.st_mtime_ns, s.st_ctime_ns) > then for f in files for s in (f.stat(), f.lstat()))

    # --- steps ----------------------------------------------------------------------------------------------

    def _volumes(self) -> tuple[list[Member], list[Entry]]:
        """The volumes and their files, and the volumes that no question of the set is about: they would have
        no rows, so they are in no config and no count."""
        known = self.cohort.entries()
        entries = [e for e in known if self.options.asked(e.questions)]
        unasked = [e for e in known if not self.options.asked(e.questions)]
        if not entries:
            hint = "`reasonknee questions` lists them; `--questions all69` has them all"
            raise DataError("K010", f"no volume has grades for a question of {self.options.questions}", hint)
        return members(self.cohort, entries, self.configs, max_bad=self.max_bad, accept=self.accept), unasked

    def _groups(self, volumes: list[Member]) -> list[Group]:
        """Groups of all volumes, bad ones too: a group that meets one leaves it out, and its neighbours
        stay where they are."""
        return plan(
            self.cohort.root,
            self.folder,
            self.records,
            volumes,
            [c for c in self.configs if c != "annotations"],
            self.options,
        )

    def _finish(self, volumes: list[Member], done: list[Done], left_out: dict[str, str]) -> Manifest:
        """Everything around the shards; whatever else an earlier run left goes."""
        entries = [v.entry for v in volumes]
        shards = self._numbered([s for each in done for s in each.shards])
        used = [s for s in SPLITS if any(e.split == s for e in entries)]
        described = {
            "release_version": self.release_version,
            "layout_version": LAYOUT_VERSION,
            "code_version": VERSION,
            "versions": versions(),
            "restricted": any(s.config != "annotations" for s in shards),
            "synthetic": all(is_synthetic(e.patient) for e in entries),
            **asdict(self.options),
            "sources": self._sources(volumes),
            "volumes": {s: sum(e.split == s for e in entries) for s in used},
            "patients": {s: len({e.patient for e in entries if e.split == s}) for s in used},
            "quintuples": {
                s: sum(len(self.options.asked(e.questions)) for e in entries if e.split == s) for s in used
            },
            "quarantined": dict(sorted(left_out.items())),
            "provenance": summed(self.folder, shards),
            "shards": tuple(shards),
        }
        manifest = write_texts(self.folder, Manifest(**described, files={}))
        self._tidy(shards, manifest.files)
        return manifest


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def write_texts(folder: Path, manifest: Manifest) -> Manifest:
    """Card, Croissant, schemas and index that go with a manifest's shards, and the manifest of them all."""
    texts = {"README.md": card_text(manifest), "croissant.json": croissant_text(manifest)}
    texts |= {f"schema/{path.name}": path.read_text(encoding="utf-8") for path in schema.files()}
    texts |= index_texts(folder, manifest)
    for name, text in texts.items():
        write_text(folder / name, text)
    manifest = replace(manifest, files={name: sha256_of(folder / name) for name in sorted(texts)})
    write_text(folder / FILE_NAME, manifest.to_json())
    return manifest


def annotations_alone(release: Path, manifest: Manifest, out: Path) -> Manifest:
    """The part of a release that holds no image and nothing computed from one, as a release of its own:
    the same shards, other texts."""
    shards = manifest.of("annotations")
    link_shards(release, shards, out)
    return write_texts(out, replace(manifest, restricted=False, code_version=VERSION, shards=tuple(shards)))


def build(
    cohort: Cohort,
    out: Path,
    configs: Iterable[str] | None = None,
    options: Options | None = None,
    *,
    workers: int = 1,
    dask: str = "",
) -> Manifest:
    """A release of the cohort in `out`, which must not exist, or be what the same build made of it before."""
    with executor(workers, dask) as pool:
        return Build(cohort, out, configs, options).run(pool)
