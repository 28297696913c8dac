"""What a run of training is made of, beside its recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    evaluate_tokens: int = 512  # of an answer, at most
