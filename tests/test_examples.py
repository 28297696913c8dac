"""The programs in examples/ do what they say, run as a user would."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import ROOT, SHAPE, run

from reasonknee.cohort import Cohort
from reasonknee.materialise import Options
from reasonknee.phantom.cohort import write_cohort
from reasonknee.release import build


def test_training_beats_the_majority_and_resumes_to_the_same_weights(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    write_cohort(tmp_path / "cohort", patients=20, seed=0, shape=SHAPE)
    build(Cohort(tmp_path / "cohort"), tmp_path / "release", configs=["cropped"], options=Options(margin_mm=3.0))
    ended = run(ROOT / "examples" / "train.py", tmp_path / "release", tmp_path / "checkpoint.pt")
    assert ended.returncode == 0, ended.stderr
    stopped, of = map(int, re.findall(r"stopped after (\d+) of (\d+) steps", ended.stdout)[0])
    assert 0 < stopped < of
    assert "resumed: the same weights" in ended.stdout
    right, majority = map(float, re.findall(r"(0\.\d+) right; the majority grade alone: (0\.\d+)", ended.stdout)[0])
    assert right > majority + 0.1, ended.stdout


def test_the_reward_drives_a_real_grpo_trainer(release: Path, tmp_path: Path) -> None:
    """Two steps of TRL's own trainer: some of the answers are right by chance, so there is a reward and a gradient."""
    pytest.importorskip("trl", reason="TRL is not installed: pip install torch==2.13.0 && pip install trl")
    ended = run(ROOT / "examples" / "grpo.py", release, env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert ended.returncode == 0, ended.stderr[-2000:]
    steps = [tuple(map(float, found)) for found in re.findall(r"^step \d: reward (\S+), gradient (\S+)$", ended.stdout, re.MULTILINE)]
    assert len(steps) == 2
    assert all(0 <= reward <= 1 for reward, _ in steps)
    assert any(reward > 0 and gradient > 0 for reward, gradient in steps)
