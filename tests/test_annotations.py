"""Annotations on disk: what is written is what is read, and what nobody knows stays unknown."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee.boxes import Box
from reasonknee.cohort import Annotation, Provenance, Reading
from reasonknee.cohort.annotations import scan_annotations, write_annotations
from reasonknee.errors import DataError
from reasonknee.questions import QUESTIONS, REGIONS


@st.composite
def grades(draw: st.DrawFn) -> dict[str, dict[str, int]]:
    """Some questions, each with some of its grades known and at least one."""
    chosen = draw(st.lists(st.sampled_from(list(QUESTIONS.values())), unique_by=lambda q: q.id, max_size=4))
    found = {}
    for q in chosen:
        known = draw(st.sets(st.sampled_from([a.id for a in q.attributes]), min_size=1))
        found[q.id] = {a.id: draw(st.sampled_from(a.space.grades)) for a in q.attributes if a.id in known}
    return found


NAMES = st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
PROVENANCES = st.builds(
    Provenance,
    grades=NAMES,
    project=NAMES,
    boxes=st.sampled_from([None, "mask", "published"]),
    package=NAMES,
    image_sha256=st.none() | st.from_regex("[0-9a-f]{64}", fullmatch=True),
)
WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"], include_characters="\n\t"), min_size=1).filter(
    str.strip
)


def annotation(**more: object) -> Annotation:
    place = ("train", "20000115", "10000100", (8, 9, 10), (0.7, 0.4, 0.4), "LIP")
    boxes: dict[str, Box | None] = {"acl": Box(1, 2, 3, 4, 5, 6), "periarticular": None}
    return Annotation("1000001", "00m", "right", *place, boxes, **more)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=60)
@given(grades(), st.lists(grades(), max_size=2), PROVENANCES, st.data())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    own: dict[str, dict[str, int]],
    others: list[dict[str, dict[str, int]]],
    provenance: Provenance,
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("a") / "annotations.jsonl"
    told = {q: data.draw(WORDS) for q in own if data.draw(st.booleans())}
    readings = tuple(Reading(f"{n}", each) for n, each in enumerate(others))
    before = annotation(grades=own, readings=readings, reasoning=told, provenance=provenance)
    write_annotations(path, [before])
    ((_, after),) = scan_annotations(path)
    assert after == before


def test_an_unknown_grade_is_written_as_null_and_old_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "annotations.jsonl"
    write_annotations(path, [annotation(grades={"acl": {"repair": 1}})])
    line = json.loads(path.read_text())
    assert line["grades"]["acl"] == {"complete_tear": None, "insertion_bml_cyst": None, "repair": 1}
    assert not {"readings", "reasoning", "provenance"} & set(line)  # as in files of earlier versions
    ((_, read),) = scan_annotations(path)
    assert (read.readings, read.reasoning, read.provenance) == ((), {}, Provenance())


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("readings", {}, "A007"),
        ("readings", [{"project": "a b", "grades": {}}], "A007"),
        ("readings", [{"project": "65", "grades": {"acl": {"repair": 1}}}], "A003"),
        ("reasoning", [], "A008"),
        ("reasoning", {"acl": " "}, "A008"),
        ("reasoning", {"acl": "x" * 20_001}, "A008"),
        ("reasoning", {"acl": "a\0b"}, "A008"),
        ("reasoning", {"pcl": "Seen."}, "A008"),
        ("provenance", {"boxes": "hand"}, "A009"),
        ("provenance", {"author": "x"}, "A009"),
        ("provenance", [], "A009"),
    ],
)
def test_what_is_not_of_its_form_is_refused(tmp_path: Path, key: str, value: object, code: str) -> None:
    path = tmp_path / "annotations.jsonl"
    write_annotations(path, [annotation(grades={"acl": {"repair": 1}})])
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}) + "\n")
    with pytest.raises(DataError, match=code):
        list(scan_annotations(path))


def test_where_a_box_comes_from() -> None:
    told = {
        source: {r: Provenance(boxes=source).box_of(r) for r in REGIONS}
        for source in ("published", "mask", None)
    }
    assert set(told["published"].values()) == {"published"}
    assert set(told[None].values()) == {None}
    assert {r for r, s in told["mask"].items() if s == "rule"} == {r for r in REGIONS if REGIONS[r].portion}
    assert set(itertools.chain(told["mask"].values())) == {"mask", "rule"}
