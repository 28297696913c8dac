"""States of a stream: nothing lost and nothing twice whatever changes between two passes, and a clear no to a state from elsewhere."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from conftest import needs
from hypothesis import given, settings
from hypothesis import strategies as st

from reasonknee.errors import UsageError
from reasonknee.questions import QUESTIONS
from reasonknee.stream import Stream, quintuples
from reasonknee.stream.order import Part, places, share_size

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from reasonknee.collate import loader  # noqa: E402

Batches = list[list[str]]
NAMES = list(QUESTIONS)
ROUTES = ("stream", "loader", "torch", "torchdata")


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


def small(release: Path, **options: Any) -> Stream:
    settled = {"questions": NAMES[:3], "columns": ["region"], "seed": 7, "batch_size": 4}
    return quintuples(release, "annotations", **{**settled, **options})


# --- arithmetic -------------------------------------------------------------------------------------------------------------------


@given(
    total=st.integers(0, 200),
    batch=st.integers(1, 7),
    ranks=st.integers(1, 6),
    even=st.sampled_from([None, "pad", "drop"]),
)
def test_the_size_of_a_share_is_what_it_holds(total: int, batch: int, ranks: int, even: Any) -> None:
    for rank in range(ranks):
        part = Part(rank, ranks)
        if total or even != "pad":
            assert share_size(total, part, batch, even) == len(places(total, part, batch, even=even))


# --- nothing lost, nothing twice --------------------------------------------------------------------------------------------------


class Run:
    """All ranks of a training run, in step; each rank by a route of its own kind."""

    def __init__(
        self,
        release: Path,
        route: str,
        ranks: int,
        workers: int,
        options: dict[str, Any],
        processes: int = 0,
    ) -> None:
        self.route, self.workers, self.processes = route, workers, processes
        self.streams = [
            small(release, rank=r, world_size=ranks, **options) if ranks > 1 else small(release, **options)
            for r in range(ranks)
        ]
        self.batch = self.streams[0].batch_size
        self.loaders = [self._loader(stream) for stream in self.streams]

    def _loader(self, stream: Stream) -> Any:
        if self.route == "loader":
            return loader(stream, ids, self.batch, workers=self.workers, processes=self.processes)
        if self.route == "torch":
            return DataLoader(stream, self.batch, collate_fn=ids, num_workers=self.processes)
        if self.route == "torchdata":
            from torchdata.stateful_dataloader import StatefulDataLoader

            return StatefulDataLoader(stream, self.batch, collate_fn=ids, num_workers=self.processes)
        return stream

    def set_epoch(self, epoch: int) -> None:
        for stream in self.streams:
            stream.set_epoch(epoch)

    def load(self, state: Any) -> None:
        for stream in self.streams:
            stream.load_state_dict(json.loads(json.dumps(state)))

    def steps(self, stop: int | None) -> tuple[Batches, list[Any]]:
        """Batches of all ranks up to a step, and what each rank then has as its state."""
        running = [self._batches(each) for each in self.loaders]
        given: Batches = []
        self.had = [0] * len(running)
        step = 0
        while step != stop:
            batches = [next(one, None) for one in running]
            if not any(batches):
                break
            given += [batch for batch in batches if batch]
            self.had = [n + len(batch or ()) for n, batch in zip(self.had, batches, strict=True)]
            step += 1
        states = [self._state(n) for n in range(len(self.loaders))]
        for one in running:
            one.close()
        return given, states

    def _batches(self, one: Any) -> Any:
        if self.route != "stream":
            yield from one
            return
        batch = []
        for row in one:
            batch.append(row["id"])
            if len(batch) == self.batch:
                yield batch
                batch = []
        if batch:
            yield batch

    def _state(self, rank: int) -> Any:
        if self.route in ("loader", "torchdata"):
            return self.loaders[rank].state_dict()
        if self.route == "torch" and self.processes:
            return self.streams[rank].state_dict(consumed=self.had[rank])
        return self.streams[rank].state_dict()


@st.composite
def runs(draw: st.DrawFn, processes: int) -> dict[str, Any]:
    return {
        "route": draw(st.sampled_from(ROUTES)),
        "processes": draw(st.integers(0, processes)),
        "ranks": draw(st.integers(1, 4)),
        "workers": draw(st.integers(0, 3)),
        "even": draw(st.sampled_from([None, None, "pad", "drop"])),
        "stop": draw(st.integers(0, 12)),
        "saved_by": draw(st.integers(0, 3)),
    }


@st.composite
def cases(draw: st.DrawFn, processes: int = 0) -> dict[str, Any]:
    """A run over an epoch that is cut up to three times, everything that may change drawn anew each time."""
    return {
        "seed": draw(st.none() | st.integers(0, 9)),
        "epoch": draw(st.integers(0, 3)),
        "batch_size": draw(st.integers(1, 7)),
        "questions": draw(st.integers(1, 4)),
        "sides": draw(st.sampled_from([None, "left"])),
        "boxed": draw(st.booleans()),
        "lanes": draw(st.sampled_from([1, 2, 8])),
        "runs": draw(st.lists(runs(processes), min_size=1, max_size=3)),
    }


def check(release: Path, case: dict[str, Any]) -> None:
    common = {k: case[k] for k in ("seed", "batch_size", "sides", "boxed", "lanes")}
    common["questions"] = NAMES[: case["questions"]]
    every = Counter(ids(list(small(release, **common))))
    given: Counter[str] = Counter()
    allowed = 0  # elements that `even` may leave out or repeat
    state: Any = None
    *cut, last = case["runs"]
    for one, stop in [*((run, run["stop"]) for run in cut), (last, None)]:
        options = {**common, "even": one["even"]}
        running = Run(release, one["route"], one["ranks"], one["workers"], options, one["processes"])
        if state is not None:
            running.load(state)
        running.set_epoch(case["epoch"])
        if stop is not None:  # anywhere in what is left, its last round and its end as often as the rest
            left = max(0, sum(every.values()) - sum(given.values()))
            stop %= -(-left // (case["batch_size"] * one["ranks"])) + 1
        batches, states = running.steps(stop)
        for batch in batches:
            given.update(batch)
        if one["even"]:
            allowed += case["batch_size"] * one["ranks"]
        state = states[one["saved_by"] % one["ranks"]]
    if allowed == 0:
        assert given == every
    else:
        assert set(given) <= set(every)
        assert sum((every - given).values()) + sum((given - every).values()) < allowed + 1
    assert len(every) > 0


@settings(max_examples=100)  # thousands are slow
@given(case=cases())
def test_nothing_is_lost_and_nothing_comes_twice(release: Path, case: dict[str, Any]) -> None:
    check(release, case)


@pytest.mark.slow
@settings(max_examples=4000)
@given(case=cases())
def test_nothing_is_lost_and_nothing_comes_twice_in_thousands_of_cases(
    release: Path, case: dict[str, Any]
) -> None:
    check(release, case)


@settings(max_examples=10)
@given(case=cases(processes=2))
def test_nor_by_worker_processes(release: Path, case: dict[str, Any]) -> None:
    check(release, case)


@pytest.mark.slow
@settings(max_examples=500)
@given(case=cases(processes=3))
def test_nor_by_worker_processes_in_hundreds_of_cases(release: Path, case: dict[str, Any]) -> None:
    check(release, case)


def test_the_state_of_a_rank_whose_share_is_over_or_empty(release: Path) -> None:
    """Facts of a bug: the tail was lost, or everything, where the state came from a rank with fewer batches."""
    every = sorted(ids(list(small(release))))
    total = len(every)
    for batch in (total, total // 3 + 1, total // 2):
        for steps in (0, 1):
            for rank in range(4):
                four = Run(release, "loader", 4, 2, {"batch_size": batch})
                before, states = four.steps(steps)
                one = small(release, batch_size=batch)
                one.load_state_dict(states[rank])
                assert sorted([i for b in before for i in b] + ids(list(one))) == every


# --- a boundary -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"workers": 0}, {"workers": 2}, {"processes": 2}])
def test_a_state_between_epochs_is_that_of_the_next(release: Path, how: dict[str, int]) -> None:
    batches = loader(small(release), ids, 4, **how)
    assert len(list(batches)) == len(batches)
    batches.set_epoch(1)
    state = batches.state_dict()
    resumed = loader(small(release), ids, 4, **how)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    fresh = loader(small(release), ids, 4)
    fresh.set_epoch(1)
    assert list(resumed) == list(fresh)


def test_epoch_and_position_are_taken_at_the_first_batch(release: Path) -> None:
    batches = loader(small(release), ids, 4)
    early, twice = iter(batches), iter(batches)
    batches.sampler.set_epoch(2)  # as Lightning does
    fresh = loader(small(release), ids, 4)
    fresh.set_epoch(2)
    wanted = list(fresh)
    assert next(early) == wanted[0]
    state = batches.state_dict()
    resumed = loader(small(release), ids, 4)
    early, twice = iter(resumed), iter(resumed)
    resumed.load_state_dict(state)
    assert list(early) == wanted[1:]
    assert list(twice) == wanted


def test_a_loop_that_begins_at_another_epoch_than_its_state_is_told(release: Path) -> None:
    stream = small(release)
    stream.set_epoch(2)
    next(iter(batches := loader(stream, ids, 4)))
    resumed = loader(small(release), ids, 4)
    resumed.load_state_dict(batches.state_dict())
    with pytest.raises(UsageError, match=r"D049.*epoch 2"):
        resumed.set_epoch(0)
    resumed.set_epoch(2)
    assert len(list(resumed)) == len(resumed) - 1
    resumed.set_epoch(3)
    list(batches)
    at_end = batches.state_dict()
    resumed.load_state_dict(at_end)
    resumed.set_epoch(3)  # an epoch that is over may be left
    assert len(list(resumed)) == len(resumed)


@pytest.mark.parametrize(("even", "drop_last"), [("drop", False), (None, True), ("drop", True)])
def test_an_epoch_whose_rest_is_dropped_may_be_left_after_its_last_batch(
    release: Path, even: Any, drop_last: bool
) -> None:
    """Fact of a bug: Lightning saves there, and went on with set_epoch(1), which was refused."""

    def made() -> Any:
        return loader(small(release, batch_size=5, even=even), ids, 5, drop_last=drop_last)

    batches = made()
    assert len(small(release)) % 5
    for _ in zip(range(len(batches)), batches, strict=False):
        state = batches.state_dict()
    resumed = made()
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    assert len(list(resumed)) == len(resumed)


@pytest.mark.parametrize("rank", [0, 1])
def test_no_whole_batch_of_another_rank_is_dropped(release: Path, rank: int) -> None:
    """With drop_last, rank 0 may have a batch more than rank 1, whose state says so."""
    total = len(small(release))
    size = next(n for n in range(2, total) if total // n % 2)
    two = [
        loader(small(release, batch_size=size, rank=r, world_size=2), ids, size, drop_last=True)
        for r in range(2)
    ]
    assert len(two[0]) == len(two[1]) + 1
    given, states = [], []
    for batches in two:
        given += islice(batches, len(two[1]))
        states.append(batches.state_dict())
    resumed = loader(small(release, batch_size=size), ids, size, drop_last=True)
    resumed.load_state_dict(states[rank])
    assert sorted(given + list(resumed)) == sorted(
        loader(small(release, batch_size=size), ids, size, drop_last=True)
    )


def test_a_stream_that_several_ranks_get_by_a_fork_is_each_ones_own(release: Path) -> None:
    """Fact of a bug: the epoch lay in memory that all of them shared."""
    stream = small(release)
    rank = multiprocessing.get_context("fork").Process(target=stream.set_epoch, args=(3,))
    rank.start()
    rank.join()
    assert (rank.exitcode, stream.epoch) == (0, 0)


@pytest.mark.parametrize("copy", [lambda s: s, deepcopy], ids=["itself", "a copy"])
def test_workers_that_stay_are_told_the_epoch(release: Path, copy: Callable[[Stream], Stream]) -> None:
    stream = copy(small(release))
    running = DataLoader(stream, 4, num_workers=1, collate_fn=ids, persistent_workers=True)
    first = list(running)
    stream.set_epoch(1)
    fresh = small(release)
    fresh.set_epoch(1)
    assert first != (second := list(running))
    assert second == list(loader(fresh, ids, 4))


def test_a_stream_is_made_anywhere(release: Path) -> None:
    """Also in a worker of a DataLoader, by a dataset of somebody's own."""

    class Made(torch.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(small(release, batch_size=1))

    assert [r["id"] for (r,) in DataLoader(Made(), 1, num_workers=1, collate_fn=list)] == ids(
        list(small(release, batch_size=1))
    )


@pytest.mark.parametrize("said", [{"ranks": "group"}, {"rank": 0, "world_size": 1}, {}])
def test_two_words_on_ranks_are_refused(release: Path, said: dict[str, Any]) -> None:
    """Fact of a bug: a second loader that asked for everything gave everything to the first one's ranks, too."""
    stream = small(release, **said)
    batches = loader(stream, ids, 4)
    with pytest.raises(UsageError, match="D055"):
        loader(stream, ids, 4, ranks="whole")
    assert len(list(batches)) == len(batches)


def test_a_position_that_is_loaded_while_workers_run_is_refused(release: Path) -> None:
    stream = small(release)
    running = DataLoader(stream, 4, num_workers=1, collate_fn=ids, persistent_workers=True)
    wanted = list(running)
    stream.load_state_dict(stream.state_dict(consumed=8))
    with pytest.raises(RuntimeError, match="D054"):
        list(running)
    assert list(DataLoader(stream, 4, num_workers=1, collate_fn=ids)) == wanted[2:]


# --- from elsewhere ---------------------------------------------------------------------------------------------------------------

KEYS = ("kind", "version", "of", "epoch", "start", "done", "ranks")
WRONG = (-1, 2**70, 1.5, True, False, "1", None, [], {}, float("nan"))


@pytest.mark.parametrize("key", KEYS)
def test_a_state_from_elsewhere_is_refused_with_a_code(release: Path, key: str) -> None:
    stream = small(release)
    next(iter(loader(stream, ids, 4)))
    state = stream.state_dict()
    assert state["start"] == 4
    bad = [{k: v for k, v in state.items() if k != key}, *({**state, key: value} for value in WRONG)]
    for other in bad:
        resumed = small(release)
        with pytest.raises(UsageError) as error:
            resumed.load_state_dict(other)
        assert error.value.code in {"D042", "D043"}, other
        assert len(list(resumed)) == len(resumed)  # and nothing of it was taken


@pytest.mark.parametrize(
    "change",
    [
        {"start": 3},
        {"start": 10**9},
        {"done": 4},
        {"done": 10**9},
        {"ranks": 0},
        {"ranks": 2, "done": 1},
        {"worker": 0, "workers": 1, "served": 10**9, "ranks": 2**50},  # it used to give an empty epoch
        {"served": 7},  # of no worker: so many rows of each rank were passed over
        {"worker": 1},
    ],
)
def test_numbers_that_do_not_fit_are_refused(release: Path, change: dict[str, int]) -> None:
    with pytest.raises(UsageError) as error:
        small(release).load_state_dict({**small(release).state_dict(), **change})
    assert error.value.code in {"D042", "D044"}


@pytest.mark.parametrize("epoch", [-1, 1.0, True, "1", None, 2**53 + 1, 2**70])
def test_an_epoch_that_is_none_is_refused(release: Path, epoch: Any) -> None:
    with pytest.raises(UsageError, match="D007"):
        small(release).set_epoch(epoch)


@pytest.mark.parametrize("worker", [{}, {"worker": 1}, {"workers": 0}, {"served": -1}, {"served": 10**9}])
def test_states_of_workers_from_elsewhere(release: Path, worker: dict[str, int]) -> None:
    needs("torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    running = StatefulDataLoader(small(release), 4, num_workers=1, collate_fn=ids)
    it = iter(running)
    next(it)
    nested: Any = running.state_dict()
    text = json.dumps(nested, default=lambda x: None)

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("kind") == "reasonknee.stream":
                return {**value, "workers": 2, "worker": 0, "served": 4} | worker
            return {k: spoil(v) for k, v in value.items()}
        return value

    with pytest.raises(UsageError) as error:
        small(release).load_state_dict(spoil(json.loads(text)))
    assert error.value.code in {"D042", "D003"}


@pytest.mark.parametrize("raw", [None, [], 3, "state", {}, {"a": {"b": {}}}, {"kind": "other"}])
def test_what_is_no_state_is_refused(release: Path, raw: Any) -> None:
    with pytest.raises(UsageError, match="D042"):
        small(release).load_state_dict(raw)


def test_a_state_of_another_release_is_refused(release: Path, tmp_path: Path, cohort: Path) -> None:
    from reasonknee.cohort import Cohort
    from reasonknee.release import Options, build

    build(
        Cohort(cohort), tmp_path / "other", ["annotations"], Options(questions="all69", wording="zero_shot")
    )
    state = small(release).state_dict()
    with pytest.raises(UsageError, match="D043"):
        small(tmp_path / "other").load_state_dict(state)
    with pytest.raises(UsageError, match="D043"):
        quintuples(
            release, "cropped", questions=NAMES[:3], columns=["region"], seed=7, batch_size=4
        ).load_state_dict(state)


@settings(max_examples=100)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYS, "x"]), inner, max_size=4)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_refused_or_taken_for_what_it_is(release: Path, raw: Any) -> None:
    with pytest.raises(UsageError):
        small(release).load_state_dict(raw)
