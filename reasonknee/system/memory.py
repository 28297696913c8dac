"""Memory that is used again once nothing refers to it: a fresh page costs the system more than filling it
costs us."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

_SPARE = 2 << 30  # bytes kept for later at the most: five batches of four full-size volumes
_SLACK = 32 << 20  # bytes by which all memory together may exceed the most that was in use at once
_ROUND = 1 << 20  # sizes are rounded up to this, so that like sizes can follow each other
_HUGE = 1 << 21


class Recycled:
    """Hands out arrays of bytes. When the last view of one is gone, wherever it went, its memory is handed
    out again.

    What is in use and what is kept for later are together little more than the most that was ever in use at
    once. The callback of a dead array may come at any moment, in any thread, so it takes no lock. A process
    that is forked starts with nothing.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._back: deque[mmap.mmap] = deque()
        self._spare: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._alive: dict[int, tuple[weakref.ref[np.ndarray], int]] = {}
        self._most = 0

    def __reduce__(self) -> tuple[type[Recycled], tuple[()]]:
        return Recycled, ()  # memory stays where it is; another process has its own

    def spare(self) -> int:
        """Bytes that are kept for later."""
        return sum(map(len, [*self._spare, *self._back]))

    def used(self) -> int:
        """Bytes that something refers to."""
        return sum(size for _, size in list(self._alive.values()))

    def take(self, size: int) -> np.ndarray:
        """`size` bytes, unset."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            while self._back:
                self._spare.append(self._back.popleft())
            fits = [i for i, block in enumerate(self._spare) if size <= len(block) <= 2 * size + _ROUND]
            block = self._spare.pop(min(fits, key=lambda i: len(self._spare[i]))) if fits else None
            rounded = len(block) if block is not None else _rounded(size)
            self._most = max(self._most, self.used() + rounded)
            while self._spare and self.used() + rounded + self.spare() > self._most + _SLACK:
                self._spare.pop(0)
        if block is None:
            block = _new(rounded)
        array: np.ndarray = np.frombuffer(
            block, np.uint8, size
        )  # its base is no array, so views of it refer to it and not past it
        key = id(array)

        # An array may outlive the modules of an interpreter that ends, `os` among them.
        def gone(
            _: object,
            block: mmap.mmap = block,
            pid: int = self._pid,
            over: Callable[[], bool] = sys.is_finalizing,
        ) -> None:
            if over():
                return
            self._alive.pop(key, None)
            kept = self.spare() + len(block)
            if pid == os.getpid() and kept <= _SPARE and self.used() + kept <= self._most + _SLACK:
                self._back.append(block)

        self._alive[key] = (weakref.ref(array, gone), len(block))
        return array


def _rounded(size: int) -> int:
    return max(_ROUND, -(-size // _ROUND) * _ROUND)


def _new(size: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        raise MemoryError(f"{size} bytes") from None
    if len(block) >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            block.madvise(mmap.MADV_HUGEPAGE)
    return block
