"""Grades of one knee that cannot all be true. They are counted and told, never changed and never dropped:
which of them is wrong, only a reader can say. Standard library only.

    >>> from reasonknee.questions import question
    >>> contradictions(question("patella_medial_cartilage"), {"size": 1, "full_thickness_pct": 3})
    ['cartilage_depth']
"""

from __future__ import annotations

from collections.abc import Mapping

from reasonknee.questions.table import QUESTIONS, Question

RULES = {
    "cartilage_depth": "full-thickness loss over more of the surface than any loss",
    "bml_size_without_number": "a bone marrow lesion with a size but no number",
    "bml_number_without_size": "bone marrow lesions are counted, but they have no size",
    "bml_share_without_lesion": "a share of a bone marrow lesion that is not there",
    "tear_without_morphology": "a tear is placed in a segment of the meniscus whose morphology is no tear",
    "progression_at_baseline": "progressive partial maceration at the first visit: nothing to progress from",
}
BASELINE = "00m"
_PROGRESSIVE, _NO_TEAR = 7, 3
_UNTORN = (0, 1)  # grades of morphology; where substance is lost, a tear may have been before
_SEGMENTS = ("anterior", "body", "posterior")  # in the order of the grades of tear_location


def contradictions(
    question: Question,
    grades: Mapping[str, int],
    visit: str = "",
    knee: Mapping[str, Mapping[str, int]] | None = None,
) -> list[str]:
    """The rules that a question's grades break; `knee` has those of the other questions on the volume.

    An unknown grade contradicts nothing.
    """
    broken: list[str] = []
    if question.lesion.id == "cartilage":
        if grades.get("full_thickness_pct", 0) > grades.get("size", 3):
            broken.append("cartilage_depth")
    elif question.lesion.id == "bml":
        size, number = grades.get("size"), grades.get("number")
        if size and number == 0:
            broken.append("bml_size_without_number")
        if number and size == 0:
            broken.append("bml_number_without_size")
        if grades.get("percent_bml") and (size == 0 or number == 0):
            broken.append("bml_share_without_lesion")
    elif question.lesion.id == "cyst":
        place = grades.get("tear_location", _NO_TEAR)
        if place != _NO_TEAR:
            segment = f"{question.region.id}_{_SEGMENTS[place]}_morphology"
            if (knee or {}).get(segment, {}).get("morphology") in _UNTORN:
                broken.append("tear_without_morphology")
    elif grades.get("morphology") == _PROGRESSIVE and visit == BASELINE:
        broken.append("progression_at_baseline")
    return broken


def of_knee(knee: Mapping[str, Mapping[str, int]], visit: str) -> list[tuple[str, str]]:
    """Every broken rule of a volume, with the question whose grades break it."""
    return [
        (rule, q) for q, given in knee.items() for rule in contradictions(QUESTIONS[q], given, visit, knee)
    ]
