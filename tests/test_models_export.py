"""Rows for other trainers: read back by TRL's own reader, and by the rules of ms-swift's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import command

from reasonknee.answers import read
from reasonknee.boxes import Box
from reasonknee.models import View
from reasonknee.models.coordinates import form_named
from reasonknee.questions import QUESTIONS
from reasonknee.release.reader import Release


def exported(tool: str, release: Path, out: Path, *options: object) -> list[dict[str, Any]]:
    assert command("export", tool, release, out, "--slices", "even:3", "--limit", 4, *options) == 0
    return [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("form", ["voxels", "thousand", "frames_thousand"])
def test_rows_for_trl_are_conversations_with_images(release: Path, tmp_path: Path, form: str) -> None:
    from datasets import Dataset, Image, Sequence

    trl = pytest.importorskip("trl")
    rows = exported("trl", release, tmp_path, "--form", form)
    assert len(rows) == 4
    opened = Release(release)
    for row in rows:
        assert trl.data_utils.is_conversational(row)
        question = QUESTIONS[row["id"].rpartition("-")[2]]
        truth = opened.row(row["id"], "annotations")
        volume = opened.volume(row["id"].rpartition("-")[0])
        assert truth is not None
        assert volume is not None
        grid = View("even:3", kind="images", form=form).show(volume, truth["side"]).grid
        answer = form_named(form).read(question, row["completion"][0]["content"], grid)
        assert answer.status == "parsed"
        assert answer.grades == {a.id: truth["grades"][a.id] for a in question.attributes}
        if truth["box"] and form != "frames_thousand":
            assert answer.box == Box.from_dict(truth["box"])
    table = Dataset.from_list([{**row, "images": [str(tmp_path / p) for p in row["images"]]} for row in rows])
    opened_images = table.cast_column("images", Sequence(Image()))[0]["images"]
    assert [image.size for image in opened_images] == [(48, 48)] * 3
    assert trl.data_utils.is_conversational(table[0])


@pytest.mark.parametrize("kind", ["images", "video"])
def test_rows_for_ms_swift_hold_a_place_for_each_picture(release: Path, tmp_path: Path, kind: str) -> None:
    rows = exported("ms-swift", release, tmp_path, "--kind", kind)
    for row in rows:
        _, user, assistant = row["messages"]
        assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant"]
        shown = row["videos"][0] if kind == "video" else row["images"]
        assert user["content"].count("<video>" if kind == "video" else "<image>") == (
            1 if kind == "video" else len(shown)
        )
        assert all((tmp_path / path).is_file() for path in shown)
        question = QUESTIONS[row["id"].rpartition("-")[2]]
        assert read(question, assistant["content"]).status == "parsed"


@pytest.mark.parametrize(
    "words",
    [("verl", "x"), ("trl", "x", "--kind", "video"), ("trl", "x", "--setting", "region"), ("trl", "full")],
)
def test_refusals(
    release: Path, tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    tool, out, *more = words
    assert command("export", tool, release, tmp_path / out, *more) == 2
    assert capsys.readouterr().err.startswith("error N056: ")
    assert (tmp_path / "full" / "mine").read_text() == "kept"
