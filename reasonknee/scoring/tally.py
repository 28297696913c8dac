"""Everything that scores are made of, counted once for each patient.

Scores are ratios of sums over patients. So the sums are made per patient first; a resample of patients is
then a weighted sum of rows, and a thousand resamples are one matrix product, whatever the number of
predictions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from reasonknee.layout import SIDES
from reasonknee.layout.scores import HISTOGRAM
from reasonknee.questions import CATEGORIES, REGIONS, Attribute, Question
from reasonknee.scoring import lines
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.truth import INDEX, NONE, SLOTS, TABLE, Truth

REGION_IDS = tuple(REGIONS)
REGION_OF = np.array([REGION_IDS.index(q.region.id) for q in TABLE])
SLOTS_OF = np.array([[s < len(q.attributes) for s in range(SLOTS)] for q in TABLE])  # which a question has
ORDINAL = np.array(
    [
        [s < len(q.attributes) and q.attributes[s].space.scale == "ordinal" for s in range(SLOTS)]
        for q in TABLE
    ]
)
CATEGORY_OF = np.array([CATEGORIES.index(q.category) for q in TABLE])

# Of each region's boxes. The first five count, the rest are sums over the boxes that are wanted; one that is
# not given adds -1 to `giou` and nothing to the others.
BOX_SUMS = (
    "wanted",
    "given",
    "unreadable",
    "spurious",
    "rightly_none",
    "iou",
    "giou",
    "slice_iou",
    "at_25",
    "at_50",
    "centre_mm",
    "size_mm",
)
# Diagnosis given localisation: no box where one is wanted, then IoU from the first to below the second number
# (1 counts to the last).
IOU_BINS = ((0.0, 0.1), (0.1, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
BIN_SUMS = ("answers", "judgments", "right")
ANSWER_SUMS = ("asked", "answered", "exact")
JUDGMENT_SUMS = ("asked", "answered", "right")
STRATUM_SUMS = ("asked", "answered", "right", "answers", "exact", "wanted", "given", "iou")
# how severe a finding is: the highest true grade of the question; `present` where it has no ordinal attribute
SEVERITIES = ("none", "mild", "moderate", "severe", "present")
REASONING_SUMS = ("answers", "written", "region", "states", "agrees", "steps")


class Cell(NamedTuple):
    """An attribute of a question, and where its confusion matrix starts among all."""

    question: Question
    attribute: Attribute
    slot: int
    start: int

    @property
    def grades(self) -> int:
        return len(self.attribute.space.grades)

    @property
    def name(self) -> str:
        return f"{self.question.id}.{self.attribute.id}"


class Frame:
    """The questions that are asked, their cells, and the way from a question's index and slot to a cell;
    and the strata, by visit, side and severity."""

    def __init__(self, questions: list[Question], visits: tuple[str, ...]) -> None:
        self.questions = questions
        self.strata = {"visit": visits, "side": SIDES, "severity": SEVERITIES}
        self.cells: list[Cell] = []
        self.ranks = np.zeros(len(TABLE), np.int64)  # the place of each question among those that are asked
        self.ranks[[INDEX[q.id] for q in questions]] = np.arange(len(questions))
        self.width = 0
        self.start = np.zeros((len(TABLE), SLOTS), np.int64)
        self.columns = np.zeros((len(TABLE), SLOTS), np.int64)
        for question in questions:
            for slot, attribute in enumerate(question.attributes):
                cell = Cell(question, attribute, slot, self.width)
                self.cells.append(cell)
                at = INDEX[question.id], slot
                self.start[at], self.columns[at] = self.width, cell.grades + 1
                self.width += cell.grades * (cell.grades + 1)
        self.places = [self.ranks[INDEX[c.question.id]] * SLOTS + c.slot for c in self.cells]  # of judgments


class Judged(NamedTuple):
    """Each answer judged by itself: the one place where right and wrong are decided, for scores and for
    rewards."""

    asked: np.ndarray  # (n, SLOTS): there is a true grade
    answered: np.ndarray  # and a legal one was given
    right: np.ndarray  # and it is the true one
    wanted: np.ndarray  # there is a true box
    given: np.ndarray  # and one was given
    iou: np.ndarray  # 0 unless given
    giou: np.ndarray  # -1 unless given
    slice_iou: np.ndarray
    centre_mm: np.ndarray
    size_mm: np.ndarray


def judge(truth: Truth, predicted: Predictions) -> Judged:
    asked = truth.grades != NONE
    answered = asked & (predicted.grades != NONE)
    given = truth.has_box & (predicted.box_state == lines.BOXED)
    mine, theirs = truth.boxes.astype(np.float64), predicted.boxes.astype(np.float64)
    shared = np.clip(
        np.minimum(mine[:, 1::2], theirs[:, 1::2]) - np.maximum(mine[:, 0::2], theirs[:, 0::2]), 0, None
    )
    sizes, other = mine[:, 1::2] - mine[:, 0::2], theirs[:, 1::2] - theirs[:, 0::2]
    common = shared.prod(1)
    union = sizes.prod(1) + other.prod(1) - common
    slices = sizes[:, 0] + other[:, 0] - shared[:, 0]
    hull = np.maximum(mine[:, 1::2], theirs[:, 1::2]) - np.minimum(mine[:, 0::2], theirs[:, 0::2])
    enclosing = hull.prod(1)
    iou = np.divide(common, union, out=np.zeros(len(truth)), where=given)
    empty = np.divide(enclosing - union, enclosing, out=np.ones(len(truth)), where=given)
    centres = (mine[:, 0::2] + mine[:, 1::2] - theirs[:, 0::2] - theirs[:, 1::2]) / 2
    return Judged(
        asked,
        answered,
        answered & (truth.grades == predicted.grades),
        truth.has_box,
        given,
        iou,
        iou - empty,
        np.divide(shared[:, 0], slices, out=np.zeros(len(truth)), where=given),
        np.where(given, np.sqrt(((centres * truth.spacing) ** 2).sum(1)), 0.0),
        np.where(given, (np.abs(sizes - other) * truth.spacing).mean(1), 0.0),
    )


class _Made(dict[str, np.ndarray]):
    """Arrays by name, each made when it is first asked for: most measures read few of them."""

    def __init__(self, make: Callable[[str], np.ndarray]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> np.ndarray:
        self[name] = made = self._make(name)
        return made


@dataclass(frozen=True)
class Tally:
    """Sums whose first axis is patients, or resamples of them."""

    frame: Frame
    sums: dict[str, np.ndarray]

    @property
    def confusion(self) -> np.ndarray:
        """(n, frame.width)"""
        return self.sums["confusion"]

    @property
    def judgments(self) -> np.ndarray:
        """(n, JUDGMENT_SUMS, cells)"""
        return self.sums["judgments"]

    @property
    def answers(self) -> np.ndarray:
        """(n, questions, ANSWER_SUMS)"""
        return self.sums["answers"]

    @property
    def boxes(self) -> np.ndarray:
        """(n, regions, BOX_SUMS)"""
        return self.sums["boxes"]

    @property
    def histogram(self) -> np.ndarray:
        """(n, regions, HISTOGRAM)"""
        return self.sums["histogram"]

    @property
    def bins(self) -> np.ndarray:
        """(n, 1 + IOU_BINS, BIN_SUMS)"""
        return self.sums["bins"]

    @property
    def reasoning(self) -> np.ndarray:
        """(n, categories, REASONING_SUMS)"""
        return self.sums["reasoning"]

    @property
    def detection(self) -> np.ndarray:
        """(n, questions, 2, 3): is there a finding, and is one told: no, yes, not answered"""
        return self.sums["detection"]

    @property
    def strata(self) -> np.ndarray:
        """(n, strata of all kinds, STRATUM_SUMS)"""
        return self.sums["strata"]

    def __len__(self) -> int:
        return len(self.judgments)

    def resampled(self, weights: np.ndarray) -> Tally:
        """Row i of the weights says how often each patient is in resample i."""

        def make(name: str) -> np.ndarray:
            array = self.sums[name]
            sums: np.ndarray = weights @ array.reshape(len(array), -1)
            return sums.reshape(len(weights), *array.shape[1:])

        return Tally(self.frame, _Made(make))

    @cached_property
    def total(self) -> Tally:
        return Tally(self.frame, _Made(lambda name: self.sums[name].sum(0, keepdims=True)))

    def mixed(self, other: Tally, swapped: np.ndarray) -> tuple[Tally, Tally]:
        """The totals of both where row i of `swapped` says which patients' answers change hands."""
        moved = self.plus(other, -1).resampled(swapped)
        return self.total.plus(moved, -1), other.total.plus(moved)

    def plus(self, other: Tally, times: int = 1) -> Tally:
        return Tally(self.frame, _Made(lambda name: self.sums[name] + times * other.sums[name]))

    def matrix(self, cell: Cell) -> np.ndarray:
        k = cell.grades
        return self.confusion[:, cell.start : cell.start + k * (k + 1)].reshape(-1, k, k + 1)


def tally(truth: Truth, predicted: Predictions, judged: Judged) -> Tally:
    frame, n = Frame(truth.questions, truth.visits), len(truth.patients)
    make: dict[str, Callable[[], np.ndarray]] = {
        "confusion": lambda: _confusion(truth, predicted, judged.asked, frame, n),
        "judgments": lambda: _judgments(truth, judged, frame, n),
        "answers": lambda: _answers(truth, judged, frame, n),
        "boxes": lambda: _boxes(truth, predicted, judged, n),
        "histogram": lambda: _histogram(truth, judged, n),
        "bins": lambda: _bins(truth, judged, n),
        "reasoning": lambda: _reasoning(truth, predicted, n),
        "detection": lambda: _detection(truth, predicted, judged, frame, n),
        "strata": lambda: _strata(truth, judged, frame, n),
    }
    return Tally(frame, _Made(lambda name: make[name]()))


def _confusion(truth: Truth, predicted: Predictions, asked: np.ndarray, frame: Frame, n: int) -> np.ndarray:
    columns = frame.columns[truth.question]
    given = np.where(predicted.grades == NONE, columns - 1, predicted.grades)
    place = (
        frame.start[truth.question]
        + truth.grades * columns
        + given
        + truth.patient[:, None].astype(np.int64) * frame.width
    )
    return np.bincount(place[asked], minlength=n * frame.width).reshape(n, frame.width).astype(np.float64)


def _sums(group: np.ndarray, groups: int, truth: Truth, n: int, columns: list[np.ndarray]) -> np.ndarray:
    """Sums of columns for each patient and group."""
    place = truth.patient.astype(np.int64) * groups + group
    sums = [np.bincount(place, weights=np.asarray(c, np.float64), minlength=n * groups) for c in columns]
    return np.stack(sums, axis=-1).reshape(n, groups, len(columns))


def _judgments(truth: Truth, judged: Judged, frame: Frame, n: int) -> np.ndarray:
    """What the confusion matrices say of right and wrong, in a seventh of their numbers: all that is told of
    a baseline."""
    of = (judged.asked, judged.answered, judged.right)
    columns = [mode[:, slot] for mode in of for slot in range(SLOTS)]
    sums = _sums(frame.ranks[truth.question], len(frame.questions), truth, n, columns)
    by_kind = sums.reshape(n, len(frame.questions), len(of), SLOTS).swapaxes(1, 2)
    judgments: np.ndarray = by_kind.reshape(n, len(of), len(frame.questions) * SLOTS)[..., frame.places]
    return judgments


def _answers(truth: Truth, judged: Judged, frame: Frame, n: int) -> np.ndarray:
    asked = judged.asked.any(1)
    whole = asked & (judged.answered == judged.asked).all(1)
    exact = asked & (judged.right == judged.asked).all(1)
    return _sums(
        frame.ranks[truth.question], len(frame.questions), truth, n, [np.asarray(asked), whole, exact]
    )


def _boxes(truth: Truth, predicted: Predictions, judged: Judged, n: int) -> np.ndarray:
    given = predicted.box_state == lines.BOXED
    unreadable = judged.wanted & (predicted.box_state == lines.UNREADABLE)
    spurious, rightly_none = ~judged.wanted & given, ~judged.wanted & ~given
    counts = [judged.wanted, judged.given, unreadable, spurious, rightly_none]
    measures = [
        judged.iou,
        np.where(judged.wanted, judged.giou, 0.0),
        judged.slice_iou,
        judged.iou >= 0.25,
        judged.iou >= 0.5,
        judged.centre_mm,
        judged.size_mm,
    ]
    return _sums(REGION_OF[truth.question], len(REGION_IDS), truth, n, [*counts, *measures])


def _histogram(truth: Truth, judged: Judged, n: int) -> np.ndarray:
    region, wanted = REGION_OF[truth.question], judged.wanted
    bins = np.minimum((judged.iou * HISTOGRAM).astype(np.int64), HISTOGRAM - 1)
    place = (truth.patient.astype(np.int64) * len(REGION_IDS) + region) * HISTOGRAM + bins
    histogram = np.bincount(place[wanted], minlength=n * len(REGION_IDS) * HISTOGRAM)
    return histogram.reshape(n, len(REGION_IDS), HISTOGRAM).astype(np.float64)


def _bins(truth: Truth, judged: Judged, n: int) -> np.ndarray:
    group = 1 + np.searchsorted([low for low, _ in IOU_BINS][1:], judged.iou, side="right")
    group[~judged.given] = 0
    counted = judged.wanted
    columns = [counted, judged.asked.sum(1) * counted, judged.right.sum(1) * counted]
    return _sums(group, 1 + len(IOU_BINS), truth, n, columns)


def _reasoning(truth: Truth, predicted: Predictions, n: int) -> np.ndarray:
    bits = predicted.reasoning
    states = (bits & lines.STATES) > 0
    columns = [
        predicted.status != lines.MISSING,
        bits & lines.HAS,
        bits & lines.REGION,
        states,
        (bits & lines.AGREES > 0) & states,
        bits & lines.STEPS,
    ]
    return _sums(CATEGORY_OF[truth.question], len(CATEGORIES), truth, n, [c > 0 for c in columns])


class Findings(NamedTuple):
    """Of each answer: whether there is a finding (any grade from 1 on), and whether one is told."""

    known: np.ndarray  # whether the truth is known
    true: np.ndarray
    told: np.ndarray  # 0 no, 1 yes, 2 not answered


def findings(truth: Truth, predicted: Predictions, judged: Judged) -> Findings:
    """A grade from 1 on settles it; that there is none takes every attribute."""
    slots = SLOTS_OF[truth.question]
    true = np.asarray((truth.grades >= 1).any(1))
    known = true | (judged.asked == slots).all(1)
    given = (predicted.grades != NONE) & slots
    told = np.where((predicted.grades >= 1).any(1), 1, np.where((given == slots).all(1), 0, 2))
    return Findings(known & judged.asked.any(1), true, told)


def _detection(truth: Truth, predicted: Predictions, judged: Judged, frame: Frame, n: int) -> np.ndarray:
    known, true, told = findings(truth, predicted, judged)
    place = frame.ranks[truth.question] * 6 + true * 3 + told
    place = place + truth.patient.astype(np.int64) * len(frame.questions) * 6
    counts = np.bincount(place[known], minlength=n * len(frame.questions) * 6)
    return counts.reshape(n, len(frame.questions), 2, 3).astype(np.float64)


def severity(truth: Truth) -> np.ndarray:
    """Index into SEVERITIES; -1 where no grade is known."""
    ordinal = ORDINAL[truth.question] & (truth.grades != NONE)
    top = np.where(ordinal, truth.grades, NONE).max(1)
    present = SEVERITIES.index("present")
    other = np.where((truth.grades >= 1).any(1), present, 0)
    level = np.where(ordinal.any(1), top, other)
    return np.where((truth.grades != NONE).any(1), level, NONE)


def _strata(truth: Truth, judged: Judged, frame: Frame, n: int) -> np.ndarray:
    asked = judged.asked.any(1)
    columns = [
        judged.asked.sum(1),
        judged.answered.sum(1),
        judged.right.sum(1),
        asked,
        asked & (judged.right == judged.asked).all(1),
        judged.wanted,
        judged.given,
        judged.iou,
    ]
    groups = {"visit": truth.visit, "side": truth.side, "severity": severity(truth)}
    parts = []
    for kind, names in frame.strata.items():
        group = groups[kind]
        kept = [np.where(group >= 0, column, 0) for column in columns]
        parts.append(_sums(np.maximum(group, 0), len(names), truth, n, kept))
    return np.concatenate(parts, axis=1)
