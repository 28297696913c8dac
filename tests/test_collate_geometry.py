"""Rows changed in space: a voxel that is marked stays inside its box, and lies where the affine says, whatever is done to it."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee.boxes import Box
from reasonknee.errors import ReasonKneeError
from reasonknee.stream import MapView, quintuples

torch = pytest.importorskip("torch")

from test_collate import ByteTokenizer, interval  # noqa: E402

from reasonknee.collate import Collator, loader  # noqa: E402
from reasonknee.collate.geometry import cut, flipped, moved, resampled, turned  # noqa: E402

Row = dict[str, Any]
PLANES = [("z", "y"), ("y", "x"), ("x", "z"), ("x", "y")]


@st.composite
def marked(draw: st.DrawFn) -> tuple[Row, np.ndarray]:
    """A row with one bright voxel, the box of a few voxels around it, and where it is in the world."""
    shape = tuple(draw(st.integers(4, 12)) for _ in range(3))
    crop = Box(*(v for n in shape for v in draw(interval(0, n))))
    box = Box(*(v for a, b in zip(crop.start, crop.stop, strict=True) for v in draw(interval(a, b))))
    mark = tuple(draw(st.integers(a, b - 1)) for a, b in zip(box.start, box.stop, strict=True))
    volume = np.zeros(crop.shape, np.uint16)
    volume[tuple(m - s for m, s in zip(mark, crop.start, strict=True))] = 1000
    spacing = np.array([0.36, 0.46, 0.7])
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = np.array([-20.0, 5.0, 3.0]) + spacing * crop.start[::-1]
    row = {
        "id": "v:acl",
        "volume_id": "v",
        "side": "right",
        "question_id": "acl",
        "shape": dict(zip("zyx", shape, strict=True)),
        "spacing": dict(zip("zyx", spacing[::-1].tolist(), strict=True)),
        "box": box.as_dict(),
        "crop": crop.as_dict(),
        "affine": affine,
        "volume": volume,
    }
    return row, affine @ np.array([*(np.array(mark) - crop.start)[::-1], 1.0])


@st.composite
def changes(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from(["flip", "turn", "cut", "resample"]))
    if kind == "flip":
        axes = draw(st.lists(st.sampled_from("zyx"), min_size=1, max_size=3, unique=True))
        return lambda row: flipped(row, *axes)
    if kind == "turn":
        plane, times = draw(st.sampled_from(PLANES)), draw(st.integers(-1, 5))
        return lambda row: turned(row, plane, times)
    if kind == "resample":
        factor = draw(st.sampled_from([0.5, 0.75, 1.0, 1.5, 2.0]))

        def resample(row: Row) -> Row:
            z, y, x = (max(1, round(n * factor)) for n in row["volume"].shape)
            return resampled(row, (z, y, x))

        return resample
    trims = [draw(st.integers(0, 3)) for _ in range(6)]

    def trim(row: Row) -> Row:
        """As much as leaves the box whole."""
        box, size = Box.from_dict(row["box"]).inside(Box.from_dict(row["crop"])), row["volume"].shape
        low = [min(t, a) for t, a in zip(trims[:3], box.start, strict=True)]
        high = [n - min(t, n - b) for t, b, n in zip(trims[3:], box.stop, size, strict=True)]
        return cut(row, Box(*(v for pair in zip(low, high, strict=True) for v in pair)))

    return trim


@settings(max_examples=300)
@given(marked(), st.lists(changes(), max_size=4))
def test_a_marked_voxel_stays_in_its_box_and_in_its_place(
    given_: tuple[Row, np.ndarray], steps: list[Any]
) -> None:
    row, world = given_
    before = Collator(window=(0, 1000))([row])
    assert before.volumes.max() == 1
    exact = True
    for step in steps:
        old = row["volume"].shape
        row = step(row)
        exact = exact and sorted(row["volume"].shape) == sorted(old) and row["volume"].dtype == np.uint16
    crop, box, shape = Box.from_dict(row["crop"]), Box.from_dict(row["box"]), row["shape"]
    assert crop.shape == row["volume"].shape
    assert all(b <= shape[a] for a, b in zip("zyx", crop.stop, strict=True))
    inside = box.inside(crop)
    place = np.unravel_index(np.argmax(row["volume"]), row["volume"].shape)
    assert all(a <= p < b for a, p, b in zip(inside.start, place, inside.stop, strict=True))
    at = np.linalg.inv(row["affine"]) @ world
    assert all(
        a - 1e-3 <= p + 0.5 <= b + 1e-3 for a, p, b in zip(inside.start, at[2::-1], inside.stop, strict=True)
    )
    if exact:
        assert np.allclose(at[2::-1], place, atol=1e-3)
    batch = Collator(window=(0, 1000), transform=lambda r: row)([given_[0]])
    assert batch.boxes[0].tolist() == [
        v for pair in zip(inside.start, inside.stop, strict=True) for v in pair
    ]


def test_turns_and_flips_are_those_of_numpy() -> None:
    volume = np.arange(2 * 3 * 4, dtype=np.uint16).reshape(2, 3, 4)
    row = {
        "id": "v:acl",
        "shape": dict(zip("zyx", volume.shape, strict=True)),
        "crop": Box.whole(volume.shape).as_dict(),
        "affine": np.eye(4),
        "volume": volume,
    }
    assert np.array_equal(turned(row, ("y", "x"))["volume"], np.rot90(volume, 1, (1, 2)))
    assert np.array_equal(flipped(row, "z", "x")["volume"], volume[::-1, :, ::-1])
    whole = flipped(flipped(row, "y"), "y")
    assert np.array_equal(whole["volume"], volume)
    assert np.allclose(whole["affine"], np.eye(4))
    assert turned(row, ("y", "x"))["shape"] == {"z": 2, "y": 4, "x": 3}
    assert turned(row, ("y", "x"), 4)["crop"] == row["crop"]


def test_shrinking_smooths_first() -> None:
    stripes = np.zeros((8, 8, 32), np.uint16)
    stripes[:, :, ::4] = (
        400  # every fourth column: picked without smoothing, one in two of the new ones is bright
    )
    row = {
        "id": "v:acl",
        "shape": dict(zip("zyx", stripes.shape, strict=True)),
        "crop": Box.whole(stripes.shape).as_dict(),
        "affine": np.eye(4),
        "volume": stripes,
    }
    small = resampled(row, (8, 8, 8))
    assert small["volume"].std() < 30
    assert abs(small["volume"].mean() - 100) < 30
    assert small["spacing"] == {"z": 1.0, "y": 1.0, "x": 4.0}


@pytest.fixture(scope="module")
def row(release: Path) -> Row:
    return next(iter(quintuples(release, "cropped", boxed=True)))


def rotated(row: Row) -> Row:
    turn = np.eye(4)
    turn[:2, :2] = [[0.8, -0.6], [0.6, 0.8]]
    return moved(row, row["volume"], row["affine"] @ turn)


@pytest.mark.parametrize(
    ("code", "transform"),
    [
        ("G080", lambda r: {**r, "volume": r["volume"][::-1]}),
        ("G080", lambda r: {**r, "volume": r["volume"][:, ::-1].copy()}),
        ("G080", lambda r: {**r, "volume": np.rot90(r["volume"], 2, (1, 2)).copy()}),
        ("G080", lambda r: {**r, "volume": np.roll(r["volume"], 1, 2)}),
        ("G080", lambda r: {**r, "volume": r["volume"][1:]}),
        ("G012", lambda r: {**r, "volume": r["volume"][1:].copy()}),
        ("G081", lambda r: cut(r, Box(0, 999, 0, 1, 0, 1))),
        ("G082", lambda r: moved(r, r["volume"], np.zeros((4, 4)))),
        ("G082", lambda r: moved(r, r["volume"], np.eye(3))),
        ("G083", lambda r: moved(r, r["volume"], r["affine"] @ (np.eye(4) + 9e3 * np.eye(4, k=3)))),
        ("G084", rotated),
        ("G085", lambda r: flipped({**r, "affine": None}, "z")),
        ("G020", lambda r: flipped(r, "w")),
        ("G086", lambda r: None),
    ],
)
def test_what_would_leave_the_box_behind_is_refused(row: Row, code: str, transform: Any) -> None:
    with pytest.raises(ReasonKneeError) as error:
        Collator(transform=transform)([row])
    assert error.value.code == code


def test_changes_of_brightness_are_taken_as_they_are(row: Row) -> None:
    plain = Collator()([row])
    for transform in (
        lambda r: {**r, "volume": r["volume"] // 2},
        lambda r: {**r, "volume": (r["volume"] * 0.5).astype(np.float32)},
        lambda r: {**r, "volume": r["volume"].copy()},
        lambda r: r,
    ):
        batch = Collator(transform=transform)([row])
        assert torch.equal(batch.boxes, plain.boxes)


def test_a_transform_and_shared_volumes_or_placed_labels_are_refused(row: Row) -> None:
    with pytest.raises(ReasonKneeError, match="G087"):
        Collator(transform=lambda r: r, share=True)([row, row])
    with pytest.raises(ReasonKneeError, match="G041"):
        Collator(transform=lambda r: flipped(r, "x"), tokenizer=ByteTokenizer())([row])
    assert Collator(transform=lambda r: r, tokenizer=ByteTokenizer())([row]).labels is not None


def drawn(row: Row, rng: np.random.Generator) -> Row:
    changed = flipped(row, *(axis for axis in "zyx" if rng.random() < 0.5))
    return {**changed, "volume": changed["volume"] * np.float32(rng.uniform(0.5, 1))}


Seen = dict[str, tuple[Any, ...]]


def seen(release: Path, epoch: int = 0, stop: int | None = None, **team: int) -> Seen:
    """What each row became, read in one go, or with a stop and a resume by another team."""

    def made() -> Any:
        rows = quintuples(
            release, "cropped", questions=["acl", "pcl", "effusion_synovitis"], boxed=True, seed=1
        )
        rows.set_epoch(epoch)
        return loader(rows, Collator(transform=drawn, seed=5), 4, **team)

    first = made()
    batches = []
    for batch in first:
        batches.append(batch)
        if len(batches) == stop:
            state = first.state_dict()
            second = made()
            second.load_state_dict(state)
            batches += list(second)
            break
    return {
        name: (batch.boxes[i].tolist(), float(batch.volumes[i].sum()))
        for batch in batches
        for i, name in enumerate(batch.ids)
    }


def test_what_is_drawn_depends_on_seed_epoch_and_row_alone(release: Path) -> None:
    plain = seen(release, workers=0)
    assert len(plain) > 12
    assert seen(release, workers=2) == plain
    assert seen(release, workers=4) == plain
    assert seen(release, workers=0, processes=2) == plain
    assert seen(release, workers=2, stop=2) == plain
    later = seen(release, epoch=1)
    assert later.keys() == plain.keys()
    assert later != plain


def test_threads_take_turns_in_a_transform(release: Path) -> None:
    inside: list[int] = []
    threads = set()

    def transform(row: Row) -> Row:
        inside.append(1)
        threads.add(get_ident())
        time.sleep(0.002)
        assert len(inside) == 1
        inside.pop()
        return row

    rows = quintuples(release, "cropped", boxed=True, seed=0)
    assert sum(len(batch.ids) for batch in loader(rows, Collator(transform=transform), 4, workers=4)) > 16
    assert len(threads) > 1


def test_a_process_that_is_forked_in_the_middle_of_a_turn_has_turns_of_its_own(row: Row) -> None:
    """It used to wait for ever for a thread that only its parent has."""
    parent, ended = os.getpid(), list[int | None]()

    def transform(r: Row) -> Row:
        if os.getpid() == parent:
            forked = multiprocessing.get_context("fork").Process(target=collator.change, args=(row,))
            forked.start()
            forked.join(30)
            forked.kill()
            ended.append(forked.exitcode)
        return r

    collator = Collator(transform=transform)
    collator([row])
    assert ended == [0]


def test_a_draw_needs_the_epoch_of_a_stream(release: Path, row: Row) -> None:
    collator = Collator(transform=drawn, seed=0)
    assert len(collator([row])) > 0
    for other in (dict(row), MapView(release, "cropped", boxed=True)[0]):
        with pytest.raises(ReasonKneeError, match="G088"):
            collator([other])
    for options in ({"seed": 1}, {"seed": -1, "transform": drawn}, {"seed": True, "transform": drawn}):
        with pytest.raises(ReasonKneeError, match="G020"):
            Collator(**options)
