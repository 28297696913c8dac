"""Quintuples into a training loop: in an order that a seed fixes, shared out without overlap, resumed exactly.

    stream = quintuples("rajpurkarlab/3DReasonKnee", "cropped", "train", seed=0, batch_size=4)     # or a release folder, or a map-style dataset
    loader = DataLoader(stream, batch_size=4, num_workers=2, collate_fn=...)
    for epoch in range(epochs):
        stream.set_epoch(epoch)
        for batch in loader: ...

`quintuples` gives one dict per quintuple (fields: `opened`), `volumes` one item per volume with all its quintuples, `pairs` the same question on the
same knee at two visits. All three are `Stream`s: iterable datasets for torch's DataLoader and torchdata's StatefulDataLoader, also
without torch. `MapView` is the same by index.

*Order*: `order` defines it. It depends on the rows selected, seed, epoch, lanes, pool and batch_size; not on ranks, workers or machines.
*Resume*: `state_dict` is a handful of numbers; `load_state_dict` goes on at the next element, having read nothing of what came before, also with
another number of workers or, between two batches, of ranks.
*Memory*: a reader has at most `pool` volumes open, plus `ahead`. Where `lanes` is a multiple of world_size x workers, that is all readers together,
and each volume is read by one of them, once an epoch (but for a few at its end).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import UsageError
from reasonknee.splits import SPLITS
from reasonknee.stream.opened import Opened, Row, from_row
from reasonknee.stream.order import Even, Mix, Numbers, Part, Position, epoch_order, merged, places
from reasonknee.stream.plan import Between, Plan, by_pair, by_question, by_volume
from reasonknee.stream.selection import Names, Selection, refuse_unknown, selection, whole_number
from reasonknee.stream.sources import Entry, Source, find

_STATE = "reasonknee.stream"
_VERSION = 1


class Stream:
    """An iterable over the elements of a plan; see the module. Made by `quintuples`, `volumes` and `pairs`."""

    def __init__(
        self,
        source: Source,
        plan: Plan,
        seed: int | None,
        mix: Mix,
        part: Part,
        margin_mm: float | None,
        even: Even | None,
        ahead: int | None,
        batches_known: bool,
    ) -> None:
        self.source, self.plan, self.seed, self.mix, self.part = source, plan, seed, mix, part
        self.margin_mm, self.even, self.batches_known = margin_mm, even, batches_known
        self.ahead = ahead
        self._ends = np.cumsum(plan.counts)
        self._state_of = f"{plan.digest()}-{seed}-{mix.lanes}-{mix.pool}-{mix.batch}"
        self._next: dict[str, int] = {}  # a loaded position, for the next pass only
        self._now: dict[str, int] = {}  # of the latest pass in this process: where it began, and how many elements it has `served`
        self.loads = 0  # how often a position was loaded: workers that run already do not know of it
        self._shared = _shared_numbers()
        self._known = (-1, 0)

    @property
    def batch_size(self) -> int:
        return self.mix.batch

    @property
    def epoch(self) -> int:
        return int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order comes next. A loaded position stays if it is in this epoch."""
        epoch = whole_number("epoch", epoch, 0)
        if epoch != self.epoch:
            self._next, self._now = {}, {}
            self._share(epoch, 0, 0)

    def _share(self, epoch: int, start: int, done: int, pass_: int = 0) -> None:
        for place, number in ((_EPOCH, epoch), (_START, start), (_DONE, done), (_PASS, pass_)):
            self._shared[place] = number

    def __len__(self) -> int:
        """Elements of an epoch for this rank."""
        return self._length(0)

    def _length(self, start: int) -> int:
        """Elements of this rank from `start` on; kept, since a loader may ask for the state after every batch."""
        if self._known[0] != start:
            self._known = (start, len(places(int(self._ends[-1]), self.part, self.mix.batch, Position(start), self.even)))
        return self._known[1]

    # --- iterating ----------------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Row]:
        begin, self._next = self._next, {}
        worker, workers, pass_ = _worker()
        if begin and pass_:  # new workers of a later pass come here with the loaded position again
            if self._shared[_TAKEN] in (0, pass_):
                self._shared[_TAKEN] = pass_
            else:
                begin = {}
        if workers > 1 and not self.batches_known:
            hint = "give the stream the batch_size of the DataLoader, so that batches keep their order"
            raise UsageError("D040", f"{workers} workers and no batch_size", hint)
        if "worker" in begin and (begin["worker"], begin["workers"]) != (worker, workers):
            hint = "load the state of the whole loader into the stream"
            raise UsageError("D041", f"the state of worker {begin['worker']} of {begin['workers']} for worker {worker} of {workers}", hint)
        self._now = {"epoch": self.epoch, "start": 0, "done": 0, "served": 0, **begin}
        if workers > 1:
            self._now |= {"worker": worker, "workers": workers}
        self._share(self.epoch, self._now["start"], self._now["done"], pass_)
        ahead = self.ahead
        if ahead is None:  # a worker runs beside the loop anyway, so only the network is worth threads in it
            ahead = 4 if self.source.remote else 0 if pass_ else 1
        return self._run(self._now, Part(self.part.rank, self.part.world_size, worker, workers), ahead)

    def _run(self, now: dict[str, int], part: Part, ahead: int) -> Iterator[Row]:
        at = Position(now["start"], now["done"])
        mine = places(int(self._ends[-1]), part, self.mix.batch, at, self.even)[now["served"] :]
        elements = epoch_order(self.plan.counts, self.seed, now["epoch"], self.mix)[mine]
        groups = np.searchsorted(self._ends, elements, side="right")
        within = elements - (self._ends - self.plan.counts)[groups]
        for group, element, opened in _opened_in_time(groups, within, self._open, ahead):
            item = self.plan.item(group, opened, element)
            now["served"] += 1
            yield item

    def _open(self, group: int) -> list[Opened]:
        return [self.source.open(entry, self.margin_mm) for entry in self.plan.groups[group]]

    # --- resuming -----------------------------------------------------------------------------------------------------------------

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where the latest pass stands. With workers the stream that you hold is not the one that is read: say how many elements you have `consumed`
        from the DataLoader since the pass began. StatefulDataLoader asks each worker and needs no such count."""
        start, done = int(self._shared[_START]), int(self._shared[_DONE])
        length = self._length(start)
        if consumed is None and not self._now and self._shared[_PASS]:
            raise UsageError("D048", "workers read this stream", "state_dict(consumed=...) with the number of elements that the loop has had")
        now = self._now or {"epoch": self.epoch, "start": start, "done": done, "served": 0, **self._next}
        if consumed is not None:
            now = {"epoch": self.epoch, "start": start, "done": done, "served": max(0, min(consumed, length - done))}
        return {"kind": _STATE, "version": _VERSION, "of": self._state_of, "world_size": self.part.world_size, "length": length, **now}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` stands: one of this stream, or a StatefulDataLoader's with any number of workers."""
        parts = sorted(_states_in(state), key=lambda s: s.get("worker", 0))
        if not parts:
            raise UsageError("D042", "no state of a stream in this dict", "give what state_dict() returned")
        if any((p["of"], p["version"]) != (self._state_of, _VERSION) for p in parts):
            raise UsageError("D043", "a state of another stream", "source, selection, seed, lanes, pool and batch_size must be the same")
        first = dict(parts[0])
        if parts[0] is not state and "worker" in first:
            if [p["worker"] for p in parts] != list(range(first["workers"])):
                raise UsageError("D042", f"the states of {len(parts)} of {first['workers']} workers", "give what the loader's state_dict() returned")
            first["served"] = merged([p["served"] for p in parts], self.mix.batch)
            del first["worker"], first["workers"]
        if "worker" not in first:
            first["done"], first["served"] = first["done"] + first["served"], 0
        if first["world_size"] != self.part.world_size:
            first = self._for_other_ranks(first)
        self._next = {k: first[k] for k in ("start", "done", "served", "worker", "workers") if k in first}
        self._now = {}
        self._share(first["epoch"], first["start"], first["done"])
        self._shared[_TAKEN] = 0
        self.loads += 1

    def _for_other_ranks(self, state: dict[str, Any]) -> dict[str, Any]:
        """All ranks have done as many batches as the one whose state this is; what is left is dealt anew."""
        if state["done"] >= state["length"]:
            return {**state, "start": int(self._ends[-1]), "done": 0}
        if state["done"] % self.mix.batch and state["world_size"] > 1:
            raise UsageError(
                "D044", f"{state['done']} elements are not whole batches of {self.mix.batch}", "change the number of ranks between batches"
            )
        return {**state, "start": state["start"] + state["done"] * state["world_size"], "done": 0}


def _opened_in_time(groups: Numbers, within: Numbers, open_: Any, ahead: int) -> Iterator[tuple[int, int, list[Opened]]]:
    """Each element with its open group: opened when first needed, or `ahead` of that in a thread, and let go after its last element."""
    order, first = np.unique(groups, return_index=True)
    openings = iter(order[np.argsort(first)].tolist())
    last = len(groups) - 1 - np.unique(groups[::-1], return_index=True)[1]
    closes = np.zeros(len(groups), bool)
    closes[last] = True
    held: dict[int, list[Opened]] = {}
    coming: dict[int, Future[list[Opened]]] = {}
    readers = ThreadPoolExecutor(ahead) if ahead else None

    def prepare(count: int) -> None:
        for group in (g for _, g in zip(range(count), openings, strict=False)):
            coming[group] = readers.submit(open_, group)  # type: ignore[union-attr]

    try:
        if readers:
            prepare(ahead)
        for group, element, over in zip(groups.tolist(), within.tolist(), closes.tolist(), strict=True):
            if group not in held:
                held[group] = coming.pop(group).result() if readers else open_(group)
                if readers:
                    prepare(1)
            yield group, element, held[group]
            if over:
                del held[group]
    finally:
        if readers:
            readers.shutdown(cancel_futures=True)


def _worker() -> tuple[int, int, int]:
    """This DataLoader worker, how many there are, and a number of the pass they were started for; (0, 1, 0) outside."""
    import sys

    if sys.modules.get("torch") is None:
        return 0, 1, 0
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return (0, 1, 0) if info is None else (info.id, info.num_workers, info.seed - info.id)


# What a stream shares with its copies in worker processes: the epoch, so that set_epoch reaches workers that persist; where the latest pass began,
# so that the stream in the main process knows; a number that tells this pass by workers from another, 0 for one in this process; and the number of
# the pass that took the loaded position.
_EPOCH, _START, _DONE, _PASS, _TAKEN = range(5)


def _shared_numbers() -> Any:
    if find_spec("torch") is None:
        return [0] * 5
    import torch
    from torch.utils.data import IterableDataset

    IterableDataset.register(Stream)  # a DataLoader asks by isinstance
    return torch.zeros(5, dtype=torch.int64).share_memory_()


def _states_in(state: Any) -> Iterator[Mapping[str, Any]]:
    """Every state of a stream in the nested dicts of a loader's."""
    if isinstance(state, Mapping):
        if state.get("kind") == _STATE:
            yield state
            return
        if state.get("_steps_since_snapshot"):
            raise UsageError("D045", "the loader's state is older than its last batch", "use snapshot_every_n_steps=1")
        for value in state.values():
            yield from _states_in(value)


# --- what users call --------------------------------------------------------------------------------------------------------------


def quintuples(
    source: Any,
    config: str | None = None,
    split: str = "train",
    *,
    questions: str | Iterable[str | int] | None = None,
    categories: Names | None = None,
    regions: Names | None = None,
    sides: Names | None = None,
    visits: Names | None = None,
    patients: Names | None = None,
    boxed: bool = False,
    columns: Iterable[str] | None = None,
    cut_regions: bool = False,
    margin_mm: float = 0.0,
    seed: int | None = None,
    batch_size: int | None = None,
    lanes: int = 8,
    pool: int = 16,
    rank: int = 0,
    world_size: int = 1,
    even: Even | None = None,
    ahead: int | None = None,
    revision: str | None = None,
    hub: Mapping[str, Any] | None = None,
    plan: Callable[[Sequence[Entry]], Plan] = by_question,
) -> Stream:
    """One dict per quintuple.

    source: a release folder, a Hub repo id (at `revision`; `hub` holds what its client takes: token, endpoint), or a map-style dataset.
    questions: a set by name, one question, or several by id; categories, regions, sides, visits, patients narrow it; `boxed` keeps what has a box.
    columns: the fields that rows need; what is not named is not read, and without `volume` no voxel is.
    cut_regions: from `full`, serve each question its region, with `margin_mm` around it, in place of the whole volume.
    seed: None for the order of the files. batch_size: that of the DataLoader; needed with more than one worker.
    lanes, pool: see `reasonknee.stream.order`. even: "pad" or "drop" for the same number of batches on every rank. ahead: volumes read in advance.
    """
    if even not in (None, "pad", "drop"):
        raise UsageError("D006", f"even={even!r}", 'None, "pad" or "drop"')
    seed = None if seed is None else whole_number("seed", seed, 0)
    for name, value, least in (("lanes", lanes, 1), ("pool", pool, 1), ("rank", rank, 0), ("world_size", world_size, 1)):
        whole_number(name, value, least)
    for name, choice, least in (("batch_size", batch_size, 1), ("ahead", ahead, 0)):
        if choice is not None:
            whole_number(name, choice, least)
    wanted = selection(questions, categories, regions, sides, visits, patients, boxed)
    found = find(source, config, split, wanted, None if columns is None else frozenset(columns), revision, dict(hub or {}))
    if not wanted.found_in(e.volume_id for e in found.entries):
        refuse_unknown(wanted, _every_volume(source, found.config, split, revision, dict(hub or {})))
    if (cut_regions or margin_mm) and (found.config != "full" or not cut_regions or not 0 <= margin_mm <= 200):
        raise UsageError(
            "D047", f"cut_regions={cut_regions}, margin_mm={margin_mm} on {found.config}", "regions are cut from `full`, with 0 to 200 mm around"
        )
    planned = plan(found.entries)
    if not planned.groups:
        raise UsageError("D046", f"nothing in {found.config}/{split} is selected", "check the sides, visits, patients and questions")
    mix, part = Mix(lanes, pool, batch_size or 1), Part(rank, world_size)
    return Stream(found, planned, seed, mix, part, margin_mm if cut_regions else None, even, ahead, batches_known=batch_size is not None)


def _every_volume(source: Any, config: str, split: str, revision: str | None, hub: dict[str, Any]) -> list[str]:
    """All volumes of a config, of every split where the source has several: what there is to choose among."""
    found = []
    for each in SPLITS if isinstance(source, str | Path | dict) else (split,):
        try:
            found += [e.volume_id for e in find(source, config, each, Selection(), frozenset(), revision, hub).entries]
        except UsageError as error:
            if error.code != "D021":  # it has no such split
                raise
    return found


def volumes(source: Any, config: str | None = "full", split: str = "train", **options: Any) -> Stream:
    """One item per volume, with `quintuples`, the list of all that is asked of it. Options as for `quintuples`; batch_size counts volumes."""
    return quintuples(source, config, split, plan=by_volume, **options)


def pairs(source: Any, config: str | None = None, split: str = "train", *, between: Between = "successive", **options: Any) -> Stream:
    """The same question on the same knee at two visits: {"first": quintuple, "second": quintuple}. `between` is "successive", "all", or two visits.
    Options as for `quintuples`; pool and lanes count pairs of volumes."""
    return quintuples(source, config, split, plan=partial(by_pair, between=between), **options)


class MapView:
    """The quintuples of a source by index, in stored order, for samplers and `Trainer`: `len`, `[i]`, and lists of indices from a DataLoader.

    Copies no volume: rows of a map-style dataset are views of its memory-mapped table. The `keep` volumes used last stay open, in each worker, which
    spares decoding where neighbours in the sampler's order share a volume. Takes the arguments of `quintuples` that say what is read.
    """

    def __init__(self, source: Any, config: str | None = None, split: str = "train", *, keep: int = 2, **options: Any) -> None:
        stream = quintuples(source, config, split, **options)
        self.source, self.plan, self.margin_mm, self.keep = stream.source, stream.plan, stream.margin_mm, keep
        self._ends = stream._ends
        self._open: OrderedDict[int, Opened] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": OrderedDict()}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Row:
        i = range(len(self))[index]  # negative ones count from the end, others raise IndexError, which ends a for loop
        group = int(np.searchsorted(self._ends, i, side="right"))
        if group not in self._open:
            if len(self._open) >= self.keep:
                self._open.popitem(last=False)
            self._open[group] = self.source.open(self.plan.groups[group][0], self.margin_mm)
        self._open.move_to_end(group)
        asked = self.plan.questions[group]
        return self._open[group].quintuple(asked[i - int(self._ends[group]) + len(asked)])

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        return [self[i] for i in indices]


def explode(rows: Iterable[Mapping[str, Any]], *, cut_regions: bool = False, margin_mm: float = 0.0) -> Iterator[Row]:
    """Quintuples of rows that come one by one in any config, such as `load_dataset(..., streaming=True)` gives: in their order, whatever it is."""
    for row in rows:
        opened = from_row(row, margin_mm if cut_regions else None)
        for question_id in opened.index:
            yield opened.quintuple(question_id)
