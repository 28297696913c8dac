"""What people who look at rows write down: flags, corrections, and readings made before the answer was seen.

One JSON object a line, in a file outside the release. Nothing in it is ever changed: an undo is a line, too.

    {"entry": "5c0e...", "id": "1000003-00m-left-acl", "kind": "correction", "reader": "rm",
     "at": "2026-05-04T09:30:00+00:00", "grades": {"complete_tear": 1}, "box": {"z0": ...}, "note": "..."}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from reasonknee.boxes import BOX_FIELDS, Box
from reasonknee.cohort.annotations import Annotation
from reasonknee.errors import DataError
from reasonknee.layout.strict_text import json_lines
from reasonknee.questions import QUESTIONS, Question

FLAGS = {
    "box_misplaced": "box misplaced",
    "grade_doubtful": "grade doubtful",
    "image_bad": "image bad",
    "note": "note",
}
KINDS = ("flag", "correction", "reading", "undo")
MAX_NOTE = 2000
_ENTRY = re.compile(r"[0-9a-f]{8,32}")
_KEYS = {"entry", "id", "kind", "reader", "at", "flag", "note", "grades", "box", "blind", "undoes"}


@dataclass(frozen=True)
class Entry:
    """A line of a review. What its kind does not need is empty; `box` is None where nothing is said of it."""

    entry: str
    id: str
    kind: str
    reader: str
    at: str
    flag: str = ""
    note: str = ""
    grades: Mapping[str, int] | None = None
    box: Box | None = None
    blind: bool = False
    undoes: str = ""

    @property
    def volume_id(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def question(self) -> Question:
        return QUESTIONS[self.id.rpartition("-")[2]]

    def as_dict(self) -> dict[str, Any]:
        """As a line holds it: without what is empty."""
        said: dict[str, Any] = {
            "entry": self.entry,
            "id": self.id,
            "kind": self.kind,
            "reader": self.reader,
            "at": self.at,
            "flag": self.flag,
            "note": self.note,
            "grades": dict(self.grades) if self.grades is not None else None,
            "box": self.box.as_dict() if self.box else None,
            "blind": self.blind,
            "undoes": self.undoes,
        }
        return {name: value for name, value in said.items() if value not in ("", None, False)}


def checked_entry(raw: Mapping[str, Any], where: str) -> Entry:
    """An entry, if that is what the fields are: known keys, a known question, legal grades, a box."""

    def refuse(what: str, hint: str = "a line that `reasonknee view` writes is wanted") -> DataError:
        return DataError("A010", f"{where}: {what}", hint)

    if unknown := sorted(set(raw) - _KEYS):
        raise refuse(f"unknown key {unknown[0][:40]!r}")
    for name in ("entry", "id", "kind", "reader", "at", "flag", "note", "undoes"):
        if not isinstance(raw.get(name, ""), str) or len(raw.get(name, "")) > MAX_NOTE:
            raise refuse(f"{name} is not a text of at most {MAX_NOTE} characters")
    kind, id_ = raw.get("kind"), raw.get("id", "")
    if kind not in KINDS:
        raise refuse(f"kind is {str(kind)[:40]!r}", f"one of {', '.join(KINDS)}")
    if not _ENTRY.fullmatch(raw.get("entry", "")) or not raw.get("reader") or not _is_time(raw.get("at")):
        raise refuse("entry, reader or time is missing or damaged")
    if kind == "undo":
        if not _ENTRY.fullmatch(raw.get("undoes", "")):
            raise refuse("it does not say what it undoes")
        return Entry(raw["entry"], id_, kind, raw["reader"], raw["at"], undoes=raw["undoes"])
    question = QUESTIONS.get(id_.rpartition("-")[2])
    if question is None or not id_.rpartition("-")[0]:
        raise refuse(f"{id_[:80]!r} is not the id of a quintuple", "ids look like 1000001-00m-right-acl")
    if kind == "flag" and raw.get("flag") not in FLAGS:
        raise refuse(f"flag is {str(raw.get('flag'))[:40]!r}", f"one of {', '.join(FLAGS)}")
    if kind == "flag" and raw["flag"] == "note" and not raw.get("note"):
        raise refuse("a note without words")
    if raw.get("blind") not in (None, True, False):
        raise refuse("blind is neither true nor false")
    grades, box = _grades(question, raw.get("grades"), refuse), _box(raw.get("box"), refuse)
    if kind == "correction" and not grades and box is None:
        raise refuse("it corrects neither a grade nor the box")
    if kind == "reading" and (grades is None or set(grades) != {a.id for a in question.attributes}):
        raise refuse("a reading grades every attribute of its question")
    return Entry(
        raw["entry"],
        id_,
        str(kind),
        raw["reader"],
        raw["at"],
        raw.get("flag", ""),
        raw.get("note", ""),
        grades,
        box,
        bool(raw.get("blind")),
    )


def _is_time(text: Any) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except (TypeError, ValueError):
        return False


def _grades(question: Question, raw: Any, refuse: Any) -> dict[str, int] | None:
    if raw is None:
        return None
    spaces = {a.id: a.space for a in question.attributes}
    if not isinstance(raw, dict):
        raise refuse("grades are not an object")
    for name, grade in raw.items():
        if name not in spaces or type(grade) is not int or grade not in spaces[name].grades:
            raise refuse(f"{name[:40]} {str(grade)[:20]} is no grade of {question.id}")
    return dict(raw)


def _box(raw: Any, refuse: Any) -> Box | None:
    if raw is None:
        return None
    if (
        not isinstance(raw, dict)
        or set(raw) != set(BOX_FIELDS)
        or not all(type(v) is int for v in raw.values())
    ):
        raise refuse("the box is not six whole numbers", ", ".join(BOX_FIELDS))
    try:
        return Box.from_dict(raw)
    except DataError as error:
        raise refuse(error.message, error.hint) from None


def read_review(path: Path) -> list[Entry]:
    """Every line of the file, checked, in its order."""
    return [checked_entry(raw, f"{path.name}:{number}") for number, _, raw in json_lines(path)]


def standing(entries: Iterable[Entry]) -> list[Entry]:
    """The entries that hold: without those that were undone, and without the undoing."""
    entries = list(entries)
    undone = {e.undoes for e in entries if e.kind == "undo"}
    return [e for e in entries if e.kind != "undo" and e.entry not in undone]


def corrected(
    annotations: Iterable[Annotation], entries: Iterable[Entry]
) -> tuple[list[Annotation], dict[str, Any]]:
    """The annotations with corrected grades and boxes, and nothing else changed; and who changed what, when.

    Of several corrections of one thing the last one holds.
    """
    by_id = {a.volume_id: a for a in annotations}
    applied: list[dict[str, Any]] = []
    unused: list[str] = []
    for each in standing(entries):
        if each.kind != "correction":
            continue
        old, question = by_id.get(each.volume_id), each.question
        if old is None or (each.grades and question.id not in old.grades):
            unused.append(each.id)
            continue
        if each.box is not None and not each.box.fits(old.shape):
            told = (
                f"{each.id}: the corrected box {each.box.as_dict()} leaves the volume of {old.shape} voxels"
            )
            raise DataError("A011", told, "was it drawn on another image? undo it in `reasonknee view`")
        grades, boxes = dict(old.grades), dict(old.boxes)
        changes: dict[str, list[Any]] = {}
        if each.grades:
            was = grades[question.id]
            grades[question.id] = {**was, **each.grades}
            changes.update({a: [was.get(a), g] for a, g in each.grades.items()})
        if each.box is not None:
            before = boxes.get(question.region.id)
            boxes[question.region.id] = each.box
            changes["box"] = [before and before.as_dict(), each.box.as_dict()]
        by_id[each.volume_id] = replace(old, grades=grades, boxes=boxes)
        applied.append({"id": each.id, "by": each.reader, "at": each.at, "from_to": changes})
    return list(by_id.values()), {"applied": applied, "unused": unused}
