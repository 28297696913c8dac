"""The programs in examples/ do what they say, run as a user would."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, SHAPE, run

from reasonknee.cohort import Cohort
from reasonknee.phantom.cohort import write_cohort
from reasonknee.release import Options, build
from reasonknee.viewer.open import started


def test_training_beats_the_majority_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_cohort(tmp_path / "cohort", patients=20, seed=0, shape=SHAPE)
    build(
        Cohort(tmp_path / "cohort"), tmp_path / "release", configs=["cropped"], options=Options(margin_mm=3.0)
    )
    ended = run(ROOT / "examples" / "train.py", tmp_path / "release", tmp_path / "checkpoint.pt")
    assert ended.returncode == 0, ended.stderr
    stopped, of = map(int, re.findall(r"stopped after (\d+) of (\d+) steps", ended.stdout)[0])
    assert 0 < stopped < of
    assert "resumed: the same weights" in ended.stdout
    right, majority = map(
        float, re.findall(r"(0\.\d+) right; the majority grade alone: (0\.\d+)", ended.stdout)[0]
    )
    assert right > majority + 0.1, ended.stdout


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


def test_the_reward_drives_a_real_grpo_trainer(release: Path, tmp_path: Path) -> None:
    """Two steps of TRL's own trainer: some of the answers are right by chance, so there is a reward and a gradient."""
    pytest.importorskip("trl", reason="TRL is not installed: pip install torch==2.13.0 && pip install trl")
    ended = run(ROOT / "examples" / "grpo.py", release, env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert ended.returncode == 0, ended.stderr[-2000:]
    steps = [
        tuple(map(float, found))
        for found in re.findall(r"^step \d: reward (\S+), gradient (\S+)$", ended.stdout, re.MULTILINE)
    ]
    assert len(steps) == 2
    assert all(0 <= reward <= 1 for reward, _ in steps)
    assert any(reward > 0 and gradient > 0 for reward, gradient in steps)
