"""A release: the Parquet shards of each config, the card, Croissant, schemas and the manifest.

The work goes on in `<release>.partial` and the folder gets its name when everything in it is whole. Shards are independent jobs, each written under a
temporary name, synced and renamed, then recorded; a second run takes over what the first one finished.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reasonknee import schema
from reasonknee.card import card_text
from reasonknee.cohort import Cohort, Entry
from reasonknee.croissant import croissant_text
from reasonknee.errors import LockedError, UsageError
from reasonknee.manifest import FILE_NAME, Manifest, Shard, sha256_of
from reasonknee.materialise import NEEDS_IMAGES, Options, rows
from reasonknee.records import CONFIGS, arrow_schema, fields
from reasonknee.splits import SPLITS
from reasonknee.version import LAYOUT_VERSION, VERSION

if TYPE_CHECKING:
    import pyarrow as pa

VOLUMES_PER_SHARD = {"annotations": 1024, "cropped": 32, "full": 32, "embeddings": 32}
VOLUMES_PER_ROW_GROUP = {"annotations": 16, "cropped": 1, "full": 1, "embeddings": 1}
_MANY = 64  # shard counts above are rounded up to a multiple of this, below to a power of two, so that nodes and workers share evenly
Progress = Callable[[str, int, int], object]  # what, done, of


@dataclass(frozen=True)
class Job:
    """All that a worker needs to write one shard."""

    root: str
    folder: str
    path: str
    config: str
    split: str
    options: Options
    volumes: tuple[tuple[Entry, Path | None], ...]


# --- planning ---------------------------------------------------------------------------------------------------------------------


def shard_count(volumes: int, per_shard: int) -> int:
    wanted = -(-volumes // per_shard)
    if wanted > _MANY:
        return -(-wanted // _MANY) * _MANY
    return min(volumes, 1 << (wanted - 1).bit_length())


def plan(cohort: Cohort, folder: Path, entries: list[Entry], images: dict[str, Path], configs: Iterable[str], options: Options) -> list[Job]:
    jobs = []
    for config in configs:
        for split in SPLITS:
            members = [(e, images.get(e.volume_id) if config in NEEDS_IMAGES else None) for e in entries if e.split == split]
            n = shard_count(len(members), VOLUMES_PER_SHARD[config]) if members else 0
            for i in range(n):
                part = tuple(members[len(members) * i // n : len(members) * (i + 1) // n])
                path = f"{config}/{split}-{i:05d}-of-{n:05d}.parquet"
                jobs.append(Job(str(cohort.root), str(folder), path, config, split, options, part))
    return jobs


# --- writing one shard ------------------------------------------------------------------------------------------------------------


def writer_settings(config: str) -> dict[str, Any]:
    """Pinned, so that the same rows are the same bytes. Questions on one region share its bytes by dictionary encoding."""
    leaves = dict(_leaves(arrow_schema(config)))
    voxels = {name for name, binary in leaves.items() if binary}
    return {
        "version": "2.6",
        "data_page_version": "1.0",
        "compression": "zstd",
        "compression_level": 3,
        "use_dictionary": [name for name in leaves if name not in voxels or config == "cropped"],
        "dictionary_pagesize_limit": 1 << 30,  # a region's bytes stay in the dictionary however large they are
        "write_statistics": [name for name in leaves if name not in voxels],
        "write_page_index": True,
        "write_page_checksum": True,
        "store_schema": True,
    }


def _leaves(arrow: pa.Schema) -> Iterator[tuple[str, bool]]:
    """Parquet's name of each column, and whether it holds raw bytes."""
    import pyarrow as pa

    def walk(name: str, kind: pa.DataType) -> Iterator[tuple[str, bool]]:
        if pa.types.is_struct(kind):
            for field in kind:
                yield from walk(f"{name}.{field.name}", field.type)
        elif pa.types.is_list(kind):
            yield from walk(f"{name}.list.element", kind.value_type)
        else:
            yield name, pa.types.is_binary(kind)

    for field in arrow:
        yield from walk(field.name, field.type)


def write_shard(job: Job) -> Shard:
    import pyarrow as pa
    import pyarrow.parquet as pq

    final = Path(job.folder, job.path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_suffix(".tmp")
    cohort, arrow = Cohort(job.root), arrow_schema(job.config)
    count = arrow_bytes = 0
    per_group = VOLUMES_PER_ROW_GROUP[job.config]
    with pq.ParquetWriter(temporary, arrow, **writer_settings(job.config)) as writer:
        for start in range(0, len(job.volumes), per_group):
            members = job.volumes[start : start + per_group]
            batch = [row for entry, image in members for row in rows(cohort, entry, job.config, job.options, image)]
            table = pa.Table.from_pylist(batch, schema=arrow)
            if len(table):
                writer.write_table(table, row_group_size=len(table))
            count, arrow_bytes = count + len(table), arrow_bytes + table.nbytes
    _commit(temporary, final)
    shard = Shard(job.path, job.config, job.split, count, final.stat().st_size, arrow_bytes, sha256_of(final))
    _write(_record(Path(job.folder), job.path), json.dumps(asdict(shard)))
    return shard


def _record(folder: Path, path: str) -> Path:
    return folder / ".build" / (path.replace("/", "--") + ".json")


def _commit(temporary: Path, final: Path) -> None:
    """Under its final name a file is whole, even after a power cut."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
    descriptor = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8", newline="\n")
    _commit(temporary, path)


# --- the whole release ------------------------------------------------------------------------------------------------------------


def available_configs(cohort: Cohort) -> list[str]:
    """The configs whose source the cohort has."""
    has = {"cropped": (cohort.root / "images").is_dir(), "full": (cohort.root / "images").is_dir(), "embeddings": cohort.embeddings.is_file()}
    return [c for c in CONFIGS if has.get(c, True)]


def build(
    cohort: Cohort,
    out: Path,
    configs: Iterable[str] | None = None,
    options: Options | None = None,
    *,
    release_version: str = "1.0.0",
    workers: int = 1,
    executor: Executor | None = None,
    progress: Progress = lambda what, done, of: None,
) -> Manifest:
    """Writes a release of the cohort to `out`, which must not exist."""
    options = options or Options()
    chosen = list(configs) if configs is not None else available_configs(cohort)
    for config in chosen:
        fields(config)
    chosen = [c for c in CONFIGS if c in chosen]  # `cropped` comes first in the card, so that it is the default
    if out.exists():
        raise UsageError("R001", f"{out} exists", "choose a new folder, or remove it")
    folder = out.with_name(out.name + ".partial")
    with _Lock(folder):
        entries = cohort.entries()
        images = cohort.images(entries) if NEEDS_IMAGES & set(chosen) else {}
        if images:
            done = iter(range(1, len(entries) + 1))
            cohort.check_grids(entries, images, lambda: progress("checking images", next(done), len(entries)))
        if "embeddings" in chosen:
            cohort.check_embeddings(entries)
        jobs = plan(cohort, folder, entries, images, chosen, options)
        _resume_or_reset(folder, cohort, entries, images, chosen, options)
        shards = _run(jobs, executor, workers, progress)
        manifest = _finish(folder, entries, shards, options, release_version)
        shutil.rmtree(folder / ".build")
        folder.rename(out)
    return manifest


class _Lock:
    """One build per output folder: held by the operating system, so that it ends with the process however that ends."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.with_name(folder.name + ".lock")

    def __enter__(self) -> None:
        import fcntl

        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self.path.open("a+")
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self.file.fileno()).st_ino != self.path.stat().st_ino:  # the owner ended, and removed it, between our two calls
                raise BlockingIOError
        except OSError:
            self.file.seek(0)
            owner = self.file.read(80).strip() or "another process"
            self.file.close()
            raise LockedError("R002", f"{owner} is building into the same folder", "wait for it to end") from None
        self.file.truncate(0)
        self.file.write(f"process {os.getpid()}")
        self.file.flush()

    def __exit__(self, *_: object) -> None:
        self.path.unlink(missing_ok=True)
        self.file.close()


def _resume_or_reset(folder: Path, cohort: Cohort, entries: list[Entry], images: dict[str, Path], configs: list[str], options: Options) -> None:
    """Keeps what an interrupted build of the same sources and options left; anything else is cleared."""
    sources = [(v, p.stat().st_size, p.stat().st_mtime_ns) for v, p in sorted(images.items())]
    if "embeddings" in configs:
        sources.append(("embeddings", cohort.embeddings.stat().st_size, cohort.embeddings.stat().st_mtime_ns))
    made_of = [VERSION, LAYOUT_VERSION, sha256_of(cohort.annotations), asdict(options), configs, [e.volume_id for e in entries], sources]
    wanted = json.dumps(made_of)
    stamp = folder / ".build" / "sources.json"
    if folder.exists() and not (stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted):
        shutil.rmtree(folder)
    _write(stamp, wanted)


def _run(jobs: list[Job], executor: Executor | None, workers: int, progress: Progress) -> list[Shard]:
    """Every shard, written now or found finished, in the order of the plan."""
    finished: dict[str, Shard] = {}
    for job in jobs:
        record = _record(Path(job.folder), job.path)
        if record.is_file():
            shard = Shard(**json.loads(record.read_text(encoding="utf-8")))
            if Path(job.folder, job.path).is_file() and Path(job.folder, job.path).stat().st_size == shard.bytes:
                finished[job.path] = shard
    todo = [job for job in jobs if job.path not in finished]
    total = sum(len(j.volumes) for j in jobs)
    done = total - sum(len(j.volumes) for j in todo)
    progress("writing shards", done, total)

    def took(job: Job, shard: Shard) -> None:
        nonlocal done
        finished[job.path] = shard
        done += len(job.volumes)
        progress("writing shards", done, total)

    if executor is None and workers <= 1:
        for job in todo:
            took(job, write_shard(job))
    else:
        pool = executor or ProcessPoolExecutor(workers)
        futures: dict[Future[Shard], Job] = {pool.submit(write_shard, job): job for job in todo}
        try:
            for future in as_completed(futures):
                took(futures[future], future.result())
        finally:
            for future in futures:
                future.cancel()
            if executor is None:
                pool.shutdown(cancel_futures=True)
    return [finished[job.path] for job in jobs]


def _finish(folder: Path, entries: list[Entry], shards: list[Shard], options: Options, release_version: str) -> Manifest:
    """Everything around the shards."""
    used = [s for s in SPLITS if any(e.split == s for e in entries)]
    described = {
        "release_version": release_version,
        "layout_version": LAYOUT_VERSION,
        "code_version": VERSION,
        "restricted": any(s.config != "annotations" for s in shards),
        **asdict(options),
        "volumes": {s: sum(e.split == s for e in entries) for s in used},
        "patients": {s: len({e.patient for e in entries if e.split == s}) for s in used},
        "quintuples": {s: sum(len(options.asked(e.questions)) for e in entries if e.split == s) for s in used},
        "shards": tuple(shards),
    }
    manifest = Manifest(**described, files={})
    texts = {"README.md": card_text(manifest), "croissant.json": croissant_text(manifest)}
    texts |= {f"schema/{path.name}": path.read_text(encoding="utf-8") for path in schema.files()}
    for name, text in texts.items():
        _write(folder / name, text)
    manifest = Manifest(**described, files={name: sha256_of(folder / name) for name in sorted(texts)})
    _write(folder / FILE_NAME, manifest.to_json())
    return manifest
