"""From a model's words to an answer, and from an answer to words.

The project's own form is one JSON object, usually after the reasoning:

    {"box": {"z0": 10, "z1": 42, "y0": 80, "y1": 131, "x0": 64, "x1": 120}, "grades": {"size": 2, "number": 1, "percent_bml": 3}}

`read` takes that and whatever else models write, and never guesses. What counts, in this order:

1. Thinking is no answer: the text starts after the last thinking block. An answer tag, if there is one, holds the whole answer.
2. Of several JSON objects the last that grades every attribute counts. Later ones that grade some of them must agree with it.
3. Sentences count from "Final diagnosis:" on and after the last object, and everywhere where there is no such line and no object with a grade.
4. Whatever counts must agree. Two values for one attribute are a contradiction, and the attribute stays unread.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from reasonknee import answer_text as at
from reasonknee.answer_boxes import CONVENTIONS, Convention, boxes_in, check_convention, read_box, write_box
from reasonknee.answer_text import Found, Pairs, normal
from reasonknee.boxes import Box, Shape
from reasonknee.errors import DataError
from reasonknee.lesions import GradeSpace
from reasonknee.questions import QUESTIONS, Attribute, Question

__all__ = ["CONVENTIONS", "Answer", "Convention", "Status", "read", "read_box", "write", "write_box"]

Status = Literal["parsed", "invalid", "unparsed"]


@dataclass(frozen=True)
class Answer:
    """What a text says about a question.

    `status` is about the grades: parsed if every attribute has a legal one, invalid if one was stated that its grade space does not have,
    else unparsed. `grades` holds the legal ones in any case. Each of `problems` is a stable code, a colon and words.
    """

    status: Status
    grades: dict[str, int]
    box: Box | None
    reasoning: str
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "grades": dict(self.grades),
            "box": self.box.as_dict() if self.box else None,
            "reasoning": self.reasoning,
            "problems": list(self.problems),
        }


def write(question: Question, grades: Mapping[str, int], box: Box | None) -> str:
    """The answer in the project's form, on one line."""
    expected = [a.id for a in question.attributes]
    if set(grades) != set(expected):
        raise DataError("A021", f"{question.id} is graded by {', '.join(expected)}, not by {', '.join(map(str, grades)) or 'nothing'}")
    for attribute in question.attributes:
        grade = grades[attribute.id]
        if isinstance(grade, (bool, float, str)) or grade not in attribute.space.grades:
            last = attribute.space.grades[-1]
            raise DataError("A022", f"{ascii(grade)[:40]} is no grade of {question.id}.{attribute.id}", f"an integer from 0 to {last}")
    plain = {id_: operator.index(grades[id_]) for id_ in expected}
    return json.dumps({"box": write_box(box), "grades": plain})


# --- what things are called -------------------------------------------------------------------------------------------------------

_WRAPPERS = ("MOAKS_scores", "MOAKS_grade")
# What models call an attribute besides its id, its title and upstream's key.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "number": ("count", "number of BML", "number of BMLs"),
    "percent_bml": ("percent", "percentage", "% BML", "BML percentage", "percentage of lesion that is BML", "% of lesion", "percent of lesion"),
    "full_thickness_pct": ("depth", "full thickness", "percent full thickness", "% full thickness", "full thickness percent"),
    "presence": ("present",),
    "tear_location": ("location of tear",),
    "complete_tear": ("tear",),
    "insertion_bml_cyst": ("insertion BML/cyst", "BML/cyst at insertion", "BML/cyst at site of insertion", "associated with BML/cyst"),
    "signal_abnormality": ("signal",),
}
# What names the grade where only one is asked for. The soft ones may as well hold a sentence, which is then no statement.
_FIRM = ("grade", "score")
_SOFT = ("severity", "answer", "result", "rating", "diagnosis", *(f"final {w}" for w in ("grade", "score", "answer", "diagnosis")), *_WRAPPERS)
_SOFT += ("MOAKS score", "MOAKS grades", "MOAKS", "grades", "scores")
_VALUE_KEYS = frozenset({"grade", "score", "value"})  # {"size": {"grade": 2}}
_YES_NO = {"no": 0, "false": 0, "yes": 1, "true": 1}


@dataclass(frozen=True)
class _Vocabulary:
    keys: dict[str, tuple[Attribute, bool]]  # normalised JSON key -> its attribute, and whether it is soft
    names: at.Phrases[str]  # the same for sentences
    meanings: dict[str, at.Phrases[int]]  # the grades of each attribute in words
    own: frozenset[str]  # normalised names of this finding


def _findings(question: Question) -> set[str]:
    """What a question's finding is called: by us, by upstream, and with the words that upstream mixes."""
    region, lesion = question.region, question.lesion
    upstream = next(part for part in question.attributes[0].upstream_path if part not in _WRAPPERS)
    names = {question.id, upstream, f"{region.id} {lesion.id}", f"{region.id} {lesion.title}", f"{region.title} {lesion.title}"}
    swaps = [("meniscus", "meniscal")] + ([("trochlea", "anterior")] if region.structure == "femur" else [])
    for one, other in swaps:
        names |= {name.replace(one, other) for name in names} | {name.replace(other, one) for name in names}
    return names


@cache
def _all_findings() -> frozenset[str]:
    return frozenset(normal(name) for question in QUESTIONS.values() for name in _findings(question))


@cache
def _vocabulary(question: Question) -> _Vocabulary:
    findings = _findings(question)
    prefixes = {normal(name) for name in (*findings, question.lesion.id, question.lesion.title)}
    single = len(question.attributes) == 1
    keys: dict[str, tuple[Attribute, bool]] = {}
    names: dict[str, str] = {}
    for attribute in question.attributes:
        leaf = attribute.upstream_path[-1]
        firm = (attribute.id, attribute.title, leaf, leaf.split(" (")[0], *_SPELLINGS.get(attribute.id, ()), *(_FIRM if single else ()))
        soft = (*_SOFT, *sorted(findings), question.lesion.id, question.lesion.title) if single else ()
        for name in firm:
            keys[normal(name)] = (attribute, False)
            for prefix in prefixes:
                keys.setdefault(prefix + normal(name), (attribute, False))
        for name in soft:
            keys.setdefault(normal(name), (attribute, True))
        names.update(dict.fromkeys((*soft, *firm), attribute.id))
    meanings = {a.id: at.phrases(_meanings(a.space)) for a in question.attributes}
    return _Vocabulary(keys, at.phrases(names.items()), meanings, frozenset(prefixes))


def _meanings(space: GradeSpace) -> Iterator[tuple[str, int]]:
    for grade, meaning in enumerate(space.meanings):
        yield from ((text, grade) for text in {meaning, meaning.split(":")[0], meaning.split(" (")[0]})
    if space.scale == "binary":
        yield from _YES_NO.items()


@cache
def _meaning_keys(space: GradeSpace) -> dict[str, int]:
    return {normal(text): grade for text, grade in _meanings(space)}


# --- grades in JSON ---------------------------------------------------------------------------------------------------------------

Grade = float | None  # None: something was given that is no grade at all
Stated = dict[str, set[Grade]]  # attribute id -> every value it was given

_GRADE_TEXT = re.compile(
    r"(?:(?:MOAKS\s*)?(?:grade|score|level|class|type|category)\s*[:=]?\s*)?([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
    r"(?=\s*$|\s*[;(=]|\s*:(?:\s|$)|[,.](?:\s|$)|\s*[-–—]\s+[^\s0-9])",  # not "2-2.9 mm", "5 mm", "0-3", "1/2"
    re.IGNORECASE,
)


def _grade(space: GradeSpace, value: Any) -> Grade:
    if isinstance(value, bool):
        return int(value) if space.scale == "binary" else None
    if isinstance(value, (int, float)):
        return None if math.isnan(value) else float(value)
    if not isinstance(value, str):
        return None
    text, known = value[:400].strip(), _meaning_keys(space)
    if normal(text) in known:
        return known[normal(text)]
    match = _GRADE_TEXT.match(text)
    if match is None:
        return None
    grade = float(match[1])
    return grade if known.get(normal(text[match.end() :]), grade) == grade else None  # "2 (small)" where small is 1


def _without_others(vocabulary: _Vocabulary, value: Any, dropped: list[str]) -> Any:
    """The value without what it says under the name of another question's finding."""
    if isinstance(value, Pairs):
        kept = Pairs()
        for key, item in value:
            name = normal(key)
            if name in _all_findings() and name not in vocabulary.own and name not in vocabulary.keys:
                dropped.append(key)
            else:
                kept.append((key, _without_others(vocabulary, item, dropped)))
        return kept
    if isinstance(value, list):
        return [_without_others(vocabulary, item, dropped) for item in value]
    return value


def _in_json(vocabulary: _Vocabulary, value: Any, into: Stated, within: Attribute | None = None) -> Stated:
    if isinstance(value, Pairs):
        for key, item in value:
            attribute, soft = vocabulary.keys.get(normal(key), (within if normal(key) in _VALUE_KEYS else None, False))
            if isinstance(item, Pairs) or (isinstance(item, list) and (attribute is None or any(isinstance(i, Pairs) for i in item))):
                _in_json(vocabulary, item, into, attribute or within)
            elif attribute is not None and item is not None:
                grade = _grade(attribute.space, item)
                if grade is not None or not soft:
                    into.setdefault(attribute.id, set()).add(grade)
    elif isinstance(value, list):
        for item in value:
            _in_json(vocabulary, item, into, within)
    return into


# --- reading ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """The grades that count, and where in the text they begin."""

    stated: Stated
    start: int


def read(question: Question, text: str, *, shape: Shape | None = None, box_convention: str = "canonical") -> Answer:
    """What the text answers; never raises for any text. `box_convention` says how to read a plain list of six numbers."""
    check_convention(box_convention)
    vocabulary = _vocabulary(question)
    problems: list[str] = []
    thought, open_thought = at.thinking_end(text)
    begin = max(thought, len(text) - at.LONGEST)
    if begin > thought:
        problems.append(f"A008: the text is long, only its last {at.LONGEST} characters are read")
    body = text[begin:]
    tagged = at.tagged_answer(body)
    first, last = tagged or (0, len(body))
    dropped: list[str] = []
    values = [v._replace(value=_without_others(vocabulary, v.value, dropped)) for v in at.json_values(body[first:last])]
    if open_thought and not tagged:
        problems.append("A007: the thinking never ends, so there is no answer")
        reading, values = _Reading({}, len(body)), []
    else:
        reading = _reading(question, vocabulary, body[first:last], values)
        if values and not values[-1].whole:
            problems.append("A005: the JSON breaks off")
    if dropped:
        problems.append(f"A006: grades for another finding are left out ({ascii(dropped[0])[:60]})")
    grades, status = _settle(question, reading.stated, problems)
    box = _box(question, body[first:last], values, problems, box_convention, shape) if not tagged else None
    if tagged:
        inside = [v for v in values if v.whole and any(True for _ in boxes_in(v.value))]
        if inside:
            box = _box(question, body[first:last], values, problems, box_convention, shape)
        else:
            everywhere = [v._replace(value=_without_others(vocabulary, v.value, [])) for v in at.json_values(body)]
            box = _box(question, body, everywhere, problems, box_convention, shape)
    return Answer(status, grades, box, _reasoning(text[: begin + first + reading.start], values), tuple(problems))
