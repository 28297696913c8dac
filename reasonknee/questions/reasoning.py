"""The reasoning of a quintuple, in the order a reader works: locate the region, assess the lesion there and
what else could look like it, grade each attribute and say why not the grade beside it.

The steps are derived from the grades and the box, so they state the answer: as a model's *input* they would
leak it. They are the same for the same row; among sentences that mean the same, the row's id chooses.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reasonknee.boxes import Box, Shape
from reasonknee.questions.lesions import EFFUSION_SEEN, MACERATED, MACERATION_MIMICS, MORPHOLOGY_SEEN
from reasonknee.questions.reasons import reason
from reasonknee.questions.table import Attribute, Question

_LOCATE = (
    "it is seen on sagittal slices {z} to {z_last}{of}, between rows {y} and {y_last} and columns {x} and "
    "{x_last}",
    "it spans sagittal slices {z} to {z_last}{of}, rows {y} to {y_last} and columns {x} to {x_last}",
    "it lies on sagittal slices {z} to {z_last}{of}, within rows {y} to {y_last} and columns {x} to {x_last}",
)
_NOT_LOCATED = (
    "it is not delineated in this volume, so no box is given and the knee is read as a whole",
    "no box is given, because it is not delineated here; the whole knee is read",
)
_NOT_ASKED = (  # the joint cavity may be delineated: it is the question that has no box
    "this question has no box, so all of it is searched",
    "no box belongs to this question; it is searched throughout the knee",
)
_SEEN = (
    "{seen}, in keeping with {lesion} and unlike {mimics}",
    "{seen}. This is in keeping with {lesion}, and not explained by {mimics}",
    "{seen}; this is {lesion} rather than {mimics}",
)
_NORMAL = (
    "{seen}; {mimics} would not count",
    "{seen}; {mimics} must not be mistaken for {lesion}",
    "{seen}; what could be mistaken for {lesion}, such as {mimics}, does not count",
)
_GRADE = (
    "{meaning}, because {reason}; that is grade {grade}",
    "{meaning}, as {reason}: grade {grade}",
    "{meaning}; {reason}, so this is grade {grade}",
)


def steps(
    question: Question,
    grades: Mapping[str, int],
    box: Box | None,
    shape: Shape | None = None,
    row_id: str = "",
) -> list[str]:
    """One step to locate, one to assess, one for each attribute whose grade is known."""
    known = [a for a in question.attributes if a.id in grades]
    return [
        locate(question, box, shape, row_id),
        assess(question, grades, row_id),
        *(grade_step(question, a, grades, row_id) for a in known),
    ]


def locate(question: Question, box: Box | None, shape: Shape | None = None, row_id: str = "") -> str:
    if box is None:
        why = _NOT_LOCATED if question.region.labels else _NOT_ASKED
        return f"Locate the {question.place}: {_chosen(why, row_id, 'locate')}."
    words = _chosen(_LOCATE, row_id, "locate").format(
        **dict(zip("zyx", box.start, strict=True)),
        **{f"{axis}_last": stop - 1 for axis, stop in zip("zyx", box.stop, strict=True)},
        of=f" of {shape[0]}" if shape else "",
    )
    return f"Locate the {question.place}: {words}."


def in_region(question: Question, told: Sequence[str]) -> list[str]:
    """The same steps for one who sees the true region alone: there is nothing to locate in it."""
    return [f"The images show the {question.place}.", *told[1:]]


def assess(question: Question, grades: Mapping[str, int], row_id: str = "") -> str:
    """What is seen there, before any number is given, and what it is not."""
    lesion = question.lesion
    found = [a for a in question.attributes if is_finding(a, grades.get(a.id, 0))]
    told = [_LIGAMENT[a.id] for a in found or question.attributes if a.id in _LIGAMENT and a.id in grades]
    if found:
        seen, name = _seen(question, grades), _listed([part.name for part in told]) or lesion.indefinite
    else:
        seen = _normal(question, grades)
        name = "one of these" if len(told) > 1 else told[0].name if told else lesion.indefinite
    mimics = told[0].mimics if told else ""
    if not mimics:
        mimics = MACERATION_MIMICS if grades.get("morphology") in MACERATED else lesion.mimics
    words = _chosen(_SEEN if found else _NORMAL, row_id, "assess")
    words = words.format(seen=seen, lesion=name, mimics=mimics)
    return f"Assess {lesion.search} of the {question.place}: {words}."


def grade_step(question: Question, attribute: Attribute, grades: Mapping[str, int], row_id: str = "") -> str:
    grade = grades[attribute.id]
    words = _chosen(_GRADE, row_id, attribute.id).format(
        reason=reason(question, attribute, grades), meaning=attribute.space.meanings[grade], grade=grade
    )
    return f"Grade the {attribute.title}: {words}."


def is_finding(attribute: Attribute, grade: int) -> bool:
    """Whether a grade speaks of the lesion: any but 0.

    Where a tear lies says nothing of the cyst that is asked for.
    """
    return grade > 0 and attribute.space.id != "tear_location"


def _chosen(sentences: Sequence[str], row_id: str, part: str) -> str:
    """One of several that mean the same: always the same for a row, and another for each part of it."""
    return sentences[hashlib.sha256(f"{row_id}:{part}".encode()).digest()[0] % len(sentences)]


def _normal(question: Question, grades: Mapping[str, int]) -> str:
    """Grade 0 is not always nothing: a meniscus may reach 1.9 mm beyond the plateau, some fluid is normal."""
    lesion = question.lesion
    if lesion.id == "extrusion":
        return "it stays within 2 mm of the plateau's edge, as in a normal knee"
    if lesion.id == "effusion_synovitis":
        return EFFUSION_SEEN[0]
    parts = [_LIGAMENT[a.id].name for a in question.attributes if a.id in _LIGAMENT and a.id in grades]
    if parts:  # a partial tear may be there: only what was graded is denied
        return f"there is no sign of {_listed(parts, ' or of ', ', of ')}"
    whole = all(a.id in grades for a in question.attributes if a.space.id != "tear_location")
    return f"{'' if whole else 'as far as it was graded, '}there is no sign of {lesion.indefinite}"


def _seen(question: Question, grades: Mapping[str, int]) -> str:
    """The finding as a clause: from the grades where they tell more than that it is there."""
    lesion = question.lesion
    if lesion.id == "bml":
        count = (
            "bright signal without a separate focus",
            "one bright focus",
            "two separate bright foci",
            "three or more bright foci",
        )[grades["number"]] if "number" in grades else "bright signal"  # fmt: skip
        kind = (
            ", entirely cystic",
            ", mostly cystic",
            ", cystic in part",
            ", with cyst making up a third at most",
        )
        return f"the marrow holds {count}{kind[grades['percent_bml']] if 'percent_bml' in grades else ''}"
    if lesion.id == "cartilage":
        depth = grades.get("full_thickness_pct")
        return "the cartilage is thinned" + ("" if depth is None else _DOWN_TO_BONE[depth])
    if lesion.id == "morphology":
        return f"the segment {MORPHOLOGY_SEEN[grades['morphology']]}"
    if lesion.id == "effusion_synovitis":
        return EFFUSION_SEEN[grades["grade"]]
    return lesion.finding or _listed(
        [_LIGAMENT[a.id].look for a in question.attributes if is_finding(a, grades.get(a.id, 0))], ", and "
    )


def _listed(names: Sequence[str], last: str = " and ", between: str = ", ") -> str:
    return between.join(names[:-1]) + (last if names[1:] else "") + "".join(names[-1:])


_DOWN_TO_BONE = (
    ", but the bone plate stays covered",
    ", and lost down to the bone plate in a small part",
    ", and lost down to the bone plate in part",
    ", and lost down to the bone plate over most of the surface",
)


class _Part(NamedTuple):
    """A finding of a ligament: how it looks, its name, and what it may be mistaken for, unless it is what
    the lesion may be."""

    look: str
    name: str
    mimics: str = ""


_LIGAMENT = {
    "complete_tear": _Part("the fibres are interrupted or missing", "a complete tear"),
    "insertion_bml_cyst": _Part(
        "the marrow at an attachment is bright or holds a cyst",
        "a BML or cyst at an attachment",
        "vessels at the attachments or partial volume",
    ),
    "repair": _Part(
        "a graft or its tunnels are seen", "an earlier repair", "a cyst or a vessel's channel in the bone"
    ),
}
