"""Plausible grades of a synthetic knee at a first visit and at later ones, all of which agree with each other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reasonknee.questions import QUESTIONS

Grades = Mapping[str, Mapping[str, int]]
SEGMENTS = ("anterior", "body", "posterior")
TEARS = (2, 3, 4, 5)  # grades of morphology


class GradeOf:
    """Grades by question and attribute; what is not given is normal."""

    def __init__(self, grades: Grades) -> None:
        self.grades = grades

    def __call__(self, question: str, attribute: str = "") -> int:
        given = self.grades.get(question, {})
        return int(given.get(attribute or QUESTIONS[question].attributes[0].id, 3 if attribute == "tear_location" else 0))


def _compartment(question: str) -> str:
    if "patella" in question or "trochlea" in question:
        return "front"
    return "medial" if "medial" in question else "lateral" if "lateral" in question else "whole"


def sample_grades(rng: np.random.Generator, severity: float) -> dict[str, dict[str, int]]:
    """Plausible grades of all questions at a first visit; `severity` runs from 0, a healthy knee, to 1, a worn-out one."""
    level = {place: float(np.clip(severity * rng.uniform(0.5, 1.5), 0, 1)) for place in ("front", "medial", "lateral", "whole")}

    def ordinal(at: float) -> int:
        odds = (0.12 + 0.75 * at) ** np.arange(4)
        return int(rng.choice(4, p=odds / odds.sum()))

    grades: dict[str, dict[str, int]] = {}
    for name, question in QUESTIONS.items():
        at = level[_compartment(name)]
        given = {a.id: ordinal(at) if len(a.space.meanings) == 4 else int(rng.random() < 0.03 + 0.22 * at) for a in question.attributes}
        if "morphology" in given:
            kinds = rng.choice([1, 2, 3, 4, 5, 6, 8], p=[0.24, 0.14, 0.2, 0.12, 0.12, 0.12, 0.06])
            given["morphology"] = int(kinds) if rng.random() < 0.1 + 0.45 * at else 0
        grades[name] = _consistent(name, given, grades, rng)
    return grades


def _consistent(name: str, given: dict[str, int], others: Grades, rng: np.random.Generator) -> dict[str, int]:
    """The grades of one question after each has been made to agree with the rest."""
    if "number" in given:
        present = given["size"] > 0
        given["number"] = max(1, given["number"]) if present else 0
        # mostly oedema; only a small lesion may be all cyst
        given["percent_bml"] = (3 if rng.random() < 0.6 else int(rng.integers(given["size"] - 1, 3))) if present else 0
    if "full_thickness_pct" in given:
        given["full_thickness_pct"] = min(given["full_thickness_pct"], given["size"])
    if "tear_location" in given:
        torn = [i for i, s in enumerate(SEGMENTS) if others[name.replace("cyst", f"{s}_morphology")]["morphology"] in TEARS]
        given["tear_location"] = int(rng.choice(torn)) if given["presence"] and torn else 3
    return given


def progress_grades(rng: np.random.Generator, grades: Grades) -> dict[str, dict[str, int]]:
    """The same knee a visit later: grades stay or worsen; only fluid and synovitis may also improve."""
    later: dict[str, dict[str, int]] = {}
    for name, given in grades.items():
        new = dict(given)
        if name in ("hoffa_synovitis", "effusion_synovitis"):
            new["grade"] = int(np.clip(given["grade"] + rng.choice([-1, 0, 1], p=[0.15, 0.65, 0.2]), 0, 3))
        elif "morphology" in given:
            if rng.random() < 0.12:
                new["morphology"] = {0: 1, 1: int(rng.choice(TEARS)), 6: 7, 7: 8, 8: 8}.get(given["morphology"], 6)
        elif "number" in given:
            if rng.random() < 0.15:
                new["size"], new["number"] = min(3, given["size"] + 1), min(3, given["number"] + int(rng.integers(2)))
                if not given["size"]:
                    new = _consistent(name, new, grades, rng)
            if new["size"] == 3:  # a lesion that grew may have started as a cyst, but one that fills a region is never all cyst
                new["percent_bml"] = max(1, new["percent_bml"])
        else:
            for attribute, grade in given.items():
                if attribute != "tear_location":
                    top = len(QUESTIONS[name].attribute(attribute).space.meanings) - 1
                    new[attribute] = min(top, grade + int(rng.random() < (0.12 if top > 1 else 0.03)))
            if "tear_location" not in given or new["presence"] > given["presence"]:
                new = _consistent(name, new, later, rng)
        later[name] = new
    return later
