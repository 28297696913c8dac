"""What can be had without looking at an image, fitted on the training split alone, as predictions to be
scored like any other.

- always_yes: yes, 1, A, and no box.
- majority: the most frequent training answer of the task, on that anatomy and level.
- text_only: the most frequent training answer to the very same question; else the majority.
- constant_box: the median training box of the anatomy; on a volume, on the median frames of a finding.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median

from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.records import Answer, Record

NAMES = ("always_yes", "majority", "text_only", "constant_box")


def predictions(name: str, train: Iterable[Record], asked: Iterable[Record]) -> dict[str, str]:
    """The baseline's words for each record that is asked."""
    known = list(train)
    answer: Callable[[Record], str]
    if name == "always_yes":
        answer = _always_yes
    elif name == "constant_box":
        answer = _ConstantBox(known)
    else:
        answer = _Frequent(known, by_question=name == "text_only")
    return {record.id: answer(record) for record in asked}


def _always_yes(record: Record) -> str:
    return {"yes_no": "Yes", "count": "1", "single_choice": "A", "multiple_choice": "A"}.get(
        record.answer.kind, ""
    )


def _said(answer: Answer) -> str:
    return ", ".join(answer.letters) if answer.letters else answer.text


class _Frequent:
    def __init__(self, train: list[Record], by_question: bool) -> None:
        self.by_question = by_question
        counts: dict[tuple[str, ...], Counter[str]] = {}
        for record in train:
            for key in self._keys(record):
                counts.setdefault(key, Counter())[_said(record.answer)] += 1
        self.most = {key: min(count, key=lambda text: (-count[text], text)) for key, count in counts.items()}

    def _keys(self, record: Record) -> list[tuple[str, ...]]:
        of_task = (record.anatomy, record.level, record.task, record.answer.kind)
        return [(*of_task, record.question), of_task] if self.by_question else [of_task]

    def __call__(self, record: Record) -> str:
        return next((self.most[key] for key in self._keys(record) if key in self.most), "")


class _ConstantBox:
    """The median box of the training boxes, by anatomy and level; on a volume on the median run of frames."""

    def __init__(self, train: list[Record]) -> None:
        boxes: dict[tuple[str, str], list[FrameBox]] = {}
        spans: dict[str, list[tuple[int, int]]] = {}
        for record in train:
            if record.boxes:
                boxes.setdefault((record.anatomy, record.level), []).extend(record.boxes)
            if record.level == "volume" and record.boxes:
                frames = [box.frame for box in record.boxes]
                spans.setdefault(record.anatomy, []).append((min(frames), max(frames)))
        sides = ("y0", "y1", "x0", "x1")
        self.boxes = {
            key: tuple(round(median(getattr(b, side) for b in known)) for side in sides)
            for key, known in boxes.items()
        }
        self.spans = {
            anatomy: [round(median(ends)) for ends in zip(*known, strict=True)]
            for anatomy, known in spans.items()
        }

    def __call__(self, record: Record) -> str:
        known = self.boxes.get((record.anatomy, record.level))
        if not known or record.task != "localization":
            return ""
        y0, y1, x0, x1 = known
        frames = [record.frame or 0]
        if record.level == "volume":
            first, last = self.spans[record.anatomy]
            frames = list(range(first, last + 1))
        xywh = [x0, y0, max(x1 - x0, 1), max(y1 - y0, 1)]
        boxes = [{"frame": frame + record.first_frame, "label": "", "bbox": xywh} for frame in frames]
        return json.dumps({"answer": "", "bboxes": boxes})
