"""Which rows this process reads: its rank among those that train together, its worker among those that load.

Nobody is guessed to want every row on every rank. A stream in one of several processes is told who deals
rows out: the process group (`ranks="group"`), numbers given by hand (`rank`, `world_size`), or something
else that takes them all from here (`ranks="whole"`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from reasonknee.errors import UsageError
from reasonknee.stream.order import Part

Ranks = Literal["group", "whole"]
CHOICES = ("group", "whole")
_CHOOSE = (
    'ranks="group" for a share by torch.distributed, ranks="whole" where a framework deals the rows out; or '
    "reasonknee.collate.loader, which takes its share itself"
)


def given_part(rank: int | None, world_size: int | None, ranks: Ranks | None) -> Part | None:
    """What the caller said; None where that is "by the group", or nothing."""
    if ranks not in (None, *CHOICES):
        raise UsageError("D006", f"ranks={ranks!r}"[:80], f"one of {', '.join(CHOICES)}, or left out")
    if ranks is not None and (rank is not None or world_size is not None):
        raise UsageError(
            "D050", f"ranks={ranks!r} with rank={rank}, world_size={world_size}", "say one or the other"
        )
    if (rank is None) != (world_size is None):
        raise UsageError("D050", f"rank={rank}, world_size={world_size}", "give both, or neither")
    if rank is not None and world_size is not None:
        return Part(rank, world_size)
    return Part() if ranks == "whole" else None


def in_group() -> bool:
    """Whether this process is one of torch.distributed's."""
    torch: Any = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


def group_part() -> Part:
    """This process among those of torch.distributed; alone, where there is no group."""
    if in_group():
        import torch.distributed

        return Part(torch.distributed.get_rank(), torch.distributed.get_world_size())
    told = os.environ.get("WORLD_SIZE", "")
    if told.isdigit() and int(told) > 1:
        raise UsageError(
            "D051",
            f"WORLD_SIZE is {told}, and torch.distributed is not initialised",
            "call torch.distributed.init_process_group() first, or say rank= and world_size=",
        )
    return Part()


def lone_part() -> Part:
    """This process, which must be the only one, since nobody has said who deals rows out."""
    part = group_part()
    if part.world_size > 1:
        raise UsageError("D052", f"{part.world_size} processes, and no word on who reads what", _CHOOSE)
    return part


class Worker(NamedTuple):
    """A DataLoader worker among all, and a number of the pass that they were started for; 0 outside."""

    number: int = 0
    of: int = 1
    pass_: int = 0


def this_worker() -> Worker:
    if sys.modules.get("torch") is None:
        return Worker()
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return Worker() if info is None else Worker(info.id, info.num_workers, info.seed - info.id)


def refuse_second_sharing(stream: object, part: Callable[[], Part]) -> None:
    """accelerate deals out what a DataLoader gives: of a stream that deals itself out, ranks would get a
    share of a share."""
    accelerate: Any = sys.modules.get("accelerate")
    if accelerate is None or part().world_size == 1:
        return
    from accelerate.data_loader import DataLoaderDispatcher, IterableDatasetShard

    active = accelerate.state.GradientState().active_dataloader
    dataset = getattr(active, "dataset", None)
    dispatched = isinstance(active, DataLoaderDispatcher) and dataset is stream
    if dispatched or (isinstance(dataset, IterableDatasetShard) and dataset.dataset is stream):
        raise UsageError(
            "D053",
            "accelerate shares out a stream that shares itself out: rows would be lost",
            'ranks="whole" for the stream, or reasonknee.collate.loader in place of the DataLoader',
        )
