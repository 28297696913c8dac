"""From a model's words to an answer, and from an answer to words.

The project's own form is one JSON object, usually after the reasoning:

    {"box": {"z0": 10, "z1": 42, "y0": 80, "y1": 131, "x0": 64, "x1": 120}, "grades": {"size": 2, "number": 1, "percent_bml": 3}}

`read` takes that and whatever else models write, and never guesses. What counts, in this order:

1. Thinking is no answer: the text starts after the last thinking block. An answer tag, if there is one, holds the whole answer.
2. Of several JSON objects the last that grades every attribute counts. Later ones that grade some of them must agree with it.
3. Sentences count from "Final diagnosis:" on and after the last object, and everywhere where there is no such line and no object with a grade.
4. Whatever counts must agree. Two values for one attribute are a contradiction, and the attribute stays unread.

Problems, by code. Grades: W001 none stated, W002 contradictory, W003 outside the grade space, W004 given but no grade. Text: W005 JSON that
breaks off, W006 another finding's grades left out, W007 thinking without an end, W008 too long, read from its end. Box: W010 none stated,
W011 not a box of the convention, W012 outside the volume, W013 contradictory, W014 its size in voxels unknown or too fine, B001 reversed,
empty or negative. Writing: W021 other attributes than the question's, W022 an illegal grade. W031: no such convention.
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
from reasonknee.answer_boxes import CONVENTIONS, Convention, boxes_in, check_convention, is_frame, read_box, write_box
from reasonknee.answer_text import Found, Pairs, normal
from reasonknee.boxes import Box, Shape
from reasonknee.errors import DataError
from reasonknee.lesions import GradeSpace
from reasonknee.questions import QUESTIONS, Attribute, Question

__all__ = ["CONVENTIONS", "Answer", "Convention", "Status", "read", "read_box", "stated_grades", "write", "write_box"]

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
        raise DataError("W021", f"{question.id} is graded by {', '.join(expected)}, not by {', '.join(map(str, grades)) or 'nothing'}")
    for attribute in question.attributes:
        grade = grades[attribute.id]
        if isinstance(grade, bool) or not hasattr(grade, "__index__") or grade not in attribute.space.grades:
            last = attribute.space.grades[-1]
            raise DataError("W022", f"{ascii(grade)[:40]} is no grade of {question.id}.{attribute.id}", f"an integer from 0 to {last}")
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
    grammar: at.Grammar  # the same for sentences, with the grades of each attribute in words
    others: frozenset[str]  # normalised names of other questions' findings


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


_vocabularies: dict[str, _Vocabulary] = {}


def _vocabulary(question: Question) -> _Vocabulary:
    """Kept by id: a question's own hash goes through all of its texts, which takes longer than many a text is read in."""
    if question.id not in _vocabularies:
        _vocabularies[question.id] = _words_of(question)
    return _vocabularies[question.id]


def _words_of(question: Question) -> _Vocabulary:
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
    grammar = at.grammar(names.items(), {a.id: _meanings(a.space) for a in question.attributes})
    return _Vocabulary(keys, grammar, _all_findings() - prefixes - keys.keys())


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
    r"(?=\s*\.?\s*$|\s*[;(=]|\s*:(?:\s|$)|,\s+[^\s0-9]|\s*[-–—]\s+[^\s0-9])",  # not "2-2.9 mm", "5 mm", "0-3", "1/2", "1, 2"
    re.IGNORECASE,
)
# in the rest of such a text: a second grade, so that it lists options ("0: none, 1: small") or hesitates ("2 or 3")
_OPTIONS = re.compile(r"(?<![0-9.])[0-9]\s*[:=(|]|\bor\b|(?:grade|score)\s*[0-9]", re.IGNORECASE)


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
    if match is None or _OPTIONS.search(text, match.end()):
        return None
    grade = float(match[1])
    return grade if known.get(normal(text[match.end() :]), grade) == grade else None  # "2 (small)" where small is 1


def _without_others(others: frozenset[str], value: Any, dropped: list[str]) -> Any:
    """The value without what it says under the name of another question's finding."""
    if isinstance(value, Pairs):
        kept = Pairs()
        for key, item in value:
            if normal(key) in others:
                dropped.append(key)
            else:
                kept.append((key, _without_others(others, item, dropped)))
        return kept
    return [_without_others(others, item, dropped) for item in value] if isinstance(value, list) else value


def _speaks_of(others: frozenset[str], value: list[Any]) -> bool:
    for item in value:
        if isinstance(item, tuple):  # of an object
            if normal(item[0]) in others:
                return True
            item = item[1]
        if isinstance(item, list) and _speaks_of(others, item):
            return True
    return False


def _in_json(vocabulary: _Vocabulary, value: Any, into: Stated, within: Attribute | None = None) -> Stated:
    if isinstance(value, Pairs):
        for key, item in value:
            name = normal(key)
            attribute, soft = vocabulary.keys.get(name) or (within if name in _VALUE_KEYS else None, False)
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

_TAGS = re.compile(r"</?(?:think|thinking|answer)>|\\boxed\{$", re.IGNORECASE)
_FENCE = re.compile(r"```[a-z]{0,10}")
_OPEN_FENCE = re.compile(r"```[a-z]{0,10}\Z")


def read(question: Question, text: str, *, shape: Shape | None = None, box_convention: str = "canonical") -> Answer:
    """What the text answers; never raises for any text. `box_convention` says how to read a plain list of six numbers."""
    check_convention(box_convention)
    vocabulary = _vocabulary(question)
    problems: list[str] = []
    text = text.rstrip()
    thought, open_thought = at.thinking_end(text)
    begin = max(thought, len(text) - at.LONGEST)
    if begin > thought:
        problems.append(f"W008: the text is long, only its last {at.LONGEST} characters are read")
    body = text[begin:]
    tagged = at.tagged_answer(body)
    first, last = tagged or (0, len(body))
    part = body[first:last]
    values: list[Found] = []
    others: list[str] = []
    stated: Stated = {}
    start = len(part)
    if open_thought and not tagged:
        problems.append("W007: the thinking never ends, so no answer begins")
    else:
        values = _own_values(vocabulary, part, others)
        stated, start = _stated(question, vocabulary, part, values)
        start = 0 if tagged and start == len(part) else start  # a sentence inside an answer tag is the answer
    if values and not values[-1].whole:
        problems.append("W005: the JSON breaks off")
    if others:
        problems.append(f"W006: what is said of another finding is left out ({ascii(others[0])[:60]})")
    status, grades = _settled(question, stated, problems)
    boxes = _last_boxes(part, values) or (_last_boxes(body, _own_values(vocabulary, body, [])) if tagged else [])
    if begin > thought and any(is_frame(v.value) for v in values):  # frames outside a list: their list may have begun before the cut
        problems.append("W011: the boxes of some frames may be cut off")
        box = None
    else:
        box = _settled_box(question, boxes, box_convention, shape, problems)
    return Answer(status, grades, box, _reasoning(text[: begin + first + start], values), tuple(problems))


def stated_grades(question: Question, text: str) -> dict[str, set[float]]:
    """Every grade that sentences of the text state, by attribute, legal or not: what a reasoning says, whatever the answer is."""
    return at.stated(text[-at.LONGEST :], _vocabulary(question).grammar)


def _own_values(vocabulary: _Vocabulary, text: str, others: list[str]) -> list[Found]:
    return [
        found._replace(value=_without_others(vocabulary.others, found.value, others)) if _speaks_of(vocabulary.others, found.value) else found
        for found in at.json_values(text)
    ]


def _stated(question: Question, vocabulary: _Vocabulary, text: str, values: list[Found]) -> tuple[Stated, int]:
    """All values that count for each attribute, and where in the text the answer begins."""
    wanted = {a.id for a in question.attributes}
    stated, start, end = _in_objects(wanted, vocabulary, values)
    prose = _blanked(text, values)
    final = at.final_line(prose)
    if stated:
        spoken = _in_sentences(vocabulary, prose[min(end, final) if final is not None else end :])
        for attribute, given in spoken.items():
            if attribute not in stated or not stated[attribute] <= given:  # to discuss 1 and 2 after a 1 does not contradict it
                stated.setdefault(attribute, set()).update(given)
        start = min(start, final) if final is not None else start
    else:
        stated, start = _bare(question, _FENCE.sub("", prose)), 0
        if not stated and final is not None:
            stated, start = _in_sentences(vocabulary, prose[final:]), final
        if not stated.keys() >= wanted:
            stated, start = _in_sentences(vocabulary, prose), len(text)
    if values and not values[-1].whole:  # what breaks off states nothing, but it may contradict
        for attribute, given in _in_json(vocabulary, values[-1].value, {}).items():
            if attribute in stated:
                stated[attribute] |= given
    return stated, start


def _in_objects(wanted: set[str], vocabulary: _Vocabulary, values: list[Found]) -> tuple[Stated, int, int]:
    """From the last object back to one that grades everything: what they state, where the first starts and the last ends."""
    together: Stated = {}
    start = end = 0
    for found in reversed(values):
        given = _in_json(vocabulary, found.value, {}) if found.whole else {}
        if given:
            start, end = found.start, end or found.end
            for attribute, grades in given.items():
                together.setdefault(attribute, set()).update(grades)
            if given.keys() >= wanted:
                break
    return together, start, end


def _in_sentences(vocabulary: _Vocabulary, text: str) -> Stated:
    return {attribute: set(given) for attribute, given in at.stated(text, vocabulary.grammar).items()}


def _bare(question: Question, text: str) -> Stated:
    """A text that is nothing but the grade."""
    line = text.strip(" \t\r\n*_`\"'.")
    grade = _grade(question.attributes[0].space, line) if len(question.attributes) == 1 and "\n" not in line else None
    return {} if grade is None else {question.attributes[0].id: {grade}}


def _blanked(text: str, values: list[Found]) -> str:
    """The text with blanks where JSON stands."""
    parts, pos = [], 0
    for found in values:
        parts += [text[pos : found.start], " " * (found.end - found.start)]
        pos = found.end
    return "".join([*parts, text[pos:]])


def _settled(question: Question, stated: Stated, problems: list[str]) -> tuple[Status, dict[str, int]]:
    grades: dict[str, int] = {}
    status: Status = "parsed"
    for attribute in question.attributes:
        given = stated.get(attribute.id, set())
        grade = next(iter(given), None)
        if len(given) == 1 and grade in attribute.space.grades:
            grades[attribute.id] = int(grade)  # type: ignore[arg-type]
        elif len(given) == 1 and grade is not None:
            problems.append(f"W003: {grade:g} is no grade of {attribute.id}, which has 0 to {attribute.space.grades[-1]}")
            status = "invalid"
        else:
            if not given:
                problems.append(f"W001: no grade for {attribute.id}")
            elif len(given) == 1:
                problems.append(f"W004: what is given for {attribute.id} is no grade")
            else:
                several = sorted("no grade" if g is None else f"{g:g}" for g in given)
                problems.append(f"W002: {attribute.id} is given as {' and '.join(several[:4])}")
            status = "unparsed" if status == "parsed" else status
    return status, grades


def _last_boxes(text: str, values: list[Found]) -> list[Any]:
    """All that the last value with a box gives as one. A list by itself is a box only if the text before it says so."""
    for found in reversed(values):
        boxes = list(boxes_in(found.value)) if found.whole else []
        if not boxes and found.whole and isinstance(found.value, list) and "box" in text[max(0, found.start - 40) : found.start].casefold():
            boxes = [found.value]
        if is_frame(found.value):  # frames line by line, without a list around them
            return [[other.value for other in values if other.whole and is_frame(other.value)]]
        if boxes:
            return boxes
    return []


def _settled_box(question: Question, given: Iterable[Any], convention: str, shape: Shape | None, problems: list[str]) -> Box | None:
    try:
        boxes = {read_box(value, convention, shape) for value in given}
        if len(boxes) > 1:
            raise DataError("W013", "the answer gives different boxes")
    except DataError as error:
        problems.append(f"{error.code}: {error.message}")
        return None
    if not boxes and question.region.labels:  # a region without mask labels has no box
        problems.append("W010: no box")
    return next(iter(boxes), None)


def _reasoning(before: str, values: list[Found]) -> str:
    """The text before the answer; if there is none, what the answer itself calls its reasoning."""
    text = before[-at.LONGEST :]
    text = (_TAGS.sub("", text) if "<" in text or "\\" in text else text).strip()
    text = (_OPEN_FENCE.sub("", text) if "```" in text else text).rstrip("{*#_ \n")  # and what else only opens the answer
    if not text and values and isinstance(values[-1].value, Pairs):
        text = next((item for key, item in values[-1].value if normal(key) == "reasoning" and isinstance(item, str)), "").strip()
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")  # a lone surrogate could not be stored
