"""The processes that train together, as `torchrun` or `accelerate launch` start them; a process alone is a
team of one. The first one looks, decides and writes, and the others wait for what it says."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from reasonknee.errors import ReasonKneeError, UsageError

_PATIENCE = timedelta(hours=2)  # the others wait while the first process looks at the validation split
_SHARDED = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Team:
    """This process among those that train together."""

    rank: int = 0
    size: int = 1
    device: str | None = None  # its own, where there are several

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def first(self, work: Callable[[], Found]) -> Found:
        """What the first process alone does, and its result on all of them; its refusal is everybody's."""
        if self.size == 1:
            return work()
        from torch.distributed import broadcast_object_list

        said: list[tuple[Found | None, ReasonKneeError | None]] = [(None, None)]
        if self.leads:
            try:
                said = [(work(), None)]
            except ReasonKneeError as error:
                said = [(None, error)]
        broadcast_object_list(said, src=0)
        ((found, refusal),) = said
        if refusal is not None:
            raise refusal
        return found  # type: ignore[return-value]

    def wait(self) -> None:
        """Until all are here."""
        self.first(lambda: None)


def gathered(device: str | None) -> Team:
    """The team that this process was started in."""
    sharded = [name for name in _SHARDED if os.environ.get(name, "").lower() in ("1", "true", "yes")]
    if sharded:
        raise UsageError(
            "N091",
            f"{sharded[0]} is set: weights in parts are not written out here",
            "launch without FSDP or DeepSpeed: each process holds the whole model",
        )
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return Team()
    import torch
    from accelerate import PartialState

    # where nothing but the CPU is there, accelerate forms no group unless it is told
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    state = PartialState(cpu=on_cpu, timeout=_PATIENCE)
    return Team(state.process_index, state.num_processes, str(state.device))
