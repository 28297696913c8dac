"""What models said of the rows: judged, as columns, and their words one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import BOX_FIELDS
from reasonknee.errors import DataError
from reasonknee.layout.scores import STATUSES
from reasonknee.layout.strict_text import MAX_LINE
from reasonknee.scoring.bench import name_of
from reasonknee.scoring.lines import BOXED, MISSING, PARSED, line_at, line_fields
from reasonknee.scoring.predictions import Predictions, read_predictions, stamp_at
from reasonknee.scoring.rows import ROWS_FILE, read_rows, rows_about
from reasonknee.scoring.tally import judge
from reasonknee.scoring.truth import NONE, TABLE, Truth

VERDICTS = ("no answer", "right", "wrong", "unread")
LONGEST = 20_000  # characters of a model's words that are sent


class Model:
    """What became of a model's answers, beside the rows; and its words, if the file is there."""

    def __init__(self, name: str, truth: Truth, predicted: Predictions, words: Path | None) -> None:
        self.name, self.truth, self.predicted, self.path = name, truth, predicted, words
        self.judged = judge(truth, predicted)
        stamp = stamp_at(words) if words else None
        self.setting = str(stamp["setting"]) if stamp else ""  # how `ask` asked; empty where nobody says

    @classmethod
    def of_predictions(cls, path: Path, truth: Truth, convention: str, workers: int = 1) -> Model:
        return cls(name_of(path), truth, read_predictions(path, truth, convention, workers), path)

    @classmethod
    def of_scores(cls, folder: Path, truth: Truth, words: Path | None) -> Model:
        """From the rows that `score --out` wrote: nothing is judged again, and words are read on demand."""
        path = folder / ROWS_FILE
        return cls(rows_about(path).get("model") or folder.name, truth, read_rows(path, truth), words)

    def columns(self) -> dict[str, np.ndarray]:
        """What rows are filtered and sorted by: verdict, status, IoU (NaN where no box can be compared), and
        how bad it is."""
        judged, predicted = self.judged, self.predicted
        whole = (judged.right == judged.asked).all(1)
        verdict = np.where(
            predicted.status == MISSING, 0, np.where(predicted.status == PARSED, np.where(whole, 1, 2), 3)
        )
        shortfall = 1 - judged.right.sum(1) / np.maximum(judged.asked.sum(1), 1)
        bad = shortfall + np.where(judged.wanted, 1 - judged.iou, 0) * 0.5
        return {
            "verdict": verdict.astype(np.uint8),
            "status": predicted.status.astype(np.uint8),
            "iou": np.where(judged.given, judged.iou, np.nan).astype(np.float32),
            "badness": np.where(verdict == 0, -1, bad).astype(np.float32),
        }

    def about(self, n: int) -> dict[str, Any]:
        """What the model said of a row, and what was read from it."""
        question, predicted, judged = TABLE[self.truth.question[n]], self.predicted, self.judged
        told: dict[str, Any] = {
            "name": self.name,
            "setting": self.setting,
            "status": STATUSES[predicted.status[n]],
        }
        if predicted.status[n] == MISSING:
            return told
        slots = list(enumerate(a.id for a in question.attributes))
        boxed = predicted.box_state[n] == BOXED
        words = self._words(n)
        return {
            **told,
            "grades": {a: int(predicted.grades[n, s]) for s, a in slots if predicted.grades[n, s] != NONE},
            "right": {a: bool(judged.right[n, s]) for s, a in slots},
            "box": dict(zip(BOX_FIELDS, predicted.boxes[n].tolist(), strict=True)) if boxed else None,
            "problems": [str(problem) for problem in predicted.problems.get(n, ())],
            "words": words[:LONGEST],
            "more": max(0, len(words) - LONGEST),
            "iou": float(judged.iou[n]) if judged.given[n] else None,
            "centre_mm": float(judged.centre_mm[n]) if judged.given[n] else None,
        }

    def _words(self, n: int) -> str:
        if self.path is None:
            return "(the words are in the predictions: name them with --predictions)"
        if self.predicted.offset[n] < 0:
            return ""
        try:
            fields = line_at(self.path, int(self.predicted.offset[n]))
        except DataError:  # in the middle of a line
            fields = {}
        if fields.get("id") != self.truth.ids[n]:
            return f"({self.path.name} has changed since it was scored)"
        return str(fields.get("response" if "response" in fields else "reasoning") or "")

    def saying(self, words: str) -> np.ndarray:
        """The rows in whose answer the words stand, whatever their case."""
        if self.path is None:
            return np.zeros(0, np.uint32)
        wanted, found = words.casefold(), []
        plain = wanted.encode() if wanted.isascii() and '"' not in wanted and "\\" not in wanted else b""
        rows = np.flatnonzero(self.predicted.offset >= 0)
        rows = rows[np.argsort(self.predicted.offset[rows], kind="stable")]
        with self.path.open("rb") as file:
            for row in rows:
                file.seek(int(self.predicted.offset[row]))
                raw = file.readline(MAX_LINE + 1)
                if plain and plain not in raw.lower():  # spares most lines the parser
                    continue
                fields = line_fields(raw, self.path.name)
                said = f"{fields.get('response') or ''} {fields.get('reasoning') or ''}"
                if wanted in said.casefold():
                    found.append(row)
        return np.array(found, np.uint32)
