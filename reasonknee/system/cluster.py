"""A Dask cluster as an executor.

Its workers need this package and the same file system; a worker that dies is replaced by the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Executor
from contextlib import contextmanager

from reasonknee.errors import StorageError, UsageError


@contextmanager
def dask_executor(address: str, timeout: str = "30s") -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError(
            "R006", "--dask needs the package distributed", "pip install 'reasonknee[cluster]'"
        ) from None
    try:
        client = Client(address, timeout=timeout, set_as_default=False)
    except (OSError, ValueError) as error:
        raise StorageError(
            "R007", f"no Dask scheduler at {address}: {error}", "check the address that the scheduler printed"
        ) from None
    from distributed.scheduler import KilledWorker

    # a job is idempotent, so it is tried again when its worker dies; the limit is for one that kills every
    # worker it meets
    executor = client.get_executor(retries=3, pure=False)
    try:
        yield executor
    except (KilledWorker, CancelledError):
        raise StorageError(
            "R004",
            "a piece of work ended every worker that took it",
            "give the workers more memory; run again to go on",
        ) from None
    finally:
        executor.shutdown(wait=False)
        client.close()
