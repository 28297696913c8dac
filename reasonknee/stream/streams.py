"""A stream: elements of a plan in an order that a seed fixes, shared out without overlap, resumed exactly.

*Order*: `order` defines it. It depends on the rows selected, seed, epoch, lanes, pool and batch_size; not on
ranks, workers or machines. *Resume*: `state_dict` is a handful of numbers, see `state`; `load_state_dict`
goes on at the next element, having read nothing of what came before, also with another number of workers or,
between two batches, of ranks. *Memory*: a reader has at most `pool` volumes open, plus `ahead`. Where `lanes`
is a multiple of world_size x workers, that is all readers together, and each volume is read by one of them,
once an epoch (but for a few at its end).

Epoch and position are taken when the first element is asked for, since frameworks call `iter` early, and
twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from threading import current_thread
from typing import Any, NamedTuple

import numpy as np

from reasonknee.errors import UsageError
from reasonknee.stream.order import Even, Mix, Numbers, Part, Position, epoch_order, places
from reasonknee.stream.plan import Plan
from reasonknee.stream.ranks import (
    Ranks,
    given_part,
    group_part,
    in_group,
    lone_part,
    refuse_second_sharing,
    this_worker,
)
from reasonknee.stream.selection import whole_number
from reasonknee.stream.served import Opened, Row
from reasonknee.stream.sources import Source
from reasonknee.stream.state import MOST, Course, State, read_state


@dataclass(frozen=True)
class Settings:
    """How a stream is read, whatever it is a stream of."""

    seed: int | None = None
    mix: Mix = Mix()  # noqa: RUF009 - frozen
    part: Part | None = None  # None: by the group, or not said
    ranks: Ranks | None = None
    even: Even | None = None
    margin_mm: float | None = None
    ahead: int | None = None
    batch_known: bool = False  # else the loader's is taken


class Stream:
    """An iterable over the elements of a plan; see the module.

    Made by `quintuples`, `volumes` and `pairs`.
    """

    def __init__(self, source: Source, plan: Plan, settings: Settings) -> None:
        self.source, self.plan, self.settings = source, plan, settings
        self._ends = np.cumsum(plan.counts)
        self._digest = plan.digest()
        self._loaded: State | None = None  # a position for the next pass
        self._latest: Reading | None = None  # the latest pass in this process
        self._loads = 0
        self._own_numbers()

    def __getstate__(self) -> dict[str, Any]:
        """For workers that are spawned: they know nothing of the process group, so the share goes along. A
        stream that is sent to the processes of a group before there is one finds its share there."""
        part = self.settings.part or (self.part if in_group() else None)
        return {
            **vars(self),
            "settings": replace(self.settings, part=part),
            "_own": self._told,
            "_sent": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._own_numbers(state["_own"])

    def _own_numbers(self, sent: Any = None) -> None:
        """Numbers for this process and its workers: another rank that got the same stream has its own."""
        self._own, self._sent, self._owner = _told_to_workers(sent), sent, os.getpid()

    @property
    def _told(self) -> Any:
        """What this process tells its workers; in one of them, what it is told."""
        mine, worker = self._owner == os.getpid(), this_worker().pass_
        if worker and mine and self._sent is not None:  # spawned; one that is forked has what its parent has
            return self._sent
        if not worker and not mine:  # a rank that was forked
            self._own_numbers(self._own)
        return self._own

    def __repr__(self) -> str:
        of, many = self.source.config, len(self.plan.groups)
        order = (
            "in stored order" if self.settings.seed is None else f"shuffled with seed {self.settings.seed}"
        )
        return (
            f"Stream of {int(self._ends[-1])} elements on {many} volumes of {of}, {order}, epoch {self.epoch}"
        )

    @property
    def batch_size(self) -> int:
        """Rows that belong together in a batch."""
        return self.settings.mix.batch

    @property
    def epoch(self) -> int:
        """The epoch that comes next, or is under way."""
        return int(self._told[_EPOCH])

    @property
    def part(self) -> Part:
        """Whose rows these are."""
        given = self.settings.part
        return given or (group_part() if self.settings.ranks == "group" else lone_part())

    def share(self) -> Part:
        """As `part`, by the process group where nothing was said: what `reasonknee.collate.loader` takes."""
        return self.settings.part or group_part()

    def deal(self, ranks: Ranks | None) -> None:
        """Says who deals rows out: by the group, unless the stream was told otherwise, or now is."""
        said = self.settings.ranks or ("rank and world_size" if self.settings.part else None)
        if said is None:
            ranks = ranks or "group"
            self.settings = replace(self.settings, ranks=ranks, part=given_part(None, None, ranks))
        elif ranks not in (None, said):
            raise UsageError(
                "D055",
                f"ranks={ranks!r} for a stream that goes by {said}",
                "say it once; or make another stream",
            )

    def course(self, part: Part | None = None) -> Course:
        """Which rows a rank gets, and in which order."""
        seed, mix = self.settings.seed, self.settings.mix
        name = f"{self.source.identity}-{self._digest}-{seed}-{mix.lanes}-{mix.pool}-{mix.batch}"
        total = int(self._ends[-1])
        return Course(name, total, mix.batch, part or self.part, self.settings.even)

    def take_batch_size(self, batch: int) -> None:
        """The batch size of the loader, for a stream that was given none."""
        if not self.settings.batch_known:
            mix = replace(self.settings.mix, batch=batch)
            self.settings = replace(self.settings, mix=mix, batch_known=True)

    def set_epoch(self, epoch: int) -> None:
        """The epoch whose order comes next. A loaded position stays if it is in this epoch."""
        epoch = whole_number("epoch", epoch, 0, MOST)
        if self.settings.part or self.settings.ranks:
            refuse_second_sharing(self, self.share)
        if epoch == self.epoch:
            return
        unused = self._loaded is not None and not self._told[_RESUMED]
        if unused and self._loaded is not None and self._loaded.inside(self.course(self.share())):
            raise UsageError(
                "D049",
                f"a position in epoch {self.epoch} was loaded, and set_epoch({epoch}) would leave it",
                "begin the loop at the epoch of the state (`.epoch`), or load none",
            )
        self._loaded = self._latest = None
        self._tell(epoch)

    def _tell(self, epoch: int) -> None:
        for place, number in ((_EPOCH, epoch), (_PASS, 0), (_RESUMED, 0), (_LOADS, self._loads)):
            self._told[place] = number

    def __len__(self) -> int:
        """Elements of an epoch for this rank."""
        return self.course().length()

    # --- iterating ------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Row]:
        worker = this_worker()
        if worker.of > 1 and not self.settings.batch_known:
            hint = "give the stream the batch_size of the DataLoader, so that batches keep their order"
            raise UsageError("D040", f"{worker.of} workers and no batch_size", hint)
        reading = self.reading(self.part)
        ahead = self.settings.ahead
        if ahead is None and worker.pass_ and not self.source.remote:
            ahead = 0  # a worker runs beside the loop anyway, so only the network is worth threads in it
        for item in reading.rows(worker.number, worker.of, ahead):
            reading.had(1)
            yield item
        reading.ended()

    def reading(self, part: Part, drop_last: bool = False) -> Reading:
        """A pass over the rest of the epoch, from the position that was loaded, if one was."""
        worker = this_worker()
        refuse_second_sharing(self, lambda: part)
        if worker.pass_ and int(self._told[_LOADS]) != self._loads:
            raise UsageError(
                "D054", "a position was loaded while workers ran", "make the DataLoader anew after loading"
            )
        begin, self._loaded = self._loaded, None
        if begin and worker.pass_:  # new workers of a later pass come here with the loaded position again
            if int(self._told[_RESUMED]) in (0, worker.pass_):
                self._told[_RESUMED] = worker.pass_
            else:
                begin = None
        self._told[_PASS] = worker.pass_
        if begin and begin.workers and (begin.worker, begin.workers) != (worker.number, worker.of):
            raise UsageError(
                "D041",
                f"the state of worker {begin.worker} of {begin.workers} for {worker.number} of {worker.of}",
                "load the state of the whole loader into the stream",
            )
        course = replace(self.course(part), drop_last=drop_last)
        begin = (begin or State(self.epoch)).for_ranks(course)
        if worker.of > 1:
            begin = replace(begin, worker=worker.number, workers=worker.of)
        self._latest = Reading(self, begin, course)
        return self._latest

    # --- resuming -------------------------------------------------------------------------------------------

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where the latest pass stands. Where a DataLoader has workers, the stream that you hold is not the
        one that is read: say how many elements you have `consumed` from it since the pass began.
        `reasonknee.collate.loader` and StatefulDataLoader need no such count."""
        course, latest = self.course(self.share()), self._latest
        if consumed is not None:
            begin = latest.begin if latest else State(self.epoch)
            if self._loaded and int(self._told[_RESUMED]) in (0, int(self._told[_PASS])):
                begin = self._loaded
            count = min(whole_number("consumed", consumed, 0), course.length(begin.start) - begin.done)
            return begin.after(max(count, 0), course, in_batches=True).to_dict(course)
        if latest is None and self._told[_PASS] and not this_worker().pass_:
            raise UsageError(
                "D048",
                "workers read this stream",
                "state_dict(consumed=...) with the number of elements that the loop has had",
            )
        now = latest.state() if latest else self._loaded or State(self.epoch)
        worker = this_worker()
        if worker.of > 1 and not now.workers:  # asked before its first row, as StatefulDataLoader does
            now = replace(now, worker=worker.number, workers=worker.of)
        return now.for_ranks(course).to_dict(course)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next pass goes on where `state` stands: one of this stream, or a StatefulDataLoader's with
        any number of workers."""
        self._loaded, self._latest = read_state(state, self.course(self.share())), None
        if this_worker().pass_:
            self._told[_EPOCH] = self._loaded.epoch
        else:
            self._loads += 1
            self._tell(self._loaded.epoch)


class Reading:
    """One pass over a stream: where it began, and how far the caller has come."""

    def __init__(self, stream: Stream, begin: State, course: Course) -> None:
        self.stream, self.begin, self.course = stream, begin, course
        self.count, self.over = 0, False

    def rows(self, worker: int = 0, workers: int = 1, ahead: int | None = None) -> Iterator[Row]:
        """What one of several workers of this rank reads; by itself it counts nothing."""
        stream, course, begin = self.stream, self.course, self.begin
        part = replace(course.part, worker=worker, workers=workers)
        at = Position(begin.start, begin.done)
        mine = places(course.total, part, course.batch, at, course.even)[begin.served :]
        order = epoch_order(stream.plan.counts, stream.settings.seed, begin.epoch, stream.settings.mix)
        elements, ends = order[mine], np.cumsum(stream.plan.counts)
        groups = np.searchsorted(ends, elements, side="right")
        within = elements - (ends - stream.plan.counts)[groups]
        if ahead is None:
            ahead = 4 if stream.source.remote else 1
        for step in _opened_in_time(groups, within, self._open, ahead):
            yield stream.plan.item(step.group, step.opened, step.element, begin.epoch)

    def _open(self, group: int) -> list[Opened]:
        stream = self.stream
        return [stream.source.open(entry, stream.settings.margin_mm) for entry in stream.plan.groups[group]]

    def had(self, count: int) -> None:
        """The caller has been given so many more elements."""
        self.count += count
        self.stream._latest = self

    def ended(self) -> None:
        """The caller was told that there are no more."""
        self.over, self.stream._latest = True, self

    def state(self) -> State:
        if self.begin.workers:
            return replace(self.begin, served=self.begin.served + self.count)
        return self.begin.at_end(self.course) if self.over else self.begin.after(self.count, self.course)


_READER = "reasonknee-reader"  # what threads that open volumes are called


class _Step(NamedTuple):
    """An element, and the open volumes of its group."""

    group: int
    element: int
    opened: Sequence[Opened]


def _opened_in_time(
    groups: Numbers, within: Numbers, open_: Callable[[int], list[Opened]], ahead: int
) -> Iterator[_Step]:
    """Each element with its open group: opened when first needed, or `ahead` of that in a thread, and let
    go after its last element."""
    order, first = np.unique(groups, return_index=True)
    openings = iter(order[np.argsort(first)].tolist())
    last = len(groups) - 1 - np.unique(groups[::-1], return_index=True)[1]
    closes = np.zeros(len(groups), bool)
    closes[last] = True
    held: dict[int, list[Opened]] = {}
    coming: dict[int, Future[list[Opened]]] = {}
    readers = ThreadPoolExecutor(ahead, _READER) if ahead else None

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
            yield _Step(group, element, held[group])
            if over:
                del held[group]
    finally:
        if readers:
            # A pass that nobody holds may be collected in one of its own readers, which cannot wait for it.
            mine = current_thread().name.startswith(_READER)
            readers.shutdown(wait=not mine, cancel_futures=True)


# What a stream tells its copies in the worker processes of a DataLoader, and they it: the epoch, so that
# set_epoch reaches workers that persist; a number of the pass that they read, 0 for none; that of the pass
# which took the loaded position; and how often a position was loaded, which workers that run cannot know.
_EPOCH, _PASS, _RESUMED, _LOADS = range(4)


def _told_to_workers(sent: Any = None) -> Any:
    """Memory for them, with the numbers that were sent."""
    numbers = [0] * 4 if sent is None else [int(n) for n in sent]
    if find_spec("torch") is None:
        return numbers
    import torch
    from torch.utils.data import IterableDataset

    IterableDataset.register(Stream)  # a DataLoader asks by isinstance
    return torch.tensor(numbers, dtype=torch.int64).share_memory_()
