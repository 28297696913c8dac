"""GRPO's update on packed volumes: TRL's trainer computes every completion behind its own copy of the volume,
this one puts all completions of a volume's questions behind one. On policy, one update a step, the tuned
model as reference. `examples/grpo_volumes.py` does the same with TRL's own trainer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reasonknee.models import Parameters, prefix
from reasonknee.models.examples import IGNORED, example
from reasonknee.models.local import Local, copy_processor
from reasonknee.models.targets import Target, target
from reasonknee.models.training_rows import Recipe, Scene
from reasonknee.scoring.rewards import reward_with
from reasonknee.stream import volumes

GROUP, QUESTIONS, BETA = 8, 6, 0.02
REWARDS = {"grades": 0.6, "box": 0.3, "form": 0.1}


@dataclass(frozen=True)
class Sampled:
    """Completions of the questions of a volume, packed, with what each earned beside its group."""

    made: dict[str, Any]
    shown: dict[str, Any]
    advantages: np.ndarray
    parts: dict[str, float]


def log_probabilities(model: Any, sampled: Sampled) -> list[torch.Tensor]:
    """Of each completion, token by token. Its first token is told by the last of its own question."""
    made = sampled.made
    given = {k: made[k] for k in ("input_ids", "mm_token_type_ids", "position_ids", "prefix", "lengths")}
    logits = model(**given, **sampled.shown, use_cache=False).logits[0]
    labels, start, found = made["labels"][0], made["prefix"], []
    for length in made["lengths"]:
        own = torch.arange(start, start + length)
        own = own[labels[own] != IGNORED]
        found.append(logits[own - 1].float().log_softmax(-1).gather(-1, labels[own][:, None])[:, 0])
        start += length
    return found


def sample(local: Local, recipe: Recipe, item: dict[str, Any], seed: int, tokens: int) -> Sampled:
    """A group of completions for some questions of a volume."""
    scene, draw = Scene(local, recipe, item), np.random.default_rng([recipe.seed, seed])
    packed = local.packed(scene.whole)
    chosen = [item["quintuples"][i] for i in draw.choice(len(item["quintuples"]), QUESTIONS, replace=False)]
    each = [q for q in chosen for _ in range(GROUP)]
    asked = [target({**item, **q}, scene.whole, recipe.teaching).question for q in each]
    with prefix.unused(local.model):
        replies = [r.text for r in local.replies(scene.whole, asked, Parameters(tokens, 1.0, seed))]
    parts: dict[str, float] = {}
    earned = reward_with(REWARDS, box_reward="giou")(
        completions=replies,
        question_id=[q["question_id"] for q in each],
        grades=[q["grades"] for q in each],
        box=[q["box"] for q in each],
        log_metric=parts.__setitem__,
    )
    groups = np.nan_to_num(np.array(earned, float)).reshape(QUESTIONS, GROUP)
    spread = groups.std(1, keepdims=True)
    advantages = (groups - groups.mean(1, keepdims=True)) / (spread + 1e-4)
    said = [Target(q["id"], text, reply) for q, text, reply in zip(each, asked, replies, strict=True)]
    told = {name.rpartition("/")[2]: value for name, value in parts.items()}
    told |= {"reward": float(groups.mean()), "flat": float((spread < 1e-6).mean())}
    return Sampled(example(local, said, packed), local.inputs(packed), advantages.ravel(), told)


def loss_of(model: Any, reference: Any, sampled: Sampled) -> torch.Tensor:
    with torch.no_grad():
        before = log_probabilities(reference, sampled)
    now = log_probabilities(model, sampled)
    loss = torch.zeros(())
    for new, old, advantage in zip(now, before, sampled.advantages, strict=True):
        gap = old - new
        divergence = gap.exp() - gap - 1
        ratio = (new - new.detach()).exp()
        loss = loss - (ratio * float(advantage) - BETA * divergence).mean() / len(now)
    return loss


def reinforce(release: str, model: Path, out: Path, recipe: Recipe, tokens: int) -> dict[str, Any]:
    """Leaves the model in `out`; gives the mean of each part in the first and the last fifth of the steps."""
    batch = GROUP * QUESTIONS
    local, reference = (Local.load(str(model), dtype="float32", device="cpu", batch=batch) for _ in range(2))
    for one in (local, reference):
        prefix.use(one.model)
    torch.manual_seed(recipe.seed)
    optimizer = torch.optim.AdamW(local.model.parameters(), lr=recipe.rate)
    log: list[dict[str, float]] = []
    rows = volumes(release, "full", "train", seed=recipe.seed, batch_size=1)
    while len(log) < recipe.steps:
        for item in rows:
            if len(log) == recipe.steps:
                break
            sampled = sample(local, recipe, item, len(log), tokens)
            loss = loss_of(local.model, reference.model, sampled)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(local.model.parameters(), 1.0)
            optimizer.step()
            log.append(sampled.parts)
    local.model.set_attn_implementation({"text_config": "sdpa"})
    local.model.save_pretrained(out)
    local.tokenizer.save_pretrained(out)
    copy_processor(str(model), out)
    fifth = max(1, len(log) // 5)
    ends = {n: [_mean(log[:fifth], n), _mean(log[-fifth:], n)] for n in ("reward", *REWARDS, "flat")}
    return {"steps": len(log), "rate": recipe.rate, "parts": ends}


def _mean(some: list[dict[str, float]], name: str) -> float:
    return float(np.mean([entry[name] for entry in some]))
