"""Uncertainty by patients: answers on one knee, and on two visits of it, are not independent, so patients
are what is drawn."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

COVERED = 0.95
ALPHA = 0.05
MOST_SWAPS = 10_000
_BLOCK = 1000  # resamples at a time, to bound memory


def weights(patients: int, samples: int, seed: int) -> np.ndarray:
    """(samples, patients): how often each patient is drawn, with replacement, into a resample of as many."""
    drawn = np.random.default_rng(seed).multinomial(patients, np.full(patients, 1 / patients), size=samples)
    return drawn.astype(np.float64)


def swaps(patients: int, samples: int, seed: int) -> np.ndarray:
    """(samples, patients) of 0 and 1: whose answers change hands in a permutation of two models."""
    return np.random.default_rng(seed).integers(0, 2, size=(samples, patients)).astype(np.float64)


def swaps_for(samples: int, tests: int) -> int:
    """As many swaps as resamples, and more where a p that is corrected for so many tests needs them: the
    smallest p is one in their number."""
    return max(samples, min(MOST_SWAPS, round(2 * tests / ALPHA))) if samples else 0


def smallest_p(patients: int, swaps: int) -> float:
    """That any difference can have: of 2^n ways to swap n patients two are as extreme as what was seen."""
    return max(1 / (1 + swaps), 2.0 ** (1 - patients))


def blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), _BLOCK):
        yield rows[start : start + _BLOCK]


def intervals(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper end of the central 95 % of each row, over the resamples where it is defined; NaN
    where it is nowhere."""
    ordered = np.sort(samples, axis=1)  # NaN goes to the end
    n = (~np.isnan(samples)).sum(1)
    ends = []
    for share in ((1 - COVERED) / 2, (1 + COVERED) / 2):
        at = share * np.maximum(n - 1, 0)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(n - 1, 0))
        a, b = (np.take_along_axis(ordered, i[:, None], 1)[:, 0] for i in (low, high))
        ends.append(np.where(n > 0, a + (b - a) * (at - low), np.nan))
    return ends[0], ends[1]


def p_value(observed: np.ndarray, permuted: np.ndarray) -> np.ndarray:
    """Two-sided, for each row of `permuted`; never 0, because the observed labelling is one of the
    possible ones. A swap in which the difference is undefined counts as one that is as far."""
    as_far = (~(np.abs(permuted) < np.abs(observed)[:, None] - 1e-12)).sum(1)
    p: np.ndarray = (1 + as_far) / (1 + permuted.shape[1])
    return np.where(np.isnan(observed) | (permuted.shape[1] == 0), np.nan, p)


def holm(p_values: np.ndarray) -> np.ndarray:
    """Corrected for their number, step by step (Holm): below 0.05 all of them may be believed together."""
    known = np.flatnonzero(~np.isnan(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    corrected = np.full(len(p_values), np.nan)
    steps = p_values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return corrected
