"""How much of a release a correction changes, as storage sees it that keeps every content-defined chunk once,
as the Hub's does: build a synthetic cohort, correct one grade or one box, build again, compare chunks.

python benchmarks/chunks.py [--patients 4] [--shape 80,192,192] [--out docs/bench/chunks.json]

Chunks are cut where a gear hash of the last 64 bytes ends in zeros: 64 kB in the mean, from 8 to 128 kB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

LEAST, MEAN, MOST = 8 << 10, 64 << 10, 128 << 10
WINDOW = 64
PIECE = 4 << 20
GEAR = np.random.default_rng(64).integers(0, 2**64, 256, dtype=np.uint64)


def chunks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Digest and length of each chunk of a file."""
    data = np.frombuffer(path.read_bytes(), np.uint8)
    cuts = np.concatenate([_cuts(data, start) for start in range(0, len(data), PIECE)])
    start = 0
    while start < len(data):
        i = np.searchsorted(cuts, start + LEAST)
        end = min(int(cuts[i]) if i < len(cuts) else len(data), start + MOST, len(data))
        yield hashlib.sha256(data[start:end]).digest(), end - start
        start = end


def _cuts(data: np.ndarray, start: int) -> np.ndarray:
    """Where a chunk may end: after the bytes whose hash says so."""
    first = max(0, start - WINDOW)
    gears = GEAR[data[first : start + PIECE]]
    hashes = np.zeros_like(gears)
    for age in range(min(WINDOW, len(gears))):
        hashes[age:] += gears[: len(gears) - age] << np.uint64(age)
    places = first + 1 + np.flatnonzero(hashes >> np.uint64(64 - MEAN.bit_length() + 1) == 0)
    return places[places > start]


def a_grade(annotation: dict[str, Any]) -> None:
    question = sorted(annotation["grades"])[0]
    attribute = sorted(annotation["grades"][question])[0]
    annotation["grades"][question][attribute] = 1 - min(1, annotation["grades"][question][attribute] or 0)


def a_box(annotation: dict[str, Any]) -> None:
    box = next(box for box in annotation["boxes"].values() if box and box["z1"] - box["z0"] > 2)
    box["z1"] -= 1


def measured(patients: int, shape: tuple[int, int, int], folder: Path) -> dict[str, Any]:
    from reasonknee.cohort import Cohort
    from reasonknee.layout import CONFIGS, read_manifest
    from reasonknee.phantom.cohort import write_cohort
    from reasonknee.release import build

    write_cohort(folder / "cohort", patients, seed=0, shape=shape)
    build(Cohort(folder / "cohort"), folder / "before", workers=2)
    before = {c for shard in (folder / "before").rglob("*.parquet") for c, _ in chunks(shard)}
    corrections: dict[str, Callable[[dict[str, Any]], None]] = {"a grade": a_grade, "a box": a_box}
    results: dict[str, Any] = {"volumes": sum(read_manifest(folder / "before").volumes.values())}
    lines = (folder / "cohort" / "annotations.jsonl").read_text().splitlines()
    for what, correct in corrections.items():
        corrected = json.loads(lines[len(lines) // 2])
        correct(corrected)
        changed = [*lines[: len(lines) // 2], json.dumps(corrected), *lines[len(lines) // 2 + 1 :]]
        (folder / "cohort" / "annotations.jsonl").write_text("\n".join(changed) + "\n")
        build(Cohort(folder / "cohort"), folder / "after", workers=2)
        for config in CONFIGS:
            sizes = [
                (size, digest in before)
                for shard in sorted((folder / "after" / config).glob("*.parquet"))
                for digest, size in chunks(shard)
            ]
            total, new = sum(s for s, _ in sizes), sum(s for s, known in sizes if not known)
            results[f"{what}, {config}"] = {"bytes": total, "new": new, "share": round(new / total, 5)}
        shutil.rmtree(folder / "after")
    whole = {what: [results[f"{what}, {c}"] for c in CONFIGS] for what in corrections}
    for what, parts in whole.items():
        total, new = (sum(p[name] for p in parts) for name in ("bytes", "new"))
        results[f"{what}, all"] = {"bytes": total, "new": new, "share": round(new / total, 5)}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=4)
    parser.add_argument("--shape", default="80,192,192")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    z, y, x = map(int, args.shape.split(","))
    with tempfile.TemporaryDirectory() as folder:
        results = {"shape": [z, y, x], **measured(args.patients, (z, y, x), Path(folder))}
    text = json.dumps(results, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
