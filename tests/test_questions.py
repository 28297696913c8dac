"""The table says what MOAKS and the paper say."""

from __future__ import annotations

from collections import Counter

import pytest

from reasonknee.errors import UsageError
from reasonknee.questions import (
    ATTRIBUTES,
    CATEGORIES,
    QUESTION_SETS,
    QUESTIONS,
    REGIONS,
    question,
    question_set,
)
from reasonknee.questions.regions import LABELS

ALL = list(QUESTIONS.values())


def test_counts() -> None:
    assert [q.upstream_id for q in ALL] == list(range(1, 70))
    assert len(CATEGORIES) == 7
    assert Counter(a.space.scale for q in ALL for a in q.attributes) == {
        "ordinal": 91,
        "nominal": 8,
        "binary": 19,
    }
    by_category = Counter(q.category.id for q in ALL)
    expected = {
        "bml": 15,
        "cartilage": 14,
        "osteophyte": 12,
        "meniscus": 16,
        "ligaments_tendons": 3,
        "synovitis_effusion": 2,
        "periarticular": 7,
    }
    assert by_category == expected
    assert {name: len(qs) for name, qs in QUESTION_SETS.items()} == {"paper62": 62, "all69": 69}


def test_ids_are_stable_lowercase_words() -> None:
    for text in (*QUESTIONS, *REGIONS, *ATTRIBUTES, *LABELS):
        assert text.replace("_", "a").isalnum()
        assert text == text.lower()
    assert question("tibia_medial_anterior_bml") is question(9) is question("9")


@pytest.mark.parametrize("q", ALL, ids=lambda q: q.id)
def test_every_question_is_whole(q) -> None:  # type: ignore[no-untyped-def]
    assert q.attributes
    assert len({a.id for a in q.attributes}) == len(q.attributes)
    for a in q.attributes:
        assert len(a.space.meanings) == len(set(a.space.meanings)) >= 2
        assert all(a.space.meanings)
        assert (len(a.space.grades) == 2) == (a.space.scale == "binary")
        assert a.upstream_path
        assert a.oai.name.startswith("M")
    assert set(q.region.labels) <= set(LABELS)


def test_upstream_quirks_are_in_the_table() -> None:
    """Upstream's answer paths are inconsistent, and a parser has to know how."""
    wrappers = Counter(
        q.attributes[0].upstream_path[0] if q.attributes[0].upstream_path[0].startswith("MOAKS") else "none"
        for q in ALL
    )
    assert wrappers == {"MOAKS_scores": 47, "MOAKS_grade": 3, "none": 19}
    assert [
        q.upstream_id
        for q in ALL
        if len(q.attributes[0].upstream_path) == 2 and q.attributes[0].upstream_path[0].startswith("MOAKS")
    ] == [
        44,
        45,
    ]
    assert question(34).region.id == "femur_medial_trochlea"
    assert question(34).attributes[0].upstream_path[1] == "femur medial anterior osteophyte"


def test_each_oai_variable_belongs_to_one_question() -> None:
    owners: dict[tuple[str, str], str] = {}
    for q in ALL:
        for a in q.attributes:
            assert owners.setdefault((a.oai.name, a.oai.part), f"{q.id}.{a.id}") == f"{q.id}.{a.id}"
    assert question("patella_medial_cartilage").attribute("full_thickness_pct").oai.part == "tenths"


@pytest.mark.parametrize("key", ["", "no_such_question", "0", "70", "99999999999", "１", -1])
def test_unknown_questions_are_refused(key: str | int) -> None:
    with pytest.raises(UsageError, match="Q001"):
        question(key)


def test_unknown_set_is_refused() -> None:
    with pytest.raises(UsageError, match="Q002"):
        question_set("paper63")
