"""Rows for other trainers: read back by TRL's own reader, and by the rules of ms-swift's format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import command

from reasonknee.answers import read
from reasonknee.boxes import Box
from reasonknee.models import View
from reasonknee.models.coordinates import form_named
from reasonknee.models.targets import Teaching, target
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


def test_what_nobody_knows_and_what_cannot_be_seen_is_not_taught(release: Path) -> None:
    """A grade that is unknown is left out of the answer, and a region that is cut out has no place."""
    opened = Release(release)
    ids = opened.columns("train", ["id"])["id"].to_pylist()
    row = opened.row(next(id_ for id_ in ids if id_.endswith("-acl")), "annotations")
    assert row is not None
    volume, box = opened.volume(row["volume_id"]), Box.from_dict(row["box"])
    assert volume is not None
    row["grades"]["repair"] = None
    for crop, setting in ((None, "instruction"), (box, "region")):
        showing = View("even:3", kind="images").show(volume, row["side"], crop)
        said = target(row, showing, Teaching(setting=setting)).answer
        assert read(QUESTIONS["acl"], said).grades.keys() == {"complete_tear", "insertion_bml_cyst"}
        assert 'repair": null' not in said
        assert bool(re.search(r"slices \d|\"box\"", said)) == (crop is None)


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
    [
        ("verl", "x"),
        ("trl", "x", "--kind", "video"),
        ("trl", "x", "--setting", "region"),
        ("trl", "full"),
        ("trl", "x", "--arm", "no_reasoning"),  # and other options that do nothing for the tool
        ("med3dvlm", "x", "--split", "test"),
        ("nnunet", "x", "--limit", "3"),
    ],
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


def test_med3dvlm_reads_its_images_and_its_answers_come_back(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its evaluation, played: perfect answers, of which one stands beside another question, as where its
    reader draws a row at random."""
    import csv

    import nibabel
    import numpy as np

    out = tmp_path / "med"
    assert command("export", "med3dvlm", release, out, "--limit", 8, "--arm", "no_reasoning") == 0
    assert "breaks boxes" in capsys.readouterr().out
    rows = list(csv.DictReader((out / "test.csv").open(newline="")))
    assert len(rows) == 8
    image = np.asarray(nibabel.load(out / rows[0]["Image Path"]).dataobj).T  # as SimpleITK reads it
    assert image.shape == (128, 256, 256)
    assert image.dtype == np.float32
    assert 0 <= image.min() < 0.1 < 0.9 < image.max() <= 1
    frames = View("all").show(Release(release).volume(rows[0]["id"].rpartition("-")[0]), "right").frames
    small = image.reshape(16, 8, 256, 256).mean((1, 2, 3))  # the same slices, in the same order
    whole = np.array([part.mean() for part in np.array_split(frames, 16)])
    assert np.corrcoef(small, whole)[0, 1] > 0.95
    results = tmp_path / "answers.csv"
    with results.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["Question Type", "Question", "Answer", "Pred", "bleu", "rouge1", "meteor", "bert_f1"]
        )
        for number, row in enumerate(rows):
            question = rows[0]["Question"] if number == 5 else row["Question"]
            writer.writerow([4, question, row["Answer"], row["Answer"], 1, 1, 1, 1])
    predictions = tmp_path / "predictions.jsonl"
    assert command("import-med3dvlm", results, out, release, predictions) == 0
    assert "1 rows are not of their question" in capsys.readouterr().out
    lines = [json.loads(line) for line in predictions.open()]
    assert len(lines) == 7
    opened = Release(release)
    for line in lines:
        truth = opened.row(line["id"], "annotations")
        assert truth is not None
        assert line["grades"] == {k: v for k, v in truth["grades"].items() if v is not None}
        if truth["box"]:  # thousandths of 48 voxels: to the voxel
            assert all(abs(line["box"][edge] - truth["box"][edge]) <= 1 for edge in truth["box"])
    assert command("score", predictions, release, "--out", tmp_path / "scores") == 0


def test_answers_of_something_else_are_refused(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "med"
    assert command("export", "med3dvlm", release, out, "--limit", 1) == 0
    results = tmp_path / "answers.csv"
    results.write_text(
        "Question Type,Question,Answer,Pred,bleu,rouge1,meteor,bert_f1\n" + 2 * "4,q,a,p,1,1,1,1\n"
    )
    assert command("import-med3dvlm", results, out, release, tmp_path / "p.jsonl") == 3
    assert "error N088: 2 answers to 1 questions" in capsys.readouterr().err
    text = (out / "test.csv").read_text().replace("paper", "other")
    identity = next(csv_line for csv_line in text.splitlines()[::-1]).rpartition(",")[2]
    (out / "test.csv").write_text(text.replace(identity, "nobody-" + identity))
    question = _question_of(out / "test.csv")
    results.write_text(_answered(question))
    assert command("import-med3dvlm", results, out, release, tmp_path / "p.jsonl") == 3
    assert "N088" in capsys.readouterr().err
    assert command("import-med3dvlm", results, out, release, results) == 2
    assert "N056" in capsys.readouterr().err


def _question_of(path: Path) -> str:
    import csv

    return next(csv.DictReader(path.open(newline="")))["Question"]


def _answered(question: str) -> str:
    import csv
    import io

    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["Question Type", "Question", "Answer", "Pred", "bleu", "rouge1", "meteor", "bert_f1"])
    writer.writerow([4, question, "", "", 0, 0, 0, 0])
    return text.getvalue()
