"""`train --check`: a few steps on the user's own machine, and what held."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from reasonknee.models import prefix
from reasonknee.models.examples import example, loss_of
from reasonknee.models.local import Local
from reasonknee.models.targets import Teaching, target
from reasonknee.models.training import Job, fine_tune
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


def _packing(local: Local, recipe: Recipe, release: str) -> Iterator[str]:
    """Loss and gradients of four questions together against one by one; then the drift of bfloat16."""
    import torch

    item = next(iter(volumes(release, "full", "train", seed=recipe.seed, batch_size=1)))
    showing = local.fitted(recipe.view.show(volume_of(item), item["side"]))
    packed = local.packed(showing)
    taught = Teaching(recipe.teaching.arm, "zero_shot", recipe.teaching.reasoning)
    targets = [target({**item, **q}, showing, taught) for q in item["quintuples"][:4]]
    together, alone = example(local, targets, packed), [example(local, [t], packed) for t in targets]

    def run(made: dict[str, Any], by_prefix: bool) -> Any:
        if by_prefix:
            prefix.use(local.model)
        else:
            local.model.set_attn_implementation({"text_config": "sdpa"})
        extra = {k: made[k] for k in ("prefix", "lengths")} if by_prefix else {}
        given = {
            k: made[k].to(local.model.device) for k in ("input_ids", "mm_token_type_ids", "position_ids")
        }
        return loss_of(
            local.model(**given, **local.inputs(packed), **extra, use_cache=False).logits, made, "tokens"
        )

    start = time.perf_counter()
    loss = run(together, True)
    loss.backward()
    seconds = time.perf_counter() - start
    gradients = {n: p.grad.clone() for n, p in local.model.named_parameters() if p.grad is not None}
    local.model.zero_grad()
    start, summed = time.perf_counter(), 0.0
    for made in alone:
        part = run(made, False)
        part.backward()
        summed += part.item()
    apart = time.perf_counter() - start
    worst = max(
        ((p.grad - gradients[n]).norm() / p.grad.norm()).item()
        for n, p in local.model.named_parameters()
        if p.grad is not None and p.grad.norm() > 1e-6
    )
    local.model.zero_grad(set_to_none=True)
    tokens = together["input_ids"].shape[1]
    held = "holds" if worst <= 1e-4 else "DOES NOT HOLD"
    yield (
        f"packing equals one by one: {held} (loss off by {abs(loss.item() - summed) / summed:.1e}, gradients "
        f"by {worst:.1e}); "
        f"{apart / seconds:.1f} times as fast for {len(targets)} questions behind {together['prefix']:,} "
        "tokens"
    )
    yield f"speed: {tokens / seconds:,.0f} tokens a second, forward and backward, {local.model.dtype}"
    with torch.no_grad():
        local.model.to(torch.bfloat16)
        drift = abs(run(together, True).item() - loss.item()) / loss.item()
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
