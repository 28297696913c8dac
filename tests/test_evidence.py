"""A crop with the margin `evidence` holds what the grade rests on, at every site: measured on the voxels that a
lesion changes in a phantom knee."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from conftest import command

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

from evidence import BOXED, WANTED, page_text, sentence, shares

from reasonknee.layout import read_manifest
from reasonknee.questions import QUESTIONS, Question
from reasonknee.release.card import DATASHEET

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("q", BOXED, ids=lambda q: q.id)
def test_a_crop_holds_the_evidence(q: Question) -> None:
    assert min(share.evidence for _, share in shares(q, 1)) >= WANTED


@pytest.mark.slow
@pytest.mark.parametrize("q", BOXED, ids=lambda q: q.id)
def test_a_crop_holds_the_evidence_of_many_knees(q: Question) -> None:
    assert min(share.evidence for seed in range(2, 14) for _, share in shares(q, seed)) >= WANTED


def test_the_pages_say_what_was_measured() -> None:
    results = json.loads((ROOT / "docs" / "bench" / "evidence.json").read_text())
    assert sentence(results) in " ".join(DATASHEET.read_text().split())
    assert page_text(results) in (ROOT / "docs" / "phantom.md").read_text()
    assert min(row["least_with_evidence"] for row in results["findings"].values()) >= WANTED
    for q in BOXED:  # the knee that is drawn here is one of those
        for attribute, share in shares(q, 1) if q.lesion.id in ("cyst", "acl", "pcl") else ():
            row = results["findings"][f"{q.lesion.id}.{attribute}"]
            assert share.bare >= row["least_bare"], "docs/bench/evidence.json is of other phantoms"


def test_a_release_with_evidence(cohort: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    out = tmp_path / "r"
    assert command("build", cohort, out, "--configs", "cropped,full", "--margin", "evidence") == 0
    assert command("validate", out) == 0
    assert read_manifest(out).margin_mm == "evidence"
    assert "crop margin `evidence`" in (out / "README.md").read_text()
    rows = pq.read_table(
        next(out.glob("cropped/*.parquet")), columns=["question_id", "box", "crop", "spacing", "shape"]
    )
    seen = set()
    for row in rows.to_pylist():
        around = QUESTIONS[row["question_id"]].lesion.evidence_mm
        for axis, mm in zip("zyx", around, strict=True):
            margin = math.ceil(mm / row["spacing"][axis])
            assert row["crop"][f"{axis}0"] == max(0, row["box"][f"{axis}0"] - margin)
            assert row["crop"][f"{axis}1"] == min(row["shape"][axis], row["box"][f"{axis}1"] + margin)
        seen.add(around)
    assert len(seen) > 5
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "margin_mm": 3.0}))
    assert command("validate", out) == 3
