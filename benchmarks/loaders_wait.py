"""How long a training loop waits for its batches: beside a real step of a small 3D network on the same cores,
with threads, with processes, and with nothing beside the loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from ours import Ours
from protocols import BATCH, WORKERS
from torch import nn

HOW = {
    "threads": {"workers": WORKERS, "processes": 0},
    "processes": {"workers": 0, "processes": WORKERS},
    "nothing beside the loop": {"workers": 0, "processes": 0},
}
GRID = (24, 64, 64)  # what the network sees of a batch, whatever the size of its volumes


def waiting(folder: Path, most: int = 120, rounds: int = 2) -> dict[str, Any]:
    """For each protocol and way: the share of the loop's time that passed in waiting for a batch, and the
    milliseconds of a whole step; the best of some rounds in turn."""
    best: dict[str, dict[str, Any]] = {}
    torch.set_num_threads(1)
    _measured(Ours(folder, "cropped"), HOW["threads"], 2)  # what torch does once, it has done
    for protocol in ("cropped", "full"):
        best[protocol] = {}
        for _ in range(rounds):
            for name, how in HOW.items():
                got = _measured(Ours(folder, protocol), how, most)
                known = best[protocol].get(name)
                if known is None or got["step_ms"] < known["step_ms"]:
                    best[protocol][name] = got
    return best


def _measured(ours: Ours, how: dict[str, int], most: int) -> dict[str, float]:
    from reasonknee.collate import Collator, loader

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv3d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv3d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()
    )
    head = nn.LazyLinear(4)
    optimizer: torch.optim.Optimizer | None = None
    batches = iter(loader(ours.stream(), Collator(), BATCH, **how))
    waited = 0.0
    next(batches)  # threads and processes have started
    began = time.perf_counter()
    steps = 0
    while steps < most:
        asked = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked
        if batch is None:
            break
        seen = nn.functional.interpolate(batch.volumes, GRID)
        loss = nn.functional.cross_entropy(head(net(seen)), batch.grades[:, 0].clamp(0, 3))
        optimizer = optimizer or torch.optim.AdamW([*net.parameters(), *head.parameters()])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del batch, seen
        steps += 1
    took = time.perf_counter() - began
    return {"share": waited / took, "step_ms": 1000 * took / max(steps, 1), "steps": steps}
