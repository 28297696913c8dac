"""nnU-Net itself, in an environment of its own, takes the dataset that is exported: its check of integrity, and its plan."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, command

from reasonknee.construct.nnunet import FOLDER

pytestmark = pytest.mark.tools
NNUNET = ROOT / ".venv-nnunet" / "bin" / "nnUNetv2_plan_and_preprocess"


def check(raw: Path, work: Path) -> subprocess.CompletedProcess[str]:
    folders = {
        "nnUNet_raw": raw,
        "nnUNet_preprocessed": work / "preprocessed",
        "nnUNet_results": work / "results",
    }
    options = ["-d", "501", "--verify_dataset_integrity", "-c", "3d_fullres", "-np", "1", "-npfp", "1"]
    return subprocess.run(
        [str(NNUNET), *options],
        env={**os.environ, **{name: str(folder) for name, folder in folders.items()}},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_nnunet_accepts_what_is_exported(cohort: Path, tmp_path: Path) -> None:
    assert NNUNET.is_file(), "make test-tools installs it"
    assert command("export-nnunet", cohort, tmp_path / "raw") == 0
    ran = check(tmp_path / "raw", tmp_path)
    assert ran.returncode == 0, ran.stderr[-2000:]
    made = tmp_path / "preprocessed" / FOLDER
    assert (made / "nnUNetPlans.json").is_file()
    cases = {p.name.removesuffix(".nii.gz") for p in (tmp_path / "raw" / FOLDER / "labelsTr").iterdir()}
    assert {p.stem for p in (made / "nnUNetPlans_3d_fullres").glob("*.pkl")} == cases


def test_its_check_would_find_a_label_that_is_not_listed(cohort: Path, tmp_path: Path) -> None:
    """So that passing means something."""
    assert command("export-nnunet", cohort, tmp_path / "raw") == 0
    about = tmp_path / "raw" / FOLDER / "dataset.json"
    told = json.loads(about.read_text())
    told["labels"] = dict(list(told["labels"].items())[:-3])
    about.write_text(json.dumps(told))
    ran = check(tmp_path / "raw", tmp_path)
    assert "nexpected label" in ran.stdout + ran.stderr
