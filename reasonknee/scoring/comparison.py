"""Models on the same patients: differences with intervals, a paired permutation test, and what the sample
could have shown.

Answers change hands by whole patients. p is two-sided and never 0; `p_holm` is corrected for all that stands
in the same part of the comparison (headline, categories, regions, structures), over all pairs; strict and
answered are the same question asked twice, so each has a correction of its own. A baseline is compared by
what it answers: the constant box by its boxes, the others by their grades.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from reasonknee.errors import counted
from reasonknee.scoring import bootstrap
from reasonknee.scoring import metrics as me
from reasonknee.scoring.bootstrap import ALPHA
from reasonknee.scoring.intervals import (
    ALL_ALIKE,
    FLAT,
    NO_RESAMPLES,
    Measures,
    rests_on_few,
    supports,
    t_quantile,
)
from reasonknee.scoring.tally import Judged, Tally
from reasonknee.scoring.truth import Truth

Leaf = dict[str, Any]
_POWER = 0.8416212335729143  # of 80 %


def leaf(value: float, low: float, high: float, n: float, reason: str = "", no_interval: str = "") -> Leaf:
    """An estimate as scores.json has it."""
    if np.isnan(value):
        return {"value": None, "low": None, "high": None, "n": round(n), "reason": reason}
    ends = [None if np.isnan(end) else float(end) for end in (low, high)]
    whole = {"value": float(value), "low": ends[0], "high": ends[1], "n": round(n)}
    return {**whole, "no_interval": no_interval} if no_interval and ends[0] is None else whole


def values(t: Tally, rows: np.ndarray, of: Measures) -> np.ndarray:
    """Each measure (rows) of each resample (columns)."""
    if not len(rows):
        return np.empty((len([*of(t.total)]), 0))
    return np.concatenate(
        [np.stack([m.value for m in of(t.resampled(block))]) for block in bootstrap.blocks(rows)], axis=1
    )


class Difference(NamedTuple):
    """Of one measure between two models: a - b."""

    path: tuple[str, ...]
    a: float
    b: float
    low: float
    high: float
    p: float
    smallest: float  # that a sample like this shows in four of five trials
    reason: str  # why there is none, where it is undefined
    no_interval: str = ""  # why there is no interval

    def as_dict(self, patients: int, p_holm: float) -> dict[str, Any]:
        undefined = np.isnan(self.a - self.b)
        return {
            "a": _number(self.a),
            "b": _number(self.b),
            "difference": leaf(self.a - self.b, self.low, self.high, patients, self.reason, self.no_interval),
            "p": _number(self.p),
            "p_holm": _number(p_holm),
            "smallest_difference": None if undefined else _number(self.smallest),
        }


class Draws:
    """The resamples and swaps that all comparisons of a run share; `tests`: how many are corrected for
    together."""

    def __init__(self, patients: int, samples: int, seed: int, tests: int = 1) -> None:
        self.patients = patients
        self.weights = bootstrap.weights(patients, samples, seed)
        self.swaps = bootstrap.swaps(patients, bootstrap.swaps_for(samples, tests), seed + 1)

    def too_few(self, tests: int) -> str:
        """In words, where no difference could pass so many tests; empty where one could."""
        if bootstrap.smallest_p(self.patients, len(self.swaps)) * tests < ALPHA:
            return ""
        patients = bootstrap.smallest_p(self.patients, bootstrap.MOST_SWAPS) * tests >= ALPHA
        short = counted(self.patients, "patient") if patients else counted(len(self.swaps), "swap")
        return f"With {short} no difference could pass the corrected test."

    def differences(self, first: Tally, second: Tally, of: Measures) -> list[Difference]:
        """Of each measure, a - b."""
        points = list(zip(of(first.total), of(second.total), strict=True))
        observed = np.array([float(p.value[0] - q.value[0]) for p, q in points])
        drawn = values(first, self.weights, of) - values(second, self.weights, of)
        p_values = bootstrap.p_value(observed, self._permuted(first, second, of))
        rests = [supports(t, of) for t in (first, second)]
        return [
            self.difference(
                p.path,
                float(p.value[0]),
                float(q.value[0]),
                drawn[i],
                float(p_values[i]),
                p.reason,
                min(of_one.get(p.path, self.patients) for of_one in rests),
            )
            for i, (p, q) in enumerate(points)
        ]

    def difference(
        self,
        path: tuple[str, ...],
        a: float,
        b: float,
        drawn: np.ndarray,
        p: float,
        reason: str,
        support: int,
    ) -> Difference:
        """With Student's t and the spread of the resamples, as for a single number; `support` is how many
        patients it rests on."""
        known = drawn[~np.isnan(drawn)]
        few = rests_on_few(support)
        if few or len(known) < 2:
            return Difference(path, a, b, np.nan, np.nan, p, np.nan, reason, few or NO_RESAMPLES)
        error = float(known.std(ddof=1)) * np.sqrt(support / (support - 1))
        if error <= FLAT:
            return Difference(path, a, b, np.nan, np.nan, p, np.nan, reason, ALL_ALIKE)
        t = t_quantile(support - 1)
        return Difference(path, a, b, a - b - t * error, a - b + t * error, p, (t + _POWER) * error, reason)

    def _permuted(self, first: Tally, second: Tally, of: Measures) -> np.ndarray:
        parts = []
        for block in bootstrap.blocks(self.swaps):
            x, y = first.mixed(second, block)
            parts.append(np.stack([m.value for m in of(x)]) - np.stack([m.value for m in of(y)]))
        return np.concatenate(parts, axis=1)


def section(path: tuple[str, ...]) -> str:
    """The part of a comparison in which a measure stands."""
    return next((part for part in ("categories", "regions", "structures") if part in path), "headline")


def _family(path: tuple[str, ...]) -> tuple[str, str]:
    """What is corrected for together."""
    return section(path), path[-1]


Pair = tuple[str, str]


def pairs_of(models: Iterable[str], baselines: Sequence[str]) -> list[Pair]:
    """Every pair of models, and every model with every baseline, in the order in which they are named."""
    pairs = [(a, b) for a, b in combinations(models, 2) if a not in baselines or b not in baselines]
    return [(b, a) if a in baselines else (a, b) for a, b in pairs]


def answered_by(pair: Pair, baselines: Sequence[str], of: Measures) -> Measures:
    """Those measures that a baseline in the pair has answers for."""
    if pair[1] not in baselines:
        return of
    boxes = pair[1] == "constant_box"
    return lambda t: (m for m in of(t) if ("localisation" in m.path) == boxes)


def how_many_tests(tallies: dict[str, Tally], baselines: Sequence[str], of: Measures) -> int:
    """How many are corrected for together, in the largest family."""
    families: Counter[tuple[str, str]] = Counter()
    for pair in pairs_of(tallies, baselines):
        mine = answered_by(pair, baselines, of)(tallies[pair[0]].total)
        families.update(_family(m.path) for m in mine)
    return max(families.values(), default=1)


def comparisons(
    tallies: dict[str, Tally], baselines: Sequence[str], draws: Draws, of: Measures
) -> list[dict[str, Any]]:
    """Of every pair, each measure that both answer."""
    pairs = pairs_of(tallies, baselines)
    differences = [
        draws.differences(tallies[a], tallies[b], answered_by((a, b), baselines, of)) for a, b in pairs
    ]
    corrected = _corrected(differences)
    rows = []
    for i, (a, b) in enumerate(pairs):
        parts: dict[str, dict[str, Any]] = {}
        for j, difference in enumerate(differences[i]):
            entry = difference.as_dict(draws.patients, corrected[i][j])
            parts.setdefault(section(difference.path), {})[".".join(difference.path)] = entry
        rows.append({"a": a, "b": b, "measures": parts})
    return rows


def _corrected(differences: Sequence[Sequence[Difference]]) -> list[list[float]]:
    """Holm's p of each, over all pairs within a family."""
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for place, difference in _places(differences):
        places.setdefault(_family(difference.path), []).append(place)
    corrected = [[np.nan] * len(of_pair) for of_pair in differences]
    for members in places.values():
        p_values = bootstrap.holm(np.array([differences[i][j].p for i, j in members]))
        for (i, j), p in zip(members, p_values.tolist(), strict=True):
            corrected[i][j] = p
    return corrected


def _places(differences: Sequence[Sequence[Difference]]) -> Iterator[tuple[tuple[int, int], Difference]]:
    for i, of_pair in enumerate(differences):
        for j, difference in enumerate(of_pair):
            yield (i, j), difference


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


# --- does it use the image ----------------------------------------------------------------------------------


class Sums(NamedTuple):
    """Of each patient, what a ratio is made of."""

    part: np.ndarray
    whole: np.ndarray


def patient_sums(truth: Truth, part: np.ndarray, whole: np.ndarray) -> Sums:
    """Of a part and a whole of each answer."""
    n = len(truth.patients)
    made = [np.bincount(truth.patient, weights=np.asarray(v, float), minlength=n) for v in (part, whole)]
    return Sums(made[0], made[1])


def grade_sums(truth: Truth, judged: Judged, of: np.ndarray | int = 1) -> Sums:
    """Grades that are right, of those that are asked; `of` picks some answers."""
    return patient_sums(truth, judged.right.sum(1) * of, judged.asked.sum(1) * of)


def evidence(
    grades: dict[str, Sums], boxes: dict[str, Sums], model: str, draws: Draws, gives_boxes: bool
) -> dict[str, Any]:
    """Whether a model beats every baseline, paired by patients: by accuracy those that grade, by IoU the
    constant box if the model gives boxes."""
    rivals = [("averages.attribute_micro.strict", grades)]
    rivals += [("localisation.box_micro.iou.strict", boxes)] if gives_boxes else []
    against = tested(
        {name: (path, of[model], of[name]) for path, of in rivals for name in of if name != model}, draws
    )
    lost = [name for name, entry in against.items() if not entry["beaten"]]
    return {
        "uses_image": not lost and bool(against),
        "sentence": _sentence(lost, against, draws.too_few(len(against))),
        "against": against,
    }


def tested(pairs: Mapping[str, tuple[str, Sums, Sums]], draws: Draws) -> dict[str, Any]:
    """Of each pair the difference, first minus second; corrected for all of them together."""
    differences = [_of_ratios(path, first, second, draws) for path, first, second in pairs.values()]
    corrected = bootstrap.holm(np.array([d.p for d in differences])).tolist()
    return {
        name: {
            "measure": ".".join(difference.path),
            **difference.as_dict(draws.patients, p),
            "beaten": bool(difference.a > difference.b and p < ALPHA),
        }
        for name, difference, p in zip(pairs, differences, corrected, strict=True)
    }


def _of_ratios(path: str, first: Sums, second: Sums, draws: Draws) -> Difference:
    def ratios(of: Sums, weights: np.ndarray) -> np.ndarray:
        return me.ratio(weights @ of.part, weights @ of.whole)

    once = np.ones((1, draws.patients))
    a, b = float(ratios(first, once)[0]), float(ratios(second, once)[0])
    drawn = ratios(first, draws.weights) - ratios(second, draws.weights)
    kept, given = 1 - draws.swaps, draws.swaps
    mixed = [
        me.ratio(kept @ x.part + given @ y.part, kept @ x.whole + given @ y.whole)
        for x, y in ((first, second), (second, first))
    ]
    p = bootstrap.p_value(np.array([a - b]), (mixed[0] - mixed[1])[None])
    support = min(int((of.whole > 0).sum()) for of in (first, second))
    return draws.difference(tuple(path.split(".")), a, b, drawn, float(p[0]), "nothing is asked", support)


def _sentence(lost: list[str], against: dict[str, Any], too_few: str) -> str:
    if not against:
        return "No evidence that it uses the image: there is no baseline to compare with."
    if lost:
        named = ", ".join(name.replace("_", " ") for name in lost)
        told = f"No evidence that it uses the image: it does not beat {named} (paired by patient, Holm, 5 %)."
        return f"{told} {too_few}".rstrip()
    named = ", ".join(name.replace("_", " ") for name in against)
    return f"It beats every baseline that was compared ({named}; paired by patient, Holm, 5 %)."
