"""The public annotation tables of fastMRI+ (`knee.csv`, `brain.csv`) as findings on volumes.

The tables have faults. Each is handled in one way, counted by code, and named in the report:

    Z101 blanks around a label are taken off        Z102 a box without area is left out
    Z103 a box that leaves the image is cut to it   Z104 a row that stands twice counts once
    Z105 two boxes of a label on one slice overlap by half or more: both stay
    Z106 a study is called normal and has boxes: the boxes stay, and it is no negative
    Z107 a label that this version does not know: it stays as it is
    Z108 a line of the list of reviewed files that names no file is passed over

A slice of the table is the array index of `reconstruction_rss`, from 0, for both anatomies. A box is top
left, width and height in pixels of the image turned upside down, which is how images are stored here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from reasonknee.errors import DataError
from reasonknee.layout.strict_text import csv_rows
from reasonknee.sgmri.frames import FrameBox, iou
from reasonknee.sgmri.labels import LABELS, NORMAL
from reasonknee.sgmri.records import Finding

COLUMNS = ("file", "slice", "study_level", "x", "y", "width", "height", "label")
_FILE = re.compile(r"file(_brain_[A-Z0-9]+_[0-9]+_)?[0-9]{4,9}")
_INTEGER = re.compile(r"-?[0-9]{1,5}")
_SEQUENCE = re.compile(r"file_brain_([A-Z0-9]+)_")
_IMAGE = 320  # the largest side of a reconstruction; the images tell the real one where they are at hand


@dataclass
class AnnotatedVolume:
    """What the readers marked in one file; without findings, a reviewed file that shows none."""

    volume_id: str
    anatomy: str
    boxes: dict[str, list[FrameBox]] = field(default_factory=dict)  # by label
    of_study: list[str] = field(default_factory=list)  # labels of the whole study

    @property
    def sequence(self) -> str | None:
        brain = _SEQUENCE.match(self.volume_id)
        return brain[1] if brain else None

    @property
    def is_negative(self) -> bool:
        return not self.boxes and not set(self.of_study) - NORMAL

    def findings(self) -> tuple[Finding, ...]:
        boxed = [Finding(label, tuple(sorted(boxes))) for label, boxes in sorted(self.boxes.items())]
        return (*boxed, *(Finding(label) for label in sorted(self.of_study)))

    def on(self, frame: int) -> tuple[Finding, ...]:
        """What one frame shows."""
        cut = [Finding(f.label, tuple(b for b in f.boxes if b.frame == frame)) for f in self.findings()]
        return tuple(f for f in cut if f.boxes)


def anatomy_of(file: str) -> str:
    return "brain" if file.startswith("file_brain_") else "knee"


def read_table(path: Path, counts: Counter[str], reviewed: Path | None = None) -> list[AnnotatedVolume]:
    """The volumes of a table, and of the list of reviewed files beside it those that have no row."""
    volumes: dict[str, AnnotatedVolume] = {}
    seen: set[tuple[str, ...]] = set()
    for number, row in csv_rows(path, [COLUMNS]):
        where = f"{path.name}:{number}"
        if not _FILE.fullmatch(row["file"]):
            raise DataError("Z003", f"{where}: {row['file'][:60]!r} is not a file of fastMRI", "mend the row")
        volume = volumes.setdefault(row["file"], AnnotatedVolume(row["file"], anatomy_of(row["file"])))
        label = row["label"].strip()
        counts["Z101"] += label != row["label"]
        if tuple(row.values()) in seen:
            counts["Z104"] += 1
            continue
        seen.add(tuple(row.values()))
        if row["study_level"] == "Yes":
            volume.of_study.append(label)
            continue
        counts["Z107"] += label not in LABELS[volume.anatomy]
        box = _box(row, where, counts)
        if box:
            volume.boxes.setdefault(label, []).append(box)
    for file in _reviewed(reviewed, counts) if reviewed else ():
        volumes.setdefault(file, AnnotatedVolume(file, anatomy_of(file)))
    for volume in volumes.values():
        counts["Z106"] += bool(volume.boxes) and bool(NORMAL & set(volume.of_study))
        for boxes in volume.boxes.values():
            counts["Z105"] += sum(iou(a, b) >= 0.5 for a, b in combinations(boxes, 2))
    return [volumes[name] for name in sorted(volumes)]


def _box(row: dict[str, str], where: str, counts: Counter[str]) -> FrameBox | None:
    cells = [row[name].strip() for name in ("slice", "x", "y", "width", "height")]
    if not all(_INTEGER.fullmatch(cell) for cell in cells):
        raise DataError("Z004", f"{where}: {','.join(cells)[:60]!r} is not a box", "five integers are wanted")
    frame, x, y, width, height = map(int, cells)
    whole = FrameBox.from_xywh(frame, x, y, width, height)
    box = whole.clipped(_IMAGE, _IMAGE)
    if frame < 0 or box.area <= 0 or width <= 0 or height <= 0:
        counts["Z102"] += 1
        return None
    counts["Z103"] += box != whole
    return box


def _reviewed(path: Path, counts: Counter[str]) -> list[str]:
    """The files that were reviewed, one a line, as fastMRI+ lists them."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "Z005", f"{path.name}: {error}", "a text file with one name a line is wanted"
        ) from None
    names = [line.strip() for line in lines if _FILE.fullmatch(line.strip())]
    counts["Z108"] += sum(bool(line.strip()) for line in lines) - len(names)
    return names
