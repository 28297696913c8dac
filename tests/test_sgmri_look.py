"""A look at a question of SGMRI-VQA, and what the commands for knees say to a release of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import command, needs

from reasonknee.errors import UsageError
from reasonknee.release.inspect import TRUTH
from reasonknee.sgmri.answers import Said
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.look import MODEL, Looked, draw, find
from reasonknee.sgmri.records import Answer, Finding, Record, read_records

needs("matplotlib")

TRUE, GUESS = FrameBox(3, 20, 60, 100, 180), FrameBox(3, 200, 240, 30, 90)


@pytest.fixture(scope="module")
def folder(sgmri: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sgmri` with a release without pixels, `words`, and answers of the baselines, `base`."""
    out = tmp_path_factory.mktemp("look")
    (out / "release").symlink_to(sgmri / "release")
    (out / "qa").symlink_to(sgmri / "qa")
    assert command("sgmri", "build", out / "qa", out / "words") == 0
    assert command("sgmri", "baselines", out / "release", out / "base") == 0
    return out


def looked() -> Looked:
    """A dark volume with two bright patches on frame 3: where the true box is, and where the model's is."""
    image = np.zeros((6, 256, 320), np.uint8)
    for box in (TRUE, GUESS):
        image[box.frame, box.y0 : box.y1, box.x0 : box.x1] = 255
    record = Record(
        id="x", anatomy="brain", split="test", level="volume", task="localization", source="derived",
        volume_id="v", question="Where?", answer=Answer("text", "there"), findings=(Finding("Mass", (TRUE,)),),
    )  # fmt: skip
    return Looked(record, image, 0, "there", Said(boxes=[GUESS]))


def drawn(what: Looked, path: Path) -> np.ndarray:
    from matplotlib.image import imread

    draw(what).savefig(path, dpi=400)  # 5 pixels for one of the image
    return np.rint(255 * imread(path)[..., :3]).astype(int)


def extent(mask: np.ndarray) -> np.ndarray:
    """First and last row, first and last column of what is set."""
    rows, columns = np.nonzero(mask)
    return np.array([rows.min(), rows.max(), columns.min(), columns.max()])


def middles(picture: np.ndarray, colour: str) -> np.ndarray:
    """Where the four lines of a rectangle in that colour have their middles."""
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    outer = extent((abs(picture - rgb) < 8).all(-1))
    half = 1.5 / 72 * 400 / 2
    return outer + np.array([half, -half, half, -half])


def test_boxes_lie_on_the_edges_of_their_pixels(tmp_path: Path) -> None:
    with_boxes, plain = looked(), looked()
    plain = replace(plain, record=replace(plain.record, findings=(Finding("Mass"),)), said=Said(), start=0)
    assert with_boxes.frames == plain.frames == [3]  # the middle, too
    picture, bare = drawn(with_boxes, tmp_path / "a.png"), drawn(plain, tmp_path / "b.png")
    assert picture.shape == bare.shape
    bright = (bare > 250).all(-1)
    half = bright.shape[0] // 2
    upper, lower = bright.copy(), bright.copy()
    upper[half:], lower[:half] = False, False
    ends = np.array([0, 1, 0, 1])  # the last bright one and the edge after it
    assert abs(middles(picture, TRUTH) - extent(upper) - ends).max() <= 2
    assert abs(middles(picture, MODEL) - extent(lower) - ends).max() <= 2


def test_true_frames_come_before_a_models() -> None:
    what = looked()
    assert what.said is not None
    what.said.boxes = [FrameBox(f, 0, 9, 0, 9) for f in (0, 1, 5, 77)]
    assert what.frames == [0, 1, 3, 5]
    assert replace(what, start=100).frames == [103]  # no box lies on these


def test_words_boxes_and_scores_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = [
        r for r in read_records(folder / "qa/qa.jsonl") if r.split == "test" and r.task == "localization"
    ]
    for level in ("slice", "volume"):
        record = next(r for r in known if r.level == level)
        out = folder / f"{level}.png"
        answers = folder / "base/constant_box.jsonl"
        words = ("look", folder / "release", "--id", record.id, "--predictions", answers, "--out", out)
        assert command("sgmri", *words) == 0
        text = capsys.readouterr().out
        box = record.boxes[0]
        assert f"frame {box.frame} rows {box.y0}-{box.y1} columns {box.x0}-{box.x1}" in text
        assert record.question in text
        assert "read       boxes: frame" in text
        assert "score      answered: V 0." in text
        assert out.stat().st_size > 10_000
        found = find(folder / "release", [record.id])
        assert found.image is not None
        assert found.start == 0
        assert found.frames == sorted({b.frame for b in record.boxes})
        assert record.shape == found.image.shape


def test_what_is_not_there_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="Z072"):
        draw(find(folder / "words"))
    assert command("sgmri", "look", folder / "words") == 0
    with pytest.raises(UsageError, match=r"Z070.*'nonsense'"):
        find(folder / "release", ["nonsense"])
    (tmp_path / "p.jsonl").write_text('{"id": "nonsense", "response": "Yes"}\n')
    id_ = find(folder / "words").record.id
    words = ("look", folder / "release", "--predictions", tmp_path / "p.jsonl")
    for more, code in (((), "Z070"), (("--id", id_), "Z071")):
        assert command("sgmri", *words, *more) == 2
        assert f"error {code}: " in capsys.readouterr().err
    assert command("sgmri", *words, "--id", id_, "--qwen", "inches") == 2


@pytest.mark.parametrize(
    "words",
    [
        ["look", "{release}"],
        ["score", "{release}", "{release}"],
    ],
)
def test_commands_for_knees_say_what_reads_it(
    folder: Path,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They said that `migrate` writes it anew, because its layout is 1."""
    monkeypatch.chdir(tmp_path)
    assert command(*(w.format(release=folder / "release") for w in words)) == 3
    said = capsys.readouterr().err
    assert "M011" in said
    assert "`reasonknee sgmri`" in said
    assert not list(tmp_path.iterdir())
