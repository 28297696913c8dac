"""From a stream of rows to batches on a device: DataLoader with the settings that a collator of whole volumes needs. And batches of one shape."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from reasonknee.boxes import Shape
from reasonknee.collate.buffers import Shipping, Slots
from reasonknee.collate.samples import Row, as_box, full_shape
from reasonknee.errors import UsageError, needed_torch, told_by_worker

if TYPE_CHECKING:
    from reasonknee.collate.batch import Batch
    from reasonknee.collate.collator import Collator


class Loader:
    """Iterate over it for batches; each iteration is a pass over the rows, the first one from where a loaded state stood. `loader` makes one."""

    def __init__(self, rows: Any, team: Callable[[], Any], workers: int, device: Any, length: Callable[[int], int]) -> None:
        self.rows, self.workers, self.device, self._length = rows, workers, device, length
        self._team = team  # makes a DataLoader with workers and memory of its own
        self._idle: list[Any] = []  # teams whose pass is over: the next one goes on with their workers and memory
        self._loads, self._pid = 0, os.getpid()
        self._taken = self._given = 0  # items in batches that came from DataLoader in this pass, and that the caller has seen

    def __iter__(self) -> Iterator[Batch]:
        self._taken = self._given = 0
        counted = self._counted()
        for batch in counted if self.device is None else _ahead(counted, self.device):
            self._given += batch.items
            yield batch

    def __len__(self) -> int:
        """Batches of an epoch, where the rows have a length."""
        return self._length(len(self.rows))

    def _counted(self) -> Iterator[Batch]:
        loads = getattr(self.rows, "loads", 0)
        if (loads, os.getpid()) != (self._loads, self._pid):
            self._loads, self._pid = loads, os.getpid()
            self._idle.clear()  # a position that was loaded reaches new workers only, and workers answer to the process that started them
        team = self._idle.pop() if self._idle else self._team()
        try:
            for batch in team:
                self._taken += batch.items
                yield batch
        except GeneratorExit:
            self._idle.append(team)
            raise
        except RuntimeError as error:
            ours = told_by_worker(str(error))
            raise ours or error from (error if ours else error.__cause__)
        self._idle.append(team)  # after any other exception its workers may be in any state

    def set_epoch(self, epoch: int) -> None:
        self.rows.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Where the caller stands: after the batch it was given last, however many are on their way."""
        self._check()
        if self.workers:
            return dict(self.rows.state_dict(consumed=self._given))
        state = self.rows.state_dict()
        return {**state, "served": state["served"] - (self._taken - self._given)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._check()
        self.rows.load_state_dict(state)
        self._idle.clear()
        self._taken = self._given = 0

    def _check(self) -> None:
        if not hasattr(self.rows, "load_state_dict"):
            raise UsageError("G064", f"a {type(self.rows).__name__} has no position to keep", "streams of reasonknee.stream have")


def loader(
    rows: Any, collator: Collator, batch_size: int | None = None, *, workers: int = 0, device: Any = None, prefetch: int = 2, drop_last: bool = False
) -> Loader:
    """Batches of a stream, a map-style dataset or, without workers, any iterable. With `batch_size` None each item is a list of rows already.

    Each worker keeps `prefetch` batches ready; workers live as long as the loader. Batches are pinned where there is an accelerator, and with a
    `device` the next batch is on its way there while the current one is used.
    """
    torch = needed_torch()
    from torch.utils.data import DataLoader, IterableDataset

    if type(workers) is not int or workers < 0:
        raise UsageError("G067", f"workers={workers!r}", "a whole number of processes, 0 for none")
    ahead = prefetch + 2  # batches of a worker that are alive at once: ready, in the caller's hands, and on the way to the device
    if workers and collator.ring_size and collator.ring_size < ahead:
        raise UsageError("G060", f"a ring of {collator.ring_size} buffers, {prefetch} batches ahead", f"ring_size={ahead} or more, or fresh buffers")
    ordered_by = getattr(rows, "batch_size", batch_size)  # a stream deals itself out to workers in batches of this size
    if workers > 1 and ordered_by != batch_size:
        raise UsageError("G066", f"batch_size={batch_size} on a stream with batch_size={ordered_by}", "give both the same")
    map_style = hasattr(rows, "__getitem__") and hasattr(rows, "__len__")
    if not map_style and not isinstance(rows, IterableDataset):
        if workers:
            raise UsageError("G061", f"a {type(rows).__name__} cannot be shared among workers", "reasonknee.stream can; or workers=0")
        rows = _as_dataset(rows)

    def team() -> Any:
        return DataLoader(
            rows,
            batch_size=batch_size,
            collate_fn=Shipping(collator, [Slots(prefetch + 2) for _ in range(workers)]) if workers else collator,
            num_workers=workers,
            prefetch_factor=prefetch if workers else None,
            persistent_workers=workers > 0,
            pin_memory=torch.accelerator.is_available(),
            drop_last=bool(batch_size) and drop_last,
        )

    def length(items: int) -> int:
        return items if not batch_size else items // batch_size if drop_last else -(-items // batch_size)

    return Loader(rows, team, workers, device, length)


def _as_dataset(rows: Iterable[Any]) -> Any:
    from torch.utils.data import IterableDataset

    class Rows(IterableDataset):
        passes = 0

        def __iter__(self) -> Iterator[Any]:
            self.passes += 1
            found = iter(rows)
            if found is rows and self.passes > 1:
                raise UsageError("G065", f"a {type(rows).__name__} can be read once", "give a list, a stream, or make the loader anew")
            return found

    return Rows()


def _ahead(batches: Iterator[Batch], device: Any) -> Iterator[Batch]:
    """Each batch on the device, the one after it already on its way, on a stream of its own where the device has streams."""
    import torch

    side = torch.cuda.Stream(device) if torch.device(device).type == "cuda" else None

    def sent() -> Batch | None:
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
            for tensor in current.tensors().values():
                tensor.record_stream(now)  # so that its memory is not given away while the model still reads it
        following = sent()
        yield current


def shape_of(row: Row) -> Shape | None:
    """The shape of a row's voxels, read off its crop; the volume is not decoded. None where there is no volume."""
    crop = as_box(row.get("crop"))
    if crop is not None:
        return crop.shape
    return None if row.get("volume") is None else full_shape(row)


def bucket_by_shape(rows: Iterable[Row], batch_size: int, *, step: Shape = (1, 1, 1), pool: int = 1024) -> Iterator[list[Row]]:
    """Lists of up to `batch_size` rows of one shape, for fit="native"; with a coarser `step` of like shapes, for little padding.

    At most `pool` rows wait for others of their shape; beyond that the fullest list goes out short, and at the end all that wait do. Every row comes
    out once.
    """
    if batch_size < 1 or pool < batch_size or any(n < 1 for n in step):
        raise UsageError("G062", f"batch_size={batch_size}, pool={pool}, step={step}", "positive numbers, and a pool that holds a batch")
    waiting: dict[tuple[int, ...] | None, list[Row]] = {}
    count = 0
    for row in rows:
        if not isinstance(row, Mapping):
            raise UsageError("G063", f"a {type(row).__name__} where a row is wanted", "bucket rows, not batches")
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
