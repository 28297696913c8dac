"""Do 95 % intervals cover? Samples of patients are drawn from a population whose true values are known, and
scored by the package's own code; it is counted how often an interval holds the true value.

    python benchmarks/coverage.py --out docs/bench/coverage.json [--trials 1000] [--samples 400]

A patient has one to four scans, whose findings, answers and boxes go together; grades are skewed as real ones
are, an ordinal finding is rare (one scan in ten), and a binary one rarer (about one patient in thirty). One
question is answered by a model that is nearly always right; one has a box in one patient of six. Beside the
method that the package uses, the central 95 % of the resamples (the percentile method) stand for comparison.
`given` is the share of samples in which there is an interval at all: where no method covers, there is none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reasonknee.report.rows import at
from reasonknee.scoring import bootstrap
from reasonknee.scoring.comparison import values
from reasonknee.scoring.confidence import confidences
from reasonknee.scoring.intervals import intervals, supports
from reasonknee.scoring.measures import Measure, detection, diagnosis, localisation
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import Judged, Tally, judge, tally
from reasonknee.scoring.truth import INDEX, NONE, SLOTS, Truth

PATIENTS = (20, 60, 200)
# question -> where its latent severity is cut into grades, for each attribute, and how far answers are off
CUTS: dict[str, tuple[list[list[float]], float]] = {
    "hoffa_synovitis": ([[0.3, 1.0, 1.8]], 1.0),
    "effusion_synovitis": ([[1.3, 1.9, 2.5]], 1.0),
    "tibia_medial_anterior_cartilage": ([[0.3, 1.0, 1.8], [0.5, 1.2, 2.0]], 0.2),
    "medial_meniscus_root_tear": ([[1.9]], 1.0),
    "medial_meniscus_cyst": ([[0.8], [-0.6, 0.2, 0.9]], 1.0),
}
SELDOM_BOXED = "medial_meniscus_root_tear"
SHOWN = {
    "accuracy": ("diagnosis", "attributes", "hoffa_synovitis.grade", "accuracy", "strict"),
    "micro average": ("averages", "attribute_micro", "strict"),
    "macro average": ("averages", "question_macro", "strict"),
    "quadratic kappa": ("diagnosis", "attributes", "hoffa_synovitis.grade", "quadratic_kappa", "answered"),
    "quadratic kappa, rare": (
        "diagnosis", "attributes", "effusion_synovitis.grade", "quadratic_kappa", "answered",
    ),
    "quadratic kappa, good model": (
        "diagnosis", "attributes", "tibia_medial_anterior_cartilage.size", "quadratic_kappa", "answered",
    ),
    "accuracy, good model": (
        "diagnosis", "attributes", "tibia_medial_anterior_cartilage.size", "accuracy", "strict",
    ),
    "mean error, grades": (
        "diagnosis", "attributes", "hoffa_synovitis.grade", "mean_absolute_error", "answered",
    ),
    "kappa, four grades": (
        "diagnosis", "attributes", "medial_meniscus_cyst.tear_location", "kappa", "answered",
    ),
    "macro-F1, four grades": (
        "diagnosis", "attributes", "medial_meniscus_cyst.tear_location", "macro_f1", "strict",
    ),
    "sensitivity, common": (
        "diagnosis", "attributes", "medial_meniscus_cyst.presence", "sensitivity", "strict",
    ),
    "sensitivity, rare": (
        "diagnosis", "attributes", "medial_meniscus_root_tear.presence", "sensitivity", "strict",
    ),
    "specificity, rare": (
        "diagnosis", "attributes", "medial_meniscus_root_tear.presence", "specificity", "strict",
    ),
    "balanced accuracy": (
        "diagnosis", "attributes", "medial_meniscus_cyst.presence", "balanced_accuracy", "strict",
    ),
    "IoU": ("localisation", "box_micro", "iou", "strict"),
    "IoU, seldom a box": ("localisation", "regions", "medial_meniscus_root", "iou", "strict"),
    "GIoU": ("localisation", "box_micro", "giou", "strict"),
    "IoU of at least 0.5": ("localisation", "box_micro", "at_50", "strict"),
    "centre, mm": ("localisation", "box_micro", "centre_mm", "answered"),
    "detection, sensitivity": ("detection", "all", "sensitivity", "strict"),
    "AUC of being right": ("confidence", "auc_right"),
    "AUC of a finding": ("confidence", "auc_finding", "all"),
    "Brier score": ("confidence", "brier"),
}  # fmt: skip


class Sample(NamedTuple):
    """A study of so many patients, and its sums by patient."""

    truth: Truth
    predicted: Predictions
    judged: Judged
    tally: Tally


def population(patients: int, rng: np.random.Generator) -> Sample:
    scans = rng.integers(1, 5, patients)
    patient = np.repeat(np.arange(patients), scans)
    n = len(patient)
    severe, blind = rng.normal(0, 0.8, patients)[patient], rng.normal(0, 0.5, patients)[patient]
    parts = []
    for question_id, (cuts, off) in CUTS.items():
        true, given = np.full((n, SLOTS), NONE, np.int8), np.full((n, SLOTS), NONE, np.int8)
        for slot, edges in enumerate(cuts):
            latent = severe + rng.normal(0, 0.6, n)
            told = latent + off * (0.7 * blind + rng.normal(0, 0.5, n))
            true[:, slot], given[:, slot] = np.searchsorted(edges, latent), np.searchsorted(edges, told)
        parts.append((np.full(n, INDEX[question_id], np.int32), true, given))
    question, true, given = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    rows = len(question)
    low = np.full((rows, 3), 20)
    boxes = np.stack([low, low + 20], axis=-1).reshape(rows, 6)
    moved = np.round(rng.normal(0, 2.5, (rows, 3)) + np.tile(4 * blind, len(CUTS))[:, None]).astype(int)
    everyone = np.tile(patient, len(CUTS)).astype(np.int32)
    truth = Truth(
        ids=[str(i) for i in range(rows)],
        question=question,
        patient=everyone,
        patients=tuple(map(str, range(patients))),
        visit=np.zeros(rows, np.int32),
        visits=("00m",),
        side=np.zeros(rows, np.int32),
        grades=true,
        boxes=boxes.astype(np.int32),
        has_box=(question != INDEX[SELDOM_BOXED]) | (rng.random(patients) < 1 / 6)[everyone],
        shape=np.full((rows, 3), 64, np.int32),
        spacing=np.ones((rows, 3)),
    )
    predicted = Predictions.empty(rows)
    predicted.grades[:], predicted.status[:] = given, 0
    predicted.boxes[:] = np.clip(boxes + np.repeat(moved, 2, axis=1), 0, 64)
    predicted.box_state[:] = rng.random(rows) > 0.1
    sure = 0.55 + 0.25 * (true == given).all(1) - 0.1 * np.tile(blind, len(CUTS)) + rng.normal(0, 0.15, rows)
    predicted.confidence[:] = np.clip(sure, 0, 1).round(2)
    judged = judge(truth, predicted)
    return Sample(truth, predicted, judged, tally(truth, predicted, judged))


def shown(t: Tally) -> list[Measure]:
    measured = {m.path: m for of in (diagnosis, localisation, detection) for m in of(t)}
    needed = set(SHOWN.values()) | {
        (*path[:-2], name, path[-1])
        for path in SHOWN.values()
        if "balanced_accuracy" in path
        for name in ("sensitivity", "specificity")
    }
    return [m for path, m in measured.items() if path in needed]


def of_confidence(sample: Sample, weights: np.ndarray) -> dict[tuple[str, ...], dict[str, Any]]:
    """The estimates of `confidence` that are shown, with their intervals."""
    found = confidences(sample.truth, sample.predicted, sample.judged, weights) or {}
    return {path: at({"confidence": found}, *path) for path in SHOWN.values() if path[0] == "confidence"}


def true_values(patients: int) -> dict[tuple[str, ...], float]:
    """What a study of the whole population would find."""
    whole = population(patients, np.random.default_rng(1))
    told = {path: leaf["value"] for path, leaf in of_confidence(whole, np.empty((0, patients))).items()}
    return {**{m.path: float(m.value[0]) for m in shown(whole.tally.total)}, **told}


class Held:
    """How often a number is defined, has an interval, and is held by it and by the central 95 %."""

    def __init__(self) -> None:
        self.defined = self.given = self.covered = self.percentile = 0

    def add(self, true: float, ends: tuple[float, float], central: tuple[float, float]) -> None:
        self.defined += 1
        self.given += not np.isnan(ends[0])
        self.covered += bool(ends[0] <= true <= ends[1])
        self.percentile += bool(central[0] <= true <= central[1])

    def as_dict(self, has_percentile: bool) -> dict[str, Any]:
        n = max(self.defined, 1)
        return {
            "defined": self.defined,
            "given": self.given / n,
            "covered": self.covered / self.given if self.given >= 50 else None,
            "percentile": self.percentile / n if has_percentile else None,
        }


def trials(
    patients: int, count: int, samples: int, true: dict[tuple[str, ...], float], seed: int
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    held = {path: Held() for path in SHOWN.values()}
    for trial in range(count):
        sample = population(patients, rng)
        t, weights = sample.tally, bootstrap.weights(patients, samples, seed + trial)
        points, drawn = shown(t.total), values(t, weights, shown)
        ends = intervals(points, drawn, patients, supports(t, shown))
        low, high = bootstrap.intervals(drawn)
        for i, (point, end) in enumerate(zip(points, ends, strict=True)):
            if point.path in held and not np.isnan(point.value[0]):
                held[point.path].add(true[point.path], end[:2], (low[i], high[i]))
        for path, leaf in of_confidence(sample, weights).items():
            if leaf["value"] is not None:
                given = [np.nan if leaf[end] is None else leaf[end] for end in ("low", "high")]
                held[path].add(true[path], (given[0], given[1]), (np.nan, np.nan))
    return {name: held[path].as_dict(path[0] != "confidence") for name, path in SHOWN.items()}


def table(found: dict[str, Any]) -> str:
    head = "| | " + " | ".join(f"{n} patients" for n in PATIENTS) + " | percentile method |"
    lines = [head, "|---|" + "---|" * (len(PATIENTS) + 1)]
    for name in SHOWN:
        cells = []
        for n in PATIENTS:
            entry = found["patients"][str(n)][name]
            covered = "no interval" if entry["covered"] is None else f"{entry['covered']:.3f}"
            cells.append(
                covered + (f" ({entry['given']:.0%} have one)" if 0 < entry["given"] < 0.995 else "")
            )
        olds = [found["patients"][str(n)][name]["percentile"] for n in PATIENTS]
        old = "" if None in olds else " / ".join(f"{share:.2f}" for share in olds)
        lines.append(f"| {name} | {' | '.join(cells)} | {old} |")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path)
    options.add_argument("--trials", type=int, default=1000)
    options.add_argument("--samples", type=int, default=400)
    options.add_argument("--population", type=int, default=100_000)
    chosen = options.parse_args()
    true = true_values(chosen.population)
    found: dict[str, Any] = {"trials": chosen.trials, "samples": chosen.samples, "patients": {}}
    for patients in PATIENTS:
        found["patients"][str(patients)] = trials(patients, chosen.trials, chosen.samples, true, 7)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
