"""What can be had without looking at an image, from the training split alone: beside it a score means something.

- majority: for each attribute of each question its most frequent training grade (the lower one of two equally frequent).
- stratified: grades drawn at random with their training frequencies. Nothing is drawn: the expected counts are exact, so no seed matters.
- constant_box: for each region the median training box of knees of that side, as a share of the volume's size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reasonknee.records import SIDES
from reasonknee.scoring import predictions as pr
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import REGION_IDS, REGION_OF, Frame, Tally, judge, tally
from reasonknee.scoring.truth import INDEX, NONE, TABLE, Truth

NAMES = ("majority", "stratified")


@dataclass(frozen=True)
class Trained:
    """What the training split teaches."""

    frequencies: dict[tuple[int, int], np.ndarray]  # (question, slot) -> share of each grade
    boxes: np.ndarray  # (sides, regions, 6) as a share of the volume's size; NaN where training has none


def learn(train: Truth) -> Trained:
    frequencies = {}
    for q in np.unique(train.question):
        mine = train.question == q
        for slot, attribute in enumerate(TABLE[q].attributes):
            grades = train.grades[mine, slot]
            counts = np.bincount(grades[grades != NONE], minlength=len(attribute.space.grades))
            if counts.sum():
                frequencies[int(q), slot] = counts / counts.sum()
    boxes = np.full((len(SIDES), len(REGION_IDS), 6), np.nan)
    shares = train.boxes / np.repeat(train.shape, 2, axis=1)
    region = REGION_OF[train.question]
    for side in range(len(SIDES)):
        for r in range(len(REGION_IDS)):
            mine = train.has_box & (region == r) & (train.side == side)
            if mine.any():
                boxes[side, r] = np.median(shares[mine], axis=0)
    return Trained(frequencies, boxes)


def majority(trained: Trained, truth: Truth) -> Predictions:
    """The majority grades and the constant boxes as predictions, to be scored like any other."""
    found = Predictions.empty(len(truth))
    found.status[:] = pr.PARSED
    for (q, slot), shares in trained.frequencies.items():
        found.grades[truth.question == q, slot] = np.argmax(shares)
    shares = trained.boxes[truth.side, REGION_OF[truth.question]]
    known = ~np.isnan(shares[:, 0])
    corners = np.round(np.nan_to_num(shares) * np.repeat(truth.shape, 2, axis=1)).astype(np.int32)
    corners[:, 1::2] = np.maximum(corners[:, 1::2], corners[:, 0::2] + 1)
    found.boxes[known] = corners[known]
    found.box_state[known] = pr.BOX
    return found


def stratified(trained: Trained, truth: Truth, like: Tally) -> Tally:
    """The expected tally of random grades; boxes stay as they are in `like`."""
    frame = like.frame
    confusion = np.zeros_like(like.confusion)
    chance = np.ones(len(truth))
    for cell in frame.cells:
        q = INDEX[cell.question.id]
        shares = trained.frequencies.get((q, cell.slot))
        margins = like.matrix(cell).sum(-1)
        if shares is None:
            given = np.concatenate([np.zeros(cell.grades), [1.0]])
        else:
            given = np.concatenate([shares, [0.0]])
        k = cell.grades
        confusion[:, cell.start : cell.start + k * (k + 1)] = (margins[:, :, None] * given).reshape(len(margins), -1)
        mine = (truth.question == q) & (truth.grades[:, cell.slot] != NONE)
        chance[mine] *= given[truth.grades[mine, cell.slot]]
    return replace(like, confusion=confusion, answers=_expected_answers(trained, truth, frame, like, chance))


def _expected_answers(trained: Trained, truth: Truth, frame: Frame, like: Tally, chance: np.ndarray) -> np.ndarray:
    answers: np.ndarray = like.answers.copy()
    for i, question in enumerate(frame.questions):
        q = INDEX[question.id]
        mine = truth.question == q
        known = all((q, slot) in trained.frequencies for slot in range(len(question.attributes)))
        answers[:, i, 1] = answers[:, i, 0] * known
        answers[:, i, 2] = np.bincount(truth.patient[mine], weights=chance[mine] * known, minlength=len(answers))
    return answers


def tallies(train: Truth, truth: Truth, frame: Frame) -> dict[str, Tally]:
    """Both baselines as tallies over the patients that are scored; `majority` carries the constant boxes."""
    trained = learn(train)
    constant = majority(trained, truth)
    first = tally(truth, constant, judge(truth, constant), frame)
    return {"majority": first, "stratified": stratified(trained, truth, first)}
