"""Worker processes that end with their parent, and whose death is one clear error."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from reasonknee.errors import StorageError

Job = TypeVar("Job")
Result = TypeVar("Result")


@contextmanager
def worker_pool(workers: int, start: Callable[..., object] | None = None, args: tuple[Any, ...] = ()) -> Iterator[Executor]:
    """A pool of processes, started afresh rather than forked: a fork of a process with threads may hang. `start(*args)` runs first in each."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (start, args))
    try:
        yield pool
    except (BrokenExecutor, CancelledError):
        raise StorageError("R004", "a worker process died", "run the same command again; fewer --workers need less memory") from None
    finally:
        pool.shutdown(cancel_futures=True)


def in_order(work: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Iterator[Result]:
    """The result of each job, in the order of the jobs: here, or by a pool where there is something to share."""
    if workers <= 1 or len(jobs) < 2:
        yield from map(work, jobs)
        return
    with worker_pool(min(workers, len(jobs))) as pool:
        yield from pool.map(work, jobs)


def _begin(start: Callable[..., object] | None, args: tuple[Any, ...]) -> None:
    """Left alone by a killed parent, a worker could write into the next build: so it follows."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends the pool
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    if start is not None:
        start(*args)


def _follow(parent: Any) -> None:
    parent.join()
    os._exit(1)
