"""The results of `build.py` as tables, and the arithmetic from them to the whole dataset and beyond."""

from __future__ import annotations

import itertools
from typing import Any

from reasonknee.release.shards import VOLUMES_PER_SHARD, shard_count

Results = dict[str, Any]
DATASET = {"train": 5_977, "validation": 797, "test": 1_196}  # volumes, as the paper counts them
QUESTIONS = 62
BEYOND = 100_000  # volumes
JOBS = 64
EMBEDDING_MB = 8192 * 2048 * 2 / 1e6  # tokens x width x bfloat16
OAI_OVER_SYNTHETIC = (
    28.4 / 24.6
)  # MB of an OAI volume in zstd over those of a synthetic one: real noise is harder to compress
FLAT = 1.10


def summary(size: Results) -> str:
    """One line a size, for those who wait."""
    one, two, n = size["workers"]["1"], size["workers"]["2"], size["volumes"]
    speed = (
        f"{one['cpu_seconds'] / n:.2f} processor seconds a volume, {_over_limit(size):.2f} times "
        "reading "
        "and zstd alone"
    )
    return (
        f"{n:>4} volumes: {speed}; two workers {one['seconds'] / two['seconds']:.2f}x; peak "
        f"{one['rss_mb']:.0f} and {two['rss_mb']:.0f} MB"
    )


def _limit(size: Results) -> float:
    return float(size["limit"]["read_cpu_seconds"] + size["limit"]["zstd_cpu_seconds"])


def _over_limit(size: Results) -> float:
    return float(size["workers"]["1"]["cpu_seconds"]) / _limit(size)


def _busy(size: Results) -> bool:
    """Whether one worker waited for a processor or for the disk: then the clock says little of the build."""
    one = size["workers"]["1"]
    return bool(one["seconds"] > 1.3 * one["cpu_seconds"])


def _table(header: str, rows: list[list[str]]) -> list[str]:
    names = header.split(" | ")
    return [f"| {header} |", "|" + "---|" * len(names), *(f"| {' | '.join(row)} |" for row in rows), ""]


def page_text(results: Results) -> str:
    z, y, x = results["shape"]
    where = f"{results['cores']} cores, Python {results['python']}, pyarrow {results['pyarrow']}"
    lines = [
        f"Measured on synthetic volumes of {z} x {y} x {x} ({where}),",
        "configs `cropped`, `full` and `annotations`, no margin. Seconds are user and system time of all "
        "processes, and MB/s voxels over them; only",
        "the column that says so goes by the clock, and *busy* marks a machine on which the build had to "
        "wait, so that the clock says little.",
        "*Alone* is what reading each image once and compressing each stored crop and volume once take in "
        "one process, in the same run.",
        "",
        *_sizes(results["sizes"]),
        *_steps(results["sizes"][0], results["mask"]),
        *_flatness(results["sizes"]),
        *_dataset(results["sizes"][-1]),
    ]
    return "\n".join(lines).rstrip()


def _sizes(sizes: list[Results]) -> list[str]:
    rows = []
    for size in sizes:
        n, one, two, mb = (
            size["volumes"],
            size["workers"]["1"],
            size["workers"]["2"],
            size["limit"]["read_mb"],
        )
        rates = [mb / one["cpu_seconds"], mb / two["cpu_seconds"], mb / _limit(size)]
        clock = f"{one['seconds'] / two['seconds']:.2f}x" + (" (busy)" if _busy(size) else "")
        cells = [
            str(n),
            f"{one['cpu_seconds'] / n:.2f}",
            *(f"{rate:.0f}" for rate in rates),
            f"{1 / _over_limit(size):.0%}",
        ]
        rows.append([*cells, clock, f"{one['rss_mb']:.0f} / {two['rss_mb']:.0f}"])
    rates_of = "MB/s, one worker | MB/s, each of two | MB/s, alone"
    return _table(
        f"volumes | s a volume | {rates_of} | share of it | two over one, clock | peak MB of a process, one "
        "/ two",
        rows,
    )


def _steps(size: Results, mask: Results) -> list[str]:
    n, limit = size["volumes"], size["limit"]
    rows = [
        [
            f"`construct`: boxes from a mask of {mask['labels']} labels, reading included",
            f"{mask['cpu_seconds']:.2f}",
            "",
        ]
    ]
    rows += [["reading `.nii.gz`, checksum included", f"{limit['read_cpu_seconds'] / n:.2f}", ""]]
    for config, taken in size["alone"].items():
        rows.append(
            [
                f"`{config}` by itself",
                f"{taken['cpu_seconds'] / n:.2f}",
                f"{size['written_mb'][config] / n:.1f}",
            ]
        )
    written = sum(size["written_mb"].values())
    rows.append(
        [
            "all three in one build: each image is read once",
            f"{size['workers']['1']['cpu_seconds'] / n:.2f}",
            f"{written / n:.1f}",
        ]
    )
    return _table(f"step, per volume ({n} volumes, one worker) | processor s | MB written", rows)


def _flatness(sizes: list[Results]) -> list[str]:
    """How time and memory grow: each size over the one before it, since the first also pays for the start."""
    rows = []
    for few, many in itertools.pairwise(sizes):
        time = (
            many["workers"]["1"]["cpu_seconds"]
            / many["volumes"]
            / (few["workers"]["1"]["cpu_seconds"] / few["volumes"])
        )
        memory = many["workers"]["1"]["rss_mb"] / few["workers"]["1"]["rss_mb"]
        verdict = "flat" if max(time, memory) <= FLAT else "**grows**"
        rows.append([f"{many['volumes']} over {few['volumes']}", f"{time:.2f}x", f"{memory:.2f}x", verdict])
    return (
        _table(f"volumes | processor time a volume | peak memory | flat is within {FLAT - 1:.0%}", rows)
        if rows
        else []
    )


def _dataset(size: Results) -> list[str]:
    n, volumes = size["volumes"], sum(DATASET.values())
    each = size["workers"]["1"]["cpu_seconds"] / n
    two = size["workers"]["2"]["seconds"] / n
    image = size["image_mb"] / n
    cropped, synthetic, annotations = (
        size["written_mb"][config] / n for config in ("cropped", "full", "annotations")
    )
    full = synthetic * OAI_OVER_SYNTHETIC
    hours = volumes * each / 3600
    minutes = hours * 60 / JOBS
    read, wrote = (volumes * mb / 1000 for mb in (image, full + cropped))
    shards = {split: shard_count(count, VOLUMES_PER_SHARD["full"]) for split, count in DATASET.items()}

    def gb(mb: float) -> str:
        return f"{volumes * mb / 1000:.{0 if mb > 1 else 2}f} GB"

    rows = [
        ["processor time, all three configs", f"{volumes:,} x {each:.2f} s", f"{hours:.1f} core-hours"],
        ["two free cores", f"{hours:.1f} h / 2", f"{hours / 2:.1f} hours"],
        [
            f"{JOBS} array jobs",
            f"{hours:.1f} h / {JOBS}",
            f"{minutes:.1f} minutes and their start-up, if storage keeps up",
        ],
        ["reading", f"{volumes:,} x {image:.1f} MB of `.nii.gz`", gb(image)],
        ["`full`", f"{volumes:,} x {synthetic:.1f} MB x {OAI_OVER_SYNTHETIC:.2f} (OAI's noise)", gb(full)],
        ["`cropped`, no margin", f"{volumes:,} x {cropped:.1f} MB; real regions differ", gb(cropped)],
        ["`embeddings`, bfloat16, 8192 x 2048", f"{volumes:,} x {EMBEDDING_MB:.1f} MB", gb(EMBEDDING_MB)],
        [
            "`annotations`",
            f"{volumes * QUESTIONS:,} rows, {volumes:,} x {annotations * 1000:.0f} kB",
            gb(annotations),
        ],
        [
            "groups, and shards of each heavy config",
            " + ".join(f"{c:,} / {shards[s]}" for s, c in DATASET.items()),
            f"{sum(shards.values())}",
        ],
        [
            f"network for {JOBS} jobs",
            f"({read:.0f} + {wrote:.0f}) GB / {minutes:.1f} min",
            f"{(read + wrote) / minutes / 60:.1f} GB/s",
        ],
        [f"{BEYOND:,} volumes", f"{BEYOND:,} x {each:.2f} s", f"{BEYOND * each / 3600:.0f} core-hours"],
        [f"{BEYOND:,} volumes, `full`", f"{BEYOND:,} x {full:.1f} MB", f"{BEYOND * full / 1e6:.1f} TB"],
    ]
    if not _busy(size):
        rows[1] = [
            "two workers, by the clock",
            f"{volumes:,} x {two:.2f} s",
            f"{volumes * two / 3600:.1f} hours",
        ]
    return [f"## {volumes:,} volumes", "", *_table(f"from the {n} volumes above | arithmetic | result", rows)]
