"""A crop with the margin `evidence` holds what the grade rests on, at every site: measured on the voxels that a
lesion changes in a phantom knee."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from conftest import command

from reasonknee.boxes import Box
from reasonknee.layout import read_manifest
from reasonknee.phantom.cohort import phantom_grid
from reasonknee.phantom.knee import Knee, draw_knee
from reasonknee.questions import QUESTIONS, Question
from reasonknee.questions.regions import LABELS
from reasonknee.volumes.region_boxes import region_boxes

SHAPE = (40, 96, 96)
GRID = phantom_grid(SHAPE)
BOXED = [q for q in QUESTIONS.values() if q.region.labels]
HEALTHY = {
    q.id: {a.id: 3 if a.space.id == "tear_location" else 0 for a in q.attributes} for q in QUESTIONS.values()
}
CHANGED = 25  # of 4095: more than rounding, less than any lesion


def findings(q: Question) -> Iterator[dict[str, int]]:
    """The lesion at its largest, in each of its kinds and places."""
    match q.lesion.id:
        case "bml":
            yield {"size": 3, "number": 3, "percent_bml": 2}
        case "morphology":
            yield from ({"morphology": m} for m in range(1, 9))
        case "cyst":
            yield from ({"presence": 1, "tear_location": place} for place in range(4))
        case "acl" | "pcl":
            yield from ({**HEALTHY[q.id], a.id: 1} for a in q.attributes)
        case _:
            yield {a.id: a.space.grades[-1] for a in q.attributes}


def drawn(seed: int, **grades: dict[str, int]) -> Knee:
    return draw_knee(SHAPE, "right" if seed % 2 else "left", {**HEALTHY, **grades}, seed, anatomy_seed=seed)


@lru_cache(maxsize=2)
def healthy(seed: int) -> Knee:
    return drawn(seed)


def shares(q: Question, seed: int) -> Iterator[tuple[float, float]]:
    """For each kind of the lesion, how much of it a crop holds: without a margin, and with that of evidence."""
    for grades in findings(q):
        knee = drawn(seed, **{q.id: grades})
        if q.lesion.id == "effusion_synovitis":  # what fluid does to the film between the bones is not graded
            lesion = knee.mask == LABELS["joint_cavity"]
        else:
            lesion = np.abs(knee.image.astype(int) - healthy(seed).image) > CHANGED
        box = region_boxes(knee.mask, GRID.orientation)[q.region.id]
        assert box is not None
        if lesion.sum() >= 5:  # less is none at this resolution
            yield inside(lesion, box, (0, 0, 0)), inside(lesion, box, q.lesion.evidence_mm)


def inside(lesion: np.ndarray, box: Box, margin: tuple[float, float, float]) -> float:
    z, y, x = (math.ceil(mm / s) for mm, s in zip(margin, GRID.spacing, strict=True))
    return float(lesion[box.grown((z, y, x), SHAPE).slices].sum() / lesion.sum())


@pytest.mark.parametrize("q", BOXED, ids=lambda q: q.id)
def test_a_crop_holds_the_evidence(q: Question) -> None:
    assert all(share >= 0.95 for _, share in shares(q, 1))


@pytest.mark.slow
@pytest.mark.parametrize("q", BOXED, ids=lambda q: q.id)
def test_a_crop_holds_the_evidence_of_many_knees(q: Question) -> None:
    assert all(share >= 0.95 for seed in range(2, 14) for _, share in shares(q, seed))


def test_without_a_margin_evidence_is_hidden() -> None:
    """What the datasheet says of margin 0."""
    hidden = {
        q.id: min(bare for bare, _ in shares(q, 1)) for q in BOXED if q.lesion.id in ("cyst", "pcl", "acl")
    }
    assert max(hidden.values()) < 0.6


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
