"""The ground truth of a split as columns: what the scorer compares with. Read from a release without touching
a pixel.

`pyarrow` is imported where it is needed, so that scoring installs alone and starts fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.boxes import BOX_FIELDS
from reasonknee.errors import DataError, UsageError, near
from reasonknee.layout import SIDES, SPLITS
from reasonknee.questions import ATTRIBUTES, CATEGORIES, QUESTIONS, Question
from reasonknee.questions import question as find_question
from reasonknee.release.reader import Release

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = tuple(QUESTIONS.values())
INDEX = {id_: i for i, id_ in enumerate(QUESTIONS)}
SLOTS = max(len(q.attributes) for q in TABLE)
NONE = -1  # no grade: not asked, or asked and not known
_AXES = ("z", "y", "x")
SECOND = "second_readings"  # which older releases do not have
COLUMNS = (
    "volume_id",
    "patient",
    "visit",
    "side",
    "shape",
    "spacing",
    "id",
    "question_id",
    "box",
    "grades",
)


@dataclass(frozen=True)
class Truth:
    """One row per quintuple.

    `grades[i, s]` is the grade of the question's attribute number s, NONE where there is none.
    """

    ids: list[str]
    question: np.ndarray  # index into TABLE
    patient: np.ndarray  # index into patients
    patients: tuple[str, ...]
    visit: np.ndarray  # index into visits
    visits: tuple[str, ...]
    side: np.ndarray  # index into SIDES
    grades: np.ndarray  # int8 (n, SLOTS)
    boxes: np.ndarray  # int32 (n, 6)
    has_box: np.ndarray
    shape: np.ndarray  # int32 (n, 3)
    spacing: np.ndarray  # float64 (n, 3), millimetres
    second: np.ndarray | None = None  # as grades, by another reader; None if nothing was read twice
    aside: frozenset[str] = frozenset()  # ids of the split that are left out on purpose

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def rows(self) -> dict[str, int]:
        return {id_: i for i, id_ in enumerate(self.ids)}

    @cached_property
    def questions(self) -> list[Question]:
        """Those that are asked, in the order of the table."""
        return [TABLE[i] for i in np.unique(self.question)]

    def part(self, questions: Sequence[str] = (), categories: Sequence[str] = ()) -> Truth:
        """The rows of some questions and categories; all, if none is named. The rest is set aside."""
        if not questions and not categories:
            return self
        named = {find_question(key).id for key in questions}
        for category in categories:
            if category not in {c.id for c in CATEGORIES}:
                names = [c.id for c in CATEGORIES]
                hint = f"{near(category, names)}choose among {', '.join(names)}"
                raise UsageError("S015", f"unknown category {category!r}", hint)
        chosen = [q.id in named or q.category.id in categories for q in TABLE]
        kept = np.array(chosen)[self.question]
        if not kept.any():
            raise UsageError(
                "S016", "none of these questions is in the split", "`reasonknee questions` lists them"
            )
        rows = np.flatnonzero(kept)
        patients, patient = np.unique(self.patient[rows], return_inverse=True)
        arrays = ("question", "visit", "side", "grades", "boxes", "has_box", "shape", "spacing")
        return replace(
            self,
            ids=[self.ids[i] for i in rows],
            patient=patient.astype(np.int32),
            patients=tuple(self.patients[i] for i in patients),
            second=None if self.second is None else self.second[rows],
            aside=frozenset(self.ids[i] for i in np.flatnonzero(~kept)),
            **{name: getattr(self, name)[rows] for name in arrays},
        )

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The size of each volume, by volume id."""
        volumes = [id_.rsplit("-", 1)[0] for id_ in self.ids]
        return {v: (int(s[0]), int(s[1]), int(s[2])) for v, s in zip(volumes, self.shape, strict=True)}


def read_truth(release: Release | str | Path, split: str) -> Truth:
    opened = release if isinstance(release, Release) else Release(release)
    if split not in SPLITS:
        raise UsageError("S001", f"unknown split {split!r}", f"choose one of {', '.join(SPLITS)}")
    config = opened.lightest(split)
    if config is None:
        raise DataError(
            "S003", f"{opened.folder} has no split {split}", f"it has {', '.join(opened.splits) or 'none'}"
        )
    return truth_of_columns(opened.columns(split, (*COLUMNS, SECOND), config), f"{config} of {split}")


def truth_of_columns(table: pa.Table, where: str) -> Truth:
    """A table with the columns COLUMNS, checked; rows of a volume come together."""
    import pyarrow as pa

    if not table.num_rows:
        raise DataError("S004", f"{where} holds no quintuple", "score another split")
    if lacking := [name for name in COLUMNS if name not in table.column_names]:
        raise DataError(
            "S002", f"{where} has no column {lacking[0]}", "was the release made by another version?"
        )
    known = pa.array(QUESTIONS)
    question = _indices(table["question_id"], known, where)
    order = np.lexsort(
        (question, _indices(table["volume_id"], table["volume_id"].unique(), where))
    )  # `cropped` stores a volume section by section
    table, question = table.take(order), question[order]
    patients = sorted(table["patient"].unique().to_pylist())
    visits = sorted(table["visit"].unique().to_pylist())
    boxes = table["box"]
    has_box = boxes.is_valid().to_numpy(zero_copy_only=False)
    truth = Truth(
        ids=table["id"].to_pylist(),
        question=question,
        patient=_indices(table["patient"], pa.array(patients), where),
        patients=tuple(patients),
        visit=_indices(table["visit"], pa.array(visits), where),
        visits=tuple(visits),
        side=_indices(table["side"], pa.array(SIDES), where),
        grades=_grades(table["grades"], question, where),
        boxes=_struct(boxes, BOX_FIELDS, np.int32),
        has_box=has_box,
        shape=_struct(table["shape"], _AXES, np.int32),
        spacing=_struct(table["spacing"], _AXES, np.float64),
        second=_second(table[SECOND], question) if SECOND in table.column_names else None,
    )
    if len(truth.rows) != len(truth):
        raise DataError("S005", f"{where}: an id stands twice", "`reasonknee validate` tells which")
    return truth


def _indices(column: Any, known: pa.Array, where: str) -> np.ndarray:
    import pyarrow.compute as pc

    places = pc.index_in(column, known)
    if places.null_count:
        wrong = column.filter(pc.is_null(places))[0].as_py()
        raise DataError(
            "S007", f"{where}: {ascii(wrong)[:60]} is not known", "was the release made by another version?"
        )
    indices: np.ndarray = places.to_numpy().astype(np.int32)
    return indices


def _struct(column: Any, names: tuple[str, ...], dtype: Any) -> np.ndarray:
    """The fields of a struct column side by side; zeros where it is null."""
    import pyarrow.compute as pc

    return np.stack(
        [pc.fill_null(pc.struct_field(column, name), 0).to_numpy() for name in names], axis=1
    ).astype(dtype)


def _grades(column: Any, question: np.ndarray, where: str) -> np.ndarray:
    import pyarrow.compute as pc

    grades = np.full((len(question), SLOTS), NONE, np.int8)
    for name in ATTRIBUTES:
        given = pc.fill_null(pc.struct_field(column, name), NONE).to_numpy()
        for q in np.unique(question):
            for slot, attribute in enumerate(TABLE[q].attributes):
                if attribute.id == name:
                    mine = question == q
                    grades[mine, slot] = given[mine]
                    if (given[mine] >= len(attribute.space.grades)).any() or (given[mine] < NONE).any():
                        raise DataError(
                            "S006",
                            f"{where}: an illegal grade of {TABLE[q].id}.{name}",
                            "`reasonknee validate` tells which",
                        )
    return grades


def _second(column: Any, question: np.ndarray) -> np.ndarray | None:
    """The other reading of each grade; of several, that of the project that comes first by its name."""
    import pyarrow.compute as pc

    lists = column.combine_chunks()
    rows, told = pc.list_parent_indices(lists).to_numpy(), pc.list_flatten(lists)
    if not len(rows):
        return None
    second = np.full((len(question), SLOTS), NONE, np.int8)
    names = (told.field(name).to_pylist() for name in ("project", "attribute", "grade"))
    for row, (_, attribute, grade) in sorted(zip(rows.tolist(), zip(*names, strict=True), strict=True)):
        for slot, asked in enumerate(TABLE[question[row]].attributes):
            if asked.id == attribute and grade in asked.space.grades and second[row, slot] == NONE:
                second[row, slot] = grade
    return second
