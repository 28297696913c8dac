"""rows.parquet: what became of each answer, equal to what the scores were made of."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_scoring import spoiled, written

from reasonknee import schema
from reasonknee.boxes import Box
from reasonknee.errors import DataError
from reasonknee.questions import QUESTIONS
from reasonknee.report import write_report
from reasonknee.scoring import Scored, score
from reasonknee.scoring.rows import read_rows
from reasonknee.scoring.truth import Truth, read_truth


@pytest.fixture(scope="module")
def scored(release: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Scored, Path]:
    folder = tmp_path_factory.mktemp("rows")
    truth = read_truth(release, "train")
    lines = spoiled(truth, 8)[5:]
    for i, line in enumerate(lines):
        if i % 3:
            line["confidence"] = i % 11 / 10
    lines += [{**line, "response": "something else"} for line in lines[:8]]
    path = written(folder, lines)
    result = score(path, release, "train", samples=10)
    write_report(result, folder / "out", release, path)
    return result, folder / "out" / "rows.parquet"


def test_rows_are_what_their_schema_says_and_add_up_to_the_scores(scored: tuple[Scored, Path]) -> None:
    result, path = scored
    table = pq.read_table(path)
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == result.truth.ids
    for row in rows[::7]:
        assert not [e.message for e in schema.validator("rows").iter_errors(row)]
    right = [value for row in rows for value in row["right"].values() if value is not None]
    micro = result.scores["averages"]["attribute_micro"]["strict"]
    assert (np.mean(right), len(right)) == (pytest.approx(micro["value"]), micro["n"])
    for name in ("iou", "giou"):
        value = result.scores["localisation"]["box_micro"][name]["strict"]["value"]
        assert np.mean([r[name] for r in rows if r[name] is not None]) == pytest.approx(value)
    assert {s: sum(r["status"] == s for r in rows) for s in ("parsed", "invalid", "unparsed", "missing")} == {
        s: result.scores["counts"][s] for s in ("parsed", "invalid", "unparsed", "missing")
    }
    assert table.schema.metadata[b"reasonknee.split"] == b"train"


def test_a_row_tells_its_answer(scored: tuple[Scored, Path]) -> None:
    _, path = scored
    predictions = path.parent.parent / "predictions.jsonl"
    for row in pq.read_table(path).to_pylist():
        asked = {a.id for a in QUESTIONS[row["question_id"]].attributes}
        assert {a for a, v in row["right"].items() if v is not None} <= asked
        for a in asked:
            if row["true_grades"][a] is not None:
                assert row["right"][a] == (row["grades"][a] == row["true_grades"][a])
        if row["box"] and row["true_box"]:
            assert row["iou"] == Box.from_dict(row["box"]).iou(Box.from_dict(row["true_box"]))
            assert -1 <= row["giou"] <= row["iou"]
        elif row["true_box"]:
            assert (row["iou"], row["giou"], row["centre_mm"]) == (0, -1, None)
        else:
            assert (row["iou"], row["giou"], row["centre_mm"]) == (None, None, None)
        if row["status"] == "missing":
            assert row["line"] is None
        else:
            with predictions.open("rb") as file:
                file.seek(row["line"])
                assert json.loads(file.readline())["id"] == row["id"]
        if row["status"] == "unparsed":
            assert row["problems"]
    codes = {p["code"] for row in pq.read_table(path).to_pylist() for p in row["problems"]}
    assert codes >= {"W001", "W003", "S013"}


def test_rows_are_the_way_back_to_predictions(scored: tuple[Scored, Path]) -> None:
    result, path = scored
    again = read_rows(path, result.truth)
    for name in ("grades", "boxes", "box_state", "status", "reasoning", "offset", "confidence"):
        np.testing.assert_array_equal(getattr(again, name), getattr(result.predicted, name), err_msg=name)
    assert again.problems == result.predicted.problems


def test_what_is_no_file_of_rows_is_told(scored: tuple[Scored, Path], release: Path, tmp_path: Path) -> None:
    result, path = scored
    (tmp_path / "x.parquet").write_bytes(b"PAR1 no PAR1")
    other: Truth = read_truth(release, "test")
    with pytest.raises(DataError, match="S014"):
        read_rows(tmp_path / "x.parquet", result.truth)
    pq.write_table(pq.read_table(path).drop_columns(["status"]), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="S014"):
        read_rows(tmp_path / "y.parquet", result.truth)
    with pytest.raises(DataError, match="S012"):
        read_rows(path, other)
