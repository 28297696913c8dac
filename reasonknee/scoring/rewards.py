"""The score as a reward: one number per completion, in the forms that TRL's GRPO trainer and verl call.

    trainer = GRPOTrainer(..., reward_funcs=[reasonknee.scoring.reward])
    custom_reward_function.path=.../reasonknee/scoring/rewards.py custom_reward_function.name=compute_score

The dataset brings the columns `question_id`, `grades` and `box` of a release, and `shape` and `spacing` if
there are any. Right and wrong are decided by the scorer's own `judge`. The parts of a reward, each from 0 to
1, and their weights have names (`WEIGHTS`), and so have the ways to reward a box (`BOX_REWARDS`): IoU is 0
until boxes overlap, the others grow before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reasonknee import answers
from reasonknee.answers import Answer
from reasonknee.boxes import BOX_FIELDS, Shape
from reasonknee.errors import UsageError
from reasonknee.questions import question as find_question
from reasonknee.scoring import lines
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import Judged, judge
from reasonknee.scoring.truth import INDEX, NONE, SLOTS, TABLE, Truth

WEIGHTS = {"grades": 0.6, "box": 0.3, "form": 0.1}
"""The share of each part in a reward."""
BOX_REWARDS = ("iou", "giou", "centre")
"""How a box may be rewarded."""
RewardFunction = Callable[..., list[float | None]]


class Parts(NamedTuple):
    """Of each answer. `grades`: share of the attributes that are right. `box`: by the chosen measure; where
    no box is wanted, whether none was given. `form`: whether everything was stated, legally and
    unambiguously."""

    grades: np.ndarray
    box: np.ndarray
    form: np.ndarray

    def total(self, shares: Mapping[str, float]) -> np.ndarray:
        return np.asarray(sum(share * getattr(self, name) for name, share in shares.items()))


def parts(truth: Truth, replies: Sequence[Answer], box_reward: str = "iou") -> Parts:
    predicted = Predictions.empty(len(truth))
    for row, reply in enumerate(replies):
        predicted.put(row, TABLE[truth.question[row]], reply)
    judged = judge(truth, predicted)
    asked = judged.asked.sum(1)
    grades = np.divide(judged.right.sum(1), asked, out=np.full(len(truth), np.nan), where=asked > 0)
    box = np.where(judged.wanted, _of_boxes(truth, judged, box_reward), predicted.box_state == lines.NO_BOX)
    form = np.array([reply.status == "parsed" and not reply.problems for reply in replies], float)
    return Parts(grades, box, form)


def _of_boxes(truth: Truth, judged: Judged, measure: str) -> np.ndarray:
    """From 0 (no box) to 1 (the true one): IoU; GIoU brought from -1..1 to 0..1; or e to the minus distance
    of the centres, in diagonals of the true box."""
    if measure == "iou":
        return judged.iou
    if measure == "giou":
        return (judged.giou + 1) / 2
    edges = (truth.boxes[:, 1::2] - truth.boxes[:, 0::2]) * truth.spacing
    diagonal = np.maximum(np.sqrt((edges**2).sum(1)), 1e-9)
    return np.where(judged.given, np.exp(-judged.centre_mm / diagonal), 0.0)


def reward_with(
    weights: Mapping[str, float] = WEIGHTS, box_convention: str = "canonical", box_reward: str = "iou"
) -> RewardFunction:
    """A reward function with other weights, another convention of boxes, or a denser reward for them.

    Weights are shares: they are divided by their sum.
    """
    if (
        set(weights) - set(WEIGHTS)
        or not all(w >= 0 for w in weights.values())
        or not sum(weights.values()) > 0
    ):
        raise UsageError(
            "S020",
            f"reward weights {dict(weights)}",
            f"numbers from 0 on, one of them positive, for {', '.join(WEIGHTS)}",
        )
    if box_reward not in BOX_REWARDS:
        raise UsageError(
            "S022", f"unknown box reward {box_reward!r}", f"choose one of {', '.join(BOX_REWARDS)}"
        )
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
        spacing: Sequence[Any] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **other_columns: Any,
    ) -> list[float | None]:
        """One number from 0 to 1 per completion; None where the row has no grades to compare with. The means
        of the parts are logged by name, where the trainer offers that."""
        if question_id is None or grades is None:
            raise UsageError(
                "S021",
                "the reward needs the columns `question_id` and `grades`",
                "keep them in the dataset: remove_unused_columns=False",
            )
        truth = _truth(question_id, grades, box or [None] * len(completions), spacing)
        sizes = [_shape(s) for s in shape] if shape is not None else [None] * len(completions)
        replies = [
            answers.read(TABLE[q], completion_text(c), shape=s, box_convention=box_convention)
            for q, c, s in zip(truth.question, completions, sizes, strict=True)
        ]
        earned = parts(truth, replies, box_reward)
        for name in WEIGHTS:
            known = getattr(earned, name)[~np.isnan(getattr(earned, name))]
            if log_metric is not None and len(known):
                log_metric(f"reasonknee_reward/{name}", float(known.mean()))
        return [None if np.isnan(value) else float(value) for value in earned.total(shares)]

    reward.__name__ = "reasonknee_reward"  # what the trainer logs it under
    return reward


reward = reward_with()
"""The reward of completions with the default weights, as GRPO trainers call it; see `reward_with`."""


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | Mapping[str, Any],
    extra_info: Mapping[str, Any] | None = None,
    box_reward: str = "iou",
    **more: Any,
) -> dict[str, float]:
    """The same for verl: `score`, and beside it each part under its name, which verl logs.

    `ground_truth` is an object, or its JSON, with `question_id`, `grades`, `box` and perhaps `shape` and
    `spacing`; what it lacks is taken from `extra_info`.
    """
    told = json.loads(ground_truth) if isinstance(ground_truth, str) else dict(ground_truth)
    told = {**(extra_info or {}), **told}
    if "question_id" not in told or "grades" not in told:
        raise UsageError("S021", "the reward needs `question_id` and `grades`", "put them into ground_truth")
    if box_reward not in BOX_REWARDS:
        raise UsageError(
            "S022", f"unknown box reward {box_reward!r}", f"choose one of {', '.join(BOX_REWARDS)}"
        )
    spacing = [told["spacing"]] if told.get("spacing") is not None else None
    truth = _truth([told["question_id"]], [told["grades"]], [told.get("box")], spacing)
    reply = answers.read(TABLE[truth.question[0]], solution_str, shape=_shape(told.get("shape")))
    earned = parts(truth, [reply], box_reward)
    total = float(np.nan_to_num(earned.total(WEIGHTS)[0]))
    return {"score": total, **{name: float(np.nan_to_num(getattr(earned, name)[0])) for name in WEIGHTS}}


def completion_text(completion: Any) -> str:
    """The text of a completion: a string, or the messages of a conversation, each with text or a list of
    parts."""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        content = completion.get("content", completion.get("text", ""))
        return completion_text(content) if content is not None else ""
    return "\n".join(completion_text(part) for part in completion) if isinstance(completion, Sequence) else ""


def _truth(
    ids: Sequence[str],
    grades: Sequence[Mapping[str, int | None] | None],
    boxes: Sequence[Mapping[str, int] | None],
    spacing: Sequence[Any] | None = None,
) -> Truth:
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
        visit=np.zeros(n, np.int32),
        visits=("",),
        side=np.zeros(n, np.int32),
        grades=table,
        boxes=corners,
        has_box=np.array([box is not None for box in boxes], bool),
        shape=np.ones((n, 3), np.int32),
        spacing=np.ones((n, 3)) if spacing is None else np.array([_zyx(s) for s in spacing], float),
    )


def _shape(value: Any) -> Shape | None:
    if value is None:
        return None
    z, y, x = _zyx(value)
    return int(z), int(y), int(x)


def _zyx(value: Any) -> tuple[Any, Any, Any]:
    z, y, x = (value["z"], value["y"], value["x"]) if isinstance(value, Mapping) else value
    return z, y, x
