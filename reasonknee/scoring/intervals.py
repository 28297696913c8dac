"""95 % intervals that cover: for each kind of number the method that `benchmarks/coverage.py` found to cover
92 to 98 % at 20, 60 and 200 patients, and none where no method does.

All rest on the same resamples of patients, whose spread is the standard error.

- proportion (accuracy, sensitivity, ...): Wilson's interval with the effective number of judgments, that is
  as many independent ones as would have this standard error; never more than there are, and at 0 or 1 as many
  as there are patients.
- balanced accuracy: from the intervals of its two parts (Donner and Zou).
- share (IoU, means of accuracies, macro-F1): Student's t on the scale of the logit.
- amount (millimetres, grades): the same on the scale of the logarithm.
- signed (kappa, GIoU): Student's t as it is.

A number that rests on fewer patients than FEWEST has no interval, and says so: a sensitivity on those who
have the finding, macro-F1 on those with its rarest grade, kappa on those with another than the commonest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from reasonknee.errors import counted
from reasonknee.layout.scores import MODES
from reasonknee.scoring.measures import Measure
from reasonknee.scoring.tally import Tally

Measures = Callable[[Tally], Iterable[Measure]]

FEWEST = 5
# Patients with the rarest grade for macro-F1, and with another than the commonest for kappa: both are biased
# while there are fewer, and resamples do not show it.
FEWEST_OF_A_GRADE = 10
_OF_A_GRADE = frozenset({"macro_f1", "kappa", "quadratic_kappa"})
# What rests on the patients with the rarest grade, or with another than the commonest.
_OF_TABLES = {
    "balanced_accuracy": "rarest",
    "macro_f1": "rarest",
    "kappa": "another",
    "quadratic_kappa": "another",
}
NO_RESAMPLES = "no resamples were drawn"
ALL_ALIKE = "all patients are alike in it, so nothing tells how far it would vary"
FLAT = 1e-12
_Z = 1.959963984540054
_SHARES = frozenset({"iou", "slice_iou", "macro_f1"})
_SIGNED = frozenset({"quadratic_kappa", "kappa", "prevalence_adjusted_kappa", "giou"})
_AMOUNTS = frozenset({"mean_absolute_error", "centre_mm", "size_mm"})
_MACRO = frozenset({"question_macro", "category_macro", "region_macro"})
_DEFINED = 0.8  # share of the resamples in which a number must be defined


class Interval(NamedTuple):
    low: float
    high: float
    none: str = ""  # why there is none


def kind_of(path: tuple[str, ...]) -> str:
    names = set(path)
    if "balanced_accuracy" in names and "mean" not in names:
        return "balanced"
    if names & _SIGNED:
        return "signed"
    if names & _AMOUNTS:
        return "amount"
    if names & _SHARES or names & _MACRO or "mean" in names:
        return "share"
    return "proportion"


def intervals(
    points: Sequence[Measure], samples: np.ndarray, patients: int, rests: Mapping[tuple[str, ...], int]
) -> list[Interval]:
    """One interval per measure; `samples` are its values in the resamples, `rests` the patients it rests on,
    if they may be fewer than all."""
    defined = ~np.isnan(samples)
    n = defined.sum(1)
    mean = np.where(defined, samples, 0.0).sum(1) / np.maximum(n, 1)
    squares = np.where(defined, (samples - mean[:, None]) ** 2, 0.0).sum(1)
    errors = np.sqrt(squares / np.maximum(n - 1, 1))
    ends: dict[tuple[str, ...], Interval] = {}
    for i, point in enumerate(points):
        support = rests.get(point.path, patients)
        value = float(point.value[0])
        reason = _why_none(point.path, support, n[i], samples.shape[1])
        if np.isnan(value) or reason:
            ends[point.path] = Interval(np.nan, np.nan, "" if np.isnan(value) else reason)
        else:
            kind = kind_of(point.path)
            # resamples of all patients vary a little less than samples do; a mean of a few of them, as little
            # again as they are few, while a proportion's interval is wide enough without
            spread = patients if kind == "proportion" else support
            error = float(errors[i]) * np.sqrt(spread / (spread - 1))
            flat = error <= FLAT and kind in ("share", "signed", "amount")
            ends[point.path] = (
                Interval(np.nan, np.nan, ALL_ALIKE) if flat else _of_kind(kind, point, error, support)
            )
    for path, interval in ends.items():
        if kind_of(path) == "balanced" and not interval.none:
            ends[path] = _balanced(path, points, ends)
    return [ends[point.path] for point in points]


def _why_none(path: tuple[str, ...], support: int, defined: int, samples: int) -> str:
    if not samples:
        return NO_RESAMPLES
    of_a_grade = path[:2] == ("diagnosis", "attributes") and path[-2] in _OF_A_GRADE
    if few := rests_on_few(support, FEWEST_OF_A_GRADE if of_a_grade else FEWEST):
        return few
    if defined < _DEFINED * samples:
        return "it is undefined in many resamples of the patients"
    return ""


def rests_on_few(support: int, fewest: int = FEWEST) -> str:
    """Why so few patients give no interval; empty where they do."""
    if support >= fewest:
        return ""
    return f"it rests on {counted(support, 'patient')}; below {fewest} no interval is known to cover"


def _of_kind(kind: str, point: Measure, error: float, support: int) -> Interval:
    value = float(point.value[0])
    if kind == "proportion":
        return wilson(value, error, float(point.n[0]), support)
    reach = t_quantile(support - 1) * error
    if kind == "share":
        middle, half = np.log(value / (1 - value)), reach / (value * (1 - value))
        return Interval(_expit(middle - half), _expit(middle + half))
    if kind == "amount":
        return Interval(float(value * np.exp(-reach / value)), float(value * np.exp(reach / value)))
    if kind == "signed":
        return Interval(max(-1.0, value - reach), min(1.0, value + reach))
    return Interval(0.0, 1.0)  # balanced, which is made of its parts


def wilson(value: float, error: float, n: float, support: int) -> Interval:
    on_the_edge = error <= FLAT or not 0 < value < 1
    effective = float(support) if on_the_edge else max(1.0, min(n, value * (1 - value) / error**2))
    shrink = 1 + _Z**2 / effective
    middle = (value + _Z**2 / (2 * effective)) / shrink
    half = _Z / shrink * np.sqrt(value * (1 - value) / effective + _Z**2 / (4 * effective**2))
    return Interval(max(0.0, min(value, middle - half)), min(1.0, max(value, middle + half)))


def _balanced(
    path: tuple[str, ...], points: Sequence[Measure], ends: Mapping[tuple[str, ...], Interval]
) -> Interval:
    """The mean of sensitivity and specificity, from how far the interval of each reaches."""
    values = {p.path: float(p.value[0]) for p in points}
    parts = [(*path[:-2], name, path[-1]) for name in ("sensitivity", "specificity")]
    value = values[path]
    if any(part not in ends or ends[part].none for part in parts):
        return Interval(np.nan, np.nan, "one of its parts has no interval")
    down = float(np.sqrt(sum((values[part] - ends[part].low) ** 2 for part in parts))) / 2
    up = float(np.sqrt(sum((values[part] - ends[part].high) ** 2 for part in parts))) / 2
    return Interval(max(0.0, value - down), min(1.0, value + up))


def t_quantile(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, by its expansion about the normal: within 0.5 % from 4 degrees of
    freedom on."""
    z, v = _Z, float(max(degrees, 1))
    return float(
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )


def _expit(x: float) -> float:
    return float(1 / (1 + np.exp(-x)))


# --- how many patients a number rests on --------------------------------------------------------------------


def supports(t: Tally, of: Measures) -> dict[tuple[str, ...], int]:
    """Of each measure, the patients who have anything of what it is made of: of a sensitivity those with the
    finding, of macro-F1 those with its rarest grade, of kappa those with another than the commonest. `t` has
    one row a patient."""
    rests = {m.path: int((m.n > 0).sum()) for m in of(t) if m.path[:2] != ("diagnosis", "mean")}
    for cell in t.frame.cells:
        top = ("diagnosis", "attributes", cell.name)
        mine = [path for name in _OF_TABLES for mode in MODES if (path := (*top, name, mode)) in rests]
        if not mine:  # as of a baseline, for which the tables are not made
            continue
        table = t.matrix(cell)
        having, answered = table.sum(-1), table[..., :-1].sum(-1)  # patients by true grades
        others = np.delete(answered, answered.sum(0).argmax(), axis=1)
        fewest = {"rarest": int((having > 0).sum(0).min()), "another": int((others.sum(1) > 0).sum())}
        for path in mine:
            rests[path] = min(rests[path], fewest[_OF_TABLES[path[-2]]])
    return rests
