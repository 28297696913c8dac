"""Do 95 % intervals cover? Samples of patients are drawn from a population whose true values are known, and
scored by the package's own code; it is counted how often an interval holds the true value.

    python benchmarks/coverage.py --out docs/bench/coverage.json [--trials 1000] [--samples 400]

A patient has one to four scans, whose findings, answers and boxes go together; grades are skewed as real ones
are, and a binary finding is rare (about one patient in thirty). Beside the method that the package uses, the
central 95 % of the resamples (the percentile method) stand for comparison. `given` is the share of samples in
which there is an interval at all: where no method covers, there is none.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.scoring import bootstrap
from reasonknee.scoring.comparison import values
from reasonknee.scoring.intervals import intervals, supports
from reasonknee.scoring.measures import Measure, diagnosis, localisation
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import Tally, judge, tally
from reasonknee.scoring.truth import INDEX, NONE, SLOTS, Truth

PATIENTS = (20, 60, 200)
# question -> where its latent severity is cut into grades, for each attribute
CUTS: dict[str, list[list[float]]] = {
    "hoffa_synovitis": [[0.3, 1.0, 1.8]],
    "medial_meniscus_root_tear": [[1.9]],
    "medial_meniscus_cyst": [[0.8], [-0.6, 0.2, 0.9]],
}
SHOWN = {
    "accuracy": ("diagnosis", "attributes", "hoffa_synovitis.grade", "accuracy", "strict"),
    "micro average": ("averages", "attribute_micro", "strict"),
    "macro average": ("averages", "question_macro", "strict"),
    "quadratic kappa": ("diagnosis", "attributes", "hoffa_synovitis.grade", "quadratic_kappa", "answered"),
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
    "IoU of at least 0.5": ("localisation", "box_micro", "at_50", "strict"),
    "centre, mm": ("localisation", "box_micro", "centre_mm", "answered"),
}  # fmt: skip


def population(patients: int, rng: np.random.Generator) -> Tally:
    """The sums of so many patients."""
    scans = rng.integers(1, 5, patients)
    patient = np.repeat(np.arange(patients), scans)
    n = len(patient)
    severe, blind = rng.normal(0, 0.8, patients)[patient], rng.normal(0, 0.5, patients)[patient]
    parts = []
    for question_id, cuts in CUTS.items():
        true, given = np.full((n, SLOTS), NONE, np.int8), np.full((n, SLOTS), NONE, np.int8)
        for slot, edges in enumerate(cuts):
            latent = severe + rng.normal(0, 0.6, n)
            told = latent + 0.7 * blind + rng.normal(0, 0.5, n)
            true[:, slot], given[:, slot] = np.searchsorted(edges, latent), np.searchsorted(edges, told)
        parts.append((np.full(n, INDEX[question_id], np.int32), true, given))
    question, true, given = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    rows = len(question)
    low = np.full((rows, 3), 20)
    boxes = np.stack([low, low + 20], axis=-1).reshape(rows, 6)
    moved = np.round(rng.normal(0, 2.5, (rows, 3)) + np.tile(4 * blind, len(CUTS))[:, None]).astype(int)
    truth = Truth(
        ids=[str(i) for i in range(rows)],
        question=question,
        patient=np.tile(patient, len(CUTS)).astype(np.int32),
        patients=tuple(map(str, range(patients))),
        visit=np.zeros(rows, np.int32),
        visits=("00m",),
        side=np.zeros(rows, np.int32),
        grades=true,
        boxes=boxes.astype(np.int32),
        has_box=np.ones(rows, bool),
        shape=np.full((rows, 3), 64, np.int32),
        spacing=np.ones((rows, 3)),
    )
    predicted = Predictions.empty(rows)
    predicted.grades[:], predicted.status[:] = given, 0
    predicted.boxes[:] = np.clip(boxes + np.repeat(moved, 2, axis=1), 0, 64)
    predicted.box_state[:] = rng.random(rows) > 0.1
    return tally(truth, predicted, judge(truth, predicted))


def shown(t: Tally) -> list[Measure]:
    measured = {m.path: m for of in (diagnosis, localisation) for m in of(t)}
    needed = set(SHOWN.values()) | {
        (*path[:-2], name, path[-1])
        for path in SHOWN.values()
        if "balanced_accuracy" in path
        for name in ("sensitivity", "specificity")
    }
    return [m for path, m in measured.items() if path in needed]


def trials(
    patients: int, count: int, samples: int, true: dict[tuple[str, ...], float], seed: int
) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    held: dict[tuple[str, ...], list[int]] = {path: [0, 0, 0, 0] for path in SHOWN.values()}
    for trial in range(count):
        t = population(patients, rng)
        points = shown(t.total)
        drawn = values(t, bootstrap.weights(patients, samples, seed + trial), shown)
        ends = intervals(points, drawn, patients, supports(t))
        low, high = bootstrap.intervals(drawn)
        for i, (point, end) in enumerate(zip(points, ends, strict=True)):
            if point.path in held and not np.isnan(point.value[0]):
                counts, value = held[point.path], true[point.path]
                counts[0] += 1
                counts[1] += not np.isnan(end.low)
                counts[2] += bool(end.low <= value <= end.high)
                counts[3] += bool(low[i] <= value <= high[i])
    return {
        name: {
            "defined": held[path][0],
            "given": held[path][1] / max(held[path][0], 1),
            "covered": held[path][2] / held[path][1] if held[path][1] >= 50 else None,
            "percentile": held[path][3] / max(held[path][0], 1),
        }
        for name, path in SHOWN.items()
    }


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
        old = " / ".join(f"{found['patients'][str(n)][name]['percentile']:.2f}" for n in PATIENTS)
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
    whole = population(chosen.population, np.random.default_rng(1)).total
    true = {m.path: float(m.value[0]) for m in shown(whole)}
    found: dict[str, Any] = {"trials": chosen.trials, "samples": chosen.samples, "patients": {}}
    for patients in PATIENTS:
        found["patients"][str(patients)] = trials(patients, chosen.trials, chosen.samples, true, 7)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
