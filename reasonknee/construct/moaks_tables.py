"""From OAI's MOAKS tables to grades, with every cell accounted for.

A table holds one visit (`kMRI_SQ_MOAKS_BICL00` and so on), a row one reading of one knee, a cell `code: label`. Codes are text until the very end:
the cartilage field `2.1` is a size of 2 and a full-thickness grade of 1, and 0.5, -0.5 and -1 say that something changed within a grade, which is
no grade. A question is graded only if all of its attributes are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.questions import QUESTIONS, Attribute
from reasonknee.scans import VISITS
from reasonknee.splits import patient_id

READING_RULE = "of several readings of one knee and visit: the one with most graded questions, then the lowest READPRJ, then the first row"
MISSING, WITHIN_GRADE, OUTSIDE = "missing", "within-grade code", "outside the grade space"
UNREADABLE, INCOMPLETE, OTHER_READING = "not a code", "another attribute of the question has no grade", "another reading was chosen"
NOT_ASKED, NO_KNEE = "no question asks for the column", "the row's id or side cannot be read"
KEYS = ("ID", "SIDE", "READPRJ")
RECODED = {"MACLTR": {2: 1}}  # 1 and 2 both say that the ligament is torn
_FILE = re.compile(r"kmri_sq_moaks_bicl([0-9]{2})\.(txt|sas7bdat)", re.IGNORECASE)
_CODE = re.compile(r"-?[0-9]{1,3}(\.[0-9]{1,3})?")
_CHANGE = {Decimal("0.5"), Decimal("-0.5"), Decimal("-1")}
_SIDES = {"1": "right", "2": "left"}
_MAX_LINE = 1 << 20

Knee = tuple[str, str, str]  # patient, visit, side
_ATTRIBUTES: dict[str, list[tuple[str, Attribute]]] = {}
for _q in QUESTIONS.values():
    for _a in _q.attributes:
        _ATTRIBUTES.setdefault(_a.oai.name, []).append((_q.id, _a))


@dataclass(frozen=True)
class Reading:
    """One row: its grades, and what became of its cells."""

    project: str
    where: str
    grades: dict[str, dict[str, int]]
    used: int
    unused: Counter[str]

    @property
    def rank(self) -> tuple[int, int]:
        return (-len(self.grades), int(self.project) if self.project.isascii() and self.project.isdigit() else 1 << 30)


@dataclass
class Readings:
    """All tables: the chosen reading of each knee, and the account of the rest."""

    chosen: dict[Knee, Reading] = field(default_factory=dict)
    several: dict[Knee, list[str]] = field(default_factory=dict)  # the projects of all readings, where there was a choice
    cells: int = 0
    unused: Counter[str] = field(default_factory=Counter)
    recoded: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    refused_rows: list[str] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)


def read_tables(folder: Path) -> Readings:
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _FILE.fullmatch(path.name)
        if match and match[1] in VISITS:
            key = match[1]
            if key not in found or match[2].lower() == "txt":  # the text is what OAI documents; the same table is not read twice
                found[key] = path
    if not found:
        raise DataError("J001", f"no MOAKS table in {folder}", f"kMRI_SQ_MOAKS_BICL{{{','.join(VISITS)}}}.txt or .sas7bdat are wanted")
    result = Readings()
    for number, path in sorted(found.items()):
        _read_table(path, number, result)
    return result


def _read_table(path: Path, number: str, result: Readings) -> None:
    lines = _sas_rows(path) if path.suffix.lower() == ".sas7bdat" else _text_rows(path)
    _, header = next(lines)
    names = [name.strip().upper() for name in header]
    missing = [key for key in KEYS if key not in names]
    if missing and len(names) == 1:
        raise DataError("J002", f"{path.name}: one column, {header[0][:40]!r}", "OAI separates columns by |; export the table again")
    if missing or len(set(names)) != len(names):
        raise DataError("J002", f"{path.name}: " + (f"no column {missing[0]}" if missing else "a column stands twice"), "is it a MOAKS table of OAI?")
    columns = {name: name[3:] if name.startswith(f"V{number}") and name[3:] in _ATTRIBUTES else "" for name in names if name not in KEYS}
    if not any(columns.values()):
        raise DataError("J002", f"{path.name}: no column V{number}M...", "the columns of a table carry the number of its visit")
    rows = 0
    readings: dict[Knee, list[Reading]] = {}
    for line, cells in lines:
        rows += 1
        where = f"{path.name}:{line}"
        if len(cells) != len(names):
            raise DataError("J003", f"{where}: {len(cells)} cells where {len(names)} are wanted", "mend the row")
        row = dict(zip(names, cells, strict=True))
        result.cells += len(columns)
        try:
            knee = (patient_id(code(row["ID"])), VISITS[number], _side(row["SIDE"]))
        except DataError as error:
            result.refused_rows.append(f"{where}: {error.message}")
            result.unused[NO_KNEE] += len(columns)
            continue
        readings.setdefault(knee, []).append(_reading(row, columns, where, result, VISITS[number]))
    absent = sorted(set(_ATTRIBUTES) - set(columns.values()))
    result.tables.append({"file": path.name, "visit": VISITS[number], "rows": rows, "columns_absent": absent})
    for knee, mine in readings.items():
        _choose(knee, mine, result)


def _choose(knee: Knee, readings: list[Reading], result: Readings) -> None:
    best = min(readings, key=lambda r: r.rank)  # min keeps the first of equals
    result.chosen[knee] = best
    if len(readings) > 1:
        result.several[knee] = [r.project for r in readings]
    for reading in readings:
        result.unused.update(reading.unused)
        if reading is not best:
            result.unused[OTHER_READING] += reading.used


def code(cell: str) -> str:
    """The part of a cell before its label."""
    return cell.split(":", 1)[0].strip()


def _side(cell: str) -> str:
    side, label = _SIDES.get(code(cell)), cell.partition(":")[2].strip().lower()
    if side is None or (label in _SIDES.values() and label != side):
        raise DataError("J004", f"{cell[:40]!r} is not a side", "1: Right or 2: Left")
    return side


def _reading(row: dict[str, str], columns: dict[str, str], where: str, result: Readings, visit: str) -> Reading:
    grades: dict[str, dict[str, int]] = {}
    unused: Counter[str] = Counter()
    good: Counter[str] = Counter()  # cells of each question that hold grades
    for column, variable in columns.items():
        if not variable:
            unused[NOT_ASKED] += 1
            continue
        question = _ATTRIBUTES[variable][0][0]
        read = read_cell(variable, row[column])
        if isinstance(read, str):
            unused[read] += 1
            continue
        good[question] += 1
        grades.setdefault(question, {}).update(read)
        if int(Decimal(code(row[column]))) in RECODED.get(variable, {}):
            result.recoded[f"{variable} {code(row[column])} read as {next(iter(read.values()))}"] += 1
        if read.get("morphology") == 7 and visit == "00m":
            result.warnings["progressive partial maceration (grade 7) at baseline: nothing to progress from"] += 1
    whole = {q.id: {a.id: grades[q.id][a.id] for a in q.attributes} for q in QUESTIONS.values() if len(grades.get(q.id, ())) == len(q.attributes)}
    for question, cells in good.items():
        if question not in whole:
            unused[INCOMPLETE] += cells
    return Reading(code(row["READPRJ"]), where, whole, sum(good[q] for q in whole), unused)


def read_cell(variable: str, cell: str) -> dict[str, int] | str:
    """The grades in a cell by attribute, or the reason why there is none."""
    text = code(cell)
    if not text or text.startswith("."):
        return MISSING
    if not _CODE.fullmatch(text):
        return UNREADABLE
    if Decimal(text) in _CHANGE:
        return WITHIN_GRADE
    whole, _, tenths = text.partition(".")
    if "-" in whole or len(tenths.rstrip("0")) > 1:
        return OUTSIDE
    digits = {"whole": int(whole), "integer": int(whole), "tenths": int(tenths[:1] or 0)}
    found = {}
    for _, attribute in _ATTRIBUTES[variable]:
        grade = digits[attribute.oai.part]
        if attribute.oai.part == "whole":
            grade = RECODED.get(variable, {}).get(grade, grade)
            if digits["tenths"]:
                return OUTSIDE
        if grade not in attribute.space.grades:
            return OUTSIDE
        found[attribute.id] = grade
    return found


# --- files ------------------------------------------------------------------------------------------------------------------------


def _text_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells, the header first. OAI quotes nothing; labels may hold anything but a bar."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline=None) as file:
            empty = True
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), ""), start=1):
                if len(line) >= _MAX_LINE:
                    raise DataError("J003", f"{path.name}:{number}: longer than {_MAX_LINE} characters", "is it a table?")
                if line.strip():
                    empty = False
                    yield number, line.rstrip("\n").split("|")
            if empty:
                raise DataError("J002", f"{path.name}: empty", "download it again")
    except OSError as error:
        raise StorageError("T000", f"{path}: {error.strerror}", "check the path and its permissions") from None


def _sas_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        import pandas as pd
    except ImportError:
        raise UsageError("J005", f"{path.name}: reading sas7bdat needs pandas", "pip install 'reasonknee[construct]'") from None
    try:
        frame = pd.read_sas(path, format="sas7bdat", encoding="latin-1")
    except OSError as error:
        raise StorageError("T000", f"{path}: {error.strerror}", "check the path and its permissions") from None
    except Exception as error:  # pandas' errors on a damaged file are of many types
        raise DataError("J002", f"{path.name}: not a readable sas7bdat table: {str(error)[:80]}", "use OAI's text tables") from None
    yield from frame_rows(frame)


def frame_rows(frame: Any) -> Iterator[tuple[int, list[str]]]:
    """A SAS table as rows of text: its numbers as they are written, its missing values as `.`"""
    yield 0, [str(name) for name in frame.columns]
    for number, values in enumerate(frame.itertuples(index=False, name=None), start=1):
        yield number, [_sas_cell(value) for value in values]


def _sas_cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return "."
    return f"{value:.10g}" if isinstance(value, float) else str(value)
