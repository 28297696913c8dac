"""A team of two real processes that trains: a pass, the same from its middle on, and a run that ends early.

torchrun --nproc-per-node 2 tests/training_job.py RELEASE MODEL OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from reasonknee.errors import ReasonKneeError
from reasonknee.models.targets import Teaching
from reasonknee.models.training import Job, fine_tune
from reasonknee.models.training_rows import Examples, Recipe
from reasonknee.models.views import View

RECIPE = Recipe(
    view=View("even:4"),
    teaching=Teaching("no_reasoning", "zero_shot"),
    packed=True,
    questions_per_volume=2,
    epochs=1,
    save_every=2,
    accumulate=1,
    dropout=0.0,
    rate=1e-3,
)


def main(release: str, model: str, out: Path) -> None:
    torch.set_num_threads(1)
    seen: list[str] = []
    told: list[str] = []
    collated = Examples.__call__

    def noted(self: Examples, rows: list[dict[str, Any]]) -> dict[str, Any]:
        seen.append(rows[0]["volume_id"])
        return collated(self, rows)

    Examples.__call__ = noted  # type: ignore[method-assign]
    job = Job(release, model, out / "pass", dtype="float32")  # the device as a user leaves it
    fine_tune(job, RECIPE, told.append)
    passed = list(seen)
    rank = dist.get_rank()
    if rank == 0:
        shutil.move(out / "pass" / "adapter", out / "first")
        last = max((out / "pass").glob("checkpoint-*"), key=lambda p: int(p.name.rpartition("-")[2]))
        shutil.rmtree(last)
    dist.barrier()
    fine_tune(job, RECIPE, told.append)
    look = replace(
        job, out=out / "early", evaluate_every=1, evaluate_volumes=1, evaluate_tokens=8, patience=1
    )
    fine_tune(look, replace(RECIPE, save_every=100), told.append)
    try:
        fine_tune(look, RECIPE)
    except ReasonKneeError as error:
        refused = error.code
    (out / f"{rank}.json").write_text(json.dumps({"passed": passed, "told": told, "refused": refused}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
