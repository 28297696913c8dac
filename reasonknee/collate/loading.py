"""From a stream of rows to batches on a device: read, collated and pinned in threads beside the loop. And
batches of one shape.

Threads are enough, since unpacking, scaling and copying voxels let other threads run; they share memory with
the loop, so that nothing is copied on the way, and the position is a plain number. Each thread is a worker of
the stream: it has every n-th batch, and the loop takes them in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from threading import current_thread
from typing import Any, NamedTuple, Protocol

from reasonknee.boxes import Shape
from reasonknee.collate.samples import Row, as_box, full_shape
from reasonknee.errors import UsageError, needed_torch, told_by_worker
from reasonknee.stream import Stream
from reasonknee.stream.order import Part, places, share_size
from reasonknee.stream.ranks import Ranks, given_part, group_part, this_worker

Collate = Callable[[list[Any]], Any]
_HAND = "reasonknee-loader"  # what threads that make batches are called


class Rows(Protocol):
    """What a loader reads."""

    def length(self) -> int:
        """Items of an epoch for this rank."""

    def reading(self) -> Any:
        """A pass: an object with `rows(worker, workers, ahead)`, `had(count)` and `ended()`."""


class Loader:
    """Iterate over it for batches; each iteration is a pass over the rows, the first one from where a
    loaded state stood. `loader` makes one.

    Epoch and position are taken when the first batch is asked for. `sampler` is the loader itself, since
    Lightning tells epochs to the sampler of what it is given.
    """

    def __init__(self, rows: Rows, source: Any, collator: Collate, plan: Plan) -> None:
        self.rows, self.source, self.collator, self.plan = rows, source, collator, plan

    def __repr__(self) -> str:
        plan, of = self.plan, self.source if isinstance(self.source, Stream) else type(self.source).__name__
        by = f"{plan.processes} processes" if plan.processes else f"{plan.workers} threads"
        return f"Loader of batches of {plan.batch_size} by {by}: {of}"

    @property
    def sampler(self) -> Loader:
        """The loader itself: frameworks look for `set_epoch` there."""
        return self

    @property
    def batch_size(self) -> int | None:
        """Items of a batch, as frameworks ask for it."""
        return self.plan.batch_size

    @property
    def epoch(self) -> int:
        """The epoch that comes next, or is under way."""
        return int(getattr(self.source, "epoch", 0))

    def __len__(self) -> int:
        """Batches of an epoch on this rank, where the rows have a length."""
        items, size = self.rows.length(), self.plan.batch_size or 1
        return items // size if self.plan.drop_last else -(-items // size)

    def __iter__(self) -> Iterator[Any]:
        reading = self.rows.reading()
        made = self._by_processes(reading) if self.plan.processes else self._by_threads(reading)
        for counted in made if self.plan.device is None else _ahead(made, self.plan.device):
            reading.had(counted.items)
            batch = counted.batch
            del counted
            yield batch
            del batch  # what the caller lets go is not held here
        reading.ended()

    def _made(self, rows: Iterator[Any]) -> Counted | None:
        """The next batch of a reader; None after its last."""
        size = self.plan.batch_size
        items = list(islice(rows, size or 1))
        if not items or (self.plan.drop_last and len(items) < (size or 1)):
            return None
        made = self.collator(items if size else items[0])
        pin = getattr(made, "pin_memory", None)
        return Counted(pin() if self.plan.pin and pin else made, len(items))

    def _by_threads(self, reading: Any) -> Iterator[Counted]:
        threads = self.plan.workers
        if not threads:
            rows = reading.rows()
            while (made := self._made(rows)) is not None:
                yield made
            return
        readers = [reading.rows(n, threads, self.plan.ahead) for n in range(threads)]
        hands = _hands(threads)
        coming: deque[Future[Counted | None]] = deque()
        try:
            for turn in count():
                coming.append(hands[turn % threads].submit(self._made, readers[turn % threads]))
                if len(coming) < threads * self.plan.prefetch:
                    continue
                made = coming.popleft().result()
                if made is None:
                    return
                yield made
                del made
        finally:
            for hand in hands:
                hand.shutdown(wait=False, cancel_futures=True)
            # A pass that nobody holds may be collected in one of its own threads, which cannot wait for it.
            if not current_thread().name.startswith(_HAND):
                for hand, rows in zip(hands, readers, strict=True):
                    hand.shutdown()
                    rows.close()

    def _by_processes(self, reading: Any) -> Iterator[Counted]:
        from torch.utils.data import DataLoader, IterableDataset

        IterableDataset.register(_Reader)  # a DataLoader asks by isinstance
        size = self.plan.batch_size
        team = DataLoader(
            _Reader(reading),
            batch_size=size,
            collate_fn=_Counting(self.collator, size),
            num_workers=self.plan.processes,
            prefetch_factor=self.plan.prefetch,
            pin_memory=self.plan.pin,
            drop_last=self.plan.drop_last,
        )
        try:
            for items, made in team:
                yield Counted(made, items)
        except RuntimeError as error:
            ours = told_by_worker(str(error))
            raise ours or error from (error if ours else error.__cause__)

    # --- epochs and positions, which are the stream's -------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, and with it the order; the same number gives the same order."""
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the caller stands: after the batch it was given last, however many are on their way."""
        return dict(self._stream().state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._stream().load_state_dict(state)

    def _stream(self) -> Stream:
        if not isinstance(self.source, Stream):
            raise UsageError(
                "G064",
                f"a {type(self.source).__name__} has no position to keep",
                "streams of reasonknee.stream have",
            )
        return self.source


def _hands(count: int) -> list[ThreadPoolExecutor]:
    """Threads in which an operation of torch is one thread, too. Otherwise it is as many as there are cores,
    in each of ours, and they wait for each other and for the loop."""
    import torch

    usual = torch.get_num_threads()
    hands = [ThreadPoolExecutor(1, _HAND) for _ in range(count)]
    for hand in hands:
        hand.submit(torch.get_num_threads)  # the first call takes the usual number, and would undo the next
        hand.submit(torch.set_num_threads, 1).result()
    torch.set_num_threads(usual)  # a thread sets its own number, and that with which later threads begin
    return hands


class Counted(NamedTuple):
    """A batch, and how many items of the stream it was made of."""

    batch: Any
    items: int

    def to(self, device: Any) -> Counted:
        return Counted(self.batch.to(device), self.items) if hasattr(self.batch, "to") else self


class Plan(NamedTuple):
    """How a loader works."""

    batch_size: int | None
    workers: int
    processes: int
    prefetch: int
    drop_last: bool
    device: Any
    pin: bool
    ahead: int | None  # volumes that a thread reads in advance


def loader(
    rows: Any,
    collator: Collate,
    batch_size: int | None = None,
    *,
    workers: int = 2,
    processes: int = 0,
    device: Any = None,
    prefetch: int = 2,
    drop_last: bool = False,
    ranks: Ranks | None = None,
) -> Loader:
    """Batches of a stream, a map-style dataset or any iterable. With `batch_size` None each item is a list of
    rows already.

    `workers` threads read and collate, each with `prefetch` batches ready; 0 for none, then nothing runs
    beside the loop. `processes` in their place are worth their cost where a transform holds the interpreter.
    Of several processes of torch.distributed each gets its share, unless the stream says otherwise or
    ranks="whole" does. Batches are pinned where there is an accelerator, and with a `device` the next batch
    is on its way there while the current one is used.
    """
    torch = needed_torch()
    for name, value, least in (
        ("workers", workers, 0),
        ("processes", processes, 0),
        ("prefetch", prefetch, 1),
        ("batch_size", 1 if batch_size is None else batch_size, 1),
    ):
        if type(value) is not int or value < least:
            raise UsageError("G067", f"{name}={value!r}"[:80], f"a whole number from {least} on")
    known = isinstance(rows, Stream) and rows.settings.batch_known
    if known and rows.batch_size != (batch_size or 1):
        raise UsageError(
            "G066",
            f"batch_size={batch_size} on a stream with batch_size={rows.batch_size}",
            "give both the same, or the stream none",
        )
    several, drop_last = max(workers, processes) > 1, bool(batch_size) and drop_last
    served: Rows
    if isinstance(rows, Stream):
        rows.take_batch_size(batch_size or 1)
        served = _Streamed(rows, ranks, drop_last)
        if rows.settings.seed is None:  # in stored order, two threads would read the same volumes
            workers = min(workers, 1)
    elif hasattr(rows, "__getitem__") and hasattr(rows, "__len__"):
        served = _Indexed(rows, batch_size or 1, given_part(None, None, ranks))
    else:
        if processes:
            raise UsageError(
                "G061",
                f"a {type(rows).__name__} cannot be shared among processes",
                "reasonknee.stream can; or processes=0",
            )
        served, workers = _OneByOne(rows, ranks), min(workers, 1) if several else workers
    remote = isinstance(rows, Stream) and rows.source.remote
    ahead = rows.settings.ahead if isinstance(rows, Stream) else None
    if ahead is None and not remote:
        ahead = 0  # a thread runs beside the loop anyway, so only the network is worth more of them
    pin = torch.accelerator.is_available()
    plan = Plan(batch_size, workers, processes, prefetch, drop_last, device, pin, ahead)
    return Loader(served, rows, collator, plan)


# --- what is read -------------------------------------------------------------------------------------------


class _Streamed:
    def __init__(self, stream: Stream, ranks: Ranks | None, drop_last: bool) -> None:
        self.stream, self.drop_last = stream, drop_last
        stream.deal(ranks)

    def length(self) -> int:
        return self.stream.course(self.stream.share()).length()

    def reading(self) -> Any:
        return self.stream.reading(self.stream.share(), self.drop_last)


class _Indexed:
    """Rows by index, dealt out as a stream deals its own. A pass, too, since it keeps no position."""

    def __init__(self, rows: Any, batch: int, part: Part | None) -> None:
        self.all, self.batch, self.part = rows, batch, part

    def length(self) -> int:
        return share_size(len(self.all), self.part or group_part(), self.batch)

    def reading(self) -> _Indexed:
        return _Indexed(self.all, self.batch, self.part or group_part())

    def rows(self, worker: int = 0, workers: int = 1, ahead: int | None = None) -> Iterator[Any]:
        part = self.part or Part()
        mine = places(len(self.all), Part(part.rank, part.world_size, worker, workers), self.batch)
        return (self.all[i] for i in mine.tolist())

    def had(self, count: int) -> None:
        """No position is kept."""

    def ended(self) -> None:
        """Nor an end."""


class _OneByOne:
    """Rows that come in an order of their own: for one reader."""

    def __init__(self, rows: Iterable[Any], ranks: Ranks | None) -> None:
        self.all, self.ranks, self.passes = rows, ranks, 0

    def length(self) -> int:
        raise TypeError(f"a {type(self.all).__name__} has no length")

    def reading(self) -> _OneByOne:
        if self.ranks != "whole" and group_part().world_size > 1:
            raise UsageError(
                "G068",
                f"a {type(self.all).__name__} cannot be dealt out to several processes",
                'give the loader a stream; or ranks="whole", where these rows are a share already',
            )
        self.passes += 1
        return self

    def rows(self, worker: int = 0, workers: int = 1, ahead: int | None = None) -> Iterator[Any]:
        once = iter(self.all)
        if once is self.all and self.passes > 1:
            raise UsageError(
                "G065",
                f"a {type(self.all).__name__} can be read once",
                "give a list, a stream, or make the loader anew",
            )
        return (row for row in once)

    def had(self, count: int) -> None:
        """No position is kept."""

    def ended(self) -> None:
        """Nor an end."""


class _Reader:
    """A pass as torch's DataLoader wants it: each of its workers reads its part."""

    def __init__(self, reading: Any) -> None:
        self.reading = reading

    def __iter__(self) -> Iterator[Any]:
        worker = this_worker()
        return iter(self.reading.rows(worker.number, worker.of, None))


class _Counting:
    """A collator whose batches come with the number of their items."""

    def __init__(self, collator: Collate, batch_size: int | None) -> None:
        self.collator, self.batch_size = collator, batch_size

    def __call__(self, items: Any) -> tuple[int, Any]:
        return (len(items) if self.batch_size else 1), self.collator(items)


def _ahead(batches: Iterator[Counted], device: Any) -> Iterator[Counted]:
    """Each batch on the device, the one after it already on its way, on a stream of its own where the
    device has streams."""
    import torch

    side = torch.cuda.Stream(device) if torch.device(device).type == "cuda" else None

    def sent() -> Counted | None:
        batch = next(batches, None)
        if batch is None or side is None:
            return batch and batch.to(device)
        with torch.cuda.stream(side):
            return batch.to(device)

    following = sent()
    while following is not None:
        current = following
        if side is not None:
            now = torch.cuda.current_stream(device)
            now.wait_stream(side)
            tensors = current.batch.tensors() if hasattr(current.batch, "tensors") else {}
            for tensor in tensors.values():  # so that its memory is not given away while the model reads it
                tensor.record_stream(now)
        following = sent()
        yield current


# --- batches of one shape -----------------------------------------------------------------------------------


def shape_of(row: Row) -> Shape | None:
    """The shape of a row's voxels, read off its crop; the volume is not decoded.

    None where there is no volume.
    """
    crop = as_box(row.get("crop"))
    if crop is not None:
        return crop.shape
    return None if row.get("volume") is None else full_shape(row)


def bucket_by_shape(
    rows: Iterable[Row], batch_size: int, *, step: Shape = (1, 1, 1), pool: int = 1024
) -> Iterator[list[Row]]:
    """Lists of up to `batch_size` rows of one shape, for fit="native"; with a coarser `step` of like shapes,
    for little padding.

    At most `pool` rows wait for others of their shape; beyond that the fullest list goes out short, and at
    the end all that wait do. Every row comes out once.
    """
    if batch_size < 1 or pool < batch_size or any(n < 1 for n in step):
        raise UsageError(
            "G062",
            f"batch_size={batch_size}, pool={pool}, step={step}",
            "positive numbers, and a pool that holds a batch",
        )
    waiting: dict[tuple[int, ...] | None, list[Row]] = {}
    count = 0
    for row in rows:
        if not isinstance(row, Mapping):
            raise UsageError(
                "G063", f"a {type(row).__name__} where a row is wanted", "bucket rows, not batches"
            )
        shape = shape_of(row)
        key = None if shape is None else tuple(-(-n // s) for n, s in zip(shape, step, strict=True))
        bucket = waiting.setdefault(key, [])
        bucket.append(row)
        count += 1
        if len(bucket) == batch_size:
            count -= len(waiting[key])
            yield waiting.pop(key)
        elif count >= pool:
            key = max(waiting, key=lambda k: len(waiting[k]))
            count -= len(waiting[key])
            yield waiting.pop(key)
    yield from waiting.values()
