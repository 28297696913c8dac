"""The knee's own frame, and signed distances in mm (negative inside) of simple bodies.

In the frame z points medially, y down and x back, with the centre of the tibial plateau at the origin. What
differs between persons is here too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Point = tuple[float, float, float]  # z, y, x in mm
Range = tuple[float, float]
Index = tuple[slice, slice, slice]
FIELD_OF_VIEW_MM = (112.0, 140.16, 140.16)  # z, y, x: 160 slices of 0.7 mm, 384 x 384 pixels of 0.365 mm
ORIGIN_MM = (56.0, 80.0, 71.0)  # where the centre of the tibial plateau lies in the field of view, on average
UNEVEN_MM = (8.0, 15.0, 12.0)  # over which the two halves of an axis part from each other


def generator(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


class Anatomy(NamedTuple):
    """One person's knee: what stays the same from visit to visit."""

    stretch: Point  # size along z, y and x
    uneven: Point  # how much larger the medial, lower and posterior half is than the other
    shift: Point
    flexion: float  # turns y into x
    varus: float  # tilts z over y
    twist: float  # tilts z over x
    groove: float
    patella: Point  # where the patella lies: medially, down, and its size
    borders: tuple[float, ...]  # of subregions, in mm from where they lie on average
    menisci: tuple[float, ...]  # radius and height of the medial and of the lateral one
    girth: float  # of ligaments
    bursa: float  # how high the suprapatellar bursa reaches
    fat: float
    texture: int
    places: int


def anatomy_of(seed: int) -> Anatomy:
    rng = generator(1, seed)
    u = rng.uniform(-1, 1, 32).tolist()  # plain floats, which leave arrays at single precision
    size = 1 + 0.08 * u[0]
    return Anatomy(
        stretch=(size + 0.05 * u[1], size + 0.05 * u[2], size + 0.05 * u[3]),
        uneven=(0.06 * u[4], 0.06 * u[5], 0.06 * u[6]),
        shift=(4.5 * u[7], 6.5 * u[8], 5 * u[9]),
        flexion=0.11 * u[10],
        varus=0.06 * u[11],
        twist=0.06 * u[12],
        groove=4.5 + 1.5 * u[13],
        patella=(2.0 * u[14], 5.0 * u[15], 1 + 0.08 * u[16]),
        borders=tuple(u[17:22]),
        menisci=(1 + 0.06 * u[22], 1 + 0.22 * u[23], 1 + 0.06 * u[24], 1 + 0.22 * u[25]),
        girth=1 + 0.12 * u[26],
        bursa=8 * u[27],
        fat=7 + 3 * u[28],
        texture=int(rng.integers(2**31)),
        places=seed,
    )


class Frame:
    """Voxel centres in the knee's own mm, as arrays that broadcast to (z, y, x): z depends on all three
    axes, y and x on (y, x)."""

    def __init__(self, centres: Sequence[Array], anatomy: Anatomy, spacing: Sequence[float]) -> None:
        z, y, x = (
            ((c - o - s) / by).astype(np.float32)
            for c, o, s, by in zip(centres, ORIGIN_MM, anatomy.shift, anatomy.stretch, strict=True)
        )
        self.anatomy = anatomy
        self.rough = (z, y, x)
        self.spacing = tuple(s / by for s, by in zip(spacing, anatomy.stretch, strict=True))
        self.edge = max(0.7, 0.9 * max(self.spacing[1:]))
        cos, sin = math.cos(anatomy.flexion), math.sin(anatomy.flexion)
        across = z[:, None, None] + (anatomy.varus * y[:, None] + anatomy.twist * x)[None]
        down, back = cos * y[:, None] + sin * x, cos * x - sin * y[:, None]
        self.z, self.y, self.x = self._even(across, 0), self._even(down, 1)[None], self._even(back, 2)[None]

    def _even(self, v: Array, axis: int) -> Array:
        """The halves of an axis as they are on average."""
        return v / (1 + self.anatomy.uneven[axis] * np.tanh(v / UNEVEN_MM[axis]))  # type: ignore[no-any-return]

    def roughly(self, points: Array) -> Array:
        """Points (n, 3) of the knee where they lie along the volume's axes, to half a mm."""
        a = self.anatomy
        z, y, x = (points[:, k] * (1 + a.uneven[k] * np.tanh(points[:, k] / UNEVEN_MM[k])) for k in range(3))
        cos, sin = math.cos(a.flexion), math.sin(a.flexion)
        y, x = cos * y - sin * x, cos * x + sin * y
        return np.stack([z - a.varus * y - a.twist * x, y, x], axis=1)

    def on_sheet(self, x: Array) -> tuple[Array, Array]:
        """z and y of the knee where a sheet over the volume's (z, y) has these x."""
        a, (rough_z, rough_y, _) = self.anatomy, self.rough
        cos, sin = math.cos(a.flexion), math.sin(a.flexion)
        back = x * (1 + a.uneven[2] * np.tanh(x / UNEVEN_MM[2]))
        column = (back + sin * rough_y) / cos
        z = rough_z[:, None] + a.varus * rough_y + a.twist * column
        return self._even(z, 0), self._even(cos * rough_y + sin * column, 1)

    def cut(self, *block: Range, margin: float = 2.0) -> tuple[Index, Array, Array, Array]:
        """The index of a block in mm, and its coordinates."""
        corners = self.roughly(np.array(list(itertools.product(*block)), dtype=np.float64))
        zs, ys, xs = (
            slice(int(np.searchsorted(c, lo - margin)), int(np.searchsorted(c, hi + margin)))
            for c, lo, hi in zip(self.rough, corners.min(0), corners.max(0), strict=True)
        )
        return (zs, ys, xs), self.z[zs, ys, xs], self.y[:, ys, xs], self.x[:, ys, xs]


def join(a: Array, b: Array, k: float) -> Array:
    """The union of two bodies, with the crease between them filled over k mm."""
    gap = a - b
    h = gap * (-0.5 / k)
    h += 0.5
    np.clip(h, 0, 1, out=h)
    gap -= k
    gap += k * h
    gap *= h
    gap += b
    return gap  # type: ignore[no-any-return]


def coverage(distance: Array, edge: float) -> Array:
    """How much of a voxel lies inside, from a signed distance."""
    share = distance * (-1 / edge)
    share += 0.5
    return np.clip(share, 0, 1, out=share)  # type: ignore[no-any-return]


def ramp(v: Array, zero: float | Array, one: float | Array) -> Array:
    """0 up to `zero`, 1 from `one` on, linear between."""
    return np.clip((v - zero) / (one - zero), 0, 1)


def ellipsoid(z: Array, y: Array, x: Array, centre: Point, radii: Point) -> Array:
    (cz, cy, cx), (rz, ry, rx) = centre, radii
    a, b, c = ((z - cz) / rz) ** 2, ((y - cy) / ry) ** 2, ((x - cx) / rx) ** 2
    k0 = np.sqrt(a + b + c) + 1e-3
    return k0 * (k0 - 1) / np.sqrt(a / rz**2 + b / ry**2 + c / rx**2 + 1e-6)  # type: ignore[no-any-return]


def rod(z: Array, y: Array, x: Array, p: Point, q: Point) -> tuple[Array, Array]:
    """Distance to the line from p to q, and how far along it."""
    d = np.subtract(q, p)
    n = float(d @ d)
    vz, vy, vx = z - p[0], y - p[1], x - p[2]
    t = np.clip(vz * float(d[0] / n) + (vy * float(d[1] / n) + vx * float(d[2] / n)), 0, 1)
    return np.sqrt((vz - t * float(d[0])) ** 2 + (vy - t * float(d[1])) ** 2 + (vx - t * float(d[2])) ** 2), t


def interpolation(where: Array, count: int) -> Array:
    """Weights that read linearly from `count` samples at these places, counted in samples; nothing
    outside them."""
    return np.clip(1 - np.abs(where[:, None] - np.arange(count)), 0, None).astype(np.float32)  # type: ignore[no-any-return]


def blend(weights: Array, values: Array, axis: int) -> Array:
    """`values` read along an axis with the weights of `interpolation`: two terms each, added in one order, so
    that the last bit is the same with any number of threads; a matrix product is not."""
    first = np.minimum((weights > 0).argmax(axis=1), weights.shape[1] - 2)
    row = np.arange(len(weights))
    across = [1] * values.ndim
    across[axis] = -1
    low, high = np.take(values, first, axis), np.take(values, first + 1, axis)
    low *= weights[row, first].reshape(across)
    high *= weights[row, first + 1].reshape(across)
    low += high
    return low  # type: ignore[no-any-return]
