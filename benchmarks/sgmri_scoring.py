"""As many answers as SGMRI-VQA's test split has, scored by the whole command with its baselines: seconds of
the clock and of the processor, and where they go.

    python benchmarks/sgmri_scoring.py [--items 9293] [--samples 1000] [--profile 25]

Boxes of volumes are drawn, questions are derived from them as from the public tables, and answers are texts
and JSON with boxes that are near the true ones. Captions are as long as published ones: two to four
sentences. The command runs in a process of its own, so its start counts, too.
"""

from __future__ import annotations

import argparse
import json
import os
import pstats
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from reasonknee.sgmri.derive import Deriving, derive
from reasonknee.sgmri.fastmri_plus import AnnotatedVolume
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.labels import LABELS
from reasonknee.sgmri.records import FILE_NAME, Record, record_lines

TRAIN = 32_014 / 9_293  # training questions for each of the test split


def drawn_records(split: str, items: int, seed: int) -> Iterator[Record]:
    """So many questions of a split, with captions made as long as the published ones."""
    rng, left, number = random.Random(f"{split} {seed}"), items, 0
    while left > 0:
        anatomy = ("knee", "brain")[number % 2]
        volume = AnnotatedVolume(f"{split}{number:06d}", anatomy)
        for label in rng.sample(list(LABELS[anatomy]), rng.randint(1, 3)):
            y, x, size, first = (
                rng.randint(20, 220),
                rng.randint(20, 220),
                rng.randint(8, 60),
                rng.randint(2, 9),
            )
            volume.boxes[label] = [
                FrameBox(f, y, y + size, x, x + size) for f in range(first, first + rng.randint(2, 7))
            ]
        for record in derive(volume, split, Deriving(seed, 6), f"patient-{split}-{number // 2:05d}", 16):
            if record.task == "captioning":
                text = " ".join([record.answer.text, *record.reasoning])[:400]
                record = replace(record, answer=replace(record.answer, text=text))
            if left > 0:
                yield record
            left -= 1
        number += 1


def said(record: Record, rng: random.Random) -> str:
    """Steps, then an answer that is right more often than not; boxes some pixels off."""
    steps = " ".join(record.reasoning[:-1])
    if record.task == "localization":
        boxes = []
        for box in record.boxes:
            x, y, wide, high = box.as_xywh()
            by = rng.randint(-6, 6)
            boxes.append({"frame": box.frame, "label": "finding", "bbox": [x + by, y - by, wide, high]})
        return f"{steps}\n{json.dumps({'reasoning': steps, 'answer': record.answer.text, 'bboxes': boxes})}"
    if record.task == "captioning":
        words = record.answer.text.split()
        return " ".join(word for word in words if rng.random() < 0.7)
    wrong = {"yes_no": "No", "count": "2"}.get(record.answer.kind, "A")
    return f"<think>{steps}</think> {record.answer.text if rng.random() < 0.6 else wrong}"


def write_inputs(folder: Path, items: int, seed: int = 0) -> None:
    test = list(drawn_records("test", items, seed))
    train = drawn_records("train", round(items * TRAIN), seed)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE_NAME).open("w", encoding="utf-8") as file:
        file.writelines(record_lines([*test, *train]))
    rng = random.Random(seed)
    lines = (json.dumps({"id": r.id, "response": said(r, rng)}) + "\n" for r in test)
    (folder / "model.jsonl").write_text("".join(lines), encoding="utf-8")


def measured(folder: Path, samples: int, profile: Path | None = None) -> dict[str, float]:
    """The seconds of one run of the command."""
    words = [sys.executable, *(["-m", "cProfile", "-o", str(profile)] if profile else []), "-m", "reasonknee"]
    words += ["sgmri", "score", str(folder / "model.jsonl"), str(folder), "--out", str(folder / "scores")]
    before, began = os.times(), time.perf_counter()
    done = subprocess.run([*words, "--bootstrap", str(samples)], capture_output=True, text=True)
    after = os.times()
    if done.returncode:
        raise SystemExit(done.stderr)
    return {
        "seconds": time.perf_counter() - began,
        "user": after.children_user - before.children_user,
        "system": after.children_system - before.children_system,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--items", type=int, default=9293)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--profile", type=int, default=0, help="list so many of the costliest functions")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), given.items)
        told = measured(Path(folder), given.samples)
        scores = json.loads((Path(folder) / "scores" / "scores.json").read_text())
        print(
            f"{scores['items']:,} answers, {given.samples:,} resamples, {len(scores['baselines'])} baselines"
        )
        print(", ".join(f"{name} {value:.2f} s" for name, value in told.items()))
        if given.profile:
            profile = Path(folder) / "profile"
            measured(Path(folder), given.samples, profile)
            pstats.Stats(str(profile)).sort_stats("cumulative").print_stats(given.profile)


if __name__ == "__main__":
    main()
