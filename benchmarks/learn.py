"""The paper's table on synthetic knees: what a small model learns with and without reasoning, from whole
volumes and from regions, in two steps, and by reinforcement. It writes docs/learn.md.

    python benchmarks/learn.py                      # everything, in two processes side by side
    python benchmarks/learn.py --only region        # a stage, and no page

Everything is done by the commands' own functions: a phantom cohort, a Qwen2.5-VL of about a million
parameters with random weights, `train`, `ask`, `score`, `compare`. A stage leaves a file, and is not done
again: a run that was killed goes on with the same words.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from learn_grpo import reinforce
from learn_model import checkpoint
from learn_report import PATIENTS, SIDE_BY_SIDE, STEPS, needed, write_page

from reasonknee.cohort import Cohort
from reasonknee.layout import read_manifest
from reasonknee.models import Parameters, View
from reasonknee.models.command import Asking, ask_release
from reasonknee.models.plan import Choice
from reasonknee.models.targets import Teaching
from reasonknee.models.training import Job, fine_tune
from reasonknee.models.training_rows import Recipe
from reasonknee.phantom import write_cohort
from reasonknee.release import build
from reasonknee.scoring import Options, compare, score
from reasonknee.system.files import write_text

WHOLE, REGION = View("all", size=64), View("all", size=32)
SHAPE = (32, 64, 64)
LOOKS = 5  # at the validation split in a run


@dataclass(frozen=True)
class Arm:
    """What is taught, on what view, how long an answer may be, and of how many knees a step has how many
    questions. A step of one knee teaches which grades are frequent, and hardly to look."""

    taught: str
    setting: str
    view: View
    tokens: int
    knees: int
    questions: int


ARMS = {
    "direct": Arm("no_reasoning", "zero_shot", WHOLE, 40, 4, 12),
    "reasoning": Arm("reasoning", "zero_shot", WHOLE, 140, 4, 12),
    "region": Arm("no_reasoning", "region", REGION, 24, 8, 8),
    "region_reasoning": Arm("reasoning", "region", REGION, 120, 8, 8),
}
STAGES = ("direct", "reasoning", "region", "locate_then_grade", "grpo")
OPTIONAL = ("region_reasoning", "grpo_reasoning")


def recipe(name: str, rate: float, steps: int) -> Recipe:
    arm = ARMS[name]
    return Recipe(
        view=arm.view,
        teaching=Teaching(arm.taught, arm.setting),
        packed=True,
        questions_per_volume=arm.questions,
        full=True,
        rate=rate,
        accumulate=arm.knees,
        steps=steps,
        save_every=50,
        weighting="tokens",
    )


class Table:
    """The stages of a run, each done once."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.work = given, given.work
        self.release, self.model = self.work / "release", self.work / "model"
        if not (self.work / "cohort").is_dir():
            write_cohort(self.work / "cohort", given.patients, seed=0, shape=SHAPE)
        if not self.release.is_dir():
            build(Cohort(self.work / "cohort"), self.release, configs=("full", "annotations"))
        self.size = checkpoint(self.model, self.release, [recipe(name, 1e-3, 1) for name in ARMS])

    def once(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was measured before, or what is measured now."""
        path = self.work / f"{name}.json"
        if not path.is_file():
            print(f"{name}: begins", flush=True)
            start, used = time.time(), time.process_time()
            made = make()
            minutes = {"minutes": (time.time() - start) / 60, "cpu": (time.process_time() - used) / 60}
            write_text(path, json.dumps({**made, **minutes, "load": os.getloadavg()[0]}, indent=1) + "\n")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def ask(self, name: str, model: Path, arm: Arm, boxes: Path | None = None) -> Path:
        """The answers to all questions of the test split, in a file that is called as the run is."""
        out = self.work / name / "test"
        choice = Choice(arm.setting, None, arm.view, Parameters(arm.tokens), arm=arm.taught)
        local = {"dtype": "float32", "device": "cpu", "batch": 64}
        for line in ask_release(str(self.release), out, choice, Asking(str(model), local=local, boxes=boxes)):
            print("   ", line, flush=True)
        named = self.predictions(name)
        write_text(named, (out / "predictions.jsonl").read_text(encoding="utf-8"))
        return named

    def predictions(self, name: str) -> Path:
        return self.work / f"{name}.jsonl"

    def train(self, name: str) -> dict[str, Any]:
        """Of several rates that is taken which is best on the validation split after a short run; of
        the whole run the weights are kept that were best there."""
        given, tried = self.given, {}
        for rate in given.rates if len(given.rates) > 1 else []:
            tried[rate] = self.run(f"{name}-try-{rate:g}", name, rate, max(1, given.steps // 6), 1)[1]
        best = max(tried, key=tried.__getitem__, default=given.rates[0])
        model, _ = self.run(name, name, best, given.steps, LOOKS)
        looks = [json.loads(line) for line in (self.work / name / "validation.jsonl").open()]
        self.ask(name, model, ARMS[name])
        steps = recipe(name, best, given.steps).steps
        return {"rate": best, "tried": tried, "steps": steps, "validation": looks}

    def run(self, folder: str, name: str, rate: float, steps: int, looks: int) -> tuple[Path, float]:
        """Where the best weights of a run lie, and how good they are."""
        made = recipe(name, rate, steps)
        job = Job(
            str(self.release), str(self.model), self.work / folder, None, "float32", "cpu",
            evaluate_every=max(1, made.steps // looks), evaluate_volumes=self.given.looked_at,
            evaluate_tokens=ARMS[name].tokens,
        )  # fmt: skip
        fine_tune(job, made)
        seen = [json.loads(line) for line in (job.out / "validation.jsonl").open()]
        return job.out / "best", max(_judged(look) for look in seen)

    def locate_then_grade(self) -> dict[str, Any]:
        """The boxes that `direct` drew are cut out, and `region` grades what lies in them."""
        boxes = self.predictions("direct")
        self.ask("locate_then_grade", self.work / "region" / "best", ARMS["region"], boxes)
        return {}

    def grpo(self, name: str, start: str) -> dict[str, Any]:
        out = self.work / name / "model"
        made = replace(recipe(start, 3e-4, self.given.grpo_steps), seed=1)
        told = reinforce(str(self.release), self.work / start / "best", out, made, ARMS[start].tokens)
        self.ask(name, out, ARMS[start])
        return told

    def stage(self, name: str) -> dict[str, Any]:
        if name == "locate_then_grade":
            return self.once(name, self.locate_then_grade)
        if name.startswith("grpo"):
            start = "reasoning" if name == "grpo_reasoning" else "direct"
            return self.once(name, lambda: self.grpo(name, start))
        return self.once(name, lambda: self.train(name))

    def results(self, names: Sequence[str]) -> dict[str, Any]:
        """Every run scored and compared on the test split, beside the baselines."""
        runs, options = {}, Options(samples=1000)
        for name in names:
            made = self.stage(name)
            scores = score(self.predictions(name), str(self.release), "test", options).scores
            boxes = {"box_micro": scores["localisation"]["box_micro"]}
            runs[name] = {**made, "averages": scores["averages"], "localisation": boxes}
        places = [str(self.predictions(name)) for name in names]
        baselines = {
            k: {part: v.get(part) for part in ("averages", "localisation")}
            for k, v in scores["baselines"].items()
        }
        manifest = read_manifest(self.release)
        return {
            **self.size,
            "patients": self.given.patients,
            "volumes": manifest.volumes,
            "shape": SHAPE,
            "side_by_side": SIDE_BY_SIDE,
            "runs": runs,
            "baselines": baselines,
            "comparison": needed(
                compare([*places, "majority", "constant_box"], str(self.release), "test", options)
            ),
        }


def _judged(look: dict[str, Any]) -> float:
    """As the run itself judged it."""
    iou = look["iou"]
    return float(look["accuracy"] if iou != iou else (look["accuracy"] + iou) / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/learn"))
    parser.add_argument("--patients", type=int, default=PATIENTS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--grpo-steps", type=int, default=60)
    parser.add_argument("--rates", type=lambda text: [float(r) for r in text.split(",")], default=[2e-3])
    parser.add_argument("--looked-at", type=int, default=12, help="validation volumes of a look")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--also", default="", help=f"more stages, by commas: {', '.join(OPTIONAL)}")
    parser.add_argument("--only", default="", help="these stages alone, and no page")
    parser.add_argument("--out", type=Path, default=Path("docs/bench/learn.json"))
    parser.add_argument("--page", type=Path, default=Path("docs/learn.md"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    table = Table(given)
    if given.only:
        for name in given.only.split(","):
            table.stage(name)
        return
    own = [sys.executable, __file__, *sys.argv[1:]]
    team = [subprocess.Popen([*own, "--threads", "1", "--only", ",".join(chain)]) for chain in SIDE_BY_SIDE]
    if sum(process.wait() for process in team):
        sys.exit("a stage failed; what is done is kept, and the same command goes on")
    whole = table.results([*STAGES, *filter(None, given.also.split(","))])
    write_text(given.out, json.dumps(whole, indent=1) + "\n")
    write_page(whole, given.page)


if __name__ == "__main__":
    main()
