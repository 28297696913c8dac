"""Supervised fine-tuning on a release: TRL's trainer, our order of rows, labels on the answers alone.

    fine_tune(Job(release, "Qwen/Qwen2.5-VL-3B-Instruct", out), Recipe(view=View("even:80"), packed=True))

A run leaves `adapter/` (or `model/` for a full one), `run.json` with all that is needed to repeat it, a model
card, and checkpoints. Killed and started again with the same words, it goes on from its last checkpoint to
the same weights: the position in the data is part of a checkpoint. Started by `torchrun` or
`accelerate launch`, processes share the volumes; the first one writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reasonknee.collate import Loader, loader
from reasonknee.errors import StorageError, UsageError, reason, remedy
from reasonknee.layout import read_manifest, release_folder
from reasonknee.models import prefix
from reasonknee.models.job import Job as Job
from reasonknee.models.local import Local
from reasonknee.models.team import gathered
from reasonknee.models.training_rows import Examples, Recipe, rarity_of, training_rows
from reasonknee.models.tuned import LOOKS, card, look_at, looks, save, score_of
from reasonknee.system.files import write_text
from reasonknee.version import VERSION

_LORA_PARTS = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


@dataclass(frozen=True)
class Data:
    """Another dataset than the quintuples of knees: its name and version, its batches for a model, and what
    else a run of it is made of."""

    name: str
    version: str
    batches: Callable[[Local], Loader]
    made_of: Mapping[str, Any]


# --- the run ------------------------------------------------------------------------------------------------


def fine_tune(
    job: Job,
    recipe: Recipe,
    told: Callable[[str], object] = lambda line: None,
    data: Data | None = None,
) -> Path:
    """Trains, or goes on with a run that was cut short; gives the folder of what was trained."""
    from transformers import set_seed

    from reasonknee.models.trainer import STATE, trainer_of

    if job.embeddings and recipe.teaching.setting in ("region", "both"):
        raise UsageError(
            "N087",
            f"--embeddings with --setting {recipe.teaching.setting}",
            "embeddings are of whole volumes; regions are cut out of pixels: leave --embeddings out",
        )
    data = data or _knees(job, recipe)
    stamp = {
        **data.made_of,
        "release_version": data.version,
        "code_version": VERSION,
        "model": job.model,
        "adapter": job.adapter,
        "recipe": json.loads(json.dumps(asdict(recipe))),
    }
    team = gathered(job.device)
    team.first(lambda: _check_run(job.out, stamp))
    set_seed(recipe.seed)
    local = Local.load(job.model, adapter=job.adapter, dtype=job.dtype, device=team.device or job.device)
    # only now: a model that cannot be loaded leaves nothing behind
    team.first(lambda: write_text(job.out / "run.json", json.dumps(stamp, indent=1) + "\n"))
    _prepared(local, recipe, tower=job.embeddings is None)
    batches = data.batches(local)
    quiet = told if team.leads else _silent
    trainer = trainer_of(job, recipe, local, batches, team, quiet)
    last = _last_checkpoint(job.out, STATE)
    if last:
        batches.load_state_dict(json.loads((last / STATE).read_text(encoding="utf-8")))
        quiet(f"goes on from {last.name}")
    try:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    except RuntimeError as error:
        if "out of memory" in str(error).lower():
            hint = "show fewer slices, pack fewer questions, or add --checkpointing; checkpoints are kept"
            raise StorageError("N076", "the device has no memory left", hint) from None
        raise
    except OSError as error:
        raise StorageError(
            "N077", f"the run stopped: {reason(error)}", f"{remedy(error)}; the same command goes on"
        ) from None
    return team.first(lambda: _finished(job, recipe, local, trainer, {**stamp, "data": data.name}))


def _silent(line: str) -> None:
    """For all processes but the first."""


def _knees(job: Job, recipe: Recipe) -> Data:
    """The quintuples of a release."""
    folder = release_folder(job.release)

    def batches(local: Local) -> Loader:
        rows = training_rows(str(folder), recipe, job.embeddings is None)
        rarity = rarity_of(str(folder)) if recipe.sampling == "balanced" else {}
        made = Examples(local, recipe, rarity, job.embeddings)
        batches = loader(rows, made, 1, workers=1)
        made.epoch = lambda: batches.epoch  # questions are drawn anew each time
        return batches

    return Data("3DReasonKnee", read_manifest(folder).release_version, batches, {})


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


def _last_checkpoint(out: Path, written_last: str) -> Path | None:
    """The last checkpoint that is whole."""
    whole = [p for p in out.glob("checkpoint-*") if (p / written_last).is_file()]
    return max(whole, key=lambda p: int(p.name.rpartition("-")[2]), default=None)


def _prepared(local: Local, recipe: Recipe, tower: bool = True) -> Any:
    """The model ready to be trained: an adapter on its language part, or all of its weights; those of the
    vision tower only where it sees pixels."""
    model = local.model
    if recipe.packed:
        prefix.use(model)
    if recipe.full:
        model.requires_grad_(True)
        model.model.visual.requires_grad_(tower)
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


def _finished(job: Job, recipe: Recipe, local: Local, trainer: Any, stamp: Mapping[str, Any]) -> Path:
    """The trained weights with a card; losses by step stand in `losses.jsonl`."""
    folder = job.out / ("model" if recipe.full else "adapter")
    save(local, recipe, job.model, folder)
    losses = {e["step"]: e["loss"] for e in trainer.state.log_history if "loss" in e}
    lines = [{"step": step, "loss": loss} for step, loss in losses.items()]
    write_text(job.out / "losses.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    last, seen = trainer.state.global_step, looks(job.out / LOOKS)
    best = max(seen, key=score_of, default=None)  # the first of equals, as it was kept
    for place, step, look in (
        (folder, last, look_at(seen, last)),
        *([(job.out / "best", best["step"], best)] if best else []),
    ):
        loss = f"{losses[1]:.4g} to {losses[step]:.4g}" if {1, step} <= set(losses) else "unknown"
        write_text(place / "README.md", card(job.model, recipe, stamp, f"{step}, {loss}", look))
    return folder
