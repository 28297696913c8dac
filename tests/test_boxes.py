"""The geometry of boxes is exact: every conversion has a way back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.boxes import Box
from reasonknee.errors import DataError
from reasonknee.questions.regions import LABELS
from reasonknee.volumes.region_boxes import region_boxes

SHAPE = (12, 20, 24)


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, int, int] = SHAPE) -> Box:
    ends = [sorted(draw(st.sets(st.integers(0, n), min_size=2, max_size=2))) for n in shape]
    return Box(*[e for pair in ends for e in pair])


@given(boxes(), boxes())
def test_iou_is_what_counting_voxels_gives(a: Box, b: Box) -> None:
    x, y = np.zeros(SHAPE, bool), np.zeros(SHAPE, bool)
    x[a.slices], y[b.slices] = True, True
    assert a.iou(b) == b.iou(a) == (x & y).sum() / (x | y).sum()
    assert a.voxels == x.sum()


@given(boxes())
def test_ways_back(box: Box) -> None:
    assert Box.from_dict(box.as_dict()) == box
    assert Box.from_upstream(box.to_upstream()) == box
    assert box.mirrored(SHAPE[0]).mirrored(SHAPE[0]) == box
    mask = np.zeros(SHAPE, bool)
    mask[box.slices] = True
    assert Box.from_mask(mask) == box
    assert Box.from_mask(mask[::-1]) == box.mirrored(SHAPE[0])


@given(boxes(), st.tuples(*[st.integers(0, 9)] * 3))
def test_crop_and_back(box: Box, margin: tuple[int, int, int]) -> None:
    crop = box.grown(margin, SHAPE)
    assert crop.fits(SHAPE)
    inner = box.inside(crop)
    assert inner.fits(crop.shape)
    assert inner.outside(crop) == box
    volume = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    assert np.array_equal(volume[crop.slices][inner.slices], volume[box.slices])


@pytest.mark.parametrize("numbers", [(0, 0, 0, 1, 0, 1), (3, 2, 0, 1, 0, 1), (-1, 2, 0, 1, 0, 1)])
def test_degenerate_boxes_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="B001"):
        Box(*numbers)


def test_no_voxels_no_box() -> None:
    assert Box.from_mask(np.zeros((2, 3, 4), bool)) is None


def test_a_box_outside_its_crop_is_refused() -> None:
    with pytest.raises(DataError, match="B002"):
        Box(0, 4, 0, 4, 0, 4).inside(Box(1, 4, 0, 4, 0, 4))


@given(boxes(), st.sampled_from(["LIP", "RSA", "LSP", "RIA"]))
def test_portions_share_out_their_structure(box: Box, orientation: str) -> None:
    """Thirds along anterior-posterior: in order, disjoint, together the whole; in whichever direction x grows."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[box.slices] = LABELS["medial_meniscus"]
    found = region_boxes(mask, orientation)
    assert found["medial_meniscus"] == box
    parts = [found[f"medial_meniscus_{p}"] for p in ("anterior", "body", "posterior")]
    present = [p for p in parts if p]
    assert sum(p.voxels for p in present) == box.voxels
    if orientation[2] == "A":
        present.reverse()
    assert [p.x0 for p in present] == sorted(p.x0 for p in present)
    assert found["lateral_meniscus"] is None
    assert found["periarticular"] is None


def test_patellar_poles() -> None:
    mask = np.zeros(SHAPE, np.uint8)
    mask[2:4, 4:14, 3:8] = LABELS["patella_medial"]
    mask[4:6, 4:14, 3:8] = LABELS["patella_lateral"]
    found = region_boxes(mask, "LIP")
    assert found["patella_superior"] == Box(2, 6, 4, 9, 3, 8)
    assert found["patella_inferior"] == Box(2, 6, 9, 14, 3, 8)
    assert region_boxes(mask, "LSP")["patella_superior"] == Box(2, 6, 9, 14, 3, 8)


def test_only_the_component_counts() -> None:
    mask = np.zeros(SHAPE, np.uint8)
    mask[0:4, 0:4, 0:4] = LABELS["acl"]
    mask[10, 18, 20] = LABELS["acl"]  # a stray voxel
    cut = lambda m: m * (np.arange(m.shape[0]) < 4)[:, None, None]  # noqa: E731
    assert region_boxes(mask, "LIP", cut)["acl"] == Box(0, 4, 0, 4, 0, 4)
