"""What the page may ask for, without a word about HTTP: columns, rows, voxels, and lines of the review."""

from __future__ import annotations

import gzip
import json
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from reasonknee.boxes import Box
from reasonknee.cohort.review import FLAGS, Entry, standing
from reasonknee.errors import UsageError
from reasonknee.layout import SPLITS
from reasonknee.layout.scores import STATUSES
from reasonknee.questions.regions import LABELS
from reasonknee.viewer.label_map import boxes_of_volume, grid_of, label_map
from reasonknee.viewer.models import VERDICTS, Model
from reasonknee.viewer.replies import Asked, Reply, as_array, as_file, as_json, numbered
from reasonknee.viewer.review import Review
from reasonknee.viewer.source import Shown, Source, question_facts
from reasonknee.volumes import nifti_bytes

_PERCENTILES = (0.0, 0.5, 2.0, 50.0, 90.0, 99.5, 100.0)
_LINES = "application/x-ndjson"
_SAMPLE = 200_000  # voxels that the windows are told from


class Viewer:
    """A release or a cohort, models beside it, and a review."""

    page = "index.html"

    def __init__(self, source: Source, models: list[Model], review: Review) -> None:
        self.source, self.models, self.review = source, models, review
        self.seen: set[int] = set()  # rows whose answer was sent: a reading of them is not blind any more
        self._kept: OrderedDict[str, Shown | None] = OrderedDict()
        self._lock = threading.Lock()
        self.columns = self._columns()

    def _columns(self) -> dict[str, np.ndarray]:
        truth = self.source.truth
        volumes, numbers = _numbered([i.rpartition("-")[0] for i in truth.ids])
        self.volumes = volumes
        columns = {
            "volume": numbers.astype(np.uint32),
            "question": truth.question.astype(np.uint8),
            "split": self.source.splits,
            "grade": truth.grades.max(1).astype(np.int8),
            "box": truth.has_box.astype(np.uint8),
        }
        for m, model in enumerate(self.models):
            columns.update({f"{name}.{m}": column for name, column in model.columns().items()})
        return columns

    def index(self) -> dict[str, Any]:
        source = self.source
        return {
            "name": source.name,
            "kind": source.kind,
            "note": source.note,
            "rows": len(source.truth),
            "splits": SPLITS,
            "statuses": STATUSES,
            "verdicts": VERDICTS,
            "labels": {number: name.replace("_", " ") for name, number in LABELS.items()},
            "questions": question_facts(),
            "volumes": self.volumes,
            "columns": {name: _dtype(column) for name, column in self.columns.items()},
            "models": [model.name for model in self.models],
            "flags": FLAGS,
            "reader": self.review.reader,
            "review": str(self.review.path),
            "flagged": [source.truth.rows[e.id] for e in self.reviewed() if e.id in source.truth.rows],
        }

    def reviewed(self) -> list[Entry]:
        return standing(self.review.entries)

    def row(self, n: int, blind: bool) -> dict[str, Any]:
        """A row with all that is said of it; a blind reader gets the question alone."""
        row = self.source.row(n)
        said = [e.as_dict() for e in self.review.of(row["id"])]
        if blind:
            kept = ("id", "volume_id", "side", "visit", "shape", "spacing", "orientation", "question")
            mine = [e for e in said if e["reader"] == self.review.reader]
            return {**{name: row[name] for name in kept}, "blind": True, "review": mine}
        self.seen.add(n)
        row = {name: value for name, value in row.items() if name not in ("volume", "embedding")}
        row["grades"] = {a: g for a, g in row["grades"].items() if g is not None}
        return {**row, "models": [model.about(n) for model in self.models], "review": said}

    @property
    def opening(self) -> list[str]:
        return [f"{self.source.name}: {len(self.source.truth):,} rows", f"review: {self.review.path}"]

    def get(self, path: str, asked: Asked) -> Reply | None:
        """What the page asks for by its address."""
        what, _, rest = path.partition("/")
        row = numbered(rest, len(self.source.truth))
        if path == "index":
            return as_json(self.index())
        if path == "search":
            return self._search(asked)
        if path == "review.jsonl":
            return as_file(path, (line.encode() for line in self.review.export()), _LINES)
        if path == "predictions.jsonl":
            return as_file(path, (line.encode() for line in self.review.predictions()), _LINES)
        if what == "column" and rest in self.columns:
            return as_array(self.columns[rest])
        if row is None:
            return None
        if what == "row":
            return as_json(self.row(row, "blind" in asked))
        if what == "voxels":
            return _voxels(self.voxels(row))
        if what == "mask":
            return _voxels(self.source.mask(row))
        if what == "boxes":
            name = f"{self.source.truth.ids[row].rpartition('-')[0]}-boxes.nii.gz"
            return as_file(name, [self.labels(row)], "application/gzip")
        return None

    def post(self, path: str, said: dict[str, Any]) -> Reply | None:
        """What the page tells: a line of the review, or that the last one does not count."""
        if path == "/api/review":
            return as_json(self.add(said))
        if path == "/api/undo":
            undone = self.review.undo()
            return as_json({"undone": undone.as_dict() if undone else None})
        return None

    def _search(self, asked: Asked) -> Reply | None:
        model = numbered(asked.get("model", [""])[0], len(self.models))
        words = asked.get("words", [""])[0][:200]
        return as_array(self.models[model].saying(words)) if model is not None and words else None

    def voxels(self, n: int) -> Shown | None:
        key = self.source.voxels_key(n)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        found = self.source.voxels(n)
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > 2:  # 47 MB each at full size
                self._kept.popitem(last=False)
        return found

    def add(self, said: dict[str, Any]) -> dict[str, Any]:
        n = self.source.truth.rows.get(str(said.get("id")), -1)
        if n < 0:
            raise UsageError("H005", "there is no such row", "reload the page")
        if said.get("kind") == "reading":
            said = {**said, "blind": n not in self.seen}
        return self.review.add(said, tuple(self.source.truth.shape[n].tolist())).as_dict()

    def labels(self, n: int) -> bytes:
        """The boxes of row n's volume, and those of the models for the row, as a packed NIfTI."""
        self.seen.add(n)
        boxes = boxes_of_volume(self.source, n)
        for model in self.models:
            said = model.about(n)
            if said.get("box"):
                boxes.append((model.name, Box.from_dict(said["box"])))
        made = label_map(grid_of(self.source, n, self.voxels(n)), boxes)
        return gzip.compress(nifti_bytes(made), 3, mtime=0)


def _numbered(names: list[str]) -> tuple[list[str], np.ndarray]:
    """Distinct names in their order, and the number of each."""
    place: dict[str, int] = {}
    numbers = np.fromiter((place.setdefault(name, len(place)) for name in names), np.int64, len(names))
    return list(place), numbers


def _dtype(column: np.ndarray) -> str:
    return str(column.dtype)


def _voxels(shown: Shown | None) -> Reply:
    if shown is None:
        return Reply(None)
    array = sendable(shown.volume.array)
    about = {
        "shape": array.shape,
        "dtype": array.dtype.name,
        "origin": shown.origin,
        "percentiles": percentiles(array),
        # of (x, y, z) from the first voxel here, to RAS mm
        "affine": shown.volume.grid.affine[:3].tolist(),
    }
    return as_array(array, {"X-Volume": json.dumps(about)})


def sendable(array: np.ndarray) -> np.ndarray:
    """Voxels as a browser has an array type for."""
    narrow = array.astype(np.float32) if array.dtype == np.float64 else array
    return np.ascontiguousarray(narrow, narrow.dtype.newbyteorder("<"))


def percentiles(array: np.ndarray) -> dict[str, float]:
    step = max(1, int((array.size / _SAMPLE) ** (1 / 3)))
    values = np.percentile(array[::step, ::step, ::step], _PERCENTILES, method="inverted_cdf")
    return {f"{p:g}": float(v) for p, v in zip(_PERCENTILES, values, strict=True)}
