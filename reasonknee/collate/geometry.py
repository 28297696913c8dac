"""Rows changed in space, and with them all that says where they are: box, crop, affine, spacing, shape.

A `transform` of a collator takes a row of a stream and gives one. `flipped`, `turned`, `cut` and `resampled`
are ready; `moved` takes what MONAI, TorchIO or anything else made of the voxels, together with the affine
that it says they have now. The affine is what tells a flip from a change of brightness, so voxels that were
put elsewhere while the affine stayed are refused (`Change`). After a change, `shape`, `crop` and `box` are
those of the full volume changed the same way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from threading import Lock
from typing import Any

import numpy as np

from reasonknee.boxes import Box, Shape
from reasonknee.collate.samples import Row, as_box, full_shape
from reasonknee.errors import DataError, UsageError, needed_torch

Transform = Callable[..., Row]  # of a row; with a seed, of a row and a numpy.random.Generator
AXES = ("z", "y", "x")
_NEAR = 1e-3  # voxels, and cosines: affines are stored in 32 bits


def flipped(row: Row, *axes: str) -> Row:
    """The voxels in reverse along some axes."""
    array, step = _voxels(row), np.eye(4)
    for axis in map(_number, axes):
        array = np.flip(array, axis)
        step[2 - axis, 2 - axis], step[2 - axis, 3] = -1, array.shape[axis] - 1
    return moved(row, array, row["affine"] @ step)


def turned(row: Row, axes: tuple[str, str] = ("y", "x"), times: int = 1) -> Row:
    """So many quarter turns in the plane of two axes, from the first to the second."""
    array, affine = _voxels(row), np.asarray(row["affine"], np.float64)
    first, second = map(_number, axes)
    for _ in range(times % 4):
        step = np.zeros((4, 4))  # from positions in the new array to those in the old one, both as x, y, z
        step[3, 3] = 1
        for axis in range(3):
            step[2 - axis, 2 - axis] = axis not in (first, second)
        step[2 - first, 2 - second] = 1
        step[2 - second, 2 - first], step[2 - second, 3] = -1, array.shape[second] - 1
        array, affine = np.rot90(array, 1, (first, second)), affine @ step
    return moved(row, array, affine)


def cut(row: Row, part: Box) -> Row:
    """A part of the voxels, in voxels of the row's array."""
    array, step = _voxels(row), np.eye(4)
    if any(stop > size for stop, size in zip(part.stop, array.shape, strict=True)):
        raise UsageError("G081", f"{part} of {array.shape} voxels", "the part has to lie inside")
    step[:3, 3] = part.start[::-1]
    return moved(row, array[part.slices], row["affine"] @ step)


def resampled(row: Row, shape: Shape) -> Row:
    """The same region on another grid, trilinear; smoothed first along each axis that gets coarser, so that
    fine structures do not turn into false ones."""
    torch = needed_torch()
    # a copy: an axis of one voxel that was flipped counts as contiguous, and torch takes no negative stride
    array = torch.from_numpy(np.array(_voxels(row), np.float32, order="C"))[None, None]
    factors = [of / to for of, to in zip(array.shape[2:], shape, strict=True)]
    for axis, factor in enumerate(factors):
        if factor > 1:
            array = _blurred(array, axis, (factor - 1) / 2)
    fine = torch.nn.functional.interpolate(array, size=shape, mode="trilinear", align_corners=False)
    step = np.eye(4)
    for axis, factor in enumerate(factors):
        step[2 - axis, 2 - axis], step[2 - axis, 3] = factor, (factor - 1) / 2
    return moved(row, fine[0, 0].numpy(), row["affine"] @ step)


def _blurred(array: Any, axis: int, sigma: float) -> Any:
    import torch

    reach = math.ceil(3 * sigma)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    size = [1, 1, 1, 1, 1]
    size[2 + axis] = len(kernel)
    padding = [0] * 6
    padding[2 * (2 - axis)] = padding[2 * (2 - axis) + 1] = reach
    padded = torch.nn.functional.pad(array, padding, mode="replicate")
    return torch.nn.functional.conv3d(padded, (kernel / kernel.sum()).view(size))


def moved(row: Row, array: np.ndarray, affine: Any) -> Row:
    """The row with these voxels (z, y, x), which lie where `affine` (of x, y, z) says: flipped, turned by
    quarters, cut, padded or resampled. Anything that is not along the axes is refused, since a box would not
    be one any more; and so is what leaves nothing of the box."""
    _voxels(row)
    crop, shape, box = as_box(row["crop"]), full_shape(row), as_box(row.get("box"))
    if crop is None or shape is None:
        raise DataError("G013", f"{row.get('id')}: no field 'crop' or 'shape'", "stream these columns too")
    affine = np.asarray(affine, np.float64)
    if array.ndim != 3 or affine.shape != (4, 4) or not np.isfinite(affine).all():
        raise DataError("G082", f"{row.get('id')}: voxels {array.shape}, affine {affine.shape}", _WANTED)
    back = _along_axes(np.linalg.inv(np.asarray(row["affine"], np.float64)) @ affine, str(row.get("id")))
    away = np.linalg.inv(back)

    def new(start: Any, stop: Any) -> tuple[np.ndarray, np.ndarray]:
        """The two corners of a box of the old array, by edges, in the new one."""
        corners = np.array([start[::-1], stop[::-1]], np.float64) - 0.5  # x, y, z of centres
        ends = (corners @ away[:3, :3].T + away[:3, 3] + 0.5)[:, ::-1]
        return np.round(ends.min(0), 6), np.round(ends.max(0), 6)

    low, high = new(-np.array(crop.start), np.array(shape) - crop.start)
    start = np.maximum(np.floor(-low + _NEAR).astype(int), 0)
    size = np.maximum(start + array.shape, np.ceil(high - low - _NEAR).astype(int))
    place = _box(start, start + array.shape)
    changed = {
        **row,
        "volume": array,
        "affine": affine,
        "crop": place.as_dict(),
        "shape": dict(zip(AXES, size.tolist(), strict=True)),
        "spacing": dict(zip(AXES, np.linalg.norm(affine[:3, :3], axis=0)[::-1].tolist(), strict=True)),
        "moved": True,
    }
    if box is not None:
        inside = box.inside(crop)
        low, high = new(inside.start, inside.stop)
        low = np.clip(np.floor(low + _NEAR), 0, array.shape).astype(int)
        high = np.clip(np.ceil(high - _NEAR), 0, array.shape).astype(int)
        if (low >= high).any():
            raise DataError("G083", f"{row.get('id')}: nothing of its box is left", "cut around the box")
        changed["box"] = _box(low + start, high + start).as_dict()
    return changed


_WANTED = "a (z, y, x) array, and the 4 x 4 affine of its x, y and z"


def _box(low: np.ndarray, high: np.ndarray) -> Box:
    (z0, y0, x0), (z1, y1, x1) = low.tolist(), high.tolist()
    return Box(z0, z1, y0, y1, x0, x1)


def _along_axes(step: np.ndarray, name: str) -> np.ndarray:
    """The step from new to old positions, if it takes each axis to an axis."""
    linear = step[:3, :3]
    scale = np.abs(linear).max(0)
    if not (np.isfinite(step).all() and (scale > 0).all()):
        raise DataError("G082", f"{name}: an affine that cannot be inverted", _WANTED)
    whole = np.abs(linear) > 0.5 * scale
    if (
        not (whole.sum(0) == 1).all()
        or not (whole.sum(1) == 1).all()
        or (np.abs(linear[~whole]) > _NEAR).any()
    ):
        raise DataError(
            "G084", f"{name}: turned by less than a quarter", "flip, turn by quarters, cut, resample"
        )
    clean: np.ndarray = step.copy()
    clean[:3, :3][~whole] = 0
    return clean


def _voxels(row: Row) -> np.ndarray:
    array = row.get("volume")
    if not isinstance(array, np.ndarray) or row.get("affine") is None:
        raise DataError(
            "G085", f"{row.get('id')}: no voxels and affine to change", "transform rows of a stream"
        )
    return array


def _number(axis: str) -> int:
    if axis not in AXES:
        raise UsageError("G020", f"axis {axis!r}"[:60], "z, y or x")
    return AXES.index(axis)


class Change:
    """A transform as a collator applies it: to one row at a time, whichever threads ask, since libraries keep
    what they draw on the object that draws it. With a seed the transform gets a random generator of its own
    for each row, of (seed, epoch, row): the same draws with any number of workers, and after a resume."""

    def __init__(self, transform: Transform, seed: int | None) -> None:
        self.transform, self.seed = transform, seed
        self._turns: dict[int, Lock] = {}  # by process: one that is forked may find a turn that never ends

    def __reduce__(self) -> tuple[type[Change], tuple[Transform, int | None]]:
        return Change, (self.transform, self.seed)

    def __call__(self, row: Row) -> Row:
        drawn = () if self.seed is None else (_generator(row, self.seed),)
        with self._turns.setdefault(os.getpid(), Lock()):
            changed = self.transform(row, *drawn)
        return _checked(row, changed)


def _generator(row: Row, seed: int) -> np.random.Generator:
    epoch = getattr(row, "epoch", None)
    if epoch is None:
        raise UsageError(
            "G088",
            f"{row.get('id')}: no epoch to draw a change from",
            "give rows of reasonknee.stream as they are; or no seed, and draw in the transform",
        )
    return np.random.default_rng([seed, epoch, *sha256(str(row["id"]).encode()).digest()])


def _checked(row: Row, changed: Any) -> Row:
    """What a transform made of a row. Voxels that were only put elsewhere, as a flip does, have to come with
    another affine."""
    if not isinstance(changed, Mapping):
        raise UsageError("G086", f"a transform that gives a {type(changed).__name__}", "it has to give a row")
    old, new = row.get("volume"), changed.get("volume")
    if not isinstance(old, np.ndarray) or new is old or changed.get("moved"):
        return changed
    same_place = np.array_equal(row["affine"], changed["affine"]) and changed.get("crop") == row.get("crop")
    if isinstance(new, np.ndarray) and same_place and _rearranged(old, new):
        raise DataError(
            "G080",
            f"{row.get('id')}: its voxels were put elsewhere, and its box was not",
            "reasonknee.collate.geometry has flips, turns, cuts and resampling that move both",
        )
    return changed


def _rearranged(old: np.ndarray, new: np.ndarray) -> bool:
    """Whether an array has the voxels of another in another order: a view of them, or the same sums."""
    if np.shares_memory(old, new):
        return new.strides != old.strides or new.ctypes.data != old.ctypes.data or new.shape != old.shape
    if new.shape != old.shape or new.dtype != old.dtype or np.array_equal(new, old):
        return new.size == old.size and new.shape != old.shape
    if old.sum(dtype=np.float64) != new.sum(dtype=np.float64):  # quick, and true of nearly all that is else
        return False
    return np.array_equal(np.sort(old, axis=None), np.sort(new, axis=None))
