"""SGMRI-VQA is asked and taught like knees: a tiny Qwen3-VL, a journal that goes on, boxes on frames in every form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import command, needs

from reasonknee.errors import UsageError
from reasonknee.sgmri import answers
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.prompts import FORMS, asked, form_named, taught
from reasonknee.sgmri.records import Answer, Finding, Record, read_records

needs("transformers")
needs("trl")


@pytest.fixture(scope="module")
def release(sgmri: Path) -> Path:
    return sgmri / "release"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny_models import checkpoint

    return checkpoint("qwen3_vl", tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shown", [(320, 320), (64, 64), (512, 480)])
def test_a_target_reads_back_as_its_own_boxes(form: str, shown: tuple[int, int]) -> None:
    """Of a volume, whose published targets have no boxes at all; to the pixel where the frame is not smaller."""
    boxes = (FrameBox(3, 20, 60, 10, 50), FrameBox(4, 100, 180, 200, 260))
    record = Record(
        id="x", anatomy="brain", split="train", level="volume", task="localization", source="derived",
        volume_id="v", question="Where?", answer=Answer("text", "there"), shape=(10, 320, 320), first_frame=1,
        findings=(Finding("Mass", boxes),), reasoning=("Look.",),
    )  # fmt: skip
    words = taught(record, (320, 320), shown, FORMS[form], reasoning=True)
    said = answers.read(record, words, answers.Image(320, 320, shown), FORMS[form].unit)
    assert [b.frame for b in said.boxes] == [3, 4]
    step = max(1, 320 // min(shown) // 2 + 1)
    for got, true in zip(said.boxes, boxes, strict=True):
        assert all(abs(a - b) <= step for a, b in zip(got[1:], true[1:], strict=True))
    assert FORMS[form].key in asked(record, [1, 2], shown, FORMS[form])
    assert '"frame": 4' in words  # index 3, as texts on brains count


def ask(release: Path, tiny: Path, out: Path, *more: object) -> int:
    return command("ask", release, "--model", tiny, "--out", out, "--slices", "even:2", "--size", 64,
                   "--max-tokens", 4, "--dtype", "float32", "--limit", 6, *more)  # fmt: skip


def test_a_run_goes_on_and_its_predictions_are_scored(release: Path, tiny: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert ask(release, tiny, run, "--form", "thousand") == 0
    lines = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    assert {frozenset(line) for line in lines} == {frozenset({"id", "response", "boxes"})}
    journal = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (run / "journal.jsonl").write_bytes(
        b"".join(journal[:4]) + journal[4][:20]
    )  # killed in the middle of a line
    assert ask(release, tiny, run, "--form", "thousand") == 0
    assert [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()] == lines
    assert json.loads((run / "ledger.json").read_text())["kept"] == 4
    assert ask(release, tiny, run, "--form", "gemini") == 2  # another run, by N037
    assert ask(release, tiny, tmp_path / "plan", "--estimate") == 0
    assert ask(release, tiny, tmp_path / "dry", "--dry-run") == 0
    request = (tmp_path / "dry" / "request.json").read_text()
    assert "radiologist who reads MRI of the knee and the brain" in request
    assert "DESS" not in request
    assert command("sgmri", "score", run / "predictions.jsonl", release, "--out", tmp_path / "scores") == 0
    made = json.loads((tmp_path / "scores" / "scores.json").read_text())
    assert made["statuses"]["answered"] + made["statuses"]["unread"] == 6


def test_controls_and_what_is_for_knees_alone(
    release: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for control in ("text", "blank"):
        assert ask(release, tiny, tmp_path / control, "--control", control, "--limit", 2) == 0
    assert ask(release, tiny, tmp_path / "x", "--setting", "region") == 2
    assert "Z061" in capsys.readouterr().err
    assert ask(release, tiny, tmp_path / "x", "--form", "inches") == 2
    assert command("train", release, "--model", tiny, "--packed", "--out", tmp_path / "x") == 2
    assert "Z062" in capsys.readouterr().err


def test_boxes_of_predictions_count_as_they_stand(tmp_path: Path) -> None:
    from reasonknee.errors import DataError
    from reasonknee.sgmri.scores import read_predictions

    path = tmp_path / "p.jsonl"
    path.write_text('{"id": "a", "response": "x", "boxes": [[3, 20, 60, 10, 50]]}\n')
    assert read_predictions(path) == ({"a": "x"}, {"a": [FrameBox(3, 20, 60, 10, 50)]})
    path.write_text('{"id": "a", "response": "x", "boxes": [[3, 20, 60, 10]]}\n')
    with pytest.raises(DataError, match="Z026"):
        read_predictions(path)


def test_a_tiny_qwen_learns_with_boxes_and_resumes(release: Path, tiny: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    def train(out: Path, *more: object) -> int:
        return command("train", release, "--model", tiny, "--out", out, "--slices", "even:2", "--size", 64, "--steps", 4,
                       "--save-every", 2, "--accumulate", 1, "--dtype", "float32", "--form", "thousand", *more)  # fmt: skip

    assert train(tmp_path / "run") == 0
    weights = load_file(tmp_path / "run/adapter/adapter_model.safetensors")
    assert any(float(w.abs().max()) > 0 for name, w in weights.items() if "lora_B" in name)
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run/losses.jsonl").read_text().splitlines()]
    assert len(losses) == 4
    assert "SGMRI-VQA 1.0.0" in (tmp_path / "run/adapter/README.md").read_text()
    assert train(tmp_path / "run", "--form", "gemini") == 2  # another recipe
    for name in ("checkpoint-4", "adapter"):  # as if it had been killed after the second step
        shutil.rmtree(tmp_path / "run" / name)
    assert train(tmp_path / "run") == 0
    again = load_file(tmp_path / "run/adapter/adapter_model.safetensors")
    assert all(bool((weights[name] == again[name]).all()) for name in weights)
    assert train(tmp_path / "x", "--packed") == 2


def test_what_is_taught_of_a_volume_has_its_frame_boxes(release: Path, tiny: Path) -> None:
    from reasonknee.models import View
    from reasonknee.models.local import Local
    from reasonknee.models.training_rows import Recipe
    from reasonknee.sgmri.stream import questions
    from reasonknee.sgmri.train import QaExamples

    local = Local.load(str(tiny), dtype="float32", device="cpu")
    examples = QaExamples(local, Recipe(view=View("even:2", size=64)), FORMS["thousand"])
    rows = list(questions(release, "volumes", levels="volume", tasks="localization"))
    known = {r.id: r for r in read_records(release.parent / "qa/qa.jsonl")}
    for row in rows:
        target, showing = examples.target(row)
        said = json.loads(target.answer.splitlines()[-1])
        assert len(said["bboxes"]) == len(known[row["id"]].boxes) > 0
        assert {b["frame"] for b in said["bboxes"]} == {b.frame for b in known[row["id"]].boxes}
        assert len(showing.frames) == 2
    made = examples([rows[0]])
    labelled = made["labels"][0][made["labels"][0] != -100]
    assert "bboxes" in local.tokenizer.decode(labelled)
    with pytest.raises(UsageError, match="Z060"):
        form_named("inches")
