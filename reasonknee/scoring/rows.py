"""rows.parquet: what became of each answer, for reports, the viewer, `compare` and anyone's own analysis.

One row per quintuple that was asked. The columns are `layout.scores.ROW_FIELDS`; the file's metadata says
which model, split and release it is of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.answers import Problem
from reasonknee.boxes import BOX_FIELDS
from reasonknee.errors import DataError
from reasonknee.layout import SIDES
from reasonknee.layout.bounds import check_groups
from reasonknee.layout.parquet import Unusual
from reasonknee.layout.records import arrow_fields
from reasonknee.layout.scores import BOX_STATES, ROW_FIELDS, STATUSES
from reasonknee.questions import ATTRIBUTES
from reasonknee.scoring.lines import AGREES, BOXED, HAS, MISSING, REGION, STATES, STEPS
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import Judged
from reasonknee.scoring.truth import NONE, SLOTS, TABLE, Truth
from reasonknee.system.files import whole

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_FILE = "rows.parquet"
_BLOCK = 1 << 16  # rows that are made at a time, to bound memory
_BITS = (HAS, REGION, STATES, AGREES, STEPS)
# the place of each question's attributes among all; the last place is for slots that it does not have
_NAMES = tuple(ATTRIBUTES)
_COLUMN = np.full((len(TABLE), SLOTS), len(_NAMES))
for _q, _question in enumerate(TABLE):
    for _slot, _attribute in enumerate(_question.attributes):
        _COLUMN[_q, _slot] = _NAMES.index(_attribute.id)


def write_rows(
    path: Path, truth: Truth, predicted: Predictions, judged: Judged, about: Mapping[str, str]
) -> None:
    """Under its name the file is whole; one of that name is replaced."""
    import pyarrow.parquet as pq

    schema = arrow_fields(ROW_FIELDS).with_metadata({f"reasonknee.{k}": v for k, v in about.items()})
    with whole(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as file:
        for start in range(0, len(truth), _BLOCK):
            here = slice(start, min(start + _BLOCK, len(truth)))
            file.write_table(_table(here, truth, predicted, judged, schema))


def _table(here: slice, truth: Truth, predicted: Predictions, judged: Judged, schema: pa.Schema) -> pa.Table:
    import pyarrow as pa

    question = truth.question[here]
    wanted, given = judged.wanted[here], judged.given[here]
    boxed = predicted.box_state[here] == BOXED
    offset, confidence = predicted.offset[here], predicted.confidence[here]
    ids = truth.ids[here]
    columns: dict[str, Any] = {
        "id": ids,
        "volume_id": [id_.rsplit("-", 1)[0] for id_ in ids],
        "patient": _named(truth.patients, truth.patient[here]),
        "visit": _named(truth.visits, truth.visit[here]),
        "side": _named(SIDES, truth.side[here]),
        "question_id": _named([q.id for q in TABLE], question),
        "category": _named([q.category.id for q in TABLE], question),
        "region": _named([q.region.id for q in TABLE], question),
        "status": _named(STATUSES, predicted.status[here]),
        "line": pa.array(offset, mask=offset < 0),
        "grades": _by_attribute(predicted.grades[here], question, predicted.grades[here] != NONE),
        "true_grades": _by_attribute(truth.grades[here], question, judged.asked[here]),
        "right": _by_attribute(judged.right[here], question, judged.asked[here]),
        "box_status": _named(BOX_STATES, predicted.box_state[here]),
        "box": _boxes(predicted.boxes[here], boxed),
        "true_box": _boxes(truth.boxes[here], truth.has_box[here]),
        "iou": pa.array(judged.iou[here], mask=~wanted),
        "giou": pa.array(judged.giou[here], mask=~wanted),
        "centre_mm": pa.array(judged.centre_mm[here], mask=~given),
        "confidence": pa.array(confidence, mask=np.isnan(confidence)),
        "reasoning": _checks(predicted.reasoning[here], schema.field("reasoning").type),
        "problems": _problems(predicted, here, schema.field("problems").type),
    }
    return pa.table([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def _named(names: Any, index: np.ndarray) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32)), pa.array(list(names))).cast(
        "string"
    )


def _by_attribute(values: np.ndarray, question: np.ndarray, known: np.ndarray) -> pa.Array:
    import pyarrow as pa

    rows, columns = np.arange(len(question))[:, None], _COLUMN[question]
    wide = np.zeros((len(question), len(_NAMES) + 1), values.dtype)
    there = np.zeros(wide.shape, bool)
    wide[rows, columns], there[rows, columns] = values, known
    parts = [pa.array(np.ascontiguousarray(wide[:, i]), mask=~there[:, i]) for i in range(len(_NAMES))]
    return pa.StructArray.from_arrays(parts, names=_NAMES)


def _boxes(corners: np.ndarray, there: np.ndarray) -> pa.Array:
    import pyarrow as pa

    parts = [pa.array(np.ascontiguousarray(corners[:, i])) for i in range(6)]
    return pa.StructArray.from_arrays(parts, names=BOX_FIELDS, mask=pa.array(~there))


def _checks(bits: np.ndarray, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    return pa.StructArray.from_arrays([pa.array(bits & bit > 0) for bit in _BITS], fields=list(kind))


def _problems(predicted: Predictions, here: slice, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    of_rows = [predicted.problems.get(row, ()) for row in range(here.start, here.stop)]
    ends = np.cumsum([0, *map(len, of_rows)], dtype=np.int32)
    told = [problem for problems in of_rows for problem in problems]
    parts = [pa.array([p.code for p in told], "string"), pa.array([p.text for p in told], "string")]
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(parts, fields=list(kind.value_type)))


# --- the way back -------------------------------------------------------------------------------------------


def read_rows(path: Path, truth: Truth) -> Predictions:
    """The predictions that a file of rows was made of, in the order of the truth."""
    predicted = Predictions.empty(len(truth))
    columns = ("id", "status", "line", "grades", "box_status", "box", "confidence", "reasoning", "problems")
    for table in _blocks(path, columns):
        ids = table["id"].to_pylist()
        rows = np.array([truth.rows.get(id_, NONE) for id_ in ids], np.int64)
        predicted.lines += len(ids)
        aside = sum(id_ in truth.aside for id_ in ids)
        predicted.aside += aside
        predicted.unknown += int((rows == NONE).sum()) - aside
        _take(predicted, table, rows, truth)
    if predicted.unknown + predicted.aside == predicted.lines:
        raise DataError("S012", f"{path.name}: none of its ids is in this split", "is it of another split?")
    predicted.lines -= int((predicted.status == MISSING).sum())
    return predicted


def rows_about(path: Path) -> dict[str, str]:
    """Which model, split and release a file of rows is of."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        told = pq.read_schema(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise _no_rows(path, error) from None
    start = b"reasonknee."
    return {k[len(start) :].decode(): v.decode() for k, v in told.items() if k.startswith(start)}


def _no_rows(path: Path, error: Exception) -> DataError:
    told = f"{path.name}: no rows of scores: {str(error)[:120]}"
    return DataError("S014", told, "`reasonknee score --out` writes them")


def _blocks(path: Path, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                check_groups(file, path, [group], columns)
                table = file.read_row_group(group, columns=list(columns))
                yield table.cast(pa.schema([arrow_fields(ROW_FIELDS).field(name) for name in columns]))
    except (OSError, KeyError, ValueError, Unusual, pa.ArrowException) as error:
        raise _no_rows(path, error) from None


def _take(predicted: Predictions, table: pa.Table, rows: np.ndarray, truth: Truth) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = rows != NONE
    rows, table = rows[kept], table.filter(pa.array(kept))
    for name, names in (("status", STATUSES), ("box_status", BOX_STATES)):
        index = pc.index_in(table[name], pa.array(names))
        if index.null_count:
            raise DataError(
                "S014", f"no rows of scores: an unknown {name}", "`reasonknee score --out` writes them"
            )
        getattr(predicted, "box_state" if name == "box_status" else name)[rows] = index.to_numpy()
    predicted.offset[rows] = pc.fill_null(table["line"], -1).to_numpy()
    predicted.confidence[rows] = table["confidence"].to_numpy()
    grades = np.stack(
        [pc.fill_null(pc.struct_field(table["grades"], a), NONE).to_numpy() for a in _NAMES]
        + [np.full(len(rows), NONE, np.int8)],
        axis=1,
    )
    predicted.grades[rows] = np.take_along_axis(grades, _COLUMN[truth.question[rows]], axis=1)
    corners = [pc.fill_null(pc.struct_field(table["box"], c), 0).to_numpy() for c in BOX_FIELDS]
    predicted.boxes[rows] = np.stack(corners, axis=1)
    fields = [f.name for f in table.schema.field("reasoning").type]
    flags = [pc.struct_field(table["reasoning"], f).to_numpy(zero_copy_only=False) for f in fields]
    predicted.reasoning[rows] = sum(
        bit * flag.astype(np.uint8) for bit, flag in zip(_BITS, flags, strict=True)
    )
    for row, told in zip(rows.tolist(), table["problems"].to_pylist(), strict=True):
        if told:
            predicted.problems[row] = tuple(Problem(p["code"], p["text"]) for p in told)
