"""Half a million predictions scored with 1,000 bootstrap samples: time, memory, and the same numbers from
scikit-learn, cell by cell.

    python benchmarks/scoring.py [--scans 7970] [--samples 1000] [--kinds ready,texts,thinking]

Truth and answers are drawn at random in the layout of a release of `--scans` scans with the 62 questions. The
same answers come in three kinds: grades and boxes ready; texts, which are steps and JSON; and texts after
some 700 characters of thinking. Two processes read. One run prints all sides, as ratios.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from reasonknee import answers
from reasonknee.boxes import Box
from reasonknee.questions import QUESTION_SETS, reasoning
from reasonknee.scoring import bootstrap, score_arrays
from reasonknee.scoring.baselines import QUICK, predict
from reasonknee.scoring.predictions import read_predictions
from reasonknee.scoring.rows import write_rows
from reasonknee.scoring.truth import INDEX, NONE, SLOTS, TABLE, Truth


def drawn_truth(scans: int, seed: int) -> Truth:
    """Two scans of each patient, all questions on each; grades with the skew of real ones, boxes anywhere."""
    rng = np.random.default_rng(seed)
    asked = [INDEX[q.id] for q in QUESTION_SETS["paper62"]]
    question = np.tile(np.array(asked, np.int32), scans)
    n = len(question)
    highest = np.array(
        [[len(a.space.grades) for a in q.attributes] + [0] * (SLOTS - len(q.attributes)) for q in TABLE]
    )[question]
    grades = np.minimum(rng.geometric(0.5, (n, SLOTS)) - 1, highest - 1).astype(
        np.int8
    )  # NONE where there is no attribute
    volumes = [f"{1000000 + s // 2:07d}-00m-{('left', 'right')[s % 2]}" for s in range(scans)]
    low = rng.integers(0, 100, (n, 3))
    corners = np.stack([low, low + rng.integers(10, 50, (n, 3))], axis=-1).reshape(n, 6).astype(np.int32)
    return Truth(
        ids=[f"{v}-{TABLE[q].id}" for v in volumes for q in asked],
        question=question,
        patient=np.repeat(np.arange(scans, dtype=np.int32) // 2, len(asked)),
        patients=tuple(f"{1000000 + p:07d}" for p in range((scans + 1) // 2)),
        visit=np.zeros(n, np.int32),
        visits=("00m",),
        side=np.repeat(np.arange(scans, dtype=np.int32) % 2, len(asked)),
        grades=grades,
        boxes=corners,
        has_box=np.ones(n, bool),
        shape=np.tile(np.array([160, 384, 384], np.int32), (n, 1)),
        spacing=np.tile(np.array([0.7, 0.365, 0.365]), (n, 1)),
    )


KINDS = ("ready", "texts", "thinking")
_THOUGHTS = (
    "Let me look at the sagittal slices again.",
    "The signal of the marrow may be brighter here than in the rest of the bone.",
    "Is this a lesion of size 2, or only partial volume?",
    "Wait, the edge of the cartilage is hard to follow on slice 41.",
    "No cyst is seen, but a number of small foci cannot be excluded.",
    "If it were larger than grade 1, it would reach the next subregion.",
)


def write_answers(truth: Truth, path: Path, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    keep, other = rng.random(truth.grades.shape) < 0.6, drawn_truth(len(truth) // 62, seed + 1).grades
    given = np.where(keep, truth.grades, other)
    moved = np.clip(truth.boxes.astype(int) + rng.integers(-5, 6, truth.boxes.shape), 0, None)
    thoughts = rng.integers(0, len(_THOUGHTS), (len(truth), 12))
    with path.open("w") as file:
        for i, id_ in enumerate(truth.ids):
            q = TABLE[truth.question[i]]
            grades = {a.id: int(g) for a, g in zip(q.attributes, given[i], strict=False)}
            box = Box(*(int(c) for c in moved[i])) if (moved[i, 1::2] > moved[i, 0::2]).all() else None
            if kind == "ready":
                line = {"id": id_, "grades": grades, "box": box and box.as_dict()}
            else:
                thinking = (
                    f"<think>{' '.join(_THOUGHTS[t] for t in thoughts[i])}</think>\n"
                    if kind == "thinking"
                    else ""
                )
                line = {
                    "id": id_,
                    "response": thinking
                    + "\n".join([*reasoning.steps(q, grades, box), answers.write(q, grades, box)]),
                }
            file.write(json.dumps(line) + "\n")


def by_scikit_learn(
    truth: Truth, grades: np.ndarray, scores: dict, weights: np.ndarray
) -> tuple[float, float, int]:
    """Every cell once, and one resample of every cell: seconds of each, and how many numbers were compared.

    They must be equal.
    """
    from sklearn.metrics import (
        accuracy_score,
        balanced_accuracy_score,
        cohen_kappa_score,
        f1_score,
        mean_absolute_error,
    )

    once = resampled = 0.0
    compared = 0
    repeat = np.repeat(np.arange(len(truth)), weights[0][truth.patient].astype(int))
    for q in np.unique(truth.question):
        for slot, attribute in enumerate(TABLE[q].attributes):
            entry = scores["diagnosis"]["attributes"][f"{TABLE[q].id}.{attribute.id}"]
            labels = attribute.space.grades
            for first, rows in (
                (True, np.flatnonzero(truth.question == q)),
                (False, repeat[truth.question[repeat] == q]),
            ):
                true, given = truth.grades[rows, slot], grades[rows, slot]
                assert (given != NONE).all()
                start = time.perf_counter()
                found = {"accuracy": accuracy_score(true, given)}
                if attribute.space.scale == "ordinal":
                    found["quadratic_kappa"] = cohen_kappa_score(
                        true, given, labels=labels, weights="quadratic"
                    )
                    found["mean_absolute_error"] = mean_absolute_error(true, given)
                elif attribute.space.scale == "nominal":
                    found["kappa"] = cohen_kappa_score(true, given, labels=labels)
                    found["macro_f1"] = f1_score(true, given, average="macro")
                else:
                    found["balanced_accuracy"] = balanced_accuracy_score(true, given)
                took = time.perf_counter() - start
                if first:
                    once += took
                    for name, value in found.items():
                        ours = entry[name]["answered"]["value"]
                        assert ours == value, (TABLE[q].id, attribute.id, name, ours, value)
                        compared += 1
                else:
                    resampled += took
    return once, resampled, compared


def megabytes() -> float:
    """Peak memory of this process and of the two that read, as far as the system tells: the largest of
    those counts twice."""
    own, largest = (
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return (own + 2 * largest) / 1024


def processor() -> float:
    """Seconds of processor that this process and its children have had: on a busy machine, what the clock
    says is not ours."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--scans", type=int, default=7970)
    options.add_argument("--samples", type=int, default=1000)
    options.add_argument("--kinds", default=",".join(KINDS))
    options.add_argument("--peer", action=argparse.BooleanOptionalAction, default=True)
    chosen = options.parse_args()
    kinds = chosen.kinds.split(",")
    if len(kinds) > 1:  # each in a process of its own, so that a peak of memory is of one kind
        for kind in kinds:
            last = ["--peer" if chosen.peer and kind == kinds[-1] else "--no-peer"]
            numbers = ["--scans", str(chosen.scans), "--samples", str(chosen.samples)]
            subprocess.run([sys.executable, __file__, "--kinds", kind, *numbers, *last], check=True)
        return
    truth, train = drawn_truth(chosen.scans, 0), drawn_truth(200, 9)
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = Path(folder, f"{kind}.jsonl")
            write_answers(truth, path, 1, kind)
            start, used = time.perf_counter(), processor()
            predicted = read_predictions(path, truth, workers=2)
            read, read_used = time.perf_counter() - start, processor() - used
            start, used = time.perf_counter(), processor()
            guesses = {name: predict(name, train, truth) for name in QUICK}
            scored = score_arrays(truth, predicted, guesses, samples=chosen.samples)
            took, took_used = time.perf_counter() - start, processor() - used
            start, used = time.perf_counter(), processor()
            write_rows(Path(folder, "rows.parquet"), truth, predicted, scored.judged, {})
            wrote, wrote_used = time.perf_counter() - start, processor() - used
            print(
                f"{kind}: {len(truth):,} predictions, {path.stat().st_size / 1e6:,.0f} MB, "
                f"{chosen.samples:,} samples: {read + took + wrote:.1f} s; "
                f"read {read:.1f} s ({read_used:.1f} s of processor), scored with baselines {took:.1f} s "
                f"({took_used:.1f} s), rows.parquet {wrote:.1f} s ({wrote_used:.1f} s); "
                f"peak {megabytes():,.0f} MB",
                flush=True,
            )
            path.unlink()
        if chosen.peer:
            weights = bootstrap.weights(len(truth.patients), 1, 0)
            once, resampled, compared = by_scikit_learn(truth, predicted.grades, scored.scores, weights)
            peer = once + chosen.samples * resampled
            print(
                f"scikit-learn, cell by cell: {compared} numbers, all equal to the last digit: {once:.1f} s; "
                f"{resampled:.1f} s for one resample,"
            )
            print(f"so {peer:,.0f} s for {chosen.samples:,}: {peer / took:,.0f} times ours")


if __name__ == "__main__":
    main()
