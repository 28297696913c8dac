"""From a tally to named numbers. The same lines make the score, each of its resamples, the baselines and the
differences of two models.

`strict` counts what was not answered as wrong; `answered` leaves it out. Undefined is NaN here and null, with
the reason, in scores.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from reasonknee.layout.scores import MODES
from reasonknee.questions import CATEGORIES, REGIONS
from reasonknee.questions.lesions import BML, CARTILAGE, MENISCUS, OSTEOPHYTES
from reasonknee.scoring import metrics as me
from reasonknee.scoring.metrics import ratio
from reasonknee.scoring.tally import (
    BOX_SUMS,
    IOU_BINS,
    REASONING_SUMS,
    REGION_IDS,
    STRATUM_SUMS,
    Cell,
    Frame,
    Tally,
)

# The columns of the paper's two tables: which of our categories and structures each one holds.
TABLE2: dict[str, tuple[str, ...]] = {c.title: (c.id,) for c in (BML, CARTILAGE, OSTEOPHYTES, MENISCUS)}
TABLE2["Others"] = tuple(c.id for c in CATEGORIES if c.title not in TABLE2)
TABLE3 = {
    "Patella": "patella",
    "Femur": "femur",
    "Tibia": "tibia",
    "Meniscus": "meniscus",
    "ACL": "acl",
    "PCL": "pcl",
    "Synovitis": "synovitis",
}
STRUCTURES = tuple(dict.fromkeys(r.structure for r in REGIONS.values()))
NO_ANSWER, NOTHING, CONSTANT = "nothing was answered", "nothing is asked", "one grade alone occurs"
NO_CLASS, NO_BOX, NO_GIVEN = (
    "a grade does not occur in the truth",
    "no box is wanted",
    "no wanted box was given",
)


class Measure(NamedTuple):
    path: tuple[str, ...]
    value: np.ndarray
    n: np.ndarray  # of what the value is a mean or a ratio
    reason: str  # why it is undefined, where it is


def measures(t: Tally) -> Iterator[Measure]:
    yield from diagnosis(t)
    yield from localisation(t)
    yield from together(t)
    yield from consistency(t)
    yield from detection(t)
    yield from strata(t)


# --- diagnosis ----------------------------------------------------------------------------------------------


class _Counts(NamedTuple):
    """For each cell: judgments, those answered, those right. Shape (n, cells)."""

    asked: np.ndarray
    answered: np.ndarray
    right: np.ndarray

    def of(self, cells: Sequence[int]) -> _Counts:
        return _Counts(*(a[:, cells].sum(1) for a in self))

    def accuracy(self, mode: str) -> np.ndarray:
        return ratio(self.right, self.asked if mode == "strict" else self.answered)


def _counts(t: Tally) -> _Counts:
    return _Counts(*(t.judgments[:, i] for i in range(3)))


@lru_cache(8)
def groups(frame: Frame) -> dict[str, dict[str, list[int]]]:
    """The cells of each question, region and category that is asked about, and of each column of the
    paper's Table 2."""
    by_kind: dict[str, dict[str, list[int]]] = {"questions": {}, "regions": {}}
    of_category: dict[str, list[int]] = {c.id: [] for c in CATEGORIES}
    for i, (question, *_) in enumerate(frame.cells):
        by_kind["questions"].setdefault(question.id, []).append(i)
        by_kind["regions"].setdefault(question.region.id, []).append(i)
        of_category[question.category.id].append(i)
    by_kind["categories"] = of_category
    by_kind["table2"] = {
        column: [i for id_ in ids for i in of_category[id_]] for column, ids in TABLE2.items()
    }
    return {kind: {name: members for name, members in of.items() if members} for kind, of in by_kind.items()}


def averages(t: Tally) -> Iterator[Measure]:
    """The three averages, with coverage: the share of judgments that were answered, averaged in the same
    way."""
    counts, parts = _counts(t), groups(t.frame)
    everything = counts.of(range(len(t.frame.cells)))
    for mode in MODES:
        n = everything.asked if mode == "strict" else everything.answered
        yield Measure(("averages", "attribute_micro", mode), everything.accuracy(mode), n, NO_ANSWER)
    yield Measure(
        ("averages", "attribute_micro", "coverage"),
        ratio(everything.answered, everything.asked),
        everything.asked,
        NOTHING,
    )
    for name, kind in (("question_macro", "questions"), ("category_macro", "categories")):
        members = [counts.of(cells) for cells in parts[kind].values()]
        for mode in MODES:
            each = np.stack([m.accuracy(mode) for m in members], axis=-1)
            yield Measure(
                ("averages", name, mode), me.mean_of_defined(each), (~np.isnan(each)).sum(-1), NO_ANSWER
            )
        covered = np.stack([ratio(m.answered, m.asked) for m in members], axis=-1)
        yield Measure(
            ("averages", name, "coverage"), me.mean_of_defined(covered), (~np.isnan(covered)).sum(-1), NOTHING
        )


def diagnosis(t: Tally) -> Iterator[Measure]:
    yield from averages(t)
    yield from _accuracies(t, _counts(t))
    yield from _exact(t)
    yield from _per_attribute(t)


def _exact(t: Tally) -> Iterator[Measure]:
    """Whole answers: every attribute right at once."""
    asked, answered, exact = (t.answers[..., i] for i in range(3))
    for mode, n in zip(MODES, (asked, answered), strict=True):
        yield Measure(("diagnosis", "exact_match", mode), ratio(exact.sum(1), n.sum(1)), n.sum(1), NO_ANSWER)
        for i, question in enumerate(t.frame.questions):
            path = ("diagnosis", "questions", question.id, "exact_match", mode)
            yield Measure(path, ratio(exact[:, i], n[:, i]), n[:, i], NO_ANSWER)


def without_agreement(t: Tally) -> Iterator[Measure]:
    """What is told of a baseline: accuracies, and what it detects. Kappas of a constant say nothing."""
    counts = _counts(t)
    yield from averages(t)
    yield from _accuracies(t, counts)
    yield from _exact(t)
    for i, cell in enumerate(t.frame.cells):
        part = counts.of([i])
        path = ("diagnosis", "attributes", cell.name, "accuracy", "strict")
        yield Measure(path, part.accuracy("strict"), part.asked, NOTHING)
    yield from detection(t)


def _accuracies(t: Tally, counts: _Counts) -> Iterator[Measure]:
    for kind, members in groups(t.frame).items():
        for name, cells in members.items():
            part = counts.of(cells)
            for mode in MODES:
                n = part.asked if mode == "strict" else part.answered
                yield Measure(("diagnosis", kind, name, "accuracy", mode), part.accuracy(mode), n, NO_ANSWER)


def _per_attribute(t: Tally) -> Iterator[Measure]:
    by_scale: dict[str, list[np.ndarray]] = {"quadratic_kappa": [], "kappa": [], "balanced_accuracy": []}
    for cell in t.frame.cells:
        for measure in _of_cell(cell, t.matrix(cell)):
            yield measure
            name = measure.path[3]
            if name in by_scale and measure.path[4] == "answered":
                by_scale[name].append(measure.value)
    for name, values in by_scale.items():
        if values:
            each = np.stack(values, axis=-1)
            yield Measure(
                ("diagnosis", "mean", name), me.mean_of_defined(each), (~np.isnan(each)).sum(-1), CONSTANT
            )


def _of_cell(cell: Cell, m: np.ndarray) -> Iterator[Measure]:
    top = ("diagnosis", "attributes", cell.name)
    n = {mode: me.count(m, mode == "strict") for mode in MODES}

    def both(name: str, values: Iterable[np.ndarray], reason: str = NO_ANSWER) -> Iterator[Measure]:
        for mode, value in zip(MODES, values, strict=True):
            yield Measure((*top, name, mode), value, n[mode], reason)

    yield from both("accuracy", (me.accuracy(m, strict) for strict in (True, False)))
    scale = cell.attribute.space.scale
    adjusted = me.prevalence_adjusted_kappa(m, quadratic=scale == "ordinal")
    yield Measure((*top, "prevalence_adjusted_kappa", "answered"), adjusted, n["answered"], NO_ANSWER)
    if scale == "ordinal":
        yield Measure(
            (*top, "quadratic_kappa", "answered"), me.kappa(m, quadratic=True), n["answered"], CONSTANT
        )
        yield Measure(
            (*top, "mean_absolute_error", "answered"), me.mean_absolute_error(m), n["answered"], NO_ANSWER
        )
        yield from both("within_one", (me.within_one(m, strict) for strict in (True, False)))
    elif scale == "nominal":
        yield from both("macro_f1", (me.macro_f1(m, strict) for strict in (True, False)))
        yield Measure((*top, "kappa", "answered"), me.kappa(m, quadratic=False), n["answered"], CONSTANT)
    else:
        for name, grade in (("sensitivity", 1), ("specificity", 0)):
            for mode in MODES:
                true = (m if mode == "strict" else me.answered(m))[:, grade].sum(-1)
                yield Measure((*top, name, mode), me.recall(m, grade, mode == "strict"), true, NO_CLASS)
        yield from both(
            "balanced_accuracy", (me.balanced_accuracy(m, strict) for strict in (True, False)), NO_CLASS
        )


# --- localisation -------------------------------------------------------------------------------------------


def localisation(t: Tally) -> Iterator[Measure]:
    yield from _of_all_boxes(t)
    asked = {q.region.id for q in t.frame.questions}
    for i, region in enumerate(REGION_IDS):
        if region in asked:
            yield from _of_boxes(("localisation", "regions", region), t.boxes[:, i])
    yield from _of_structures(t)


def _of_all_boxes(t: Tally) -> Iterator[Measure]:
    yield from _of_boxes(("localisation", "box_micro"), t.boxes.sum(1))
    per_region = t.boxes[:, [i for i in range(len(REGION_IDS)) if t.boxes[:, i].any()]]
    for mode, by in zip(MODES, ("wanted", "given"), strict=True):
        each = ratio(per_region[..., BOX_SUMS.index("iou")], per_region[..., BOX_SUMS.index(by)])
        yield Measure(
            ("localisation", "region_macro", "iou", mode),
            me.mean_of_defined(each),
            (~np.isnan(each)).sum(-1),
            NO_BOX,
        )


def _of_structures(t: Tally) -> Iterator[Measure]:
    asked = {q.region.id for q in t.frame.questions}
    for structure in STRUCTURES:
        members = [i for i, r in enumerate(REGION_IDS) if REGIONS[r].structure == structure and r in asked]
        if members:
            yield from _of_boxes(("localisation", "structures", structure), t.boxes[:, members].sum(1))


def _of_boxes(top: tuple[str, ...], sums: np.ndarray) -> Iterator[Measure]:
    """A missing or unreadable box is IoU 0 under strict; distances have no value for it, so they are over
    the boxes that were given."""
    at = {name: sums[..., i] for i, name in enumerate(BOX_SUMS)}
    for name in ("iou", "slice_iou", "at_25", "at_50"):
        yield Measure((*top, name, "strict"), ratio(at[name], at["wanted"]), at["wanted"], NO_BOX)
        yield Measure((*top, name, "answered"), ratio(at[name], at["given"]), at["given"], NO_GIVEN)
    missing = at["wanted"] - at["given"]
    yield Measure((*top, "giou", "strict"), ratio(at["giou"], at["wanted"]), at["wanted"], NO_BOX)
    yield Measure((*top, "giou", "answered"), ratio(at["giou"] + missing, at["given"]), at["given"], NO_GIVEN)
    for name in ("centre_mm", "size_mm"):
        yield Measure((*top, name, "answered"), ratio(at[name], at["given"]), at["given"], NO_GIVEN)


# --- together, and the reasoning ----------------------------------------------------------------------------

BIN_NAMES = ("no_box", *(f"{low:g}-{high:g}" for low, high in IOU_BINS))


def together(t: Tally) -> Iterator[Measure]:
    for i, name in enumerate(BIN_NAMES):
        _, judgments, right = (t.bins[:, i, j] for j in range(3))
        yield Measure(
            ("together", "accuracy_given_iou", name),
            ratio(right, judgments),
            judgments,
            "no box of this kind",
        )


def consistency(t: Tally) -> Iterator[Measure]:
    names = ("all", *(c.id for c in CATEGORIES))
    asked = {q.category.id for q in t.frame.questions}
    for i, name in enumerate(names):
        if name != "all" and name not in asked:
            continue
        sums = t.reasoning.sum(1) if name == "all" else t.reasoning[:, i - 1]
        at = {key: sums[:, j] for j, key in enumerate(REASONING_SUMS)}
        top = ("consistency", name)
        yield Measure((*top, "written"), ratio(at["written"], at["answers"]), at["answers"], NO_ANSWER)
        yield Measure(
            (*top, "names_region"),
            ratio(at["region"], at["written"]),
            at["written"],
            "no reasoning was written",
        )
        yield Measure(
            (*top, "agrees_with_grades"),
            ratio(at["agrees"], at["states"]),
            at["states"],
            "no reasoning states a grade",
        )
        yield Measure(
            (*top, "follows_steps"),
            ratio(at["steps"], at["written"]),
            at["written"],
            "no reasoning was written",
        )


def detection(t: Tally) -> Iterator[Measure]:
    """Is there a finding at all (any grade from 1 on): by question, by category, and over all."""
    by_question = {q.id: [i] for i, q in enumerate(t.frame.questions)}
    by_category: dict[str, list[int]] = {}
    for i, q in enumerate(t.frame.questions):
        by_category.setdefault(q.category.id, []).append(i)
    everything = {"all": {"all": list(range(len(by_question)))}}
    for kind, parts in {**everything, "categories": by_category, "questions": by_question}.items():
        for name, members in parts.items():
            table = t.detection[:, members].sum(1)
            top = ("detection", name) if kind == "all" else ("detection", kind, name)
            for what, true in (("sensitivity", 1), ("specificity", 0)):
                for mode in MODES:
                    of = (table if mode == "strict" else me.answered(table))[:, true].sum(-1)
                    yield Measure((*top, what, mode), me.recall(table, true, mode == "strict"), of, NO_CLASS)
            n = table.sum((-2, -1))
            yield Measure((*top, "prevalence"), ratio(table[:, 1].sum(-1), n), n, NOTHING)


def strata(t: Tally) -> Iterator[Measure]:
    """The same answers by visit, by side, and by how severe the finding is."""
    for place, (kind, name) in enumerate(strata_names(t)):
        at = dict(zip(STRATUM_SUMS, np.moveaxis(t.strata[:, place], -1, 0), strict=True))
        top = ("strata", kind, name)
        yield Measure((*top, "accuracy", "strict"), ratio(at["right"], at["asked"]), at["asked"], NOTHING)
        yield Measure(
            (*top, "accuracy", "answered"), ratio(at["right"], at["answered"]), at["answered"], NO_ANSWER
        )
        yield Measure(
            (*top, "exact_match", "strict"), ratio(at["exact"], at["answers"]), at["answers"], NOTHING
        )
        yield Measure((*top, "iou", "strict"), ratio(at["iou"], at["wanted"]), at["wanted"], NO_BOX)


def strata_names(t: Tally) -> list[tuple[str, str]]:
    return [(kind, name) for kind, names in t.frame.strata.items() for name in names]


# --- what two models are compared by ------------------------------------------------------------------------


def headline(t: Tally) -> Iterator[Measure]:
    """The few numbers by which models are compared first."""
    yield from (m for m in averages(t) if m.path[-1] in MODES)
    yield from (m for m in _exact(t) if m.path[1] == "exact_match")
    chosen = {
        ("localisation", "box_micro", "iou"),
        ("localisation", "region_macro", "iou"),
        ("localisation", "box_micro", "at_50"),
    }
    yield from (m for m in _of_all_boxes(t) if m.path[:3] in chosen)


def by_part(t: Tally) -> Iterator[Measure]:
    """Accuracy by category and region, IoU by structure, all strict: where one model is better."""
    counts = _counts(t)
    for kind, members in groups(t.frame).items():
        for name, cells in members.items() if kind in ("categories", "regions") else ():
            part = counts.of(cells)
            path = ("diagnosis", kind, name, "accuracy", "strict")
            yield Measure(path, part.accuracy("strict"), part.asked, NOTHING)
    yield from (m for m in _of_structures(t) if m.path[3:] == ("iou", "strict"))


def compared(t: Tally) -> Iterator[Measure]:
    yield from headline(t)
    yield from by_part(t)
