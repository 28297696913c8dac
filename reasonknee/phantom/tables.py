"""MOAKS tables as OAI ships them: pipe-delimited, `code: label` cells, visit prefixes, missing forms,
several readings of one knee."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reasonknee.cohort.scans import VISITS
from reasonknee.questions import QUESTIONS, OaiVariable

TABLE_OF_VISIT = {months: number for number, months in VISITS.items()}
_MISSING = ".: Missing Form/Incomplete Workbook"
_WITHIN_GRADE = (
    "0.5: Within-grade worsening",
    "-0.5: Within-grade improvement",
    "-1: Improvement by one grade",
)
PROJECTS = ("22", "30", "65")  # two that read knees first, and one that reads some of them again
_ACL = {"0": "Intact", "1": "Complete tear"}
_SIDE = {"right": "1: Right", "left": "2: Left"}
Grades = Mapping[str, Mapping[str, int]]


def columns() -> list[OaiVariable]:
    """The variables behind the questions, each once; the two digits of the cartilage field are one
    variable."""
    return list({a.oai.name: a.oai for q in QUESTIONS.values() for a in q.attributes}.values())


class TableRow(NamedTuple):
    """One reading of one knee; a question without grades becomes a cell that cannot be used."""

    patient: str
    visit: str
    side: str
    project: str
    grades: Grades


def table_name(visit: str) -> str:
    return f"kMRI_SQ_MOAKS_BICL{TABLE_OF_VISIT[visit]}.txt"


def write_moaks_tables(folder: Path, rows: list[TableRow], rng: np.random.Generator) -> None:
    """One table per visit."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [v.name for v in columns()]
    for visit, number in TABLE_OF_VISIT.items():
        lines = ["|".join(["ID", "SIDE", "READPRJ", "VERSION", *(f"V{number}{name}" for name in names)])]
        for row in sorted((r for r in rows if r.visit == visit), key=lambda r: r[:4]):
            unusable = _WITHIN_GRADE[int(rng.integers(3))] if visit != "00m" else _MISSING
            cells = _cells(row.grades, unusable)
            fixed = [row.patient, _SIDE[row.side], row.project, "0.2.2"]
            lines.append("|".join([*fixed, *(cells[n] for n in names)]))
        absent = f"{1999000 + int(number):07d}"  # a knee that was scheduled, but never read
        lines.append("|".join([absent, _SIDE["left"], PROJECTS[0], "0.2.2", *[_MISSING] * len(names)]))
        (folder / table_name(visit)).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(grades: Grades, unusable: str) -> dict[str, str]:
    codes: dict[str, dict[str, int]] = {}
    meanings: dict[str, str] = {}
    for q in QUESTIONS.values():
        for a in q.attributes:
            codes.setdefault(a.oai.name, {})
            if a.id in grades.get(q.id, {}):
                codes[a.oai.name][a.oai.part] = grades[q.id][a.id]
                meanings.setdefault(a.oai.name, a.space.meanings[grades[q.id][a.id]])
    cells = {}
    for name, parts in codes.items():
        if not parts:
            cells[name] = unusable
            continue
        code = f"{parts['integer']}.{parts['tenths']}" if "integer" in parts else str(parts["whole"])
        cells[name] = f"{code}: {_ACL[code] if name == 'MACLTR' else meanings[name]}"
    return cells
