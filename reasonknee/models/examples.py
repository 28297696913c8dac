"""Rows as tensors that a model is trained on: tokens, positions by the named rule, labels on the answers
alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reasonknee.errors import DataError, UsageError
from reasonknee.models.local import Local
from reasonknee.models.prefix import shared_length
from reasonknee.models.qwen import Shown, packs_of
from reasonknee.models.targets import Target

if TYPE_CHECKING:
    import torch

IGNORED = -100


@dataclass(frozen=True)
class Taught:
    """A chat with its right answer: `labels` are IGNORED up to the answer."""

    ids: list[int]
    labels: list[int]


def sequence(local: Local, target: Target, packed: Shown) -> Taught:
    """Question and answer as the model's own chat has them, closed by the token that ends its turn."""
    asked = local.tokens(target.question, packed)
    said = local.tokenizer(target.answer, add_special_tokens=False)["input_ids"]
    answer = [*said, local.ends[0]]
    return Taught([*asked, *answer], [IGNORED] * len(asked) + answer)


def example(
    local: Local,
    targets: Sequence[Target],
    packed: Shown,
    longest: int | None = None,
    own_shown: Sequence[Shown] | None = None,
) -> dict[str, Any]:
    """One volume with its questions, packed behind the prefix that they share; a single one is a plain
    sequence. `own_shown` is what each question shows by itself after that: its region.

    Gives what the model's forward takes, with `labels`, `prefix` and `lengths`.
    """
    import torch

    if not targets:
        raise DataError("N072", "a volume without a question to learn from", "choose questions that it has")
    shown = [(*packs_of(packed), *packs_of(s)) for s in own_shown or [None] * len(targets)]
    sequences = [sequence(local, t, s) for t, s in zip(targets, shown, strict=True)]
    shared = (
        shared_length([s.ids for s in sequences]) if len(sequences) > 1 else _vision_end(local, sequences[0])
    )
    if own_shown:  # tokens of two regions are alike, what they show is not
        shared = min([shared, *(_own_vision(local, s.ids, packed) for s in sequences)])
    prefix = sequences[0].ids[:shared]
    own = [s.ids[shared:] for s in sequences]
    ids = [*prefix, *(token for part in own for token in part)]
    if longest is not None and shared + max(map(len, own)) > longest:
        hint = "show fewer slices or smaller frames"
        raise DataError("N022", f"{shared + max(map(len, own)):,} tokens are more than {longest:,}", hint)
    places = local.positions(prefix, packed)
    after = int(places[0, 0, -1]) + 1
    parts = [places, *((after + torch.arange(len(part))).expand(3, 1, -1) for part in own)]
    if own_shown:
        whole = [local.positions(s.ids, packs) for s, packs in zip(sequences, shown, strict=True)]
        parts = [places, *(part[:, :, shared:] for part in whole)]
    labels = [IGNORED] * shared + [label for s in sequences for label in s.labels[shared:]]
    kinds = local.kinds(ids)
    return {
        "input_ids": torch.tensor([ids]),
        "mm_token_type_ids": kinds[None],
        "position_ids": torch.cat(parts, dim=-1),
        "labels": torch.tensor([labels]),
        "prefix": shared,
        "lengths": [len(part) for part in own],
    }


def _vision_end(local: Local, only: Taught) -> int:
    """Where a single question's prefix ends: after the last vision token, and what closes it."""
    kinds = local.kinds(only.ids).tolist()
    last = max((i for i, kind in enumerate(kinds) if kind), default=0)
    return min(last + 2, len(only.ids) - 1)


def _own_vision(local: Local, ids: Sequence[int], shared: Shown) -> int:
    """Where the first vision token stands that is not of what all are shown."""
    before = sum(int(p.grids.prod(1).sum()) // local.family.merge**2 for p in packs_of(shared))
    places = [i for i, kind in enumerate(local.kinds(ids).tolist()) if kind]
    return places[before] if len(places) > before else len(ids) - 1


WEIGHTINGS = ("tokens", "questions", "volumes")


def check_weighting(weighting: str) -> None:
    if weighting not in WEIGHTINGS:
        raise UsageError("N073", f"unknown weighting {weighting!r}", f"choose one of {', '.join(WEIGHTINGS)}")


def weights(example_: Mapping[str, Any], weighting: str) -> torch.Tensor:
    """What each label counts in the sum of a volume's losses: a token 1, or each question 1, or the
    volume 1."""
    import torch

    check_weighting(weighting)
    labelled = (example_["labels"][0] != IGNORED).float()
    if weighting == "tokens":
        return labelled
    if weighting == "volumes":
        return labelled / labelled.sum()
    weighted, start = torch.zeros_like(labelled), example_["prefix"]
    for length in example_["lengths"]:
        own = slice(start, start + length)
        weighted[own] = labelled[own] / labelled[own].sum()
        start += length
    return weighted


def units(example_: Mapping[str, Any], weighting: str) -> int:
    """How many of what the loss is averaged over an example has."""
    if weighting == "tokens":
        return int((example_["labels"] != IGNORED).sum())
    return len(example_["lengths"]) if weighting == "questions" else 1


def loss_of(logits: torch.Tensor, example_: Mapping[str, Any], weighting: str) -> torch.Tensor:
    """The weighted sum over the answers' tokens. The first token of a question follows the prefix, not the
    question that stands before it."""
    import torch
    import torch.nn.functional as functional

    labels = example_["labels"][0].to(logits.device)
    before = torch.arange(-1, len(labels) - 1)
    start = example_["prefix"]
    for length in example_["lengths"]:
        before[start] = example_["prefix"] - 1
        start += length
    chosen = labels != IGNORED
    weighted = weights(example_, weighting).to(logits.device)[chosen]
    losses = functional.cross_entropy(
        logits[0, before[chosen.cpu()].to(logits.device)].float(), labels[chosen], reduction="none"
    )
    return (losses * weighted).sum()
