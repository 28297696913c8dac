"""What a confusion matrix says, for one or for a thousand of them at once. Pure numpy.

A confusion matrix here has the shape (..., k, k + 1): rows are true grades, columns are predicted grades, and
the last column counts true grades that got no legal answer. `strict` counts those as wrong, otherwise they
are left out. Undefined is NaN here and null in scores.json, never 0. Each formula runs in the order in which
scikit-learn computes it, so that the results agree to the last digit.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def ratio(part: Array, whole: Array) -> Array:
    """part / whole, undefined where there is no whole."""
    part, whole = np.broadcast_arrays(np.asarray(part, float), np.asarray(whole, float))
    quotient: Array = np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole != 0)
    return quotient


def mean_of_defined(values: Array) -> Array:
    """The mean over the last axis of what is defined there."""
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0.0).sum(-1), known.sum(-1))


def answered(confusion: Array) -> Array:
    """The same without those that got no answer: (..., k, k)."""
    return confusion[..., :-1]


def right(confusion: Array) -> Array:
    diagonal: Array = np.trace(answered(confusion), axis1=-2, axis2=-1)
    return diagonal


def count(confusion: Array, strict: bool) -> Array:
    total: Array = (confusion if strict else answered(confusion)).sum((-2, -1))
    return total


def accuracy(confusion: Array, strict: bool) -> Array:
    return ratio(right(confusion), count(confusion, strict))


def kappa(confusion: Array, quadratic: bool) -> Array:
    """Cohen's kappa of what was answered; undefined if chance alone would agree always."""
    table = answered(confusion)
    k = table.shape[-1]
    weight = _disagreement(k, quadratic)
    rows, columns = table.sum(-1), table.sum(-2)
    expected = ratio(columns[..., :, None] * rows[..., None, :], rows.sum(-1)[..., None, None])
    flat = (*table.shape[:-2], k * k)
    observed, by_chance = (weight * table).reshape(flat).sum(-1), (weight * expected).reshape(flat).sum(-1)
    value: Array = 1 - ratio(observed, by_chance)
    return value


def _disagreement(k: int, quadratic: bool) -> Array:
    steps = np.subtract.outer(np.arange(k), np.arange(k))
    weight: Array = (steps**2 if quadratic else steps != 0).astype(float)
    return weight


def prevalence_adjusted_kappa(confusion: Array, quadratic: bool) -> Array:
    """Agreement beyond what guessing among all grades alike would give (Brennan and Prediger; for two
    grades PABAK, twice the accuracy less one): it does not fall because a finding is rare."""
    table = answered(confusion)
    weight = _disagreement(table.shape[-1], quadratic)
    value: Array = 1 - ratio((weight * table).sum((-2, -1)), table.sum((-2, -1))) / weight.mean()
    return value


def mean_absolute_error(confusion: Array) -> Array:
    return ratio((_distance(confusion) * answered(confusion)).sum((-2, -1)), count(confusion, strict=False))


def within_one(confusion: Array, strict: bool) -> Array:
    near = (_distance(confusion) <= 1) * answered(confusion)
    return ratio(near.sum((-2, -1)), count(confusion, strict))


def _distance(confusion: Array) -> Array:
    k = confusion.shape[-2]
    distance: Array = np.abs(np.subtract.outer(np.arange(k), np.arange(k)))
    return distance


def recall(confusion: Array, grade: int, strict: bool) -> Array:
    """Of those with this true grade, how many were given it: sensitivity for grade 1 of a binary
    attribute, specificity for grade 0."""
    of = confusion if strict else answered(confusion)
    return ratio(confusion[..., grade, grade], of[..., grade, :].sum(-1))


def balanced_accuracy(confusion: Array, strict: bool) -> Array:
    """Undefined unless both grades occur: one recall is not balanced by another."""
    value: Array = np.mean([recall(confusion, grade, strict) for grade in range(confusion.shape[-2])], axis=0)
    return value


def macro_f1(confusion: Array, strict: bool) -> Array:
    """The mean F1 of the grades that occur, in truth or in answers."""
    table = answered(confusion)
    true = (confusion if strict else table).sum(-1)
    hits = np.diagonal(table, axis1=-2, axis2=-1)
    each = ratio(2 * hits, true + table.sum(-2))
    occurs = ~np.isnan(each)
    first = np.argsort(
        ~occurs, axis=-1, kind="stable"
    )  # those that occur first, in order, as a sum over them alone would meet them
    ordered = np.ascontiguousarray(np.take_along_axis(np.where(occurs, each, 0.0), first, -1))
    n = occurs.sum(-1)
    in_turn = np.zeros(n.shape)
    for i in range(ordered.shape[-1]):
        in_turn = in_turn + ordered[..., i]
    return ratio(np.where(n < 8, in_turn, ordered.sum(-1)), n)  # numpy sums eight and more in another order


# --- correlation --------------------------------------------------------------------------------------------


def ranks(values: Array, weights: Array) -> Array:
    """Mean ranks where value i stands weights[..., i] times; the ranks of a resample without making it."""
    unique, group = np.unique(values, return_inverse=True)
    per_group = np.zeros((*weights.shape[:-1], len(unique)))
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(unique)))
    per_group[...] = np.add.reduceat(weights[..., order], starts, axis=-1) if len(unique) else 0.0
    middle = per_group.cumsum(-1) - per_group / 2 + 0.5
    mean_ranks: Array = middle[..., group]
    return mean_ranks


def correlation(x: Array, y: Array, weights: Array) -> Array:
    """Pearson's correlation with weights; undefined where one of the two does not vary."""
    n = weights.sum(-1, keepdims=True)
    dx, dy = (
        x - ratio((weights * x).sum(-1, keepdims=True), n),
        y - ratio((weights * y).sum(-1, keepdims=True), n),
    )
    spread = np.sqrt((weights * dx * dx).sum(-1) * (weights * dy * dy).sum(-1))
    value = ratio((weights * dx * dy).sum(-1), np.where(spread > 1e-12, spread, 0.0))
    clipped: Array = np.clip(value, -1.0, 1.0)
    return clipped
