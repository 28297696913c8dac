"""What is wanted of a source, by name: questions, categories, regions, sides, visits, patients.

A name that is not known is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from reasonknee.errors import UsageError, near
from reasonknee.layout import SIDES, patient_id
from reasonknee.questions import QUESTION_SETS, QUESTIONS, question, question_set

Names = str | Iterable[str]
_NAMED = 40  # names in an error: all regions, not all patients


@dataclass(frozen=True)
class Selection:
    """`None` stands for all there are."""

    questions: frozenset[str] | None = None
    sides: frozenset[str] | None = None
    visits: frozenset[str] | None = None
    patients: frozenset[str] | None = None
    boxed: bool = False  # only quintuples whose region was found

    def takes(self, volume_id: str) -> bool:
        patient, visit, side = volume_id.split("-")
        wanted = ((self.patients, patient), (self.visits, visit), (self.sides, side))
        return all(names is None or name in names for names, name in wanted)

    def found_in(self, volume_ids: Iterable[str]) -> bool:
        """Whether every visit and patient asked for is among these volumes."""
        left_patients, left_visits = set(self.patients or ()), set(self.visits or ())
        for patient, visit, _ in (name.split("-") for name in volume_ids):
            left_patients.discard(patient)
            left_visits.discard(visit)
        return not (left_patients or left_visits)


def selection(
    questions: str | Iterable[str | int] | None = None,
    categories: Names | None = None,
    regions: Names | None = None,
    sides: Names | None = None,
    visits: Names | None = None,
    patients: Names | None = None,
    boxed: bool = False,
) -> Selection:
    """Each argument is one name or several; what is given narrows what the others leave."""
    chosen = None
    if questions is not None or categories is not None or regions is not None:
        asked = [QUESTIONS[i] for i in _questions(questions)]
        for names, of, what in (
            (categories, {q.id: q.category.id for q in asked}, "category"),
            (regions, {q.id: q.region.id for q in asked}, "region"),
        ):
            if names is not None:
                legal = {getattr(q, what).id for q in QUESTIONS.values()}
                kept = _known(names, legal, what)
                asked = [q for q in asked if of[q.id] in kept]
        if not asked:
            raise UsageError(
                "D004",
                "no question is in all of these sets, categories and regions",
                "`reasonknee questions` lists them",
            )
        chosen = frozenset(q.id for q in asked)
    return Selection(
        chosen,
        None if sides is None else _known(sides, set(SIDES), "side"),
        None if visits is None else frozenset(_several(visits)),
        None if patients is None else frozenset(patient_id(p) for p in _several(patients)),
        boxed,
    )


def refuse_unknown(wanted: Selection, volume_ids: Iterable[str]) -> None:
    """A visit or patient that none of all volumes has is an error, which names what there is."""
    there = [name.split("-") for name in volume_ids]
    for names, place, what in ((wanted.visits, 1, "visit"), (wanted.patients, 0, "patient")):
        if names is not None:
            _known(names, {parts[place] for parts in there}, what)


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Refuses what Python would take for a number, but the user did not mean as one: True, 1.5, "2"."""
    whole = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else None
    if whole is None or whole < least or (most is not None and whole > most):
        to = "on" if most is None else f"to {most}"
        raise UsageError("D007", f"{name}={value!r}"[:80], f"a whole number from {least} {to}")
    return whole


def _several(names: Names) -> Sequence[str]:
    several = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    if wrong := [name for name in several if not isinstance(name, str)]:
        raise UsageError(
            "D008", f"{wrong[0]!r} where a name is wanted"[:80], 'names are text, such as "12m" or "left"'
        )
    return several


def _questions(names: str | Iterable[str | int] | None) -> list[str]:
    if names is None:
        return list(QUESTIONS)
    if isinstance(names, str):
        return (
            [q.id for q in question_set(names)]
            if names in QUESTION_SETS or names not in QUESTIONS
            else [names]
        )
    return [question(name).id for name in (names if isinstance(names, Iterable) else (names,))]


def _known(names: Names, legal: set[str], what: str) -> frozenset[str]:
    wanted = frozenset(_several(names))
    if unknown := sorted(wanted - legal):
        more = f" and {len(legal) - _NAMED} more" if len(legal) > _NAMED else ""
        raise UsageError(
            "D005",
            f"unknown {what} {unknown[0][:60]!r}",
            f"{near(unknown[0], sorted(legal))}choose among {', '.join(sorted(legal)[:_NAMED])}{more}",
        )
    return wanted
