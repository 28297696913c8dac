"""A synthetic knee as a sagittal DESS sees it: bright fluid, grey cartilage, dark marrow, and lesions
that follow MOAKS grades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from reasonknee.phantom.geometry import (
    FIELD_OF_VIEW_MM,
    Anatomy,
    Array,
    Frame,
    anatomy_of,
    blend,
    generator,
    interpolation,
)
from reasonknee.phantom.grades import GradeOf, Grades, progress_grades, sample_grades
from reasonknee.phantom.paint import Canvas, Cavity, cavity_of
from reasonknee.phantom.plan import Plan

__all__ = ["FIELD_OF_VIEW_MM", "Knee", "draw_knee", "progress_grades", "sample_grades"]

SLAB_VOXELS = 600_000  # slices are painted a few at a time, so that temporaries stay in the processor's cache
NOISE = 13.0  # standard deviation


@dataclass(frozen=True)
class Knee:
    image: Array  # uint16 (z, y, x), 12-bit
    mask: Array  # uint8 (z, y, x), values of regions.LABELS


def draw_knee(
    shape: tuple[int, int, int],
    side: Literal["left", "right"],
    grades: Grades,
    seed: int,
    *,
    anatomy_seed: int,
) -> Knee:
    """A knee with these grades. `anatomy_seed` is the person, `seed` the visit: noise, and a little of where
    lesions lie.

    Slices run from the patient's right to the left on both sides, rows from superior to inferior, columns
    from anterior to posterior.
    """
    anatomy = anatomy_of(anatomy_seed)
    plan = Plan(GradeOf(grades, anatomy.places), anatomy, seed)
    spacing = [fov / n for fov, n in zip(FIELD_OF_VIEW_MM, shape, strict=True)]
    centres = [(np.arange(n) + 0.5) * s for n, s in zip(shape, spacing, strict=True)]
    whole = Frame(centres, anatomy, spacing)
    weights = plan.weights(whole)
    cavity = cavity_of(whole, plan, weights)
    thickness = min(shape[0], max(1, SLAB_VOXELS // (shape[1] * shape[2])))
    scanner = _Scanner(shape, thickness, anatomy, seed)
    image, mask = np.empty(shape, np.uint16), np.empty(shape, np.uint8)
    for start in range(0, shape[0], thickness):
        part = slice(start, min(start + thickness, shape[0]))
        frame = Frame([centres[0][part], *centres[1:]], anatomy, spacing)
        canvas = Canvas(frame, plan, [weights[0][part], *weights[1:]], Cavity(*(m[part] for m in cavity)))
        image[part] = scanner.receive(canvas.image, part)
        mask[part] = canvas.mask
    _drop_scraps(mask)
    if side == "left":
        image, mask = image[::-1].copy(), mask[::-1].copy()
    return Knee(image, mask)


class _Scanner:
    """What lies between a tissue's signal and its pixels: uneven tissue, the coil's sensitivity, noise."""

    def __init__(self, shape: tuple[int, int, int], thickness: int, anatomy: Anatomy, seed: int) -> None:
        self.rng = generator(6, seed)
        bend = self.rng.uniform(-0.06, 0.06, 3).tolist()
        u, v, w = (np.linspace(-1, 1, n, dtype=np.float32) for n in shape)
        self.tilt = (bend[0] * u)[:, None, None]
        self.coil = (
            1 + (bend[1] * v - 0.08 * v**2)[:, None] + (bend[2] * w + 0.1 * w**2)
        )  # brighter near the coil's surface
        self.grain = generator(5, anatomy.texture).standard_normal((29, 36, 36), np.float32)
        self.weights = [
            interpolation((np.arange(n, dtype=np.float32) + 0.5) * (m - 1) / n, m)
            for n, m in zip(shape, self.grain.shape, strict=True)
        ]
        # drawn once and read from a random place for every slab: a fresh draw for each voxel would take
        # longer than the knee
        self.noise = NOISE * self.rng.standard_normal(4 * thickness * shape[1] * shape[2], np.float32)

    def receive(self, signal: Array, part: slice) -> Array:
        """Pixels of a slab of slices; overwrites the signal."""
        wz, wy, wx = self.weights
        texture = blend(wx, blend(wy, blend(wz[part], self.grain, 0), 1), 2)
        signal *= (self.coil + self.tilt[part]) * (1 + 0.07 * texture)
        signal += self._noise(
            signal.shape
        )  # the magnitude of two noisy channels, of which one holds the signal
        signal *= signal
        other = self._noise(signal.shape)
        signal += other * other
        return np.clip(np.sqrt(signal, out=signal), 0, 4095).astype(np.uint16)  # type: ignore[no-any-return]

    def _noise(self, shape: tuple[int, ...]) -> Array:
        size = int(np.prod(shape))
        start = int(self.rng.integers(len(self.noise) - size))
        return self.noise[start : start + size].reshape(shape)


def _drop_scraps(mask: Array) -> None:
    """Leave each label its largest 26-connected piece: where structures cross, slivers are cut off.

    Works on runs along x.
    """
    _, rows, columns = mask.shape
    flat = mask.reshape(-1, columns)
    first = np.ones(flat.shape, bool)
    np.not_equal(flat[:, 1:], flat[:, :-1], out=first[:, 1:])
    begin = np.flatnonzero(first)
    value, length = flat.ravel()[begin], np.diff(begin, append=flat.size)
    begin, value, length = (v[value > 0] for v in (begin, value, length))
    row, stride = begin // columns, columns + 2  # two columns of nothing keep the ends of rows apart
    start = row * stride + begin % columns
    end = start + length - 1
    links = []
    for dz, dy in ((0, 1), (1, -1), (1, 0), (1, 1)):
        here = np.flatnonzero((row % rows + dy >= 0) & (row % rows + dy < rows))
        shift = (dz * rows + dy) * stride
        low = np.searchsorted(end, start[here] + shift - 1)
        count = np.searchsorted(start, end[here] + shift + 1, "right") - low
        there = np.arange(count.sum()) + np.repeat(low - np.cumsum(count) + count, count)
        links.append(np.stack([np.repeat(here, count), there]))
    a, b = np.concatenate(links, axis=1)
    root = np.arange(len(start))
    a, b = a[value[a] == value[b]], b[value[a] == value[b]]
    while len(a):  # hang the later of two linked roots under the earlier, then shorten all paths
        np.minimum.at(root, np.maximum(root[a], root[b]), np.minimum(root[a], root[b]))
        while (root != root[root]).any():
            root = root[root]
        open_ = root[a] != root[b]
        a, b = a[open_], b[open_]
    size = np.bincount(root, weights=length, minlength=len(root))
    largest = {int(v): int(np.where(value == v, size, 0).argmax()) for v in np.unique(value)}
    kept = np.isin(root, list(largest.values()))
    for i in np.flatnonzero(~kept):
        flat.reshape(-1)[begin[i] : begin[i] + length[i]] = 0
