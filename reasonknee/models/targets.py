"""What a model is taught to say: the question as it is asked, and the answer that is right, in one of four
arms.

    no_reasoning   the answer's JSON alone
    reasoning      the steps, then the JSON
    answer_first   the JSON, then the steps: does it help to have reasoned *before* answering?
    box_given      the true box stands in the question, and the answer has steps and grades

Boxes are told in the form of the view. Steps are the dataset's: those derived from grades and box, or the
published ones where a row has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reasonknee.boxes import Box
from reasonknee.errors import UsageError
from reasonknee.models.coordinates import form_named
from reasonknee.models.views import Showing
from reasonknee.questions import QUESTIONS, Question
from reasonknee.questions.prompts import ask
from reasonknee.questions.reasoning import in_region

ARMS = ("no_reasoning", "reasoning", "answer_first", "box_given")
SETTINGS = ("zero_shot", "instruction", "region", "both")
REASONINGS = ("derived", "published")
_ALONE = "Give the JSON object alone, without reasoning."
_FIRST = "Give the JSON object first, then your reasoning."


@dataclass(frozen=True)
class Teaching:
    """Which arm, which words and which reasoning."""

    arm: str = "reasoning"
    setting: str = "instruction"  # zero_shot, instruction, region, or both: the volume, then its region
    reasoning: str = "derived"

    def __post_init__(self) -> None:
        for name, value, legal in (
            ("arm", self.arm, ARMS),
            ("setting", self.setting, SETTINGS),
            ("reasoning", self.reasoning, REASONINGS),
        ):
            if value not in legal:
                raise UsageError("N071", f"unknown {name} {value!r}", f"choose one of {', '.join(legal)}")


@dataclass(frozen=True)
class Target:
    """A question and its right answer, in words."""

    row_id: str
    question: str
    answer: str


def target(row: Mapping[str, Any], showing: Showing, teaching: Teaching) -> Target:
    """What is taught by a row of a release on what is shown of its volume."""
    question = QUESTIONS[row["question_id"]]
    box = Box.from_dict(row["box"]) if row["box"] else None
    told = form_named(showing.view.form).write(box, showing.grid) if box else None
    cut_out = teaching.setting in ("region", "both") and box is not None
    wording = (
        "region" if cut_out else "instruction" if teaching.setting in ("region", "both") else teaching.setting
    )
    asked = ask(question, wording, showing.told)
    grades = {a.id: row["grades"][a.id] for a in question.attributes if row["grades"][a.id] is not None}
    answer: dict[str, Any] = {"grades": grades}
    if teaching.arm != "box_given" and not cut_out:
        answer = {"box": told, **answer}
    said = json.dumps(answer)
    steps = "\n".join(_steps(question, row, teaching.reasoning, cut_out))
    asked = worded(asked, teaching.arm, told)
    if teaching.arm == "no_reasoning":
        return Target(row["id"], asked, said)
    if teaching.arm == "answer_first":
        return Target(row["id"], asked, f"{said}\n{steps}")
    return Target(row["id"], asked, f"{steps}\n{said}")


def worded(asked: str, arm: str, told: Any = None) -> str:
    """A question with the words that an arm adds; a tuned model is asked as it was taught. `told` is the
    true box in the form of the view."""
    added = {"no_reasoning": _ALONE, "answer_first": _FIRST}.get(arm)
    if arm == "box_given" and told is not None:
        added = f"The region is at {json.dumps(told)}. Grade it, and give no box."
    return f"{asked}\n\n{added}" if added else asked


def _steps(question: Question, row: Mapping[str, Any], source: str, cut_out: bool) -> list[str]:
    """The steps of a row from the source that was chosen; a row without it teaches the other one. Of a
    region that is cut out, ours tell no place: it cannot be seen."""
    if source == "published" and row.get("published_reasoning"):
        return [row["published_reasoning"]]
    return in_region(question, row["reasoning"]) if cut_out else list(row["reasoning"])
