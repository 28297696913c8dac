"""Views: what is shown of a volume, and a box in a model's coordinates and back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.answers import CONVENTIONS
from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.models import FORMS, View
from reasonknee.models.coordinates import Scaled, Sliced, form_named
from reasonknee.models.views import blank, occluded
from reasonknee.questions import question
from reasonknee.questions.prompts import ask, describe
from reasonknee.volumes import Grid, Volume

ACL = question("acl")
GRADED = {"box": None, "grades": {a.id: 0 for a in ACL.attributes}}


def volume(shape: tuple[int, int, int] = (12, 20, 16), orientation: str = "LIP") -> Volume:
    array = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
    signs = [1 if letter in "RSA" else -1 for letter in orientation]
    affine = np.zeros((4, 4))
    affine[1, 0], affine[2, 1], affine[0, 2], affine[3, 3] = 0.5 * signs[2], 0.5 * signs[1], 0.7 * signs[0], 1
    made = Volume(array, Grid(shape, affine))
    assert made.grid.orientation == orientation
    return made


@st.composite
def intervals(draw: st.DrawFn, start: int, stop: int) -> tuple[int, int]:
    low = draw(st.integers(start, stop - 1))
    return low, draw(st.integers(low + 1, stop))


@st.composite
def boxes(draw: st.DrawFn, inside: Box) -> Box:
    bounds: list[int] = []
    for start, stop in zip(inside.start, inside.stop, strict=True):
        bounds += draw(intervals(start, stop))
    return Box(*bounds)


@st.composite
def showings(draw: st.DrawFn) -> tuple[Box, object]:
    shape = (draw(st.integers(2, 40)), draw(st.integers(8, 60)), draw(st.integers(8, 60)))
    slices = draw(st.sampled_from(["all", "even:1", "even:7", "every:3", "every:50", "planes:3"]))
    view = View(
        slices,
        draw(st.sampled_from([None, 8, 33, 64])),
        "percentile",
        draw(st.sampled_from(["stored", "LIP", "RSA", "RIP"])),
        "images",
        draw(st.sampled_from(sorted(FORMS))),
        draw(st.sampled_from([1, 7, 28])),
    )
    crop = draw(st.none() | boxes(Box.whole(shape)))
    showing = view.show(volume(shape, draw(st.sampled_from(["LIP", "RIP", "LSA"]))), "left", crop)
    return draw(boxes(crop or Box.whole(shape))), showing


@given(showings())
def test_a_box_comes_back_as_near_as_the_grid_says(drawn) -> None:  # type: ignore[no-untyped-def]
    """Through the very words of a model: written in the form, read by the one reader of answers."""
    box, showing = drawn
    form, grid = form_named(showing.view.form), showing.grid
    words = "Step 1 ...\n" + json.dumps({**GRADED, "box": form.write(box, grid)})
    answer = form.read(ACL, words, grid)
    assert answer.status == "parsed"
    assert answer.box is not None, answer.problems
    for axis, bound in enumerate(grid.bound):
        assert abs(answer.box.start[axis] - box.start[axis]) <= bound
        assert abs(answer.box.stop[axis] - box.stop[axis]) <= bound
    again = form.read(ACL, json.dumps({**GRADED, "box": form.write(answer.box, grid)}), grid)
    if showing.view.form == "voxels":
        assert answer.box == box
    assert again.box is not None
    assert again.box.fits(showing.outline.shape)


@given(st.integers(1, 200), st.integers(1, 300), st.booleans(), st.data())
def test_a_grid_finer_than_the_voxels_loses_nothing(
    size: int, more: int, flipped: bool, data: st.DataObject
) -> None:
    axis = Scaled(7, 7 + size, size + more, flipped)
    low, high = data.draw(intervals(7, 7 + size))
    assert axis.bound == 0
    assert axis.back(*axis.onto(low, high)) == (low, high)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12, unique=True), st.booleans(), st.data())
def test_each_frame_stands_for_the_slices_around_it(
    slices: list[int], falling: bool, data: st.DataObject
) -> None:
    slices.sort(reverse=falling)
    axis = Sliced.around(slices, 0, 61)
    for frame, z in enumerate(slices):
        low, high = axis.back(frame, frame + 1)
        assert low <= z < high
    first = data.draw(st.integers(0, len(slices) - 1))
    frames = (first, data.draw(st.integers(first + 1, len(slices))))
    assert axis.onto(*axis.back(*frames)) == frames


def test_a_box_in_pixels_of_the_resized_frames() -> None:
    """Counted by hand: frames of 20 x 16 voxels at twice their size, every second slice."""
    grid = View("every:2", 40, form="pixels").show(volume(), "right").grid
    assert grid.shape == (6, 40, 32)
    assert grid.onto(Box(1, 5, 10, 20, 2, 8)) == Box(1, 3, 20, 40, 4, 16)
    assert grid.back(Box(1, 2, 20, 40, 4, 16)) == Box(1, 3, 10, 20, 2, 8)


def test_frames_that_a_server_leaves_as_they_are() -> None:
    showing = View(size=40, form="pixels", multiple=28).show(volume(), "right", Box(0, 12, 0, 20, 0, 7))
    assert showing.frames.shape == (12, 28, 28)
    assert "28 x 28 pixels" in describe(showing.told)
    assert showing.grid.onto(Box(0, 1, 0, 10, 0, 7)) == Box(0, 1, 0, 14, 0, 28)


def test_a_flipped_view_counts_from_the_other_end() -> None:
    showing = View(orientation="RIP", form="voxels").show(volume(), "right")
    assert showing.slices[0] == 11
    assert list(showing.told.slices) == list(range(12))
    assert (showing.frames[0] > showing.frames[-1]).all()
    assert showing.grid.onto(Box(0, 2, 0, 5, 0, 5)) == Box(10, 12, 0, 5, 0, 5)
    assert "Slice 0 is the most medial one" in describe(showing.told)
    assert "Slice 0 is the most lateral one" in describe(View().show(volume(), "right").told)


def test_voxels_of_a_part_are_those_of_the_whole() -> None:
    """One window for the volume: upstream's scripts scaled each slice by itself, so that a bright slice looked like a dark one."""
    whole = View(window="percentile").show(volume(), "left")
    crop = Box(3, 9, 4, 18, 2, 14)
    part = View(window="percentile").show(volume(), "left", crop)
    assert np.array_equal(part.frames, whole.frames[crop.slices])
    assert whole.frames[0].max() < whole.frames[-1].min()
    assert part.told.crop == crop


def test_three_planes() -> None:
    showing = View("planes:4", kind="images").show(volume(), "left")
    assert [f.shape for f in (showing.frames, *showing.others)] == [(4, 20, 16), (4, 20, 12), (4, 16, 12)]
    assert len(showing.images) == 12
    coronal, axial = showing.others
    whole = View().show(volume(), "left").frames
    assert np.array_equal(coronal[0], whole[:, :, 2].T)
    assert np.array_equal(axial[0], whole[:, 2, :].T)
    assert "coronal frames" in describe(showing.told)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ("all", list(range(12))),
        ("every:5", [0, 5, 10]),
        ("even:3", [2, 6, 10]),
        ("even:99", list(range(12))),
    ],
)
def test_which_slices_are_shown(slices: str, expected: list[int]) -> None:
    assert list(View(slices).show(volume(), "left").slices) == expected


def test_the_prompt_tells_shape_slices_side_and_directions() -> None:
    showing = View("every:4", 40, form="thousand").show(volume(), "right")
    text = ask(ACL, "zero_shot", showing.told)
    for words in ("right knee", "12 slices", "slices 0 to 8 in steps of 4", "40 x 32 pixels", "thousandths"):
        assert words in text


def test_every_form_names_a_convention_and_its_words_show_its_keys() -> None:
    assert {form.convention for form in FORMS.values()} <= set(CONVENTIONS)
    for form in FORMS.values():
        assert form.told.words
        assert any(key in form.told.template for key in ("z0", "bbox", "z1"))


def test_controls_of_a_volume() -> None:
    whole = volume()
    box = Box(2, 4, 3, 9, 1, 8)
    window = View().window_of(whole.array)
    dark = occluded(whole, box, window)
    assert (View().show(dark, "left", window=window).frames[box.slices] == 0).all()
    outside = np.ones(whole.grid.shape, bool)
    outside[box.slices] = False
    assert np.array_equal(dark.array[outside], whole.array[outside])
    assert not blank(whole).array.any()
    assert whole.array.any()


@pytest.mark.parametrize(
    "options",
    [
        {"slices": "some"},
        {"slices": "even:0"},
        {"slices": "planes:3"},
        {"kind": "gif"},
        {"size": 4},
        {"multiple": 0},
        {"window": "9:1"},
        {"window": "soft"},
        {"orientation": "XYZ"},
    ],
)
def test_a_view_that_is_none(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"^N002: "):
        View(**options)  # type: ignore[arg-type]


def test_a_form_that_is_none() -> None:
    with pytest.raises(UsageError, match=r"^N001: "):
        View(form="polar")


def test_a_part_that_is_not_inside() -> None:
    with pytest.raises(DataError, match=r"^B003: "):
        View().show(volume(), "left", Box(0, 99, 0, 2, 0, 2))
