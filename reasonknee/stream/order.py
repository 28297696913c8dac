"""The order of a stream as pure arithmetic: which element comes when, who gets it, and where to go on.

Elements 0..n-1 belong to groups (volumes) that are costly to open. `epoch_order` gives the *global order*, an
array that depends on the group sizes, the seed, the epoch and the three sizes of `Mix` and on nothing else:

1. Groups are put in an order drawn from (seed, epoch) and dealt to `lanes` in turn, each to the lane with the
   fewest elements so far.
2. The p-th group of a lane scatters its elements over the times p to p + depth, depth = pool / lanes, and the
   lane goes by time. So at most `depth` groups of a lane are open at once, one opens as another closes, and
   all of them together are at most `pool`.
3. Lanes take turns, `batch` elements each, as long as they have that many; the few elements left in each come
   last.

`share` deals the global order out in blocks of `batch`: block b goes to rank b % world_size, and of the
blocks of a rank number j goes to worker j % workers. A DataLoader asks its workers in turn for one batch
each, so with this `batch` as its batch size a rank sees the same batches for any number of workers. Where
lanes are a multiple of world_size x workers, a lane stays with one worker: each group is opened once.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from reasonknee.errors import UsageError

Even = Literal["pad", "drop"]
Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Mix:
    """How groups are mixed: lanes run side by side, `pool` groups are open in all of them together, lanes
    take turns after `batch` elements."""

    lanes: int = 8
    pool: int = 16
    batch: int = 1

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.batch < 1 or self.pool < self.lanes:
            raise UsageError(
                "D001",
                f"lanes={self.lanes}, pool={self.pool}, batch_size={self.batch}",
                "all positive, and a pool of at least one volume a lane",
            )

    @property
    def depth(self) -> int:
        return self.pool // self.lanes


def mixed(numbers: Numbers, *salts: int) -> Numbers:
    """64 well-stirred bits of each number (splitmix64): the same on every machine and in every version of
    numpy, unlike its generators."""
    x = numbers.astype(np.uint64)
    for salt in salts:
        x = x + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return x


def epoch_order(counts: Numbers, seed: int | None, epoch: int, mix: Mix) -> Numbers:
    """The global order of one epoch; without a seed, the elements as they stand."""
    counts = np.asarray(counts, np.int64)
    if seed is None:
        return np.arange(int(counts.sum()), dtype=np.int64)
    groups = np.argsort(mixed(np.arange(len(counts)), seed, epoch, 0), kind="stable")
    first = np.cumsum(counts) - counts
    lane_of = _deal(counts[groups], mix.lanes)
    lanes = []
    for lane in range(mix.lanes):
        members = groups[lane_of == lane]
        sizes = counts[members]
        place = np.repeat(np.arange(len(members)), sizes)
        within = np.arange(len(place)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        elements = first[members][place] + within
        time = place + (mixed(elements, seed, epoch, 1) >> np.uint64(11)) * (2.0**-53 * mix.depth)
        lanes.append(elements[np.argsort(time, kind="stable")])
    return _take_turns(lanes, mix.batch)


def _deal(counts: Numbers, lanes: int) -> Numbers:
    """The lane of each group: the one with the fewest elements, the lowest among equals."""
    loads = [(0, lane) for lane in range(lanes)]
    lane_of = np.empty(len(counts), np.int64)
    for i, count in enumerate(counts.tolist()):
        load, lane_of[i] = heapq.heappop(loads)
        heapq.heappush(loads, (load + count, int(lane_of[i])))
    return lane_of


def _take_turns(lanes: list[Numbers], batch: int) -> Numbers:
    parts = []
    while running := [lane for lane in lanes if len(lane) >= batch]:
        rounds = min(len(lane) for lane in running) // batch
        turns = [lane[: rounds * batch].reshape(rounds, batch) for lane in running]
        parts.append(np.stack(turns, axis=1).reshape(-1))
        lanes = [lane[rounds * batch :] if len(lane) >= batch else lane for lane in lanes]
    return np.concatenate([*parts, *lanes]) if lanes else np.empty(0, np.int64)


# --- who gets what ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One reader among all: a worker of a rank."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        if not (0 <= self.rank < self.world_size and 0 <= self.worker < self.workers):
            raise UsageError(
                "D002",
                f"rank {self.rank} of {self.world_size}, worker {self.worker} of {self.workers}",
                "they count from 0",
            )


@dataclass(frozen=True)
class Position:
    """Where an epoch goes on: the global order up to `start` is done, and of what this rank gets from
    there, its first `done` elements."""

    start: int = 0
    done: int = 0


def places(
    length: int,
    part: Part,
    batch: int,
    at: Position = Position(),  # noqa: B008 - frozen
    even: Even | None = None,
) -> Numbers:
    """The places in a global order of `length` that a reader serves, in its order.

    Ranks may differ by a batch at the end, since nothing is dropped or repeated. For a loop that needs the
    same number of batches on every rank, `even="drop"` leaves out the last incomplete round and `even="pad"`
    fills it with elements from the front of the order.
    """
    rest = np.arange(at.start, length, dtype=np.int64)
    over = len(rest) % (batch * part.world_size)
    if even == "drop":
        rest = rest[: len(rest) - over]
    elif even == "pad" and over:
        rest = np.concatenate([rest, np.resize(np.arange(length), batch * part.world_size - over)])
    mine = _blocks(rest, batch, part.rank, part.world_size)[at.done :]
    return _blocks(mine, batch, part.worker, part.workers)


def share_size(elements: int, part: Part, batch: int, even: Even | None = None) -> int:
    """How many of so many elements, dealt out in blocks of `batch`, a rank gets: the length of `places`."""
    rounds, over = divmod(elements, batch * part.world_size)
    if even == "drop" or not over:
        return rounds * batch
    return rounds * batch + (batch if even == "pad" else min(max(over - part.rank * batch, 0), batch))


def _blocks(places: Numbers, batch: int, index: int, of: int) -> Numbers:
    return places if of == 1 else places[np.arange(len(places)) // batch % of == index]


def merged(served: list[int], batch: int) -> int:
    """How many elements of its rank's order the workers have served together, which must be the first
    ones; worker i has served `served[i]`."""
    total = sum(served)
    wanted = [len(_blocks(np.arange(total), batch, i, len(served))) for i in range(len(served))]
    if wanted != served:
        raise UsageError(
            "D003",
            f"the workers stand at {served}: not at the same batch",
            "keep `in_order`, and the stream's batch_size, in the loader",
        )
    return total
