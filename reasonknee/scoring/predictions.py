"""Predictions from a JSON Lines file, aligned with the ground truth.

A line is one answer: `{"id": ..., "response": "<the model's text>"}`, or with everything read already
`{"id": ..., "grades": {...}, "box": {...} or null, "reasoning": "<optional>"}`. Other keys are let pass. What a line must look like is
`schema/predictions.schema.json`; a line that does not is an error with its number. Ids that are missing, unknown or twice are counted.

The file is read in pieces, which two processes take turns to parse: texts, the slow part, never are in memory all at once.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reasonknee import answers
from reasonknee.answers import Answer
from reasonknee.boxes import Shape
from reasonknee.errors import DataError, StorageError
from reasonknee.questions import QUESTIONS, Question
from reasonknee.score_layout import STATUSES
from reasonknee.scoring import consistency
from reasonknee.scoring.truth import NONE, SLOTS, Truth
from reasonknee.tables import MAX_LINE, parse_json
from reasonknee.workers import worker_pool

PARSED, INVALID, UNPARSED, MISSING = range(len(STATUSES))
NO_BOX, BOX, UNREADABLE = range(3)
HAS, REGION, STATES, AGREES, STEPS = (1 << i for i in range(5))  # what is known of the reasoning, as bits
_PIECE = 1 << 19  # bytes that a process gets at a time, and the rest of the last line
_FAR = (1 << 31) - 1  # a corner beyond that, of a box whose volume is not known, is kept at it
_SHOWN = 10  # ids that are shown of those that do not fit


@dataclass
class Predictions:
    """One row per quintuple of the truth, in its order."""

    grades: np.ndarray  # int8 (n, SLOTS), NONE without a legal grade
    boxes: np.ndarray  # int32 (n, 6)
    box_state: np.ndarray
    status: np.ndarray  # index into STATUSES
    reasoning: np.ndarray  # bits
    offset: np.ndarray  # where in the file the line starts; -1 if missing
    lines: int = 0
    unknown: int = 0
    repeated: int = 0
    contradictory: int = 0  # ids that are repeated with another answer: no answer at all
    unknown_ids: list[str] = field(default_factory=list)
    repeated_ids: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, n: int) -> Predictions:
        return cls(
            grades=np.full((n, SLOTS), NONE, np.int8),
            boxes=np.zeros((n, 6), np.int32),
            box_state=np.zeros(n, np.uint8),
            status=np.full(n, MISSING, np.uint8),
            reasoning=np.zeros(n, np.uint8),
            offset=np.full(n, -1, np.int64),
        )

    def put(self, row: int, question: Question, answer: Answer) -> None:
        self.take(np.array([row]), np.array([(0, *_encoded(question, answer))]))

    def take(self, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Lines in their rows; `numbers` has the columns that `_encoded` gives, after the line's offset."""
        self.offset[rows], self.status[rows], self.box_state[rows], self.reasoning[rows] = numbers[:, :_GRADES].T
        self.grades[rows], self.boxes[rows] = numbers[:, _GRADES:_BOX], numbers[:, _BOX:]

    def same(self, row: int, numbers: np.ndarray) -> bool:
        box = self.boxes[row], self.box_state[row]
        return bool((self.grades[row] == numbers[_GRADES:_BOX]).all() and (box[0] == numbers[_BOX:]).all() and box[1] == numbers[_BOX_STATE])


_BOX_STATE, _GRADES, _BOX = 2, 4, 4 + SLOTS  # where in a line's numbers these are
_NOTHING = (NONE,) * SLOTS + (0,) * 6  # neither grades nor a box


class _Lines(NamedTuple):
    """What a piece of the file says: an id and a row of numbers for each line."""

    ids: list[str]
    numbers: np.ndarray


def read_predictions(path: Path, truth: Truth, convention: str = "canonical", workers: int = 1) -> Predictions:
    """Every line of the file in its place; with several `workers` the texts are parsed by processes."""
    answers.read_box(None, convention)  # a wrong name is told before the work
    found = Predictions.empty(len(truth))
    contradictory: set[int] = set()
    for ids, numbers in _parsed(path, truth.shapes(), convention, workers):
        found.lines += len(ids)
        rows = np.array([truth.rows.get(id_, NONE) for id_ in ids], np.int64)
        fresh = np.zeros(len(ids), bool)
        fresh[np.unique(rows, return_index=True)[1]] = True
        fresh &= (rows != NONE) & (found.offset[rows] < 0)
        found.take(rows[fresh], numbers[fresh])
        for line in np.flatnonzero(~fresh):
            row = int(rows[line])
            if row == NONE:
                found.unknown += 1
                _show(found.unknown_ids, ids[line])
            else:
                found.repeated += 1
                _show(found.repeated_ids, ids[line])
                if not found.same(row, numbers[line]):
                    contradictory.add(row)
    found.contradictory = len(contradictory)
    for row in contradictory:  # which of the two is meant is not ours to guess
        found.take(np.array([row]), np.array([(found.offset[row], UNPARSED, UNREADABLE, 0, *_NOTHING)]))
    if not found.lines:
        raise DataError("S011", f"{path.name} holds no prediction", 'one JSON object a line: {"id": ..., "response": ...}')
    if found.unknown == found.lines:
        raise DataError("S011", f"{path.name}: none of its {found.lines} ids is in this split", f"the first is {ascii(found.unknown_ids[0])[:80]}")
    return found


def _show(ids: list[str], id_: str) -> None:
    if len(ids) < _SHOWN:
        ids.append(ascii(id_)[1:81].rstrip("'\""))


# --- reading lines ----------------------------------------------------------------------------------------------------------------


class _Piece(NamedTuple):
    """Whole lines of the file, and how many lines and bytes come before."""

    number: int
    offset: int
    text: bytes


def _pieces(path: Path) -> Iterator[_Piece]:
    number = offset = 0
    try:
        with path.open("rb") as file:
            while text := file.read(_PIECE):
                text += b"" if text.endswith(b"\n") else file.readline(MAX_LINE + 1)  # a line that is longer still is refused by its reader
                yield _Piece(number, offset, text)
                number += text.count(b"\n")
                offset += len(text)
    except OSError as error:
        raise StorageError("T000", f"{path}: {error.strerror}", "check the path and its permissions") from None


def _parsed(path: Path, shapes: dict[str, Shape], convention: str, workers: int) -> Iterator[_Lines]:
    pieces = _pieces(path)
    first = next(pieces, _Piece(0, 0, b""))
    if workers <= 1 or len(first.text) < _PIECE:
        yield from map(_Reader(path.name, shapes, convention).lines, chain([first], pieces))
        return
    with worker_pool(workers, _start, (path.name, shapes, convention)) as pool:
        waiting: deque[Future[_Lines]] = deque()
        try:
            for piece in chain([first], pieces):
                waiting.append(pool.submit(_work, piece))
                if len(waiting) > 2 * workers:  # what waits is bounded, and results come in the order of lines
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


_reader: list[_Reader] = []


def _start(name: str, shapes: dict[str, Shape], convention: str) -> None:
    _reader[:] = [_Reader(name, shapes, convention)]


def _work(piece: _Piece) -> _Lines:
    return _reader[0].lines(piece)


@dataclass(frozen=True)
class _Reader:
    name: str
    shapes: dict[str, Shape]
    convention: str

    def lines(self, piece: _Piece) -> _Lines:
        ids: list[str] = []
        numbers: list[tuple[int, ...]] = []
        after = piece.offset
        for number, raw in enumerate(piece.text.split(b"\n"), start=piece.number + 1):
            offset, after = after, after + len(raw) + 1
            if not raw.strip():
                continue
            where = f"{self.name}:{number}"
            fields = checked(line_fields(raw, where), where)
            ids.append(fields["id"])
            volume, _, question_id = fields["id"].rpartition("-")
            question, shape = QUESTIONS.get(question_id), self.shapes.get(volume)
            if question is None or shape is None:
                numbers.append((offset, UNPARSED, NO_BOX, 0, *_NOTHING))
            else:
                numbers.append((offset, *_encoded(question, answer_of(question, fields, shape, self.convention, where))))
        return _Lines(ids, np.array(numbers, np.int64).reshape(len(ids), _BOX + 6))


# --- one line ---------------------------------------------------------------------------------------------------------------------


# every escape in turn, so that a backslash that is escaped itself starts none; two halves of a surrogate pair are one
_ESCAPE = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)


def line_fields(raw: bytes, where: str) -> dict[str, Any]:
    """The object of a line. Half of a surrogate pair, where a model's text was cut inside a character, is no reason to refuse the file."""
    if b"\\u" in raw:
        raw = _ESCAPE.sub(lambda m: b"\\ufffd" if len(m[0]) == 6 else m[0], raw)
    return parse_json(raw, where)


def line_at(path: Path, offset: int) -> dict[str, Any]:
    with path.open("rb") as file:
        file.seek(offset)
        return line_fields(file.readline(MAX_LINE + 1), f"{path.name} at byte {offset}")


def checked(fields: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of a line, if it is one: what its schema says, without the cost of a validator for each of half a million lines."""
    if not isinstance(fields.get("id"), str):
        raise DataError("S010", f"{where}: no `id`", "each line names its quintuple")
    if ("response" in fields) == ("grades" in fields):
        words = "both `response` and `grades`" if "grades" in fields else "neither `response` nor `grades`"
        raise DataError("S010", f"{where}: {words}", "give one of them")
    for name in ("response", "reasoning"):
        if not isinstance(fields.get(name), (str, type(None))):
            raise DataError("S010", f"{where}: `{name}` is not text", "text or null is wanted")
    if "grades" in fields:
        grades = fields["grades"]
        if not isinstance(grades, dict) or not all(g is None or (isinstance(g, int) and not isinstance(g, bool)) for g in grades.values()):
            raise DataError("S010", f"{where}: `grades` is not an object of integers", 'for example {"size": 2, "number": 1}')
        if not isinstance(fields.get("box"), (dict, list, type(None))):
            raise DataError("S010", f"{where}: `box` is neither an object nor a list nor null", "see the conventions of boxes")
    return fields


def answer_of(question: Question, fields: dict[str, Any], shape: Shape | None, convention: str, where: str = "the prediction") -> Answer:
    """The answer of a line: its text, read, or the grades and the box that it has ready."""
    if "response" in fields:
        return answers.read(question, fields["response"] or "", shape=shape, box_convention=convention)
    spaces = {a.id: a.space for a in question.attributes}
    given = {a: g for a, g in fields["grades"].items() if g is not None}
    for name in given:
        if name not in spaces:
            raise DataError("S010", f"{where}: {question.id} has no attribute {ascii(name)[:40]}", f"it has {', '.join(spaces)}")
    legal = {a: g for a, g in given.items() if g in spaces[a].grades}
    status: answers.Status = "parsed" if legal.keys() == spaces.keys() else "invalid" if len(legal) < len(given) else "unparsed"
    problems = [f"W003: {given[a]} is no grade of {a}" for a in given if a not in legal]
    problems += [f"W001: no grade for {a}" for a in spaces if a not in given]
    try:
        box = answers.read_box(fields.get("box"), convention, shape)
    except DataError as error:
        problems.append(f"{error.code}: {error.message}")
        box = None
    return Answer(status, legal, box, fields.get("reasoning") or "", tuple(problems))


_OF_BOX = ("W011", "W012", "W013", "W014", "B001")  # problems with which a box was given, but none can be read


def _encoded(question: Question, answer: Answer) -> tuple[int, ...]:
    """Status, state of the box, bits of the reasoning, the grades by slot, the corners of the box."""
    grades = [answer.grades.get(a.id, NONE) for a in question.attributes]
    box = answer.box
    state = BOX if box else UNREADABLE if any(p.startswith(_OF_BOX) for p in answer.problems) else NO_BOX
    bits = 0
    if answer.reasoning:
        checks = consistency.check(question, answer.reasoning, answer.grades)
        bits = HAS | REGION * checks.region | STATES * checks.states | AGREES * checks.agrees | STEPS * checks.steps
    corners = [min(c, _FAR) for c in (box.z0, box.z1, box.y0, box.y1, box.x0, box.x1)] if box else [0] * 6
    return (STATUSES.index(answer.status), state, bits, *grades, *[NONE] * (SLOTS - len(grades)), *corners)
