"""Grades that cannot all be true are named by their rule; sound ones are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.questions import QUESTIONS, question
from reasonknee.questions.contradictions import RULES, contradictions, of_knee

TORN = {"medial_meniscus_body_morphology": {"morphology": 3}}
WHOLE = {"medial_meniscus_body_morphology": {"morphology": 0}}


@pytest.mark.parametrize(
    ("asked", "grades", "visit", "knee", "broken"),
    [
        ("patella_medial_cartilage", {"size": 1, "full_thickness_pct": 3}, "", {}, ["cartilage_depth"]),
        ("patella_medial_cartilage", {"size": 1, "full_thickness_pct": 1}, "", {}, []),
        ("patella_medial_cartilage", {"full_thickness_pct": 3}, "", {}, []),
        ("patella_medial_bml", {"size": 3, "number": 0}, "", {}, ["bml_size_without_number"]),
        ("patella_medial_bml", {"size": 0, "number": 2}, "", {}, ["bml_number_without_size"]),
        (
            "patella_medial_bml",
            {"size": 0, "number": 0, "percent_bml": 2},
            "",
            {},
            ["bml_share_without_lesion"],
        ),
        ("patella_medial_bml", {"size": 2, "number": 1, "percent_bml": 0}, "", {}, []),  # all of it cyst
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 1}, "", WHOLE, ["tear_without_morphology"]),
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 1}, "", TORN, []),
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 1}, "", {}, []),
        ("medial_meniscus_cyst", {"presence": 1, "tear_location": 3}, "", WHOLE, []),
        ("medial_meniscus_body_morphology", {"morphology": 7}, "00m", {}, ["progression_at_baseline"]),
        ("medial_meniscus_body_morphology", {"morphology": 7}, "12m", {}, []),
    ],
)
def test_rules(
    asked: str, grades: dict[str, int], visit: str, knee: dict[str, dict[str, int]], broken: list[str]
) -> None:
    assert contradictions(question(asked), grades, visit, knee) == broken
    assert of_knee({**knee, asked: grades}, visit) == [(rule, asked) for rule in broken]


@given(st.data())
def test_less_knowledge_never_contradicts_more(data: st.DataObject) -> None:
    q = data.draw(st.sampled_from(list(QUESTIONS.values())))
    grades = {a.id: data.draw(st.sampled_from(a.space.grades)) for a in q.attributes}
    some = {a: g for a, g in grades.items() if data.draw(st.booleans())}
    broken = contradictions(q, grades, "00m", TORN)
    assert set(contradictions(q, some, "00m", TORN)) <= set(broken) <= set(RULES)
    assert not contradictions(q, {}, "00m")
