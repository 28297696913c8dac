"""The one way to share long work: an executor, and what comes of its jobs.

    with executor(workers, dask) as pool:                # `--workers N` and `--dask ADDRESS` of a command
        for job, result in in_order(work, jobs, pool):   # or `as_finished`, in any order
            ...
            progress("checking shards", done, len(jobs))

`work` is a function of a module and a job is plain data: both travel to another process. With one worker
there is no pool (None), and the work is done here, a job at a time. An error of `work` is raised where its
result is taken; a worker that dies is one clear error. What has not begun when the executor is left never
does. Nothing here is done by threads.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import contextmanager
from typing import Any, TypeVar

from reasonknee.errors import StorageError

Job = TypeVar("Job")
Result = TypeVar("Result")


@contextmanager
def executor(workers: int = 1, dask: str = "") -> Iterator[Executor | None]:
    """A Dask cluster where an address is given, a pool of processes for several workers, else None."""
    if dask:
        from reasonknee.system.cluster import dask_executor

        with dask_executor(dask) as cluster:
            yield cluster
    elif workers > 1:
        with worker_pool(workers) as pool:
            yield pool
    else:
        yield None


def in_order(
    work: Callable[[Job], Result], jobs: Sequence[Job], pool: Executor | None = None
) -> Iterator[tuple[Job, Result]]:
    """Each job with its result, in the order of the jobs."""
    if pool is None or len(jobs) < 2:
        yield from ((job, work(job)) for job in jobs)
        return
    futures = deque(pool.submit(work, job) for job in jobs)
    for job in jobs:
        yield job, futures.popleft().result()


def as_finished(
    work: Callable[[Job], Result], jobs: Sequence[Job], pool: Executor | None = None
) -> Iterator[tuple[Job, Result]]:
    """Each job with its result, the one that is done first first."""
    if pool is None or len(jobs) < 2:
        yield from in_order(work, jobs)
        return
    job_of = {pool.submit(work, job): job for job in jobs}
    for future in as_completed(job_of):
        yield job_of[future], future.result()


@contextmanager
def worker_pool(
    workers: int, start: Callable[..., object] | None = None, args: tuple[Any, ...] = ()
) -> Iterator[Executor]:
    """A pool of processes, started afresh rather than forked: a fork of a process with threads may hang.

    `start(*args)` runs first in each.
    """
    pool = _Pool(workers, multiprocessing.get_context("spawn"), _begin, (start, args))
    try:
        yield pool
    except (BrokenExecutor, CancelledError):
        raise StorageError(
            "R004", "a worker process died", "run the same command again; fewer --workers need less memory"
        ) from None
    except KeyboardInterrupt:  # what they are at is not waited for: a file is under its name when it is whole
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Its processes are started when work is submitted, and are deaf to Ctrl-C from their first moment: it
    goes to the whole terminal, and a worker that hears it before it has begun prints a traceback."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        with _deaf_to_interrupts():
            return super().submit(*args, **kwargs)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """SIGINT waits, in this thread and in processes that it starts."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
