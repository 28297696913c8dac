"""ReasonKnee-Bench: predictions in, numbers out, with what is needed to trust them: coverage, baselines and intervals over patients.

    scored = score(Path("predictions.jsonl"), Path("release"))
    scored.scores["averages"]["attribute_micro"]["strict"]   # {"value": ..., "low": ..., "high": ..., "n": ...}

What each number means is in docs/scores.md; the layout of `scores` in schema/scores.schema.json. Installs and starts without pyarrow, torch
or datasets; pyarrow is needed once a release is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import DataError
from reasonknee.manifest import read_manifest
from reasonknee.regions import REGIONS
from reasonknee.score_layout import SCORES_VERSION, STATUSES
from reasonknee.scoring import baselines, bootstrap
from reasonknee.scoring import metrics as me
from reasonknee.scoring.measures import Measure, headline, measures
from reasonknee.scoring.predictions import UNREADABLE, Predictions, read_predictions
from reasonknee.scoring.rewards import WEIGHTS, reward, reward_with
from reasonknee.scoring.tally import BOX_SUMS, REGION_IDS, Judged, Tally, judge, tally
from reasonknee.scoring.truth import Truth, read_truth
from reasonknee.version import VERSION

__all__ = ["WEIGHTS", "Scored", "compare", "reward", "reward_with", "score", "score_arrays"]

_SHOWN_OF_BASELINES = ("averages", "exact_match", "attributes", "categories", "table2", "mean", "box_micro", "region_macro", "regions", "structures")


@dataclass(frozen=True)
class Scored:
    """The scores, and what they were made of."""

    scores: dict[str, Any]
    truth: Truth
    predicted: Predictions
    judged: Judged


def score(
    predictions: Path,
    release: Path,
    split: str = "test",
    *,
    convention: str = "canonical",
    samples: int = 1000,
    seed: int = 0,
    workers: int = 1,
    model: str = "",
) -> Scored:
    """Scores a file of predictions against a split of a release."""
    manifest = read_manifest(release)
    truth = read_truth(release, split)
    predicted = read_predictions(predictions, truth, convention, workers)
    try:
        train = read_truth(release, "train")
    except DataError:
        train = None
    header = {
        "model": model or predictions.stem,
        "release_version": manifest.release_version,
        "questions": manifest.questions,
        "split": split,
        "box_convention": convention,
    }
    return score_arrays(truth, predicted, train, samples=samples, seed=seed, header=header)


def score_arrays(
    truth: Truth, predicted: Predictions, train: Truth | None, *, samples: int = 1000, seed: int = 0, header: dict[str, Any] | None = None
) -> Scored:
    judged = judge(truth, predicted)
    counted = tally(truth, predicted, judged)
    weights = bootstrap.weights(len(truth.patients), samples, seed)
    scores: dict[str, Any] = {"scores_version": SCORES_VERSION, "code_version": VERSION, **(header or {}), "bootstrap": samples, "seed": seed}
    scores["counts"] = _counts(truth, predicted)
    scores["warnings"] = _warnings(truth, predicted, train)
    _nest(scores, _estimated(counted, weights, measures))
    _add_matrices(scores, counted.total)
    _add_boxes(scores, counted.total)
    scores["together"]["correlation_by_patient"] = _correlation(truth, judged, weights)
    scores["baselines"] = _baselines(train, truth, counted, weights)
    return Scored(scores, truth, predicted, judged)


# --- estimates --------------------------------------------------------------------------------------------------------------------

Leaf = dict[str, Any]


def leaf(value: float, low: float, high: float, n: float, reason: str) -> Leaf:
    if np.isnan(value):
        return {"value": None, "low": None, "high": None, "n": round(n), "reason": reason}
    ends = [None if np.isnan(end) else float(end) for end in (low, high)]
    return {"value": float(value), "low": ends[0], "high": ends[1], "n": round(n)}


def _values(t: Tally, rows: np.ndarray, of: Callable[[Tally], Iterable[Measure]]) -> np.ndarray:
    """Each measure (rows) of each resample (columns)."""
    if not len(rows):
        return np.empty((len([*of(t.total)]), 0))
    return np.concatenate([np.stack([m.value for m in of(t.resampled(block))]) for block in bootstrap.blocks(rows)], axis=1)


def _estimated(t: Tally, weights: np.ndarray, of: Callable[[Tally], Iterable[Measure]]) -> list[tuple[tuple[str, ...], Leaf]]:
    points = list(of(t.total))
    samples = _values(t, weights, of)
    low, high = bootstrap.intervals(samples) if samples.shape[1] else (np.full(len(points), np.nan),) * 2
    return [(m.path, leaf(float(m.value[0]), float(a), float(b), float(m.n[0]), m.reason)) for m, a, b in zip(points, low, high, strict=True)]


def _nest(into: dict[str, Any], leaves: Iterable[tuple[tuple[str, ...], Any]]) -> None:
    for path, value in leaves:
        here = into
        for name in path[:-1]:
            here = here.setdefault(name, {})
        here[path[-1]] = value


# --- the parts around them --------------------------------------------------------------------------------------------------------


def _counts(truth: Truth, predicted: Predictions) -> dict[str, Any]:
    by_status = np.bincount(predicted.status, minlength=len(STATUSES))
    return {
        "asked": len(truth),
        "patients": len(truth.patients),
        "lines": predicted.lines,
        **{name: int(by_status[i]) for i, name in enumerate(STATUSES)},
        "unknown": predicted.unknown,
        "repeated": predicted.repeated,
        "contradictory": predicted.contradictory,
        "unknown_ids": predicted.unknown_ids,
        "repeated_ids": predicted.repeated_ids,
    }


def _warnings(truth: Truth, predicted: Predictions, train: Truth | None) -> list[str]:
    said = []
    missing = int((predicted.status == STATUSES.index("missing")).sum())
    if missing:
        said.append(f"{missing} of {len(truth)} questions have no prediction: they are wrong under strict, and left out of answered")
    if predicted.unknown:
        said.append(f"predictions with an id that is not in this split: {predicted.unknown}, left out")
    if predicted.repeated:
        told = f"equal ones count once, ids with different answers ({predicted.contradictory}) count as unparsed"
        said.append(f"predictions that repeat an id: {predicted.repeated}; {told}")
    unreadable = int(((predicted.box_state == UNREADABLE) & truth.has_box).sum())
    if unreadable:
        told = "outside their volume or in no known form: IoU 0 (another grid, or another --convention?)"
        said.append(f"boxes: {unreadable} of {int(truth.has_box.sum())} are {told}")
    said += _few(truth)
    if train is None:
        said.append("the release has no training split: there are no baselines")
    return said


def _few(truth: Truth) -> list[str]:
    n = len(truth.patients)
    told = "one patient: intervals have no width" if n == 1 else f"{n} patients: intervals over so few say little"
    return [told] if n < 20 else []


def _add_matrices(scores: dict[str, Any], total: Tally) -> None:
    for cell in total.frame.cells:
        entry = scores["diagnosis"]["attributes"][cell.name]
        entry["scale"] = cell.attribute.space.scale
        entry["confusion"] = total.matrix(cell)[0].astype(int).tolist()  # rows: true grade; columns: given grade, last: none


def _add_boxes(scores: dict[str, Any], total: Tally) -> None:
    local = scores["localisation"]

    def add(entry: dict[str, Any], members: Sequence[int]) -> None:
        sums = dict(zip(BOX_SUMS, total.boxes[0, list(members)].sum(0).astype(int).tolist(), strict=True))
        missing = sums["wanted"] - sums["found"] - sums["unreadable"]
        kept = ("wanted", "found", "unreadable", "spurious", "rightly_none")
        entry["counts"] = {**{name: sums[name] for name in kept}, "missing": missing}
        entry["histogram"] = total.histogram[0, list(members)].sum(0).astype(int).tolist()

    add(local["box_micro"], range(len(REGION_IDS)))
    for name, entry in local["regions"].items():
        add(entry, [REGION_IDS.index(name)])
    for name, entry in local["structures"].items():
        add(entry, [i for i, r in enumerate(REGION_IDS) if REGIONS[r].structure == name])


def _correlation(truth: Truth, judged: Judged, weights: np.ndarray) -> dict[str, Leaf]:
    """Between a patient's mean IoU and the patient's accuracy, both strict: each patient is one point."""
    n = len(truth.patients)
    per = [np.bincount(truth.patient, weights=v, minlength=n) for v in (judged.iou, judged.wanted, judged.right.sum(1), judged.asked.sum(1))]
    iou, accuracy = me.ratio(per[0], per[1]), me.ratio(per[2], per[3])
    known = ~np.isnan(iou) & ~np.isnan(accuracy)
    x, y, once, drawn = iou[known], accuracy[known], np.ones((1, int(known.sum()))), weights[:, known]
    found = {}
    reason = "fewer than two patients differ"
    kinds: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "pearson": lambda w: me.correlation(x, y, w),
        "spearman": lambda w: me.correlation(me.ranks(x, w), me.ranks(y, w), w),
    }
    for name, values in kinds.items():
        samples = [values(block) for block in bootstrap.blocks(drawn)]
        low, high = bootstrap.intervals(np.concatenate(samples)[None]) if samples else (np.array([np.nan]),) * 2
        found[name] = leaf(float(values(once)[0]), float(low[0]), float(high[0]), float(known.sum()), reason)
    return found


def _baselines(train: Truth | None, truth: Truth, counted: Tally, weights: np.ndarray) -> dict[str, Any] | None:
    """Majority and stratified grades, and the constant box: a name each, with the same numbers as the model's where they have any."""
    if train is None:
        return None
    found: dict[str, Any] = {"majority": {}, "stratified": {}, "constant_box": {}}
    for name, baseline in baselines.tallies(train, truth, counted.frame).items():
        for path, value in _estimated(baseline, weights, measures):
            if not set(path) & set(_SHOWN_OF_BASELINES) or (path[0] == "localisation" and name != "majority"):
                continue
            _nest(found["constant_box" if path[0] == "localisation" else name], [(path, value)])
    return found


# --- two models -------------------------------------------------------------------------------------------------------------------


def compare(
    a: Path, b: Path, release: Path, split: str = "test", *, convention: str = "canonical", samples: int = 1000, seed: int = 0, workers: int = 1
) -> dict[str, Any]:
    """Two models on the same patients: differences a - b, their intervals from the same resamples, and p from swaps of whole patients."""
    truth = read_truth(release, split)
    tallies = []
    for path in (a, b):
        predicted = read_predictions(path, truth, convention, workers)
        tallies.append(tally(truth, predicted, judge(truth, predicted)))
    first, second = tallies
    n = len(truth.patients)
    drawn = bootstrap.weights(n, samples, seed)
    swapped = bootstrap.swaps(n, samples, seed + 1)
    points = [(p, q) for p, q in zip(headline(first.total), headline(second.total), strict=True)]
    observed = np.array([float(p.value[0] - q.value[0]) for p, q in points])
    low, high = bootstrap.intervals(_values(first, drawn, headline) - _values(second, drawn, headline))
    mixed = [first.mixed(second, block) for block in bootstrap.blocks(swapped)]
    permuted = np.concatenate([np.stack([m.value for m in headline(x)]) - np.stack([m.value for m in headline(y)]) for x, y in mixed], axis=1)
    p_values = bootstrap.p_value(observed, permuted)
    rows: dict[str, Any] = {}
    for i, (p, q) in enumerate(points):
        undefined = p.reason if np.isnan(observed[i]) else ""
        difference = leaf(float(observed[i]), float(low[i]), float(high[i]), n, undefined)
        p_value = None if undefined else float(p_values[i])
        entry = {"a": _number(p.value[0]), "b": _number(q.value[0]), "difference": difference, "p": p_value}
        _nest(rows, [(p.path, entry)])
    about = {"a": a.stem, "b": b.stem, "split": split, "patients": n, "bootstrap": samples, "permutations": samples, "seed": seed}
    return {**about, "warnings": _few(truth), "measures": rows}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
