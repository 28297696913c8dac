"""Where batches are written: memory that the caller has let go, between workers and the main process too.

A batch of four volumes is 377 MB. Written into new shared memory, most of its time goes into pages that the system has to find, clear and map. So a
worker keeps a few *slots* of shared memory. The first batch in a slot takes the slot along to the main process, a later one only its number. A
batch in the main process is a *lease*: when its tensor and every view of it are gone, a flag in shared memory tells the worker that the slot is free.
Nobody has to say so, and a batch that is kept stays as it is. What does not count as a view is a copy of the process: a process that the caller forks
does not hold a lease.
"""

from __future__ import annotations

import os
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reasonknee.collate.samples import Row
from reasonknee.memory import Recycled

if TYPE_CHECKING:
    import torch

    from reasonknee.collate.batch import Batch
    from reasonknee.collate.collator import Collator

Take = Callable[[int], "torch.Tensor"]  # so many bytes, as a tensor of uint8
_FLAGS = 4096  # slots that a worker may have at once; beyond that, batches go the ordinary way
_SMALL = 1 << 16  # bytes of a tensor that is sent by value
_ROOM = 8  # a new slot is an eighth larger than what is asked, since batches differ in size


class Here:
    """Memory of this process; in a worker of somebody else's DataLoader, new memory that the main process sees too, which spares a copy."""

    def __init__(self) -> None:
        self.memory = Recycled()

    def __call__(self, size: int) -> torch.Tensor:
        import torch
        from torch.utils.data import get_worker_info

        return torch.from_numpy(self.memory.take(size)) if get_worker_info() is None else _shared(size)


def _shared(size: int) -> torch.Tensor:
    import torch

    new = getattr(torch.UntypedStorage, "_new_shared", None)
    if new is None:
        return torch.empty(size, dtype=torch.uint8)
    return torch.empty(0, dtype=torch.uint8).set_(new(size))


# Of the process that leases, so that a batch that arrives finds its slots.
_SLOTS: weakref.WeakValueDictionary[str, Slots] = weakref.WeakValueDictionary()


class Slots:
    """The slots of one worker, as the worker and the main process see them: each has an object of this class with the same name and flags."""

    def __init__(self, spare: int) -> None:
        import torch

        self.name, self.spare, self.pid = uuid.uuid4().hex, spare, os.getpid()
        self.flags = torch.zeros(_FLAGS, dtype=torch.uint8).share_memory_()  # 1 from when a batch leaves the worker until it is let go
        self.memory: dict[int, torch.Tensor] = {}
        self.told: set[int] = set()  # in the worker: slots that the main process has, too
        self.dropped: list[int] = []  # in the worker: slots that it has and should forget
        self._leases: dict[int, weakref.ref[np.ndarray]] = {}
        _SLOTS[self.name] = self

    def __getstate__(self) -> dict[str, Any]:  # for workers that are spawned: its tensors are shared, not copied
        return {**vars(self), "_leases": {}}

    # --- in the main process

    def lease(self, told: Lease) -> torch.Tensor:
        import torch

        number = told.number
        for gone in told.dropped:
            self.memory.pop(gone, None)
        if told.slot is not None:
            self.memory[number] = told.slot
        root: np.ndarray = self.memory[number].numpy()  # a new array each time, to which all views of this lease refer
        flags: np.ndarray = self.flags.numpy()
        leases, owner = self._leases, self.pid

        def let_go(_: object) -> None:
            if os.getpid() == owner:  # a process that was forked has copies of the tensors, not the lease
                leases.pop(number, None)
                flags[number] = 0

        leases[number] = weakref.ref(root, let_go)
        return torch.from_numpy(root[: told.size])

    # --- in the worker

    def take(self, size: int) -> int | None:
        """The number of a slot of at least this size that is free. Of the free ones, only a few are kept."""
        free = sorted((n for n in self.memory if not self.flags[n]), key=lambda n: len(self.memory[n]))
        for number in free[: max(0, len(free) - self.spare)]:
            self._drop(number)
        fitting = next((n for n in free if n in self.memory and len(self.memory[n]) >= size), None)
        if fitting is not None:
            return fitting
        if len(free) >= self.spare:
            self._drop(next(n for n in free if n in self.memory))
        number = next((n for n in range(_FLAGS) if n not in self.memory and not self.flags[n]), -1)
        if number < 0:
            return None
        self.memory[number] = _shared(size + size // _ROOM)
        return number

    def _drop(self, number: int) -> None:
        del self.memory[number]
        if number in self.told:
            self.told.remove(number)
            self.dropped.append(number)

    def ship(self, number: int, size: int) -> Lease:
        """The slot leaves for the main process."""
        self.flags[number] = 1
        lease = Lease(self.name, number, None if number in self.told else self.memory[number], self.dropped, size)
        self.told.add(number)
        self.dropped = []
        return lease


class Shipping:
    """A collator whose batches travel from workers in slots. For DataLoader's `collate_fn`."""

    def __init__(self, collator: Collator, slots: Sequence[Slots]) -> None:
        self.collator, self.slots = collator, slots

    def __call__(self, items: Sequence[Row]) -> Parcel:
        from torch.utils.data import get_worker_info

        slots = self.slots[get_worker_info().id]  # type: ignore[union-attr]
        taken: list[tuple[int, int]] = []

        def take(size: int) -> torch.Tensor:
            number = slots.take(size)
            if number is None:
                return _shared(size)
            taken.append((number, size))
            return slots.memory[number][:size]

        batch = self.collator.collate(items, None if self.collator.ring_size else take)  # a ring has memory of its own
        return Parcel(batch, slots.ship(*taken[0]) if taken else None)


class Lease(NamedTuple):
    """What the main process has to know to find the volumes of a batch."""

    slots: str  # by name
    number: int
    slot: torch.Tensor | None  # itself, if it is new
    dropped: list[int]  # slots that are no longer used
    size: int


class Parcel:
    """A batch on its way: unpickled, it is the batch, its volumes leased. Small tensors go by value: each one in shared memory of its own, as torch
    sends them, would cost more than the rest."""

    def __init__(self, batch: Batch, lease: Lease | None) -> None:
        self.batch, self.lease = batch, lease

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        import torch

        leased = ["volumes"] if self.lease else []
        tensors = self.batch.tensors()
        small = {n: t.numpy() for n, t in tensors.items() if n not in leased and t.nbytes <= _SMALL and t.dtype != torch.bfloat16}
        form = (tensors["volumes"].dtype, tuple(tensors["volumes"].shape)) if leased else None
        rest: dict[str, Any] = dict.fromkeys([*small, *leased])
        return _arrived, (replace(self.batch, **rest), small, self.lease, form)


def _arrived(batch: Batch, small: dict[str, np.ndarray], lease: Lease | None, form: tuple[torch.dtype, tuple[int, ...]] | None) -> Batch:
    import torch

    for name, array in small.items():
        setattr(batch, name, torch.from_numpy(array))
    if lease is not None and form is not None:
        batch.volumes = _SLOTS[lease.slots].lease(lease).view(form[0]).view(form[1])
    return batch
