"""Which convention of boxes a file seems to follow, where the given one does not fit it.

Judged by range and order alone: by how many boxes another convention can read inside their volumes, never by
how well they then overlap with the truth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.scoring.lines import (
    BOXED,
    CONVENTIONS,
    UNREADABLE,
    BoxReading,
    answer_of,
    line_at,
)
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.truth import TABLE, Truth

_LOOKED_AT = 200  # boxes, spread over the file
_FITS = 0.9  # share of them that a convention must read


def suggested(path: Path, truth: Truth, predicted: Predictions, reading: BoxReading) -> str:
    """A line for the report; empty if most boxes can be read as they are, or nothing fits better."""
    given = (predicted.box_state == UNREADABLE) | (predicted.box_state == BOXED)
    wrong = np.flatnonzero((predicted.box_state == UNREADABLE) & (predicted.offset >= 0))
    if len(wrong) * 2 <= given.sum():
        return ""
    chosen = wrong[:: max(1, len(wrong) // _LOOKED_AT)][:_LOOKED_AT]
    others = [c for c in CONVENTIONS if c not in (reading.convention, "resized", "crop")]
    lines = [(row, line_at(path, int(predicted.offset[row]))) for row in chosen.tolist()]
    shares = {c: _read_by(BoxReading(c), truth, lines) for c in others}
    best = max(others, key=lambda c: shares[c])  # the first of several that read as many
    if shares[best] < _FITS:
        return ""
    return (
        f"most boxes do not fit the convention {reading.convention}: out of range, reversed or all below 1; "
        f"{best} reads {shares[best]:.0%} of those that were tried. If that is what the model was asked for, "
        f"score with --convention {best}; numbers of a resized image or of a crop need `resized` or `crop`"
    )


def _read_by(reading: BoxReading, truth: Truth, lines: list[tuple[int, dict[str, Any]]]) -> float:
    reads = 0
    for row, fields in lines:
        z, y, x = truth.shape[row].tolist()
        reads += answer_of(TABLE[truth.question[row]], fields, (z, y, x), reading).box is not None
    return reads / len(lines)
