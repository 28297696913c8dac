"""Three planes of a volume as radiologists hang them: the patient's right on the left, anterior on the left
or at the top, superior at the top, whichever way the voxels run.

Coordinates are voxels of the full volume; a rectangle is in millimetres from the picture's top left corner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from reasonknee.boxes import Box, Shape
from reasonknee.volumes.grid import Volume

OPPOSITE = {"L": "R", "R": "L", "A": "P", "P": "A", "S": "I", "I": "S"}
# which of z, y, x runs to the right, which down and which through; what stands on the left and at the top
_HUNG = {"sagittal": ((2, 1, 0), "AS"), "coronal": ((0, 1, 2), "RS"), "axial": ((0, 2, 1), "RA")}
CONTEXT_MM = 15.0  # around the boxes: enough to see where in the knee one is


@dataclass(frozen=True)
class Plane:
    name: str
    axes: tuple[int, int, int]
    first: str  # the letters on the left and at the top
    reversed: tuple[bool, bool]
    at: int  # the slice
    place: Box  # what part of the volume is shown
    spacing: tuple[float, float, float]
    pixels: np.ndarray  # (down, right), as seen

    @property
    def letters(self) -> tuple[str, str, str, str]:
        """Left, right, top, bottom."""
        left, top = self.first[0], self.first[1]
        return left, OPPOSITE[left], top, OPPOSITE[top]

    @property
    def size_mm(self) -> tuple[float, float]:
        """Width and height."""
        right, down, _ = self.axes
        return (
            self.place.shape[right] * self.spacing[right],
            self.place.shape[down] * self.spacing[down],
        )

    def rectangle(self, box: Box) -> tuple[float, float, float, float]:
        """Left, top, width and height of a box, at the edges of its voxels."""
        spans = []
        for axis, turned in zip(self.axes[:2], self.reversed, strict=True):
            low, high = box.start[axis], box.stop[axis]
            start = self.place.stop[axis] - high if turned else low - self.place.start[axis]
            spans.append((start * self.spacing[axis], (high - low) * self.spacing[axis]))
        (left, width), (top, height) = spans
        return left, top, width, height

    def cuts(self, box: Box) -> bool:
        """Whether the slice goes through the box."""
        through = self.axes[2]
        return box.start[through] <= self.at < box.stop[through]


def planes(volume: Volume, boxes: Sequence[Box], origin: Shape = (0, 0, 0)) -> list[Plane]:
    """Slices through what the boxes share, or else through the first of them, with some context; the voxels
    are those from `origin` on."""
    held = Box.whole(volume.grid.shape).moved(origin)
    at, place = _middle(boxes, held), _around(boxes, held, volume.grid.spacing)
    made = []
    for name, ((right, down, through), first) in _HUNG.items():
        index: list[slice | int] = [
            slice(a - o, b - o) for a, b, o in zip(place.start, place.stop, origin, strict=True)
        ]
        index[through] = at[through] - origin[through]
        pixels = volume.array[tuple(index)]
        pixels = pixels if right > down else pixels.T
        turned = tuple(
            volume.grid.orientation[axis] == letter for axis, letter in zip((right, down), first, strict=True)
        )
        pixels = pixels[:: -1 if turned[1] else 1, :: -1 if turned[0] else 1]
        made.append(
            Plane(
                name,
                (right, down, through),
                first,
                (turned[0], turned[1]),
                at[through],
                place,
                volume.grid.spacing,
                pixels,
            )
        )
    return made


def _middle(boxes: Sequence[Box], held: Box) -> Shape:
    found = []
    for axis in range(3):
        spans = [(box.start[axis], box.stop[axis]) for box in boxes] or [(held.start[axis], held.stop[axis])]
        low, high = max(a for a, _ in spans), min(b for _, b in spans)
        if low >= high:  # they share nothing along this axis
            low, high = spans[0]
        found.append(min(max((low + high - 1) // 2, held.start[axis]), held.stop[axis] - 1))
    return (found[0], found[1], found[2])


def _around(boxes: Sequence[Box], held: Box, spacing: tuple[float, float, float]) -> Box:
    """The boxes and their surroundings, as far as there are voxels."""
    corners = []
    for axis in range(3):
        margin = int(CONTEXT_MM / spacing[axis])
        low = min((box.start[axis] for box in boxes), default=held.start[axis]) - margin
        high = max((box.stop[axis] for box in boxes), default=held.stop[axis]) + margin
        low = min(max(low, held.start[axis]), held.stop[axis] - 1)
        corners += [low, min(max(high, low + 1), held.stop[axis])]
    return Box(*corners)


def scale_mm(wide: float) -> int:
    """A round length that is about a quarter of the width."""
    return max((mm for mm in (2, 5, 10, 20, 50) if mm <= wide / 3), default=2)


def grey(pixels: np.ndarray, lo: float, hi: float, most: int = 0) -> np.ndarray:
    """Bytes of a picture, at most `most` pixels on a side if that is given: neighbours are averaged."""
    values = np.clip((pixels.astype(np.float32) - lo) / (hi - lo), 0, 1) * 255
    for axis in (0, 1):
        step = -(-values.shape[axis] // most) if most else 1
        if step > 1:
            kept = values.shape[axis] // step * step
            values = np.take(values, range(kept), axis)
            parts = (kept // step, step, -1) if axis == 0 else (len(values), kept // step, step)
            values = values.reshape(parts).mean(axis=axis + 1)
    picture: np.ndarray = np.rint(values).astype(np.uint8)
    return picture
