"""Scores of SGMRI-VQA: predictions and questions in, the benchmark's columns out, with coverage and
intervals.

Predictions are lines of `id` and `response`. AR, the paper's score of free text, is 0.4 of a language model's
judgement and 0.6 of the mean of BERTScore, BLEU and ROUGE-L. It is given only where all of its parts are
there: the judge's and BERTScore's numbers come as files of lines `{"id": ..., "value": 0 to 1}`, each with
the name of what made it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import DataError
from reasonknee.layout.sgmri import LEVELS
from reasonknee.layout.strict_text import json_lines
from reasonknee.scoring.bootstrap import intervals, weights
from reasonknee.sgmri.answers import MOST_BOXES, Image, QwenUnit, Said, read
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.measures import THRESHOLDS, Measured, measure
from reasonknee.sgmri.records import Record
from reasonknee.version import VERSION

COLUMNS = {
    "slice": (
        "detection",
        "classification",
        "diagnosis",
        "localization V",
        "localization AR",
        "captioning AR",
    ),
    "volume": (
        "detection",
        "classification",
        "counting",
        "localization V",
        "localization AR",
        "captioning AR",
    ),
}
JUDGE_SHARE = 0.4
Drawn = dict[str, list[FrameBox]]


@dataclass(frozen=True)
class TextPart:
    """A number for each text by something that we do not run: a judge, or BERTScore."""

    made_by: str
    values: dict[str, float]


@dataclass(frozen=True)
class Scoring:
    samples: int = 1000
    seed: int = 0
    qwen: QwenUnit = "pixels"
    judge: TextPart | None = None
    bertscore: TextPart | None = None


@dataclass
class Scored:
    scores: dict[str, Any]
    records: list[Record]
    measured: list[Measured]
    said: list[Said | None]


def read_predictions(path: Path) -> tuple[dict[str, str], Drawn]:
    """The model's words by record id, and the boxes of lines that have them, as `ask` writes them: lists of
    frame, y0, y1, x0 and x1 in the stored image. The last line of an id that stands twice would hide the
    first, so it is refused."""
    words: dict[str, str] = {}
    drawn: Drawn = {}
    for number, _, line in json_lines(path):
        id_, text = line.get("id"), line.get("response")
        if not isinstance(id_, str) or not (text is None or isinstance(text, str)):
            raise DataError("Z021", f"{path.name}:{number}: `id` and `response` are wanted", "both are text")
        if id_ in words:
            raise DataError(
                "Z022", f"{path.name}:{number}: {id_[:120]} stands twice", "keep one line of each"
            )
        words[id_] = text or ""
        if "boxes" in line:
            drawn[id_] = _drawn(line["boxes"], f"{path.name}:{number}")
    return words, drawn


def _drawn(boxes: Any, where: str) -> list[FrameBox]:
    right = (
        isinstance(boxes, list)
        and len(boxes) <= MOST_BOXES
        and all(
            isinstance(b, list) and len(b) == 5 and all(type(n) is int and abs(n) < 1 << 20 for n in b)
            for b in boxes
        )
    )
    if not right:
        raise DataError("Z026", f"{where}: `boxes` has not its form", "lists of frame, y0, y1, x0, x1")
    return [FrameBox(*b) for b in boxes]


def read_part(path: Path, made_by: str) -> TextPart:
    values: dict[str, float] = {}
    for number, _, line in json_lines(path):
        value = line.get("value")
        if not isinstance(line.get("id"), str) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise DataError(
                "Z023", f"{path.name}:{number}: `id` and a `value` of 0 to 1 are wanted", "mend it"
            )
        values[line["id"]] = float(value)
    return TextPart(made_by, values)


def score(
    predictions: dict[str, str],
    records: Iterable[Record],
    options: Scoring = Scoring(),  # noqa: B008 - frozen
    model: str = "",
    image_of: Callable[[str], Image | None] = lambda volume_id: None,
    drawn: Drawn | None = None,
) -> Scored:
    """Scores the records of the test split, or all where there is none."""
    chosen = list(records)
    chosen = [r for r in chosen if r.split == "test"] or chosen
    if not chosen:
        raise DataError("Z024", "no question to score", "name a release or a folder with questions")
    unknown = predictions.keys() - {r.id for r in chosen}
    said = [
        read(r, predictions[r.id], image_of(r.volume_id), options.qwen) if r.id in predictions else None
        for r in chosen
    ]
    for r, words in zip(chosen, said, strict=True):
        if words is not None and drawn and r.id in drawn:
            words.boxes = drawn[r.id]
    measured = [measure(r, words) for r, words in zip(chosen, said, strict=True)]
    table = _Table(chosen, measured, options)
    scores: dict[str, Any] = {
        "benchmark": "SGMRI-VQA",
        "code_version": VERSION,
        "model": model,
        "items": len(chosen),
        "by": "patient" if all(r.patient for r in chosen) else "volume",
        "clusters": len(table.clusters),
        "statuses": {s: sum(m.status == s for m in measured) for s in ("answered", "unread", "missing")},
        "unknown_ids": len(unknown),
        "qwen_boxes": options.qwen,
        "judge": options.judge.made_by if options.judge else None,
        "bertscore": options.bertscore.made_by if options.bertscore else None,
        "levels": {level: table.level(level) for level in LEVELS if any(r.level == level for r in chosen)},
    }
    return Scored(scores, chosen, measured, said)


@dataclass
class _Table:
    """Numbers by record, and how they become means with intervals over clusters."""

    records: list[Record]
    measured: list[Measured]
    options: Scoring
    clusters: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.clusters = sorted({r.cluster for r in self.records})
        place = {name: i for i, name in enumerate(self.clusters)}
        self.cluster = np.array([place[r.cluster] for r in self.records])
        self.drawn = weights(len(self.clusters), self.options.samples, self.options.seed)

    def level(self, level: str) -> dict[str, Any]:
        columns = {name: self.column(level, name) for name in COLUMNS[level]}
        values = [entry["value"] for entry in columns.values()]
        known = all(value is not None for value in values)
        boxes = self._chosen(level, "localization")
        return {
            "columns": columns,
            "average": float(np.mean(values)) if known else None,
            "boxes": {str(t): self._boxes(boxes, i) for i, t in enumerate(THRESHOLDS)},
            "texts": {
                task: {
                    "bleu": self._mean([(i, self.measured[i].bleu) for i in self._chosen(level, task)]),
                    "rouge_l": self._mean([(i, self.measured[i].rouge) for i in self._chosen(level, task)]),
                }
                for task in ("localization", "captioning")
            },
        }

    def column(self, level: str, name: str) -> dict[str, Any]:
        task, _, what = name.partition(" ")
        chosen = self._chosen(level, task)
        if what == "V":
            return self._mean([(i, self.measured[i].v) for i in chosen])
        if what == "AR":
            return self._mean(list(self._ar(chosen)))
        return self._mean([(i, self.measured[i].a) for i in chosen])

    def _ar(self, chosen: list[int]) -> Iterator[tuple[int, float]]:
        judge, bert = self.options.judge, self.options.bertscore
        if judge is None or bert is None:
            return
        for i in chosen:
            id_, m = self.records[i].id, self.measured[i]
            if m.status == "missing":
                yield i, 0.0
                continue
            if id_ not in judge.values or id_ not in bert.values:
                hint = "AR needs the judge's and BERTScore's number of every text"
                raise DataError("Z025", f"{id_}: a part of its AR is missing", hint)
            words = (bert.values[id_] + m.bleu + m.rouge) / 3
            yield i, JUDGE_SHARE * judge.values[id_] + (1 - JUDGE_SHARE) * words

    def _chosen(self, level: str, task: str) -> list[int]:
        return [i for i, r in enumerate(self.records) if r.level == level and r.task == task]

    def _mean(self, values: list[tuple[int, float]]) -> dict[str, Any]:
        defined = [(i, value) for i, value in values if not math.isnan(value)]
        if not defined:
            return {"value": None, "low": None, "high": None, "n": 0}
        index = np.array([i for i, _ in defined])
        return self._ratio(index, np.array([value for _, value in defined]), np.ones(len(defined)))

    def _ratio(self, index: np.ndarray, part: np.ndarray, whole: np.ndarray) -> dict[str, Any]:
        """Sum over sum, with the central 95 % of it over resampled clusters."""
        size = len(self.clusters)
        parts = np.bincount(self.cluster[index], weights=part, minlength=size)
        wholes = np.bincount(self.cluster[index], weights=whole, minlength=size)
        value = float(parts.sum() / wholes.sum()) if wholes.sum() else None
        low = high = None
        if value is not None and len(self.drawn) and (wholes > 0).sum() > 1:
            with np.errstate(invalid="ignore", divide="ignore"):
                ends = intervals(((self.drawn @ parts) / (self.drawn @ wholes))[None])
            low, high = (float(end[0]) for end in ends)
            if low == high:  # no spread in the sample is not certainty
                low = high = None
        return {"value": value, "low": low, "high": high, "n": len(index)}

    def _boxes(self, chosen: list[int], threshold: int) -> dict[str, Any]:
        index = np.array([i for i in chosen if self.measured[i].hits[threshold][2]], dtype=np.int64)
        if not len(index):
            return {}
        matched, predicted, true = np.array([self.measured[i].hits[threshold] for i in index]).T.astype(float)
        return {
            "precision": self._ratio(index, matched, predicted),
            "recall": self._ratio(index, matched, true),
            "f1": self._ratio(index, 2 * matched, predicted + true),
            "mean_f1": self._mean([(int(i), self.measured[i].f1(threshold)) for i in index]),
        }
