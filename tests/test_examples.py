"""The programs in examples/ do what they say, run as a user would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from conftest import ROOT, SHAPE, command, needs, run
from warm import Warm

from reasonknee.cohort import Cohort
from reasonknee.phantom.cohort import write_cohort
from reasonknee.release import Options, build
from reasonknee.viewer.open import started

TRAINERS = ("transformers.trainer", "trl")


def test_training_beats_the_majority_and_resumes_to_the_same_weights(tmp_path: Path, warm: Warm) -> None:
    needs("torch")
    write_cohort(tmp_path / "cohort", patients=20, seed=0, shape=SHAPE)
    build(
        Cohort(tmp_path / "cohort"), tmp_path / "release", configs=["cropped"], options=Options(margin_mm=3.0)
    )
    said = warm.run(ROOT / "examples" / "train.py", tmp_path / "release", tmp_path / "checkpoint.pt")
    stopped, of = map(int, re.findall(r"stopped after (\d+) of (\d+) steps", said)[0])
    assert 0 < stopped < of
    assert "resumed: the same weights" in said
    right, majority = map(float, re.findall(r"(0\.\d+) right; the majority grade alone: (0\.\d+)", said)[0])
    assert right > majority + 0.1, said


def test_the_demo_ends_with_a_report_and_a_line_that_opens_the_viewer(release: Path, tmp_path: Path) -> None:
    (tmp_path / "rajpurkarlab").mkdir()
    (tmp_path / "rajpurkarlab" / "3DReasonKnee").symlink_to(release)
    names = "image_mean,constant_box"
    assert run("baselines", release, tmp_path / "guesses", "--names", names).returncode == 0
    ended = run(ROOT / "examples" / "first_score.py", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "No evidence that it uses the image" in ended.stdout
    said = (tmp_path / "scores" / "report.html").read_text()
    assert "brightness and a fixed box" in said
    line = next(line for line in ended.stdout.splitlines() if line.startswith("view"))
    words = shlex.split(line.split("reasonknee view ")[1])
    made = started(
        tmp_path / words[0], [tmp_path / words[4]], [tmp_path / words[2]], review=tmp_path / "r.jsonl", port=0
    )
    wrong = made.viewer.columns["verdict.0"] == 2
    assert wrong.any(), "there is a wrong answer to find"
    assert made.viewer.row(int(wrong.argmax()), False)["models"][0]["box"], "and its box can be seen"
    made.server_close()


def test_the_reward_drives_a_real_grpo_trainer(release: Path, warm: Warm) -> None:
    """Two steps of TRL's own trainer: some of the answers are right by chance, so there is a reward and a gradient."""
    needs("trl")
    said = warm.run(ROOT / "examples" / "grpo.py", release, needs=TRAINERS)
    steps = [
        tuple(map(float, found))
        for found in re.findall(r"^step \d: reward (\S+), gradient (\S+)$", said, re.MULTILINE)
    ]
    assert len(steps) == 2
    assert all(0 <= reward <= 1 for reward, _ in steps)
    assert any(reward > 0 and gradient > 0 for reward, gradient in steps)


def test_grpo_on_volumes_from_a_tuned_model(release: Path, tmp_path: Path, warm: Warm) -> None:
    """TRL's trainer on pictures of volumes: every reward under its name, and the tuned model as reference."""
    needs("trl")
    import tiny_models
    import torch
    from safetensors.torch import load_file

    model = tiny_models.checkpoint("qwen2_5_vl", tmp_path / "model")
    small = ["--slices", "even:2", "--size", "56"]
    tuned = command(
        "train", release, "--model", model, *small, "--packed", "--questions-per-volume", 2, "--steps", 1,
        "--accumulate", 1, "--dtype", "float32", "--out", tmp_path / "run",
    )  # fmt: skip
    assert tuned == 0
    out = tmp_path / "grpo"
    said = warm.run(
        ROOT / "examples" / "grpo_volumes.py", release, model, tmp_path / "run" / "adapter", *small, "--steps", "2",
        "--tokens", "2", "--group", "2", "--volumes", "1", "--out", out, needs=TRAINERS,
    )  # fmt: skip
    told = re.findall(r"^step \d: reward (\S+) \((.*)\), kl (\S+)$", said, re.MULTILINE)
    assert len(told) == 2
    assert [part.split()[0] for part in told[0][1].split(", ")] == ["grades", "box", "form", "consistency"]
    assert float(told[0][2]) == 0  # before its first step the model is its reference
    weights = load_file(out / "adapter_model.safetensors")
    assert all(torch.isfinite(weight).all() for weight in weights.values())


def test_rewards_of_a_right_answer_are_whole(release: Path) -> None:
    needs("trl")
    import importlib.util

    from reasonknee.answers import write
    from reasonknee.boxes import Box
    from reasonknee.questions import question
    from reasonknee.release.reader import Release

    found = importlib.util.spec_from_file_location("grpo_volumes", ROOT / "examples" / "grpo_volumes.py")
    assert found is not None
    assert found.loader is not None
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    opened = Release(release)
    ids = opened.columns("train", ["id"], "annotations")["id"].to_pylist()
    row = next(row for row in opened.rows(ids, "annotations", "train") if row["box"])
    asked = question(row["question_id"])
    grades = {a.id: row["grades"][a.id] for a in asked.attributes if row["grades"][a.id] is not None}
    right = "\n".join([*row["reasoning"], write(asked, grades, Box.from_dict(row["box"]), partial=True)])
    columns = {name: [row[name]] * 2 for name in ("question_id", "grades", "box")}
    for name, reward in example.REWARDS.items():
        whole, none = reward(completions=[right, "I see a knee."], **columns)
        assert whole == 1, name
        assert none < 0.5, name
