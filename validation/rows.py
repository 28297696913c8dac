"""Rows against the question table: forms, ids, grades, wording and reasoning.

Whole batches at a time; only what fails is looked at singly.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reasonknee import schema
from reasonknee.boxes import Box
from reasonknee.errors import DataError, shown
from reasonknee.layout import patient_id, quintuple_id, volume_id
from reasonknee.layout.records import Field, NiftiFile, Repeated, Struct, fields
from reasonknee.layout.splits import VISIT
from reasonknee.questions import ATTRIBUTES, QUESTIONS, Question, question_set
from reasonknee.validation import statements
from reasonknee.validation.findings import Findings
from reasonknee.validation.reading import NONE, Batch, encoded, whole

if TYPE_CHECKING:
    import pyarrow as pa

TABLE: tuple[Question, ...] = tuple(QUESTIONS.values())
ASKED = np.array([[a in {x.id for x in q.attributes} for a in ATTRIBUTES] for q in TABLE])
_GRADES = np.array(
    [
        [len(q.attribute(a).space.grades) if ASKED[n, i] else 0 for i, a in enumerate(ATTRIBUTES)]
        for n, q in enumerate(TABLE)
    ]
)
_OF_VOLUME = {f.name for f in fields("full")} - {"volume", "quintuples"}
_FORMS = {
    "visit": re.compile(VISIT),
    "side": re.compile(r"left|right"),
    "study": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "series": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "orientation": re.compile(r"[LR][SI][AP]"),
}
# An absolute path with two parts, a Windows drive, a share, or a URL: none of them has a place in a row.
_ELSEWHERE = re.compile(
    r"(?:^|[\s\"'(=])(?:/[\w.~-]+){2,}|\b[A-Za-z]:[\\/]|\\\\\w|\b(?:file|https?|s3|gs|ftp|hf)://|\.\./"
)


@dataclass(frozen=True)
class Terms:
    """What the manifest promises about every row."""

    questions: str
    wording: str
    margin_mm: float | str
    compared: str = "full"  # the config whose voxels are looked through for copies
    described: str = "annotations"  # the config that is summed: others say the same
    accepted: frozenset[str] = frozenset()  # volumes that may look like no scan


@lru_cache(maxsize=1 << 14)  # wordings are long, and the same in every volume
def points_elsewhere(text: str) -> bool:
    return bool(_ELSEWHERE.search(text))


class Sound(NamedTuple):
    """Which quintuples are sound enough for the checks that build on them."""

    known: np.ndarray  # they ask a question that there is
    legal: np.ndarray  # and have its grades


def check_rows(batch: Batch, terms: Terms, findings: Findings) -> Sound:
    """All checks of this module."""
    sound = _no_nulls(batch, findings)
    if not sound.all():
        return Sound(sound, sound)  # the rest reads these fields as values
    _about_volumes(batch, findings)
    _ids(batch, findings)
    known = _known(batch, terms, findings)
    legal = known & _legal(batch, known, findings)
    _wording(batch, terms, known, findings)
    _reasoning(batch, legal, findings)
    if "embedding" in batch.table.column_names:
        _embeddings(batch, findings)
    return Sound(known, legal)


def sample(batch: Batch, findings: Findings) -> None:
    """The first row of a group, with its first quintuple, against the committed JSON Schema, in case the
    fast checks and it disagree."""
    payload = [name for name in ("volume", "embedding") if name in batch.table.column_names]
    (row,) = batch.table.drop_columns(payload).slice(0, 1).to_pylist()
    for name in payload:  # its bytes are checked elsewhere, and long
        cell = batch.table[name].chunk(0)
        others = {f.name: cell.field(f.name)[0].as_py() for f in cell.type if f.name != "bytes"}
        row[name] = {"bytes": b"", **others} if cell.is_valid()[0].as_py() else None
    if "quintuples" in row:
        row["quintuples"] = row["quintuples"][:1]
    for error in list(schema.validator(batch.config).iter_errors(row))[:1]:
        findings.add(
            "X102", batch.place_of_row(0), f"{'.'.join(map(str, error.path))}: {shown(error.message, 160)}"
        )


# --- forms --------------------------------------------------------------------------------------------------


def _no_nulls(batch: Batch, findings: Findings) -> np.ndarray:
    """No null where the field is not nullable, at any depth. Returns one flag per quintuple."""
    bad_rows = np.zeros(len(batch.table), bool)
    for field in fields(batch.config):
        bad = np.concatenate([_null_rows(field, piece) for piece in batch.table[field.name].chunks])
        for row in np.flatnonzero(bad & ~bad_rows):
            findings.add(
                "X102",
                batch.place_of_row(int(row)),
                f"{field.name} is null, or holds a null where a value is wanted",
            )
        bad_rows |= bad
    sound: np.ndarray = ~bad_rows[batch.row] if len(batch.row) else np.ones(0, bool)
    return sound if not bad_rows.any() else np.zeros(len(sound), bool)


def _null_rows(field: Field, array: pa.Array) -> np.ndarray:
    """Which rows hold a null that the field does not allow.

    Below a nullable struct that is null, nothing is asked for.
    """
    null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else np.zeros(len(array), bool)
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

    names = [f.name for f in fields("annotations") if f.name in _OF_VOLUME]
    flat = batch.table.select(names).flatten()
    flat = flat.append_column("row", pa.array(np.arange(len(flat))))
    unique = flat.group_by(flat.column_names[:-1], use_threads=False).aggregate([("row", "min")])
    return sorted(((r.pop("row_min"), r) for r in unique.to_pylist()), key=lambda pair: int(pair[0]))


def _about_volumes(batch: Batch, findings: Findings) -> None:
    for row, about in volume_rows(batch):
        place = batch.place_of_row(row)
        for name, form in _FORMS.items():
            if points_elsewhere(about[name]):
                findings.add("X502", place, f"{name} holds a path or a URL of {len(about[name])} characters")
            elif not form.fullmatch(about[name]):
                findings.add(
                    "X102", place, f"{name} is {shown(about[name], 40)!r}, its form is {form.pattern}"
                )
        if min(about[f"shape.{a}"] for a in "zyx") < 1 or not all(
            0 < about[f"spacing.{a}"] < 1000 for a in "zyx"
        ):
            findings.add("X102", place, "shape and spacing are positive numbers")
        try:
            patient = patient_id(about["patient"])
        except DataError:
            patient = ""
        if patient != about["patient"]:
            findings.add(
                "X105",
                place,
                f"patient is {shown(about['patient'], 40)!r}" + (f", normally {patient}" if patient else ""),
            )
        wanted = volume_id(about["patient"], about["visit"], about["side"])
        if about["volume_id"] != wanted:
            findings.add(
                "X105",
                place,
                f"volume_id is {shown(about['volume_id'])!r}; patient, visit and side make it "
                f"{shown(wanted)!r}",
            )


def _ids(batch: Batch, findings: Findings) -> None:
    ids, questions = batch.flat["id"].to_pylist(), batch.flat["question_id"].to_pylist()
    volumes = (
        np.array(batch.table["volume_id"].to_pylist(), dtype=object)[batch.row] if len(batch.row) else []
    )
    for i, (got, volume, asked) in enumerate(zip(ids, volumes, questions, strict=True)):
        if got != quintuple_id(volume, asked):
            findings.add(
                "X105", batch.place(i), f"volume and question make it {shown(quintuple_id(volume, asked))!r}"
            )


# --- questions and grades -----------------------------------------------------------------------------------


def _known(batch: Batch, terms: Terms, findings: Findings) -> np.ndarray:
    """Which quintuples ask a question that there is, under its own category and region."""
    known = batch.question >= 0
    for i in np.flatnonzero(~known):
        findings.add(
            "X103",
            batch.place(int(i)),
            f"question_id is {shown(batch.flat['question_id'][int(i)].as_py())!r}",
        )
    for name in ("category", "region"):
        codes, values = encoded(batch.flat[name])
        for number, code in set(zip(batch.question[known].tolist(), codes[known].tolist(), strict=True)):
            wanted = getattr(TABLE[number], name).id
            if values[code] != wanted:
                for i in np.flatnonzero((batch.question == number) & (codes == code)):
                    findings.add(
                        "X103",
                        batch.place(int(i)),
                        f"{name} is {shown(values[code], 40)!r}, the question's is {wanted!r}",
                    )
    asked = {q.id for q in question_set(terms.questions)}
    outside = [n for n, q in enumerate(TABLE) if q.id not in asked]
    for i in np.flatnonzero(np.isin(batch.question, outside)):
        findings.add(
            "X111", batch.place(int(i)), f"{TABLE[batch.question[i]].id} is not in {terms.questions}"
        )
    return known


def legal_grades(question: np.ndarray, grades: np.ndarray) -> np.ndarray:
    """Which rows of a grade matrix are an answer to their question; the JSON Schema of its answers says
    the same, one row at a time."""
    asked, spaces = ASKED[question], _GRADES[question]
    known = asked & (grades != NONE)  # null in an asked attribute is a grade that nobody knows
    fine: np.ndarray = np.where(known, (grades >= 0) & (grades < spaces), grades == NONE).all(axis=1)
    fine &= known.any(axis=1)
    return fine


def _legal(batch: Batch, known: np.ndarray, findings: Findings) -> np.ndarray:
    legal = legal_grades(batch.question, batch.grades)
    for i in np.flatnonzero(known & ~legal):
        q = TABLE[batch.question[i]]
        given = {a: int(g) for a, g in zip(ATTRIBUTES, batch.grades[i], strict=True) if g != NONE}
        errors = [
            e
            for e in schema.validator("answers", q.id).iter_errors({"box": None, "grades": given})
            if e.validator != "required" or not given
        ]
        findings.add(
            "X104",
            batch.place(int(i)),
            "; ".join(f"{'.'.join(map(str, e.path)) or 'grades'}: {shown(e.message, 120)}" for e in errors),
        )
    return legal


# --- text ---------------------------------------------------------------------------------------------------


Wording = tuple[int, str, str]  # number of the question, name of the wording, text


def _wording(batch: Batch, terms: Terms, known: np.ndarray, findings: Findings) -> None:
    """Each wording that the manifest promises, and no other, is about its own question."""
    for name, codes, values in _wording_columns(batch):
        pairs = np.stack([batch.question, codes], axis=1)[known]
        for number, code in np.unique(pairs, axis=0).tolist() if len(pairs) else ():
            text = values[code] if code >= 0 else None
            promised = terms.wording in ("all", name)
            if text is not None and points_elsewhere(text):
                wrong = "X502", "holds a path or a URL"
            elif text is None or not promised:
                wrong = (
                    "X108",
                    "" if not promised and text is None else "is missing" if promised else "should be null",
                )
            else:
                wrong = "X108", statements.wrong_wording(TABLE[number].id, name, text)
            if wrong[1]:
                for i in np.flatnonzero((batch.question == number) & (codes == code)):
                    findings.add(wrong[0], batch.place(int(i)), f"question.{name} {wrong[1]}")


def _wording_columns(batch: Batch) -> Iterator[tuple[str, np.ndarray, list[str]]]:
    """Name, codes and texts of each wording."""
    import pyarrow.compute as pc

    for field in batch.flat.schema.field("question").type:
        yield field.name, *encoded(pc.struct_field(batch.flat["question"], field.name))


def wordings_of(batch: Batch, known: np.ndarray) -> set[Wording]:
    """Which text each question has here."""
    return {
        (number, name, values[code])
        for name, codes, values in _wording_columns(batch)
        for number, code in set(zip(batch.question[known].tolist(), codes[known].tolist(), strict=True))
        if code >= 0
    }


_FEW_QUESTIONS = 3  # a word of the frame is in the wordings of more
_ENOUGH_QUESTIONS = 20


def check_wordings(wordings: Iterable[Wording], findings: Findings) -> None:
    """A question has one wording in the whole release, and what is not the question's own in it is the frame
    that others have, too: a hint that was slipped into one question is not."""
    texts: dict[tuple[str, int], set[str]] = defaultdict(set)
    for number, name, text in wordings:
        if not statements.wrong_wording(TABLE[number].id, name, text):  # the others were told row by row
            texts[name, number].add(text)
    for (name, number), different in sorted(texts.items()):
        if len(different) > 1:
            findings.add("X108", TABLE[number].id, f"question.{name} has {len(different)} texts")
    for name in sorted({name for name, _ in texts}):
        asked = {number: next(iter(t)) for (of, number), t in texts.items() if of == name and len(t) == 1}
        strange = {n: statements.strange_words(TABLE[n].id, text) for n, text in asked.items()}
        users = Counter(word for text in asked.values() for word in statements.words(text))
        for number, words in sorted(strange.items()) if len(asked) >= _ENOUGH_QUESTIONS else ():
            rare = sorted(word for word in words if users[word] < _FEW_QUESTIONS)
            if rare:
                told = f"question.{name} holds words of no other question: {shown(', '.join(rare))}"
                findings.add("X108", TABLE[number].id, told)


def _reasoning(batch: Batch, legal: np.ndarray, findings: Findings) -> None:
    """What the steps state is what the row holds."""
    lists = whole(batch.flat["reasoning"])
    codes, values = encoded(lists.flatten())
    elsewhere = {n for n, text in enumerate(values) if text is not None and points_elsewhere(text)}
    ends = np.cumsum(lists.value_lengths().to_numpy(zero_copy_only=False)).tolist()
    begin, flat = 0, codes.tolist()
    for i, end in enumerate(ends):
        mine, begin = flat[begin:end], end
        for step in [n for n, code in enumerate(mine, start=1) if code in elsewhere]:
            findings.add("X502", batch.place(i), f"reasoning step {step} holds a path or a URL")
        facts = facts_of(batch, i) if legal[i] and not elsewhere.intersection(mine) else None
        if facts:
            steps = [values[code] for code in mine]
            for code, judge in (("X110", statements.wrong_grades), ("X109", statements.wrong_places)):
                if wrong := judge(facts, steps):
                    findings.add(code, batch.place(i), wrong)
                    break


def facts_of(batch: Batch, i: int) -> statements.Facts | None:
    """What the reasoning of a quintuple must say; None where its box is none, which geometry tells."""
    box = batch.box[i].tolist()
    try:
        located = None if box[0] == NONE else Box(*box)
    except DataError:
        return None
    z, y, x = batch.shape[batch.row[i]].tolist()
    grades = {a: g for a, g in zip(ATTRIBUTES, batch.grades[i].tolist(), strict=True) if g != NONE}
    return statements.Facts(TABLE[batch.question[i]], grades, located, (z, y, x))


# --- embeddings ---------------------------------------------------------------------------------------------


def _embeddings(batch: Batch, findings: Findings) -> None:
    for row in range(len(batch.table)):
        cell = batch.table["embedding"][row]
        dtype, tokens, width = cell["dtype"].as_py(), cell["tokens"].as_py(), cell["width"].as_py()
        data = np.frombuffer(cell["bytes"].as_buffer(), np.uint8)
        place = batch.place_of_row(row)
        if dtype not in ("float16", "bfloat16") or tokens < 1 or width < 1 or len(data) != tokens * width * 2:
            findings.add("X112", place, f"{len(data)} bytes for {tokens} x {width} {shown(dtype, 20)}")
            continue
        exponent = 0x7C00 if dtype == "float16" else 0x7F80  # all ones: infinite or not a number
        if ((data.view("<u2") & exponent) == exponent).any():
            findings.add("X112", place, "it holds NaN or infinite numbers")
        elif not data.any():
            findings.add("X112", place, "all its numbers are zero")
        made = {
            name: cell[name].as_py() for name in cell if name not in ("dtype", "tokens", "width", "bytes")
        }
        if wrong := _wrong_making(made, tokens, int(batch.shape[row][0])):
            findings.add("X112", place, wrong)


def _wrong_making(made: dict[str, Any], tokens: int, slices: int) -> str:
    """What is told of how an embedding was made, and cannot be."""
    grid, shown_slices, window = made["grid"], made["slices"], made["window"]
    if grid and (min(grid.values()) < 1 or math.prod(grid.values()) % tokens):
        return f"a grid of {' x '.join(map(str, grid.values()))} patches for {tokens} tokens"
    if shown_slices and not all(0 <= n < slices for n in shown_slices):
        return f"slices {min(shown_slices)} to {max(shown_slices)} of a volume that has {slices}"
    if window and not window["low"] < window["high"]:
        return f"a window from {window['low']} to {window['high']}"
    texts = [text for text in (made["model"], made["revision"], made["versions"]) if text]
    return "its model, revision or versions hold a path or a URL" if any(map(points_elsewhere, texts)) else ""
