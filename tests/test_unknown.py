"""Unknown is not unasked: a grade that nobody knows goes through the whole chain as null, and is left out of
what is learnt, scored, rewarded and told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import command, needs

from reasonknee import answers
from reasonknee.boxes import Box
from reasonknee.cohort.annotations import FILE_NAME
from reasonknee.layout import read_manifest
from reasonknee.questions import QUESTIONS
from reasonknee.release.reader import Release
from reasonknee.report.markdown import markdown
from reasonknee.scoring import reward, score
from reasonknee.scoring.truth import NONE, read_truth

ACL = QUESTIONS["acl"]


@pytest.fixture(scope="module")
def partial(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release whose tables lacked the column of one attribute of the ACL."""
    folder = tmp_path_factory.mktemp("partial")
    (folder / "cohort").mkdir()
    shutil.copytree(cohort / "images", folder / "cohort" / "images")
    lines = [json.loads(line) for line in (cohort / FILE_NAME).read_text().splitlines()]
    for line in lines:
        if "acl" in line["grades"]:
            line["grades"]["acl"]["repair"] = None
    (folder / "cohort" / FILE_NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert command("build", folder / "cohort", folder / "r", "--configs", "cropped,annotations") == 0
    return folder / "r"


@pytest.fixture(scope="module")
def rows(partial: Path) -> list[dict[str, Any]]:
    found = [r for p in partial.glob("cropped/*.parquet") for r in pq.read_table(p).to_pylist()]
    return [r for r in found if r["question_id"] == "acl" and r["box"]]


def test_the_question_does_not_vanish(partial: Path, rows: list[dict[str, Any]]) -> None:
    assert rows
    assert all(r["grades"]["repair"] is None and r["grades"]["complete_tear"] is not None for r in rows)
    assert command("validate", partial) == 0
    assert read_manifest(partial).provenance["unknown_grades"] >= len(rows)
    for row in rows:
        assert len(row["reasoning"]) == 4
        assert "repair" not in " ".join(row["reasoning"][2:])


def test_the_collator_masks_it(rows: list[dict[str, Any]]) -> None:
    needs("torch")
    from reasonknee.collate import Collator
    from reasonknee.collate.batch import IGNORED
    from reasonknee.questions import ATTRIBUTES

    batch = Collator()(rows[:2])
    repair, tear = ATTRIBUTES.index("repair"), ATTRIBUTES.index("complete_tear")
    assert batch.grades[:, repair].tolist() == [IGNORED, IGNORED]
    assert not batch.grade_mask[:, repair].any()
    assert batch.grade_mask[:, tear].all()


def test_a_completion_leaves_it_out_and_tells_no_place_of_the_region_alone(
    rows: list[dict[str, Any]],
) -> None:
    from reasonknee.collate.collator import completion

    row = rows[0]
    whole = answers.read(ACL, completion(row), shape=(99, 999, 999))
    assert set(whole.grades) == {"complete_tear", "insertion_bml_cyst"}
    assert whole.box == Box.from_dict(row["box"])
    region = completion(row, "region")
    assert answers.read(ACL, region).grades == whole.grades
    assert '"box"' not in region
    assert "slices" not in region


def test_scorer_and_reward_leave_it_out(partial: Path, rows: list[dict[str, Any]]) -> None:
    split = next(iter(read_manifest(partial).volumes))
    truth = read_truth(partial, split)
    slot = [a.id for a in ACL.attributes].index("repair")
    mine = [i for i, id_ in enumerate(truth.ids) if id_.endswith("-acl")]
    assert mine
    assert (truth.grades[mine, slot] == NONE).all()
    row = rows[0]
    right = {k: v for k, v in row["grades"].items() if v is not None}
    given = [answers.write(ACL, {**right, "repair": repair}, Box.from_dict(row["box"])) for repair in (0, 1)]
    told = {"question_id": ["acl"] * 2, "grades": [row["grades"]] * 2, "box": [row["box"]] * 2}
    assert reward(completions=given, **told) == pytest.approx([1.0, 1.0])


def test_a_report_counts_it_neither_right_nor_wrong(partial: Path, tmp_path: Path) -> None:
    needs("jinja2")
    from reasonknee.report.cases import cases

    opened = Release(partial)
    split = opened.splits[0]
    ids = [i for i in opened.columns(split, ["id"])["id"].to_pylist() if i.endswith("-acl")]
    lines = []
    for id_ in ids:
        row = opened.row(id_, "annotations")
        assert row is not None
        known = {a.id: row["grades"][a.id] or 0 for a in ACL.attributes}
        lines.append({"id": id_, "grades": known, "box": row["box"]})
    path = tmp_path / "all_right.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    scored = score(path, partial, split, samples=0, questions=("acl",))
    shown = cases([scored], opened, [path])
    assert shown
    assert {(case.kind, case.said[0].verdict) for case in shown} == {("right", "2 of 2 right")}
    assert scored.scores["provenance"] == read_manifest(partial).provenance
    assert "Unknown grades: " in markdown(scored.scores)
