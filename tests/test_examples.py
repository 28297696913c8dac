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
