"""nnU-Net itself, in an environment of its own, takes the dataset that is exported: its check of integrity, its plan, and a run from there to a release."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, command

from reasonknee.cohort.annotations import FILE_NAME, scan_annotations
from reasonknee.construct.nnunet import FOLDER

pytestmark = pytest.mark.tools
PROGRAMS = ROOT / ".venv-nnunet" / "bin"
NNUNET = PROGRAMS / "nnUNetv2_plan_and_preprocess"
SMOKE = ROOT / "tests" / "nnunet"


def ran(work: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A program of nnU-Net's environment, with `work` for all that it writes."""
    settings = {
        "nnUNet_raw": work / "raw",
        "nnUNet_preprocessed": work / "preprocessed",
        "nnUNet_results": work / "results",
        "nnUNet_extTrainer": SMOKE,
        "nnUNet_compile": "f",
        "nnUNet_n_proc_DA": int(words[0] == NNUNET),  # its planner does not take 0; trained so, it has a seed
    }
    return subprocess.run(
        [str(w) for w in words],
        env={**os.environ, **{name: str(value) for name, value in settings.items()}},
        capture_output=True,
        text=True,
        timeout=1500,
    )


def check(work: Path) -> subprocess.CompletedProcess[str]:
    options = ["-d", "501", "--verify_dataset_integrity", "-c", "3d_fullres", "-np", "1", "-npfp", "1"]
    return ran(work, NNUNET, *options)


def test_nnunet_accepts_what_is_exported(cohort: Path, tmp_path: Path) -> None:
    assert NNUNET.is_file(), "make test-tools installs it"
    assert command("export", "nnunet", cohort, tmp_path / "raw") == 0
    done = check(tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    made = tmp_path / "preprocessed" / FOLDER
    assert (made / "nnUNetPlans.json").is_file()
    folds = [
        json.loads((base / "splits_final.json").read_text()) for base in (tmp_path / "raw" / FOLDER, made)
    ]
    assert folds[0] == folds[1]  # it takes ours, by patient
    cases = {p.name.removesuffix(".nii.gz") for p in (tmp_path / "raw" / FOLDER / "labelsTr").iterdir()}
    assert {p.stem for p in (made / "nnUNetPlans_3d_fullres").glob("*.pkl")} == cases


def test_its_check_would_find_a_label_that_is_not_listed(cohort: Path, tmp_path: Path) -> None:
    """So that passing means something."""
    assert command("export", "nnunet", cohort, tmp_path / "raw") == 0
    about = tmp_path / "raw" / FOLDER / "dataset.json"
    told = json.loads(about.read_text())
    told["labels"] = dict(list(told["labels"].items())[:-3])
    about.write_text(json.dumps(told))
    done = check(tmp_path)
    assert "nexpected label" in done.stdout + done.stderr


def test_a_smoke_run_goes_from_export_to_a_release(cohort: Path, tmp_path: Path) -> None:
    """A small net, some iterations, predictions for every case, masks, boxes, rows.

    It learns the same each time, and enough to tell sides apart: none may come back exchanged, which the importer (J058) and the check
    of the release (X306) would say."""
    assert command("export", "nnunet", cohort, tmp_path / "raw") == 0
    base = tmp_path / "raw" / FOLDER
    assert check(tmp_path).returncode == 0
    plans = tmp_path / "preprocessed" / FOLDER / "nnUNetPlans.json"
    planned = json.loads(plans.read_text())
    net = planned["configurations"]["3d_fullres"]["architecture"]["arch_kwargs"]
    net["features_per_stage"] = [min(16, width) for width in net["features_per_stage"]]
    plans.write_text(json.dumps(planned))
    trainer = ("-tr", "SmokeTrainer", "-device", "cpu")
    done = ran(tmp_path, PROGRAMS / "python", SMOKE / "run.py", "train", 501, "3d_fullres", 0, *trainer)
    assert done.returncode == 0, done.stderr[-2000:]
    shutil.copytree(base / "imagesTr", tmp_path / "images")
    shutil.copytree(base / "imagesTs", tmp_path / "images", dirs_exist_ok=True)
    asked = ("-i", tmp_path / "images", "-o", tmp_path / "predicted", "-d", 501, "-c", "3d_fullres", "-f", 0)
    options = ("--disable_tta", "-npp", 1, "-nps", 1)
    done = ran(tmp_path, PROGRAMS / "python", SMOKE / "run.py", "predict", *asked, *trainer, *options)
    assert done.returncode == 0, done.stderr[-2000:]
    cases = list((tmp_path / "images").iterdir())
    assert len(list((tmp_path / "predicted").glob("*.nii.gz"))) == len(cases)
    again = tmp_path / "again"
    shutil.copytree(cohort, again, ignore=shutil.ignore_patterns("masks", FILE_NAME))
    assert command("import-nnunet", tmp_path / "predicted", base, cohort, again / "masks") == 0
    assert command("dice", again / "masks", cohort / "masks") == 0
    assert command("construct", again) == 0
    made = [a for _, a in scan_annotations(again / FILE_NAME)]
    assert len(made) == len(list((again / "masks").rglob("*.nii.gz"))) == len(cases)
    assert any(box for a in made for box in a.boxes.values())
    assert command("build", again, tmp_path / "release", "--configs", "cropped") == 0
    assert command("validate", tmp_path / "release") == 0
