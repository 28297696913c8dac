"""The limit of a loader: what decompressing, scaling and writing take by themselves, in as many processes as
a loader has workers.

Samples a second by the clock and by processor time, for each protocol on local files, twice: `fresh` writes
each batch into new pages of memory, which the system has to clear; `kept` into the same pages again, as a
loader can that takes back the memory of batches that the caller let go.

It unpacks the volume bytes of all row groups of a volume and writes as many numbers as the batches of a
loader hold, padding included, but each crop in one piece. It knows no pages, no order, no rows and no other
columns, and hands nothing to another process.
"""

from __future__ import annotations

import json
import math
import mmap
import multiprocessing
import struct
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from protocols import BATCH, LOCAL, WORKERS, by_volume, items

KINDS = ("fresh", "kept")
_LIMIT = 400
_SLAB = 1 << 18
_HEADER = 352  # bytes of a NIfTI file before its voxels
Shape = tuple[int, ...]


def _fill(target: torch.Tensor, array: np.ndarray, slab: np.ndarray) -> None:
    """Clip in 16 bits, widen, scale, a cache-sized part at a time; the least that makes floats of voxels."""
    for start in range(0, array.size, _SLAB):
        part = array[start : start + _SLAB]
        clipped = slab[: part.size]
        np.minimum(part, _LIMIT, out=clipped)
        target[start : start + part.size].copy_(torch.from_numpy(clipped.view(np.int16))).div_(_LIMIT)


def _pages(count: int) -> torch.Tensor:
    """Floats in pages of their own that other processes can see, as those of a DataLoader's worker are;
    malloc would give out used ones again."""
    return torch.frombuffer(mmap.mmap(-1, 4 * count), dtype=torch.float32)


def row_groups(release: Path, config: str) -> dict[str, list[tuple[Any, int]]]:
    """The row groups of each volume, found by the statistics of their ids."""
    found: dict[str, list[tuple[Any, int]]] = {}
    for path in sorted(release.rglob(f"{config}/**/*.parquet")):
        file = pq.ParquetFile(
            path, read_dictionary=["volume.bytes"] if config == "cropped" else [], memory_map=True
        )
        names = [file.metadata.schema.column(i).path for i in range(file.metadata.num_columns)]
        for group in range(file.num_row_groups):
            ids = file.metadata.row_group(group).column(names.index("volume_id")).statistics
            if ids.min != ids.max:
                raise SystemExit(f"{path}, row group {group}: more than one volume")
            found.setdefault(ids.min, []).append((file, group))
    return found


def _voxels(places: list[tuple[Any, int]]) -> tuple[list[tuple[np.ndarray, Shape]], list[int]]:
    """The stored arrays of a volume, each once, and which of them each row has."""
    arrays: list[tuple[np.ndarray, Shape]] = []
    index: list[int] = []
    for file, group in places:
        for chunk in file.read_row_group(group, columns=["volume.bytes"], use_threads=False).column(0).chunks:
            stored, base = chunk.field("bytes"), len(arrays)
            values = stored.dictionary if hasattr(stored, "dictionary") else stored
            for i in range(len(values)):
                data = values[i].as_buffer()
                arrays.append(
                    (np.frombuffer(data, np.uint16, offset=_HEADER), struct.unpack_from("<3h", data, 42))
                )
            index += (
                [base + i for i in stored.indices.drop_null().to_pylist()]
                if values is not stored
                else range(base, len(arrays))
            )
    return arrays, index


class Packed:
    """The distinct arrays of a volume, compressed in one piece as the column's pages are: no reader can
    do with less than unpacking them."""

    codec = pa.Codec("zstd")

    def __init__(self, places: list[tuple[Any, int]]) -> None:
        arrays, self.index = _voxels(places)
        self.shapes, self.ends = (
            [shape for _, shape in arrays],
            np.cumsum([array.size for array, _ in arrays]).tolist(),
        )
        self.data = self.codec.compress(np.concatenate([array for array, _ in arrays]).tobytes())

    def arrays(self) -> list[tuple[np.ndarray, Shape]]:
        voxels = np.frombuffer(self.codec.decompress(self.data, 2 * self.ends[-1]), np.uint16)
        return list(zip(np.split(voxels, self.ends[:-1]), self.shapes, strict=True))


def _batches(volumes: list[Packed], content: str, questions: int) -> Iterator[list[tuple[np.ndarray, Shape]]]:
    """Lists of four arrays: crops of a volume in random order, a volume for each of its questions, or one
    volume after the other."""
    once = []
    for number, volume in enumerate(volumes):
        arrays = volume.arrays()
        if content == "once":
            once.append(arrays[0])
            if len(once) == BATCH or number == len(volumes) - 1:
                yield once
                once = []
            continue
        index = (
            np.random.default_rng(number).permutation(volume.index).tolist()
            if content == "cropped"
            else [0] * questions
        )
        for first in range(0, len(index), BATCH):
            yield [arrays[i] for i in index[first : first + BATCH]]


def _work(folder: str, content: str, mine: list[str], rounds: int, together: Any, results: Any) -> None:
    torch.set_num_threads(1)
    known = row_groups(Path(folder, "release"), "cropped" if content == "cropped" else "full")
    volumes, questions = [Packed(known[name]) for name in mine], len(by_volume(Path(folder))[0])
    slab, same = np.empty(_SLAB, np.uint16), torch.empty(0)
    for turn, kind in enumerate(KINDS * rounds):
        together.wait()
        began, processor, samples = time.perf_counter(), time.process_time(), 0
        for batch in _batches(volumes, content, questions):
            room = math.prod(max(sizes) for sizes in zip(*(shape for _, shape in batch), strict=True))
            if kind == "kept" and same.numel() < len(batch) * room:
                same = _pages(len(batch) * room)
            out = same[: len(batch) * room] if kind == "kept" else _pages(len(batch) * room)
            for i, (array, _) in enumerate(batch):
                target = out[i * room : (i + 1) * room]
                _fill(target, array, slab)
                target[array.size :].zero_()
            samples += len(batch)
        results.put((turn, samples, time.process_time() - processor, began, time.perf_counter()))


def _of(folder: Path, content: str, rounds: int) -> dict[str, dict[str, float]]:
    """The best round of each kind."""
    volumes = list(dict.fromkeys(item["volume_id"] for item in items(folder, content)))
    parts = [part for part in (volumes[w::WORKERS] for w in range(WORKERS)) if part]
    together, results = multiprocessing.Barrier(len(parts)), multiprocessing.Queue()
    workers = [
        multiprocessing.Process(target=_work, args=(str(folder), content, part, rounds, together, results))
        for part in parts
    ]
    for worker in workers:
        worker.start()
    done = sorted(results.get() for _ in workers for _ in KINDS * rounds)
    for worker in workers:
        worker.join()
    best: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for turn, of in groupby(done, key=lambda result: result[0]):
        _, samples, used, began, ended = zip(*of, strict=True)
        rates = {
            "clock": sum(samples) / (max(ended) - min(began)),
            "processor": len(workers) * sum(samples) / sum(used),
        }
        known = best[KINDS[turn % len(KINDS)]]
        known |= {by: max(rate, known.get(by, 0.0)) for by, rate in rates.items()}
    return best


def limit(folder: Path, rounds: int = 3) -> dict[str, Any]:
    """Of each protocol on local files, which has the name of what it holds."""
    return {"copy_gb_s": _copying(), **{content: _of(folder, content, rounds) for content in LOCAL}}


def _copying() -> float:
    a, b = np.ones(1 << 25, np.float32), np.ones(1 << 25, np.float32)
    best = 1e9
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(b, a)
        best = min(best, time.perf_counter() - start)
    return a.nbytes / best / 1e9


if __name__ == "__main__":
    import sys

    print(json.dumps(limit(Path(sys.argv[1])), indent=1))
