"""Where predictions carry a `confidence`: whether it can be believed, and how well it tells findings apart.

- calibration: of answers given with confidence p, a share p should be right. The Brier score is the mean
  squared difference, the calibration error the mean distance over ten equal bins.
- AUC of being right: how often a right answer was given with more confidence than a wrong one.
- AUC of the finding: the same for knees with and without a finding (any grade from 1 on), where the score is
  the confidence if a finding is told and one less the confidence if none is.

Intervals are by patients: of an AUC by Obuchowski's form of DeLong's variance, of the Brier score by
resamples. The calibration error has none: it is biased, and resamples make it more so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reasonknee.questions import CATEGORIES
from reasonknee.scoring import metrics as me
from reasonknee.scoring.bootstrap import blocks
from reasonknee.scoring.comparison import Leaf, leaf
from reasonknee.scoring.intervals import NO_RESAMPLES, rests_on_few, t_quantile
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import CATEGORY_OF, Judged, findings
from reasonknee.scoring.truth import Truth

BINS = 10
_BY_CHANCE = "chance alone makes it larger than 0, so none is known to cover"


def confidences(
    truth: Truth, predicted: Predictions, judged: Judged, weights: np.ndarray
) -> dict[str, Any] | None:
    """None if no prediction carries one."""
    asked = judged.asked.any(1)
    known = asked & ~np.isnan(predicted.confidence) & (judged.answered == judged.asked).all(1)
    if not known.any():
        return None
    right = (judged.right == judged.asked).all(1)[known].astype(float)
    sure, patient = predicted.confidence[known], truth.patient[known]
    n = len(truth.patients)
    seen = findings(truth, predicted, judged)
    lesion = known & seen.known & (seen.told < 2)
    score = np.where(seen.told == 1, predicted.confidence, 1 - predicted.confidence)
    category = CATEGORY_OF[truth.question]
    of_finding = {"all": auc(score[lesion], seen.true[lesion], truth.patient[lesion])}
    for i, c in enumerate(CATEGORIES):
        mine = lesion & (category == i)
        if mine.any():
            of_finding[c.id] = auc(score[mine], seen.true[mine], truth.patient[mine])
    return {
        "given": leaf(float(known.sum() / asked.sum()), np.nan, np.nan, float(asked.sum())),
        "auc_right": auc(sure, right > 0, patient),
        "auc_finding": of_finding,
        **_calibration(sure, right, patient, n, weights),
    }


def _calibration(
    sure: np.ndarray, right: np.ndarray, patient: np.ndarray, patients: int, weights: np.ndarray
) -> dict[str, Any]:
    bins = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    place = patient.astype(np.int64) * BINS + bins
    columns = (np.ones(len(sure)), sure, right, (sure - right) ** 2)
    sums = np.stack([np.bincount(place, weights=c, minlength=patients * BINS) for c in columns], axis=-1)
    sums = sums.reshape(patients, BINS, len(columns))
    total, by_patient, n = sums.sum(0), sums.sum(1), float(len(sure))
    drawn = [me.ratio(block @ by_patient[:, 3], block @ by_patient[:, 0]) for block in blocks(weights)]
    samples = np.concatenate(drawn) if drawn else np.empty(0)
    gap = np.abs(total[:, 1] - total[:, 2]).sum() / n
    leaves = {
        "brier": _with_spread(total[:, 3].sum() / n, samples, len(np.unique(patient)), n),
        "calibration_error": leaf(gap, np.nan, np.nan, n, no_interval=_BY_CHANCE),
    }
    shown = [
        {
            "low": i / BINS,
            "high": (i + 1) / BINS,
            "n": int(count),
            "confidence": float(stated / count) if count else None,
            "right": float(hits / count) if count else None,
        }
        for i, (count, stated, hits, _) in enumerate(total)
    ]
    return {**leaves, "bins": shown}


def _with_spread(value: float, samples: np.ndarray, patients: int, n: float) -> Leaf:
    few = rests_on_few(patients)
    if few or not len(samples):
        return leaf(value, np.nan, np.nan, n, no_interval=few or NO_RESAMPLES)
    spread = float(np.nanstd(samples, ddof=1)) * np.sqrt(patients / (patients - 1))
    reach = t_quantile(patients - 1) * spread
    return leaf(value, max(0.0, value - reach), min(1.0, value + reach), n)


def auc(score: np.ndarray, positive: np.ndarray, patient: np.ndarray) -> Leaf:
    """The area under the ROC curve, ties counted half, with an interval by patients."""
    yes, no = score[positive], score[~positive]
    if not len(yes) or not len(no):
        return leaf(np.nan, np.nan, np.nan, float(len(score)), "a grade does not occur in the truth")
    above = _share_below(yes, no)  # of each positive: the share of negatives below it
    below = 1 - _share_below(no, yes)  # of each negative: the share of positives above it
    value = float(above.mean())
    _, index = np.unique(patient, return_inverse=True)
    n = int(index.max()) + 1
    support = min(len(np.unique(patient[positive])), len(np.unique(patient[~positive])))
    if few := rests_on_few(support):
        return leaf(value, np.nan, np.nan, float(len(score)), no_interval=few)
    part = np.bincount(index[positive], weights=above - value, minlength=n) / len(yes)
    part += np.bincount(index[~positive], weights=below - value, minlength=n) / len(no)
    reach = t_quantile(support - 1) * float(np.sqrt(n / (n - 1) * (part**2).sum()))
    return leaf(value, max(0.0, value - reach), min(1.0, value + reach), float(len(score)))


def _share_below(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    ordered = np.sort(others)
    left, right = (np.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    share: np.ndarray = (left + right) / (2 * len(ordered))
    return share
