"""Supervised fine-tuning on a release: TRL's trainer, our order of rows, labels on the answers alone.

    fine_tune(Job(release, "Qwen/Qwen2.5-VL-3B-Instruct", out), Recipe(view=View("even:80"), packed=True))

A run leaves `adapter/` (or `model/` for a full one), `run.json` with all that is needed to repeat it, a model
card, and checkpoints. Killed and started again with the same words, it goes on from its last checkpoint to
the same weights: the position in the data is part of a checkpoint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reasonknee.collate import Loader, loader
from reasonknee.errors import DataError, StorageError, UsageError, reason
from reasonknee.layout import read_manifest, release_folder
from reasonknee.models import prefix
from reasonknee.models.embed import encoder_outputs
from reasonknee.models.evaluating import Evaluator
from reasonknee.models.examples import loss_of, units
from reasonknee.models.local import Local
from reasonknee.models.training_rows import Examples, Recipe, rarity_of, training_rows
from reasonknee.system.files import write_text
from reasonknee.version import VERSION

STATE = "data.json"  # of a checkpoint: where the stream stood
_LORA_PARTS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


@dataclass(frozen=True)
class Job:
    release: str
    model: str
    out: Path
    adapter: str | None = None
    dtype: str = "auto"
    device: str | None = None
    report_to: str = "none"
    embeddings: Path | None = None  # in place of pixels
    evaluate_every: int = 0  # steps between looks at the validation split; 0 for none
    evaluate_volumes: int = 8
    patience: int = 0  # looks without a better one after which the run ends; 0 for never


# --- the run ------------------------------------------------------------------------------------------------


def fine_tune(job: Job, recipe: Recipe, told: Callable[[str], object] = lambda line: None) -> Path:
    """Trains, or goes on with a run that was cut short; gives the folder of what was trained."""
    from transformers import set_seed

    folder = release_folder(job.release)
    manifest = read_manifest(folder)
    stamp = {
        "release_version": manifest.release_version,
        "code_version": VERSION,
        "model": job.model,
        "adapter": job.adapter,
        "recipe": json.loads(json.dumps(asdict(recipe))),
    }
    _check_run(job.out, stamp)
    set_seed(recipe.seed)
    local = Local.load(job.model, adapter=job.adapter, dtype=job.dtype, device=job.device)
    model = _prepared(local, recipe)
    rows = training_rows(str(folder), recipe, job.embeddings is None)
    rarity = rarity_of(str(folder)) if recipe.sampling == "balanced" else {}
    batches = loader(rows, Examples(local, recipe, rarity, job.embeddings), 1, workers=1)
    trainer = _trainer(job, recipe, model, local, batches)
    last = _last_checkpoint(job.out)
    if last:
        batches.load_state_dict(json.loads((last / STATE).read_text(encoding="utf-8")))
        told(f"goes on from {last.name}")
    try:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    except RuntimeError as error:
        if "out of memory" in str(error).lower():
            hint = "show fewer slices, pack fewer questions, or add --checkpointing; checkpoints are kept"
            raise StorageError("N076", "the device has no memory left", hint) from None
        raise
    except OSError as error:
        raise StorageError(
            "N077", f"the run stopped: {reason(error)}", "make room; the same command goes on"
        ) from None
    return _finished(job, recipe, local, trainer, stamp)


def _check_run(out: Path, stamp: Mapping[str, Any]) -> None:
    """A folder holds one run: another recipe in it would go on from weights that are not its own."""
    path = out / "run.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        different = sorted(key for key in stamp if before.get(key) != stamp[key])
        if different:
            raise UsageError("N078", f"{out} is another run: {', '.join(different)}", "choose a new folder")
    elif out.exists() and any(out.iterdir()):
        raise UsageError("N078", f"{out} is not empty, and no run of ours", "choose a new folder")
    write_text(path, json.dumps(dict(stamp), indent=1) + "\n")


def _last_checkpoint(out: Path) -> Path | None:
    """The last checkpoint that is whole: its data's position is written last."""
    whole = [p for p in out.glob("checkpoint-*") if (p / STATE).is_file()]
    return max(whole, key=lambda p: int(p.name.rpartition("-")[2]), default=None)


def _prepared(local: Local, recipe: Recipe) -> Any:
    """The model ready to be trained: an adapter on its language part, or all of its weights."""
    model = local.model
    if recipe.packed:
        prefix.use(model)
    if recipe.full:
        model.requires_grad_(True)
        return model
    from peft import LoraConfig, PeftModel, get_peft_model

    if isinstance(model, PeftModel):
        for name, weight in model.named_parameters():
            weight.requires_grad_("lora_" in name)
        return model
    lora = LoraConfig(
        r=recipe.rank, lora_alpha=recipe.alpha, lora_dropout=recipe.dropout, target_modules=_LORA_PARTS
    )
    local.model = get_peft_model(model, lora)
    return local.model


def _trainer(job: Job, recipe: Recipe, model: Any, local: Local, batches: Loader) -> Any:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

    class OurTrainer(SFTTrainer):
        """Our loader beneath, our loss above."""

        def get_train_dataloader(self) -> Any:
            return batches

        def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
            import torch

            count = torch.tensor(
                sum(units(batch, recipe.weighting) for batch in batch_samples), device=device
            )
            return self.accelerator.gather(count).sum() if self.args.world_size > 1 else count

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            apart = ("labels", "prefix", "lengths", "embedding")
            given = {k: v for k, v in inputs.items() if k not in apart}
            if "embedding" in inputs:
                matrix = inputs["embedding"].to(local.model.dtype)
                given["mm_encoder_outputs"] = encoder_outputs(local, matrix, inputs["video_grid_thw"])
            if recipe.packed:
                given |= {"prefix": inputs["prefix"], "lengths": inputs["lengths"]}
            outputs = model(**given, use_cache=False)
            total = num_items_in_batch if num_items_in_batch is not None else units(inputs, recipe.weighting)
            # ranks average their gradients, and the sum over all of them is wanted
            loss = loss_of(outputs.logits, inputs, recipe.weighting) / total * self.accelerator.num_processes
            if not math.isfinite(loss.item()):
                hint = "lower the rate, or train in bfloat16 or float32; the last checkpoint is whole"
                raise DataError("N079", f"the loss is {loss.item()} at step {self.state.global_step}", hint)
            return (loss, outputs) if return_outputs else loss

    class Evaluate(TrainerCallback):  # type: ignore[misc]
        """Looks at the validation split now and then, keeps the best adapter, and stops when nothing gets
        better."""

        def __init__(self) -> None:
            per_volume = recipe.questions_per_volume or 16
            self.look = Evaluator(job.release, recipe.view, recipe.teaching, job.evaluate_volumes, per_volume)
            self.best, self.since = -1.0, 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if state.global_step % job.evaluate_every or not state.is_world_process_zero:
                return control
            local.model.eval()
            with prefix.unused(local.model):
                seen = self.look(local)
            local.model.train()
            line = {"step": state.global_step, **asdict(seen)}
            with (job.out / "validation.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.since += 1
            if seen.score > self.best:
                self.best, self.since = seen.score, 0
                local.model.save_pretrained(str(job.out / "best"))
            if job.patience and self.since >= job.patience:
                control.should_training_stop = True
            return control

    class KeepPlace(TrainerCallback):  # type: ignore[misc]
        """Where the data stood, written into a checkpoint as its last file."""

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                path = Path(args.output_dir) / f"checkpoint-{state.global_step}" / STATE
                write_text(path, json.dumps(batches.state_dict()))

    settings = SFTConfig(
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
        use_cpu=str(local.model.device) == "cpu",
        bf16=False,
        remove_unused_columns=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        ignore_data_skip=True,
        report_to=[] if job.report_to == "none" else [job.report_to],
        gradient_checkpointing=recipe.checkpointing,  # TRL's own default is to do it
    )
    made = OurTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict({"place": list(range(len(batches)))}),
        data_collator=lambda rows: rows,
        processing_class=local.tokenizer,
        callbacks=[KeepPlace(), *([Evaluate()] if job.evaluate_every else [])],
    )
    setattr(made, "model_accepts_loss_kwargs", True)  # noqa: B010 - it is what the trainer asks for
    return made


def _finished(job: Job, recipe: Recipe, local: Local, trainer: Any, stamp: Mapping[str, Any]) -> Path:
    """The trained weights with a card; losses by step stand in `losses.jsonl`."""
    folder = job.out / ("model" if recipe.full else "adapter")
    local.model.save_pretrained(str(folder))
    local.tokenizer.save_pretrained(str(folder))
    losses = [{"step": e["step"], "loss": e["loss"]} for e in trainer.state.log_history if "loss" in e]
    write_text(job.out / "losses.jsonl", "".join(json.dumps(line) + "\n" for line in losses))
    write_text(folder / "README.md", _card(job, recipe, stamp, losses))
    return folder


def _card(job: Job, recipe: Recipe, stamp: Mapping[str, Any], losses: list[dict[str, float]]) -> str:
    taught = recipe.teaching
    ends = f"from {losses[0]['loss']:.4g} to {losses[-1]['loss']:.4g}" if losses else "unknown"
    return f"""---
base_model: {job.model}
library_name: peft
tags: [3DReasonKnee, knee MRI, MOAKS]
---
# Fine-tuned on 3DReasonKnee

| | |
|---|---|
| base model | {job.model} |
| data | 3DReasonKnee {stamp["release_version"]}, split train |
| code | reasonknee {stamp["code_version"]} |
| view | {recipe.view.name} |
| arm, setting, reasoning | {taught.arm}, {taught.setting}, {taught.reasoning} |
| packed, weighting, sampling | {recipe.packed}, {recipe.weighting}, {recipe.sampling} |
| steps, loss | {len(losses)}, {ends} |

It is no medical device. Score it with `reasonknee ask` and `reasonknee score` before you trust a word of it.
"""
