"""Predictions from a JSON Lines file, aligned with the ground truth.

What a line is stands in `lines`. Ids that are missing, unknown or twice are counted. The file is read in
pieces, which several processes take turns to parse: texts, the slow part, never are in memory all at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reasonknee.answers import Answer, Problem
from reasonknee.boxes import Shape
from reasonknee.errors import DataError, StorageError, shown
from reasonknee.layout.strict_text import MAX_LINE, parse_json
from reasonknee.questions import QUESTIONS, Question
from reasonknee.scoring.lines import (
    LINE,
    MISSING,
    NO_BOX,
    NOTHING,
    UNPARSED,
    UNREADABLE,
    BoxReading,
    answer_of,
    checked,
    encoded,
    line_fields,
)
from reasonknee.scoring.truth import NONE, SLOTS, Truth
from reasonknee.system.files import sha256_of
from reasonknee.system.workers import worker_pool

PREDICTIONS = "predictions.jsonl"  # as `reasonknee ask` writes them,
PREDICTIONS_STAMP = "predictions.stamp.json"  # and beside them what made them
_PIECE = 1 << 19  # bytes that a process gets at a time, and the rest of the last line
_SHOWN = 10  # ids that are shown of those that do not fit
Problems = tuple[Problem, ...]


@dataclass
class Predictions:
    """One row per quintuple of the truth, in its order; the arrays are the fields of LINE."""

    grades: np.ndarray
    boxes: np.ndarray
    box_state: np.ndarray
    status: np.ndarray
    reasoning: np.ndarray
    offset: np.ndarray  # -1 if missing
    confidence: np.ndarray
    problems: dict[int, Problems] = field(default_factory=dict)  # of the rows that have some
    lines: int = 0
    aside: int = 0  # lines of questions that are left out on purpose
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
            confidence=np.full(n, np.nan),
        )

    def put(self, row: int, question: Question, answer: Answer) -> None:
        self.take(np.array([row]), np.array([encoded(question, answer)], LINE))

    def take(self, rows: np.ndarray, lines: np.ndarray) -> None:
        """Lines, as LINE has them, in their rows."""
        self.boxes[rows] = lines["box"]
        for name in ("grades", "box_state", "status", "reasoning", "offset", "confidence"):
            getattr(self, name)[rows] = lines[name]

    def same(self, row: int, line: np.ndarray) -> bool:
        return bool(
            (self.grades[row] == line["grades"]).all()
            and (self.boxes[row] == line["box"]).all()
            and self.box_state[row] == line["box_state"]
        )


class _Lines(NamedTuple):
    """What a piece of the file says: an id and numbers for each line, and what is odd in some."""

    ids: list[str]
    numbers: np.ndarray
    problems: dict[int, Problems]


def read_predictions(
    path: Path, truth: Truth, reading: BoxReading | str = "canonical", workers: int = 1
) -> Predictions:
    """Every line of the file in its place; with several `workers` the texts are parsed by processes."""
    reading = BoxReading(reading) if isinstance(reading, str) else reading
    reading.check()
    predicted = Predictions.empty(len(truth))
    contradictory: set[int] = set()
    seen: dict[Problems, Problems] = {}  # few texts are odd in a way of their own
    for ids, numbers, problems in _parsed(path, truth.shapes(), reading, workers):
        predicted.lines += len(ids)
        rows = np.array([truth.rows.get(id_, NONE) for id_ in ids], np.int64)
        fresh = np.zeros(len(ids), bool)
        fresh[np.unique(rows, return_index=True)[1]] = True
        fresh &= (rows != NONE) & (predicted.offset[rows] < 0)
        predicted.take(rows[fresh], numbers[fresh])
        for line, told in problems.items():
            if fresh[line]:
                predicted.problems[int(rows[line])] = seen.setdefault(told, told)
        for line in np.flatnonzero(~fresh).tolist():
            row = int(rows[line])
            if row == NONE and ids[line] in truth.aside:
                predicted.aside += 1
            elif row == NONE:
                predicted.unknown += 1
                _show(predicted.unknown_ids, ids[line])
            else:
                predicted.repeated += 1
                _show(predicted.repeated_ids, ids[line])
                if not predicted.same(row, numbers[line]):
                    contradictory.add(row)
    predicted.contradictory = len(contradictory)
    for row in contradictory:  # which of the two is meant is not ours to guess
        nothing = np.array([(predicted.offset[row], UNPARSED, UNREADABLE, 0, *NOTHING)], LINE)
        predicted.take(np.array([row]), nothing)
        predicted.problems[row] = (Problem("S013", "the id is repeated with another answer"),)
    _refuse_if_useless(predicted, path)
    return predicted


def _refuse_if_useless(predicted: Predictions, path: Path) -> None:
    if not predicted.lines:
        raise DataError(
            "S011", f"{path.name} holds no prediction", 'one JSON object a line: {"id": ..., "response": ...}'
        )
    if predicted.unknown + predicted.aside == predicted.lines:
        first = f"the first is {ascii(predicted.unknown_ids[0])[:80]}" if predicted.unknown_ids else ""
        where = f"{path.name}: none of its {predicted.lines} ids is in this split"
        raise DataError("S012", where + " and these questions" * bool(predicted.aside), first)


def _show(ids: list[str], id_: str) -> None:
    if len(ids) < _SHOWN:
        ids.append(ascii(id_)[1:81].rstrip("'\""))


# --- reading lines ------------------------------------------------------------------------------------------


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
                text += (
                    b"" if text.endswith(b"\n") else file.readline(MAX_LINE + 1)
                )  # a line that is longer still is refused by its reader
                yield _Piece(number, offset, text)
                number += text.count(b"\n")
                offset += len(text)
    except OSError as error:
        raise StorageError(
            "T000", f"{path}: {error.strerror}", "check the path and its permissions"
        ) from None


def _parsed(path: Path, shapes: dict[str, Shape], reading: BoxReading, workers: int) -> Iterator[_Lines]:
    pieces = _pieces(path)
    first = next(pieces, _Piece(0, 0, b""))
    if workers <= 1 or len(first.text) < _PIECE:
        yield from map(_Reader(path.name, shapes, reading).lines, chain([first], pieces))
        return
    with worker_pool(workers, _start, (path.name, shapes, reading)) as pool:
        waiting: deque[Future[_Lines]] = deque()
        try:
            for piece in chain([first], pieces):
                waiting.append(pool.submit(_work, piece))
                if (
                    len(waiting) > 2 * workers
                ):  # what waits is bounded, and results come in the order of lines
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


_reader: list[_Reader] = []


def _start(name: str, shapes: dict[str, Shape], reading: BoxReading) -> None:
    _reader[:] = [_Reader(name, shapes, reading)]


def _work(piece: _Piece) -> _Lines:
    return _reader[0].lines(piece)


@dataclass(frozen=True)
class _Reader:
    name: str
    shapes: dict[str, Shape]
    reading: BoxReading

    def lines(self, piece: _Piece) -> _Lines:
        ids: list[str] = []
        numbers: list[tuple[object, ...]] = []
        problems: dict[int, Problems] = {}
        after = piece.offset
        for number, raw in enumerate(piece.text.split(b"\n"), start=piece.number + 1):
            offset, after = after, after + len(raw) + 1
            if not raw.strip():
                continue
            where = f"{self.name}:{number}"
            fields = checked(line_fields(raw, where), where)
            volume, _, question_id = fields["id"].rpartition("-")
            question, shape = QUESTIONS.get(question_id), self.shapes.get(volume)
            if question is None or shape is None:
                numbers.append((offset, UNPARSED, NO_BOX, 0, *NOTHING))
            else:
                answer = answer_of(question, fields, shape, self.reading, where)
                numbers.append(encoded(question, answer, offset, fields.get("confidence")))
                if answer.problems:
                    problems[len(ids)] = answer.problems
            ids.append(fields["id"])
        return _Lines(ids, np.array(numbers, LINE), problems)


# --- what made them -----------------------------------------------------------------------------------------


def stamp_at(predictions: Path) -> dict[str, Any] | None:
    """The stamp of a file of predictions; None where it carries none, or was changed since."""
    path = predictions.with_name(PREDICTIONS_STAMP)
    if predictions.name != PREDICTIONS or not path.is_file():
        return None
    stamp: dict[str, Any] = parse_json(path.read_bytes(), path.name)
    own = stamp.get("kind") == "reasonknee.run" and stamp.get("predictions") == sha256_of(predictions)
    return stamp if own else None


def stamp_line(predictions: Path) -> str:
    """What made a file of predictions, in a line; empty where it carries no stamp."""
    stamp = stamp_at(predictions)
    if stamp is None:
        path = predictions.with_name(PREDICTIONS_STAMP)
        if predictions.name != PREDICTIONS or not path.is_file():
            return ""
        return f"{path.name} is not of these predictions: they were changed after the run"
    about, view = stamp["model"], " ".join(str(v) for v in stamp["view"].values())
    revision = shown(about.get("revision") or "unknown")
    adapter = f", adapter {shown(about['adapter'])}" if about.get("adapter") else ""
    control = f", control {stamp['control']}" if stamp["control"] else ""
    versions = ", ".join(f"{package} {version}" for package, version in stamp["versions"].items())
    return (
        f"asked: {shown(about.get('model'))} (revision {revision}{adapter}), setting {stamp['setting']}"
        f"{control}, view {shown(view)}, prompts {stamp['prompts']}, {shown(versions, 200)}; "
        f"{stamp['answers']:,} of {stamp['rows']:,} answered"
    )
