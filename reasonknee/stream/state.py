"""Where a stream stands, as a few numbers that outlast the process: the same for every rank.

A training loop runs in rounds: in each, every rank takes a batch. `start` says how much of the global order
whole rounds have taken, so that any number of ranks can go on from there. Where a rank stopped inside a
batch, `done` counts what it had of it. A state may come from anywhere, so nothing in it is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from reasonknee.errors import UsageError, shown
from reasonknee.stream.order import Even, Part, merged, share_size

KIND, VERSION = "reasonknee.stream", 2
MOST = 2**53  # of any number: what JSON keeps
_DEPTH = 12  # dicts in dicts that a loader's state may be made of
_GIVE = "give what state_dict() returned"


@dataclass(frozen=True)
class Course:
    """What a position is a place in: the order's name and length, its batches, and the reader's part."""

    name: str  # of the stream whose order it is
    total: int
    batch: int
    part: Part
    even: Even | None = None
    drop_last: bool = False  # short batches are not given to the loop

    def length(self, start: int = 0) -> int:
        """Elements of this rank from `start` on."""
        return share_size(self.total - start, self.part, self.batch, self.even)


@dataclass(frozen=True)
class State:
    epoch: int = 0
    start: int = 0  # the global order up to here is done
    done: int = 0  # and of the batch that its rank gets next, so many elements
    ranks: int = 1  # that `done` was counted with
    worker: int = 0  # where workers read: whose state this is,
    workers: int = 0  # among how many,
    served: int = 0  # and how many elements it has served from there on

    def after(self, count: int, course: Course, in_batches: bool = False) -> State:
        """The position once this rank has had `count` more elements. A short batch is the last one of its
        rank, and ends a round as any other; `in_batches` says that the count holds no part of a batch.
        With even="drop" the last round ends the epoch: what it leaves is dropped."""
        had, size, ranks = self.done + count, course.batch, course.part.world_size
        if course.even == "drop" and had > 0 and had >= course.length(self.start):
            return self.at_end(course)
        rounds, rest = divmod(had, size)
        last = self.start + (rounds + 1) * size * ranks > course.total
        if rest and (had >= course.length(self.start) or (in_batches and last)):
            rounds, rest = rounds + 1, 0
        start = min(course.total, self.start + rounds * size * ranks)
        if course.drop_last and not rest and course.total - start < size:  # not even rank 0 gets a batch
            return self.at_end(course)
        return State(self.epoch, start, 0 if start == course.total else rest, ranks)

    def at_end(self, course: Course) -> State:
        return State(self.epoch, course.total, 0, course.part.world_size)

    def inside(self, course: Course) -> bool:
        """Whether it lies within its epoch: not at its beginning, and something is left for rank 0, which
        has the most."""
        most = replace(course, part=Part(0, course.part.world_size))
        return self.done + self.served > 0 or (self.start > 0 and most.length(self.start) > 0)

    def to_dict(self, course: Course) -> dict[str, Any]:
        numbers = asdict(self)
        if not self.workers:
            numbers = {k: v for k, v in numbers.items() if k not in ("worker", "workers", "served")}
        return {"kind": KIND, "version": VERSION, "of": course.name, **numbers}

    def for_ranks(self, course: Course) -> State:
        """The same position for another number of ranks, which must lie between two batches."""
        if self.done and self.ranks != course.part.world_size:
            raise UsageError(
                "D044",
                f"{self.done} elements are not a whole batch of {course.batch}",
                "change the number of ranks between batches",
            )
        return replace(self, ranks=course.part.world_size)


def read_state(raw: Any, course: Course) -> State:
    """The position in a state of a stream, or in a StatefulDataLoader's that holds one for each worker."""
    parts = [_checked(each, course) for each in _states_in(raw, 0)]
    if not parts:
        raise UsageError("D042", "no state of a stream in this", _GIVE)
    first = parts[0]
    if len(parts) == 1 and (not first.workers or _is_state(raw)):
        return first.for_ranks(course)
    parts.sort(key=lambda s: s.worker)
    if [s.worker for s in parts] != list(range(first.workers)):
        raise UsageError("D042", f"the states of {len(parts)} of {first.workers} workers", _GIVE)
    begun = {(s.epoch, s.start, s.done, s.ranks, s.workers) for s in parts}
    if len(begun) > 1:
        raise UsageError("D042", "the states of workers of different passes", _GIVE)
    begin = replace(first, worker=0, workers=0, served=0)
    count = merged([s.served for s in parts], course.batch)
    of_then = replace(course, part=Part(min(course.part.rank, first.ranks - 1), first.ranks))
    return begin.after(count, of_then, in_batches=True).for_ranks(course)


def _is_state(raw: Any) -> bool:
    return isinstance(raw, Mapping) and raw.get("kind") == KIND


def _states_in(raw: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if depth > _DEPTH or not isinstance(raw, Mapping):
        return
    if _is_state(raw):
        yield raw
        return
    if raw.get("_steps_since_snapshot"):
        raise UsageError(
            "D045", "the loader's state is older than its last batch", "use snapshot_every_n_steps=1"
        )
    for value in raw.values():
        yield from _states_in(value, depth + 1)


def _checked(raw: Mapping[str, Any], course: Course) -> State:
    if raw.get("version") != VERSION:
        raise UsageError(
            "D043",
            f"a state of version {shown(raw.get('version'), 20)}, not {VERSION}",
            "it was written by another version of reasonknee: start the epoch anew",
        )
    if raw.get("of") != course.name:
        raise UsageError(
            "D043",
            "a state of another stream",
            "release, config, selection, seed, lanes, pool and batch_size must be the same",
        )
    numbers = {}
    for field in fields(State):
        needed = field.name in ("epoch", "start", "done", "ranks") or "workers" in raw
        value = raw.get(field.name, None if needed else field.default)
        if type(value) is not int or not 0 <= value <= MOST:
            raise UsageError("D042", f"a state with {field.name}={shown(value, 40)}", _GIVE)
        numbers[field.name] = value
    state = State(**numbers)
    aligned = state.start % course.batch == 0 or state.start == course.total
    placed = state.start <= course.total and state.done < course.batch and state.ranks >= 1
    worked = state.worker < state.workers if "workers" in raw else state.worker == state.served == 0
    if not (aligned and placed and worked and state.done + state.served <= _most(state, course)):
        raise UsageError("D042", "a state whose numbers do not fit its stream", _GIVE)
    return state


def _most(state: State, course: Course) -> int:
    """Elements that any rank can have had since `start`; the last round may have been filled up."""
    return share_size(course.total - state.start, Part(0, state.ranks), course.batch, "pad")
