"""Annotations: what is known about each volume of a cohort, without pixels. One JSON line per volume, in
`annotations.jsonl`.

    {"volume_id": "1000001-00m-right", "patient": "1000001", "visit": "00m", "side": "right", "split":
    "train", "study": ..., "series": ...,
     "shape": {"z": 160, "y": 384, "x": 384}, "spacing": {...}, "orientation": "LIP",
     "boxes": {region id: {"z0": ...} or null}, "grades": {question id: {attribute id: grade or null}},
     "readings": [{"project": "65", "grades": {...}}], "reasoning": {question id: text},
     "provenance": {"grades": "kMRI_SQ_MOAKS_BICL00.txt", "project": "65", "boxes": "mask", ...}}

A question that is asked has at least one grade; null is a grade that nobody knows. The last three keys may be
missing. `readings` are other readings of the same knee, kept apart from the grades. `reasoning` holds what
others have written, word for word; questions and our own reasoning are derived and not stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from reasonknee.boxes import BOX_FIELDS, Box, Shape
from reasonknee.errors import DataError, near
from reasonknee.layout import SIDES, SPLITS, patient_id, volume_id
from reasonknee.layout.splits import VISIT
from reasonknee.layout.strict_text import json_lines, line_at, parse_json
from reasonknee.questions import QUESTIONS, REGIONS

FILE_NAME = "annotations.jsonl"
_VISIT = re.compile(VISIT)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_ORIENTATION = re.compile(r"[LR][SI][AP]")
LONGEST = 20_000  # characters of a published reasoning
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_KEYS = (
    "volume_id",
    "patient",
    "visit",
    "side",
    "split",
    "study",
    "series",
    "shape",
    "spacing",
    "orientation",
    "boxes",
    "grades",
)
_OPTIONAL = ("readings", "reasoning", "provenance")
# question -> attribute -> grade; an attribute that is not there is unknown
Grades = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Reading:
    """Another reading of the same knee and visit."""

    project: str
    grades: Grades


@dataclass(frozen=True)
class Provenance:
    """Where the parts of an annotation come from; None where nobody has said.

    The derived reasoning needs no word here: it is ours, and what `reasoning` holds is published.
    """

    grades: str | None = None  # file name of the table, or "published"
    project: str | None = None  # the reading project that the grades are of
    boxes: str | None = None  # "published", "mask", or "rule": masks that were made by rule
    package: str | None = None  # OAI's image package, such as 0.C.2
    image_sha256: str | None = None  # of the image file, or of the list of a series' files with theirs

    def box_of(self, region: str) -> str | None:
        """Where a region's box comes from: a portion of a mask is cut by our rule."""
        return "rule" if self.boxes == "mask" and REGIONS[region].portion else self.boxes


@dataclass(frozen=True)
class Annotation:
    """Everything known about one volume: a line of annotations.jsonl."""

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
    grades: Grades
    readings: tuple[Reading, ...] = ()
    reasoning: dict[str, str] = field(default_factory=dict)  # published, by question
    provenance: Provenance = Provenance()

    @property
    def volume_id(self) -> str:
        """`<patient>-<visit>-<side>`, the id of the volume everywhere."""
        return volume_id(self.patient, self.visit, self.side)

    def to_json(self) -> str:
        """The line of annotations.jsonl that says it."""
        boxes = {region: box and box.as_dict() for region, box in self.boxes.items()}
        values = (self.volume_id, self.patient, self.visit, self.side, self.split, self.study, self.series)
        geometry = (_by_axis(self.shape), _by_axis(self.spacing), self.orientation)
        known = dict(zip(_KEYS, (*values, *geometry, boxes, _with_nulls(self.grades)), strict=True))
        readings = [{"project": r.project, "grades": _with_nulls(r.grades)} for r in self.readings]
        provenance = {name: value for name, value in asdict(self.provenance).items() if value is not None}
        more = zip(_OPTIONAL, (readings, self.reasoning, provenance), strict=True)
        return json.dumps({**known, **{key: value for key, value in more if value}}, separators=(",", ":"))


def _with_nulls(grades: Grades) -> dict[str, dict[str, int | None]]:
    """Every attribute that a question asks for: null says that its grade is unknown."""
    return {q: {a.id: given.get(a.id) for a in QUESTIONS[q].attributes} for q, given in grades.items()}


def _by_axis(values: Iterable[Any]) -> dict[str, Any]:
    return dict(zip(("z", "y", "x"), values, strict=True))


def write_annotations(path: Path, annotations: Iterable[Annotation]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for each in sorted(annotations, key=lambda a: a.volume_id):
            file.write(each.to_json() + "\n")


def scan_annotations(path: Path) -> Iterator[tuple[int, Annotation]]:
    """Byte offset and annotation of each volume, every one checked.

    Read again by offset, so that no cohort has to fit in memory.
    """
    seen: set[str] = set()
    for number, offset, raw in json_lines(path):
        where = f"{path.name}:{number}"
        annotation = _check(raw, where)
        if annotation.volume_id in seen:
            raise DataError("A004", f"{annotation.volume_id} stands twice", "keep one line per volume").at(
                where
            )
        seen.add(annotation.volume_id)
        yield offset, annotation


def read_annotation(path: Path, offset: int, where: str = "") -> Annotation:
    where = where or f"{path.name} at byte {offset}"
    return _check(parse_json(line_at(path, offset), where), where)


def _check(raw: dict[str, Any], where: str) -> Annotation:
    if set(raw) - set(_OPTIONAL) != set(_KEYS):
        wrong = sorted((set(raw) - set(_OPTIONAL)) ^ set(_KEYS))
        raise DataError("A001", f"missing or unknown keys {wrong[:6]}", f"wanted: {', '.join(_KEYS)}").at(
            where
        )
    for key, legal in (("side", SIDES), ("split", SPLITS)):
        if raw[key] not in legal:
            raise DataError("A001", f"{key} is {str(raw[key])[:40]!r}", f"one of {', '.join(legal)}").at(
                where
            )
    for key, pattern in (
        ("visit", _VISIT),
        ("study", _NAME),
        ("series", _NAME),
        ("orientation", _ORIENTATION),
    ):
        if not (isinstance(raw[key], str) and pattern.fullmatch(raw[key])):
            raise DataError("A001", f"{key} is {str(raw[key])[:40]!r}", f"the form is {pattern.pattern}").at(
                where
            )
    patient = patient_id(str(raw["patient"]))
    volume = volume_id(patient, raw["visit"], raw["side"])
    if raw["volume_id"] != volume:
        raise DataError(
            "A001",
            f"volume_id is {str(raw['volume_id'])[:60]!r}",
            f"patient, visit and side make it {volume}",
        ).at(where)
    where = f"{where}, {volume}"
    shape = _triple(raw["shape"], where, "shape", lambda v: type(v) is int and v > 0)
    spacing = _triple(raw["spacing"], where, "spacing", lambda v: type(v) in (int, float) and 0 < v < 1000)
    rest = (raw["split"], raw["study"], raw["series"], shape, spacing, raw["orientation"])
    return Annotation(
        patient,
        raw["visit"],
        raw["side"],
        *rest,
        _boxes(raw["boxes"], shape, where),
        _grades(raw["grades"], where),
        _readings(raw.get("readings", []), where),
        _reasoning(raw.get("reasoning", {}), raw["grades"], where),
        _provenance(raw.get("provenance", {}), where),
    )


def _triple(value: Any, where: str, what: str, legal: Any) -> Any:
    if not isinstance(value, dict) or set(value) != set("zyx") or not all(legal(v) for v in value.values()):
        raise DataError(
            "A001",
            f"{what} is {str(value)[:60]}",
            'three positive numbers are wanted: {"z":, "y":, "x":}',
        ).at(where)
    return (value["z"], value["y"], value["x"])


def _boxes(raw: Any, shape: Shape, where: str) -> dict[str, Box | None]:
    boxes: dict[str, Box | None] = {}
    if not isinstance(raw, dict):
        raise DataError("A001", "boxes is not an object", "region id -> box or null").at(where)
    for region, value in raw.items():
        if region not in REGIONS:
            raise DataError(
                "A005",
                f"unknown region {region[:60]!r}",
                near(region, REGIONS) + "regions are named in the data card",
            ).at(where)
        if value is None:
            boxes[region] = None
            continue
        if (
            not isinstance(value, dict)
            or set(value) != set(BOX_FIELDS)
            or not all(type(v) is int for v in value.values())
        ):
            raise DataError(
                "A006",
                f"the box of {region} is {str(value)[:60]}",
                f"six integers are wanted: {', '.join(BOX_FIELDS)}",
            ).at(where)
        try:
            box = Box.from_dict(value)
        except DataError as error:
            raise DataError("A006", error.message, error.hint).at(f"{where}, {region}") from None
        if not box.fits(shape):
            raise DataError(
                "A006",
                f"the box of {region} {box.as_dict()} leaves the volume of {shape} voxels",
                "z, y, x; half-open",
            ).at(where)
        boxes[region] = box
    return boxes


def _grades(raw: Any, where: str) -> Grades:
    if not isinstance(raw, dict):
        raise DataError("A001", "grades is not an object", "question id -> grades").at(where)
    for key, grades in raw.items():
        if key not in QUESTIONS:
            raise DataError(
                "A002",
                f"unknown question {key[:60]!r}",
                near(key, QUESTIONS) + "`reasonknee questions` lists them all",
            ).at(where)
        spaces = {a.id: a.space for a in QUESTIONS[key].attributes}
        if not isinstance(grades, dict) or set(grades) != set(spaces):
            raise DataError(
                "A003",
                f"{key} is {str(grades)[:80]}",
                f"exactly these attributes are wanted: {', '.join(spaces)}",
            ).at(where)
        if all(grade is None for grade in grades.values()):
            raise DataError("A003", f"{key} has no grade", "leave the question out").at(where)
        for attribute, grade in grades.items():
            if grade is not None and (type(grade) is not int or grade not in spaces[attribute].grades):
                legal = f"{spaces[attribute].grades[0]} to {spaces[attribute].grades[-1]}"
                raise DataError(
                    "A003",
                    f"{key} {attribute} is {str(grade)[:20]}, outside its grade space",
                    f"legal grades: {legal}, or null where it is unknown",
                ).at(where)
    return {
        key: {attribute: grade for attribute, grade in grades.items() if grade is not None}
        for key, grades in raw.items()
    }


def _readings(raw: Any, where: str) -> tuple[Reading, ...]:
    if not isinstance(raw, list) or not all(
        isinstance(each, dict)
        and set(each) == {"project", "grades"}
        and isinstance(each["project"], str)
        and _NAME.fullmatch(each["project"])
        for each in raw
    ):
        raise DataError(
            "A007", f"readings is {str(raw)[:60]}", 'wanted: [{"project": "65", "grades": {...}}]'
        ).at(where)
    return tuple(Reading(each["project"], _grades(each["grades"], f"{where}, a reading")) for each in raw)


def is_plain_text(text: object) -> bool:
    """Whether a row can hold it as reasoning: words, not too many, without control characters."""
    return (
        isinstance(text, str) and 0 < len(text.strip()) <= len(text) <= LONGEST and not _CONTROL.search(text)
    )


def _reasoning(raw: Any, asked: Any, where: str) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise DataError("A008", "reasoning is not an object", "question id -> text").at(where)
    for key, text in raw.items():
        if key not in asked:
            raise DataError("A008", f"reasoning on {key[:60]!r}, which has no grades", "leave it out").at(
                where
            )
        if not is_plain_text(text):
            raise DataError(
                "A008",
                f"the reasoning on {key} is empty, too long or no plain text",
                f"at most {LONGEST} characters",
            ).at(where)
    return raw


def _provenance(raw: Any, where: str) -> Provenance:
    forms = {
        "grades": _NAME,
        "project": _NAME,
        "boxes": re.compile("published|mask|rule"),
        "package": _NAME,
        "image_sha256": re.compile("[0-9a-f]{64}"),
    }
    wrong = (
        ["it"]
        if not isinstance(raw, dict)
        else [k for k, v in raw.items() if not (k in forms and isinstance(v, str) and forms[k].fullmatch(v))]
    )
    if wrong:
        raise DataError(
            "A009",
            f"provenance, {str(wrong[0])[:40]} is not of its form",
            f"it may have {', '.join(forms)}",
        ).at(where)
    return Provenance(**raw)
