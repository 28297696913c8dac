"""Words: two wordings per question that stay apart, and reasoning that says exactly what the grades say."""

from __future__ import annotations

import itertools
import re

import pytest

from reasonknee import prompts, reasoning
from reasonknee.boxes import Box
from reasonknee.questions import QUESTIONS, Question

ALL = list(QUESTIONS.values())
BOX = Box(3, 9, 11, 20, 7, 30)


def combinations(q: Question) -> list[dict[str, int]]:
    return [dict(zip([a.id for a in q.attributes], g, strict=True)) for g in itertools.product(*(a.space.grades for a in q.attributes))]


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_wordings(q: Question) -> None:
    zero, full = prompts.zero_shot(q), prompts.instruction(q)
    assert q.region.title in zero
    assert q.region.title in full
    assert q.lesion.appearance not in zero  # a zero-shot run gets no guidance
    assert q.lesion.appearance in full
    for a in q.attributes:
        assert f'"{a.id}"' in zero
        assert all(f"{g} = {m}" in full for g, m in enumerate(a.space.meanings))
        if len(a.space.grades) > 2:
            assert not any(f"{g} = " in zero for g in a.space.grades)
    assert prompts.answer_form(q) in zero
    assert prompts.answer_form(q) in full


def test_wordings_differ_between_questions() -> None:
    assert len({prompts.zero_shot(q) for q in ALL}) == len({prompts.instruction(q) for q in ALL}) == 69


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_steps_follow_the_grades(q: Question) -> None:
    """Region first, then the lesion, then one step per attribute that ends in its grade; different grades never read the same."""
    told = set()
    for grades in combinations(q):
        steps = reasoning.steps(q, grades, BOX, (160, 384, 384))
        assert len(steps) == 2 + len(q.attributes)
        assert steps[0].startswith("Locate the " + q.region.title)
        assert "slices 3 to 8 of 160" in steps[0]
        for a, step in zip(q.attributes, steps[2:], strict=True):
            assert step.endswith(f"grade {grades[a.id]}.")
            assert a.space.meanings[grades[a.id]] in step
        told.add(tuple(steps))
    assert len(told) == len(combinations(q))


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_no_finding_is_called_so(q: Question) -> None:
    for grades in combinations(q):
        normal = not any(grade for name, grade in grades.items() if name != "tear_location")  # a tear is not the cyst that is asked for
        assert ("no sign of" in reasoning.assess(q, grades)) == normal


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_sentences_are_sentences(q: Question) -> None:
    said = [prompts.zero_shot(q), prompts.instruction(q), *(reasoning.assess(q, g) for g in combinations(q))]
    wrong = re.compile(r"there is (two|three|radial|horizontal|vertical|complex)|follow-up only, in|Is there loose|\ba [aeio]|\ban [^aeiouh]|\.\.|,,")
    for text in said:
        assert not wrong.search(text), text
        assert "follow-up only" not in text or text is said[1]


def test_without_a_box() -> None:
    step = reasoning.locate(ALL[0], None)
    assert "no box" in step
    assert not re.search(r"\d", step)
