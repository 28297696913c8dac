"""`reasonknee train` on a release of SGMRI-VQA: the paper's headline, a Qwen-VL fine-tuned with box
supervision, by the same trainer, order and resume as for knees.

A question on a volume is taught on all frames that the view chooses, one on a slice on its frame; the target
holds a box for every frame that shows a finding, on volumes too, where the published targets have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reasonknee.collate import Loader, loader
from reasonknee.errors import UsageError
from reasonknee.layout.places import release_folder
from reasonknee.layout.sgmri import read_qa_manifest
from reasonknee.models.examples import example
from reasonknee.models.local import Local
from reasonknee.models.qwen import tensors
from reasonknee.models.targets import Target
from reasonknee.models.training import Data, Job, fine_tune
from reasonknee.models.training_rows import Recipe
from reasonknee.sgmri.ask import ALL_SHADES, numbers_of, scan_of, view_of
from reasonknee.sgmri.prompts import SYSTEM, Form, asked, form_named, taught
from reasonknee.sgmri.records import Record, record_of
from reasonknee.sgmri.stream import questions


class QaExamples:
    """Collates a question of the stream into what the model's forward takes."""

    def __init__(self, local: Local, recipe: Recipe, form: Form) -> None:
        self.local, self.recipe, self.form = local, recipe, form
        local.system = SYSTEM

    def target(self, row: dict[str, Any]) -> tuple[Target, Any]:
        """The words of a row, and the frames that go before them."""
        record: Record = replace(record_of(row, row["id"]), shape=row["image"].shape)
        view, crop = view_of(record, self.recipe.view)
        showing = self.local.fitted(view.show(scan_of(row["image"]), "", crop, ALL_SHADES))
        frame, stored = showing.frame, row["image"].shape[1:]
        question = asked(record, numbers_of(record, showing.outline), frame, self.form)
        reasoned = self.recipe.teaching.arm == "reasoning"
        return Target(record.id, question, taught(record, stored, frame, self.form, reasoned)), showing

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        (row,) = rows
        target, showing = self.target(row)
        packed = self.local.packed(showing)
        return example(self.local, [target], packed, self.recipe.longest) | tensors([packed])


def fine_tune_questions(
    job: Job, recipe: Recipe, form: str, told: Callable[[str], object] = lambda line: None, **chosen: Any
) -> Path:
    """Trains, or goes on with a run that was cut short. `chosen` are anatomies, levels and tasks."""
    wrong = [
        name
        for name, given in (
            ("--packed", recipe.packed),
            ("--embeddings", job.embeddings),
            ("--evaluate-every", job.evaluate_every),
            ("--questions-per-volume", recipe.questions_per_volume),
            (f"--arm {recipe.teaching.arm}", recipe.teaching.arm not in ("reasoning", "no_reasoning")),
            (f"--setting {recipe.teaching.setting}", recipe.teaching.setting in ("region", "both")),
        )
        if given
    ]
    if wrong:
        raise UsageError("Z062", f"{wrong[0]} on SGMRI-VQA", "it is for quintuples of knees: leave it out")
    folder = release_folder(job.release, configs=["volumes"])
    told_as = form_named(form)

    def batches(local: Local) -> Loader:
        rows = questions(folder, "volumes", "train", seed=recipe.seed, batch_size=1, even="drop", **chosen)
        return loader(rows, QaExamples(local, recipe, told_as), 1, workers=1)

    made_of = {"boxes": form, **{k: v for k, v in chosen.items() if v}}
    data = Data("SGMRI-VQA", read_qa_manifest(folder).release_version, batches, made_of)
    return fine_tune(job, recipe, told, data)
