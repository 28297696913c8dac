"""How a model in training does on the validation split, by the scorer's own judgement: how often its answers
can be read, how many grades are right, and how well its boxes lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from reasonknee.errors import DataError
from reasonknee.models.coordinates import form_named
from reasonknee.models.local import Local
from reasonknee.models.requests import Parameters
from reasonknee.models.targets import Teaching, target
from reasonknee.models.training_rows import Recipe, Scene
from reasonknee.questions import question
from reasonknee.release.reader import Release
from reasonknee.scoring.rewards import parts
from reasonknee.scoring.truth import Truth, read_truth
from reasonknee.stream import volumes


@dataclass(frozen=True)
class Evaluation:
    """Shares from 0 to 1 over the questions that were asked; `iou` over those with a box."""

    asked: int
    parsed: float
    accuracy: float
    iou: float

    @property
    def score(self) -> float:
        """What the best model of a run is chosen by."""
        return self.accuracy if np.isnan(self.iou) else (self.accuracy + self.iou) / 2


class Evaluator:
    """Asks the same volumes and questions each time: `count` volumes of the split, evenly spread."""

    def __init__(
        self, release: str, recipe: Recipe, count: int, per_volume: int, split: str = "validation"
    ) -> None:
        opened = Release(release)
        if split not in opened.splits:
            raise DataError("N086", f"{release} has no split {split}", "train without --evaluate-every")
        self.truth = read_truth(opened, split)
        self.release, self.recipe, self.split = release, recipe, split
        self.count, self.per_volume = count, per_volume

    def _items(self) -> Iterator[dict[str, Any]]:
        # by one process of those that train, which sees all
        items = list(volumes(self.release, "full", self.split, seed=None, batch_size=1, ranks="whole"))
        step = max(1, len(items) // self.count)
        yield from items[::step][: self.count]

    def __call__(self, local: Local, most_tokens: int = 512) -> Evaluation:
        """Greedy answers of the model as it is now."""
        ids, replies = [], []
        form = form_named(self.recipe.view.form)
        for item in self._items():
            scene = Scene(local, self.recipe, item)
            step = max(1, len(item["quintuples"]) // self.per_volume) if self.per_volume else 1
            for rows in _alike(item["quintuples"][::step][: self.per_volume or None], self.recipe.teaching):
                showing = scene.of(rows[0])
                texts = [target({**item, **row}, showing, self.recipe.teaching).question for row in rows]
                found = local.replies(showing, texts, Parameters(most_tokens))
                for row, reply in zip(rows, found, strict=True):
                    ids.append(row["id"])
                    replies.append(form.read(question(row["question_id"]), reply.text, showing.grid))
        truth = _only(self.truth, [self.truth.rows[id_] for id_ in ids])
        judged = parts(truth, replies)
        boxed = judged.box[truth.has_box]
        return Evaluation(
            asked=len(ids),
            parsed=float(np.mean([reply.status == "parsed" for reply in replies])),
            accuracy=float(np.nanmean(judged.grades)),
            iou=float(np.nanmean(boxed)) if len(boxed) else float("nan"),
        )


def _alike(rows: Sequence[dict[str, Any]], teaching: Teaching) -> list[list[dict[str, Any]]]:
    """Questions that are shown the same, together."""
    regional = teaching.setting in ("region", "both")
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row["box"].values()) if regional and row["box"] else None, []).append(row)
    return list(groups.values())


def _only(truth: Truth, rows: list[int]) -> Truth:
    index = np.array(rows, dtype=np.int64)
    columns = {f.name: getattr(truth, f.name) for f in fields(truth)}
    chosen: dict[str, Any] = {k: v[index] for k, v in columns.items() if isinstance(v, np.ndarray)}
    return replace(truth, ids=[truth.ids[i] for i in rows], **chosen)
