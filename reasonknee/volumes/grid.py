"""Where voxels lie, and voxels on such a grid.

A volume in memory is a C-contiguous (z, y, x) array: z counts sagittal slices (left-right), y rows
(superior-inferior), x columns (anterior-posterior). Which axis of a file is which comes from its affine,
never from its shape. Axes are permuted, never flipped, so the voxels are the source's own; `orientation`
tells where each axis grows to. The affine maps voxel (x, y, z) to RAS millimetres, as in NIfTI.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from reasonknee.boxes import Box, Shape
from reasonknee.errors import DataError

MAX_AXIS = 4096
MAX_BYTES = (
    128 << 20
    # of voxels: an OAI DESS volume has 47 MB, as float32 94 MB; more would take longer than a second to
    # inflate
)
_CLEAR_AXIS = math.cos(math.radians(40))  # an axis tilted by more could be taken for another one


@dataclass(frozen=True)
class Grid:
    """Where voxels lie: shape (z, y, x) and the affine of (x, y, z)."""

    shape: Shape
    affine: np.ndarray

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimetres between voxels, along z, y and x."""
        x, y, z = np.linalg.norm(self.affine[:3, :3], axis=0)
        return (float(z), float(y), float(x))

    @property
    def orientation(self) -> str:
        """Where z, y and x grow to: one letter each of R/L, S/I and A/P."""
        letters = []
        for axis, world, (low, high) in ((2, 0, "LR"), (1, 2, "IS"), (0, 1, "PA")):
            letters.append(high if self.affine[world, axis] > 0 else low)
        return "".join(letters)

    def __str__(self) -> str:
        voxels, size = (
            " x ".join(form.format(n) for n in numbers)
            for form, numbers in (("{}", self.shape), ("{:.3f}", self.spacing))
        )
        return (
            f"{voxels} voxels of {size} mm, {self.orientation}, from "
            f"({', '.join(f'{mm:.2f}' for mm in self.affine[:3, 3])})"
        )

    def same_place(self, other: Grid) -> bool:
        """Whether both grids have the same voxels, to a hundredth of a millimetre at every corner."""
        return self.shape == other.shape and bool(np.abs(self._corners() - other._corners()).max() < 0.01)

    def flips_to(self, other: Grid) -> tuple[int, ...] | None:
        """Axes of a (z, y, x) array on this grid that have to be reversed to lie on `other`; None if its
        voxels are elsewhere."""
        axes = tuple(
            axis
            for axis, (mine, theirs) in enumerate(zip(self.orientation, other.orientation, strict=True))
            if mine != theirs
        )
        affine = self.affine.copy()
        for axis in axes:
            column = 2 - axis
            affine[:3, 3] += affine[:3, column] * (self.shape[axis] - 1)
            affine[:3, column] *= -1
        return axes if Grid(self.shape, affine).same_place(other) else None

    def _corners(self) -> np.ndarray:
        z, y, x = self.shape
        index = np.array([(i, j, k, 1) for i in (0, x) for j in (0, y) for k in (0, z)], dtype=np.float64)
        corners: np.ndarray = (index @ self.affine.T)[:, :3]
        return corners

    def crop(self, box: Box) -> Grid:
        """The grid of a box of voxels."""
        affine = self.affine.copy()
        affine[:3, 3] = self.affine[:3, :3] @ np.array([box.x0, box.y0, box.z0]) + self.affine[:3, 3]
        return Grid(box.shape, affine)


@dataclass(frozen=True)
class Volume:
    """Voxels (z, y, x) and their place in the world."""

    array: np.ndarray
    grid: Grid

    def __post_init__(self) -> None:
        if self.array.shape != self.grid.shape:
            raise ValueError(f"an array of {self.array.shape} on a grid of {self.grid.shape}")

    def crop(self, box: Box) -> Volume:
        """The voxels in the box (a view) with their place in the world."""
        if not box.fits(self.grid.shape):
            raise DataError(
                "B003",
                f"box {box.as_dict()} leaves the volume of {self.grid.shape} voxels",
                "boxes are in voxels of the full volume",
            )
        return Volume(self.array[box.slices], self.grid.crop(box))


def canonical(fastest_last: np.ndarray, permutation: tuple[int, int, int]) -> np.ndarray:
    """An array whose axes are a file's, the last one varying fastest, as a native, C-contiguous (z, y, x)
    array."""
    x, y, z = permutation
    array = fastest_last.transpose(2 - z, 2 - y, 2 - x)
    native: np.ndarray = np.ascontiguousarray(
        array, array.dtype.newbyteorder("=")
    )  # a copy only where one is needed
    return native


def place(dims: tuple[int, int, int], affine: np.ndarray) -> tuple[tuple[int, int, int], Grid]:
    """Which file axis is x, y, z, and the grid in that order; the axes of a file come from its affine
    alone."""
    _check_affine(affine)
    x, y, z = permutation = _axes(affine)
    return permutation, Grid((dims[z], dims[y], dims[x]), affine[:, [x, y, z, 3]])


def _check_affine(affine: np.ndarray) -> None:
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    if (
        not np.isfinite(affine).all()
        or spacing.min() < 1e-3
        or spacing.max() > 1e3
        or abs(np.linalg.det(affine[:3, :3] / spacing)) < 0.1
    ):
        raise DataError(
            "V005",
            "the orientation is not a finite, invertible map",
            "export the volume with its orientation",
        )


def _axes(affine: np.ndarray) -> tuple[int, int, int]:
    """Which file axis runs along x (anterior-posterior), y (superior-inferior) and z (left-right)."""
    direction = np.abs(affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0))
    world = direction.argmax(
        axis=0
    )  # for each file axis: 0 left-right, 1 anterior-posterior, 2 superior-inferior
    if sorted(world) != [0, 1, 2] or direction.max(axis=0).min() < _CLEAR_AXIS:
        raise DataError(
            "V005",
            "the axes are too oblique to tell slices, rows and columns apart",
            "resample the volume to its anatomical axes",
        )
    of = {int(w): axis for axis, w in enumerate(world)}
    return (of[1], of[2], of[0])
