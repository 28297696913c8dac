"""The score as a reward: one number per completion, in the form that TRL's GRPO trainer calls.

    trainer = GRPOTrainer(..., reward_funcs=[reasonknee.scoring.reward])

The dataset brings the columns `question_id`, `grades` and `box` of a release, and `shape` if there is one. Right and wrong are decided by the
scorer's own `judge`. The parts of a reward, each from 0 to 1, and their weights have names: see `WEIGHTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reasonknee import answers
from reasonknee.answers import Answer
from reasonknee.boxes import BOX_FIELDS, Shape
from reasonknee.errors import UsageError
from reasonknee.questions import question as find_question
from reasonknee.scoring import predictions as pr
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import judge
from reasonknee.scoring.truth import INDEX, NONE, SLOTS, TABLE, Truth

WEIGHTS = {"grades": 0.6, "box": 0.3, "form": 0.1}
RewardFunction = Callable[..., list[float | None]]


class Parts(NamedTuple):
    """Of each answer. `grades`: share of the attributes that are right. `box`: IoU; where no box is wanted, whether none was given.
    `form`: whether everything was stated, legally and unambiguously."""

    grades: np.ndarray
    box: np.ndarray
    form: np.ndarray


def parts(truth: Truth, replies: Sequence[Answer]) -> Parts:
    predicted = Predictions.empty(len(truth))
    for row, reply in enumerate(replies):
        predicted.put(row, TABLE[truth.question[row]], reply)
    judged = judge(truth, predicted)
    asked = judged.asked.sum(1)
    grades = np.divide(judged.right.sum(1), asked, out=np.full(len(truth), np.nan), where=asked > 0)
    box = np.where(judged.wanted, judged.iou, predicted.box_state == pr.NO_BOX)
    form = np.array([reply.status == "parsed" and not reply.problems for reply in replies], float)
    return Parts(grades, box, form)


def reward_with(weights: Mapping[str, float] = WEIGHTS, box_convention: str = "canonical") -> RewardFunction:
    """A reward function with other weights or another convention of boxes. Weights are shares: they are divided by their sum."""
    if set(weights) - set(WEIGHTS) or not all(w >= 0 for w in weights.values()) or not sum(weights.values()) > 0:
        raise UsageError("S020", f"reward weights {dict(weights)}", f"numbers from 0 on, one of them positive, for {', '.join(WEIGHTS)}")
    shares = {name: weights.get(name, 0.0) / sum(weights.values()) for name in WEIGHTS}

    def reward(
        prompts: Sequence[Any] | None = None,
        completions: Sequence[Any] = (),
        completion_ids: Sequence[Any] | None = None,
        *,
        question_id: Sequence[str] | None = None,
        grades: Sequence[Mapping[str, int | None] | None] | None = None,
        box: Sequence[Mapping[str, int] | None] | None = None,
        shape: Sequence[Any] | None = None,
        **other_columns: Any,
    ) -> list[float | None]:
        """One number from 0 to 1 per completion; None where the row has no grades to compare with."""
        if question_id is None or grades is None:
            raise UsageError(
                "S021", "the reward needs the columns `question_id` and `grades`", "keep them in the dataset: remove_unused_columns=False"
            )
        truth = _truth(question_id, grades, box or [None] * len(completions))
        sizes = [_shape(s) for s in shape] if shape is not None else [None] * len(completions)
        replies = [
            answers.read(TABLE[q], completion_text(c), shape=s, box_convention=box_convention)
            for q, c, s in zip(truth.question, completions, sizes, strict=True)
        ]
        found = parts(truth, replies)
        total = sum(share * getattr(found, name) for name, share in shares.items())
        return [None if np.isnan(value) else float(value) for value in np.asarray(total)]

    reward.__name__ = "reasonknee_reward"  # what the trainer logs it under
    return reward


reward = reward_with()


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, or the messages of a conversation, each with text or a list of parts."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        content = completion.get("content", completion.get("text", ""))
        return completion_text(content) if content is not None else ""
    return "\n".join(completion_text(part) for part in completion) if isinstance(completion, Sequence) else ""


def _truth(ids: Sequence[str], grades: Sequence[Mapping[str, int | None] | None], boxes: Sequence[Mapping[str, int] | None]) -> Truth:
    n = len(ids)
    questions = [find_question(id_) for id_ in ids]
    table = np.full((n, SLOTS), NONE, np.int8)
    corners = np.zeros((n, 6), np.int32)
    for row, (question, given, box) in enumerate(zip(questions, grades, boxes, strict=True)):
        for slot, attribute in enumerate(question.attributes):
            grade = (given or {}).get(attribute.id)
            table[row, slot] = NONE if grade is None else grade
        if box is not None:
            corners[row] = [box[name] for name in BOX_FIELDS]
    return Truth(
        ids=[str(i) for i in range(n)],
        question=np.array([INDEX[q.id] for q in questions], np.int32),
        patient=np.zeros(n, np.int32),
        patients=("",),
        side=np.zeros(n, np.int32),
        grades=table,
        boxes=corners,
        has_box=np.array([box is not None for box in boxes], bool),
        shape=np.ones((n, 3), np.int32),
        spacing=np.ones((n, 3)),
    )


def _shape(value: Any) -> Shape | None:
    if value is None:
        return None
    z, y, x = (value["z"], value["y"], value["x"]) if isinstance(value, Mapping) else value
    return int(z), int(y), int(x)
