"""Whether voxels look like those of a scan.

A folder of label masks lies beside a folder of scans, under the same names: taken for the images, it makes a
release with the answers in its voxels. What looks like labels, holds next to nothing, or is constant in most
slices is refused, wherever images come in; who knows better overrules it by the volume's name.
"""

from __future__ import annotations

import numpy as np

from reasonknee.errors import DataError
from reasonknee.volumes.grid import Volume

_MOST_LABELS = 64  # a scan of 8 bits has up to 256 values, one of 12 bits hundreds
_ALIKE = 0.5  # of neighbours within structures: labels are the same nearly everywhere, noise hardly anywhere
_EMPTY = 0.01  # of voxels that differ from the background
_SLICES = 0.5  # that are constant
_STEP = 4  # every fourth row of every other slice is looked at: 2 ms for a knee
_FEWEST = 1024  # voxels that a judgement needs


def check_scan(volume: Volume) -> None:
    wrong = why_no_scan(volume.array)
    if wrong:
        hint = "is it a mask, or damaged? a scan that looks so is taken by --accept with its volume id"
        raise DataError("V015", wrong, hint)


def is_constant(plane: np.ndarray) -> bool:
    """Whether all its values are one; of a scan's slice a few rows tell."""
    first = plane.flat[0]
    return bool((plane[::64] == first).all() and (plane == first).all())


def _counted(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different values, and how often each is there; those of a scan, which are few, without sorting."""
    if array.dtype.kind not in "iu" or array.dtype.itemsize > 2:
        return np.unique(array, return_counts=True)
    low = min(int(array.min()), 0)
    counts = np.bincount((array.astype(np.int32) - low if low else array).ravel())
    values = np.flatnonzero(counts)
    return values + low, counts[values]


def why_no_scan(array: np.ndarray) -> str:
    """In what way a (z, y, x) array does not look like a scan; nothing if it does."""
    if array.size < _FEWEST:
        return ""
    constant = sum(map(is_constant, array))
    if constant > _SLICES * len(array):
        return f"{constant} of its {len(array)} slices are constant"
    some = np.ascontiguousarray(array[::2, ::_STEP] if array.size > 1 << 18 else array)
    values, counts = _counted(some[:, ::2])
    background = values[counts.argmax()]
    filled = 1 - counts.max() / counts.sum()
    if filled < _EMPTY:
        return f"all but {filled:.2%} of its voxels are {background}"
    if len(values) > _MOST_LABELS:
        return ""
    left, right = some[..., :-1], some[..., 1:]
    inner = (left != background) & (right != background)
    alike = float((left == right)[inner].mean()) if inner.any() else 1.0
    if alike > _ALIKE:
        return f"it looks like a label map: {len(values)} values, {alike:.0%} of neighbours are equal"
    return ""
