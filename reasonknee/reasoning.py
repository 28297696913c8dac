"""The reasoning of a quintuple, in the order a reader works: locate the region, assess the lesion there, grade each attribute.

The steps are derived from the grades and the box, so they state the answer: as a model's *input* they would leak it.
"""

from __future__ import annotations

from collections.abc import Mapping

from reasonknee.boxes import Box, Shape
from reasonknee.lesions import EFFUSION_SEEN, MORPHOLOGY_SEEN
from reasonknee.questions import Attribute, Question


def steps(question: Question, grades: Mapping[str, int], box: Box | None, shape: Shape | None = None) -> list[str]:
    """One step to locate, one to assess, one for each attribute."""
    return [locate(question, box, shape), assess(question, grades), *(grade_step(a, grades[a.id]) for a in question.attributes)]


def locate(question: Question, box: Box | None, shape: Shape | None = None) -> str:
    where = question.region.title
    if box is None:
        return f"Locate the {where}: it is not delineated in this volume, so no box is given and the knee is read as a whole."
    of = f" of {shape[0]}" if shape else ""
    return (
        f"Locate the {where}: it is seen on sagittal slices {box.z0} to {box.z1 - 1}{of}, between rows {box.y0} and {box.y1 - 1} "
        f"and columns {box.x0} and {box.x1 - 1}."
    )


def assess(question: Question, grades: Mapping[str, int]) -> str:
    """What is seen there, before any number is given."""
    lesion, region = question.lesion, question.region.title
    positive = [a for a in question.attributes if _is_finding(a, grades[a.id])]
    if not positive:
        return f"Assess {lesion.search} of the {region}: no sign of {lesion.indefinite}."
    return f"Assess {lesion.search} of the {region}: {_seen(question, grades)}, in keeping with {lesion.indefinite}."


def grade_step(attribute: Attribute, grade: int) -> str:
    meaning = attribute.space.meanings[grade]
    return f"Grade the {attribute.title}: {meaning}, which is grade {grade}."


def _is_finding(attribute: Attribute, grade: int) -> bool:
    """Whether a grade speaks of the lesion: any but 0. Where a tear lies says nothing of the cyst that is asked for."""
    return grade > 0 and attribute.space.id != "tear_location"


def _seen(question: Question, grades: Mapping[str, int]) -> str:
    """The finding as a clause: from the grades where they tell more than that it is there."""
    lesion = question.lesion
    if lesion.id == "bml":
        count = ("bright signal without a separate focus", "one bright focus", "two separate bright foci", "three or more bright foci")[
            grades["number"]
        ]
        kind = ("all of it cyst", "mostly cystic", "partly cystic", "with hardly any cyst")[grades["percent_bml"]]
        return f"the marrow holds {count}, {kind}"
    if lesion.id == "cartilage":
        return "the bright band is lost " + (
            "down to the bone plate in part" if grades["full_thickness_pct"] else "in part, and the bone plate stays covered"
        )
    if lesion.id == "morphology":
        return f"the segment shows {MORPHOLOGY_SEEN[grades['morphology']]}"
    if lesion.id == "effusion_synovitis":
        return EFFUSION_SEEN[grades["grade"]]
    found = [a.title for a in question.attributes if _is_finding(a, grades[a.id])]
    return lesion.finding or "there is evidence of " + (", ".join(found[:-1]) + " and " if found[1:] else "") + found[-1]
