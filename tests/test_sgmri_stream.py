"""Questions of a release of SGMRI-VQA as a stream and as batches: every one once, resumed exactly, boxes that map back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reasonknee.errors import DataError, UsageError
from reasonknee.sgmri.records import read_records
from reasonknee.sgmri.stream import questions, scans

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("config", ["qa", "slices", "volumes"])
def test_every_question_comes_once_an_epoch_and_with_its_pixels(sgmri: Path, config: str) -> None:
    known = {r.id: r for r in read_records(sgmri / "qa/qa.jsonl") if r.split == "train"}
    wanted = [i for i, r in known.items() if config != "slices" or r.level == "slice"]
    stream = questions(sgmri / "release", config, seed=3)
    rows = list(stream)
    assert sorted(r["id"] for r in rows) == sorted(wanted)
    stream.set_epoch(1)
    again = [r["id"] for r in stream]
    assert sorted(again) == sorted(wanted)
    assert again != [r["id"] for r in rows]
    for row in rows:
        if config == "qa":
            assert "image" not in row
            continue
        shape = known[row["id"]].shape
        assert shape is not None
        assert row["image"].shape == ((1 if config == "slices" else shape[0]), *shape[1:])
        assert row["start"] == ((row["frame"] or 0) if config == "slices" else 0)


def test_a_slice_is_the_frame_of_its_volume_and_a_selection_narrows(sgmri: Path) -> None:
    whole = {item["volume_id"]: item for item in scans(sgmri / "release")}
    chosen = list(questions(sgmri / "release", "slices", tasks="localization", anatomies=["knee"]))
    assert {(r["task"], r["anatomy"]) for r in chosen} == {("localization", "knee")}
    for row in chosen:
        assert np.array_equal(row["image"][0], whole[row["volume_id"]]["image"][row["frame"]])
    for item in whole.values():
        assert "image" not in item["questions"][0]


def test_a_stream_goes_on_where_it_stood(sgmri: Path) -> None:
    from reasonknee.collate import loader
    from reasonknee.sgmri.batches import FrameCollator

    def batches() -> object:
        return loader(questions(sgmri / "release", "slices", seed=0), FrameCollator(32), 4)

    whole = [b.ids for b in batches()]  # type: ignore[attr-defined]
    first = batches()
    for n, batch in enumerate(first):  # type: ignore[var-annotated, arg-type]
        assert batch.ids == whole[n]
        if n == 2:
            state = first.state_dict()  # type: ignore[attr-defined]
            break
    later = batches()
    later.load_state_dict(state)  # type: ignore[attr-defined]
    assert [b.ids for b in later] == whole[3:]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("config", "size"), [("slices", None), ("slices", 160), ("volumes", 64), ("volumes", None)]
)
def test_boxes_of_a_batch_map_back_to_the_stored_image(sgmri: Path, config: str, size: int | None) -> None:
    from reasonknee.sgmri.batches import FrameCollator

    rows = list(questions(sgmri / "release", config, tasks="localization"))[:6]
    batch = FrameCollator(size)(rows)
    assert batch.images.shape[0] == len(rows)
    assert 0.5 < float(batch.images.max()) <= 1
    true = [(n, *b.values()) for n, r in enumerate(rows) for f in r["findings"] for b in f["boxes"]]
    assert len(true) == len(batch.boxes) > 0
    assert [
        (n, *box) for n, box in zip(batch.item.tolist(), batch.stored(batch.boxes, batch.item), strict=True)
    ] == true
    for n, (frame, *_) in zip(batch.item.tolist(), batch.boxes.tolist(), strict=True):
        assert 0 <= frame < batch.frames[n]


def test_what_cannot_be_streamed_is_refused(sgmri: Path) -> None:
    from reasonknee.sgmri.batches import FrameCollator

    release = sgmri / "release"
    for options, code in (
        ({"tasks": "guessing"}, "Z050"),
        ({"levels": "volume"}, "Z051"),
        ({"config": "full"}, "Z052"),
    ):
        with pytest.raises(UsageError, match=code):
            questions(release, **{"config": "slices", **options})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Z054"):
        FrameCollator(4)
    with pytest.raises(UsageError, match="Z055"):
        FrameCollator()(list(questions(release, "qa"))[:1])
    with pytest.raises(DataError, match="Z040"):
        questions(sgmri / "scans")


def test_pixels_that_are_not_as_many_as_the_row_says_are_refused() -> None:
    from reasonknee.sgmri.stream import _image

    with pytest.raises(DataError, match="Z053"):
        _image({"volume_id": "file9000001", "image": {"frames": 2, "height": 4, "width": 4}}, bytes(31))
