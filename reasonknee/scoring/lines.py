"""One line of a file of predictions: what it must look like, the answer it gives, and that answer as numbers.

A line is `{"id": ..., "response": "<the model's text>"}`, or with everything read already `{"id": ...,
"grades": {...}, "box": {...} or null, "reasoning": "<optional>"}`; both may carry a `confidence`. Other keys
are let pass. `schema/predictions.schema.json` says the same; for half a million lines it would take too long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reasonknee import answers
from reasonknee.answers import Answer, Problem
from reasonknee.boxes import Box, Shape
from reasonknee.errors import DataError, UsageError
from reasonknee.layout.scores import BOX_STATES, STATUSES
from reasonknee.layout.strict_text import MAX_LINE, parse_json
from reasonknee.questions import Question
from reasonknee.scoring import consistency
from reasonknee.scoring.truth import NONE, SLOTS

PARSED, INVALID, UNPARSED, MISSING = range(len(STATUSES))
NO_BOX, BOXED, UNREADABLE = range(len(BOX_STATES))
HAS, REGION, STATES, AGREES, STEPS = (1 << i for i in range(5))  # what is known of the reasoning, as bits
# An answer as numbers: what a process that reads hands to the one that counts.
LINE = np.dtype(
    [
        ("offset", np.int64),  # where in the file the line starts
        ("status", np.uint8),  # index into STATUSES
        ("box_state", np.uint8),  # index into BOX_STATES
        ("reasoning", np.uint8),  # bits
        ("grades", np.int8, (SLOTS,)),  # NONE without a legal grade
        ("box", np.int32, (6,)),
        ("confidence", np.float64),  # NaN if not given
    ]
)
_FAR = (1 << 31) - 1  # a corner beyond that, of a box whose volume is not known, is kept at it
_OF_BOX = frozenset({"W011", "W012", "W013", "W014", "B001"})  # a box was given, but none can be read


# --- what it must look like ---------------------------------------------------------------------------------

# every escape in turn, so that a backslash that is escaped itself starts none; two halves of a surrogate pair
# are one
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)


def line_fields(raw: bytes, where: str) -> dict[str, Any]:
    """The object of a line.

    Half of a surrogate pair, where a model's text was cut inside a character, is no reason to refuse the
    file.
    """
    if b"\\u" in raw:
        raw = _ESCAPE.sub(lambda m: b"\\ufffd" if len(m[0]) == 6 else m[0], raw)
    return parse_json(raw, where)


def line_at(path: Path, offset: int) -> dict[str, Any]:
    with path.open("rb") as file:
        file.seek(offset)
        return line_fields(file.readline(MAX_LINE + 1), f"{path.name} at byte {offset}")


def checked(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of a line, if it is one."""
    if not isinstance(fields.get("id"), str):
        raise DataError("S010", f"{where}: no `id`", "each line names its quintuple")
    if ("response" in fields) == ("grades" in fields):
        words = "both `response` and `grades`" if "grades" in fields else "neither `response` nor `grades`"
        raise DataError("S010", f"{where}: {words}", "give one of them")
    for name in ("response", "reasoning"):
        if not isinstance(fields.get(name), (str, type(None))):
            raise DataError("S010", f"{where}: `{name}` is not text", "text or null is wanted")
    if "confidence" in fields:
        _check_confidence(fields["confidence"], where)
    if "grades" in fields:
        _check_grades(fields["grades"], where)
        if not isinstance(fields.get("box"), (dict, list, type(None))):
            raise DataError(
                "S010",
                f"{where}: `box` is neither an object nor a list nor null",
                "see the conventions of boxes",
            )
    return fields


def _check_grades(grades: Any, where: str) -> None:
    if not isinstance(grades, dict) or not all(
        g is None or (isinstance(g, int) and not isinstance(g, bool)) for g in grades.values()
    ):
        raise DataError(
            "S010", f"{where}: `grades` is not an object of integers", 'for example {"size": 2, "number": 1}'
        )


def _check_confidence(value: Any, where: str) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1
    ):
        raise DataError(
            "S010",
            f"{where}: `confidence` is not a number from 0 to 1",
            "the share of such answers that are right",
        )


# --- the grid of its box ------------------------------------------------------------------------------------

CONVENTIONS = tuple(answers.EXAMPLES)  # those of answers, and two that are canonical on another grid


class BoxReading(NamedTuple):
    """How the numbers of a box are meant, and what is needed to know their voxels."""

    convention: str = "canonical"
    view: Shape | None = None  # what the volume was resized to, for `resized`
    crops: Mapping[str, Box] | None = None  # by quintuple, for `crop`

    def check(self) -> None:
        """Tells a wrong name, or what is lacking, before the work."""
        if self.convention not in CONVENTIONS:
            answers.read_box(None, self.convention)
        if (self.convention == "resized") != (self.view is not None):
            told = "needs the size to which volumes were resized" if self.view is None else "is for `resized`"
            raise UsageError("S017", f"--view {told}", "--convention resized --view Z,Y,X")
        if self.convention == "crop" and self.crops is None:
            raise UsageError("S018", "boxes in voxels of a crop need a release with `cropped`", "build it")

    def within(self, id_: str, shape: Shape | None) -> tuple[str, Shape | None]:
        """The convention and the size of the grid that the numbers are on."""
        if self.convention == "resized":
            return "canonical", self.view
        if self.convention == "crop":
            crop = (self.crops or {}).get(id_)
            return "canonical", crop.shape if crop else shape
        return self.convention, shape

    def back(self, box: Box, id_: str, shape: Shape | None) -> Box:
        """The box in voxels of the full volume; a part of a voxel counts as that voxel."""
        if self.convention == "crop" and id_ in (self.crops or {}):
            return box.outside((self.crops or {})[id_])
        if self.convention != "resized" or self.view is None or shape is None:
            return box
        bounds: list[int] = []
        for low, high, size, of in zip(box.start, box.stop, shape, self.view, strict=True):
            bounds += [low * size // of, -(-high * size // of)]
        return Box(*bounds)


# --- the answer ---------------------------------------------------------------------------------------------


def answer_of(
    question: Question,
    fields: dict[str, Any],
    shape: Shape | None,
    reading: BoxReading | str = "canonical",
    where: str = "the prediction",
) -> Answer:
    """The answer of a line: its text, read, or the grades and the box that it has ready."""
    reading = BoxReading(reading) if isinstance(reading, str) else reading
    convention, grid = reading.within(fields["id"], shape)
    if "response" in fields:
        answer = answers.read(question, fields["response"] or "", shape=grid, box_convention=convention)
    else:
        answer = _ready(question, fields, grid, convention, where)
    if answer.box is None or reading.convention == convention:
        return answer
    return replace(answer, box=reading.back(answer.box, fields["id"], shape))


def _ready(
    question: Question, fields: dict[str, Any], grid: Shape | None, convention: str, where: str
) -> Answer:
    spaces = {a.id: a.space for a in question.attributes}
    given = {a: g for a, g in fields["grades"].items() if g is not None}
    for name in given:
        if name not in spaces:
            raise DataError(
                "S010",
                f"{where}: {question.id} has no attribute {ascii(name)[:40]}",
                f"it has {', '.join(spaces)}",
            )
    legal = {a: g for a, g in given.items() if g in spaces[a].grades}
    status: answers.Status = (
        "parsed" if legal.keys() == spaces.keys() else "invalid" if len(legal) < len(given) else "unparsed"
    )
    problems = [Problem("W003", f"{given[a]} is no grade of {a}") for a in given if a not in legal]
    problems += [Problem("W001", f"no grade for {a}") for a in spaces if a not in given]
    try:
        box = answers.read_box(fields.get("box"), convention, grid)
    except DataError as error:
        problems.append(Problem(error.code, error.message))
        box = None
    return Answer(status, legal, box, fields.get("reasoning") or "", tuple(problems))


def encoded(
    question: Question, answer: Answer, offset: int = -1, confidence: float | None = None
) -> tuple[Any, ...]:
    """The answer in the order of LINE."""
    grades = [answer.grades.get(a.id, NONE) for a in question.attributes]
    box = answer.box
    state = BOXED if box else UNREADABLE if any(p.code in _OF_BOX for p in answer.problems) else NO_BOX
    bits = 0
    if answer.reasoning:
        checks = consistency.check(question, answer.reasoning, answer.grades)
        bits = (
            HAS
            | REGION * checks.region
            | STATES * checks.states
            | AGREES * checks.agrees
            | STEPS * checks.steps
        )
    corners = (box.z0, box.z1, box.y0, box.y1, box.x0, box.x1) if box else (0,) * 6
    return (
        offset,
        STATUSES.index(answer.status),
        state,
        bits,
        (*grades, *(NONE,) * (SLOTS - len(grades))),
        tuple(min(c, _FAR) for c in corners),
        np.nan if confidence is None else confidence,
    )


NOTHING = ((NONE,) * SLOTS, (0,) * 6, np.nan)  # neither grades, nor a box, nor a confidence
