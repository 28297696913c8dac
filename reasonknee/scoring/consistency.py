"""Does a reasoning hold together: three checks of a text, deterministic, about consistency and not about
quality. Standard library only.

- region: a sentence names the question's region (all words of its name, in any order).
- agrees: wherever the text states a grade of an attribute, it is the grade that the answer concludes.
- steps: the region and the finding are named, and a grade is spoken of after both.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from reasonknee.answers import stated_grades
from reasonknee.questions import QUESTIONS, Question

LONGEST = 16_384  # characters of a reasoning that are looked at
_SENTENCE_END = re.compile(r"[.;!?\n]")
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
    ends = [end.start() for end in _SENTENCE_END.finditer(text)]
    region_at, finding_at = (_first(text, ends, names) for names in _names(question.id))
    graded_at = max(text.rfind(word) for word in _GRADING)
    stated = {a: given for a, given in stated_grades(question, reasoning[:LONGEST]).items() if a in grades}
    return Consistency(
        region_at >= 0,
        bool(stated),
        all(given == {grades[a]} for a, given in stated.items()),
        region_at >= 0 and finding_at >= 0 and graded_at > max(region_at, finding_at),
    )


_Name = tuple[re.Pattern[str], ...]  # what finds each of its words, the longest one first


def _first(text: str, ends: list[int], names: tuple[_Name, ...]) -> int:
    """Where the first sentence begins that has all words of a name; -1 if none has."""
    starts = []
    for longest, *others in names:
        looked_at = -1
        for word in longest.finditer(text):
            sentence = bisect(ends, word.start())
            if sentence == looked_at:
                continue
            looked_at = sentence
            start, end = (
                ends[sentence - 1] if sentence else 0,
                ends[sentence] if sentence < len(ends) else len(text),
            )
            if all(other.search(text, start, end) for other in others):
                starts.append(start)
                break
    return min(starts, default=-1)


@cache
def _names(question_id: str) -> tuple[tuple[_Name, ...], tuple[_Name, ...]]:
    """What names the region, and what names what is looked for or where the eye goes."""
    asked = QUESTIONS[question_id]
    region, lesion = asked.region, asked.lesion
    return _named(asked.place, region.title, region.id), _named(lesion.title, lesion.search, lesion.id)


def _named(*texts: str) -> tuple[_Name, ...]:
    sets = {
        frozenset(_SAME.get(word, word) for word in _WORD.findall(text.casefold())) - _SMALL for text in texts
    }
    shortest = [
        words for words in sets if not any(other < words for other in sets)
    ]  # who says "bone marrow lesion" says "marrow"
    return tuple(tuple(map(_finder, sorted(words, key=len, reverse=True))) for words in shortest)


@cache
def _finder(word: str) -> re.Pattern[str]:
    """The word in any of its spellings, with no letter beside it.

    Letters first: a pattern that starts by looking back is slow.
    """
    spellings = [word, *(other for other, same in _SAME.items() if same == word)]
    return re.compile(
        f"(?:{'|'.join(spellings)})(?![a-z])" + "".join(f"(?<![a-z]{spelling})" for spelling in spellings)
    )
