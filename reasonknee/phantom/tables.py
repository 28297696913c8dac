"""MOAKS tables as OAI ships them: pipe-delimited, `code: label` cells, visit prefixes, missing forms, several readings of one knee."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from reasonknee.questions import QUESTIONS, OaiVariable
from reasonknee.scans import VISITS

TABLE_OF_VISIT = {months: number for number, months in VISITS.items()}
_MISSING = ".: Missing Form/Incomplete Workbook"
_WITHIN_GRADE = ("0.5: Within-grade worsening", "-0.5: Within-grade improvement", "-1: Improvement by one grade")
_SIDE = {"right": "1: Right", "left": "2: Left"}
Grades = Mapping[str, Mapping[str, int]]


def columns() -> list[OaiVariable]:
    """The variables behind the questions, each once; the two digits of the cartilage field are one variable."""
    return list({a.oai.name: a.oai for q in QUESTIONS.values() for a in q.attributes}.values())


def write_moaks_tables(folder: Path, knees: list[tuple[str, str, str, Grades]], rng: np.random.Generator) -> None:
    """One table per visit. `knees` are (patient, visit, side, grades); a question without grades becomes a cell that cannot be used."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [v.name for v in columns()]
    for visit, number in TABLE_OF_VISIT.items():
        lines = ["|".join(["ID", "SIDE", "READPRJ", "VERSION", *(f"V{number}{name}" for name in names)])]
        for patient, at, side, grades in sorted(knees, key=lambda k: k[:3]):
            if at == visit:
                cells = _cells(grades, unusable=_WITHIN_GRADE[int(rng.integers(3))] if visit != "00m" else _MISSING)
                if cells["MACLTR"].startswith("1:") and rng.random() < 0.5:
                    cells["MACLTR"] = "2: " + cells["MACLTR"][3:]  # OAI has two codes for a torn ligament
                lines.append("|".join([patient, _SIDE[side], "15", "0.2.2", *(cells[n] for n in names)]))
                if rng.random() < 0.2:  # a second, less complete reading of the same knee
                    fewer = {n: c if rng.random() < 0.5 else _MISSING for n, c in cells.items()}
                    fewer[names[0]] = _MISSING
                    lines.append("|".join([patient, _SIDE[side], "65", "0.2.2", *(fewer[n] for n in names)]))
        absent = f"{1999000 + int(number):07d}"  # a knee that was scheduled, but never read
        lines.append("|".join([absent, _SIDE["left"], "15", "0.2.2", *[_MISSING] * len(names)]))
        (folder / f"kMRI_SQ_MOAKS_BICL{number}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _cells(grades: Grades, unusable: str) -> dict[str, str]:
    codes: dict[str, dict[str, int]] = {}
    meanings: dict[str, str] = {}
    for q in QUESTIONS.values():
        for a in q.attributes:
            codes.setdefault(a.oai.name, {})
            if q.id in grades:
                codes[a.oai.name][a.oai.part] = grades[q.id][a.id]
                meanings.setdefault(a.oai.name, a.space.meanings[grades[q.id][a.id]])
    cells = {}
    for name, parts in codes.items():
        if not parts:
            cells[name] = unusable
            continue
        code = f"{parts['integer']}.{parts['tenths']}" if "integer" in parts else str(parts["whole"])
        cells[name] = f"{code}: {meanings[name]}"
    return cells
