"""The knee's own frame, and signed distances in mm (negative inside) of simple bodies.

In the frame z points medially, y down and x back, with the centre of the tibial plateau at the origin. What differs between persons is here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
Point = tuple[float, float, float]  # z, y, x in mm
Range = tuple[float, float]
Index = tuple[slice, slice, slice]
FIELD_OF_VIEW_MM = (112.0, 140.16, 140.16)  # z, y, x: 160 slices of 0.7 mm, 384 x 384 pixels of 0.365 mm
ORIGIN_MM = (56.0, 76.0, 68.0)  # where the centre of the tibial plateau lies in the field of view


def generator(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))


class Anatomy(NamedTuple):
    """One person's knee: what stays the same from visit to visit."""

    scale: float
    shift: Point
    flexion: float
    varus: float
    groove: float
    patella_drop: float
    fat: float
    texture: int
    places: int


def anatomy_of(seed: int) -> Anatomy:
    rng = generator(1, seed)
    u = rng.uniform(-1, 1, 9).tolist()  # plain floats, which leave arrays at single precision
    return Anatomy(
        scale=1 + 0.05 * u[0],
        shift=(2 * u[1], 3 * u[2], 2 * u[3]),
        flexion=0.05 * u[4],
        varus=0.03 * u[5],
        groove=4.5 + u[6],
        patella_drop=2 * u[7],
        fat=7 + 3 * u[8],
        texture=int(rng.integers(2**31)),
        places=seed,
    )


class Frame:
    """Voxel centres in the knee's own mm, as arrays that broadcast to (z, y, x): z depends on (z, y), y and x on (y, x)."""

    def __init__(self, centres: Sequence[Array], anatomy: Anatomy, spacing: Sequence[float]) -> None:
        z, y, x = (((c - o - s) / anatomy.scale).astype(np.float32) for c, o, s in zip(centres, ORIGIN_MM, anatomy.shift, strict=True))
        self.rough = (z, y, x)
        self.spacing = tuple(s / anatomy.scale for s in spacing)
        self.edge = max(0.7, 0.9 * max(self.spacing[1:]))
        cos, sin = math.cos(anatomy.flexion), math.sin(anatomy.flexion)
        self.z = (z[:, None] + anatomy.varus * y)[:, :, None]
        self.y = (cos * y[:, None] + sin * x)[None]
        self.x = (cos * x - sin * y[:, None])[None]

    def cut(self, *block: Range, margin: float = 5.0) -> tuple[Index, Array, Array, Array]:
        """The index of a block in mm, and its coordinates; the margin allows for the frame's tilt."""
        zs, ys, xs = (
            slice(int(np.searchsorted(c, lo - margin)), int(np.searchsorted(c, hi + margin))) for c, (lo, hi) in zip(self.rough, block, strict=True)
        )
        return (zs, ys, xs), self.z[zs, ys], self.y[:, ys, xs], self.x[:, ys, xs]


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
    """Weights that read linearly from `count` samples at these places, counted in samples; nothing outside them."""
    return np.clip(1 - np.abs(where[:, None] - np.arange(count)), 0, None).astype(np.float32)  # type: ignore[no-any-return]


def blend(weights: Array, values: Array, axis: int) -> Array:
    """`values` read along an axis with the weights of `interpolation`: two terms each, added in one order, so that the last bit is the same
    with any number of threads; a matrix product is not."""
    first = np.minimum((weights > 0).argmax(axis=1), weights.shape[1] - 2)
    row = np.arange(len(weights))
    across = [1] * values.ndim
    across[axis] = -1
    low, high = np.take(values, first, axis), np.take(values, first + 1, axis)
    low *= weights[row, first].reshape(across)
    high *= weights[row, first + 1].reshape(across)
    low += high
    return low  # type: ignore[no-any-return]
