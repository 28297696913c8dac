"""The stream: an order that the seed alone fixes, shared out without loss or overlap, resumed exactly; the same quintuples from every source."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.layout import SPLITS, Manifest, read_manifest
from reasonknee.questions import QUESTIONS, question_set
from reasonknee.stream import MapView, Stream, explode, pairs, quintuples, volumes
from reasonknee.stream.order import Mix, Part, Position, epoch_order, merged, places
from reasonknee.stream.served import Row

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

# --- the order, as arithmetic -----------------------------------------------------------------------------------------------------

COUNTS = st.lists(st.integers(0, 12), min_size=1, max_size=40).filter(any).map(np.array)
MIXES = st.builds(
    lambda lanes, depth, batch: Mix(lanes, lanes * depth, batch),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
)
SEEDS = st.none() | st.integers(-(2**70), 2**70)


def loader_order(
    length: int, batch: int, at: Position, rank: int, ranks: int, workers: int, even: Any = None
) -> list[int]:
    """What a DataLoader of a rank sees: one batch of each worker in turn, those that have ended left out."""
    served = [places(length, Part(rank, ranks, w, workers), batch, at, even).tolist() for w in range(workers)]
    queues = [[mine[i : i + batch] for i in range(0, len(mine), batch)] for mine in served]
    seen: list[int] = []
    while any(queues):
        for queue in queues:
            if queue:
                seen += queue.pop(0)
    return seen


@given(counts=COUNTS, seed=SEEDS, epoch=st.integers(0, 1000), mix=MIXES)
def test_every_element_comes_once_and_the_pool_is_never_exceeded(
    counts: np.ndarray, seed: int | None, epoch: int, mix: Mix
) -> None:
    order = epoch_order(counts, seed, epoch, mix)
    assert sorted(order.tolist()) == list(range(counts.sum()))
    assert (order == epoch_order(counts, seed, epoch, mix)).all()
    assert open_at_once(counts, order) <= (mix.pool if seed is not None else 1)


def open_at_once(counts: np.ndarray, elements: np.ndarray) -> int:
    groups = np.searchsorted(np.cumsum(counts), elements, side="right")
    spans = [np.flatnonzero(groups == g)[[0, -1]] for g in set(groups.tolist())]
    return max((sum(a <= i <= b for a, b in spans) for i in range(len(groups))), default=0)


@given(
    counts=COUNTS,
    seed=SEEDS,
    mix=MIXES,
    ranks=st.integers(1, 5),
    workers=st.integers(1, 5),
    even=st.sampled_from([None, "pad", "drop"]),
)
def test_ranks_share_without_overlap_and_see_the_same_for_any_number_of_workers(
    counts: np.ndarray, seed: int | None, mix: Mix, ranks: int, workers: int, even: Any
) -> None:
    total = int(counts.sum())
    seen = [loader_order(total, mix.batch, Position(), r, ranks, workers, even) for r in range(ranks)]
    assert seen == [loader_order(total, mix.batch, Position(), r, ranks, 1, even) for r in range(ranks)]
    everything = sorted(i for one in seen for i in one)
    if even is None:
        assert everything == list(range(total))
    else:
        assert len({len(one) for one in seen}) == 1
        assert abs(len(everything) - total) < ranks * mix.batch
        assert (
            set(everything) == set(range(total)) if even == "pad" else len(set(everything)) == len(everything)
        )


@given(
    total=st.integers(1, 90),
    batch=st.integers(1, 5),
    ranks=st.integers(1, 4),
    workers=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    data=st.data(),
)
def test_going_on_loses_nothing_and_repeats_nothing(
    total: int, batch: int, ranks: int, workers: tuple[int, int], data: st.DataObject
) -> None:
    for rank in range(ranks):
        whole = loader_order(total, batch, Position(), rank, ranks, 1)
        stop = data.draw(st.integers(0, len(whole)))
        seen = loader_order(total, batch, Position(), rank, ranks, workers[0])[:stop]
        assert seen + loader_order(total, batch, Position(0, stop), rank, ranks, workers[1]) == whole
        by_worker = [
            len(set(seen) & set(places(total, Part(rank, ranks, w, workers[0]), batch).tolist()))
            for w in range(workers[0])
        ]
        assert merged(by_worker, batch) == stop


@given(
    total=st.integers(1, 90),
    batch=st.integers(1, 5),
    ranks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    steps=st.integers(0, 30),
)
def test_another_number_of_ranks_goes_on_between_batches(
    total: int, batch: int, ranks: tuple[int, int], steps: int
) -> None:
    steps = min(steps, total // (batch * ranks[0]))
    before = [
        i
        for r in range(ranks[0])
        for i in loader_order(total, batch, Position(), r, ranks[0], 1)[: steps * batch]
    ]
    after = [
        i
        for r in range(ranks[1])
        for i in loader_order(total, batch, Position(steps * batch * ranks[0]), r, ranks[1], 2)
    ]
    assert sorted(before + after) == list(range(total))


@given(
    counts=st.lists(st.integers(1, 9), min_size=8, max_size=40).map(np.array),
    seed=st.integers(0, 99),
    ranks=st.sampled_from([1, 2, 4]),
)
def test_a_volume_is_opened_by_one_reader_where_lanes_divide(
    counts: np.ndarray, seed: int, ranks: int
) -> None:
    """But for the ends: volumes whose lane ran out before the others."""
    mix = Mix(lanes=4, pool=8, batch=2)
    order = epoch_order(counts, seed, 0, mix)
    owner = np.searchsorted(np.cumsum(counts), order, side="right")
    readers = [set(owner[places(len(order), Part(r, ranks), mix.batch)].tolist()) for r in range(ranks)]
    assert sum(map(len, readers)) <= len(counts) + (ranks - 1) * 2 * mix.pool


def test_epochs_and_seeds_differ_and_the_order_is_pinned() -> None:
    counts, mix = np.full(30, 7), Mix(4, 8, 2)
    orders = [epoch_order(counts, seed, epoch, mix).tolist() for seed in (0, 1, -1) for epoch in (0, 1)]
    assert len({tuple(o) for o in orders}) == len(orders)
    assert epoch_order(np.array([2, 3, 1]), 5, 1, Mix(2, 4, 1)).tolist() == [
        0,
        3,
        1,
        4,
        5,
        2,
    ]  # a change would break everybody's resume


def test_neighbours_in_an_epoch_are_of_different_volumes() -> None:
    counts = np.full(64, 62)
    owner = epoch_order(counts, 0, 0, Mix(8, 16, 4)).reshape(-1, 4) // 62
    assert (
        np.mean([len(set(batch)) for batch in owner.tolist()]) > 1.7
    )  # two volumes of a lane are open at once
    assert np.mean(owner[1:, 0] == owner[:-1, 0]) < 0.05


# --- the same quintuples from every source ----------------------------------------------------------------------------------------


def ids(rows: Iterable[Row]) -> list[str]:
    return [row["id"] for row in rows]


def stored(release: Path, config: str, split: str = "train") -> list[Row]:
    return [
        row
        for path in sorted((release / config).glob(f"{split}-*"))
        for row in pq.read_table(path).to_pylist()
    ]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    return bool(a == b)


def assert_same_rows(ours: Sequence[Row], wanted: Sequence[Row]) -> None:
    assert ids(ours) == ids(wanted)
    for a, b in zip(ours, wanted, strict=True):
        assert list(a) == list(b)
        assert all(same(a[k], b[k]) for k in a), a["id"]


@pytest.fixture(scope="module")
def map_style(release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    import datasets

    cache = tmp_path_factory.mktemp("cache")
    return {
        config: datasets.load_dataset(str(release), config, split="train", cache_dir=str(cache))
        for config in ("cropped", "full", "embeddings", "annotations")
    }


def test_quintuples_of_every_config_are_what_the_release_holds(release: Path) -> None:
    plain = stored(release, "annotations")
    for config in ("annotations", "cropped", "full", "embeddings"):
        rows = list(quintuples(release, config))
        assert [{name: row[name] for name in plain[0]} for row in rows] == plain
    crops = {raw["id"]: raw for raw in stored(release, "cropped")}
    for row in quintuples(release, "cropped"):
        raw = crops[row["id"]]
        if raw["volume"] is None:
            assert row["volume"] is row["crop"] is row["affine"] is None
            continue
        assert row["crop"] == raw["crop"]
        assert row["volume"].tobytes() == raw["volume"]["bytes"][352:]
        assert row["volume"].flags.c_contiguous
        import nibabel

        image = nibabel.Nifti1Image.from_stream(io.BytesIO(raw["volume"]["bytes"]))
        assert np.allclose(row["affine"], image.affine)
        assert (np.asarray(image.dataobj).transpose(2, 1, 0) == row["volume"]).all()


def test_reading_leaves_no_cycles_of_footers_behind(release: Path) -> None:
    """A parsed footer takes megabytes: one that only the collector of cycles can end would let memory grow with every volume."""
    import gc

    for _ in quintuples(release, "cropped"):
        pass
    gc.collect()
    gc.disable()
    try:
        for _ in quintuples(release, "cropped"):
            pass
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        assert sum(type(each).__name__ == "FileMetaData" for each in gc.garbage) <= 1
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_a_volume_is_decoded_once_for_all_its_questions(release: Path) -> None:
    rows = list(quintuples(release, "full"))
    arrays = {row["volume_id"]: row["volume"] for row in rows}
    assert all(row["volume"] is arrays[row["volume_id"]] for row in rows)
    for raw in stored(release, "full"):
        assert arrays[raw["volume_id"]].tobytes() == raw["volume"]["bytes"][352:]
        assert not arrays[raw["volume_id"]].flags.writeable
    assert rows[0]["crop"] == {"z0": 0, "z1": 16, "y0": 0, "y1": 48, "x0": 0, "x1": 48}


def test_regions_cut_out_of_full_are_the_crops_of_the_release(release: Path, manifest: Manifest) -> None:
    cut = list(quintuples(release, "full", cut_regions=True, margin_mm=manifest.margin_mm))
    for ours, theirs in zip(cut, quintuples(release, "cropped"), strict=True):
        assert list(ours) == list(theirs)
        assert all(
            same(ours[k], theirs[k])
            if k != "affine" or ours[k] is None
            else np.allclose(ours[k], theirs[k], atol=1e-4)
            for k in ours
        )
    for wrong in (
        {"margin_mm": 3.0},
        {"cut_regions": True, "margin_mm": -1.0},
        {"cut_regions": True, "config": "cropped"},
    ):
        with pytest.raises(UsageError) as error:
            quintuples(release, **{"config": "full", **wrong})
        assert error.value.code == "D047"


def test_embeddings_keep_their_numbers(release: Path) -> None:
    by_volume = {raw["volume_id"]: raw["embedding"] for raw in stored(release, "embeddings")}
    for row in quintuples(release, "embeddings"):
        raw = by_volume[row["volume_id"]]
        assert row["embedding"].shape == (raw["tokens"], raw["width"])
        assert (row["embedding_dtype"], row["embedding"].dtype.name) in {
            ("float16", "float16"),
            ("bfloat16", "uint16"),
        }
        assert row["embedding_dtype"] == raw["dtype"]
        assert row["embedding"].tobytes() == raw["bytes"]


@pytest.mark.parametrize("config", ["cropped", "full", "embeddings", "annotations"])
def test_a_map_style_dataset_gives_the_same(release: Path, map_style: dict[str, Any], config: str) -> None:
    for options in (
        {},
        {"seed": 4, "batch_size": 3},
        {"categories": "cartilage", "sides": "left", "boxed": True},
    ):
        assert_same_rows(
            list(quintuples(map_style[config], **options)), list(quintuples(release, config, **options))
        )
    shuffled = map_style[config].shuffle(seed=1)  # with an indices mapping
    assert sorted(ids(quintuples(shuffled))) == sorted(ids(quintuples(release, config)))
    with pytest.raises(UsageError, match="D026"):
        quintuples(map_style[config], "cropped" if config != "cropped" else "full")


def test_a_row_that_is_there_twice_is_refused(map_style: dict[str, Any]) -> None:
    """One of the two used to come twice, and the other never."""
    with pytest.raises(DataError, match="D056"):
        quintuples(map_style["annotations"].select([0, 1, 1]))


def test_rows_that_come_one_by_one(release: Path, map_style: dict[str, Any]) -> None:
    import datasets

    for config in ("cropped", "full", "embeddings", "annotations"):
        rows = map_style[config].to_iterable_dataset()
        with pytest.raises(UsageError, match="D020"):
            quintuples(rows)
        if "volume" in map_style[config].features:
            with pytest.raises(UsageError, match="D013"):
                next(explode(rows))
            rows = rows.cast_column("volume", datasets.Nifti(decode=False))
        one_by_one = {row["id"]: row for row in explode(rows)}
        assert list(one_by_one) == [
            q["id"] for row in stored(release, config) for q in row.get("quintuples", [row])
        ]
        wanted = list(quintuples(release, config))
        assert_same_rows([one_by_one.pop(row["id"]) for row in wanted], wanted)
        assert not one_by_one


# --- selecting --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["cropped", "full", "annotations"])
@pytest.mark.parametrize(
    ("options", "keeps"),
    [
        ({"questions": "paper62"}, lambda r: r["question_id"] in {q.id for q in question_set("paper62")}),
        (
            {"questions": ["acl", 3]},
            lambda r: (
                r["question_id"] in {"acl", next(q.id for q in QUESTIONS.values() if q.upstream_id == 3)}
            ),
        ),
        ({"questions": "acl", "sides": "left"}, lambda r: (r["question_id"], r["side"]) == ("acl", "left")),
        (
            {"categories": ["cartilage"], "visits": ["36m", "12m"]},
            lambda r: r["category"] == "cartilage" and r["visit"] in ("36m", "12m"),
        ),
        (
            {"regions": "patella_medial", "patients": ["1000002", "01000003"]},
            lambda r: r["region"] == "patella_medial" and r["patient"] in ("1000002", "1000003"),
        ),
        ({"boxed": True}, lambda r: r["box"] is not None),
    ],
)
def test_filters_keep_what_they_name(release: Path, config: str, options: Row, keeps: Any) -> None:
    wanted = [row["id"] for row in stored(release, "annotations") if keeps(row)]
    assert wanted
    assert ids(quintuples(release, config, **options)) == wanted
    assert sorted(ids(quintuples(release, config, seed=0, **options))) == sorted(wanted)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"questions": "paper63"}, "Q002"),
        ({"questions": ["no"]}, "Q001"),
        ({"categories": "cartilige"}, "D005"),
        ({"regions": ["acl", "nowhere"]}, "D005"),
        ({"sides": "both"}, "D005"),
        ({"patients": "x"}, "P001"),
        ({"categories": "cartilage", "regions": "acl"}, "D004"),
        ({"visits": "99m"}, "D005"),
        ({"visits": ["00m", "12"]}, "D005"),
        ({"patients": "1999999"}, "D005"),
        *(
            ({name: value}, "D008")
            for name in ("categories", "regions", "sides", "visits", "patients")
            for value in (12, True, ["left", None])
        ),
        ({"columns": ["volumes"]}, "D022"),
        ({"config": "croped"}, "C001"),
        ({"split": "training"}, "D021"),
        ({"lanes": 8, "pool": 4}, "D001"),
        ({"rank": 2, "world_size": 2}, "D002"),
        ({"even": "yes"}, "D006"),
        *(
            ({name: value}, "D007")
            for name in ("seed", "batch_size", "lanes", "pool", "world_size", "rank", "ahead")
            for value in (-1, 1.5, True, "2")
        ),
        *(({name: 0}, "D007") for name in ("batch_size", "lanes", "pool", "world_size")),
    ],
)
def test_a_wrong_name_or_number_is_an_error(release: Path, options: Row, code: str) -> None:
    with pytest.raises(ReasonKneeError) as error:
        quintuples(release, **options)
    assert error.value.code == code


def test_an_unknown_visit_or_patient_is_told_what_there_is(release: Path, map_style: dict[str, Any]) -> None:
    known = [row["volume_id"].split("-") for split in SPLITS for row in stored(release, "full", split)]
    for name, place, wrong in (("visits", 1, "99m"), ("patients", 0, "1999999")):
        with pytest.raises(UsageError, match=f"unknown {name[:-1]} '{wrong}'") as error:
            quintuples(release, "full", **{name: wrong})
        assert error.value.hint == f"choose among {', '.join(sorted({parts[place] for parts in known}))}"
        with pytest.raises(UsageError, match="D005"):
            quintuples(map_style["full"], **{name: wrong})


def test_patients_of_several_splits_may_be_asked_of_one(release: Path) -> None:
    train, test = ({row["patient"] for row in stored(release, "full", split)} for split in ("train", "test"))
    assert {
        row["patient"]
        for row in quintuples(release, "full", "train", patients=train | test, columns=["patient"])
    } == train
    with pytest.raises(UsageError, match="D046"):
        quintuples(release, "full", "train", patients=test)


@pytest.mark.parametrize("epoch", [-1, 0.5, True, None])
def test_an_epoch_that_is_no_number_is_refused(release: Path, epoch: Any) -> None:
    with pytest.raises(UsageError, match="D007"):
        quintuples(release, seed=0).set_epoch(epoch)


def test_columns_are_those_asked_for(release: Path, map_style: dict[str, Any]) -> None:
    for source, config in (
        (release, "cropped"),
        (release, "full"),
        (map_style["cropped"], None),
        (map_style["full"], None),
    ):
        row = next(iter(quintuples(source, config, columns=["grades", "volume"])))
        assert {"id", "question_id", "volume_id", "grades", "volume", "crop", "affine"} <= set(row)
        assert (
            "reasoning" not in row or source is map_style["full"]
        )  # nested columns of a cached table are views: nothing is spared
        row = next(iter(quintuples(source, config, columns=["grades"])))
        assert {"id", "question_id", "grades"} <= set(row)
        assert not {"volume", "affine"} & set(row)


# --- in a DataLoader --------------------------------------------------------------------------------------------------------------

BATCH = 4


def batches(stream: Any, workers: int, stop: int | None = None, **options: Any) -> list[list[str]]:
    loader = DataLoader(stream, batch_size=BATCH, num_workers=workers, collate_fn=ids, **options)
    seen = []
    for batch in loader:
        seen.append(batch)
        if len(seen) == stop:
            break
    return seen


def small(release: Path, config: str = "full", **options: Any) -> Stream:
    return quintuples(
        release,
        config,
        questions="paper62",
        columns=["region"],
        **{"seed": 7, "batch_size": BATCH, **options},
    )


def test_a_loader_sees_the_same_batches_with_any_number_of_workers(release: Path) -> None:
    stream = small(release)
    wanted = batches(stream, 0)
    assert sorted(i for b in wanted for i in b) == sorted(ids(small(release, seed=None)))
    assert len(wanted) == len(DataLoader(stream, batch_size=BATCH))
    assert {len(b) for b in wanted[:-1]} == {BATCH}
    for workers in (1, 2, 3):
        assert batches(stream, workers) == wanted
    ranks = [batches(small(release, rank=r, world_size=2), 2) for r in range(2)]
    assert [b for both in zip(*ranks, strict=False) for b in both] == wanted[: 2 * min(map(len, ranks))]
    assert sorted(i for one in ranks for b in one for i in b) == sorted(i for b in wanted for i in b)
    stream.set_epoch(1)
    assert batches(stream, 2) != wanted


def test_voxels_come_through_workers(release: Path) -> None:
    stream = quintuples(release, "full", cut_regions=True, seed=1, batch_size=BATCH, visits="36m")
    assert_same_rows(
        [row for batch in DataLoader(stream, BATCH, num_workers=2, collate_fn=list) for row in batch],
        list(stream),
    )


def test_workers_that_persist_follow_the_epoch(release: Path) -> None:
    stream, fresh = small(release), small(release)
    loader = DataLoader(stream, BATCH, num_workers=2, collate_fn=ids, persistent_workers=True)
    for epoch in (0, 3):
        stream.set_epoch(epoch)
        fresh.set_epoch(epoch)
        assert list(loader) == batches(fresh, 0)


def test_workers_without_a_batch_size_are_refused(release: Path) -> None:
    stream = small(release, batch_size=None)
    assert batches(stream, 1) == batches(stream, 0)
    with pytest.raises(RuntimeError, match="D040"):  # as torch hands it over from a worker
        batches(stream, 2)


@pytest.mark.parametrize(
    ("before", "after", "stop"), [(0, 0, 1), (0, 2, 60), (2, 0, 7), (2, 1, 31), (1, 2, 100), (2, 3, 150)]
)
def test_a_loader_resumes_exactly(release: Path, before: int, after: int, stop: int) -> None:
    stream = small(release)
    stream.set_epoch(2)
    wanted = batches(stream, 0)
    stream = small(release)
    stream.set_epoch(2)
    seen = batches(stream, before, stop)
    state = json.loads(json.dumps(stream.state_dict(consumed=stop * BATCH)))
    if before:
        with pytest.raises(UsageError, match="D048"):
            stream.state_dict()
    else:
        assert stream.state_dict() == state
    resumed = small(release)
    resumed.load_state_dict(state)
    assert resumed.epoch == 2
    second = batches(resumed, after, 5)  # and once more, from the middle
    state = resumed.state_dict(consumed=5 * BATCH)
    again = small(release)
    again.load_state_dict(state)
    assert seen + second + batches(again, after) == wanted
    assert batches(again, after) == wanted  # a loaded position is for one pass
    assert again.state_dict(consumed=10**6)["start"] == len(again)
    again.set_epoch(3)
    assert sum(map(len, batches(again, after))) == sum(map(len, wanted))


def test_resuming_reads_nothing_of_what_is_done(release: Path) -> None:
    stream = small(release, lanes=1, pool=1)
    rows = list(stream)
    resumed = small(release, lanes=1, pool=1, ahead=0)
    at = (len(rows) - 3) // BATCH * BATCH
    resumed.load_state_dict(stream.state_dict() | {"start": at})
    opened: list[str] = []
    reading, resumed.source.open = (
        resumed.source.open,
        lambda entry, margin: opened.append(entry.volume_id) or reading(entry, margin),
    )  # type: ignore
    assert ids(resumed) == ids(rows[at:])
    assert set(opened) == {row["volume_id"] for row in rows[at:]}
    assert len(opened) == len(set(opened)) < len({row["volume_id"] for row in rows})


def test_ranks_may_change_between_batches(release: Path) -> None:
    two = [small(release, rank=r, world_size=2) for r in range(2)]
    seen = [batches(s, 2, 9) for s in two]
    state = two[0].state_dict(consumed=9 * BATCH)
    one, three = small(release), [small(release, rank=r, world_size=3) for r in range(3)]
    wanted = batches(one, 0)
    assert sorted(wanted[:18]) == sorted(b for s in seen for b in s)
    one.load_state_dict(state)
    assert batches(one, 2) == wanted[18:]
    for stream in three:
        stream.load_state_dict(state)
    assert sorted(i for s in three for b in batches(s, 0) for i in b) == sorted(
        i for b in wanted[18:] for i in b
    )
    with pytest.raises(UsageError, match="D044"):
        one.load_state_dict(two[0].state_dict(consumed=5))
    done = two[0].state_dict(consumed=len(two[0]))
    one.load_state_dict(done)
    assert batches(one, 0) == []


def test_a_state_of_another_stream_is_refused(release: Path) -> None:
    state = small(release).state_dict()
    for other in (
        {"seed": 8},
        {"pool": 8},
        {"lanes": 4},
        {"batch_size": 2},
        {"sides": "left"},
        {"split": "test"},
    ):
        with pytest.raises(UsageError, match="D043"):
            small(release, **other).load_state_dict(state)
    with pytest.raises(UsageError, match="D042"):
        small(release).load_state_dict({"epoch": 1})


@pytest.mark.parametrize(
    ("before", "after", "stop"), [(0, 0, 5), (2, 2, 37), (2, 2, 150), (1, 2, 30), (2, 0, 44), (2, 3, 61)]
)
def test_torchdata_resumes_exactly(release: Path, before: int, after: int, stop: int) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(stream: Stream, workers: int) -> Any:
        return torchdata.StatefulDataLoader(stream, BATCH, num_workers=workers, collate_fn=ids)

    wanted = batches(small(release), 0)
    first = loader(small(release), before)
    seen = [batch for _, batch in zip(range(stop), first, strict=False)]
    state = first.state_dict()
    del first
    stream = small(release)
    second = loader(stream, after)
    if before == after:
        second.load_state_dict(state)
    else:
        stream.load_state_dict(state)  # torchdata refuses a change of workers; the stream does not
    assert seen + list(second) == wanted


# --- volumes, pairs, by index -----------------------------------------------------------------------------------------------------


def test_volume_by_volume(release: Path) -> None:
    items = list(volumes(release, seed=0, questions="paper62"))
    assert sorted(item["volume_id"] for item in items) == sorted(
        row["volume_id"] for row in stored(release, "full")
    )
    assert sorted(q["id"] for item in items for q in item["quintuples"]) == sorted(
        ids(quintuples(release, "full", questions="paper62"))
    )
    for item in items:
        assert item["volume"].shape == tuple(item["shape"][a] for a in "zyx")
        assert all(
            q["volume"] is item["volume"] and q["volume_id"] == item["volume_id"] for q in item["quintuples"]
        )
    loaded = [
        item["volume_id"]
        for item in DataLoader(volumes(release, seed=0, batch_size=1), batch_size=None, num_workers=2)
    ]
    assert sorted(loaded) == sorted(item["volume_id"] for item in items)


def test_pairs_are_one_knee_at_two_visits(release: Path) -> None:
    for split, between, expected in (
        ("train", "successive", 5),
        ("train", "all", 6),
        ("train", ("00m", "24m"), 1),
        ("validation", "successive", 2),
    ):
        found = list(pairs(release, "cropped", split, between=between, seed=3))
        knees = {(p["first"]["volume_id"], p["second"]["volume_id"]) for p in found}
        assert len(knees) == expected
        for p in found:
            assert all(p["first"][k] == p["second"][k] for k in ("patient", "side", "question_id"))
            assert int(p["first"]["visit"][:-1]) < int(p["second"]["visit"][:-1])
        asked = {row["volume_id"]: set() for row in stored(release, "annotations", split)}
        for row in stored(release, "annotations", split):
            asked[row["volume_id"]].add(row["question_id"])
        assert len(found) == sum(len(asked[a] & asked[b]) for a, b in knees)
        assert len({(p["first"]["id"], p["second"]["id"]) for p in found}) == len(found)
    with pytest.raises(UsageError, match="D046"):
        pairs(release, "cropped", between=("00m", "99m"))


def test_the_view_by_index_copies_no_volume(release: Path, map_style: dict[str, Any]) -> None:
    for options in ({}, {"cut_regions": True, "questions": "paper62", "boxed": True}):
        view = MapView(map_style["full"], **options)
        wanted = list(quintuples(release, "full", **options))
        assert len(view) == len(wanted)
        for i in (0, 1, 70, len(view) - 1, -1):
            assert_same_rows([view[i]], [wanted[i]])
        with pytest.raises(IndexError):
            view[len(view)]
        shuffled = np.random.default_rng(0).permutation(len(view))[:40].tolist()
        loader = DataLoader(view, BATCH, sampler=shuffled, num_workers=2, collate_fn=list)
        assert_same_rows([row for batch in loader for row in batch], [wanted[i] for i in shuffled])
        assert ids(pickle.loads(pickle.dumps(view))) == ids(wanted)
    array = MapView(map_style["full"])[0]["volume"]
    assert not array.flags.owndata
    assert not array.flags.writeable  # a view of the memory-mapped cache


# --- damage -----------------------------------------------------------------------------------------------------------------------


def as_bytes(rows: Iterable[Row]) -> list[tuple[Any, ...]]:
    return [
        tuple(v.tobytes() if isinstance(v, np.ndarray) else json.dumps(v) for v in row.values())
        for row in rows
    ]


@pytest.mark.parametrize("config", ["cropped", "embeddings"])
def test_a_flipped_byte_is_never_silent(release: Path, tmp_path: Path, config: str) -> None:
    """Anywhere in a shard, voxels, texts and footer alike: the same rows or an error with a code."""
    copy = tmp_path / "release"
    shutil.copytree(release / "index", copy / "index")
    (copy / config).mkdir(parents=True)
    shutil.copy(release / "manifest.json", copy)
    (shard,) = (release / config).glob("test-*")
    whole, target = shard.read_bytes(), copy / config / shard.name
    options: Row = {"split": "test", "config": config}
    wanted = as_bytes(quintuples(release, **options))
    random = np.random.default_rng(5)
    noticed = 0
    for place in [
        4,
        len(whole) - 1,
        *random.integers(0, len(whole), 40).tolist(),
        *random.integers(len(whole) - 9000, len(whole), 40).tolist(),
    ]:
        target.unlink(missing_ok=True)  # a new file, since the old one is mapped
        target.write_bytes(
            whole[:place] + bytes([whole[place] ^ (1 << int(random.integers(8)))]) + whole[place + 1 :]
        )
        try:
            assert as_bytes(quintuples(copy, **options)) == wanted, place
        except ReasonKneeError:
            noticed += 1
    assert noticed > 40
    target.unlink()
    with pytest.raises(ReasonKneeError, match="D030"):
        quintuples(copy, **options)


def test_a_shard_of_another_release_is_noticed(release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(release / "index", copy / "index")
    (copy / "full").mkdir(parents=True)
    shutil.copy(release / "manifest.json", copy)
    (test,), (train,) = ((release / "full").glob(f"{split}-*") for split in ("test", "train"))
    shutil.copy(test, copy / "full" / train.name)
    with pytest.raises(DataError, match="D025"):
        list(quintuples(copy, "full"))
    (copy / "manifest.json").write_text(
        replace(read_manifest(release), files={}).to_json()  # without an index, by its footer
    )
    with pytest.raises(DataError, match="D025"):
        quintuples(copy, "full")


def test_a_pass_may_be_collected_in_its_own_reader() -> None:
    """The collector runs in whatever thread allocates; a reader cannot wait for itself to end."""
    from reasonknee.stream.streams import _opened_in_time

    held, ended = [], threading.Event()

    def opened(group: int) -> list[object]:
        if group == 1:
            begun.wait(10)
            held.pop().close()
            ended.set()
        return []

    begun = threading.Event()
    steps = _opened_in_time(np.array([0, 1]), np.array([0, 0]), opened, 1)
    next(steps)
    held.append(steps)
    del steps
    begun.set()
    assert ended.wait(10), "closing it raised in the reader"
