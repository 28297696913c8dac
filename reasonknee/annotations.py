"""Annotations: what is known about each volume of a cohort, without pixels. One JSON line per volume, in `annotations.jsonl`.

    {"volume_id": "1000001-00m-right", "patient": "1000001", "visit": "00m", "side": "right", "split": "train", "study": ..., "series": ...,
     "shape": {"z": 160, "y": 384, "x": 384}, "spacing": {...}, "orientation": "LIP",
     "boxes": {region id: {"z0": ...} or null}, "grades": {question id: {attribute id: grade}}}

Text is not stored: questions and reasoning are derived from these facts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reasonknee.boxes import BOX_FIELDS, Box, Shape
from reasonknee.errors import DataError
from reasonknee.questions import QUESTIONS
from reasonknee.records import SIDES
from reasonknee.regions import REGIONS
from reasonknee.splits import SPLITS, patient_id, volume_id
from reasonknee.tables import json_line_at, json_lines

FILE_NAME = "annotations.jsonl"
_VISIT = re.compile(r"[0-9]{2,3}m")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ORIENTATION = re.compile(r"[LR][SI][AP]")
_KEYS = ("volume_id", "patient", "visit", "side", "split", "study", "series", "shape", "spacing", "orientation", "boxes", "grades")


@dataclass(frozen=True)
class Annotation:
    """Everything known about one volume."""

    patient: str
    visit: str
    side: str
    split: str
    study: str
    series: str
    shape: Shape
    spacing: tuple[float, float, float]
    orientation: str
    boxes: dict[str, Box | None]
    grades: dict[str, dict[str, int]]

    @property
    def volume_id(self) -> str:
        return volume_id(self.patient, self.visit, self.side)

    def to_json(self) -> str:
        boxes = {region: box and box.as_dict() for region, box in self.boxes.items()}
        values = (self.volume_id, self.patient, self.visit, self.side, self.split, self.study, self.series)
        geometry = (_by_axis(self.shape), _by_axis(self.spacing), self.orientation)
        return json.dumps(dict(zip(_KEYS, (*values, *geometry, boxes, self.grades), strict=True)), separators=(",", ":"))


def _by_axis(values: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(("z", "y", "x"), values, strict=True))


def write_annotations(path: Path, annotations: Iterable[Annotation]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for each in sorted(annotations, key=lambda a: a.volume_id):
            file.write(each.to_json() + "\n")


def scan_annotations(path: Path) -> Iterator[tuple[int, Annotation]]:
    """Byte offset and annotation of each volume, every one checked. Read again by offset, so that no cohort has to fit in memory."""
    seen: set[str] = set()
    for number, offset, raw in json_lines(path):
        where = f"{path.name}:{number}"
        annotation = _check(raw, where)
        if annotation.volume_id in seen:
            raise DataError("A004", f"{where}: {annotation.volume_id} stands twice", "keep one line per volume")
        seen.add(annotation.volume_id)
        yield offset, annotation


def read_annotation(path: Path, offset: int, where: str = "") -> Annotation:
    where = where or f"{path.name} at byte {offset}"
    return _check(json_line_at(path, offset, where), where)


def _check(raw: dict[str, Any], where: str) -> Annotation:
    if set(raw) != set(_KEYS):
        wrong = sorted(set(raw) ^ set(_KEYS))
        raise DataError("A001", f"{where}: missing or unknown keys {wrong[:6]}", f"wanted: {', '.join(_KEYS)}")
    for key, legal in (("side", SIDES), ("split", SPLITS)):
        if raw[key] not in legal:
            raise DataError("A001", f"{where}: {key} is {str(raw[key])[:40]!r}", f"one of {', '.join(legal)}")
    for key, pattern in (("visit", _VISIT), ("study", _NAME), ("series", _NAME), ("orientation", _ORIENTATION)):
        if not (isinstance(raw[key], str) and pattern.fullmatch(raw[key])):
            raise DataError("A001", f"{where}: {key} is {str(raw[key])[:40]!r}", f"the form is {pattern.pattern}")
    patient = patient_id(str(raw["patient"]))
    volume = volume_id(patient, raw["visit"], raw["side"])
    if raw["volume_id"] != volume:
        raise DataError("A001", f"{where}: volume_id is {str(raw['volume_id'])[:60]!r}", f"patient, visit and side make it {volume}")
    where = f"{where}, {volume}"
    shape = _triple(raw["shape"], where, "shape", lambda v: type(v) is int and v > 0)
    spacing = _triple(raw["spacing"], where, "spacing", lambda v: type(v) in (int, float) and 0 < v < 1000)
    rest = (raw["split"], raw["study"], raw["series"], shape, spacing, raw["orientation"])
    return Annotation(patient, raw["visit"], raw["side"], *rest, _boxes(raw["boxes"], shape, where), _grades(raw["grades"], where))


def _triple(value: Any, where: str, what: str, legal: Any) -> Any:
    if not isinstance(value, dict) or set(value) != set("zyx") or not all(legal(v) for v in value.values()):
        raise DataError("A001", f"{where}: {what} is {str(value)[:60]}", 'three positive numbers are wanted: {"z":, "y":, "x":}')
    return (value["z"], value["y"], value["x"])


def _boxes(raw: Any, shape: Shape, where: str) -> dict[str, Box | None]:
    boxes: dict[str, Box | None] = {}
    if not isinstance(raw, dict):
        raise DataError("A001", f"{where}: boxes is not an object", "region id -> box or null")
    for region, value in raw.items():
        if region not in REGIONS:
            raise DataError("A005", f"{where}: unknown region {region[:60]!r}", "regions are named in the data card")
        if value is None:
            boxes[region] = None
            continue
        if not isinstance(value, dict) or set(value) != set(BOX_FIELDS) or not all(type(v) is int for v in value.values()):
            raise DataError("A006", f"{where}: the box of {region} is {str(value)[:60]}", f"six integers are wanted: {', '.join(BOX_FIELDS)}")
        try:
            box = Box.from_dict(value)
        except DataError as error:
            raise DataError("A006", f"{where}, {region}: {error.message}", error.hint) from None
        if not box.fits(shape):
            raise DataError("A006", f"{where}: the box of {region} {box.as_dict()} leaves the volume of {shape} voxels", "z, y, x; half-open")
        boxes[region] = box
    return boxes


def _grades(raw: Any, where: str) -> dict[str, dict[str, int]]:
    if not isinstance(raw, dict):
        raise DataError("A001", f"{where}: grades is not an object", "question id -> grades")
    for key, grades in raw.items():
        if key not in QUESTIONS:
            raise DataError("A002", f"{where}: unknown question {key[:60]!r}", "`reasonknee questions` lists them all")
        spaces = {a.id: a.space for a in QUESTIONS[key].attributes}
        if not isinstance(grades, dict) or set(grades) != set(spaces):
            raise DataError("A003", f"{where}: {key} is {str(grades)[:80]}", f"exactly these attributes are wanted: {', '.join(spaces)}")
        for attribute, grade in grades.items():
            if type(grade) is not int or grade not in spaces[attribute].grades:
                legal = f"{spaces[attribute].grades[0]} to {spaces[attribute].grades[-1]}"
                raise DataError("A003", f"{where}: {key} {attribute} is {str(grade)[:20]}, outside its grade space", f"legal grades: {legal}")
    return raw
