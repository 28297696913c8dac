"""A release of SGMRI-VQA in the browser: questions as columns, one by one in words, and their frames as
pixels. Models stand beside them, judged as `score` judges them. It is the viewer of knees with another page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import UsageError
from reasonknee.layout.places import release_folder
from reasonknee.layout.sgmri import ALL_TASKS, ANATOMIES, LEVELS, SPLITS, read_qa_manifest
from reasonknee.sgmri.answers import Image, QwenUnit, Said, qwen_unit
from reasonknee.sgmri.command import questions_of
from reasonknee.sgmri.look import numbers_of, what_is_read
from reasonknee.sgmri.measures import Measured
from reasonknee.sgmri.records import Record
from reasonknee.sgmri.scores import Scoring, read_predictions, score
from reasonknee.sgmri.stream import Choosing, QaSource
from reasonknee.stream.entries import Entry
from reasonknee.viewer.open import MOST_MODELS, serving
from reasonknee.viewer.replies import Asked, Reply, as_array, as_json, numbered
from reasonknee.viewer.server import Server

VERDICTS = ("no answer", "right", "wrong", "unread", "in part")
LONGEST = 20_000  # characters of a model's words that are sent
_NO_PIXELS = "This release holds no pixels. Build it from your own scans: `reasonknee sgmri build --images`."


class Model:
    """A model's answers, judged: what is read of each, and what that is worth."""

    def __init__(self, path: Path, records: list[Record], qwen: QwenUnit) -> None:
        self.name = path.parent.name if path.stem == "predictions" else path.stem
        self.words, drawn = read_predictions(path)
        sizes = {r.volume_id: Image(*r.shape[1:]) for r in records if r.shape}
        known = [r for r in records if r.id in self.words]
        self.judged: dict[str, tuple[Said | None, Measured]] = {}
        for split in SPLITS:  # `score` takes the test split alone where there is one
            some = [r for r in known if r.split == split]
            made = score(self.words, some, Scoring(0, qwen=qwen), "", sizes.get, drawn) if some else None
            if made:
                pairs = zip(made.said, made.measured, strict=True)
                self.judged |= {r.id: pair for r, pair in zip(made.records, pairs, strict=True)}

    def columns(self, records: list[Record]) -> dict[str, np.ndarray]:
        """What rows are filtered and sorted by: verdict, and what an answer is worth (NaN without one)."""
        worth = [self._worth(r.id) for r in records]
        verdicts = [self._verdict(r.id, w) for r, w in zip(records, worth, strict=True)]
        return {"verdict": np.array(verdicts, np.uint8), "worth": np.array(worth, np.float32)}

    def _worth(self, id_: str) -> float:
        """The measure that the question's task has: A, else V, else ROUGE-L."""
        if id_ not in self.judged:
            return math.nan
        measured = self.judged[id_][1]
        return next((n for n in (measured.a, measured.v, measured.rouge) if not math.isnan(n)), math.nan)

    def _verdict(self, id_: str, worth: float) -> int:
        if id_ not in self.judged:
            return VERDICTS.index("no answer")
        if self.judged[id_][1].status == "unread":
            return VERDICTS.index("unread")
        return VERDICTS.index({0.0: "wrong", 1.0: "right"}.get(worth, "in part"))

    def about(self, id_: str) -> dict[str, Any]:
        if id_ not in self.judged:
            return {"name": self.name, "status": "missing", "boxes": []}
        said, measured = self.judged[id_]
        words = self.words[id_]
        return {
            "name": self.name,
            "status": measured.status,
            "words": words[:LONGEST],
            "more": max(0, len(words) - LONGEST),
            "read": what_is_read(said) if said else {},
            "boxes": [list(box) for box in said.boxes] if said else [],
            "problems": said.problems if said else [],
            "numbers": numbers_of(measured),
        }


class FrameViewer:
    """A release, and models beside it."""

    page = "frames.html"

    def __init__(self, place: str | Path, predictions: Sequence[Path] = (), qwen: str = "pixels") -> None:
        if len(predictions) > MOST_MODELS:
            told = f"{len(predictions)} models"
            raise UsageError("Z073", told, f"at most {MOST_MODELS} fit side by side")
        self.folder = release_folder(place)
        manifest = read_qa_manifest(self.folder)
        self.name = f"{Path(place).name} {manifest.release_version}"
        self.records = questions_of(self.folder)
        self.rows = {record.id: n for n, record in enumerate(self.records)}
        self.models = [Model(path, self.records, qwen_unit(qwen)) for path in predictions]
        self.shown_from = next((c for c in ("volumes", "slices") if manifest.of(c)), "")
        self._sources: dict[str, tuple[QaSource, dict[str, Entry]]] = {}
        self.columns = self._columns()

    def _columns(self) -> dict[str, np.ndarray]:
        records = self.records
        place = {name: i for i, name in enumerate(dict.fromkeys(r.volume_id for r in records))}
        self.volumes = list(place)
        columns: dict[str, np.ndarray] = {
            "volume": np.array([place[r.volume_id] for r in records], np.uint32),
            "split": np.array([SPLITS.index(r.split) for r in records], np.uint8),
            "anatomy": np.array([ANATOMIES.index(r.anatomy) for r in records], np.uint8),
            "level": np.array([LEVELS.index(r.level) for r in records], np.uint8),
            "task": np.array([ALL_TASKS.index(r.task) for r in records], np.uint8),
            "frame": np.array([-1 if r.frame is None else r.frame for r in records], np.float32),
        }
        for m, model in enumerate(self.models):
            columns |= {f"{name}.{m}": column for name, column in model.columns(records).items()}
        return columns

    @property
    def opening(self) -> list[str]:
        note = [] if self.shown_from else [_NO_PIXELS]
        return [f"{self.name}: {len(self.records):,} questions", *note]

    def get(self, path: str, asked: Asked) -> Reply | None:
        what, _, rest = path.partition("/")
        row = numbered(rest, len(self.records))
        if path == "index":
            return as_json(self.index())
        if path == "search":
            return self._search(asked)
        if path == "find":
            number = self.rows.get(asked.get("id", [""])[0])
            return None if number is None else as_json({"row": number})
        if what == "column" and rest in self.columns:
            return as_array(self.columns[rest])
        if what == "row" and row is not None:
            record = self.records[row]
            return as_json({**record.as_row(), "models": [model.about(record.id) for model in self.models]})
        if what == "frames" and row is not None:
            return self._frames(self.records[row])
        return None

    def post(self, path: str, said: dict[str, Any]) -> Reply | None:
        return None

    def index(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "note": "" if self.shown_from else _NO_PIXELS,
            "rows": len(self.records),
            "splits": SPLITS,
            "anatomies": ANATOMIES,
            "levels": LEVELS,
            "tasks": ALL_TASKS,
            "verdicts": VERDICTS,
            "volumes": self.volumes,
            "columns": {name: str(column.dtype) for name, column in self.columns.items()},
            "models": [model.name for model in self.models],
        }

    def _search(self, asked: Asked) -> Reply | None:
        """Rows in which words stand: in id, question and answer, or in what a model said."""
        words = asked.get("words", [""])[0][:200].casefold()
        model = numbered(asked.get("model", [""])[0], len(self.models))
        if not words or ("model" in asked and model is None):
            return None
        found = [n for n, r in enumerate(self.records) if words in self._text(r, model).casefold()]
        return as_array(np.array(found, np.uint32))

    def _text(self, record: Record, model: int | None) -> str:
        if model is not None:
            return self.models[model].words.get(record.id, "")
        return f"{record.id}\n{record.question}\n{record.answer.text}"

    def _frames(self, record: Record) -> Reply:
        """The frames of a question's volume; where slices alone are stored, its own."""
        config = self.shown_from
        if not config or (config == "slices" and record.level != "slice"):
            return Reply(None)
        source, entries = self._opened(config, record.split)
        entry = entries.get(record.volume_id)
        if entry is None or record.id not in entry.questions:
            return Reply(None)
        row = source.open(entry).quintuple(record.id)
        image = row["image"]
        return as_array(image, {"X-Frames": ",".join(map(str, (*image.shape, row["start"])))})

    def _opened(self, config: str, split: str) -> tuple[QaSource, dict[str, Entry]]:
        if split not in self._sources:
            source = QaSource(self.folder, config, split, Choosing())
            self._sources[split] = source, {entry.volume_id: entry for entry in source.entries}
        return self._sources[split]


def started(
    place: str | Path,
    predictions: Sequence[Path] = (),
    *,
    qwen: str = "pixels",
    host: str = "127.0.0.1",
    port: int | None = None,
) -> Server:
    """A server that has its port and has not begun to answer."""
    return serving(FrameViewer(place, predictions, qwen), host, port)
