"""`train --check`: a few steps on the user's own machine, and what held."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reasonknee.models import prefix
from reasonknee.models.examples import example, loss_of
from reasonknee.models.job import Job
from reasonknee.models.local import Local
from reasonknee.models.targets import Target, Teaching, target
from reasonknee.models.training import fine_tune
from reasonknee.models.training_rows import Recipe, volume_of
from reasonknee.stream import volumes


def checked(job: Job, recipe: Recipe) -> Iterator[str]:
    """A line for each thing that was tried, with what was measured."""
    import torch

    local = Local.load(job.model, adapter=job.adapter, dtype="float32", device=job.device)
    yield f"device {local.model.device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    yield from _packing(local, recipe, job.release)
    del local
    with tempfile.TemporaryDirectory() as folder:
        yield from _resume(job, recipe, Path(folder))


@dataclass(frozen=True)
class Packing:
    """Some questions of a volume in one forward, against as many forwards."""

    questions: int
    prefix: int  # tokens that all share
    tokens: int  # of the packed sequence
    tokens_alone: int  # of all sequences, one by one
    loss: float
    loss_off: float  # relative
    gradients_off: float  # relative, of the worst weight
    seconds: float
    seconds_alone: float


def packing(
    local: Local,
    recipe: Recipe,
    item: dict[str, Any],
    count: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Packing:
    """Loss and gradients of the first questions of a volume, together and one by one."""
    model, packed, targets = local.model, *_targets(local, recipe, item, count)
    start = clock()
    together = example(local, targets, packed)
    loss = _loss(local, packed, together, True)
    loss.backward()
    seconds = clock() - start
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    start, summed, tokens = clock(), 0.0, 0
    for each in targets:
        made = example(local, [each], packed)
        part = _loss(local, packed, made, False)
        part.backward()
        summed, tokens = summed + part.item(), tokens + made["input_ids"].shape[1]
    alone = clock() - start
    worst = max(
        ((p.grad - gradients[n]).norm() / p.grad.norm()).item()
        for n, p in model.named_parameters()
        if p.grad is not None and p.grad.norm() > 1e-6
    )
    model.zero_grad(set_to_none=True)
    return Packing(
        len(targets),
        together["prefix"],
        together["input_ids"].shape[1],
        tokens,
        loss.item(),
        abs(loss.item() - summed) / summed,
        worst,
        seconds,
        alone,
    )


def _targets(local: Local, recipe: Recipe, item: dict[str, Any], count: int) -> tuple[Any, list[Target]]:
    showing = local.fitted(recipe.view.show(volume_of(item), item["side"]))
    taught = Teaching(recipe.teaching.arm, "zero_shot", recipe.teaching.reasoning)
    return local.packed(showing), [target({**item, **q}, showing, taught) for q in item["quintuples"][:count]]


def _loss(local: Local, packed: Any, made: dict[str, Any], by_prefix: bool) -> Any:
    """The sum over the answers' tokens."""
    if by_prefix:
        prefix.use(local.model)
    else:
        local.model.set_attn_implementation({"text_config": "sdpa"})
    extra = {k: made[k] for k in ("prefix", "lengths")} if by_prefix else {}
    given = {k: made[k].to(local.model.device) for k in ("input_ids", "mm_token_type_ids", "position_ids")}
    logits = local.model(**given, **local.inputs(packed), **extra, use_cache=False).logits
    return loss_of(logits, made, "tokens")


def _packing(local: Local, recipe: Recipe, release: str) -> Iterator[str]:
    """Four questions together against one by one; then the drift of bfloat16."""
    import torch

    item = next(iter(volumes(release, "full", "train", seed=recipe.seed, batch_size=1)))
    seen = packing(local, recipe, item, 4)
    held = "holds" if seen.gradients_off <= 1e-4 else "DOES NOT HOLD"
    yield (
        f"packing equals one by one: {held} (loss off by {seen.loss_off:.1e}, gradients by "
        f"{seen.gradients_off:.1e}); {seen.seconds_alone / seen.seconds:.1f} times as fast for "
        f"{seen.questions} questions behind {seen.prefix:,} tokens"
    )
    yield (
        f"speed: {seen.tokens / seen.seconds:,.0f} tokens a second, forward and backward, {local.model.dtype}"
    )
    with torch.no_grad():
        local.model.to(torch.bfloat16)
        packed, targets = _targets(local, recipe, item, 4)
        drift = (
            abs(_loss(local, packed, example(local, targets, packed), True).item() - seen.loss) / seen.loss
        )
        local.model.to(torch.float32)
    yield f"bfloat16: the loss differs by {drift:.1e} from float32"
    if torch.cuda.is_available():
        yield f"memory: {torch.cuda.max_memory_allocated() / 1e9:.1f} GB at most"


def _resume(job: Job, recipe: Recipe, folder: Path) -> Iterator[str]:
    """Four steps at a time, and two steps, a stop, two more: the same losses and weights."""
    from safetensors.torch import load_file

    few = replace(
        recipe, steps=4, save_every=2, accumulate=1, questions_per_volume=2, full=False, dropout=0.0
    )
    few = replace(few, sampling="natural")
    whole = fine_tune(replace(job, out=folder / "run", dtype="float32"), few)
    weights = load_file(whole / "adapter_model.safetensors")
    losses = (folder / "run" / "losses.jsonl").read_text().splitlines()
    shutil.rmtree(folder / "run" / "checkpoint-4")
    shutil.rmtree(whole)
    again = load_file(
        fine_tune(replace(job, out=folder / "run", dtype="float32"), few) / "adapter_model.safetensors"
    )
    worst = max((weights[n] - again[n]).abs().max().item() for n in weights)
    how = "to the last bit" if worst == 0 else f"to {worst:.1e}"
    yield f"resume: weights are the same {how}; last loss {json.loads(losses[-1])['loss']:.4g}"
