"""TRL's trainer with our loader beneath and our loss above; it keeps the place in the data, looks at the
validation split now and then, and tells how far it is. Importing it takes seconds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

from reasonknee.collate import Loader
from reasonknee.errors import DataError
from reasonknee.models import prefix
from reasonknee.models.embed import encoder_outputs
from reasonknee.models.evaluating import Evaluator
from reasonknee.models.examples import loss_of, units
from reasonknee.models.job import Job
from reasonknee.models.local import Local
from reasonknee.models.team import Team
from reasonknee.models.training_rows import Recipe
from reasonknee.models.tuned import LOOKS, looks, save, score_of
from reasonknee.system.files import write_text

STATE = "data.json"  # of a checkpoint: where the stream stood
_PAUSE = 10.0  # seconds between two lines that tell how far a run is
_APART = ("labels", "prefix", "lengths", "embedding")  # of a batch: not for the model as they are


def trainer_of(
    job: Job, recipe: Recipe, local: Local, batches: Loader, team: Team, told: Callable[[str], object]
) -> Any:
    """The trainer of a run."""
    watch = _Watch(team, told)
    callbacks: list[Any] = [_KeepPlace(batches, team), watch]
    if job.evaluate_every:
        callbacks.append(_Look(job, recipe, local, team))
    settings = _settings(job, recipe, local)  # before the length: it knows how many processes there are
    made = _Trainer(
        model=local.model,
        args=settings,
        train_dataset=Dataset.from_dict({"place": list(range(len(batches)))}),
        data_collator=lambda rows: rows,
        processing_class=local.tokenizer,
        callbacks=callbacks,
    )
    made.local, made.recipe, made.batches, made.watch = local, recipe, batches, watch
    setattr(made, "model_accepts_loss_kwargs", True)  # noqa: B010 - it is what the trainer asks for
    made.remove_callback(PrinterCallback)  # `told` says it in fewer words
    return made


class _Trainer(SFTTrainer):
    """Our loader beneath, our loss above."""

    local: Local
    recipe: Recipe
    batches: Loader
    watch: _Watch

    def get_train_dataloader(self) -> Any:
        return self.batches

    def _run_epoch(self, **given: Any) -> None:
        """A pass that a resumed run begins in its middle: the loader has the rest of it, so the trainer is
        told how long the rest is. Else it would miss the pass's last step where that has fewer forwards."""
        if given["resume_from_checkpoint"] and given["epoch"] == given["epochs_trained"]:
            done = self.state.global_step % given["num_update_steps_per_epoch"]
            given["num_update_steps_per_epoch"] -= done
            given["steps_in_epoch"] -= done * self.args.gradient_accumulation_steps
        super()._run_epoch(**given)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        import torch

        count = torch.tensor(
            sum(units(batch, self.recipe.weighting) for batch in batch_samples), device=device
        )
        return self.accelerator.gather(count).sum() if self.args.world_size > 1 else count

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        weighting = self.recipe.weighting
        given = {k: v for k, v in inputs.items() if k not in _APART}
        if "embedding" in inputs:
            matrix = inputs["embedding"].to(self.local.model.dtype)
            given["mm_encoder_outputs"] = encoder_outputs(self.local, matrix, inputs["video_grid_thw"])
        if self.recipe.packed:
            given |= {"prefix": inputs["prefix"], "lengths": inputs["lengths"]}
        outputs = model(**given, use_cache=False)
        total = num_items_in_batch if num_items_in_batch is not None else units(inputs, weighting)
        # ranks average their gradients, and the sum over all of them is wanted
        loss = loss_of(outputs.logits, inputs, weighting) / total * self.accelerator.num_processes
        if not math.isfinite(loss.item()):
            hint = "start anew: a lower rate, bfloat16 or float32; the last checkpoint may be spoiled"
            raise DataError("N079", f"the loss is {loss.item()} at step {self.state.global_step}", hint)
        self.watch.tokens += inputs["input_ids"].numel()
        return (loss, outputs) if return_outputs else loss


class _Look(TrainerCallback):  # type: ignore[misc]
    """Looks at the validation split now and then, keeps the best adapter, and stops when nothing gets
    better. The first process looks, and the others do as it says."""

    def __init__(self, job: Job, recipe: Recipe, local: Local, team: Team) -> None:
        self.job, self.recipe, self.local, self.team = job, recipe, local, team
        self.path = job.out / LOOKS
        per_volume = recipe.questions_per_volume or 16
        self.evaluator = Evaluator(job.release, recipe, job.evaluate_volumes, per_volume)
        self.best, self.since = -1.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Where a run goes on, what was best before counts; looks after its checkpoint are made again."""
        if not self.team.leads or not self.path.is_file():
            return
        kept = [look for look in looks(self.path) if look["step"] <= state.global_step]
        write_text(self.path, "".join(json.dumps(look) + "\n" for look in kept))
        for look in kept:
            self.judge(look)

    def judge(self, seen: dict[str, Any]) -> bool:
        """Whether it is the best so far."""
        better = score_of(seen) > self.best
        self.best, self.since = (score_of(seen), 0) if better else (self.best, self.since + 1)
        return better

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        if state.global_step % self.job.evaluate_every == 0:
            enough = self.team.first(lambda: self.look(state.global_step))
            control.should_training_stop = control.should_training_stop or enough
        return control

    def look(self, step: int) -> bool:
        """Whether it has been looked often enough without anything better."""
        self.local.model.eval()
        # drawing goes on as if nobody had looked
        with prefix.unused(self.local.model), _own_randomness(self.local.model.device):
            seen = {"step": step, **asdict(self.evaluator(self.local, self.job.evaluate_tokens))}
        self.local.model.train()
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(seen) + "\n")
        if self.judge(seen):
            save(self.local, self.recipe, self.job.model, self.job.out / "best")
        return bool(self.job.patience) and self.since >= self.job.patience


def _own_randomness(device: Any) -> Any:
    """Random numbers that are drawn within are drawn again after it."""
    import torch

    return torch.random.fork_rng([device] if device.type == "cuda" else [])


class _KeepPlace(TrainerCallback):  # type: ignore[misc]
    """Where the data stood, written into a checkpoint as its last file."""

    def __init__(self, batches: Loader, team: Team) -> None:
        self.batches, self.team = batches, team

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.team.wait()  # each process has written its random numbers
        if self.team.leads:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
            write_text(path, json.dumps(self.batches.state_dict()))


class _Watch(TrainerCallback):  # type: ignore[misc]
    """Tells loss, tokens a second and time left: at the first step, then now and then, and at the end."""

    def __init__(self, team: Team, told: Callable[[str], object]) -> None:
        self.team, self.told = team, told
        self.tokens, self.from_step, self.begun, self.last = 0, 0, 0.0, -math.inf

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.tokens, self.from_step, self.begun = 0, state.global_step, time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        now, step = time.monotonic(), state.global_step
        if "loss" not in (logs or {}) or (now - self.last < _PAUSE and step < state.max_steps):
            return
        self.last, seconds = now, max(now - self.begun, 1e-9)
        # all processes have volumes of about the same length
        rate = self.tokens * self.team.size / seconds
        left = seconds / max(step - self.from_step, 1) * (state.max_steps - step)
        at = f"step {step:,} of {state.max_steps:,}: loss {float(logs['loss']):.4g}"
        self.told(f"{at}, {rate:,.0f} tokens a second, {spoken(left)} left")


def spoken(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _settings(job: Job, recipe: Recipe, local: Local) -> Any:
    return SFTConfig(
        output_dir=str(job.out),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=recipe.accumulate,
        num_train_epochs=recipe.epochs,
        max_steps=recipe.steps,
        learning_rate=recipe.rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.03,
        logging_steps=1,
        save_steps=recipe.save_every,
        save_total_limit=2,
        seed=recipe.seed,
        use_cpu=local.model.device.type == "cpu",
        bf16=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        ignore_data_skip=True,
        disable_tqdm=True,
        report_to=[] if job.report_to == "none" else [job.report_to],
        gradient_checkpointing=recipe.checkpointing,  # TRL's own default is to do it
    )
