"""A full check of a release against what decompressing its shards takes, interleaved in one run.

python benchmarks/validate.py [--shape 160,384,384] [--volumes 8] [--out docs/bench/validate.json]
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import knees
import pyarrow.parquet as pq

from reasonknee.layout import read_manifest
from reasonknee.validation.run import validate


def decompress(release: Path) -> None:
    for shard in read_manifest(release).shards:
        file = pq.ParquetFile(release / shard.path, page_checksum_verification=True)
        for i in range(file.num_row_groups):
            file.read_row_group(i, use_threads=False)


def check(release: Path) -> None:
    found = validate(str(release))
    if found.count("error"):
        raise SystemExit("the release is not clean")


def processor_time() -> float:
    """Of this process and of those it started and has seen the end of: footers are walked in one."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="160,384,384")
    parser.add_argument("--volumes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    z, y, x = (int(n) for n in args.shape.split(","))
    with tempfile.TemporaryDirectory() as name:
        knees.make(Path(name) / "k", args.volumes, (z, y, x), peers=False)
        release = Path(name) / "k" / "release"
        best: dict[str, float] = {}
        check(release)  # imports and page cache, for both
        for _ in range(args.rounds):
            for what, work in (("decompress", decompress), ("validate", check)):
                wall, cpu = time.perf_counter(), processor_time()
                work(release)
                for kind, took in (("wall", time.perf_counter() - wall), ("cpu", processor_time() - cpu)):
                    best[f"{what}_{kind}"] = min(took, best.get(f"{what}_{kind}", took))
    best |= {
        f"ratio_{kind}": best[f"validate_{kind}"] / best[f"decompress_{kind}"] for kind in ("wall", "cpu")
    }
    print(
        f"{args.volumes} volumes: a full check takes {best['ratio_wall']:.2f} times what decompressing takes "
        f"({best['ratio_cpu']:.2f} in CPU time)"
    )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps({"shape": [z, y, x], "volumes": args.volumes, **best}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
