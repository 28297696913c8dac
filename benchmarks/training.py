"""What packing and stored embeddings save in training, on a small Qwen2.5-VL of the real class: 31 questions
behind a volume of 2,000 tokens in one forward and one by one, with the same loss and gradients; steps of the
real trainer from pixels and from embeddings; and how long a step waits for its data.

Times are of the processor on one thread, but for the wait, which is by the clock.

    python benchmarks/training.py [--out docs/bench/training.json] [--page docs/training.md]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pages import put

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))


class Timed:
    """A loader that notes when each batch was asked for, and when it came."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.waited, self.asked, self.spent = batches, [], [], []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        following = iter(self.batches)
        while True:
            self.asked.append(time.perf_counter())
            self.spent.append(time.process_time())
            batch = next(following, None)
            self.waited.append(time.perf_counter() - self.asked[-1])
            if batch is None:
                return
            yield batch

    def steps(self) -> dict[str, float]:
        """The mean step, without the first one, in which everything is warmed up."""
        count = len(self.asked) - 2
        if count < 1:
            raise SystemExit("too few steps")
        clock = self.asked[-1] - self.asked[1]
        return {
            "seconds": round((self.spent[-1] - self.spent[1]) / count, 4),
            "share_waiting": round(sum(self.waited[1:-1]) / clock, 4),
        }


def stepped(job: Any, recipe: Any) -> dict[str, Any]:
    """A run of the real trainer."""
    from reasonknee.models.training import Data, _knees, fine_tune

    made = _knees(job, recipe)
    timed: list[Timed] = []

    def batches(local: Any) -> Any:
        timed.append(Timed(made.batches(local)))
        return timed[0]

    fine_tune(job, recipe, data=Data(made.name, made.version, batches, {}))
    losses = [json.loads(line)["loss"] for line in (job.out / "losses.jsonl").open()]
    return {**timed[0].steps(), "losses": losses}


def measured(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    import tiny_models
    import torch

    from reasonknee.cohort import Cohort
    from reasonknee.models.check import packing
    from reasonknee.models.embed import Embedding, embed
    from reasonknee.models.local import Local
    from reasonknee.models.targets import Teaching
    from reasonknee.models.training import Job
    from reasonknee.models.training_rows import Recipe
    from reasonknee.models.views import View
    from reasonknee.phantom import write_cohort
    from reasonknee.release import build
    from reasonknee.stream import volumes

    torch.set_num_threads(1)
    write_cohort(
        folder / "cohort", patients=given.patients, seed=0, shape=(given.slices, given.size, given.size)
    )
    build(Cohort(folder / "cohort"), folder / "release")
    release = str(folder / "release")
    model = tiny_models.checkpoint("qwen2_5_vl", folder / "model", layers=given.layers, width=given.width)
    recipe = Recipe(
        view=View(f"even:{given.slices}"),
        teaching=Teaching("no_reasoning", "zero_shot"),
        packed=True,
        questions_per_volume=given.questions,
        accumulate=1,
        steps=given.steps,
        save_every=10_000,
        dropout=0.0,
    )
    local = Local.load(str(model), dtype="float32", device="cpu")
    item = next(iter(volumes(release, "full", "train", seed=0, batch_size=1)))
    packing(local, recipe, item, 2, time.process_time)  # everything is warmed up
    packed = packing(local, recipe, item, given.questions, time.process_time)
    embed(Embedding(release, local, recipe.view), folder / "embeddings.h5")
    job = Job(release, str(model), folder / "pixels", dtype="float32", device="cpu")
    pixels = stepped(job, recipe)
    stored = stepped(replace(job, out=folder / "stored", embeddings=folder / "embeddings.h5"), recipe)
    weights = sum(p.numel() for p in local.model.parameters())
    off = max(abs(a - b) / a for a, b in zip(pixels["losses"], stored["losses"], strict=True))
    return {
        "torch": torch.__version__,
        "weights": weights,
        "packing": {k: round(v, 4) if "seconds" in k else v for k, v in asdict(packed).items()},
        "steps": {"pixels": pixels, "embeddings": stored, "questions": given.questions, "losses_off": off},
    }


def table(found: dict[str, Any]) -> str:
    """What docs/training.md shows."""
    one, steps = found["packing"], found["steps"]
    pixels, stored = steps["pixels"], steps["embeddings"]
    times = one["seconds_alone"] / one["seconds"]
    return f"""A Qwen2.5-VL of {found["weights"] / 1e6:.1f} million random weights learns
{one["questions"]} questions behind {one["prefix"]:,} tokens that they share, in float32 on one thread
(`python benchmarks/training.py`; [bench/training.json](bench/training.json)).
Seconds are of the processor, forward and backward:

| | tokens | seconds |
|---|---|---|
| one by one | {one["tokens_alone"]:,} | {one["seconds_alone"]:.1f} |
| packed | {one["tokens"]:,} | {one["seconds"]:.1f}: {times:.1f} times as fast |

The loss differs by {one["loss_off"]:.0e}, the gradient of the worst weight by {one["gradients_off"]:.0e}.
Then steps of the trainer, each of a packed volume:

| from | seconds a step | time of a step that is spent waiting for data |
|---|---|---|
| pixels | {pixels["seconds"]:.2f} | {pixels["share_waiting"]:.2%} |
| embeddings | {stored["seconds"]:.2f} | {stored["share_waiting"]:.2%} |

Losses from bfloat16 embeddings differ by at most {steps["losses_off"]:.0e} of themselves. This vision tower
is tiny, so its embeddings save little; what those of a real one save was not measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=6)
    parser.add_argument("--slices", type=int, default=62)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--questions", type=int, default=31)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measured(Path(name), given)
    print(table(found))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.page:
        put(given.page, Path(__file__).name, table(found))


if __name__ == "__main__":
    main()
