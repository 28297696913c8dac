"""Plausible grades of a synthetic knee at a first visit and at later ones, all of which agree with each
other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reasonknee.phantom.geometry import generator
from reasonknee.questions import QUESTIONS

Grades = Mapping[str, Mapping[str, int]]
Bands = Sequence[tuple[float, float]]  # the least and the most of each grade
SEGMENTS = ("anterior", "body", "posterior")
TEARS = (2, 3, 4, 5)  # grades of morphology
NO_TEAR = 3  # grade of tear_location


class GradeOf:
    """Grades by question and attribute; what is not given is normal.

    A grade is a band: `extent` is where in it this person's lesion lies, at every visit with that grade.
    """

    def __init__(self, grades: Grades, places: int) -> None:
        self.grades = grades
        self._chances = dict(
            zip(QUESTIONS, generator(7, places).random((len(QUESTIONS), 4)).tolist(), strict=True)
        )

    def __call__(self, question: str, attribute: str = "") -> int:
        given = self.grades.get(question, {})
        return int(
            given.get(
                attribute or QUESTIONS[question].attributes[0].id, 3 if attribute == "tear_location" else 0
            )
        )

    def chance(self, question: str, number: int = 0) -> float:
        """One of four numbers from 0 to 1 that are this person's own."""
        return float(self._chances[question][number])

    def extent(self, question: str, bands: Bands, attribute: str = "", number: int = 0) -> float:
        low, high = bands[self(question, attribute)]
        return low + (high - low) * self.chance(question, number)


def _compartment(question: str) -> str:
    if "patella" in question or "trochlea" in question:
        return "front"
    return "medial" if "medial" in question else "lateral" if "lateral" in question else "whole"


def sample_grades(rng: np.random.Generator, severity: float) -> dict[str, dict[str, int]]:
    """Plausible grades of all questions at a first visit; `severity` runs from 0, a healthy knee, to 1, a
    worn-out one."""
    level = {
        place: float(np.clip(severity * rng.uniform(0.5, 1.5), 0, 1))
        for place in ("front", "medial", "lateral", "whole")
    }

    def ordinal(at: float) -> int:
        odds = (0.12 + 0.75 * at) ** np.arange(4)
        return int(rng.choice(4, p=odds / odds.sum()))

    grades: dict[str, dict[str, int]] = {}
    for name, question in QUESTIONS.items():
        at = level[_compartment(name)]
        given = {
            a.id: ordinal(at) if len(a.space.meanings) == 4 else int(rng.random() < 0.03 + 0.22 * at)
            for a in question.attributes
        }
        if "morphology" in given:
            kinds = rng.choice([1, 2, 3, 4, 5, 6, 8], p=[0.24, 0.14, 0.2, 0.12, 0.12, 0.12, 0.06])
            given["morphology"] = int(kinds) if rng.random() < 0.1 + 0.45 * at else 0
        grades[name] = _likely(name, given, grades, rng)
    return agreeing(grades)


def _likely(name: str, given: dict[str, int], others: Grades, rng: np.random.Generator) -> dict[str, int]:
    """The grades of one question after each has been made likely beside the rest."""
    if "number" in given and given["size"]:
        given["number"] = max(1, given["number"])
        # mostly oedema; only a small lesion may be all cyst
        given["percent_bml"] = 3 if rng.random() < 0.6 else int(rng.integers(given["size"] - 1, 3))
    if "tear_location" in given:
        torn = torn_segments(name, others)
        given["tear_location"] = int(rng.choice(torn)) if torn else NO_TEAR
        if torn and rng.random() < 0.25:  # through a tear, fluid finds its way out
            given["presence"] = 1
    return given


def torn_segments(cyst: str, grades: Grades) -> list[int]:
    """The segments of a cyst's meniscus in which there is a tear, as grades of tear_location."""
    segments = (cyst.replace("cyst", f"{s}_morphology") for s in SEGMENTS)
    return [i for i, name in enumerate(segments) if grades[name]["morphology"] in TEARS]


def agreeing(grades: Grades) -> dict[str, dict[str, int]]:
    """The same grades without contradictions: what cannot be beside the first attribute of a question gives
    way to it."""
    made = {name: dict(given) for name, given in grades.items()}
    for name, given in made.items():
        if "number" in given:
            given["number"] = max(1, given["number"]) if given["size"] else 0
            # a lesion that fills its region is never all cyst
            given["percent_bml"] = max(given["percent_bml"], int(given["size"] == 3)) if given["size"] else 0
        if "full_thickness_pct" in given:
            given["full_thickness_pct"] = min(given["full_thickness_pct"], given["size"])
        if "tear_location" in given:
            torn = torn_segments(name, made)
            if given["tear_location"] not in torn:
                given["tear_location"] = torn[0] if torn else NO_TEAR
    return made


def progress_grades(
    rng: np.random.Generator, grades: Grades, years: float = 1.0
) -> dict[str, dict[str, int]]:
    """The same knee some years later: what is lost stays lost; fluid, synovitis and bone marrow lesions come
    and go."""

    def soon(in_a_year: float) -> bool:
        return bool(rng.random() < 1 - (1 - in_a_year) ** years)

    later: dict[str, dict[str, int]] = {}
    for name, given in grades.items():
        new = dict(given)
        if name in ("hoffa_synovitis", "effusion_synovitis"):
            new["grade"] = int(np.clip(given["grade"] + rng.choice([-1, 0, 1], p=[0.15, 0.65, 0.2]), 0, 3))
        elif "morphology" in given:
            if soon(0.1):
                worse = {0: 1, 1: int(rng.choice(TEARS)), 6: 7, 7: 8, 8: 8}
                new["morphology"] = worse.get(given["morphology"], 6)
        elif "number" in given:
            if soon(0.08):
                new["size"], new["number"] = (
                    min(3, given["size"] + 1),
                    min(3, given["number"] + int(rng.integers(2))),
                )
                if not given["size"]:
                    new = _likely(name, new, grades, rng)
            elif given["size"] and soon(0.04):
                new["size"] = given["size"] - 1
        else:
            for attribute, grade in given.items():
                if attribute != "tear_location":
                    top = len(QUESTIONS[name].attribute(attribute).space.meanings) - 1
                    new[attribute] = min(top, grade + int(soon(0.08 if top > 1 else 0.02)))
        later[name] = new
    return agreeing(later)


def another_reading(grades: Grades, seed: int) -> dict[str, dict[str, int]]:
    """The same knee in the eyes of another reader, who has the same habits at every visit: a step more or a
    step less in some places."""
    habits = np.random.default_rng([seed, 11]).random((len(QUESTIONS), 3)).tolist()
    seen: dict[str, dict[str, int]] = {}
    for habit, (name, given) in zip(habits, grades.items(), strict=True):
        seen[name] = new = dict(given)
        for h, (attribute, grade) in zip(habit, given.items(), strict=False):
            top = len(QUESTIONS[name].attribute(attribute).space.meanings) - 1
            if attribute == "morphology":
                new[attribute] = {0: 1, 1: 0, 2: 5, 4: 5}.get(grade, grade) if h < 0.1 else grade
            elif attribute != "tear_location":
                rare = 0.08 if top > 1 else 0.03
                new[attribute] = (
                    min(top, grade + 1) if h < rare else max(0, grade - 1) if h > 1 - rare else grade
                )
    return agreeing(seen)
