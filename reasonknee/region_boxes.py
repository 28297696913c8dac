"""From a label mask to the box of every region: union of labels, largest component, portion along an anatomical axis, tight box."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from reasonknee.boxes import Box
from reasonknee.regions import LABELS, REGIONS, Portion

_AXIS = {"superior": 1, "inferior": 1, "anterior": 2, "middle": 2, "posterior": 2}  # of a (z, y, x) array
_LETTER = {"superior": "S", "inferior": "I", "anterior": "A", "posterior": "P"}
_PARTS = {"half": 2, "third": 3}
Component = Callable[[np.ndarray], np.ndarray]  # a boolean array -> the voxels of it that count


def region_boxes(mask: np.ndarray, orientation: str, component: Component = lambda m: m, labels: Mapping[str, int] = LABELS) -> dict[str, Box | None]:
    """The box of every region, None where it is absent. `component` picks the largest component; a mask known to be in one piece needs none."""
    around = {name: Box.from_mask(mask == value) for name, value in labels.items()}
    found: dict[str, Box | None] = {}
    pieces: dict[tuple[str, ...], tuple[Box, np.ndarray] | None] = {}  # several regions are portions of one union
    for region in REGIONS.values():
        if region.labels not in pieces:
            pieces[region.labels] = _piece(mask, [(labels[n], around[n]) for n in region.labels if n in labels], component)
        piece = pieces[region.labels]
        if piece is None:
            found[region.id] = None
            continue
        window, voxels = piece
        inner = _portion(voxels, region.portion, orientation)
        found[region.id] = inner and inner.outside(window)
    return found


def _piece(mask: np.ndarray, parts: list[tuple[int, Box | None]], component: Component) -> tuple[Box, np.ndarray] | None:
    """The voxels of a union of labels, in the smallest window that holds them."""
    boxes = [box for _, box in parts if box]
    if not boxes:
        return None
    window = Box(
        min(b.z0 for b in boxes), max(b.z1 for b in boxes), min(b.y0 for b in boxes), max(b.y1 for b in boxes),
        min(b.x0 for b in boxes), max(b.x1 for b in boxes),
    )  # fmt: skip
    return window, component(np.isin(mask[window.slices], [value for value, _ in parts]))


def _portion(voxels: np.ndarray, portion: Portion | None, orientation: str) -> Box | None:
    whole = Box.from_mask(voxels)
    if portion is None or whole is None:
        return whole
    where, unit = portion.split()
    axis, parts = _AXIS[where], _PARTS[unit]
    if where == "middle":
        index = 1
    else:  # does the axis grow towards the wanted end, or away from it?
        index = parts - 1 if orientation[axis] == _LETTER[where] else 0
    low, high = whole.start[axis], whole.stop[axis]
    first, last = low + (high - low) * index // parts, low + (high - low) * (index + 1) // parts
    slab = np.zeros_like(voxels)
    cut: list[slice] = [slice(None)] * 3
    cut[axis] = slice(first, last)
    slab[tuple(cut)] = voxels[tuple(cut)]
    return Box.from_mask(slab)
