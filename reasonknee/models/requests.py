"""What is asked of a model and what comes back: the words between the run, the engines and the journal."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Parameters:
    """How an answer is drawn. The same for every request of a run, and part of each request's key."""

    max_tokens: int = 1024
    temperature: float = 0.0
    seed: int = 0
    grammar: bool = False  # the last object must follow the answer's schema

    def as_dict(self) -> dict[str, Any]:
        """The parameters as JSON has them."""
        return asdict(self)


@dataclass(frozen=True)
class Reply:
    """A model's words, whole, and what they took."""

    text: str
    finish: str  # stop, length or content_filter
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt's, those that were not computed again
    completion_tokens: int = 0
    seconds: float = 0.0


def digest(value: Mapping[str, Any] | str) -> str:
    """The same for the same content, on any machine."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]
