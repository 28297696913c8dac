"""The results of `build.py` as tables, and the arithmetic from them to the whole dataset and beyond."""

from __future__ import annotations

from typing import Any

from reasonknee.shards import VOLUMES_PER_SHARD, shard_count

Results = dict[str, Any]
DATASET = {"train": 5_977, "validation": 797, "test": 1_196}  # volumes, as the paper counts them
QUESTIONS = 62
BEYOND = 100_000  # volumes
JOBS = 64
EMBEDDING_MB = 8192 * 2048 * 2 / 1e6  # tokens x width x bfloat16
OAI_OVER_SYNTHETIC = 28.4 / 24.6  # MB of an OAI volume in zstd over those of a synthetic one: real noise is harder to compress
FLAT = 1.10


def summary(size: Results) -> str:
    """One line a size, for those who wait."""
    one, two = size["workers"]["1"], size["workers"]["2"]
    return (
        f"{size['volumes']:>4} volumes: {one['cpu_seconds'] / size['volumes']:.2f} processor seconds a volume, {_over_limit(size):.2f} times reading and "
        f"zstd alone; two workers {one['seconds'] / two['seconds']:.2f}x; peak memory {one['rss_mb']:.0f} and {two['rss_mb']:.0f} MB"
    )


def _limit(size: Results) -> float:
    return float(size["limit"]["read_cpu_seconds"] + size["limit"]["zstd_cpu_seconds"])


def _over_limit(size: Results) -> float:
    return float(size["workers"]["1"]["cpu_seconds"]) / _limit(size)


def _table(header: str, rows: list[list[str]]) -> list[str]:
    names = header.split(" | ")
    return [f"| {header} |", "|" + "---|" * len(names), *(f"| {' | '.join(row)} |" for row in rows), ""]


def page_text(results: Results) -> str:
    z, y, x = results["shape"]
    where = f"{results['cores']} cores, Python {results['python']}, pyarrow {results['pyarrow']}"
    lines = [
        f"Measured on synthetic volumes of {z} x {y} x {x} ({where}), configs `cropped`, `full` and `annotations`, no margin. Processor seconds are "
        "user and system time of all processes, which other load on the machine changes little; a worker's MB/s are voxels read by the clock. "
        "*Alone* is what reading each image once and compressing each stored crop and volume once take in one process, in the same run.",
        "",
        *_sizes(results["sizes"]),
        *_steps(results["sizes"][0]),
        *_flatness(results["sizes"]),
        *_dataset(results["sizes"][-1]),
    ]
    return "\n".join(lines).rstrip()


def _sizes(sizes: list[Results]) -> list[str]:
    rows = []
    for size in sizes:
        n, one, two = size["volumes"], size["workers"]["1"], size["workers"]["2"]
        mb = size["limit"]["read_mb"]
        rows.append(
            [
                str(n),
                f"{one['cpu_seconds'] / n:.2f}",
                f"{_limit(size) / n:.2f}",
                f"{_over_limit(size):.2f}x",
                f"{mb / one['seconds']:.0f}",
                f"{mb / two['seconds'] / 2:.0f}",
                f"{one['seconds'] / two['seconds']:.2f}x",
                f"{one['rss_mb']:.0f} / {two['rss_mb']:.0f}",
            ]
        )
    head = "volumes | processor s a volume | alone | over it | MB/s, one worker | MB/s each, two | two over one, clock | peak MB of a process, one / two"
    return _table(head, rows)


def _steps(size: Results) -> list[str]:
    n, limit = size["volumes"], size["limit"]
    rows = [["reading `.nii.gz`, checksum included", f"{limit['read_cpu_seconds'] / n:.2f}", ""]]
    for config, taken in size["alone"].items():
        rows.append([f"`{config}` by itself", f"{taken['cpu_seconds'] / n:.2f}", f"{size['written_mb'][config] / n:.1f}"])
    written = sum(size["written_mb"].values())
    rows.append(["all three in one build: each image is read once", f"{size['workers']['1']['cpu_seconds'] / n:.2f}", f"{written / n:.1f}"])
    return _table(f"step, per volume ({n} volumes, one worker) | processor s | MB written", rows)


def _flatness(sizes: list[Results]) -> list[str]:
    """How time and memory grow: each size over the one before it, since the first also pays for the start."""
    rows = []
    for few, many in zip(sizes, sizes[1:], strict=False):
        time = many["workers"]["1"]["cpu_seconds"] / many["volumes"] / (few["workers"]["1"]["cpu_seconds"] / few["volumes"])
        memory = many["workers"]["1"]["rss_mb"] / few["workers"]["1"]["rss_mb"]
        verdict = "flat" if max(time, memory) <= FLAT else "**grows**"
        rows.append([f"{many['volumes']} over {few['volumes']}", f"{time:.2f}x", f"{memory:.2f}x", verdict])
    return _table(f"volumes | processor time a volume | peak memory | flat is within {FLAT - 1:.0%}", rows) if rows else []


def _dataset(size: Results) -> list[str]:
    n, volumes = size["volumes"], sum(DATASET.values())
    each = size["workers"]["1"]["cpu_seconds"] / n
    written = {config: mb / n for config, mb in size["written_mb"].items()}
    full = written["full"] * OAI_OVER_SYNTHETIC
    hours = volumes * each / 3600
    read_gb, full_gb, cropped_gb = (volumes * mb / 1000 for mb in (size["image_mb"] / n, full, written["cropped"]))
    job_minutes = hours * 60 / JOBS
    shards = {split: shard_count(count, VOLUMES_PER_SHARD["full"]) for split, count in DATASET.items()}
    two = n / size["workers"]["2"]["seconds"]
    rows = [
        ["processor time, all three configs", f"{volumes:,} x {each:.2f} s", f"{hours:.1f} core-hours"],
        ["one machine, two workers, by the clock", f"{volumes:,} / ({n} / {size['workers']['2']['seconds']:.0f} s)", f"{volumes / two / 3600:.1f} hours"],
        [f"{JOBS} array jobs", f"{hours:.1f} h / {JOBS}", f"{job_minutes:.0f} minutes and their start-up, if storage keeps up"],
        ["reading", f"{volumes:,} x {size['image_mb'] / n:.1f} MB of `.nii.gz`", f"{read_gb:.0f} GB"],
        ["`full`", f"{volumes:,} x {written['full']:.1f} MB x {OAI_OVER_SYNTHETIC:.2f} (OAI's noise)", f"{full_gb:.0f} GB"],
        ["`cropped`, no margin", f"{volumes:,} x {written['cropped']:.1f} MB; real regions differ", f"{cropped_gb:.0f} GB"],
        ["`embeddings`, bfloat16, 8192 x 2048", f"{volumes:,} x {EMBEDDING_MB:.1f} MB", f"{volumes * EMBEDDING_MB / 1000:.0f} GB"],
        ["`annotations`", f"{volumes * QUESTIONS:,} rows, {volumes:,} x {written['annotations'] * 1000:.0f} kB", f"{volumes * written['annotations'] / 1000:.2f} GB"],
        ["groups, and shards of each heavy config", " + ".join(f"{c:,} / {s}" for c, s in zip(DATASET.values(), shards.values(), strict=True)), " + ".join(map(str, shards.values()))],
        [f"network for {JOBS} jobs", f"({read_gb:.0f} + {full_gb + cropped_gb:.0f}) GB / {job_minutes:.0f} min", f"{(read_gb + full_gb + cropped_gb) / job_minutes / 60:.1f} GB/s: the file system sets the pace"],
        [f"{BEYOND:,} volumes", f"{BEYOND:,} x ({each:.2f} s, {full:.1f} MB of `full`)", f"{BEYOND * each / 3600:.0f} core-hours, {BEYOND * full / 1e6:.1f} TB"],
    ]  # fmt: skip
    return [f"## {volumes:,} volumes", "", *_table(f"from the {n} volumes above | arithmetic | result", rows)]
