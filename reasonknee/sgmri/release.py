"""A release of SGMRI-VQA by the machinery of every release: `qa` without pixels, `slices` and `volumes` with
the user's own fastMRI images."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import DataError, UsageError, counted
from reasonknee.layout.dataset import Dataset
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.records import yaml_fields
from reasonknee.layout.sgmri import CONFIG_DOCS, CONFIGS, LAYOUT, NAME, SGMRI, SPLITS, QaManifest
from reasonknee.release.making import Making, link_shards
from reasonknee.release.shards import Done, Group, groups_of, stamp
from reasonknee.sgmri.images import FastMriFile, Rendering, find_scans, missing
from reasonknee.sgmri.records import Record, read_records, record_lines, record_of
from reasonknee.system.files import sha256_of, write_text
from reasonknee.system.folders import clear
from reasonknee.system.locks import Lock
from reasonknee.system.progress import Progress, silent
from reasonknee.version import VERSION, versions

_NAMED = 20  # volumes that a refusal lists
CARD = "README.md"
TEXTS = {CARD}  # what lies beside shards and manifest
_PER_SHARD = {"qa": 1024, "pixels": 16}


@dataclass(frozen=True)
class Member:
    """A volume: its questions, and its image where pixels are wanted."""

    volume_id: str
    split: str
    lines: tuple[str, ...]  # its records, as they are written: they can be hashed and sent
    scan: Path | None = None

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(record_of(json.loads(line), self.volume_id) for line in self.lines)


@dataclass(frozen=True)
class ScanGroup(Group):
    options: Rendering
    volumes: tuple[Member, ...]

    @property
    def dataset(self) -> Dataset:
        return SGMRI

    def made_of(self) -> str:
        sources: list[object] = [VERSION, LAYOUT, self.pyarrow, self.options, self.configs]
        for each in self.volumes:
            stamps = stamp(each.scan) if each.scan else []
            sources.append([each.volume_id, each.lines, stamps])
        return hashlib.sha256(json.dumps(sources).encode()).hexdigest()

    def volume_id(self, volume: Member) -> str:
        return volume.volume_id

    def read(self, volume: Member) -> tuple[tuple[Record, ...], np.ndarray | None]:
        if volume.scan is None:
            return volume.records, None
        with FastMriFile(volume.scan) as file:
            scan, frames = file.scan(), file.frames(self.options)
        records = tuple(replace(r, shape=scan.shape) for r in volume.records)
        for r in records:
            outside = r.frame is not None and r.frame >= len(frames)
            if outside or any(b.frame >= len(frames) or b.clipped(*scan.shape[1:]) != b for b in r.boxes):
                hint = "are table and image of the same scan?"
                raise DataError("Z031", f"{r.id} leaves its image of {scan.shape}", hint).at(r.volume_id)
            if r.patient not in (None, scan.patient):
                hint = "construct the questions again with these images"
                raise DataError("Z032", f"{r.id} is of another patient than its image", hint).at(r.volume_id)
        return records, frames

    def rows(
        self, sources: tuple[tuple[Record, ...], np.ndarray | None], config: str
    ) -> Iterator[dict[str, Any]]:
        records, frames = sources
        if config == "qa" or frames is None:
            yield from (r.as_row() for r in records)
        elif config == "slices":
            for r in sorted((r for r in records if r.frame is not None), key=lambda r: r.frame or 0):
                at = r.frame or 0
                yield {**r.as_row(), "image": _image(frames[at : at + 1])}
        else:
            about = {n: getattr(records[0], n) for n in ("volume_id", "anatomy", "patient")}
            yield {**about, "image": _image(frames), "questions": [r.as_row() for r in records]}


def _image(frames: np.ndarray) -> dict[str, Any]:
    sizes = dict(zip(("frames", "height", "width"), frames.shape, strict=True))
    return {**sizes, "bytes": frames.tobytes()}


class Build(Making):
    """One release in the making; `images` is the folder of the user's fastMRI files."""

    def __init__(
        self,
        cohort: Path,
        out: Path,
        images: Path | None = None,
        rendering: Rendering = "slice",
        *,
        release_version: str = "1.0.0",
        max_bad: int = 0,
        progress: Progress = silent,
    ) -> None:
        super().__init__(SGMRI, out, CONFIGS if images else ["qa"], release_version, max_bad, progress)
        self.cohort, self.images, self.rendering = cohort, images, rendering

    def run(self, pool: Executor | None = None) -> QaManifest:
        with Lock(self.lock):
            if os.path.lexists(self.out):
                raise self._exists()
            volumes = self._volumes()
            self._claim()
            pixels = tuple(c for c in self.configs if c != SGMRI.public)
            done = self._write(self._groups(volumes, pixels, "pixels"), pool)
            bad = sorted((b for each in done for b in each.bad), key=lambda b: b.volume_id)
            self._judge(bad, len(volumes))
            left_out = {b.volume_id: b.code for b in bad}
            usable = [v for v in volumes if v.volume_id not in left_out]
            alone = [replace(v, scan=None) for v in usable]
            done += self._write(self._groups(alone, (SGMRI.public,), "qa"), pool)
            manifest = self._finish(usable, done, left_out)
            self.folder.rename(self.out)
            clear(self.records, "*.json")
        return manifest

    def _volumes(self) -> list[Member]:
        by_volume: dict[str, list[Record]] = {}
        for record in read_records(self.cohort / "qa.jsonl"):
            by_volume.setdefault(record.volume_id, []).append(record)
        if not by_volume:
            raise DataError("Z024", "no question to build from", "`reasonknee sgmri construct` makes them")
        scans = find_scans(self.images) if self.images else {}
        absent = missing(by_volume, scans) if self.images else []
        if absent:
            hint = "name the folder that has them all, or leave --images out for `qa` alone"
            more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
            named = ", ".join(absent[:_NAMED]) + more
            raise UsageError("Z030", f"{counted(len(absent), 'volume')} without an image: {named}", hint)
        return [Member(v, rs[0].split, tuple(record_lines(rs)), scans.get(v)) for v, rs in by_volume.items()]

    def _groups(self, volumes: list[Member], configs: tuple[str, ...], size: str) -> list[Group]:
        by_split = {s: [v for v in volumes if v.split == s] for s in SPLITS}
        where = (self.cohort, self.folder, self.records)
        return groups_of(ScanGroup, where, by_split, configs, _PER_SHARD[size], self.rendering)

    def _finish(self, volumes: list[Member], done: list[Done], left_out: dict[str, str]) -> QaManifest:
        shards = self._numbered([s for each in done for s in each.shards])
        records = [r for v in volumes for r in v.records]
        used = [s for s in SPLITS if any(v.split == s for v in volumes)]
        known = all(r.patient for r in records)
        lines = "".join(json.dumps(r.as_row()) for r in records)
        manifest = QaManifest(
            dataset=NAME,
            release_version=self.release_version,
            layout_version=LAYOUT,
            code_version=VERSION,
            versions=versions(),
            restricted=any(s.config != SGMRI.public for s in shards),
            synthetic=known and all((r.patient or "").startswith("synthetic-") for r in records),
            rendering=self.rendering,
            sources=hashlib.sha256(lines.encode()).hexdigest(),
            volumes={s: sum(v.split == s for v in volumes) for s in used},
            patients={s: len({r.patient for r in records if r.split == s}) for s in used} if known else None,
            questions={s: sum(r.split == s for r in records) for s in used},
            quarantined=dict(sorted(left_out.items())),
            shards=tuple(shards),
            files={},
        )
        manifest = write_texts(self.folder, manifest)
        self._tidy(shards, manifest.files)
        return manifest


def write_texts(folder: Path, manifest: QaManifest) -> QaManifest:
    """The card that goes with a manifest's shards, and the manifest of them all."""
    write_text(folder / CARD, card(manifest))
    manifest = replace(manifest, files={CARD: sha256_of(folder / CARD)})
    write_text(folder / FILE_NAME, manifest.to_json())
    return manifest


def qa_alone(release: Path, manifest: QaManifest, out: Path) -> QaManifest:
    """The questions of a release without its images, as a release of its own: the same shards, other
    texts."""
    shards = manifest.of(SGMRI.public)
    link_shards(release, shards, out)
    return write_texts(out, replace(manifest, restricted=False, code_version=VERSION, shards=tuple(shards)))


def card(manifest: QaManifest) -> str:
    """The README.md of a release: front matter that `load_dataset` reads."""
    import yaml

    def files(config: str) -> Iterable[dict[str, str]]:
        return [{"split": s, "path": f"{config}/{s}-*.parquet"} for s in SPLITS if manifest.of(config, s)]

    front = {
        "pretty_name": "SGMRI-VQA" + (" (synthetic)" if manifest.synthetic else ""),
        "configs": [{"config_name": c, "data_files": list(files(c))} for c in manifest.configs],
        "dataset_info": [{"config_name": c, "features": yaml_fields(CONFIGS[c])} for c in manifest.configs],
    }
    told = "\n".join(f"- `{c}`: {CONFIG_DOCS[c]}" for c in manifest.configs)
    kept = "\nIt holds fastMRI's images, which may not be redistributed.\n" if manifest.restricted else ""
    return f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# SGMRI-VQA\n\n{told}\n{kept}"
