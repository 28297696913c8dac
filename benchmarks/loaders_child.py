"""One loader, or one task, in a process of its own: `loaders_child.py <name> <folder> <protocol,...>`; a
line of JSON for each that comes in."""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import loaders_limit
import loaders_wait
from ours import OURS, Ours
from peers import PEERS, Loader
from protocols import BATCH
from streamed import STREAMED

MARK = "@@ "  # tells an answer from what a peer prints
EVERY: tuple[type[Loader], ...] = (*OURS, *PEERS, *STREAMED)
LOADERS = {each.__name__: each for each in EVERY}


def descendants(pid: int) -> list[int]:
    """A process and all below it."""
    pids = [pid]
    for each in pids:
        for task in Path(f"/proc/{each}/task").glob("*/children"):
            try:
                pids += [int(n) for n in task.read_text().split()]
            except OSError:
                continue  # it has just ended
    return pids


def processor() -> float:
    """Processor seconds so far of this process and of all below it, whether they have ended or, like
    workers that stay for the next epoch, not."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(u.ru_utime + u.ru_stime for u in used)
    for pid in descendants(os.getpid())[1:]:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += sum(int(n) for n in fields[11:15]) / os.sysconf(
            "SC_CLK_TCK"
        )  # its own time and that of its children that have ended
    return total


class Running:
    """A loader and its iterable, which is made once, as a training loop does."""

    def __init__(self, loader: Loader) -> None:
        self.loader, self.made = loader, None

    def answer(self, what: str) -> dict[str, Any]:
        if what == "prepare":
            self.loader.prepare()
            return {}
        return values(self.loader) if what == "values" else self.epoch()

    def epoch(self) -> dict[str, Any]:
        """Samples, seconds by the clock, and processor seconds, which hold on a busy machine, too."""
        if self.made is None:
            self.loader.part = self.loader.content in self.loader.short
            self.made = self.loader.batches()
        count, before = 0, processor()
        start = time.perf_counter()
        for batch in self.made:
            count += len(batch["ids"])
        took = time.perf_counter() - start
        del batch
        gc.collect()
        return {"samples": count, "seconds": took, "cpu_seconds": processor() - before}


def values(loader: Loader) -> dict[str, Any]:
    """What an epoch gives, sample by sample, in numbers that tell a wrong voxel, box or grade."""
    found: dict[str, Any] = {}
    for batch in loader.batches():
        for i, name in enumerate(batch["ids"]):
            if name in found:
                raise SystemExit(f"{loader.name}: {name} came twice")
            volume = batch["volumes"][int(batch["index"][i]) if "index" in batch else i, 0].double()
            place = [
                float(volume.sum(dim=[d for d in range(3) if d != axis]) @ _ramp(volume, axis))
                for axis in range(3)
            ]
            found[name] = [
                float(volume.sum()),
                *place,
                *batch["boxes"][i].tolist(),
                *batch["grades"][i].tolist(),
            ]
    return found


def _ramp(volume: Any, axis: int) -> Any:
    import torch

    return torch.arange(volume.shape[axis], dtype=torch.float64)


def shuffling(folder: Path, rounds: int = 5) -> dict[str, float]:
    """Processor seconds of an epoch of crops in one process: in stored order, and shuffled with the position
    kept after every fourth.

    Crop by crop: batches of four would be padded more where they are shuffled, since neighbours in stored
    order are crops of like size.
    """
    best = {"plain": 1e9, "shuffled": 1e9}
    ours = Ours(folder, "cropped")
    made = {
        name: ours.loader(ours.stream(seed=seed, ahead=0, batch_size=1), 1, workers=0)
        for name, seed in (("plain", None), ("shuffled", 0))
    }
    for turn in range(rounds):
        for name in list(made)[:: 1 if turn % 2 else -1]:
            start = time.process_time()
            for n, _batch in enumerate(made[name]):
                if name == "shuffled" and n % BATCH == 0:
                    made[name].state_dict()
            best[name] = min(best[name], time.process_time() - start)
    return {**best, "cost": best["shuffled"] / best["plain"] - 1}


TASKS = {"limit": loaders_limit.limit, "shuffling": shuffling, "waiting": loaders_wait.waiting}


def main() -> None:
    name, folder, protocols = sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")
    if name in TASKS:
        print(MARK + json.dumps(TASKS[name](folder)), flush=True)
        return
    running = {protocol: Running(LOADERS[name](folder, protocol)) for protocol in protocols}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = running[asked["protocol"]].answer(asked["what"])
        except Exception as error:  # a peer may fail in any way; the table says so
            result = {"error": f"{type(error).__name__}: {str(error).strip()[:200]}"}
        print(MARK + json.dumps(result), flush=True)
    os._exit(0)  # workers that still read ahead are not waited for


if __name__ == "__main__":
    main()
