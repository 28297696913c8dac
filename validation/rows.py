"""Rows against the question table: forms, ids, grades, wording and reasoning. Whole batches at a time; only what fails is looked at singly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee import prompts, reasoning, schema
from reasonknee.boxes import Box
from reasonknee.errors import DataError, shown
from reasonknee.questions import ATTRIBUTES, QUESTIONS, Question, question_set
from reasonknee.records import Field, NiftiFile, Repeated, Struct, fields
from reasonknee.splits import patient_id, quintuple_id, volume_id
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import NONE, Batch, encoded, whole

if TYPE_CHECKING:
    import pyarrow as pa

TABLE: tuple[Question, ...] = tuple(QUESTIONS.values())
_ASKED = np.array([[a in {x.id for x in q.attributes} for a in ATTRIBUTES] for q in TABLE])
_GRADES = np.array([[len(q.attribute(a).space.grades) if _ASKED[n, i] else 0 for i, a in enumerate(ATTRIBUTES)] for n, q in enumerate(TABLE)])
_FORMS = {
    "visit": re.compile(r"[0-9]{2}m|[1-9][0-9]{2}m"),  # one spelling of each
    "side": re.compile(r"left|right"),
    "study": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "series": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "orientation": re.compile(r"[LR][SI][AP]"),
}
# An absolute path with two parts, a Windows drive, a share, or a URL: none of them has a place in a row.
_ELSEWHERE = re.compile(r"(?:^|[\s\"'(=])(?:/[\w.~-]+){2,}|\b[A-Za-z]:[\\/]|\\\\\w|\b(?:file|https?|s3|gs|ftp|hf)://|\.\./")
_NAMED = re.compile(r"\bgrade ([0-9]+)\b")


@dataclass(frozen=True)
class Terms:
    """What the manifest promises about every row."""

    questions: str
    wording: str
    margin_mm: float
    compared: str = "full"  # the config whose voxels are looked through for copies


def points_elsewhere(text: str) -> bool:
    return bool(_ELSEWHERE.search(text))


def check_rows(batch: Batch, terms: Terms, found: Findings) -> np.ndarray:
    """All checks of this module; returns which quintuples are sound enough for the checks that build on them."""
    sound = _no_nulls(batch, found)
    if not sound.all():
        return sound  # the rest reads these fields as values
    _about_volumes(batch, found)
    _ids(batch, found)
    known = _known(batch, terms, found)
    legal = known & _legal(batch, known, found)
    _wording(batch, terms, known, found)
    _reasoning(batch, legal, found)
    if "embedding" in batch.table.column_names:
        _embeddings(batch, found)
    return known


def sample(batch: Batch, found: Findings) -> None:
    """The first row of a group, with its first quintuple, against the committed JSON Schema, in case the fast checks and it disagree."""
    payload = [name for name in ("volume", "embedding") if name in batch.table.column_names]
    (row,) = batch.table.drop_columns(payload).slice(0, 1).to_pylist()
    for name in payload:  # its bytes are checked elsewhere, and long
        cell = batch.table[name][0]
        row[name] = {key: b"" if key == "bytes" else cell[key].as_py() for key in cell} if cell.is_valid else None
    if "quintuples" in row:
        row["quintuples"] = row["quintuples"][:1]
    for error in list(schema.validator(batch.config).iter_errors(row))[:1]:
        found.add("X102", batch.place_of_row(0), f"{'.'.join(map(str, error.path))}: {shown(error.message, 160)}")


# --- forms ------------------------------------------------------------------------------------------------------------------------


def _no_nulls(batch: Batch, found: Findings) -> np.ndarray:
    """No null where the field is not nullable, at any depth. Returns one flag per quintuple."""
    bad_rows = np.zeros(len(batch.table), bool)
    for field in fields(batch.config):
        bad = np.concatenate([_null_rows(field, piece) for piece in batch.table[field.name].chunks])
        for row in np.flatnonzero(bad & ~bad_rows):
            found.add("X102", batch.place_of_row(int(row)), f"{field.name} is null, or holds a null where a value is wanted")
        bad_rows |= bad
    sound: np.ndarray = ~bad_rows[batch.row] if len(batch.row) else np.ones(0, bool)
    return sound if not bad_rows.any() else np.zeros(len(sound), bool)


def _null_rows(field: Field, array: pa.Array) -> np.ndarray:
    """Which rows hold a null that the field does not allow. Below a nullable struct that is null, nothing is asked for."""
    null = array.is_null().to_numpy(zero_copy_only=False)
    bad = np.zeros(len(array), bool) if field.nullable else null.copy()
    if isinstance(field.type, Struct):
        for inner in field.type.fields:
            bad |= _null_rows(inner, array.field(inner.name)) & ~null
    elif isinstance(field.type, NiftiFile):
        bad |= array.field("bytes").is_null().to_numpy(zero_copy_only=False) & ~null
    elif isinstance(field.type, Repeated):
        import pyarrow.compute as pc

        inside = _null_rows(Field(field.name, field.type.of, ""), array.flatten())
        bad[pc.list_parent_indices(array).to_numpy()[inside]] = True
    return bad


def volume_rows(batch: Batch) -> list[tuple[int, dict[str, Any]]]:
    """The different descriptions of volumes in a batch, each with the first row that has it."""
    import pyarrow as pa

    names = ["volume_id", "patient", "visit", "side", "study", "series", "orientation", "shape", "spacing"]
    flat = batch.table.select(names).flatten()
    flat = flat.append_column("row", pa.array(np.arange(len(flat))))
    unique = flat.group_by(flat.column_names[:-1], use_threads=False).aggregate([("row", "min")])
    return sorted(((r.pop("row_min"), r) for r in unique.to_pylist()), key=lambda pair: int(pair[0]))


def _about_volumes(batch: Batch, found: Findings) -> None:
    for row, about in volume_rows(batch):
        place = batch.place_of_row(row)
        for name, form in _FORMS.items():
            if points_elsewhere(about[name]):
                found.add("X502", place, f"{name} holds a path or a URL of {len(about[name])} characters")
            elif not form.fullmatch(about[name]):
                found.add("X102", place, f"{name} is {shown(about[name], 40)!r}, its form is {form.pattern}")
        if min(about[f"shape.{a}"] for a in "zyx") < 1 or not all(0 < about[f"spacing.{a}"] < 1000 for a in "zyx"):
            found.add("X102", place, "shape and spacing are positive numbers")
        try:
            patient = patient_id(about["patient"])
        except DataError:
            patient = ""
        if patient != about["patient"]:
            found.add("X105", place, f"patient is {shown(about['patient'], 40)!r}" + (f", normally {patient}" if patient else ""))
        wanted = volume_id(about["patient"], about["visit"], about["side"])
        if about["volume_id"] != wanted:
            found.add("X105", place, f"volume_id is {shown(about['volume_id'])!r}; patient, visit and side make it {shown(wanted)!r}")


def _ids(batch: Batch, found: Findings) -> None:
    ids, questions = batch.flat["id"].to_pylist(), batch.flat["question_id"].to_pylist()
    volumes = np.array(batch.table["volume_id"].to_pylist(), dtype=object)[batch.row] if len(batch.row) else []
    for i, (got, volume, asked) in enumerate(zip(ids, volumes, questions, strict=True)):
        if got != quintuple_id(volume, asked):
            found.add("X105", batch.place(i), f"volume and question make it {shown(quintuple_id(volume, asked))!r}")


# --- questions and grades ---------------------------------------------------------------------------------------------------------


def _known(batch: Batch, terms: Terms, found: Findings) -> np.ndarray:
    """Which quintuples ask a question that there is, under its own category and region."""
    known = batch.question >= 0
    for i in np.flatnonzero(~known):
        found.add("X103", batch.place(int(i)), f"question_id is {shown(batch.flat['question_id'][int(i)].as_py())!r}")
    for name in ("category", "region"):
        codes, values = encoded(batch.flat[name])
        for number, code in set(zip(batch.question[known].tolist(), codes[known].tolist(), strict=True)):
            wanted = getattr(TABLE[number], name).id
            if values[code] != wanted:
                for i in np.flatnonzero((batch.question == number) & (codes == code)):
                    found.add("X103", batch.place(int(i)), f"{name} is {shown(values[code], 40)!r}, the question's is {wanted!r}")
    asked = {q.id for q in question_set(terms.questions)}
    outside = [n for n, q in enumerate(TABLE) if q.id not in asked]
    for i in np.flatnonzero(np.isin(batch.question, outside)):
        found.add("X111", batch.place(int(i)), f"{TABLE[batch.question[i]].id} is not in {terms.questions}")
    return known


def legal_grades(question: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """Which rows of a grade matrix are an answer to their question; the JSON Schema of its answers says the same, one row at a time."""
    asked, spaces = _ASKED[question], _GRADES[question]
    fine: np.ndarray = np.where(asked, (grades >= 0) & (grades < spaces), grades == NONE).all(axis=1)
    return fine


def _legal(batch: Batch, known: np.ndarray, found: Findings) -> np.ndarray:
    legal = legal_grades(batch.question, batch.grades)
    for i in np.flatnonzero(known & ~legal):
        q = TABLE[batch.question[i]]
        given = {a: int(g) for a, g in zip(ATTRIBUTES, batch.grades[i], strict=True) if g != NONE}
        errors = schema.validator("answers", q.id).iter_errors({"box": None, "grades": given})
        found.add("X104", batch.place(int(i)), "; ".join(f"{'.'.join(map(str, e.path)) or 'grades'}: {shown(e.message, 120)}" for e in errors))
    return legal


# --- text -------------------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _wordings() -> list[dict[str, str]]:
    return [prompts.wordings(q) for q in TABLE]


def _wording(batch: Batch, terms: Terms, known: np.ndarray, found: Findings) -> None:
    import pyarrow.compute as pc

    for name in prompts.WORDINGS:
        codes, values = encoded(pc.struct_field(batch.flat["question"], name))
        pairs = np.stack([batch.question, codes], axis=1)[known]
        for number, code in np.unique(pairs, axis=0).tolist() if len(pairs) else ():
            wanted = _wordings()[number][name] if terms.wording in ("both", name) else None
            got = values[code] if code >= 0 else None
            if got != wanted:
                elsewhere = got is not None and points_elsewhere(got)
                for i in np.flatnonzero((batch.question == number) & (codes == code)):
                    detail = "holds a path or a URL" if elsewhere else "is missing" if got is None else "differs" if wanted else "should be null"
                    found.add("X502" if elsewhere else "X108", batch.place(int(i)), f"question.{name} {detail}")


@lru_cache(maxsize=1 << 16)
def _after_locating(number: int, grades: tuple[int, ...]) -> list[str]:
    q = TABLE[number]
    return reasoning.steps(q, {a: g for a, g in zip(ATTRIBUTES, grades, strict=True) if g != NONE}, None)[1:]


def _reasoning(batch: Batch, legal: np.ndarray, found: Findings) -> None:
    lists = whole(batch.flat["reasoning"])
    codes, values = encoded(lists.flatten())
    ends = np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False)).tolist()
    numbers, grades, boxes = batch.question.tolist(), batch.grades.tolist(), batch.box.tolist()
    shapes, rows = batch.shape.tolist(), batch.row.tolist()
    begin, flat = 0, codes.tolist()
    for i, end in enumerate(ends):
        got = [values[c] for c in flat[begin:end]]
        begin = end
        if legal[i]:
            try:
                box = None if boxes[i][0] == NONE else Box(*boxes[i])
            except DataError:
                continue  # the geometry checks name it
            z, y, x = shapes[rows[i]]
            wanted = [reasoning.locate(TABLE[numbers[i]], box, (z, y, x)), *_after_locating(numbers[i], tuple(grades[i]))]
            if got != wanted:
                found.add(*_reasoning_fault(batch, i, got, wanted))


def _reasoning_fault(batch: Batch, i: int, got: Sequence[str], wanted: Sequence[str]) -> tuple[str, str, str]:
    step = next((n for n, (a, b) in enumerate(zip(got, wanted, strict=False)) if a != b), min(len(got), len(wanted)))
    text = got[step] if step < len(got) else ""
    if points_elsewhere(text):
        return "X502", batch.place(i), f"reasoning step {step + 1} holds a path or a URL"
    said, meant = (_NAMED.findall(" ".join(steps)) for steps in (got, wanted))
    if said != meant:
        return "X110", batch.place(i), f"it says grade {', '.join(said) or 'nothing'} where the row holds {', '.join(meant)}"
    return (
        "X109",
        batch.place(i),
        f"step {step + 1} is {shown(text, 100)!r}, the answer makes it {wanted[min(step, len(wanted) - 1)][:100]!r}",
    )


# --- embeddings -------------------------------------------------------------------------------------------------------------------


def _embeddings(batch: Batch, found: Findings) -> None:
    for row in range(len(batch.table)):
        cell = batch.table["embedding"][row]
        dtype, tokens, width = cell["dtype"].as_py(), cell["tokens"].as_py(), cell["width"].as_py()
        data = np.frombuffer(cell["bytes"].as_buffer(), np.uint8)
        if dtype not in ("float16", "bfloat16") or tokens < 1 or width < 1 or len(data) != tokens * width * 2:
            found.add("X112", batch.place_of_row(row), f"{len(data)} bytes for {tokens} x {width} {shown(dtype, 20)}")
            continue
        exponent = 0x7C00 if dtype == "float16" else 0x7F80  # all ones: infinite or not a number
        if ((data.view("<u2") & exponent) == exponent).any():
            found.add("X112", batch.place_of_row(row), "it holds NaN or infinite numbers")
        elif not data.any():
            found.add("X112", batch.place_of_row(row), "all its numbers are zero")
