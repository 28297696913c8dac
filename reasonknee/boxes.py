"""The 3D box: half-open voxels [z0, z1) x [y0, y1) x [x0, x1) of the full volume, in the volume's own (z, y,
x) axes.

z counts sagittal slices, y rows and x columns. "No box" is None, never zeros. Other conventions are converted
at the edges, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from reasonknee.errors import DataError

if TYPE_CHECKING:
    import numpy as np

Shape = tuple[int, int, int]  # (z, y, x)
BOX_FIELDS = ("z0", "z1", "y0", "y1", "x0", "x1")


@dataclass(frozen=True, slots=True)
class Box:
    z0: int
    z1: int
    y0: int
    y1: int
    x0: int
    x1: int

    def __post_init__(self) -> None:
        if not (0 <= self.z0 < self.z1 and 0 <= self.y0 < self.y1 and 0 <= self.x0 < self.x1):
            raise DataError(
                "B001",
                f"box {astuple(self)} is empty, reversed or negative",
                "a box is half-open: z0 < z1, y0 < y1, x0 < x1",
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Box:
        return cls(*(fields[name] for name in BOX_FIELDS))

    @classmethod
    def whole(cls, shape: Shape) -> Box:
        z, y, x = shape
        return cls(0, z, 0, y, 0, x)

    @classmethod
    def from_mask(cls, mask: np.ndarray) -> Box | None:
        """The tight box around the true voxels of a (z, y, x) array; None if there is none."""
        bounds: list[int] = []
        for axis in range(3):
            hits = mask.any(axis=tuple(a for a in range(3) if a != axis)).nonzero()[0]
            if not len(hits):
                return None
            bounds += [int(hits[0]), int(hits[-1]) + 1]
        return cls(*bounds)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in BOX_FIELDS}

    @property
    def start(self) -> Shape:
        return (self.z0, self.y0, self.x0)

    @property
    def stop(self) -> Shape:
        return (self.z1, self.y1, self.x1)

    @property
    def shape(self) -> Shape:
        return (self.z1 - self.z0, self.y1 - self.y0, self.x1 - self.x0)

    @property
    def voxels(self) -> int:
        z, y, x = self.shape
        return z * y * x

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        """Index of a (z, y, x) array: `volume[box.slices]`."""
        return (slice(self.z0, self.z1), slice(self.y0, self.y1), slice(self.x0, self.x1))

    def fits(self, shape: Shape) -> bool:
        return all(stop <= size for stop, size in zip(self.stop, shape, strict=True))

    def grown(self, margin: Shape, shape: Shape) -> Box:
        """This box with `margin` voxels more on each side, as far as the volume goes."""
        start = [max(0, a - m) for a, m in zip(self.start, margin, strict=True)]
        stop = [min(n, b + m) for b, m, n in zip(self.stop, margin, shape, strict=True)]
        return _from_corners(start, stop)

    def inside(self, crop: Box) -> Box:
        """This box in the voxels of a crop that contains it; `outside` is the way back."""
        if not all(
            c <= s and e <= d for c, d, s, e in zip(crop.start, crop.stop, self.start, self.stop, strict=True)
        ):
            raise DataError(
                "B002", f"box {astuple(self)} is not inside the crop {astuple(crop)}", "crop at least the box"
            )
        return self.moved(tuple(-s for s in crop.start))

    def outside(self, crop: Box) -> Box:
        """This box, given in the voxels of `crop`, in those of the full volume."""
        return self.moved(crop.start)

    def moved(self, by: Sequence[int]) -> Box:
        return _from_corners(
            [a + d for a, d in zip(self.start, by, strict=True)],
            [b + d for b, d in zip(self.stop, by, strict=True)],
        )

    def mirrored(self, slices: int) -> Box:
        """This box after the slice order is reversed: slice i becomes slices - 1 - i."""
        return Box(slices - self.z1, slices - self.z0, self.y0, self.y1, self.x0, self.x1)

    def iou(self, other: Box) -> float:
        """Intersection over union of the voxels."""
        common = 1
        for a0, a1, b0, b1 in zip(self.start, self.stop, other.start, other.stop, strict=True):
            common *= max(0, min(a1, b1) - max(a0, b0))
        return common / (self.voxels + other.voxels - common)

    def to_upstream(self) -> list[int]:
        """`[start_slice, end_slice, x_min, x_max, y_min, y_max]` with inclusive ends, as the published
        questions order it."""
        return [self.z0, self.z1 - 1, self.x0, self.x1 - 1, self.y0, self.y1 - 1]

    @classmethod
    def from_upstream(cls, numbers: Sequence[int]) -> Box:
        z0, z1, x0, x1, y0, y1 = numbers
        return cls(z0, z1 + 1, y0, y1 + 1, x0, x1 + 1)


def _from_corners(start: Sequence[int], stop: Sequence[int]) -> Box:
    return Box(start[0], stop[0], start[1], stop[1], start[2], stop[2])
