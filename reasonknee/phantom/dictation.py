"""Reasoning as the published dataset has it, apart from the JSON of its answer: a reader's own words on one
question. Part of the synthetic knees carry it, beside the reasoning that is derived."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reasonknee.boxes import Box
from reasonknee.questions import Question

_OPENINGS = (
    "Step 1: Scrolling through the sagittal slices, the {where} comes into view{slices}.",
    "Step 1: I first find the {where}{slices}, where the neighbouring structures confirm the level.",
    "Step 1: The {where} is identified{slices}.",
)
_LOOKS = (
    "Step 2: I look for {appearance}.",
    "Step 2: {title} would show as {appearance}.",
)
_CLOSINGS = (
    "Step {n}: For the {title}, I see {meaning}: {grade}.",
    "Step {n}: {title}: best described as {meaning}, so I score {grade}.",
)


def dictation(question: Question, grades: Mapping[str, int], box: Box | None, seed: int) -> str:
    """What a reader might have said; the same seed says the same."""
    rng = np.random.default_rng([seed, question.upstream_id])

    def one_of(phrases: tuple[str, ...]) -> str:
        return phrases[int(rng.integers(len(phrases)))]

    slices = f" on slices {box.z0} to {box.z1 - 1}" if box else ""
    lines = [
        one_of(_OPENINGS).format(where=question.region.title, slices=slices),
        one_of(_LOOKS).format(
            title=_capital(question.lesion.indefinite), appearance=question.lesion.appearance
        ),
    ]
    for n, attribute in enumerate((a for a in question.attributes if a.id in grades), start=3):
        grade = grades[attribute.id]
        meaning = attribute.space.meanings[grade]
        lines.append(one_of(_CLOSINGS).format(n=n, title=attribute.title, meaning=meaning, grade=grade))
    return "\n".join(lines)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
