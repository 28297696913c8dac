"""Keys and values of a prefix that questions share, with room for what follows.

The cache of `transformers` grows by concatenation: each token copies all that came before it, which for a
volume of 16,000 tokens and eight questions is nearly as much as the weights. Here it is copied once for each
question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    import torch


class _Layer(DynamicLayer):  # type: ignore[misc]
    """What is known so far is the first part of two tensors that are as long as it may become."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, count: int, room: int) -> None:
        super().__init__()
        self.lazy_initialization(keys, values)
        self._keys, self._values = (self._whole(x, count, room) for x in (keys, values))
        self.update(keys.expand(count, -1, -1, -1), values.expand(count, -1, -1, -1))

    @staticmethod
    def _whole(known: torch.Tensor, count: int, room: int) -> torch.Tensor:
        _, heads, length, width = known.shape
        return known.new_empty(count, heads, length + room, width)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        self._keys[:, :, start:stop], self._values[:, :, start:stop] = key_states, value_states
        self.keys, self.values = self._keys[:, :, :stop], self._values[:, :, :stop]
        return self.keys, self.values


def for_each(prefix: Any, count: int, room: int) -> DynamicCache:
    """The prefix for so many questions at once, each with room for so many tokens of its own."""
    own = DynamicCache()
    own.layers = [_Layer(layer.keys, layer.values, count, room) for layer in prefix.layers]
    return own
