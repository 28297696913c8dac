"""Does a reasoning hold together: three checks of a text, deterministic, about consistency and not about quality. Standard library only.

- region: a sentence names the question's region (all words of its name, in any order).
- agrees: wherever the text states a grade of an attribute, it is the grade that the answer concludes.
- steps: the region and the finding are named, and a grade is spoken of after both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from reasonknee.answers import stated_grades
from reasonknee.questions import QUESTIONS, Question

LONGEST = 16_384  # characters of a reasoning that are looked at
_SENTENCE = re.compile(r"[.;!?\n]+")
_WORD = re.compile("[a-z]+")
_SAME = {
    "femoral": "femur",
    "tibial": "tibia",
    "patellar": "patella",
    "meniscal": "meniscus",
    "lesions": "lesion",
    "bml": "marrow",
    "acl": "cruciate",
}
_SMALL = frozenset({"of", "the", "a", "an", "abnormal", "or", "and"})
_GRADING = ("grade", "score")


class Consistency(NamedTuple):
    region: bool
    states: bool  # whether it states any grade, without which `agrees` says nothing
    agrees: bool
    steps: bool


def check(question: Question, reasoning: str, grades: Mapping[str, int]) -> Consistency:
    text = reasoning[:LONGEST].casefold()
    regions, findings = _names(question.id)
    region_at = finding_at = -1
    start = 0
    for sentence in _SENTENCE.split(text):
        words = {_SAME.get(word, word) for word in _WORD.findall(sentence)}
        if region_at < 0 and any(name <= words for name in regions):
            region_at = start
        if finding_at < 0 and any(name <= words for name in findings):
            finding_at = start
        if region_at >= 0 and finding_at >= 0:
            break
        start = text.find(sentence, start) + len(sentence)
    graded_at = max(text.rfind(word) for word in _GRADING)
    stated = {a: given for a, given in stated_grades(question, reasoning[:LONGEST]).items() if a in grades}
    return Consistency(
        region_at >= 0,
        bool(stated),
        all(given == {grades[a]} for a, given in stated.items()),
        region_at >= 0 and finding_at >= 0 and graded_at > max(region_at, finding_at),
    )


@cache
def _names(question_id: str) -> tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]]:
    """The sets of words that name the region, and those that name what is looked for or where the eye goes."""
    region, lesion = QUESTIONS[question_id].region, QUESTIONS[question_id].lesion
    regions = {_words(region.title), _words(region.id)}
    findings = {_words(lesion.title), _words(lesion.search), _words(lesion.id)}
    return tuple(sorted(regions, key=sorted)), tuple(sorted(findings, key=sorted))


def _words(name: str) -> frozenset[str]:
    return frozenset(_SAME.get(word, word) for word in _WORD.findall(name.casefold())) - _SMALL
