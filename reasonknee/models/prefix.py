"""One volume, all its questions in one forward: each question sees the shared prefix and itself, nothing
else.

    [system + volume][Q1 A1][Q2 A2]...[QK AK]

Positions of every question start right after the prefix, so loss and gradients are those of K sequences,
while the prefix is computed once. Attention is done question by question with torch's own kernels: a question
attends to the prefix and to what of itself comes before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reasonknee.errors import UsageError

if TYPE_CHECKING:
    import torch

ATTENTION = "reasonknee_prefix"  # its name among those of transformers


def shared_length(sequences: Sequence[list[int]]) -> int:
    """How many tokens all begin with; each keeps at least one of its own."""
    least, greatest = min(sequences), max(sequences)  # what these two share, all between them do
    differing = (i for i, (a, b) in enumerate(zip(least, greatest, strict=False)) if a != b)
    return min(next(differing, len(least)), min(map(len, sequences)) - 1)


def attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    prefix: int | None = None,
    lengths: Sequence[int] | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """(1, heads, tokens, width) of a sequence that is a prefix and questions of these lengths."""
    import torch
    import torch.nn.functional as functional

    if prefix is None or lengths is None:
        raise UsageError(
            "N070", "a packed model was called without its prefix", "pack examples with `packed`"
        )
    repeats = module.num_key_value_groups
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    first, its_keys, its_values = (part[:, :, :prefix] for part in (query, key, value))
    outputs = [
        functional.scaled_dot_product_attention(first, its_keys, its_values, is_causal=True, scale=scaling)
    ]
    start = prefix
    for length in lengths:
        own = slice(start, start + length)
        seen = torch.ones(length, prefix + length, dtype=torch.bool, device=query.device).tril(prefix)
        keys, values = (torch.cat([part[:, :, :prefix], part[:, :, own]], 2) for part in (key, value))
        outputs.append(
            functional.scaled_dot_product_attention(
                query[:, :, own], keys, values, attn_mask=seen, scale=scaling
            )
        )
        start += length
    return torch.cat(outputs, 2).transpose(1, 2).contiguous(), None


def use(model: Any) -> None:
    """Makes the language part of a model attend by prefix; its vision tower stays as it is."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(ATTENTION, attend)
    AttentionMaskInterface.register(ATTENTION, lambda *args, **kwargs: None)
    model.set_attn_implementation({"text_config": ATTENTION})


@contextmanager
def unused(model: Any) -> Iterator[None]:
    """Plain attention for a while: answers are generated question by question."""
    before = model.config.text_config._attn_implementation
    model.set_attn_implementation({"text_config": "sdpa"})
    try:
        yield
    finally:
        model.set_attn_implementation({"text_config": before})
