"""Every word that is sent to a model.

The wordings of a row hold for every way to show the knee, and are stored. What a model is *shown* is told
when it is asked: `ask` puts a description of it before the wording.

    zero_shot    the question, the codes of its grades and the form of the answer; no looks, no guidance
    instruction  the same task in steps, with the look on DESS, what to tell apart, and the rules of grading
    region       the instruction where the true region is shown: nothing is left to locate, so no box is asked
    locate       the box alone: the first half of locating, then grading what was cut out

    >>> from reasonknee.questions import question
    >>> shown = Shown((160, 384, 384), (0.7, 0.365, 0.365), "right", "LIP", range(0, 160, 5), (256, 256))
    >>> print(ask(question("acl"), "zero_shot", shown))  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from reasonknee.boxes import Box, Shape
from reasonknee.errors import UsageError
from reasonknee.questions.table import Attribute, Question

WORDINGS = ("zero_shot", "instruction", "region")  # those that a row holds
SETTINGS = (*WORDINGS, "locate")

SYSTEM = "You are a musculoskeletal radiologist who reads 3D knee MRI (sagittal DESS) and grades it by MOAKS."


@dataclass(frozen=True)
class BoxForm:
    """How the box of an answer must look: the value of "box" in its JSON, and words with an example."""

    template: str
    words: str


VOXELS = BoxForm(
    '{"z0": <int>, "z1": <int>, "y0": <int>, "y1": <int>, "x0": <int>, "x1": <int>}',
    "The box is in voxels of the full volume: z counts sagittal slices, y rows, x columns; it starts at z0, "
    "y0, x0 and ends before z1, y1, x1. A box over slices 40 to 59, for example, has z0 = 40 and z1 = 60.",
)


@dataclass(frozen=True)
class Shown:
    """What a model is shown of a volume. Side, orientation and numbers are those of the pictures: a mirrored
    knee is described as it looks, not as it was stored."""

    shape: Shape  # of the full volume: slices, rows, columns
    spacing: tuple[float, float, float]  # millimetres along z, y, x
    side: str  # left or right
    orientation: str  # where z, y and x grow to, e.g. LIP
    slices: Sequence[int]  # numbers of the sagittal slices in the full volume, in the order of the frames
    frame: tuple[int, int]  # rows and columns of a frame, in pixels
    crop: Box | None = None  # the part of the volume that the frames show, if it is not all of it
    box_form: BoxForm = VOXELS
    note: str = ""  # a sentence more, where a view shows what the fields above cannot tell


# --- asking -------------------------------------------------------------------------------------------------


def ask(question: Question, setting: str, shown: Shown | None = None) -> str:
    """The question as a model gets it: what it is shown, then the task, then the form of the answer.

    The description comes first and is the same for all questions on one view, so that they share a prefix.
    Without `shown` it is the wording that a row stores.
    """
    if setting not in SETTINGS:
        raise UsageError("Q003", f"unknown setting {setting!r}", f"choose one of {', '.join(SETTINGS)}")
    task = {"zero_shot": _asked, "instruction": _instructed, "region": _in_region, "locate": _located}[
        setting
    ]
    form = answer_form(question, setting, shown.box_form if shown else VOXELS)
    return "\n\n".join([*([describe(shown)] if shown else []), task(question), form])


def zero_shot(question: Question) -> str:
    return ask(question, "zero_shot")


def instruction(question: Question) -> str:
    return ask(question, "instruction")


def wordings(question: Question) -> dict[str, str]:
    """What a row holds, whatever will be shown of its volume."""
    return {setting: ask(question, setting) for setting in WORDINGS}


def answer_form(question: Question, setting: str = "zero_shot", box: BoxForm = VOXELS) -> str:
    """What the answer must look like: one JSON object, with the box only where there is one to be told."""
    graded = ", ".join(f'"{a.id}": <{_range(a)}>' for a in question.attributes)
    grades = f'"grades": {{{graded}}}'
    if setting == "locate":
        return f'End with one JSON object:\n{{"box": {box.template}}}\n{_if_missing(box)}'
    begin = "Write your reasoning step by step, then end with one JSON object:\n"
    if setting == "region":
        return f"{begin}{{{grades}}}"
    if not question.region.labels:
        return f'{begin}{{"box": null, {grades}}}\nNo box is asked for here, so "box" is null.'
    return f'{begin}{{"box": {box.template}, {grades}}}\n{_if_missing(box)}'


def _if_missing(box: BoxForm) -> str:
    return f'{box.words} If the region cannot be found, "box" is null.'


# --- the tasks ----------------------------------------------------------------------------------------------


def _asked(question: Question) -> str:
    how = (
        "First locate the region with a 3D box, then assess it there, then grade it by MOAKS"
        if _boxed(question)
        else "Assess the whole knee, then grade it by MOAKS"
    )
    return (
        f"Is there {question.lesion.indefinite} {question.lesion.at} the {question.place} of this knee? "
        f"{how}:\n" + "\n".join(_codes(question))
    )


def _instructed(question: Question) -> str:
    first = (
        f"Locate the {question.place} and enclose it in a 3D box."
        if _boxed(question)
        else f"Search the {question.place} throughout the knee; no box is asked for."
    )
    return _task(question, first)


def _in_region(question: Question) -> str:
    if not _boxed(question):  # nothing is cut out: it is searched wherever the question is asked
        return _task(question, f"Search the {question.place} throughout what is shown.")
    return _task(
        question, f"The images show the {question.place}, cut out of the knee: there is nothing to locate."
    )


def _task(question: Question, first: str) -> str:
    lesion = question.lesion
    lines = [
        f"Task: grade {lesion.indefinite} {lesion.at} the {question.place} of this knee by MOAKS.",
        f"1. {first}",
        f"2. Assess {lesion.search}. On DESS look for {lesion.appearance}. Do not mistake {lesion.mimics} "
        "for it.",
        f"3. Grade what you see. Note that {lesion.rule}.",
        *("   " + line for line in _codes(question)),
    ]
    return "\n".join(lines)


def _located(question: Question) -> str:
    return f"Locate the {question.place} of this knee and enclose it in a 3D box. Do not grade anything yet."


def _boxed(question: Question) -> bool:
    return bool(question.region.labels)


def _codes(question: Question) -> list[str]:
    """What each grade stands for: nobody can know that 3 means "no tear"."""
    return [
        f"- {a.id} ({a.title}{', a class without order' if a.space.scale == 'nominal' else ''}): "
        + "; ".join(f"{g} = {meaning}" for g, meaning in enumerate(a.space.meanings))
        + "."
        for a in question.attributes
    ]


def _range(attribute: Attribute) -> str:
    grades = attribute.space.grades
    return f"{grades[0]} or {grades[-1]}" if len(grades) == 2 else f"{grades[0]} to {grades[-1]}"


# --- what is shown ------------------------------------------------------------------------------------------

_ENDS = {"S": ("inferior", "superior"), "I": ("superior", "inferior"), "A": ("posterior", "anterior")}
_ENDS["P"] = _ENDS["A"][::-1]


def describe(shown: Shown) -> str:
    """The volume, its directions and its frames in words."""
    slices, rows, columns = shown.shape
    z, y, x = tuple(shown.orientation)
    # the midline lies to the patient's left of a right knee
    medial_first = z != ("L" if shown.side == "right" else "R")
    begin, end = ("medial", "lateral") if medial_first else ("lateral", "medial")
    size = " x ".join(f"{mm:g}" for mm in shown.spacing)
    parts = [
        f"This is a sagittal DESS MRI of a {shown.side} knee: {slices} slices (z) of {rows} rows (y) and "
        f"{columns} columns (x), numbered from 0, with voxels of {size} mm.",
        f"Slice 0 is the most {begin} one and the numbers grow towards {end}; rows grow from {_ENDS[y][0]} "
        f"to {_ENDS[y][1]}, columns from {_ENDS[x][0]} to {_ENDS[x][1]}.",
    ]
    if shown.crop:
        c = shown.crop
        parts.append(
            f"You are shown a part of it: slices {c.z0} to {c.z1 - 1}, rows {c.y0} to {c.y1 - 1}, columns "
            f"{c.x0} to {c.x1 - 1}."
        )
    if len(shown.slices):
        height, width = shown.frame
        _, y_voxels, x_voxels = shown.crop.shape if shown.crop else shown.shape
        resized = "" if (height, width) == (y_voxels, x_voxels) else f", for {y_voxels} x {x_voxels} voxels"
        parts.append(f"{_frames(shown.slices)} Each frame has {height} x {width} pixels{resized}.")
    return " ".join([*parts, *([shown.note] if shown.note else [])])


def _frames(slices: Sequence[int]) -> str:
    """Which slices the frames are, in their order."""
    count, first, last = len(slices), slices[0], slices[-1]
    if count == 1:
        return f"The one frame is slice {first}."
    step = slices[1] - first
    even = step != 0 and all(b - a == step for a, b in pairwise(slices))
    if even and abs(step) == 1:
        which = f"slices {first} to {last}, one after another"
    elif even:
        which = f"slices {first} to {last} in steps of {abs(step)}"
    else:
        which = "slices " + ", ".join(map(str, slices))
    return f"The {count} frames are {which}."
