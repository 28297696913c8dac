"""Boxes on frames: half-open pixels of the stored image, on a frame that is a 0-based array index.

A box of a volume is a box on each of its frames. From a 3D box to frame boxes and back is exact; the other
way round loses what differs from frame to frame, so records keep frames, and 3D boxes are derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reasonknee.boxes import Box


class FrameBox(NamedTuple):
    """Pixels [y0, y1) x [x0, x1) of one frame."""

    frame: int
    y0: int
    y1: int
    x0: int
    x1: int

    @property
    def area(self) -> int:
        """Pixels in the box."""
        return max(0, self.y1 - self.y0) * max(0, self.x1 - self.x0)

    def as_dict(self) -> dict[str, int]:
        """The box as JSON has it."""
        return self._asdict()

    def as_xywh(self) -> list[int]:
        """As the paper writes it: left, top, width, height."""
        return [self.x0, self.y0, self.x1 - self.x0, self.y1 - self.y0]

    @classmethod
    def from_xywh(cls, frame: int, x: int, y: int, width: int, height: int) -> FrameBox:
        """From left, top, width and height, as the paper writes it."""
        return cls(frame, y, y + height, x, x + width)

    def clipped(self, height: int, width: int) -> FrameBox:
        """The part of the box within a frame of this size."""
        return FrameBox(
            self.frame,
            min(max(self.y0, 0), height),
            min(max(self.y1, 0), height),
            min(max(self.x0, 0), width),
            min(max(self.x1, 0), width),
        )


def iou(a: FrameBox, b: FrameBox) -> float:
    """Overlap over union; boxes on different frames share nothing."""
    if a.frame != b.frame:
        return 0.0
    inter = max(0, min(a.y1, b.y1) - max(a.y0, b.y0)) * max(0, min(a.x1, b.x1) - max(a.x0, b.x0))
    union = a.area + b.area - inter
    return inter / union if union else 0.0


def frames_of(box: Box) -> list[FrameBox]:
    """A 3D box as the boxes of its frames."""
    return [FrameBox(z, box.y0, box.y1, box.x0, box.x1) for z in range(box.z0, box.z1)]


def hull(boxes: Sequence[FrameBox]) -> Box:
    """The smallest 3D box around boxes on frames; exact for the frames of one 3D box."""
    return Box(
        min(b.frame for b in boxes),
        max(b.frame for b in boxes) + 1,
        min(b.y0 for b in boxes),
        max(b.y1 for b in boxes),
        min(b.x0 for b in boxes),
        max(b.x1 for b in boxes),
    )


LINK_IOU = 0.1  # see `instances`


def instances(boxes: Iterable[FrameBox], least: float = LINK_IOU) -> list[list[FrameBox]]:
    """Boxes of one label that show the same thing: linked over neighbouring frames by overlap above `least`.

    The number depends on the threshold (of the public knee boxes 3,777 at 0.1 and 6,194 at 0.5), so frames
    are what is stored, and this is how they are counted. Each instance is in the order of its frames.
    """
    ordered = sorted(boxes)
    parent = list(range(len(ordered)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    by_frame: dict[int, list[int]] = {}
    for i, box in enumerate(ordered):
        for j in by_frame.get(box.frame - 1, ()):
            if iou(ordered[j]._replace(frame=box.frame), box) > least:
                parent[root(i)] = root(j)
        by_frame.setdefault(box.frame, []).append(i)
    groups: dict[int, list[FrameBox]] = {}
    for i, box in enumerate(ordered):
        groups.setdefault(root(i), []).append(box)
    return sorted(groups.values())
