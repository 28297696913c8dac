"""What texts state, held against the facts of their row.

Nothing here knows how the builder words a text: a step of the reasoning is read for the grades, slices, rows,
columns and regions that it names, a wording for the question that it asks. The facts come from the question
table, the grades and the box. So a wrong number is a wrong number, whichever module wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from reasonknee.boxes import Box, Shape
from reasonknee.questions import ATTRIBUTES, QUESTIONS, REGIONS, Question
from reasonknee.questions.lesions import EFFUSION_SEEN, MORPHOLOGY_SEEN

_GRADE = re.compile(r"\bgrade ([0-9]+)\b", re.IGNORECASE)
# A grade that a sentence weighs and does not give, or that is of another scale.
_REJECTED = re.compile(
    r"\b(?:not|than|nor|neither|no|short of|below|above|against|for|kl|lawrence|icrs|outerbridge) (?:a )?$",
    re.IGNORECASE,
)
_SPANS = {
    "z": re.compile(r"\bslices? ([0-9]+)(?: (?:to|and|through) | ?[-–] ?)([0-9]+)", re.IGNORECASE),
    "y": re.compile(r"\brows? ([0-9]+)(?: (?:to|and|through) | ?[-–] ?)([0-9]+)", re.IGNORECASE),
    "x": re.compile(r"\bcolumns? ([0-9]+)(?: (?:to|and|through) | ?[-–] ?)([0-9]+)", re.IGNORECASE),
}
_COUNT = re.compile(r"\bslices? [0-9]+ (?:to|and|through) [0-9]+ of ([0-9]+)", re.IGNORECASE)
_DENIED = re.compile(r"\b(?:no sign of|no evidence of)\b", re.IGNORECASE)
_AXES = {"z": "slices", "y": "rows", "x": "columns"}
_PLACES = {q.place for q in QUESTIONS.values()} | {r.title for r in REGIONS.values()}
_PLACE = re.compile(  # the longest first: a horn of the meniscus is not the meniscus
    r"\b(?:" + "|".join(map(re.escape, sorted(_PLACES, key=len, reverse=True))) + r")\b"
)
_ASKED_KEYS = re.compile(r'"grades": \{([^{}]*)\}')
_ASKED_KEY = re.compile(r'"(\w+)": <([0-9]+) (?:to|or) ([0-9]+)>')
_WORD = re.compile(r"[a-z]+")


class Stated(NamedTuple):
    """What one text says, as far as a row can contradict it."""

    grades: tuple[int, ...]
    spans: Mapping[str, tuple[tuple[int, int], ...]]  # axis -> first and last
    slices: tuple[int, ...]  # how many slices there are
    denied: bool  # that there is a lesion


@lru_cache(maxsize=1 << 16)
def stated(text: str) -> Stated:
    given = [m for m in _GRADE.finditer(text) if not _REJECTED.search(text[: m.start()])]
    return Stated(
        tuple(int(m[1]) for m in given),
        {a: tuple((int(x), int(y)) for x, y in span.findall(text)) for a, span in _SPANS.items()},
        tuple(map(int, _COUNT.findall(text))),
        bool(_DENIED.search(text)),
    )


@lru_cache(maxsize=1 << 16)
def places_named(question_id: str, text: str) -> frozenset[str]:
    """Regions that a text names, besides those in the words that the table has for the question's lesion."""
    for words in _lesion_words(question_id):
        text = text.replace(words, " ")
    return frozenset(_PLACE.findall(text))


@lru_cache(maxsize=len(QUESTIONS))
def _lesion_words(question_id: str) -> tuple[str, ...]:
    lesion = QUESTIONS[question_id].lesion
    texts = {value for name, value in vars(lesion).items() if isinstance(value, str) and name != "place"}
    texts |= {m for a in QUESTIONS[question_id].attributes for m in (a.title, *a.space.meanings)}
    return tuple(sorted((t for t in texts if " " in t), key=len, reverse=True))


# --- reasoning ----------------------------------------------------------------------------------------------


class Facts(NamedTuple):
    """What a row holds, for its reasoning to say."""

    question: Question
    grades: Mapping[str, int]  # of the attributes that are known
    box: Box | None
    shape: Shape


def wrong_grades(facts: Facts, steps: Sequence[str]) -> str:
    """What the steps say of grades that the row does not hold; empty if they agree.

    Each attribute has a step of its own, in the order of the question, which gives its grade and its meaning.
    """
    known = [a for a in facts.question.attributes if a.id in facts.grades]
    told = [stated(step).grades for step in steps]
    said, held = [g for grades in told for g in grades], [facts.grades[a.id] for a in known]
    if said != held:
        return (
            f"it says grade {', '.join(map(str, said)) or 'nothing'} where the row holds "
            f"{', '.join(map(str, held)) or 'nothing'}"
        )
    graded = [step for step, grades in zip(steps, told, strict=True) if grades]
    for attribute, step in zip(known, graded, strict=False):
        if attribute.title not in step or attribute.space.meanings[facts.grades[attribute.id]] not in step:
            return f"no step says what grade {facts.grades[attribute.id]} of {attribute.id} means"
    lesion = any(_is_lesion(facts, a.id) for a in known)
    if any(stated(s).denied for s in steps) and lesion:
        return "it denies the lesion that the row holds"
    return _misdescribed(facts, steps[1] if len(steps) > 1 else "", lesion)


# What a finding says of a grade, where its words are not in the table.
_TELLS: tuple[tuple[str, str, range], ...] = (
    ("one bright focus", "number", range(1, 2)),
    ("two separate bright foci", "number", range(2, 3)),
    ("three or more bright foci", "number", range(3, 4)),
    ("down to the bone plate", "full_thickness_pct", range(1, 4)),
    ("bone plate stays covered", "full_thickness_pct", range(1)),
)
_LOOKS = {"meniscal_morphology": MORPHOLOGY_SEEN, "effusion_synovitis": EFFUSION_SEEN}  # by grade space


def _misdescribed(facts: Facts, finding: str, lesion: bool) -> str:
    """Why the finding is not one of these grades."""
    for words, attribute, grades in _TELLS:
        if words in finding and facts.grades.get(attribute, grades[0]) not in grades:
            return f"it says {words!r} where {attribute} is {facts.grades[attribute]}"
    for attribute, grade in facts.grades.items():
        looks = _LOOKS.get(facts.question.attribute(attribute).space.id, ())
        other = [words for g, words in enumerate(looks) if g != grade and words in finding]
        if other:
            return f"it says {other[0]!r} where {attribute} is {grade}"
    if facts.question.lesion.finding and facts.question.lesion.finding in finding and not lesion:
        return "it finds a lesion that the row does not hold"
    return ""


def _is_lesion(facts: Facts, attribute: str) -> bool:
    """Where a tear lies says nothing of the cyst that is asked for."""
    space = facts.question.attribute(attribute).space
    return facts.grades[attribute] > 0 and space.id != "tear_location"


def wrong_places(facts: Facts, steps: Sequence[str]) -> str:
    """What the steps say of region, slices, rows and columns that the row does not hold."""
    text = "\n".join(steps)
    named = frozenset().union(*(places_named(facts.question.id, step) for step in steps))
    if named != {facts.question.place}:
        strange = sorted(named - {facts.question.place})
        return f"it names {', '.join(strange) or 'no region'}, the row is about the {facts.question.place}"
    for axis, what in _AXES.items():
        spans = [s for step in steps for s in stated(step).spans[axis]]
        held = [_span(facts.box, axis)] if facts.box else []
        if spans != held:
            told = [" and ".join(f"{a} to {b}" for a, b in each) or "none" for each in (spans, held)]
            return f"it says {what} {told[0]}, the box has {told[1]}"
    wrong = [n for step in steps for n in stated(step).slices if n != facts.shape[0]]
    if wrong:
        return f"it says that there are {wrong[0]} slices, the volume has {facts.shape[0]}"
    return "" if text.strip() else "it says nothing"


def disagreement(facts: Facts, text: str) -> str:
    """What a published text says that the row does not hold. It may leave out what it likes."""
    said, held = stated(text), set(facts.grades.values())
    strange = [g for g in said.grades if g not in held]
    if strange:
        return f"it says grade {strange[0]} where the row holds {', '.join(map(str, sorted(held)))}"
    for axis, what in _AXES.items():
        if facts.box and said.spans[axis] and _span(facts.box, axis) not in said.spans[axis]:
            first, last = _span(facts.box, axis)
            told = " and ".join(f"{a} to {b}" for a, b in said.spans[axis])
            return f"it says {what} {told}, the box has {first} to {last}"
    named = places_named(facts.question.id, text)
    own = (facts.question.place, facts.question.region.title)
    # "the medial meniscus", with "body" elsewhere in the sentence, is not another region
    if named and not any(n in o or o in n for n in named for o in own):
        return f"it names {', '.join(sorted(named))}, the row is about the {facts.question.place}"
    return ""


def _span(box: Box, axis: str) -> tuple[int, int]:
    return getattr(box, f"{axis}0"), getattr(box, f"{axis}1") - 1


# --- wordings -----------------------------------------------------------------------------------------------


@lru_cache(maxsize=1 << 12)
def wrong_wording(question_id: str, wording: str, text: str) -> str:
    """Why a wording is not about its question; empty if it is."""
    question = QUESTIONS[question_id]
    named = places_named(question_id, text)
    if named != {question.place}:
        strange = sorted(named - {question.place})
        return f"names {', '.join(strange) or 'no region'}, the question is about the {question.place}"
    if question.lesion.title not in text:
        return f"does not name the {question.lesion.title}"
    keys = [key for inner in _ASKED_KEYS.findall(text) for key in _ASKED_KEY.findall(inner)]
    wanted = [(a.id, str(a.space.grades[0]), str(a.space.grades[-1])) for a in question.attributes]
    if keys != wanted:
        return f"asks for {_listed(keys) or 'nothing'}, the question for {_listed(wanted)}"
    for attribute in question.attributes:
        if attribute.title not in text:
            return f"does not say what {attribute.id} is"
        for grade, meaning in enumerate(attribute.space.meanings):
            if f"{grade} = {meaning}" not in text:
                return f"does not say that {attribute.id} {grade} is {meaning!r}"
    guided = question.lesion.appearance in text
    if guided != (wording != "zero_shot"):
        return "tells how the lesion looks" if guided else "does not tell how the lesion looks"
    if wording == "region":
        return "asks for a box though the region is shown" if '"box"' in text else ""
    if ('"box": null,' in text) == bool(question.region.labels):
        return "asks for a box where there is none, or for none where there is one"
    return ""


def _listed(keys: Iterable[tuple[str, str, str]]) -> str:
    return ", ".join(f"{name} {low} to {high}" for name, low, high in keys)


@lru_cache(maxsize=1 << 12)
def strange_words(question_id: str, text: str) -> frozenset[str]:
    """Words of a wording that the table does not have for its question: the frame that all questions share,
    or something that was added to one of them."""
    return words(text) - _own_words(question_id)


def words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


@lru_cache(maxsize=len(QUESTIONS))
def _own_words(question_id: str) -> frozenset[str]:
    q = QUESTIONS[question_id]
    texts = [t for t in vars(q.lesion).values() if isinstance(t, str)]
    texts += [q.place, q.region.title, *ATTRIBUTES]
    texts += [t for a in q.attributes for t in (a.title, *a.space.meanings)]
    return words(" ".join(texts))
