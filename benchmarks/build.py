"""The build against its limit: what reading the images and compressing the shards take alone, measured in the same run.

    python benchmarks/build.py [--shape 160,384,384] [--volumes 8,32,128] [--out docs/bench/build.json]

A cohort of many volumes is made from a few drawn ones under other ids. Each build runs in a process of its own, so that peak memory is its own too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from reasonknee.annotations import read_annotation, write_annotations
from reasonknee.cohort import Cohort
from reasonknee.manifest import read_manifest
from reasonknee.phantom.cohort import write_cohort
from reasonknee.volumes import read_volume

CONFIGS = "cropped,full,annotations"
_CHILD = """
import json, resource, sys, time
from pathlib import Path
from reasonknee.cohort import Cohort
from reasonknee.release import build
if __name__ == "__main__":
    start = time.perf_counter()
    build(Cohort(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(","), workers=int(sys.argv[4]))
    seconds = time.perf_counter() - start
    memory = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": seconds, "rss_mb": memory / 1024}))
"""


def enlarged(source: Path, out: Path, volumes: int) -> None:
    """A cohort with as many volumes as wanted: the same images under other patients."""
    cohort = Cohort(source)
    entries = cohort.entries()
    images = cohort.images(entries)
    made = []
    for n in range(volumes):
        entry = entries[n % len(entries)]
        known = read_annotation(cohort.annotations, entry.offset)
        patient, image = f"{1_100_000 + n}", images[entry.volume_id]
        split = "test" if n % 8 == 7 else "train"
        made.append(replace(known, patient=patient, split=split))
        target = out / "images" / patient / known.visit.upper() / image.name
        target.parent.mkdir(parents=True)
        os.link(image, target)
    write_annotations(out / "annotations.jsonl", made)


def limit(cohort: Path, release: Path) -> dict[str, float]:
    """Seconds that reading each image once, and compressing what the shards hold, take by themselves on one core."""
    start = time.perf_counter()
    read = 0
    for path in sorted((cohort / "images").rglob("*.nii.gz")):
        read += read_volume(path).array.nbytes
    reading = time.perf_counter() - start
    codec, written, packing = pa.Codec("zstd", 3), 0, 0.0
    for shard in read_manifest(release).shards:
        if shard.config == "annotations":
            continue
        for batch in pq.ParquetFile(release / shard.path).iter_batches(columns=["volume"], batch_size=64):
            for data in {row["bytes"] for row in batch["volume"].to_pylist() if row}:
                start = time.perf_counter()
                codec.compress(data)
                packing += time.perf_counter() - start
                written += len(data)
    return {"read_seconds": reading, "zstd_seconds": packing, "read_mb": read / 1e6, "zstd_mb": written / 1e6}


def run(cohort: Path, workers: int, folder: Path) -> tuple[dict[str, float], Path]:
    release = folder / f"release-{cohort.name}-{workers}"
    shutil.rmtree(release, ignore_errors=True)
    (folder / "child.py").write_text(_CHILD)
    command = [sys.executable, str(folder / "child.py"), str(cohort), str(release), CONFIGS, str(workers)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout), release


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="160,384,384")
    parser.add_argument("--volumes", default="8,32,128")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    z, y, x = (int(n) for n in args.shape.split(","))
    counts = [int(n) for n in args.volumes.split(",")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_cohort(folder / "drawn", patients=3, seed=0, shape=(z, y, x))
        results = []
        for count in counts:
            cohort = folder / f"cohort-{count}"
            enlarged(folder / "drawn", cohort, count)
            best: dict[str, float] = {}
            for _ in range(args.rounds if count <= 32 else 1):  # interleaved: one worker, two, the limit, and again
                for workers in (1, 2):
                    took, release = run(cohort, workers, folder)
                    for key, value in took.items():
                        best[f"{key}_{workers}"] = min(value, best.get(f"{key}_{workers}", value)) if key == "seconds" else value
                alone = limit(cohort, release)
                for key in ("read_seconds", "zstd_seconds"):
                    best[key] = min(alone[key], best.get(key, alone[key]))
                best |= {"read_mb": alone["read_mb"], "zstd_mb": alone["zstd_mb"]}
            floor = best["read_seconds"] + best["zstd_seconds"]
            best |= {"volumes": count, "of_limit": floor / best["seconds_1"], "speedup_2": best["seconds_1"] / best["seconds_2"]}
            results.append(best)
            print(
                f"{count:>4} volumes: {best['seconds_1'] / count:.2f} s a volume ({best['of_limit']:.0%} of the limit of reading and zstd), "
                f"{best['read_mb'] / best['seconds_1']:.0f} MB/s of voxels; two workers {best['speedup_2']:.2f}x; "
                f"peak RSS {best['rss_mb_1']:.0f} MB",
                flush=True,
            )
            shutil.rmtree(cohort)
            for path in folder.glob("release-*"):
                shutil.rmtree(path)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"shape": [z, y, x], "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
