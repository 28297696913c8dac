"""Intensity windows: how voxels become numbers from 0 to 1, the same way for every slice of a volume. And the
loop that does it fast.

A window maps lo to 0 and hi to 1 and clips what lies outside. `None` in its place keeps the voxels' own
values.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.system.memory import Recycled

if TYPE_CHECKING:
    import torch

PERCENTILES = (0.5, 99.5)
_SLAB = 1 << 18  # voxels at a time: their copies in 16 and 32 bits stay in the cache
_MOST_KEPT = 2 << 30  # bytes of scaled volumes in all workers, 22 full-size ones in float32
_CACHED = 4096  # windows kept, a few hundred bytes each


class Window(NamedTuple):
    lo: float
    hi: float


WINDOWS = {"paper": Window(0.0, 400.0)}  # the paper clips DESS at 400
WINDOW_NAMES = (*WINDOWS, "percentile")
WindowChoice = str | tuple[float, float] | Mapping[str, tuple[float, float]] | None


def percentile_window(array: np.ndarray) -> Window:
    """The voxel values at the 0.5th and 99.5th percentile: values that occur, so that whole numbers stay
    whole."""
    if array.dtype in (np.uint16, np.int16):
        low = int(np.iinfo(array.dtype).min)
        count = np.zeros(1 << 16, np.int64)
        step = _step(array.shape)
        for z in range(
            0, len(array), step
        ):  # counting beats sorting seven times, and a slab at a time needs no wide copy of the volume
            values = array[z : z + step].reshape(-1).astype(np.int64)
            found = np.bincount(values - low if low else values)
            count[: len(found)] += found
        ranks = np.ceil(np.array(PERCENTILES) / 100 * array.size).clip(1)
        lo, hi = (float(v) for v in np.searchsorted(count.cumsum(), ranks) + low)
    else:
        lo, hi = (float(v) for v in np.percentile(array, PERCENTILES, method="inverted_cdf"))
    return Window(lo, hi if hi > lo else lo + 1)


class Windowing:
    """Which window a volume gets: one for all, one by volume id, or its percentiles, computed once and
    kept."""

    def __init__(self, choice: WindowChoice) -> None:
        if isinstance(choice, str) and choice not in WINDOW_NAMES:
            raise UsageError(
                "G001",
                f"unknown intensity window {choice!r}",
                f"choose one of {', '.join(WINDOW_NAMES)}, (lo, hi) or None",
            )
        self.percentile = choice == "percentile"
        self.fixed: Window | None = None
        self.by_volume: dict[str, Window] | None = None
        if isinstance(choice, Mapping):
            self.by_volume = {name: _window(pair) for name, pair in choice.items()}
        elif isinstance(choice, str):
            self.fixed = WINDOWS.get(choice)
        elif choice is not None:
            self.fixed = _window(choice)
        self._known: dict[tuple[str, Box], Window] = {}

    def of(self, volume_id: str, place: Box, array: np.ndarray, keep: bool = True) -> Window | None:
        """The window for the voxels at `place`.

        Percentiles are those of the array: of the full volume if that is what the row holds. They are kept
        for when the same voxels come again.
        """
        if self.by_volume is not None:
            if volume_id not in self.by_volume:
                raise DataError(
                    "G002",
                    f"no intensity window for volume {volume_id}",
                    "give one for every volume, or a window by name",
                )
            return self.by_volume[volume_id]
        if not self.percentile:
            return self.fixed
        if not keep:
            return percentile_window(array)
        key = (volume_id, place)
        window = self._known.get(key)
        if window is None:
            while len(self._known) >= _CACHED:  # other threads may do the same
                self._known.pop(next(iter(list(self._known))), None)
            window = self._known[key] = percentile_window(array)
        return window


def _window(pair: Any) -> Window:
    try:
        lo, hi = (float(v) for v in pair)
    except (TypeError, ValueError):
        raise UsageError("G001", f"an intensity window of {pair!r}", "two numbers, lo and hi") from None
    if not (np.isfinite([lo, hi]).all() and lo < hi):
        raise UsageError("G001", f"an intensity window from {lo} to {hi}", "lo must be below hi")
    return Window(lo, hi)


def _step(shape: tuple[int, ...]) -> int:
    return max(1, _SLAB // max(1, shape[1] * shape[2]))


class Scratch(threading.local):
    """Memory for one slab, kept between calls: fresh pages would cost as much as the work.

    Each thread has its own.
    """

    def __reduce__(self) -> tuple[type[Scratch], tuple[()]]:
        return Scratch, ()

    def __init__(self) -> None:
        self._narrow = np.empty(0, np.uint16)
        self._wide = np.empty(0, np.float32)

    def narrow(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        size = math.prod(shape)
        if self._narrow.size < size:
            self._narrow = np.empty(size, np.uint16)
        return self._narrow[:size].view(dtype).reshape(shape)

    def wide(self, shape: tuple[int, ...]) -> np.ndarray:
        size = math.prod(shape)
        if self._wide.size < size:
            self._wide = np.empty(size, np.float32)
        return self._wide[:size].reshape(shape)


def fill(out: torch.Tensor, array: np.ndarray, window: Window | None, scratch: Scratch) -> None:
    """Writes the windowed voxels of a (z, y, x) array into `out`, of the same shape and any float type.

    A few slices at a time are clipped in 16 bits, widened to float32, scaled, and rounded once to the type of
    `out`. So the source is read once, `out` is written once, and nothing of the volume's size is made in
    between. Any strides will do, also negative ones.
    """
    import torch

    step = min(_step(array.shape), len(array))
    slab = (step, *array.shape[1:])
    wide = None if out.dtype == torch.float32 else torch.from_numpy(scratch.wide(slab))
    clipped = scratch.narrow(slab, array.dtype) if _clips_in_16_bits(array.dtype, window) else None
    as_torch = (
        None if clipped is None else torch.from_numpy(clipped.view(np.int16))
    )  # torch does little with uint16; below 2^15 the bits are the same
    for z in range(0, len(array), step):
        source, target = array[z : z + step], out[z : z + step]
        n = len(source)
        floats = target if wide is None else wide[:n]
        if window is None or clipped is None or as_torch is None:
            np.copyto(floats.numpy(), source, casting="unsafe")
            if window is not None:
                floats.clamp_(window.lo, window.hi)
        else:
            np.clip(source, array.dtype.type(window.lo), array.dtype.type(window.hi), out=clipped[:n])
            floats.copy_(as_torch[:n])
        if window is not None:
            if window.lo:
                floats.sub_(window.lo)
            floats.div_(window.hi - window.lo)
        if wide is not None:
            target.copy_(floats)


def _workers() -> int:
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return info.num_workers if info else 1


class Again:
    """Voxels that come again and again, such as a whole volume for each of its questions: from the fourth
    time on they are kept as the numbers that they become, since to copy these takes half the time of scaling.
    They go when the array does, which the stream holds as long as it is needed. Threads share what is kept:
    each step on it is one that no other thread sees half done, and to keep an array twice does no harm."""

    def __init__(self) -> None:
        self._memory = Recycled()
        self._times: dict[tuple[int, bool], int] = {}
        self._kept: dict[tuple[int, bool], torch.Tensor] = {}
        self._watched: dict[int, weakref.ref[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type[Again], tuple[()]]:
        return Again, ()

    def fill(
        self, out: torch.Tensor, array: np.ndarray, mirrored: bool, window: Window | None, scratch: Scratch
    ) -> None:
        """As `fill`; an array has one window, that of its volume."""
        import torch

        if array.flags.writeable:  # its owner may change it
            fill(out, array[::-1] if mirrored else array, window, scratch)
            return
        key = (id(array), mirrored)
        if id(array) not in self._watched:
            self._watched[id(array)] = weakref.ref(array, partial(self._forget, id(array)))
        kept = self._kept.get(key)
        if kept is not None and kept.dtype == out.dtype:
            out.copy_(kept)
            return
        fill(out, array[::-1] if mirrored else array, window, scratch)
        self._times[key] = self._times.get(key, 0) + 1
        if (
            self._times[key] > 3
            and sum(k.nbytes for k in list(self._kept.values())) + out.nbytes <= _MOST_KEPT // _workers()
        ):
            own = torch.from_numpy(self._memory.take(out.nbytes)).view(out.dtype).view(out.shape)
            self._kept[key] = own.copy_(out)

    def _forget(self, number: int, _: object) -> None:
        self._watched.pop(number, None)
        for key in ((number, False), (number, True)):
            self._times.pop(key, None)
            self._kept.pop(key, None)


def _clips_in_16_bits(dtype: np.dtype[Any], window: Window | None) -> bool:
    if (
        dtype not in (np.uint16, np.int16)
        or window is None
        or not (window.lo.is_integer() and window.hi.is_integer())
    ):
        return False
    return bool(np.iinfo(dtype).min <= window.lo and window.hi < 1 << 15)
