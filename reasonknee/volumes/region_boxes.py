"""From a label mask to the box of every region: union of labels, largest component, portion along an
anatomical axis, tight box."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from reasonknee.boxes import Box
from reasonknee.questions import REGIONS
from reasonknee.questions.regions import LABELS, Portion

_AXIS = {"superior": 1, "inferior": 1, "anterior": 2, "middle": 2, "posterior": 2}  # of a (z, y, x) array
_LETTER = {"superior": "S", "inferior": "I", "anterior": "A", "posterior": "P"}
_PARTS = {"half": 2, "third": 3}
Component = Callable[
    [np.ndarray], np.ndarray
]  # a label mask -> the same with only those voxels of each label that count
_Labels = tuple[str, ...]


def region_boxes(
    mask: np.ndarray, orientation: str, component: Component = lambda m: m, labels: Mapping[str, int] = LABELS
) -> dict[str, Box | None]:
    """The box of every region, None where it is absent. `component` keeps the largest component of each
    label; a mask known to be in one piece needs none."""
    by_region: dict[str, Box | None] = dict.fromkeys(REGIONS)
    around = _extents(mask, labels.values())
    for layer in _layers(labels):
        boxes = [around[labels[name]] for union in layer for name in union if labels.get(name) in around]
        if not boxes:
            continue
        crop = _hull(boxes)
        pieces, values = _united(mask[crop.slices], layer, labels)
        pieces = component(pieces)
        windows = _extents(pieces, values.values())
        for region in REGIONS.values():
            window = windows.get(values.get(region.labels, -1))
            if window:
                inner = _portion(pieces[window.slices] == values[region.labels], region.portion, orientation)
                by_region[region.id] = inner and inner.outside(window).outside(crop)
    return by_region


def _hull(boxes: list[Box]) -> Box:
    return Box(
        min(b.z0 for b in boxes),
        max(b.z1 for b in boxes),
        min(b.y0 for b in boxes),
        max(b.y1 for b in boxes),
        min(b.x0 for b in boxes),
        max(b.x1 for b in boxes),
    )


def _layers(labels: Mapping[str, int]) -> Iterator[list[_Labels]]:
    """The unions of labels that regions are made of, in groups whose unions share no label, so that one
    mask can hold a whole group."""
    rest = list(dict.fromkeys(r.labels for r in REGIONS.values() if any(name in labels for name in r.labels)))
    while rest:
        layer: list[_Labels] = []
        for union in sorted(rest, key=len):
            if not any(set(union) & set(other) for other in layer):
                layer.append(union)
        yield layer
        rest = [union for union in rest if union not in layer]


def _united(
    mask: np.ndarray, layer: list[_Labels], labels: Mapping[str, int]
) -> tuple[np.ndarray, dict[_Labels, int]]:
    """A mask with one value for each union, and those values."""
    if all(len(union) == 1 for union in layer):
        return mask, {union: labels[union[0]] for union in layer}
    table = np.zeros(max((*labels.values(), int(mask.max(initial=0)))) + 1, np.uint8)
    values = {union: n for n, union in enumerate(layer, start=1)}
    for union, n in values.items():
        table[[labels[name] for name in union if name in labels]] = n
    return table[mask], values


def _extents(mask: np.ndarray, values: Iterable[int]) -> dict[int, Box]:
    """The box around all voxels of each value, in one pass: every value is a bit, so that a line of
    voxels becomes one number."""
    bit_of = {value: np.uint64(1 << n) for n, value in enumerate(values)}
    table = np.zeros(max((*bit_of, int(mask.max(initial=0)))) + 1, np.uint64)
    for value, bit in bit_of.items():
        table[value] = bit
    z, y, x = mask.shape
    seen = (np.zeros(z, np.uint64), np.zeros(y, np.uint64), np.zeros(x, np.uint64))
    for n, plane in enumerate(mask):  # a slice at a time stays in the processor's cache
        bits = table[plane]
        columns = np.bitwise_or.reduce(bits, axis=0)
        seen[0][n] = np.bitwise_or.reduce(columns)
        if seen[0][n]:
            np.bitwise_or(seen[1], np.bitwise_or.reduce(bits, axis=1), out=seen[1])
            np.bitwise_or(seen[2], columns, out=seen[2])
    by_label = {}
    for value, bit in bit_of.items():
        hits = [((along & bit) != 0).nonzero()[0] for along in seen]
        if len(hits[0]):
            by_label[value] = Box(*(int(end) for h in hits for end in (h[0], h[-1] + 1)))
    return by_label


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
