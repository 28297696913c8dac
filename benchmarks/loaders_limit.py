"""The limit of a loader: what decompressing, scaling and copying take by themselves, in as many processes as a loader has workers.

For each protocol, as samples a second by processor time, twice: `fresh` writes each batch into new pages of memory, which the system has to clear,
as a loader must whose batches the caller may keep; `kept` writes into the same pages again and again, as a ring of buffers does.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from peers import BATCH, WORKERS, by_volume

_LIMIT = 400
_SLAB = 1 << 18


def _fill(out: np.ndarray, array: np.ndarray, slab: np.ndarray) -> None:
    """Clip in 16 bits, widen, scale, a cache-sized part at a time; the least that makes floats of voxels."""
    flat, target = array.reshape(-1), torch.from_numpy(out)
    for start in range(0, flat.size, _SLAB):
        part = flat[start : start + _SLAB]
        clipped = slab[: part.size]
        np.minimum(part, _LIMIT, out=clipped)
        target[start : start + part.size].copy_(torch.from_numpy(clipped.view(np.int16))).div_(_LIMIT)


def _work(folder: str, protocol: str, mine: list[int], kept: bool, start: Any, results: Any) -> None:
    torch.set_num_threads(1)
    groups = by_volume(Path(folder))
    config = "cropped" if protocol == "cropped" else "full"
    shared = ["volume.bytes"] if config == "cropped" else []
    files = [pq.ParquetFile(p, read_dictionary=shared, memory_map=True) for p in sorted(Path(folder, "release").rglob(f"{config}/**/*.parquet"))]
    places = [(file, g) for file in files for g in range(file.num_row_groups)]
    slab, ring = np.empty(_SLAB, np.uint16), [np.empty(0, np.float32) for _ in range(2)]
    start.wait()
    began, samples = time.process_time(), 0
    for number in mine:
        file, group = places[number]
        column = file.read_row_group(group, columns=["volume.bytes"], use_threads=False).column(0).combine_chunks()
        stored = column.field("bytes") if config == "full" else column.field("bytes").dictionary
        arrays = [np.frombuffer(stored[i].as_buffer(), np.uint16, offset=352) for i in range(len(stored))]
        index = column.field("bytes").indices.to_numpy() if config == "cropped" else np.zeros(1 if protocol == "once" else len(groups[0]), int)
        for first in range(0, len(index), BATCH):
            batch = [arrays[i] for i in index[first : first + BATCH]]
            size = len(batch) * max(a.size for a in batch)
            if kept and ring[0].size < size:
                ring[0] = np.empty(size, np.float32)
            out = ring[0][:size] if kept else np.empty(size, np.float32)
            for i, array in enumerate(batch):
                _fill(out[i * (size // len(batch)) :][: array.size], array, slab)
            samples += len(batch)
    results.put((samples, time.process_time() - began))


def limit(folder: Path, rounds: int = 2) -> dict[str, Any]:
    found: dict[str, Any] = {"copy_gb_s": _copying()}
    volumes = len(by_volume(folder))
    for protocol in ("cropped", "full", "once"):
        for kept in (False, True):
            # of `full` two volumes a process are enough: each takes 62 samples
            wanted = list(range(min(volumes, 4) if protocol == "full" else volumes))
            rates = []
            for _ in range(rounds):
                start, results = multiprocessing.Event(), multiprocessing.Queue()
                parts = [wanted[w::WORKERS] for w in range(WORKERS)]
                workers = [multiprocessing.Process(target=_work, args=(str(folder), protocol, part, kept, start, results)) for part in parts]
                for worker in workers:
                    worker.start()
                time.sleep(1)
                start.set()
                done = [results.get() for _ in workers]
                for worker in workers:
                    worker.join()
                rates.append(WORKERS * sum(n for n, _ in done) / sum(s for _, s in done))
            found[f"{protocol} {'kept' if kept else 'fresh'}"] = max(rates)
    return found


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
