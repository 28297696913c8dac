"""Rows in, tensors out: real rows of a release, and properties over made-up ones."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, run
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee import answers
from reasonknee.boxes import Box
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.questions import ATTRIBUTES, QUESTIONS, question
from reasonknee.volumes import volume_from_bytes

torch = pytest.importorskip("torch")

from reasonknee.collate import Collator, completion, frames  # noqa: E402
from reasonknee.collate.batch import IGNORED, Batch  # noqa: E402
from reasonknee.collate.intensity import percentile_window  # noqa: E402
from reasonknee.collate.loading import Loader, bucket_by_shape, loader, shape_of  # noqa: E402
from reasonknee.stream import quintuples, volumes  # noqa: E402

# --- rows -------------------------------------------------------------------------------------------------------------------------


def rows_of(release: Path, config: str = "cropped", split: str = "train") -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    return [
        row
        for path in sorted((release / config).glob(f"{split}-*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


@pytest.fixture(scope="module")
def cropped(release: Path) -> list[dict[str, Any]]:
    return rows_of(release)


@pytest.fixture(scope="module")
def boxed(cropped: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in cropped if row["box"]]


def made(
    number: int,
    array: np.ndarray,
    crop: Box,
    box: Box | None,
    shape: tuple[int, int, int],
    side: str = "right",
    asked: str = "acl",
) -> dict[str, Any]:
    grades = {a.id: a.space.grades[number % len(a.space.grades)] for a in question(asked).attributes}
    return {
        "id": f"v{number}:{asked}",
        "volume_id": f"v{number}",
        "question_id": asked,
        "side": side,
        "shape": dict(zip("zyx", shape, strict=True)),
        "question": {"zero_shot": f"short {number}", "instruction": f"long {number}"},
        "reasoning": [f"step {number}"],
        "box": box and box.as_dict(),
        "grades": {name: grades.get(name) for name in ATTRIBUTES},
        "crop": crop.as_dict(),
        "volume": array,
    }


@st.composite
def interval(draw: st.DrawFn, start: int, stop: int) -> tuple[int, int]:
    a = draw(st.integers(start, stop - 1))
    return a, draw(st.integers(a + 1, stop))


@st.composite
def a_row(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """A crop of a volume that lies anywhere in it, as a strided view, with a box anywhere in the crop."""
    shape = tuple(draw(st.integers(1, n)) for n in (9, 12, 11))
    spans = [draw(interval(0, n)) for n in shape]
    crop = Box(*(v for span in spans for v in span))
    box = draw(st.none() | st.just(Box(*(v for span in spans for v in draw(interval(*span))))))
    dtype = draw(st.sampled_from(["uint16", "int16", "uint8", "float32"]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    low, high = {"uint16": (0, 65536), "int16": (-900, 900), "uint8": (0, 256), "float32": (-900, 900)}[dtype]
    volume = rng.uniform(low, high, shape).astype(dtype)
    asked = draw(st.sampled_from(list(QUESTIONS)))
    return made(
        number, volume[crop.slices], crop, box, shape, draw(st.sampled_from(["left", "right"])), asked
    )


@st.composite
def some_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    return [draw(a_row(number)) for number in range(draw(st.integers(1, 5)))]


# --- properties -------------------------------------------------------------------------------------------------------------------

PRECISION = {"float32": 0.0, "bfloat16": 2**-8, "float16": 2**-11}
WINDOWS: list[Any] = ["paper", "percentile", (-50, 250), (10.5, 300.25), (0, 60000)]


def reference(array: np.ndarray, window: Any) -> np.ndarray:
    lo, hi = {"paper": (0, 400)}.get(window, window) if window != "percentile" else percentile_window(array)
    return (np.clip(array.astype(np.float32), np.float32(lo), np.float32(hi)) - np.float32(lo)) / np.float32(
        hi - lo
    )


@settings(max_examples=80)
@given(some_rows(), st.sampled_from(list(PRECISION)), st.sampled_from(WINDOWS), st.booleans())
def test_padding_keeps_every_voxel_and_marks_the_rest(
    rows: list[dict[str, Any]], dtype: str, window: Any, mirror: bool
) -> None:
    collator = Collator(dtype=dtype, window=window, mirror_left=mirror, require_box=False)
    collator(rows)  # memory is dirty from the second round on
    batch = collator(rows)
    assert batch.volumes is not None
    assert batch.volumes.is_contiguous()
    assert batch.volumes.dtype == getattr(torch, dtype)
    assert batch.volumes.shape == (len(rows), 1, *np.max([r["volume"].shape for r in rows], axis=0))
    for row, volume, mask in zip(
        rows, batch.volumes[:, 0].float().numpy(), batch.mask[:, 0].numpy(), strict=True
    ):
        expected = reference(row["volume"], window)
        if mirror and row["side"] == "left":
            expected = expected[::-1]
        z, y, x = expected.shape
        assert mask[:z, :y, :x].all()
        assert mask.sum() == expected.size
        assert not volume[~mask].any()
        np.testing.assert_allclose(
            volume[:z, :y, :x], expected, rtol=PRECISION[dtype], atol=2**-24 if dtype == "float16" else 0
        )


@settings(max_examples=80)
@given(some_rows(), st.booleans(), st.sampled_from(["pad", "grid", "resize"]))
def test_boxes_lie_in_the_tensor_and_map_back(rows: list[dict[str, Any]], mirror: bool, how: str) -> None:
    options: dict[str, Any] = {
        "pad": {},
        "grid": {"grid": (10, 13, 12)},
        "resize": {"fit": "resize", "grid": (7, 5, 16)},
    }[how]
    batch = Collator(mirror_left=mirror, require_box=False, **options)(rows)
    assert batch.box_mask.tolist() == [row["box"] is not None for row in rows]
    back = batch.to_voxels(batch.boxes)
    whole = batch.voxel_boxes(batch.boxes)
    many = batch.to_voxels(torch.stack([batch.boxes] * 3, dim=1))
    assert torch.equal(many, torch.stack([back] * 3, dim=1))
    for i, row in enumerate(rows):
        if row["box"] is None:
            assert batch.boxes[i].tolist() == [0] * 6
            continue
        box, crop = Box.from_dict(row["box"]), Box.from_dict(row["crop"])
        inside = box.inside(crop)
        if mirror and row["side"] == "left":
            inside = inside.mirrored(crop.shape[0])
        expected = np.array(list(inside.as_dict().values()), dtype=np.float64)
        if how == "resize":
            expected *= np.repeat(np.array([7, 5, 16]) / crop.shape, 2)
            np.testing.assert_allclose(batch.boxes[i].numpy(), expected, atol=1e-5)
            np.testing.assert_allclose(back[i].numpy(), list(box.as_dict().values()), atol=1e-4)
        else:
            assert batch.boxes[i].tolist() == expected.tolist()
            assert back[i].tolist() == list(box.as_dict().values())
        assert whole[i] == box


@settings(max_examples=40)
@given(some_rows(), st.booleans())
def test_annotations_keep_their_order(rows: list[dict[str, Any]], share: bool) -> None:
    batch = Collator(require_box=False, share=share)(rows)
    assert len(batch) == len(rows)
    assert batch.ids == [row["id"] for row in rows]
    assert batch.volume_ids == [row["volume_id"] for row in rows]
    assert batch.question_ids == [row["question_id"] for row in rows]
    assert list(zip(batch.zero_shot, batch.instruction, strict=True)) == [
        tuple(row["question"].values()) for row in rows
    ]
    assert batch.reasoning == [row["reasoning"] for row in rows]
    assert batch.grades.dtype == torch.int64
    for row, grades, mask in zip(rows, batch.grades.tolist(), batch.grade_mask.tolist(), strict=True):
        assert (
            dict(zip(ATTRIBUTES, [g if m else None for g, m in zip(grades, mask, strict=True)], strict=True))
            == row["grades"]
        )
        assert all(g == IGNORED for g, m in zip(grades, mask, strict=True) if not m)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)), max_size=40),
    st.integers(1, 4),
    st.integers(4, 9),
    st.integers(1, 2),
)
def test_buckets_lose_nothing(
    shapes: list[tuple[int, int, int]], batch_size: int, pool: int, step: int
) -> None:
    rows = [made(i, np.zeros(s, np.uint16), Box.whole(s), None, s) for i, s in enumerate(shapes)]
    waiting, batches = 0, []
    source = iter(rows)

    def counted() -> Iterator[dict[str, Any]]:
        nonlocal waiting
        for row in source:
            waiting += 1
            yield row

    for batch in bucket_by_shape(counted(), batch_size, step=(step,) * 3, pool=pool):
        assert waiting <= pool
        waiting -= len(batch)
        batches.append(batch)
        assert 1 <= len(batch) <= batch_size
        assert len({tuple(-(-n // step) for n in shape_of(row) or ()) for row in batch}) == 1
        if step == 1:
            assert Collator(fit="native", require_box=False)(batch).mask.all()
    assert sorted(row["id"] for batch in batches for row in batch) == sorted(row["id"] for row in rows)


# --- values -----------------------------------------------------------------------------------------------------------------------


def test_resize_puts_voxels_where_it_puts_boxes() -> None:
    """A bright block, resized, fills its resized box: coordinates are those of edges, not of centres."""
    volume, box = np.zeros((8, 12, 10), np.uint16), Box(2, 6, 3, 9, 4, 8)
    volume[box.slices] = 400
    for side, mirror in (("right", False), ("left", True)):
        row = made(0, volume, Box.whole(volume.shape), box, volume.shape, side)
        batch = Collator(fit="resize", grid=(32, 24, 40), mirror_left=mirror)([row])
        assert Box.from_mask((batch.volumes[0, 0] >= 0.5).numpy()) == Box(*(int(v) for v in batch.boxes[0]))
        assert batch.boxes[0].tolist() == [8, 24, 6, 18, 16, 32]
        assert batch.mask.all()


def test_percentiles_are_those_of_the_array_and_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from reasonknee.collate import intensity

    rng = np.random.default_rng(5)
    for array in (
        rng.gamma(2, 100, (20, 30, 40)).astype(np.uint16),
        rng.normal(0, 90, (7, 8, 9)).astype(np.int16),
        rng.random((4, 4, 4), np.float32),
    ):
        assert tuple(percentile_window(array)) == tuple(
            np.percentile(array, intensity.PERCENTILES, method="inverted_cdf")
        )
    flat = percentile_window(np.full((2, 2, 2), 7, np.uint16))
    assert flat == (7, 8)
    calls = []
    monkeypatch.setattr(intensity, "percentile_window", lambda array: calls.append(array.shape) or flat)
    shape = (3, 4, 5)
    rows = [
        {**made(0, np.full(shape, 7, np.uint16), Box.whole(shape), None, shape), "id": f"v0:{n}"}
        for n in range(4)
    ]
    collator = Collator(window="percentile", require_box=False)
    collator(rows)
    collator(rows)
    assert calls == [shape]


def test_windows_by_volume() -> None:
    rows = [
        made(n, np.full((2, 2, 2), 50, np.uint16), Box.whole((2, 2, 2)), None, (2, 2, 2)) for n in range(2)
    ]
    batch = Collator(window={"v0": (0, 100), "v1": (40, 60)}, require_box=False)(rows)
    assert batch.volumes[:, 0, 0, 0, 0].tolist() == [0.5, 0.5]
    assert Collator(window=None, require_box=False)(rows).volumes.unique().tolist() == [50]
    with pytest.raises(ReasonKneeError, match=r"G002.*v1"):
        Collator(window={"v0": (0, 100)}, require_box=False)(rows)


# --- rows of a release ------------------------------------------------------------------------------------------------------------


def test_rows_of_a_release_in_all_their_forms(release: Path, boxed: list[dict[str, Any]]) -> None:
    import datasets

    rows = boxed[:6]
    from_bytes = Collator()(rows)
    arrays = [{**row, "volume": volume_from_bytes(row["volume"]["bytes"]).array} for row in rows]
    table = datasets.load_dataset(
        "parquet", data_files=str(release / "cropped" / "train-*.parquet"), split="train"
    ).cast_column("volume", datasets.Nifti())
    by_id = {row_id: n for n, row_id in enumerate(table["id"])}
    decoded = [table[by_id[row["id"]]] for row in rows]
    assert hasattr(decoded[0]["volume"], "dataobj")
    for other in (Collator()(arrays), Collator()(decoded)):
        assert torch.equal(from_bytes.volumes, other.volumes)
        assert torch.equal(from_bytes.boxes, other.boxes)
        assert from_bytes.ids == other.ids


def test_quintuples_on_one_volume_share_its_tensor(boxed: list[dict[str, Any]]) -> None:
    apart, shared = Collator()(boxed[:40]), Collator(share=True)(boxed[:40])
    assert len(shared.volumes) < len(apart.volumes) == 40
    assert torch.equal(shared.volumes[shared.volume_index], apart.volumes)
    assert torch.equal(shared.mask[shared.volume_index], apart.mask)
    assert torch.equal(shared.boxes, apart.boxes)
    assert shared.ids == apart.ids


def test_rows_without_a_box(cropped: list[dict[str, Any]]) -> None:
    rows = [next(row for row in cropped if row["box"]), next(row for row in cropped if not row["box"])]
    with pytest.raises(ReasonKneeError, match=f"G018: no box: {rows[1]['id']}"):
        Collator()(rows)
    batch = Collator(require_box=False, frames=3)(rows)
    assert batch.box_mask.tolist() == [True, False]
    assert batch.mask.flatten(1).any(1).tolist() == [True, False]
    assert not batch.volumes[1].any()
    assert [f is None for f in batch.frames or []] == [False, True]
    alone = Collator(require_box=False)(rows[1:])
    assert alone.volumes.shape == (1, 1, 1, 1, 1)


def test_embeddings_and_bare_annotations(release: Path) -> None:
    (row, *_) = rows_of(release, "embeddings")
    packed = row.pop("embedding")
    array = np.frombuffer(packed["bytes"], np.float16).reshape(packed["tokens"], packed["width"])
    quintuples = [
        {**row, **q, "embedding": array, "embedding_dtype": "float16"} for q in row.pop("quintuples")[:3]
    ]
    batch = Collator(share=True)(quintuples)
    assert batch.volumes is None
    assert batch.mask is None
    assert np.array_equal(batch.embeddings[batch.volume_index][2].numpy(), array)
    assert [b and b.as_dict() for b in batch.voxel_boxes(batch.boxes)] == [q["box"] for q in quintuples]
    bits = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    brain = [
        {
            **quintuples[0],
            "embedding": bits.view(torch.int16).numpy().view(np.uint16),
            "embedding_dtype": "bfloat16",
        }
    ]
    assert torch.equal(Collator()(brain).embeddings[0], bits)
    with pytest.raises(ReasonKneeError, match="G022"):
        Collator(mirror_left=True)(quintuples)
    with pytest.raises(ReasonKneeError, match="G051"):
        Collator()([quintuples[0], {**quintuples[1], "embedding": array[:5]}])
    text = Collator(require_box=False)(rows_of(release, "annotations")[:5])
    assert text.embeddings is None
    assert text.volumes is None
    assert len(text.reasoning) == 5


def test_frames_show_the_slices_they_name(boxed: list[dict[str, Any]]) -> None:
    row = max((r for r in boxed if r["side"] == "left"), key=lambda r: r["crop"]["z1"] - r["crop"]["z0"])
    array, start = volume_from_bytes(row["volume"]["bytes"]).array, row["crop"]["z0"]
    for count, mirror in ((None, False), (3, False), (3, True), (999, False)):
        clip = frames(row, count, mirror_left=mirror)
        assert clip.pixels.dtype == np.uint8
        assert clip.pixels.shape == (len(clip.indices), *array.shape[1:], 3)
        assert len(clip.indices) == min(count or 999, len(array))
        assert (clip.indices[0], clip.indices[-1]) == (
            (start + len(array) - 1, start) if mirror else (start, start + len(array) - 1)
        )
        for picture, index in zip(clip.pixels, clip.indices, strict=True):
            assert np.array_equal(
                picture[..., 1],
                np.round(np.clip(array[index - start].astype(np.float32), 0, 400) / np.float32(400) * 255),
            )
    assert frames(row, 1).indices == [start + len(array) // 2]
    with pytest.raises(ReasonKneeError, match="G020"):
        frames(row, 0)
    (batched,) = Collator(frames=3)([row]).frames or ()
    assert np.array_equal(batched.pixels, frames(row, 3).pixels)


class ByteTokenizer:
    """As small as a Hugging Face tokenizer can be: a byte is a token, <bos> in front unless told otherwise."""

    pad_token_id, bos_token_id, eos_token_id = 0, 1, 2

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [self.bos_token_id] * add_special_tokens + [b + 3 for b in text.encode()]}


def test_the_loss_is_on_the_completion(boxed: list[dict[str, Any]]) -> None:
    rows = boxed[:5]
    batch = Collator(tokenizer=ByteTokenizer(), wording="instruction")(rows)
    for row, ids, attention, labels in zip(
        rows, batch.input_ids.tolist(), batch.attention_mask.tolist(), batch.labels.tolist(), strict=True
    ):
        n = sum(attention)
        assert attention == [1] * n + [0] * (len(ids) - n)
        told = [t for t in labels if t != IGNORED]
        assert ids[n - len(told) : n] == told
        assert set(labels[: n - len(told)] + labels[n:]) <= {IGNORED}
        assert bytes(t - 3 for t in ids[1 : n - len(told)]).decode() == row["question"]["instruction"] + "\n"
        text = bytes(t - 3 for t in told[:-1]).decode()
        assert told[-1] == ByteTokenizer.eos_token_id
        assert text == completion(row)
        answer = answers.read(question(row["question_id"]), text)
        assert answer.status == "parsed"
        assert answer.grades == {k: v for k, v in row["grades"].items() if v is not None}
        assert answer.box == Box.from_dict(row["box"])


# --- the loader -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_batch_lasts_as_long_as_anything_refers_to_it(release: Path, workers: int) -> None:
    """Batches, slices of them and arrays on them are held for a while, at random, over several passes, one of which is cut short."""
    rows = quintuples(release, "cropped", boxed=True, seed=4, batch_size=4)
    wanted = {tuple(b.ids): b.volumes.clone() for b in loader(rows, Collator(), 4)}
    rng, held, places, count = np.random.default_rng(workers), [], set(), 0
    batches = loader(rows, Collator(), 4, workers=workers)
    for stop in (1000, 7, 1000):
        for n, batch in enumerate(batches):
            part = (slice(None), slice(0, 1), slice(1, None, 2))[rng.integers(3)]
            kept = batch.volumes[part]
            held.append((kept.numpy() if rng.integers(2) else kept, wanted[tuple(batch.ids)][part]))
            places.add(batch.volumes.data_ptr())
            count += 1
            del batch, kept
            for _ in range(rng.integers(3)):
                if held:
                    value, right = held.pop(rng.integers(len(held)))
                    assert np.array_equal(np.asarray(value), right.numpy())
            if n == stop:
                break
    assert all(np.array_equal(np.asarray(value), right.numpy()) for value, right in held)
    assert len(places) < count / 2


SPAWNED = """
import sys
import torch
from reasonknee.collate import Collator, loader
from reasonknee.stream import quintuples

if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    rows = quintuples(sys.argv[1], "cropped", boxed=True, seed=4, questions=["acl", "pcl"])
    wanted = [b.volumes.clone() for b in loader(rows, Collator(), 4)]
    batches = loader(rows, Collator(), 4, processes=1)
    for epoch in range(2):
        given = list(batches)
        assert len(given) == len(wanted) > 3
        assert all(torch.equal(a.volumes, b) for a, b in zip(given, wanted))
    print("same")
"""


def test_workers_that_are_spawned(release: Path, tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    done = run(tmp_path / "spawned.py", release)
    assert (done.returncode, done.stdout.strip()) == (0, "same"), done.stderr


class FailsOnce(Collator):
    failed = False

    def __call__(self, items: Any) -> Batch:
        batch = super().__call__(items)
        if not self.failed:
            self.failed = True
            raise DataError("G999", "after the memory was taken", "look")
        return batch


@pytest.mark.parametrize("how", [{"workers": 0}, {"workers": 2}, {"processes": 2}])
def test_an_error_beside_the_loop_is_told_and_the_next_pass_is_whole(
    release: Path, how: dict[str, int]
) -> None:
    rows = quintuples(release, "cropped", boxed=True, seed=4, batch_size=4)
    wanted = [b.volumes.clone() for b in loader(rows, Collator(), 4)]
    collator = FailsOnce()
    batches = loader(rows, collator, 4, **how)
    with pytest.raises(DataError, match=r"^G999: after the memory was taken \(look\)$") as told:
        list(batches)
    assert told.value.code == "G999"
    collator.failed = True  # new processes are started with this
    given = list(batches)
    assert len(given) == len(wanted)
    assert all(torch.equal(a.volumes, b) for a, b in zip(given, wanted, strict=True))


def test_a_pass_that_is_left_leaves_no_thread_behind(release: Path) -> None:
    import threading

    rows = quintuples(release, "cropped", boxed=True, seed=4)
    before = set(threading.enumerate())
    running = iter(loader(rows, Collator(), 4, workers=3))
    next(running)
    assert set(threading.enumerate()) - before
    running.close()
    assert not set(threading.enumerate()) - before


def test_readers_use_one_thread_of_torch_each_and_leave_the_loop_its_own(release: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    usual, seen = torch.get_num_threads(), set()
    torch.set_num_threads(3)

    def collate(rows: list[Any]) -> int:
        seen.add(torch.get_num_threads())
        return len(rows)

    try:
        assert sum(loader(quintuples(release, "cropped", boxed=True, seed=4), collate, 4))
        assert (seen, torch.get_num_threads()) == ({1}, 3)
        with ThreadPoolExecutor(1) as later:  # nor does a thread that begins afterwards lose any
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(usual)


def test_a_pass_may_be_collected_in_one_of_its_own_threads() -> None:
    """The collector runs in whatever thread allocates; that one cannot wait for itself to end."""
    import threading

    held: list[Any] = []
    given, ended = threading.Event(), threading.Event()

    def collated(items: list[int]) -> list[int]:
        if items == [1]:
            given.wait(10)
            held.pop().close()
            ended.set()
        return items

    batches = loader([0, 1, 2, 3], collated, 1, workers=1)
    running = batches._by_threads(batches.rows.reading())
    next(running)
    held.append(running)
    del running
    given.set()
    assert ended.wait(10), "closing it raised in its thread"


@pytest.mark.parametrize("how", [{"workers": 0}, {"workers": 2}, {"processes": 2}])
def test_a_loaded_position_reaches_the_workers(release: Path, how: dict[str, int]) -> None:
    rows = quintuples(release, "cropped", boxed=True, seed=4, batch_size=4)
    batches = loader(rows, Collator(), 4, **how)
    every = [b.ids for b in batches]
    states = [batches.state_dict() for _ in zip(batches, range(5), strict=False)]
    for load in (batches.load_state_dict, rows.load_state_dict):
        load(states[4])
        assert [b.ids for b in batches] == every[5:]
        assert [b.ids for b in batches] == every


@pytest.mark.parametrize("workers", ["2", -1, 1.0, True])
def test_workers_are_a_whole_number(release: Path, workers: Any) -> None:
    with pytest.raises(UsageError, match="G067"):
        loader(quintuples(release, "cropped", batch_size=4), Collator(), 4, workers=workers)


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_of_a_loader(release: Path, drop_last: bool) -> None:
    rows = quintuples(release, "cropped", boxed=True, batch_size=5, questions=["acl", "pcl"])
    batches = loader(rows, Collator(), 5, workers=1, drop_last=drop_last)
    assert len(batches) == len(list(batches)) == len(rows) // 5 + (not drop_last and len(rows) % 5 > 0)


def test_two_passes_side_by_side_do_not_share_memory(release: Path) -> None:
    rows = quintuples(release, "cropped", boxed=True, seed=4, batch_size=4)
    wanted = [b.volumes.clone() for b in loader(rows, Collator(), 4)]
    batches = loader(rows, Collator(), 4, workers=1)
    for a, b, right in zip(batches, batches, wanted, strict=True):
        assert torch.equal(a.volumes, right)
        assert torch.equal(b.volumes, right)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mirror", [False, True])
def test_voxels_that_come_again_are_the_same(release: Path, dtype: str, mirror: bool) -> None:
    """Whole volumes, whose scaled voxels are kept from the fourth question on, against each one scaled alone."""
    collator = Collator(dtype=dtype, require_box=False, mirror_left=mirror)
    some = quintuples(
        release, "full", seed=1, pool=2, lanes=1, patients="1000002", questions=list(QUESTIONS)[:12]
    )
    for n, row in enumerate(some):
        batch = collator([row])
        if n % 7 == 0:
            alone = Collator(dtype=dtype, require_box=False, mirror_left=mirror)(
                [{**row, "volume": row["volume"].copy()}]
            )
            assert torch.equal(batch.volumes, alone.volumes)


@pytest.mark.parametrize("how", [{"workers": 0}, {"workers": 1}, {"workers": 3}, {"processes": 2}])
def test_the_loader_gives_what_the_collator_gives(boxed: list[dict[str, Any]], how: dict[str, int]) -> None:
    rows = boxed[:22]
    batches = loader(rows, Collator(grid=(16, 48, 48)), 4, device="cpu", **how)
    plain = Collator(grid=(16, 48, 48))
    for _ in range(2):  # each pass is whole
        seen = 0
        for batch in batches:
            expected = plain(rows[seen : seen + len(batch)])
            assert batch.ids == expected.ids
            assert torch.equal(batch.volumes, expected.volumes)
            assert batch.places == expected.places
            seen += len(batch)
        assert seen == 22


def test_the_loader_takes_ready_lists_and_iterables(boxed: list[dict[str, Any]]) -> None:
    rows = boxed[:30]
    lists = list(bucket_by_shape(rows, 4))
    sizes = [len(batch) for batch in loader(lists, Collator(fit="native"), workers=1)]
    assert sizes == [len(part) for part in lists]
    assert [len(b) for b in loader(iter(rows[:9]), Collator(), 4)] == [4, 4, 1]
    assert [len(b) for b in loader(iter(rows[:9]), Collator(), 4, drop_last=True)] == [4, 4]
    once = loader(iter(rows), Collator(), 10)
    assert len(list(once)) == 3
    with pytest.raises(ReasonKneeError, match="G065"):
        list(once)
    with pytest.raises(ReasonKneeError, match="G061"):
        loader(iter(rows), Collator(), 4, processes=1)


@pytest.mark.parametrize("how", [{"workers": 0}, {"workers": 2}, {"processes": 2}])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_loader_goes_on_after_the_batch_it_gave_last(
    release: Path, how: dict[str, int], device: str | None
) -> None:
    def fresh() -> Loader:
        stream = quintuples(
            release, "cropped", questions=["acl", "pcl", "hoffa_synovitis"], boxed=True, seed=4, batch_size=3
        )
        return loader(stream, Collator(), 3, device=device, **how)

    whole = fresh()
    whole.set_epoch(1)
    order = [batch.ids for batch in whole]
    assert len(order) > 6
    place, seen = fresh(), []
    place.set_epoch(1)
    for stop in (2, 3, 99):  # a stop, a stop in the pass that resumed, and on to the end
        for n, batch in enumerate(place, start=1):
            seen.append(batch.ids)
            if n == stop:
                break
        state = place.state_dict()
        place = fresh()
        place.load_state_dict(state)
    assert seen == order
    assert list(place) == []


def test_what_a_loader_cannot_keep_in_order_is_refused(release: Path, boxed: list[dict[str, Any]]) -> None:
    with pytest.raises(ReasonKneeError, match="G066"):
        loader(quintuples(release, "cropped", batch_size=3), Collator(), 4, workers=2)
    with pytest.raises(ReasonKneeError, match="G064"):
        loader(boxed, Collator(), 2).state_dict()


def test_streams_of_whole_volumes(release: Path) -> None:
    """All questions of a volume on one tensor; cut regions equal the stored crops; with few columns there is less text, and no error."""
    (one,) = Collator(require_box=False)([next(iter(volumes(release, "full")))]).volumes
    items = list(volumes(release, "full", questions="paper62", boxed=True))[:2]
    batch = next(iter(loader(items, Collator(dtype="bfloat16"), 2)))
    assert batch.volumes.shape == (2, 1, 16, 48, 48)
    assert torch.equal(batch.volumes[0], one.bfloat16())
    assert batch.ids == [q["id"] for item in items for q in item["quintuples"]]
    assert [batch.volume_ids[i] for i, v in enumerate(batch.volume_index.tolist()) if v == 1] == [
        q["volume_id"] for q in items[1]["quintuples"]
    ]
    assert batch.voxel_boxes(batch.boxes) == [
        Box.from_dict(q["box"]) for item in items for q in item["quintuples"]
    ]
    with pytest.raises(ReasonKneeError, match="G016"):
        Collator()([items[0], items[1]["quintuples"][0]])
    cut = Collator()(list(quintuples(release, "full", boxed=True, cut_regions=True, margin_mm=3.0))[:20])
    stored = Collator()(list(quintuples(release, "cropped", boxed=True))[:20])
    assert cut.ids == stored.ids
    assert torch.equal(cut.volumes, stored.volumes)
    assert torch.equal(cut.boxes, stored.boxes)
    few = Collator()(list(quintuples(release, "cropped", boxed=True, columns=["volume", "grades"]))[:20])
    assert few.reasoning == [[]] * 20
    assert torch.equal(few.grades, stored.grades)
    assert few.voxel_boxes(few.boxes) == stored.voxel_boxes(stored.boxes)
    with pytest.raises(ReasonKneeError, match=r"G040.*zero_shot"):
        Collator(tokenizer=ByteTokenizer())(
            list(quintuples(release, "cropped", boxed=True, columns=["volume"]))[:1]
        )
    with pytest.raises(ReasonKneeError, match=r"G013.*'grades'"):
        Collator(tokenizer=ByteTokenizer())(
            list(quintuples(release, "cropped", boxed=True, columns=["volume", "question"]))[:1]
        )
    bare = Collator(require_box=False)(
        list(quintuples(release, "cropped", boxed=True, columns=["grades"]))[:20]
    )
    assert torch.equal(bare.grades, stored.grades)


def test_a_batch_moves_as_one(boxed: list[dict[str, Any]]) -> None:
    batch = Collator()(boxed[:2])
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert set(moved.tensors()) == {
        "boxes",
        "box_mask",
        "grades",
        "grade_mask",
        "volume_index",
        "volumes",
        "sizes",
    }
    assert {t.device.type for t in moved.tensors().values()} == {"meta"}
    assert batch.volumes.device.type == "cpu"
    if not torch.accelerator.is_available():
        assert batch.pin_memory() is batch


def test_a_batch_is_a_good_citizen(boxed: list[dict[str, Any]]) -> None:
    import pickle

    batch = Collator()(boxed[:5])
    assert dict(batch) == batch.tensors()
    assert (lambda **tensors: set(tensors))(**batch) == set(batch.keys()) == set(batch)
    assert batch["boxes"] is batch.boxes
    assert "boxes" in batch
    assert "labels" not in batch
    assert len(batch) == 5
    assert len(repr(batch)) < 1000
    assert "tensor(" not in repr(batch)
    back = pickle.loads(pickle.dumps(batch))
    assert torch.equal(back.volumes, batch.volumes)
    assert back.places == batch.places
    again = pickle.loads(pickle.dumps(Collator(window="percentile", grid=(16, 48, 48))))
    assert torch.equal(again(boxed[:2]).boxes, batch.boxes[:2])


def test_collator_and_loader_show_themselves_short(release: Path, boxed: list[dict[str, Any]]) -> None:
    collator = Collator(fit="resize", grid=(8, 16, 16), mirror_left=True)
    assert repr(collator) == "Collator: resize to (8, 16, 16), float32, left knees mirrored"
    assert repr(pickle.loads(pickle.dumps(collator))) == repr(collator)
    stream = quintuples(release, "cropped", seed=3)
    assert repr(loader(stream, collator, 4)) == f"Loader of batches of 4 by 2 threads: {stream!r}"
    assert repr(loader(boxed, collator, 4, processes=1)) == "Loader of batches of 4 by 1 processes: list"


@pytest.mark.parametrize("mirror", [False, True])
def test_a_mirrored_label_states_the_mirrored_box_and_slices(
    boxed: list[dict[str, Any]], mirror: bool
) -> None:
    row = next(
        r for r in boxed if r["side"] == "left" and 2 * r["box"]["z0"] != r["shape"]["z"] - r["box"]["z1"]
    )
    batch = Collator(tokenizer=ByteTokenizer(), mirror_left=mirror)([row])
    text = bytes(t - 3 for t in batch.labels[0].tolist() if t > 2).decode()
    box, slices = Box.from_dict(row["box"]), row["shape"]["z"]
    wanted = box.mirrored(slices) if mirror else box
    assert answers.read(question(row["question_id"]), text).box == wanted
    assert f"slices {wanted.z0} to {wanted.z1 - 1}" in text
    assert (f"slices {box.z0} to {box.z1 - 1}" in text) == (not mirror or wanted == box)


# --- wrong input ------------------------------------------------------------------------------------------------------------------


def test_wrong_rows_are_named(release: Path, boxed: list[dict[str, Any]]) -> None:
    row = boxed[0]
    array = volume_from_bytes(row["volume"]["bytes"]).array
    full = rows_of(release, "full")[0]
    bare = {k: v for k, v in row.items() if k != "volume"}
    elsewhere = Box(0, 1, 0, 1, 0, 1)
    cases: list[tuple[str, Any]] = [
        ("G014.*reasonknee.stream", [full]),
        ("G014.*reasonknee.stream", [row, full]),
        ("G015", []),
        ("G015.*list", row),
        ("G016.*text and some with volume", [row, bare]),
        ("G011.*no bytes", [{**row, "volume": {"bytes": None, "path": "a.nii"}}]),
        ("G011.*Tensor", [{**row, "volume": torch.zeros(2, 2, 2)}]),
        ("G012", [{**row, "volume": array[1:]}]),
        ("G012", [{**row, "crop": None}]),
        ("G013.*'shape'", [{**row, "crop": None, "shape": None}]),
        ("G013.*'side'", [{k: v for k, v in row.items() if k != "side"}]),
        ("B002", [{**row, "crop": elsewhere.as_dict(), "volume": array[:1, :1, :1]}]),
        ("V007", [{**row, "volume": {"bytes": row["volume"]["bytes"][:-2], "path": None}}]),
    ]
    for message, rows in cases:
        with pytest.raises(ReasonKneeError, match=message) as raised:
            Collator(mirror_left=True)(rows)
        if message[:2] in ("B0", "V0") or message[:4] in ("G011", "G012", "G013"):
            assert row["id"] in str(raised.value)


def test_a_crop_larger_than_the_grid_is_refused(boxed: list[dict[str, Any]]) -> None:
    z, y, x = shape_of(boxed[0]) or (0, 0, 0)
    assert Collator(grid=(z, y, x))(boxed[:1]).mask.all()
    with pytest.raises(ReasonKneeError, match=f"G031: {boxed[0]['id']}"):
        Collator(grid=(z, y, x - 1))(boxed[:1])
    other = next(row for row in boxed if shape_of(row) != (z, y, x))
    with pytest.raises(ReasonKneeError, match=r"G030.*bucket_by_shape"):
        Collator(fit="native")([boxed[0], other])
    with pytest.raises(ReasonKneeError, match="G010"):
        Collator()(boxed[:2]).to_voxels(torch.zeros(3, 6))
    zero_shot_only = {**boxed[0], "question": {"zero_shot": "a", "instruction": None}}
    with pytest.raises(ReasonKneeError, match="G040"):
        Collator(tokenizer=ByteTokenizer(), wording="instruction")([zero_shot_only])


@pytest.mark.parametrize(
    ("code", "options"),
    [
        ("G020", {"fit": "stretch"}),
        ("G020", {"dtype": "float64"}),
        ("G020", {"frames": 0}),
        ("G021", {"fit": "resize"}),
        ("G021", {"fit": "native", "grid": (1, 2, 3)}),
        ("G021", {"grid": (0, 2, 3)}),
        ("G001", {"window": "lung"}),
        ("G001", {"window": (400, 0)}),
        ("G001", {"window": (1, 2, 3)}),
        ("G001", {"window": 400}),
    ],
)
def test_wrong_options_are_named(code: str, options: dict[str, Any]) -> None:
    with pytest.raises(ReasonKneeError, match=code):
        Collator(**options)


def test_the_code_in_the_document_runs(release: Path, tmp_path: Path) -> None:
    (tmp_path / "rajpurkarlab").mkdir()
    (tmp_path / "rajpurkarlab" / "3DReasonKnee").symlink_to(release)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "collate.md").read_text(), flags=re.S)
    (tmp_path / "document.py").write_text(
        "\n".join([*blocks, "print(len(windows), saved['start'], len(batch))"])
    )
    done = run(tmp_path / "document.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    windows, start, _ = map(int, done.stdout.split())
    assert windows == len(rows_of(release, "full"))
    assert start == 4


def test_importing_needs_no_torch() -> None:
    code = "import sys, reasonknee.collate, reasonknee.collate.batch, reasonknee.collate.loading; print('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "False"
    )


# --- without torch ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    ["loader(rows, Collator(), 4, workers=2)", "Collator()(list(rows)[:2])", "frames(next(iter(rows)))"],
)
def test_without_torch_the_error_says_what_to_install(release: Path, call: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
from reasonknee.collate import Collator, frames, loader
from reasonknee.errors import UsageError
from reasonknee.stream import quintuples
rows = quintuples({str(release)!r}, "cropped", boxed=True, seed=0, batch_size=4)
assert len(list(rows)) == len(rows)  # rows need no torch
try:
    {call}
except UsageError as error:
    print(error)
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told == "G070: batches of tensors need torch (pip install 'reasonknee[torch]')\n"
