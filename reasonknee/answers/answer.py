"""From a model's words to an answer, and from an answer to words.

The project's own form is one JSON object, usually after the reasoning:

    {"box": {"z0": 10, "z1": 42, "y0": 80, "y1": 131, "x0": 64, "x1": 120}, "grades": {"size": 2, "number": 1,
    "percent_bml": 3}}

`read` takes that and whatever else models write, and never guesses. What counts, in this order:

1. Thinking is no answer: the text starts after the last thinking block. An answer tag, if there is one, holds
   the whole answer.
2. Of several JSON objects the last that grades every attribute counts. Later ones that grade some of them
   must agree with it, and so must an earlier one if only an "or" stands between them.
3. Sentences count from "Final diagnosis:" on and after the last object, and everywhere where there is no such
   line and no object with a grade.
4. Whatever counts must agree. Two values for one attribute are a contradiction, and the attribute stays
   unread.

Problems, by code. Grades: W001 none stated, W002 contradictory, W003 outside the grade space, W004 given but
no grade. Text: W005 JSON that breaks off, W006 another finding's grades left out, W007 thinking without an
end, W008 too long, read from its end. Box: W010 none stated, W011 not a box of the convention, W012 outside
the volume, W013 contradictory, W014 its size in voxels unknown or too fine, B001 reversed, empty or negative.
Writing: W021 other attributes than the question's, W022 an illegal grade. W031: no such convention.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from reasonknee.answers import text as at
from reasonknee.answers.boxes import (
    CONVENTIONS,
    Convention,
    boxes_in,
    check_convention,
    is_frame,
    read_box,
    write_box,
)
from reasonknee.answers.grades import Stated, Vocabulary, grade_of, in_json, vocabulary_of, without_others
from reasonknee.answers.text import Pairs, Span, normal
from reasonknee.boxes import Box, Shape
from reasonknee.errors import DataError
from reasonknee.questions import Question

__all__ = [
    "CONVENTIONS",
    "Answer",
    "Convention",
    "Problem",
    "Status",
    "read",
    "read_box",
    "stated_grades",
    "write",
    "write_box",
]

Status = Literal["parsed", "invalid", "unparsed"]
"""How far a text could be read: all of it, some of it illegal, or nothing."""


class Problem(NamedTuple):
    """What is odd in an answer: a stable code, and words."""

    code: str
    text: str

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


@dataclass(frozen=True)
class Answer:
    """What a text says about a question.

    `status` is about the grades: parsed if every attribute has a legal one, invalid if one was stated that
    its grade space does not have, else unparsed. `grades` holds the legal ones in any case.
    """

    status: Status
    grades: dict[str, int]
    box: Box | None
    reasoning: str
    problems: tuple[Problem, ...]

    def as_dict(self) -> dict[str, Any]:
        """The answer as JSON has it; the box as six named numbers, or None."""
        return {
            "status": self.status,
            "grades": dict(self.grades),
            "box": self.box.as_dict() if self.box else None,
            "reasoning": self.reasoning,
            "problems": [problem._asdict() for problem in self.problems],
        }


def write(
    question: Question,
    grades: Mapping[str, int],
    box: Box | None,
    *,
    partial: bool = False,
    boxed: bool = True,
) -> str:
    """The answer in the project's form, on one line.

    `partial` lets attributes be missing whose grade nobody knows; without `boxed`, no box was asked for.
    """
    expected = [a.id for a in question.attributes if not partial or a.id in grades]
    if set(grades) != set(expected) or not grades:
        raise DataError(
            "W021",
            f"{question.id} is graded by {', '.join(expected)}, not by "
            f"{', '.join(map(str, grades)) or 'nothing'}",
        )
    for attribute in map(question.attribute, expected):
        grade = grades[attribute.id]
        if isinstance(grade, bool) or not hasattr(grade, "__index__") or grade not in attribute.space.grades:
            last = attribute.space.grades[-1]
            raise DataError(
                "W022",
                f"{ascii(grade)[:40]} is no grade of {question.id}.{attribute.id}",
                f"an integer from 0 to {last}",
            )
    plain = {id_: operator.index(grades[id_]) for id_ in expected}
    return json.dumps({**({"box": write_box(box)} if boxed else {}), "grades": plain})


# --- reading ------------------------------------------------------------------------------------------------

_TAGS = re.compile(r"</?(?:think|thinking|answer)>|\\boxed\{$", re.IGNORECASE)
_FENCE = re.compile(r"```[a-z]{0,10}")
# all that stands between two answers if they are one choice; the second may be fenced
_OR = re.compile(
    r"\W{0,9}\bor(?:\W{1,9}(?:else|maybe|perhaps|possibly))?\b\W{0,9}(?:```[a-z]{0,10}\s{0,9})?",
    re.IGNORECASE,
)
_OPEN_FENCE = re.compile(r"```[a-z]{0,10}\Z")


def read(
    question: Question, text: str, *, shape: Shape | None = None, box_convention: str = "canonical"
) -> Answer:
    """What the text answers; never raises for any text.

    `box_convention` says how to read a plain list of six numbers.
    """
    check_convention(box_convention)
    vocabulary = vocabulary_of(question)
    problems: list[Problem] = []
    text = text.rstrip()
    thought, open_thought = at.thinking_end(text)
    begin = max(thought, len(text) - at.LONGEST)
    if begin > thought:
        problems.append(Problem("W008", f"the text is long, only its last {at.LONGEST} characters are read"))
    body = text[begin:]
    tagged = at.tagged_answer(body)
    first, last = tagged or (0, len(body))
    part = body[first:last]
    values: list[Span] = []
    others: list[str] = []
    stated: Stated = {}
    start = len(part)
    if open_thought and not tagged:
        problems.append(Problem("W007", "the thinking never ends, so no answer begins"))
    else:
        values = _own_values(vocabulary, part, others)
        stated, start = _stated(question, vocabulary, part, values)
        start = 0 if tagged and start == len(part) else start  # a sentence inside an answer tag is the answer
    if values and not values[-1].whole:
        problems.append(Problem("W005", "the JSON breaks off"))
    if others:
        problems.append(
            Problem("W006", f"what is said of another finding is left out ({ascii(others[0])[:60]})")
        )
    status, grades = _settled(question, stated, problems)
    boxes = _last_boxes(part, values) or (
        _last_boxes(body, _own_values(vocabulary, body, [])) if tagged else []
    )
    if begin > thought and any(
        is_frame(v.value) for v in values
    ):  # frames outside a list: their list may have begun before the cut
        problems.append(Problem("W011", "the boxes of some frames may be cut off"))
        box = None
    else:
        box = _settled_box(question, boxes, box_convention, shape, problems)
    return Answer(status, grades, box, _reasoning(text[: begin + first + start], values), tuple(problems))


def stated_grades(question: Question, text: str) -> dict[str, set[float]]:
    """Every grade that sentences of the text state, by attribute, legal or not: what a reasoning says,
    whatever the answer is."""
    return at.stated(text[-at.LONGEST :], vocabulary_of(question).grammar)


def _own_values(vocabulary: Vocabulary, text: str, others: list[str]) -> list[Span]:
    return [
        span._replace(value=without_others(vocabulary, span.value, others)) for span in at.json_values(text)
    ]


def _stated(question: Question, vocabulary: Vocabulary, text: str, values: list[Span]) -> tuple[Stated, int]:
    """All values that count for each attribute, and where in the text the answer begins."""
    asked = {a.id for a in question.attributes}
    stated, start, end = _in_objects(asked, vocabulary, text, values)
    prose = _blanked(text, values)
    final = at.final_line(prose)
    if stated:
        spoken = _in_sentences(vocabulary, prose[min(end, final) if final is not None else end :])
        for attribute, given in spoken.items():
            if (
                attribute not in stated or not stated[attribute] <= given
            ):  # to discuss 1 and 2 after a 1 does not contradict it
                stated.setdefault(attribute, set()).update(given)
        start = min(start, final) if final is not None else start
    else:
        stated, start = _bare(question, _FENCE.sub("", prose)), 0
        if not stated and final is not None:
            stated, start = _in_sentences(vocabulary, prose[final:]), final
        if not stated.keys() >= asked:
            stated, start = _in_sentences(vocabulary, prose), len(text)
    if values and not values[-1].whole:  # what breaks off states nothing, but it may contradict
        for attribute, given in in_json(vocabulary, values[-1].value, {}).items():
            if attribute in stated:
                stated[attribute] |= given
    return stated, start


def _in_objects(
    asked: set[str], vocabulary: Vocabulary, text: str, values: list[Span]
) -> tuple[Stated, int, int]:
    """From the last object back to one that grades everything: what they state, where the first starts
    and the last ends."""
    together: Stated = {}
    start = end = 0
    complete = False
    for span in reversed(values):
        if complete and not _OR.fullmatch(text, span.end, start):
            break
        given = in_json(vocabulary, span.value, {}) if span.whole else {}
        if given:
            start, end = span.start, end or span.end
            for attribute, grades in given.items():
                together.setdefault(attribute, set()).update(grades)
            complete = complete or given.keys() >= asked
        elif complete:
            break
    return together, start, end


def _in_sentences(vocabulary: Vocabulary, text: str) -> Stated:
    return {attribute: set(given) for attribute, given in at.stated(text, vocabulary.grammar).items()}


def _bare(question: Question, text: str) -> Stated:
    """A text that is nothing but the grade."""
    line = text.strip(" \t\r\n*_`\"'.")
    grade = (
        grade_of(question.attributes[0].space, line)
        if len(question.attributes) == 1 and "\n" not in line
        else None
    )
    return {} if grade is None else {question.attributes[0].id: {grade}}


def _blanked(text: str, values: list[Span]) -> str:
    """The text with blanks where JSON stands."""
    parts, pos = [], 0
    for span in values:
        parts += [text[pos : span.start], " " * (span.end - span.start)]
        pos = span.end
    return "".join([*parts, text[pos:]])


def _settled(question: Question, stated: Stated, problems: list[Problem]) -> tuple[Status, dict[str, int]]:
    grades: dict[str, int] = {}
    status: Status = "parsed"
    for attribute in question.attributes:
        given = stated.get(attribute.id, set())
        grade = next(iter(given), None)
        if len(given) == 1 and grade in attribute.space.grades:
            grades[attribute.id] = int(grade)  # type: ignore[arg-type]
        elif len(given) == 1 and grade is not None:
            problems.append(
                Problem(
                    "W003",
                    f"{grade:g} is no grade of {attribute.id}, which has 0 to {attribute.space.grades[-1]}",
                )
            )
            status = "invalid"
        else:
            if not given:
                problems.append(Problem("W001", f"no grade for {attribute.id}"))
            elif len(given) == 1:
                problems.append(Problem("W004", f"what is given for {attribute.id} is no grade"))
            else:
                several = sorted("no grade" if g is None else f"{g:g}" for g in given)
                problems.append(Problem("W002", f"{attribute.id} is given as {' and '.join(several[:4])}"))
            status = "unparsed" if status == "parsed" else status
    return status, grades


def _last_boxes(text: str, values: list[Span]) -> list[Any]:
    """All that the last value with a box gives as one.

    A list by itself is a box only if the text before it says so.
    """
    for span in reversed(values):
        boxes = list(boxes_in(span.value)) if span.whole else []
        if (
            not boxes
            and span.whole
            and isinstance(span.value, list)
            and not isinstance(span.value, Pairs)
            and "box" in text[max(0, span.start - 40) : span.start].casefold()
        ):
            tagged = text.endswith("<|box_start|>", 0, span.start)  # which names the convention
            boxes = [f"<|box_start|>{span.value}<|box_end|>" if tagged else span.value]
        if is_frame(span.value):  # frames line by line, without a list around them
            return [[other.value for other in values if other.whole and is_frame(other.value)]]
        if boxes:
            return boxes
    return []


def _settled_box(
    question: Question, given: Iterable[Any], convention: str, shape: Shape | None, problems: list[Problem]
) -> Box | None:
    try:
        boxes = {read_box(value, convention, shape) for value in given}
        if len(boxes) > 1:
            raise DataError("W013", "the answer gives different boxes")
    except DataError as error:
        problems.append(Problem(error.code, error.message))
        return None
    if not boxes and question.region.labels:  # a region without mask labels has no box
        problems.append(Problem("W010", "no box"))
    return next(iter(boxes), None)


def _reasoning(before: str, values: list[Span]) -> str:
    """The text before the answer; if there is none, what the answer itself calls its reasoning."""
    text = before[-at.LONGEST :]
    text = (_TAGS.sub("", text) if "<" in text or "\\" in text else text).strip()
    text = (_OPEN_FENCE.sub("", text) if "```" in text else text).rstrip(
        "{*#_ \n"
    )  # and what else only opens the answer
    if not text and values and isinstance(values[-1].value, Pairs):
        text = next(
            (item for key, item in values[-1].value if normal(key) == "reasoning" and isinstance(item, str)),
            "",
        ).strip()
    return (
        text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
    )  # a lone surrogate could not be stored
