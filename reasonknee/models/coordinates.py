"""Where a box lies in what a model is shown, and back: one small map for each axis, one name for each form.

A model answers on a *grid*: half-open whole numbers along z, y and x. Which grid that is, and how the box is
written, is its form:

    voxels           voxels of the full volume, as JSON with z0 to x1
    pixels           frames, and pixels of the frames as the model gets them (Qwen2.5-VL)
    thousand         thousandths of what is shown, along each axis (Qwen2-VL, Qwen3-VL)
    frames_pixels    a 2D box in each frame, in pixels
    frames_thousand  a 2D box in each frame, in thousandths of it
    unit             six fractions with three decimals (M3D)
    cuboid           <|box_start|>[x1,y1,z1,x2,y2,z2]<|box_end|> in frames and pixels (UniReason)

A grid that is at least as fine as the voxels loses nothing. On a coarser one an edge goes to the nearest
line of the grid, and a box that is thinner than a cell to the cell around its middle: `Grid.bound` says how
far an edge can move.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from reasonknee.answers import Answer, read, write_box
from reasonknee.boxes import Box, Shape
from reasonknee.errors import UsageError
from reasonknee.questions import Question
from reasonknee.questions.prompts import VOXELS, BoxForm

STEPS = 1000  # of the forms that know no size


@dataclass(frozen=True)
class Scaled:
    """Voxels [start, stop) cut into equal steps, counted from the far end where the view is flipped."""

    start: int
    stop: int
    steps: int
    flipped: bool = False

    @property
    def bound(self) -> int:
        size = self.stop - self.start
        return 0 if self.steps >= size else -(-size // self.steps)

    def onto(self, low: int, high: int) -> tuple[int, int]:
        low, high = max(low, self.start) - self.start, min(high, self.stop) - self.start
        size = self.stop - self.start
        low, high = (size - high, size - low) if self.flipped else (low, high)
        return _rescaled(low, high, size, self.steps)

    def back(self, low: int, high: int) -> tuple[int, int]:
        size = self.stop - self.start
        low, high = _rescaled(low, high, self.steps, size)
        low, high = (size - high, size - low) if self.flipped else (low, high)
        return low + self.start, high + self.start


def _rescaled(low: int, high: int, of: int, to: int) -> tuple[int, int]:
    """The nearest whole numbers; at least one step, the one around the middle."""
    a, b = ((2 * v * to + of) // (2 * of) for v in (low, high))
    if a < b:
        return a, b
    middle = min((low + high) * to // (2 * of), to - 1)
    return middle, middle + 1


@dataclass(frozen=True)
class Sliced:
    """Voxels along z cut into the frames that show them: a frame stands for the slices nearest to its own."""

    edges: tuple[int, ...]  # rising, one more than there are frames
    flipped: bool = False

    @classmethod
    def around(cls, slices: Sequence[int], start: int, stop: int) -> Sliced:
        rising = sorted(slices)
        middles = [(a + b + 1) // 2 for a, b in pairwise(rising)]
        return cls((start, *middles, stop), list(slices) != rising)

    @property
    def steps(self) -> int:
        return len(self.edges) - 1

    @property
    def bound(self) -> int:
        widest = max(b - a for a, b in pairwise(self.edges))
        return 0 if widest == 1 else widest

    def onto(self, low: int, high: int) -> tuple[int, int]:
        low, high = max(low, self.edges[0]), min(high, self.edges[-1])
        a, b = self._nearest(low), self._nearest(high)
        if a >= b:
            a = min(bisect_right(self.edges, (low + high) // 2) - 1, self.steps - 1)
            b = a + 1
        return (self.steps - b, self.steps - a) if self.flipped else (a, b)

    def back(self, low: int, high: int) -> tuple[int, int]:
        low, high = (self.steps - high, self.steps - low) if self.flipped else (low, high)
        return self.edges[low], self.edges[high]

    def _nearest(self, voxel: int) -> int:
        at = min(bisect_right(self.edges, voxel) - 1, self.steps - 1)
        return at if voxel - self.edges[at] <= self.edges[at + 1] - voxel else at + 1


@dataclass(frozen=True)
class Grid:
    """The whole numbers in which a model answers, along z, y and x."""

    z: Scaled | Sliced
    y: Scaled
    x: Scaled

    @property
    def shape(self) -> Shape:
        """Steps along z, y and x."""
        return (self.z.steps, self.y.steps, self.x.steps)

    @property
    def bound(self) -> Shape:
        """How many voxels an edge can move on its way onto the grid and back, along each axis."""
        return (self.z.bound, self.y.bound, self.x.bound)

    def onto(self, box: Box) -> Box:
        """A box in voxels, as it lies on the grid."""
        return Box(*self.z.onto(box.z0, box.z1), *self.y.onto(box.y0, box.y1), *self.x.onto(box.x0, box.x1))

    def back(self, box: Box) -> Box:
        """A box on the grid, in voxels."""
        return Box(*self.z.back(box.z0, box.z1), *self.y.back(box.y0, box.y1), *self.x.back(box.x0, box.x1))


Unit = Literal["voxel", "frame", "pixel", "thousand"]


@dataclass(frozen=True)
class Form:
    """How a box is told: in which units along z and along y and x, by which convention, in which words."""

    z: Unit
    yx: Unit
    convention: str
    told: BoxForm

    def grid(
        self, shape: Shape, crop: Box, slices: Sequence[int], frame: tuple[int, int], flips: Sequence[bool]
    ) -> Grid:
        """The grid of a view that shows `crop` of a volume of `shape` in frames of this size, one for each
        of `slices`; `flips` tells the axes that it shows the other way round."""
        axes: list[Scaled] = []
        for axis, (size, start, stop, pixels) in enumerate(
            zip(shape, crop.start, crop.stop, (len(slices), *frame), strict=True)
        ):
            unit = self.yx if axis else self.z
            if unit == "voxel":
                axes.append(Scaled(0, size, size, flips[axis]))
            else:
                axes.append(Scaled(start, stop, STEPS if unit == "thousand" else pixels, flips[axis]))
        z: Scaled | Sliced = axes[0]
        if self.z == "frame":
            z = Sliced.around(slices, crop.z0, crop.z1)
        return Grid(z, axes[1], axes[2])

    def write(self, box: Box | None, grid: Grid) -> Any:
        """The JSON value of a box in voxels; for `cuboid` a text."""
        return None if box is None else write_box(grid.onto(box), self.convention, grid.shape)

    def read(self, question: Question, text: str, grid: Grid) -> Answer:
        """What a model's words answer, with the box in voxels of the full volume."""
        answer = read(question, text, shape=grid.shape, box_convention=self.convention)
        if answer.box is None:
            return answer
        return Answer(answer.status, answer.grades, grid.back(answer.box), answer.reasoning, answer.problems)


_KEYS = VOXELS.template
_FRAMES = '[{"frame": <int>, "bbox": [<x0>, <y0>, <x1>, <y1>]}, ...]'
_HALF_OPEN = "it starts at z0, y0, x0 and ends before z1, y1, x1."
_EVERY_FRAME = "The box has one entry for each frame that shows the region; the first frame has number 0."

FORMS: dict[str, Form] = {
    "voxels": Form("voxel", "voxel", "canonical", VOXELS),
    "pixels": Form(
        "frame",
        "pixel",
        "canonical",
        BoxForm(
            _KEYS,
            f"In the box z counts the frames from 0, y and x the pixels of a frame; {_HALF_OPEN}",
        ),
    ),
    "thousand": Form(
        "thousand",
        "thousand",
        "canonical",
        BoxForm(
            _KEYS,
            "The box is in thousandths of what is shown: z from 0 before the first frame to 1000 after the "
            f"last, y from 0 at the top to 1000 at the bottom, x from 0 at the left to 1000; {_HALF_OPEN}",
        ),
    ),
    "frames_pixels": Form(
        "frame",
        "pixel",
        "frames",
        BoxForm(
            _FRAMES, f"{_EVERY_FRAME} Its bbox is in pixels of the frame, x from the left, y from the top."
        ),
    ),
    "frames_thousand": Form(
        "frame",
        "thousand",
        "frames",
        BoxForm(
            _FRAMES,
            f"{_EVERY_FRAME} Its bbox is in thousandths of the frame, x from the left, y from the top.",
        ),
    ),
    "unit": Form(
        "thousand",
        "thousand",
        "unit",
        BoxForm(
            "[<z0>, <z1>, <y0>, <y1>, <x0>, <x1>]",
            "The six numbers are fractions of what is shown, with three decimals: z from 0 before the first "
            "frame to 1 after the last, y from 0 at the top to 1 at the bottom, x from 0 at the left to 1.",
        ),
    ),
    "cuboid": Form(
        "frame",
        "pixel",
        "cuboid",
        BoxForm(
            '"<|box_start|>[x1,y1,z1,x2,y2,z2]<|box_end|>"',
            "In the box x and y are pixels of a frame and z counts the frames from 0; it starts at x1, y1, "
            "z1 and ends before x2, y2, z2.",
        ),
    ),
}
"""Form -> its grid, and how boxes are written in it."""


def form_named(name: str) -> Form:
    if name not in FORMS:
        raise UsageError("N001", f"unknown form of boxes {name!r}", f"choose one of {', '.join(FORMS)}")
    return FORMS[name]
