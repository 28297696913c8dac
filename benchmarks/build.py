"""The build against its limit, what reading the images and compressing the shards take alone; one worker
against two; growth; and boxes from masks.

    python benchmarks/build.py [--shape 160,384,384] [--volumes 8,32,128] [--rounds 2] [--out
    docs/bench/build.json] [--page docs/scale.md]

A cohort of many volumes is made of a few drawn knees under other patients (links: every image is read and
compressed anew all the same). Builds and limits take turns, round by round, and the best round counts. Each
runs in a process of its own, so that its peak memory is its own too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from build_report import page_text, summary
from knees import enlarged
from pages import put

from reasonknee.cohort import Cohort
from reasonknee.construct.masks import mask_boxes
from reasonknee.layout import read_manifest
from reasonknee.layout.parquet import writer_settings
from reasonknee.phantom.cohort import write_cohort
from reasonknee.questions.regions import LABELS
from reasonknee.release import build
from reasonknee.volumes import read_grid, read_volume

CONFIGS = ("cropped", "full", "annotations")
SPLITS = (*["train"] * 6, "validation", "test")  # about 75/10/15
PATIENTS = 3  # drawn, of one to six volumes each
Taken = dict[str, float]


def apart(work: Callable[..., Any], *args: object) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *args).result()


def timed_build(cohort: Path, release: Path, configs: tuple[str, ...], workers: int) -> Taken:
    """Seconds by the clock, seconds of all processors, and the largest process."""
    clock, processors = time.perf_counter(), _processors()
    build(Cohort(cohort), release, configs, workers=workers)
    taken = {"seconds": time.perf_counter() - clock, "cpu_seconds": _processors() - processors}
    most = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {**taken, "rss_mb": most / (1 << 20 if platform.system() == "Darwin" else 1 << 10)}


def _processors() -> float:
    return sum(os.times()[:4])  # user and system, own and of children that have ended


def timed_limit(cohort: Path, release: Path) -> Taken:
    """Processor seconds of reading each image once, and of compressing once what the shards hold."""
    start, read = time.process_time(), 0
    for path in sorted((cohort / "images").rglob("*.nii.gz")):
        read += read_volume(path).array.nbytes
    reading, packing, packed = time.process_time() - start, 0.0, 0
    for shard in read_manifest(release).shards:
        if shard.config == "annotations":
            continue
        settings = writer_settings(shard.config)
        codec = pa.Codec(
            settings["compression"]["volume.bytes"], settings["compression_level"]["volume.bytes"]
        )
        file = pq.ParquetFile(
            release / shard.path, read_dictionary=["volume.bytes"]
        )  # a crop that questions share is stored once
        for i in range(file.num_row_groups):
            column = file.read_row_group(i, columns=["volume.bytes"]).column(0).combine_chunks()
            for value in column.field("bytes").dictionary:
                start = time.process_time()
                codec.compress(value.as_buffer())
                packing += time.process_time() - start
                packed += len(value.as_buffer())
    return {
        "read_cpu_seconds": reading,
        "zstd_cpu_seconds": packing,
        "read_mb": read / 1e6,
        "zstd_mb": packed / 1e6,
    }


def timed_boxes(cohort: Path) -> Taken:
    """Processor seconds from a mask to the boxes of its regions, reading included; the best of the masks."""
    taken: Taken = {}
    for path in sorted((cohort / "masks").rglob("*.nii.gz")):
        grid = read_grid(cohort / "images" / path.relative_to(cohort / "masks"))
        start = time.process_time()
        mask_boxes(path, grid)
        taken = best(taken, {"cpu_seconds": time.process_time() - start})
    return {**taken, "labels": len(LABELS)}


def best(known: Taken, new: Taken) -> Taken:
    """The least time and the most memory of the rounds."""
    return {
        key: (min if key.endswith("seconds") else max)(value, known.get(key, value))
        for key, value in new.items()
    }


def measured(drawn: Path, folder: Path, volumes: int, rounds: int, alone: bool) -> dict[str, Any]:
    """One size of cohort: builds with one and two workers, the limit, and with `alone` each config by
    itself."""
    cohort, release = folder / "cohort", folder / "release"
    enlarged(drawn, cohort, volumes, splits=SPLITS)
    jobs = {"1": (CONFIGS, 1), "2": (CONFIGS, 2)} | (
        {config: ((config,), 1) for config in CONFIGS} if alone else {}
    )
    taken: dict[str, Taken] = {}
    for _ in range(rounds):
        for name, (configs, workers) in jobs.items():
            shutil.rmtree(release, ignore_errors=True)
            taken[name] = best(taken.get(name, {}), apart(timed_build, cohort, release, configs, workers))
            if name == "2":
                taken["limit"] = best(taken.get("limit", {}), apart(timed_limit, cohort, release))
                manifest = read_manifest(release)
    images = [p.stat().st_size for p in (cohort / "images").rglob("*.nii.gz")]
    found: dict[str, Any] = {
        "volumes": volumes,
        "workers": {n: taken[n] for n in ("1", "2")},
        "limit": taken["limit"],
        "image_mb": sum(images) / 1e6,
        "written_mb": {c: sum(s.bytes for s in manifest.of(c)) / 1e6 for c in CONFIGS},
    }
    if alone:
        found["alone"] = {config: taken[config] for config in CONFIGS}
    shutil.rmtree(folder)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="160,384,384")
    parser.add_argument("--volumes", default="8,32,128")
    parser.add_argument("--rounds", type=int, default=2, help="of each size; the largest gets one")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path, help="page with a block for the tables")
    args = parser.parse_args()
    shape, counts = (
        tuple(int(n) for n in args.shape.split(",")),
        sorted(int(n) for n in args.volumes.split(",")),
    )
    versions = {name: importlib.metadata.version(name) for name in ("pyarrow", "numpy")}
    results: dict[str, Any] = {
        "shape": shape,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
        "sizes": [],
    }
    with tempfile.TemporaryDirectory() as name:
        apart(
            write_cohort, Path(name, "drawn"), PATIENTS, 0, shape
        )  # apart: a child starts with the peak memory of its parent
        results["mask"] = apart(timed_boxes, Path(name, "drawn"))
        for count in counts:
            rounds = 1 if count == counts[-1] and len(counts) > 1 else args.rounds
            results["sizes"].append(
                measured(Path(name, "drawn"), Path(name, str(count)), count, rounds, alone=count == counts[0])
            )
            print(summary(results["sizes"][-1]), flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(results, indent=1) + "\n")
    if args.page:
        put(args.page, Path(__file__).name, page_text(results))


if __name__ == "__main__":
    main()
