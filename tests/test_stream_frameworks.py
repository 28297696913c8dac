"""The property of test_stream_states.py where a framework runs the loop: accelerate and Lightning, in two real processes that take one drawn case after another."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import needs
from test_stream_states import NAMES, small
from warm import Warm

needs("torch")
needs("accelerate")
needs("lightning")

JOB = Path(__file__).parent / "framework_job.py"
EPOCHS, RANKS = 2, 2
Case = dict[str, Any]


def drawn(by: str, draw: random.Random, release: Path) -> Case:
    """A run over two epochs, cut up to twice, anywhere; what may change is drawn anew after each cut."""
    batch = draw.randint(1, 7)
    stream = {
        "seed": draw.choice([None, *range(10)]),
        "questions": NAMES[: draw.randint(1, 4)],
        "sides": draw.choice([None, "left"]),
        "boxed": draw.random() < 0.5,
        "lanes": draw.choice([1, 2, 8]),
    }
    rounds = len(small(release, **stream)) // (batch * RANKS)  # whole ones of an epoch
    steps = range(1, rounds * EPOCHS + 1)
    cuts = sorted(draw.sample(steps, min(len(steps), draw.randint(0, 2))))
    # Lightning waits for all ranks at every step, so that each must have as many, and believes that their number stays;
    # and it counts steps from the beginning
    modes = [draw.choice(["pad", "drop"])] if by == "lightning" else ["pad", "drop", None, None]
    stops = cuts if by == "lightning" else _within(cuts, rounds)
    runs = [
        {
            "stop": stop,
            "workers": draw.choice([0, 1, 2, 3]),
            "even": draw.choice(modes),
            "alone": by == "accelerate" and draw.random() < 0.2,
            "after": draw.random() < 0.3,  # saved when Lightning's fit is over, not after its last step
        }
        for stop in [*stops, None]
    ]
    return {"by": by, "epochs": EPOCHS, "batch_size": batch, "stream": stream, "runs": runs}


def _within(cuts: list[int], rounds: int) -> list[tuple[int, int]]:
    """The epoch in which a run is cut, and after so many of its own steps in it."""
    found = []
    for before, cut in pairwise([0, *cuts]):
        epoch = (cut - 1) // rounds
        found.append((epoch, cut - max(before, epoch * rounds)))
    return found


def lost_or_twice(every: Counter[str], given: Counter[str], case: Case) -> str:
    """What is wrong with an epoch; "" where nothing is. `even` may leave out, or repeat, less than a round."""
    modes = {run["even"] for run in case["runs"]}
    most = case["batch_size"] * RANKS - 1
    lost, twice = (every - given).total(), (given - every).total()
    wrong = lost > (most if "drop" in modes else 0) or twice > (most if "pad" in modes else 0)
    return f"{lost} lost, {twice} too many" if wrong else ""


def ran(release: Path, out: Path, cases: list[Case], warm: Warm) -> list[Any]:
    """What each rank tells of the cases."""
    (out / "cases.json").write_text(json.dumps(cases))
    warm.run(JOB, release, out / "cases.json", out, needs=("lightning", "accelerate"), ranks=RANKS)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(RANKS)]


def check(release: Path, out: Path, by: str, many: int, warm: Warm) -> None:
    seed = 0 if "CI" in os.environ else random.randrange(10**6)
    draw = random.Random(seed)
    cases = [drawn(by, draw, release) for _ in range(many)]
    wrong = {}
    for number, (case, *seen) in enumerate(zip(cases, *ran(release, out, cases, warm), strict=True)):
        every = Counter(row["id"] for row in small(release, **case["stream"]))
        for epoch in range(EPOCHS):
            given = Counter(i for rank in seen for e, batch in rank if e == epoch for i in batch)
            if said := lost_or_twice(every, given, case):
                wrong[f"case {number} of seed {seed}, epoch {epoch}"] = (said, case)
    assert not wrong, f"{len(wrong)} of {len(cases)}: {list(wrong.items())[:3]}"


@pytest.mark.parametrize(("by", "many"), [("accelerate", 60), ("lightning", 20)])
def test_nothing_is_lost_and_nothing_comes_twice_in_two_processes(
    release: Path, tmp_path: Path, warm: Warm, by: str, many: int
) -> None:
    check(release, tmp_path, by, many, warm)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "many"), [("accelerate", 1500), ("lightning", 300)])
def test_nor_in_thousands_of_cases(release: Path, tmp_path: Path, warm: Warm, by: str, many: int) -> None:
    check(release, tmp_path, by, many, warm)
