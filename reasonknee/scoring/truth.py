"""The ground truth of a split as columns: what the scorer compares with. Read from a release without touching a pixel.

`pyarrow` is imported where it is needed, so that scoring installs alone and starts fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.boxes import BOX_FIELDS
from reasonknee.errors import DataError, UsageError
from reasonknee.manifest import Manifest, read_manifest
from reasonknee.questions import ATTRIBUTES, QUESTIONS, Question
from reasonknee.records import PER_VOLUME, SIDES
from reasonknee.splits import SPLITS

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = tuple(QUESTIONS.values())
INDEX = {id_: i for i, id_ in enumerate(QUESTIONS)}
SLOTS = max(len(q.attributes) for q in TABLE)
NONE = -1  # no grade
_AXES = ("z", "y", "x")
_PREFERRED = ("annotations", "cropped", "embeddings", "full")  # from the config with least beside what is needed
_OF_VOLUME = ("volume_id", "patient", "side", "shape", "spacing")
_OF_QUESTION = ("id", "question_id", "box", "grades")


@dataclass(frozen=True)
class Truth:
    """One row per quintuple. `grades[i, s]` is the grade of the question's attribute number s, NONE where there is none."""

    ids: list[str]
    question: np.ndarray  # index into TABLE
    patient: np.ndarray  # index into patients
    patients: tuple[str, ...]
    side: np.ndarray  # index into SIDES
    grades: np.ndarray  # int8 (n, SLOTS)
    boxes: np.ndarray  # int32 (n, 6)
    has_box: np.ndarray
    shape: np.ndarray  # int32 (n, 3)
    spacing: np.ndarray  # float64 (n, 3), millimetres

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def rows(self) -> dict[str, int]:
        return {id_: i for i, id_ in enumerate(self.ids)}

    @cached_property
    def questions(self) -> list[Question]:
        """Those that are asked, in the order of the table."""
        return [TABLE[i] for i in np.unique(self.question)]

    def shapes(self) -> dict[str, tuple[int, int, int]]:
        """The size of each volume, by volume id."""
        volumes = [id_.rsplit("-", 1)[0] for id_ in self.ids]
        return {v: (int(s[0]), int(s[1]), int(s[2])) for v, s in zip(volumes, self.shape, strict=True)}


def read_truth(release: Path, split: str) -> Truth:
    manifest = read_manifest(release)
    if split not in SPLITS:
        raise UsageError("S001", f"unknown split {split!r}", f"choose one of {', '.join(SPLITS)}")
    config = next((c for c in _PREFERRED if manifest.of(c, split)), None)
    if config is None:
        raise DataError("S001", f"{release} has no split {split}", f"it has {', '.join(manifest.volumes) or 'none'}")
    tables = [_flat(release, manifest, config, shard.path) for shard in manifest.of(config, split)]
    return _from_columns([t for t in tables if t.num_rows], f"{config} of {split}")


def _flat(release: Path, manifest: Manifest, config: str, path: str) -> pa.Table:
    """The wanted columns of a shard, one row per quintuple whatever the config."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        if config not in PER_VOLUME:
            return pq.ParquetFile(release / path).read(columns=[*_OF_VOLUME, *_OF_QUESTION])
        nested = [f"quintuples.list.element.{name}" for name in _OF_QUESTION]
        table = pq.ParquetFile(release / path).read(columns=[*_OF_VOLUME, *nested]).combine_chunks()
        lists = table["quintuples"].combine_chunks()
        parents = pc.list_parent_indices(lists)
        elements = pc.list_flatten(lists)
        columns = {name: table[name].take(parents) for name in _OF_VOLUME}
        return pa.table({**columns, **{name: elements.field(name) for name in _OF_QUESTION}})
    except (OSError, KeyError, pa.ArrowException) as error:
        raise DataError("S002", f"{path}: {str(error)[:120]}", "is the release whole? `reasonknee validate` tells") from None


def _from_columns(tables: list[pa.Table], where: str) -> Truth:
    import pyarrow as pa

    if not tables:
        raise DataError("S002", f"{where} holds no quintuple", "score another split")
    table = pa.concat_tables(tables)
    known = pa.array(QUESTIONS)
    question = _indices(table["question_id"], known, where)
    order = np.lexsort((question, _indices(table["volume_id"], table["volume_id"].unique(), where)))  # `cropped` stores a volume section by section
    table, question = table.take(order), question[order]
    patients = sorted(table["patient"].unique().to_pylist())
    boxes = table["box"]
    has_box = boxes.is_valid().to_numpy(zero_copy_only=False)
    truth = Truth(
        ids=table["id"].to_pylist(),
        question=question,
        patient=_indices(table["patient"], pa.array(patients), where),
        patients=tuple(patients),
        side=_indices(table["side"], pa.array(SIDES), where),
        grades=_grades(table["grades"], question, where),
        boxes=_struct(boxes, BOX_FIELDS, np.int32),
        has_box=has_box,
        shape=_struct(table["shape"], _AXES, np.int32),
        spacing=_struct(table["spacing"], _AXES, np.float64),
    )
    if len(truth.rows) != len(truth):
        raise DataError("S002", f"{where}: an id stands twice", "`reasonknee validate` tells which")
    return truth


def _indices(column: Any, known: pa.Array, where: str) -> np.ndarray:
    import pyarrow.compute as pc

    found = pc.index_in(column, known)
    if found.null_count:
        wrong = column.filter(pc.is_null(found))[0].as_py()
        raise DataError("S002", f"{where}: {ascii(wrong)[:60]} is not known", "was the release made by another version?")
    indices: np.ndarray = found.to_numpy().astype(np.int32)
    return indices


def _struct(column: Any, names: tuple[str, ...], dtype: Any) -> np.ndarray:
    """The fields of a struct column side by side; zeros where it is null."""
    import pyarrow.compute as pc

    return np.stack([pc.fill_null(pc.struct_field(column, name), 0).to_numpy() for name in names], axis=1).astype(dtype)


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
                        raise DataError("S002", f"{where}: an illegal grade of {TABLE[q].id}.{name}", "`reasonknee validate` tells which")
    return grades
