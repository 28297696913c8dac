"""The rows that a recipe reads, and how each becomes an example."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.models.examples import check_weighting, example
from reasonknee.models.local import Local
from reasonknee.models.qwen import Packed, packs_of, tensors
from reasonknee.models.targets import Teaching, target
from reasonknee.models.views import Showing, View, region_of, together
from reasonknee.release.reader import Release
from reasonknee.stream import quintuples, volumes
from reasonknee.volumes import Grid, Volume
from reasonknee.volumes.embeddings import EmbeddingFile

SAMPLINGS = ("natural", "balanced")


@dataclass(frozen=True)
class Recipe:
    """How a model is taught. LoRA's numbers are the paper's; its learning rate is ten times lower than is
    usual for LoRA, so ours is 1e-4 unless it is given."""

    view: View = field(default_factory=View)
    teaching: Teaching = field(default_factory=Teaching)
    packed: bool = False  # all questions of a volume in one forward
    questions_per_volume: int = 0  # drawn anew each epoch; 0 for all
    sampling: str = "natural"  # or balanced: rare grades are drawn as often as frequent ones
    weighting: str = "questions"  # what the loss is averaged over
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.05
    full: bool = False  # all weights instead of an adapter
    rate: float = 1e-4
    accumulate: int = 8
    epochs: float = 2.0
    steps: int = -1
    save_every: int = 50
    checkpointing: bool = False
    seed: int = 0
    longest: int | None = None
    margin_mm: float = 10.0  # around a region that is cut out, as for `ask`

    def __post_init__(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise UsageError("N074", f"unknown sampling {self.sampling!r}", f"one of {', '.join(SAMPLINGS)}")
        check_weighting(self.weighting)
        if self.sampling == "balanced" and not self.questions_per_volume:
            raise UsageError(
                "N074", "balanced sampling of all questions", "say how many of a volume are drawn"
            )


class Scene:
    """What of a knee its questions are taught on: the whole volume, the region of each, or both. Where there
    is no box the whole volume is shown, as `ask` does."""

    def __init__(self, local: Local, recipe: Recipe, item: Mapping[str, Any]) -> None:
        self.local, self.recipe, self.side = local, recipe, item["side"]
        self.volume = volume_of(item)
        self.window = recipe.view.window_of(self.volume.array)
        self.whole = local.fitted(recipe.view.show(self.volume, self.side, None, self.window))

    def of(self, row: Mapping[str, Any]) -> Showing:
        """What one question is shown."""
        setting = self.recipe.teaching.setting
        if setting not in ("region", "both") or not row["box"]:
            return self.whole
        grid = self.volume.grid
        crop = region_of(Box.from_dict(row["box"]), grid.shape, grid.spacing, self.recipe.margin_mm)
        part = self.local.fitted(self.recipe.view.show(self.volume, self.side, crop, self.window))
        return together(self.whole, part) if setting == "both" else part


class Examples:
    """Collates rows of the stream into what the model's forward takes. One row, or one volume, at a time.

    With `embeddings`, a file that `embed` made by the same model and view, rows need no voxels.
    """

    def __init__(
        self, local: Local, recipe: Recipe, rarity: Mapping[str, float], embeddings: Path | None = None
    ) -> None:
        self.local, self.recipe, self.rarity, self.embeddings = local, recipe, rarity, embeddings
        self.epoch: Callable[[], int] = lambda: 0  # under way, as the loader knows it

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        (item,) = rows
        taught = self.recipe.teaching
        chosen = self._chosen(item["volume_id"], item.get("quintuples", [item]))
        scene = Scene(self.local, self.recipe, item)
        if taught.setting in ("region", "both"):
            return self._with_regions(item, scene, chosen)
        packed = self.local.packed(scene.whole)
        targets = [target({**item, **q}, scene.whole, taught) for q in chosen]
        made = example(self.local, targets, packed, self.recipe.longest)
        given = tensors([packed])
        if self.embeddings:
            given = {k: v for k, v in given.items() if k.endswith("_grid_thw")}
            given["embedding"] = self._embedding(item["volume_id"], packed)
        return made | given

    def _with_regions(
        self, item: dict[str, Any], scene: Scene, chosen: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Each question with its own region, alone or after the volume that all share."""
        local, both = self.local, self.recipe.teaching.setting == "both"
        showings = [scene.of(row) for row in chosen]
        targets = [
            target({**item, **row}, showing, self.recipe.teaching)
            for row, showing in zip(chosen, showings, strict=True)
        ]
        alone = [showing.region if both else showing for showing in showings]
        own: list[tuple[Packed, ...]] = [() if part is None else (local.packed(part),) for part in alone]
        shared = local.packed(scene.whole) if both else None
        made = example(local, targets, shared, self.recipe.longest, own)
        return made | tensors([*packs_of(shared), *(pack for packs in own for pack in packs)])

    def _embedding(self, volume_id: str, packed: Packed) -> Any:
        """The matrix of a volume, if it was made of the same frames."""
        import torch

        with EmbeddingFile(self.embeddings or Path()) as file:
            stored = file.read(volume_id)
        grid = stored.made.grid
        slices = list(packed.slices[: len(stored.made.slices or ())])
        if grid is None or list(grid.values()) != packed.grids[0].tolist() or slices != stored.made.slices:
            hint = "embed with the model and the view that you train with"
            raise DataError("N085", f"{volume_id}: its embedding is of another view", hint)
        if stored.dtype == "bfloat16":
            return torch.from_numpy(stored.array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(stored.array)

    def _chosen(self, volume_id: str, questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The questions of a volume that are taught this time: the same for the same seed and epoch."""
        most = self.recipe.questions_per_volume
        if not most or len(questions) <= most:
            return questions
        named = f"{self.recipe.seed}/{self.epoch()}/{volume_id}"
        draw = random.Random(hashlib.sha256(named.encode()).digest())
        if self.recipe.sampling == "natural":
            return draw.sample(questions, most)
        # by their weights without replacement: the largest of u ** (1 / weight)
        keys = {q["id"]: draw.random() ** (1 / max(self.rarity.get(_kind(q), 1.0), 1e-9)) for q in questions}
        return sorted(questions, key=lambda q: keys[q["id"]], reverse=True)[:most]


def volume_of(item: Mapping[str, Any]) -> Volume:
    """The volume of a row; one without voxels has its shape and place alone, and is black."""
    if item.get("volume") is not None:
        return Volume(item["volume"], Grid(item["volume"].shape, item["affine"]))
    shape = (item["shape"]["z"], item["shape"]["y"], item["shape"]["x"])
    affine = np.eye(4)
    z, y, x = item["orientation"]
    for column, world, name, grows in ((2, 0, "z", z == "R"), (1, 2, "y", y == "S"), (0, 1, "x", x == "A")):
        affine[:3, column] = 0
        affine[world, column] = item["spacing"][name] * (1 if grows else -1)
    return Volume(np.broadcast_to(np.uint8(0), shape), Grid(shape, affine))


def _kind(row: Mapping[str, Any]) -> str:
    """A question with its grades: what balanced sampling makes equally frequent."""
    grades = ",".join("" if g is None else str(g) for g in row["grades"].values())
    return f"{row['question_id']}:{grades}"


def rarity_of(release: str) -> dict[str, float]:
    """One over how often a question has these grades in training."""
    table = Release(release).columns("train", ["question_id", "grades"])
    rows = zip(table["question_id"].to_pylist(), table["grades"].to_pylist(), strict=True)
    counts = Counter(_kind({"question_id": q, "grades": g}) for q, g in rows)
    return {kind: 1 / count for kind, count in counts.items()}


def training_rows(release: str, recipe: Recipe, voxels: bool = True) -> Any:
    """The stream that a recipe reads: volumes where their questions are packed, else questions one by one.
    Processes take as many steps each, since each step waits for all: at the end of an epoch fewer rows than
    there are processes are left out, others each time."""
    config = "full" if voxels else "annotations"
    if recipe.packed:
        return volumes(release, config, "train", seed=recipe.seed, batch_size=1, even="drop")
    boxed = recipe.teaching.arm == "box_given"
    return quintuples(release, config, "train", seed=recipe.seed, batch_size=1, boxed=boxed, even="drop")
