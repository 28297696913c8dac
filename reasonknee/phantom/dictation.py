"""Reasoning as the published dataset has it: a reader's own words on one question, which end in the answer's
JSON. Part of the synthetic knees carry it, beside the reasoning that is derived."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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
    return "\n".join([*lines, f"Final diagnosis: {json.dumps(published_answer(question, grades))}"])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def published_answer(question: Question, grades: Mapping[str, int]) -> dict[str, Any]:
    """Grades in the form of the published answers: wrappers, casing of keys and bare integers as they are."""
    answer: dict[str, Any] = {}
    for attribute in question.attributes:
        inner = answer
        for part in attribute.upstream_path[:-1]:
            inner = inner.setdefault(part, {})
        inner[attribute.upstream_path[-1]] = grades.get(attribute.id)
    return answer
