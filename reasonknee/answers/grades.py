"""What the attributes and grades of a question are called, and the grades that a JSON value states under
those names. Standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from reasonknee.answers import text as at
from reasonknee.answers.text import Pairs, normal
from reasonknee.questions import QUESTIONS, Attribute, Question
from reasonknee.questions.lesions import GradeSpace

# --- what things are called ---------------------------------------------------------------------------------

_WRAPPERS = ("MOAKS_scores", "MOAKS_grade")
# What models call an attribute besides its id, its title and upstream's key.
_SPELLINGS: dict[str, tuple[str, ...]] = {
    "number": ("count", "number of BML", "number of BMLs"),
    "percent_bml": (
        "percent",
        "percentage",
        "% BML",
        "BML percentage",
        "percentage of lesion that is BML",
        "% of lesion",
        "percent of lesion",
    ),
    "full_thickness_pct": (
        "depth",
        "full thickness",
        "percent full thickness",
        "% full thickness",
        "full thickness percent",
    ),
    "presence": ("present",),
    "tear_location": ("location of tear",),
    "complete_tear": ("tear",),
    "insertion_bml_cyst": (
        "insertion BML/cyst",
        "BML/cyst at insertion",
        "BML/cyst at site of insertion",
        "associated with BML/cyst",
    ),
    "signal_abnormality": ("signal",),
}
# What names the grade where only one is asked for. The soft ones may as well hold a sentence, which is then
# no statement.
_FIRM = ("grade", "score")
_SOFT = (
    "severity",
    "answer",
    "result",
    "rating",
    "diagnosis",
    *(f"final {w}" for w in ("grade", "score", "answer", "diagnosis")),
    *_WRAPPERS,
)
_SOFT += ("MOAKS score", "MOAKS grades", "MOAKS", "grades", "scores")
_VALUE_KEYS = frozenset({"grade", "score", "value"})  # {"size": {"grade": 2}}
_YES_NO = {"no": 0, "false": 0, "yes": 1, "true": 1}


@dataclass(frozen=True)
class Vocabulary:
    keys: dict[str, tuple[Attribute, bool]]  # normalised JSON key -> its attribute, and whether it is soft
    grammar: at.Grammar  # the same for sentences, with the grades of each attribute in words
    others: frozenset[str]  # normalised names of other questions' findings


def _findings(question: Question) -> set[str]:
    """What a question's finding is called: by us, by upstream, and with the words that upstream mixes."""
    region, lesion = question.region, question.lesion
    upstream = next(part for part in question.attributes[0].upstream_path if part not in _WRAPPERS)
    names = {
        question.id,
        upstream,
        f"{region.id} {lesion.id}",
        f"{region.id} {lesion.title}",
        f"{region.title} {lesion.title}",
    }
    swaps = [("meniscus", "meniscal")] + ([("trochlea", "anterior")] if region.structure == "femur" else [])
    for one, other in swaps:
        names |= {name.replace(one, other) for name in names} | {name.replace(other, one) for name in names}
    return names


@cache
def _all_findings() -> frozenset[str]:
    return frozenset(normal(name) for question in QUESTIONS.values() for name in _findings(question))


_vocabularies: dict[str, Vocabulary] = {}


def vocabulary_of(question: Question) -> Vocabulary:
    """Kept by id: a question's own hash goes through all of its texts, which takes longer than many a
    text is read in."""
    if question.id not in _vocabularies:
        _vocabularies[question.id] = _words_of(question)
    return _vocabularies[question.id]


def _words_of(question: Question) -> Vocabulary:
    findings = _findings(question)
    prefixes = {normal(name) for name in (*findings, question.lesion.id, question.lesion.title)}
    single = len(question.attributes) == 1
    keys: dict[str, tuple[Attribute, bool]] = {}
    names: dict[str, str] = {}
    for attribute in question.attributes:
        leaf = attribute.upstream_path[-1]
        firm = (
            attribute.id,
            attribute.title,
            leaf,
            leaf.split(" (")[0],
            *_SPELLINGS.get(attribute.id, ()),
            *(_FIRM if single else ()),
        )
        soft = (*_SOFT, *sorted(findings), question.lesion.id, question.lesion.title) if single else ()
        for name in firm:
            keys[normal(name)] = (attribute, False)
            for prefix in prefixes:
                keys.setdefault(prefix + normal(name), (attribute, False))
        for name in soft:
            keys.setdefault(normal(name), (attribute, True))
        names.update(dict.fromkeys((*soft, *firm), attribute.id))
    grammar = at.grammar(names.items(), {a.id: _meanings(a.space) for a in question.attributes})
    return Vocabulary(keys, grammar, _all_findings() - prefixes - keys.keys())


def _meanings(space: GradeSpace) -> Iterator[tuple[str, int]]:
    for grade, meaning in enumerate(space.meanings):
        yield from ((text, grade) for text in {meaning, meaning.split(":")[0], meaning.split(" (")[0]})
    if space.scale == "binary":
        yield from _YES_NO.items()


@cache
def _meaning_keys(space: GradeSpace) -> dict[str, int]:
    return {normal(text): grade for text, grade in _meanings(space)}


# --- grades in JSON -----------------------------------------------------------------------------------------

Grade = float | None  # None: something was given that is no grade at all
Stated = dict[str, set[Grade]]  # attribute id -> every value it was given

_GRADE_TEXT = re.compile(
    r"(?:(?:MOAKS\s*)?(?:grade|score|level|class|type|category)\s*[:=]?\s*)?([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
    # not "2-2.9 mm", "5 mm", "0-3", "1/2", "1, 2"
    r"(?=\s*\.?\s*$|\s*[;(=]|\s*:(?:\s|$)|,\s+[^\s0-9]|\s*[-–—]\s+[^\s0-9])",
    re.IGNORECASE,
)
# in the rest of such a text: a second grade, so that it lists options ("0: none, 1: small") or hesitates ("2
# or 3")
_OPTIONS = re.compile(r"(?<![0-9.])[0-9]\s*[:=(|]|\bor\b|(?:grade|score)\s*[0-9]", re.IGNORECASE)


def grade_of(space: GradeSpace, value: Any) -> Grade:
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
    return (
        grade if known.get(normal(text[match.end() :]), grade) == grade else None
    )  # "2 (small)" where small is 1


def without_others(vocabulary: Vocabulary, value: Any, dropped: list[str]) -> Any:
    """The value without what it says under the name of another question's finding; as it is, if it speaks
    of none."""
    return _without(vocabulary.others, value, dropped) if _speaks_of(vocabulary.others, value) else value


def _without(others: frozenset[str], value: Any, dropped: list[str]) -> Any:
    if isinstance(value, Pairs):
        kept = Pairs()
        for key, item in value:
            if normal(key) in others:
                dropped.append(key)
            else:
                kept.append((key, _without(others, item, dropped)))
        return kept
    return [_without(others, item, dropped) for item in value] if isinstance(value, list) else value


def _speaks_of(others: frozenset[str], value: list[Any]) -> bool:
    for item in value:
        if isinstance(item, tuple):  # of an object
            if normal(item[0]) in others:
                return True
            item = item[1]
        if isinstance(item, list) and _speaks_of(others, item):
            return True
    return False


def in_json(vocabulary: Vocabulary, value: Any, into: Stated, within: Attribute | None = None) -> Stated:
    if isinstance(value, Pairs):
        for key, item in value:
            name = normal(key)
            attribute, soft = vocabulary.keys.get(name) or (within if name in _VALUE_KEYS else None, False)
            if isinstance(item, Pairs) or (
                isinstance(item, list) and (attribute is None or any(isinstance(i, Pairs) for i in item))
            ):
                in_json(vocabulary, item, into, attribute or within)
            elif attribute is not None and item is not None:
                grade = grade_of(attribute.space, item)
                if grade is not None or not soft:
                    into.setdefault(attribute.id, set()).add(grade)
    elif isinstance(value, list):
        for item in value:
            in_json(vocabulary, item, into, within)
    return into
