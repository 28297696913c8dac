"""OAI's MOAKS tables, with every cell accounted for.

A table holds one visit (`kMRI_SQ_MOAKS_BICL00` and so on), a row one reading of one knee. A question keeps
the attributes that are known. Of several readings of a knee one is chosen, by one project over all its
visits; the others are kept apart.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reasonknee.cohort.scans import VISITS
from reasonknee.construct.columns import ABSENT, KEYS, Column, described, match, unasked
from reasonknee.construct.moaks_cells import ACL_TEAR, CONTRADICTED, VARIABLES, WITHIN_GRADE, code, read_cell
from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.layout import patient_id
from reasonknee.questions import QUESTIONS

PROJECTS = ("22", "30", "63A", "63B", "63C", "63D", "63E", "63F", "65")  # OAI's reading projects
READING_RULE = (
    "of several readings of one knee, those of the project that grades most questions over its visits, then "
    f"of the first of {', '.join(PROJECTS)}, then by name; where it has none, the same rule at that visit; "
    "of two rows of one project the first; the others are kept apart as further readings"
)
OTHER_READING = "kept apart, because another reading was chosen"
NOT_ASKED, NO_KNEE = "no question asks for the column", "the row's id or side cannot be read"
_FILE = re.compile(r"kmri_sq_moaks_bicl([0-9]{2})\.(txt|sas7bdat)", re.IGNORECASE)
_OTHER_FILE = re.compile(r"kmri_.*moaks.*\.(txt|sas7bdat)", re.IGNORECASE)
_SIDES = {"1": "right", "2": "left"}
_MAX_LINE = 1 << 20

Knee = tuple[str, str, str]  # patient, visit, side


@dataclass(frozen=True)
class Reading:
    """One row: its grades, and what became of its cells."""

    project: str
    where: str
    grades: dict[str, dict[str, int]]
    used: int
    unused: Counter[str]

    @property
    def table(self) -> str:
        return self.where.rpartition(":")[0]

    @property
    def rank(self) -> tuple[int, tuple[int, str]]:
        return (-len(self.grades), order_of(self.project))


def order_of(project: str) -> tuple[int, str]:
    """OAI's projects in their stated order, then others by name."""
    return (PROJECTS.index(project) if project in PROJECTS else len(PROJECTS), project)


@dataclass
class Readings:
    """All tables: the chosen reading of each knee, the others, and the account of the rest."""

    chosen: dict[Knee, Reading] = field(default_factory=dict)
    others: dict[Knee, list[Reading]] = field(default_factory=dict)  # where there was a choice
    cells: int = 0
    unused: Counter[str] = field(default_factory=Counter)
    recoded: Counter[str] = field(default_factory=Counter)
    within_grade: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    refused_rows: list[str] = field(default_factory=list)
    tables: list[dict[str, Any]] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)  # MOAKS tables, and why

    @property
    def absent(self) -> list[str]:
        """Variables that no table has."""
        lacking = [set(table["columns_absent"]) for table in self.tables]
        return [v for v in VARIABLES if lacking and all(v in absent for absent in lacking)]


def read_tables(folder: Path, names: Mapping[str, str] | None = None) -> Readings:
    """`names` are a user's names of columns, as `columns.read_names` has them."""
    found: dict[str, Path] = {}
    result = Readings()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match_ = _FILE.fullmatch(path.name)
        if match_ and match_[1] in VISITS:
            key = match_[1]
            # the text is what OAI documents; the same table is not read twice
            kept, other = found.get(key, path), path
            if match_[2].lower() == "txt" and kept.suffix.lower() != ".txt":
                kept, other = path, kept
            if other is not kept:
                result.not_read.append(f"{other.name} ({kept.name} is)")
            found[key] = kept
        elif _OTHER_FILE.fullmatch(path.name):
            result.not_read.append(f"{path.name} (of another kind)")
    if not found:
        others = f"; {', '.join(result.not_read[:3])}" if result.not_read else ""
        raise DataError(
            "J001",
            f"no MOAKS table in {folder}{others}",
            f"kMRI_SQ_MOAKS_BICL{{{','.join(VISITS)}}}.txt or .sas7bdat are wanted",
        )
    readings: dict[Knee, list[Reading]] = {}
    for number, path in sorted(found.items()):
        _read_table(path, number, names or {}, result, readings)
    _choose(readings, result)
    return result


def describe_table(path: Path, names: Mapping[str, str]) -> list[str]:
    """What `reasonknee columns` says of a table."""
    match_ = _FILE.fullmatch(path.name)
    if not match_ or match_[1] not in VISITS:
        raise UsageError(
            "J016",
            f"{path.name} is not named as a MOAKS table",
            "kMRI_SQ_MOAKS_BICL00.txt and so on are wanted",
        )
    header, _ = _open(path)
    return described(header, match_[1], names)


def _open(path: Path) -> tuple[list[str], Iterator[tuple[int, list[str]]]]:
    """The names of a table's columns, and its rows."""
    lines = _sas_rows(path) if path.suffix.lower() == ".sas7bdat" else _text_rows(path)
    _, header = next(lines)
    names = [name.strip().upper() for name in header]
    missing = [key for key in KEYS if key not in names]
    if missing and len(names) == 1:
        raise DataError(
            "J002",
            f"{path.name}: one column, {header[0][:40]!r}",
            "OAI separates columns by |; export the table again",
        )
    if missing or len(set(names)) != len(names):
        raise DataError(
            "J002",
            f"{path.name}: " + (f"no column {missing[0]}" if missing else "a column stands twice"),
            "is it a MOAKS table of OAI?",
        )
    return names, lines


def _read_table(
    path: Path, number: str, names: Mapping[str, str], result: Readings, readings: dict[Knee, list[Reading]]
) -> None:
    header, lines = _open(path)
    columns = match(header, number, names)
    if all(c.column is None for c in columns):
        raise DataError(
            "J002",
            f"{path.name}: no column V{number}M...",
            "the columns of a table carry the number of its visit",
        )
    spare = len(unasked(header, columns))
    rows = 0
    for line, cells in lines:
        rows += 1
        where = f"{path.name}:{line}"
        if len(cells) != len(header):
            raise DataError(
                "J003", f"{where}: {len(cells)} cells where {len(header)} are wanted", "mend the row"
            )
        row = dict(zip(header, cells, strict=True))
        result.cells += len(header) - len(KEYS)
        try:
            knee = (patient_id(code(row["ID"])), VISITS[number], _side(row["SIDE"]))
        except DataError as error:
            result.refused_rows.append(f"{where}: {error.message}")
            result.unused[NO_KNEE] += len(header) - len(KEYS)
            continue
        result.unused[NOT_ASKED] += spare
        readings.setdefault(knee, []).append(_reading(row, columns, where, result))
    result.tables.append(
        {
            "file": path.name,
            "visit": VISITS[number],
            "rows": rows,
            "columns_absent": [c.variable for c in columns if c.status == ABSENT],
            "columns_named": {c.variable: c.column for c in columns if c.status == "named"},
        }
    )


def _choose(readings: dict[Knee, list[Reading]], result: Readings) -> None:
    graded: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)  # of a knee: project -> questions
    for (patient, _, side), mine in readings.items():
        best: dict[str, int] = {}
        for reading in mine:
            best[reading.project] = max(best.get(reading.project, 0), len(reading.grades))
        graded[patient, side].update(best)
    for knee, mine in readings.items():
        counts = graded[knee[0], knee[2]]
        project = min(counts, key=lambda p: (-counts[p], order_of(p)))
        # min keeps the first of equals; a project that left this visit open is no choice here
        chosen = min(mine, key=lambda r: (r.project != project or not r.grades, r.rank))
        result.chosen[knee] = chosen
        if len(mine) > 1:
            result.others[knee] = [r for r in mine if r is not chosen]
        for reading in mine:
            result.unused.update(reading.unused)
            if reading is not chosen:
                result.unused[OTHER_READING] += reading.used


def _side(cell: str) -> str:
    side, label = _SIDES.get(code(cell)), cell.partition(":")[2].strip().lower()
    if side is None or (label in _SIDES.values() and label != side):
        raise DataError("J004", f"{cell[:40]!r} is not a side", "1: Right or 2: Left")
    return side


def _reading(row: dict[str, str], columns: list[Column], where: str, result: Readings) -> Reading:
    grades: dict[str, dict[str, int]] = {}
    unused: Counter[str] = Counter()
    used, recoded = 0, ""
    for column in columns:
        if column.column is None:
            continue
        question, cell = column.questions[0], row[column.column]
        read = read_cell(column.variable, cell)
        if isinstance(read, str):
            unused[read] += 1
            if read == WITHIN_GRADE:
                result.within_grade[question][f"{float(code(cell)):g}"] += 1
            continue
        mine = grades.setdefault(question, {})
        clash = [name for name, grade in read.items() if mine.get(name, grade) != grade]
        for name in clash:  # MACLTR may tell of a repair, too: where MACLRP says otherwise, nobody knows
            del mine[name]
        if clash:
            unused[CONTRADICTED] += 2
            used, recoded = used - 1, ""
            continue
        used += 1
        mine.update(read)
        if column.variable == ACL_TEAR and {code(cell)} != {str(g) for g in read.values()}:
            told = ", ".join(f"{name} {grade}" for name, grade in read.items())
            recoded = f"{ACL_TEAR} {cell.strip()[:40]!r} read as {told}"
    result.recoded.update([recoded] if recoded else [])
    known = {
        q.id: {a.id: grades[q.id][a.id] for a in q.attributes if a.id in grades[q.id]}
        for q in QUESTIONS.values()
        if grades.get(q.id)
    }
    return Reading(code(row["READPRJ"]).upper(), where, known, used, unused)


# --- files --------------------------------------------------------------------------------------------------


def _text_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells, the header first. OAI quotes nothing; labels may hold anything but a bar."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline=None) as file:
            empty = True
            for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE), ""), start=1):
                if len(line) >= _MAX_LINE:
                    raise DataError(
                        "J003", f"{path.name}:{number}: longer than {_MAX_LINE} characters", "is it a table?"
                    )
                if line.strip():
                    empty = False
                    yield number, line.rstrip("\n").split("|")
            if empty:
                raise DataError("J002", f"{path.name}: empty", "download it again")
    except OSError as error:
        raise StorageError(
            "T000", f"{path}: {error.strerror}", "check the path and its permissions"
        ) from None


def _sas_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    try:
        import pandas as pd
    except ImportError:
        raise UsageError(
            "J005", f"{path.name}: reading sas7bdat needs pandas", "pip install 'reasonknee[construct]'"
        ) from None
    try:
        frame = pd.read_sas(path, format="sas7bdat", encoding="latin-1")
    except OSError as error:
        raise StorageError(
            "T000", f"{path}: {error.strerror}", "check the path and its permissions"
        ) from None
    except Exception as error:  # pandas' errors on a damaged file are of many types
        raise DataError(
            "J002", f"{path.name}: not a readable sas7bdat table: {str(error)[:80]}", "use OAI's text tables"
        ) from None
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
