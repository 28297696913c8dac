"""One knee under two patients: the same values, which leave the same prints, or a picture that is too like
another one.

A print is a number of a slice, the same for the same values in whatever order. A picture is the volume in a
few blocks, without its slow changes and z-scored, so that another intensity, noise, a shift by a voxel or two
or a mirror leave it nearly what it was, while two different knees share little more than that they are knees.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

_BLOCKS = (8, 16, 16)
_SAMPLED = 96  # rows and columns that are looked at, of larger slices
# Correlation. Of different phantoms the most alike reach 0.72 (6,600 pairs), copies with another intensity,
# noise of a third of the deviation, a shift by a voxel or a mirror at least 0.91.
ALIKE = 0.85
_AT_ONCE = 1024  # rows of the matrix of correlations


class Pair(NamedTuple):
    """Two volumes by their number, and how alike they are."""

    first: int
    second: int
    correlation: float


def picture(array: np.ndarray) -> np.ndarray:
    """2,048 numbers of mean 0 and deviation 1; none of a volume that is too small, or flat."""
    if any(size < 2 * blocks for size, blocks in zip(array.shape, _BLOCKS, strict=True)):
        return np.zeros(0, np.float16)
    _, y, x = (max(1, size // _SAMPLED) for size in array.shape)
    slabs = pairwise(_edges(array, 0).tolist())  # whole slices are added twice as fast one block at a time
    small: np.ndarray = np.stack([array[a:b, ::y, ::x].mean(axis=0, dtype=np.float32) for a, b in slabs])
    for axis in (1, 2):
        edges = _edges(small, axis)
        sizes = np.diff(edges).reshape([-1 if n == axis else 1 for n in range(3)])
        small = np.add.reduceat(small, edges[:-1], axis=axis) / sizes
    detail = small - _blurred(small)
    detail -= detail.mean()
    deviation = detail.std()
    if not np.isfinite(deviation) or deviation < 1e-6:
        return np.zeros(0, np.float16)
    scored: np.ndarray = (detail / deviation).astype(np.float16)
    return scored.ravel()


def _edges(array: np.ndarray, axis: int) -> np.ndarray:
    """Where the blocks along an axis start, and where the last one ends."""
    return np.linspace(0, array.shape[axis], _BLOCKS[axis] + 1).astype(int)


def _blurred(blocks: np.ndarray) -> np.ndarray:
    """The mean of each block and its neighbours, along one axis after the other."""
    for axis in range(3):
        padded = np.pad(blocks, [(1, 1) if n == axis else (0, 0) for n in range(3)], mode="edge")
        shifted = [np.take(padded, np.arange(blocks.shape[axis]) + n, axis) for n in range(3)]
        blocks = sum(shifted[1:], shifted[0]) / 3
    return blocks


def alike(pictures: np.ndarray, patients: Sequence[str]) -> list[Pair]:
    """Pairs of volumes of different patients whose pictures, as they are or one of them mirrored, are nearly
    the same. Visits of one knee, and the two knees of a patient, are alike and no leak."""
    pictures = pictures.astype(np.float32)
    mirrored = pictures.reshape(-1, *_BLOCKS)[:, ::-1].reshape(len(pictures), -1)
    owner = np.unique(np.array(patients), return_inverse=True)[1]
    pairs = []
    for start in range(0, len(pictures), _AT_ONCE):
        rows = pictures[start : start + _AT_ONCE]
        likeness = np.maximum(rows @ pictures.T, rows @ mirrored.T) / max(1, pictures.shape[1])
        likeness[owner[start : start + _AT_ONCE, None] == owner[None, :]] = 0
        for i, j in np.argwhere(likeness > ALIKE).tolist():
            if start + i < j:
                pairs.append(Pair(start + i, j, float(likeness[i, j])))
    return pairs
