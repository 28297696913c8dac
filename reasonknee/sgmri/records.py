"""A question of SGMRI-VQA with all that is known of its answer: one typed record for slices and for volumes.

    {"id": "knee-test-slice-...", "anatomy": "knee", "split": "test", "level": "slice", "task": "detection",
     "source": "derived", "volume_id": "file1000001", "patient": null, "sequence": null,
     "shape": {"frames": 36, "height": 320, "width": 320}, "frame": 14, "first_frame": 0,
     "question": "...", "choices": [{"letter": "A", "text": "..."}],
     "answer": {"kind": "yes_no", "yes": 1, "count": null, "unit": null, "letters": [], "text": "Yes"},
     "findings": [{"label": "...", "boxes": [{"frame": 14, "y0": ..., "y1": ..., "x0": ..., "x1": ...}]}],
     "reasoning": ["..."]}

Frames are 0-based array indices and boxes half-open pixels of the stored image, whatever a source counts
like. `first_frame` is the number that the texts of the record give to array index 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reasonknee.boxes import Shape
from reasonknee.errors import DataError
from reasonknee.layout.sgmri import ANATOMIES, LEVELS, SPLITS, TASKS
from reasonknee.layout.strict_text import json_lines
from reasonknee.sgmri.frames import FrameBox

FILE_NAME = "qa.jsonl"
_SIZES = ("frames", "height", "width")
Kind = Literal["yes_no", "count", "single_choice", "multiple_choice", "text"]


@dataclass(frozen=True)
class Answer:
    """What is right. `text` is the answer in words; the other fields say it so that it can be compared."""

    kind: Kind
    text: str
    yes: bool | None = None
    count: int | None = None
    unit: str | None = None  # of a count: lesions, frames, ...
    letters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something that an image shows; one of a whole study has no boxes."""

    label: str
    boxes: tuple[FrameBox, ...] = ()


@dataclass(frozen=True)
class Record:
    """One question with its answer, and the boxes and steps that support it."""

    id: str
    anatomy: str
    split: str
    level: str
    task: str
    source: Literal["published", "derived"]
    volume_id: str
    question: str
    answer: Answer
    patient: str | None = None
    sequence: str | None = None
    shape: Shape | None = None  # frames, rows, columns
    frame: int | None = None  # of a slice's question
    first_frame: int = 0
    choices: dict[str, str] = field(default_factory=dict)  # letter -> text
    findings: tuple[Finding, ...] = ()
    reasoning: tuple[str, ...] = ()

    @property
    def boxes(self) -> list[FrameBox]:
        """The boxes of all findings."""
        return [box for finding in self.findings for box in finding.boxes]

    @property
    def cluster(self) -> str:
        """Whose answers belong together: the patient's, or where nobody knows the patient, the volume's."""
        return self.patient or self.volume_id

    def as_row(self) -> dict[str, Any]:
        """A row of the config `qa`: every field of `layout.sgmri`, in its order."""
        answer = self.answer
        return {
            "id": self.id,
            "anatomy": self.anatomy,
            "split": self.split,
            "level": self.level,
            "task": self.task,
            "source": self.source,
            "volume_id": self.volume_id,
            "patient": self.patient,
            "sequence": self.sequence,
            "shape": dict(zip(_SIZES, self.shape, strict=True)) if self.shape else None,
            "frame": self.frame,
            "first_frame": self.first_frame,
            "question": self.question,
            "choices": [{"letter": letter, "text": text} for letter, text in self.choices.items()],
            "answer": {
                "kind": answer.kind,
                "text": answer.text,
                "yes": None if answer.yes is None else int(answer.yes),
                "count": answer.count,
                "unit": answer.unit,
                "letters": list(answer.letters),
            },
            "findings": [
                {"label": f.label, "boxes": [box.as_dict() for box in f.boxes]} for f in self.findings
            ],
            "reasoning": list(self.reasoning),
        }


def record_id(anatomy: str, split: str, level: str, file: str, position: int, volume: str) -> str:
    """Stable: made of where a question stands. `position` counts from 0 in its file."""
    return f"{anatomy}-{split}-{level}-{file}-{position:05d}-{volume}"


def record_of(row: dict[str, Any], where: str) -> Record:
    """The record of a row or of a line, checked."""
    try:
        answer = row["answer"]
        if (
            row["anatomy"] not in ANATOMIES
            or row["split"] not in SPLITS
            or row["level"] not in LEVELS
            or row["task"] not in TASKS[row["level"]]
        ):
            raise ValueError(f"{row['anatomy']}, {row['split']}, {row['level']}, {row['task']}")
        return Record(
            id=row["id"],
            anatomy=row["anatomy"],
            split=row["split"],
            level=row["level"],
            task=row["task"],
            source=row["source"],
            volume_id=row["volume_id"],
            question=row["question"],
            answer=Answer(
                answer["kind"],
                answer["text"],
                None if answer["yes"] is None else bool(answer["yes"]),
                answer["count"],
                answer["unit"],
                tuple(answer["letters"]),
            ),
            patient=row["patient"],
            sequence=row["sequence"],
            shape=_shape(row["shape"]),
            frame=row["frame"],
            first_frame=row["first_frame"],
            choices={choice["letter"]: choice["text"] for choice in row["choices"]},
            findings=tuple(
                Finding(f["label"], tuple(FrameBox(**box) for box in f["boxes"])) for f in row["findings"]
            ),
            reasoning=tuple(row["reasoning"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError("Z001", f"{where}: not a record: {error}", "docs/sgmri.md shows its form") from None


def _shape(value: dict[str, int] | None) -> Shape | None:
    return None if value is None else (value["frames"], value["height"], value["width"])


def read_records(path: Path) -> Iterator[Record]:
    """The records of a JSON Lines file, each id once."""
    seen: set[str] = set()
    for number, _, row in json_lines(path):
        record = record_of(row, f"{path.name}:{number}")
        if record.id in seen:
            raise DataError(
                "Z002", f"{path.name}:{number}: {record.id} stands twice", "keep one line of each"
            )
        seen.add(record.id)
        yield record


def record_lines(records: Iterable[Record]) -> Iterator[str]:
    for record in records:
        yield json.dumps(record.as_row(), ensure_ascii=False, separators=(",", ":")) + "\n"
