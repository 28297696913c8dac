"""Runs that are cut and resumed, by accelerate and by Lightning, in two real processes: cases come as a file, what each rank saw goes into one.

torchrun --nproc-per-node 2 tests/framework_job.py RELEASE CASES OUT
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning.pytorch.callbacks import Callback
from with_lightning import CountsEpochs

import reasonknee as rk

Seen = list[tuple[int, list[str]]]  # batches, each with its epoch


class Ids(list):  # type: ignore[type-arg]
    """A batch of nothing but ids, which no framework takes apart."""

    def to(self, device: Any) -> Ids:
        return self


def ids(rows: list[dict[str, Any]]) -> Ids:
    return Ids(row["id"] for row in rows)


def batches(release: str, case: dict[str, Any], run: dict[str, Any]) -> rk.Loader:
    rows = rk.quintuples(
        release,
        "annotations",
        columns=["region"],
        even=run["even"],
        ranks="whole" if run["alone"] else None,
        **case["stream"],
    )
    return rk.loader(rows, ids, case["batch_size"], workers=run["workers"])


def by_accelerate(release: str, case: dict[str, Any], place: str) -> Seen:
    seen: Seen = []
    for number, run in enumerate(case["runs"]):
        accelerator = Accelerator(cpu=True)
        ours = batches(release, case, run)
        assert accelerator.prepare(ours) is ours
        accelerator.register_for_checkpointing(ours)
        if number:
            accelerator.load_state(f"{place}-{number - 1}")
        quiet = run["alone"] and dist.get_rank() > 0  # every rank reads all: one of them is the run
        last, steps = run["stop"] or (case["epochs"] - 1, None)
        for epoch in range(ours.epoch, last + 1):
            ours.set_epoch(epoch)
            for step, batch in enumerate(ours, 1):
                if not quiet:
                    seen.append((epoch, list(batch)))
                if epoch == last and step == steps:
                    break
        if run["stop"]:
            accelerator.save_state(f"{place}-{number}")
            accelerator.wait_for_everyone()
    return seen


class Listening(lightning.LightningModule):
    """Learns nothing, and remembers what it was shown."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.weight, self.seen = torch.nn.Parameter(torch.zeros(1)), seen

    def training_step(self, batch: Ids, index: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, list(batch)))
        return self.weight.sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Saves(Callback):
    """After a step, where ModelCheckpoint saves."""

    def __init__(self, place: str, step: int) -> None:
        self.place, self.step = place, step

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.place)


def trainer(**options: Any) -> Any:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    devices = {"accelerator": "cpu", "devices": dist.get_world_size(), "strategy": "ddp"}
    return lightning.Trainer(**devices, **quiet, **options)


def by_lightning(release: str, case: dict[str, Any], place: str) -> Seen:
    seen: Seen = []
    for number, run in enumerate(case["runs"]):
        step = run["stop"]
        running = trainer(
            max_epochs=case["epochs"],
            max_steps=step or -1,
            callbacks=[CountsEpochs(), *([Saves(f"{place}-{number}", step)] if step else [])],
        )
        resumed = f"{place}-{number - 1}" if number else None
        running.fit(Listening(seen), train_dataloaders=batches(release, case, run), ckpt_path=resumed)
        if step and run["after"]:  # the steps are over, in an epoch or at its end
            running.save_checkpoint(f"{place}-{number}")
    return seen


BY = {"accelerate": by_accelerate, "lightning": by_lightning}


def main(release: str, cases: Path, out: Path) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    told = []
    for number, case in enumerate(json.loads(cases.read_text())):
        told.append(BY[case["by"]](release, case, str(out / f"state-{number}")))
        dist.barrier()
    (out / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
