"""A view: what a model is shown of a volume. One small object with a name, which runs are stamped with.

    view = View("even:32", size=256, window="percentile", form="thousand")
    showing = view.show(volume, side="right", crop=None)
    showing.frames          # (32, 256, 256) bytes
    showing.told            # the same in words: what `prompts.ask` wants to know
    showing.grid            # a box in the model's coordinates <-> voxels of the full volume

Voxels become bytes by one window for the whole volume, never slice by slice: a bright slice stays bright.
They are the same whether a whole volume is shown or a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from reasonknee.boxes import Box, Shape
from reasonknee.collate.intensity import WINDOW_NAMES, WINDOWS, Window, percentile_window
from reasonknee.errors import DataError, UsageError
from reasonknee.models.coordinates import Grid, form_named
from reasonknee.questions.prompts import Shown
from reasonknee.volumes import Volume

KINDS = ("video", "images")
PLANES = {
    "sagittal": (0, 1, 2),
    "coronal": (2, 1, 0),
    "axial": (1, 2, 0),
}  # (z, y, x) as frames, rows, columns
_LETTERS = ("LR", "IS", "PA")  # where z, y and x can grow to
_SLICES = re.compile(r"(all)|(even|every|planes):([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class View:
    slices: str = (
        "all"  # all, even:N (N of them, evenly spread), every:K (each K-th), planes:N (N of each plane)
    )
    size: int | None = None  # longest side of a frame in pixels; None for the volume's own
    window: str = "percentile"  # paper (0 to 400), percentile of the whole volume, or LO:HI
    orientation: str = "stored"  # or where z, y and x are to grow to, e.g. LIP
    kind: str = "video"  # or images, one by one
    form: str = "voxels"  # of boxes, see `coordinates`

    def __post_init__(self) -> None:
        if not _SLICES.fullmatch(self.slices):
            raise UsageError(
                "N002", f"a view of slices {self.slices!r}", "all, even:32, every:4 or planes:16"
            )
        if self.kind not in KINDS or (self.kind == "video" and self.slices.startswith("planes")):
            raise UsageError(
                "N002", f"{self.slices} as {self.kind!r}", "video or images; three planes are images"
            )
        if self.size is not None and not 8 <= self.size <= 4096:
            raise UsageError(
                "N002", f"frames of {self.size} pixels", "8 to 4096, or none for the volume's own"
            )
        oriented = self.orientation == "stored" or (
            len(self.orientation) == 3
            and all(c in pair for c, pair in zip(self.orientation, _LETTERS, strict=True))
        )
        if not oriented:
            raise UsageError(
                "N002", f"orientation {self.orientation!r}", "`stored`, or one of R/L, S/I and A/P, e.g. LIP"
            )
        form_named(self.form)
        if self.window not in WINDOW_NAMES:
            _numbers(self.window)

    @property
    def name(self) -> str:
        size = "own" if self.size is None else str(self.size)
        return " ".join([self.slices, size, self.window, self.orientation, self.kind, self.form])

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def outline(
        self, shape: Shape, spacing: tuple[float, float, float], orientation: str, side: str, crop: Box | None
    ) -> Outline:
        """What would be shown of a volume of this size, without a voxel of it."""
        part = crop or Box.whole(shape)
        if not part.fits(shape):
            raise DataError("B003", f"box {part.as_dict()} leaves the volume of {shape} voxels")
        flips = self._flips(orientation)
        chosen = self._chosen(part.shape[0])
        slices = tuple(part.z1 - 1 - i if flips[0] else part.z0 + i for i in chosen)
        frame = _frame(part.shape[1:], self.size)
        others = 2 * len(chosen) if self.slices.startswith("planes") else 0
        return Outline(self, shape, spacing, orientation, side, crop, slices, flips, frame, others)

    def show(
        self, volume: Volume, side: str, crop: Box | None = None, window: Window | None = None
    ) -> Showing:
        """What the model gets of a volume, or of a part of it. `window` is that of the whole volume, where
        only a part is at hand."""
        grid = volume.grid
        outline = self.outline(grid.shape, grid.spacing, grid.orientation, side, crop)
        part = volume.array[outline.part.slices]
        pixels = _bytes(part, window or self.window_of(volume.array))
        pixels = pixels[tuple(slice(None, None, -1) if f else slice(None) for f in outline.flips)]
        stacks = []
        for axes in PLANES.values() if outline.others else [PLANES["sagittal"]]:
            stack = pixels.transpose(axes)
            frame = _frame(stack.shape[1:], self.size)
            stacks.append(to_size(stack[self._chosen(len(stack))], frame))
        return Showing(outline, stacks[0], tuple(stacks[1:]))

    def window_of(self, array: np.ndarray) -> Window:
        if self.window == "percentile":
            return percentile_window(array)
        return WINDOWS.get(self.window) or _numbers(self.window)

    def _flips(self, orientation: str) -> tuple[bool, bool, bool]:
        if self.orientation == "stored":
            return (False, False, False)
        z, y, x = (a != b for a, b in zip(self.orientation, orientation, strict=True))
        return (z, y, x)

    def _chosen(self, count: int) -> list[int]:
        """Which of so many slices are shown."""
        how, number = self.slices.partition(":")[::2]
        if how == "all":
            return list(range(count))
        if how == "every":
            return list(range(0, count, int(number)))
        n = min(int(number), count)  # the middles of n equal parts, so that both ends are as far from a frame
        return [(2 * i + 1) * count // (2 * n) for i in range(n)]


@dataclass(frozen=True)
class Outline:
    """What is shown of a volume, but for its voxels: where the frames lie in it, and how that is told."""

    view: View
    shape: Shape
    spacing: tuple[float, float, float]
    orientation: str  # as stored
    side: str
    crop: Box | None
    slices: tuple[int, ...]  # as they are numbered in the volume, in the order of the frames
    flips: tuple[bool, bool, bool]  # of z, y and x
    frame: tuple[int, int]  # pixels of a sagittal frame
    others: int  # frames of other planes

    @property
    def part(self) -> Box:
        return self.crop or Box.whole(self.shape)

    @cached_property
    def grid(self) -> Grid:
        form = form_named(self.view.form)
        return form.grid(self.shape, self.part, self.slices, self.frame, self.flips)

    @property
    def told(self) -> Shown:
        """In the numbers and directions of the pictures, for `prompts.ask`."""
        letters = [
            pair.replace(letter, "") if flip else letter
            for letter, flip, pair in zip(self.orientation, self.flips, _LETTERS, strict=True)
        ]
        slices = [self.shape[0] - 1 - z if self.flips[0] else z for z in self.slices]
        note = ""
        if self.others:
            note = (
                f"After them come {self.others // 2} coronal frames, evenly spread over x, then as many "
                "axial ones, evenly spread over y; their columns are z."
            )
        return Shown(
            self.shape,
            self.spacing,
            self.side,
            "".join(letters),
            slices,
            self.frame,
            None if self.crop is None else _flipped(self.crop, self.shape, self.flips),
            form_named(self.view.form).told,
            note,
        )


@dataclass(frozen=True, eq=False)
class Showing:
    """Frames of a volume, and where they lie in it."""

    outline: Outline
    frames: np.ndarray  # (n, height, width) bytes: sagittal slices
    others: tuple[np.ndarray, ...] = ()  # coronal and axial ones, where the view has three planes

    def fitted(self, frames: np.ndarray, *others: np.ndarray) -> Showing:
        """The same in frames of another size: what a model sees after its own resizing."""
        frame = (int(frames.shape[1]), int(frames.shape[2]))
        return Showing(replace(self.outline, frame=frame), frames, others)

    @property
    def images(self) -> list[np.ndarray]:
        return [frame for stack in (self.frames, *self.others) for frame in stack]

    @property
    def view(self) -> View:
        return self.outline.view

    @property
    def crop(self) -> Box | None:
        return self.outline.crop

    @property
    def slices(self) -> tuple[int, ...]:
        return self.outline.slices

    @property
    def frame(self) -> tuple[int, int]:
        return self.outline.frame

    @property
    def grid(self) -> Grid:
        return self.outline.grid

    @property
    def told(self) -> Shown:
        return self.outline.told


def occluded(volume: Volume, box: Box, window: Window) -> Volume:
    """The volume with a box blacked out."""
    array = volume.array.copy()
    array[box.slices] = np.asarray(window.lo).astype(array.dtype)
    return Volume(array, volume.grid)


def blank(volume: Volume) -> Volume:
    """A volume of the same size without anything in it."""
    return Volume(np.zeros_like(volume.array), volume.grid)


def _flipped(box: Box, shape: Shape, flips: Sequence[bool]) -> Box:
    bounds: list[int] = []
    for start, stop, size, flip in zip(box.start, box.stop, shape, flips, strict=True):
        bounds += [size - stop, size - start] if flip else [start, stop]
    return Box(*bounds)


def _numbers(text: str) -> Window:
    try:
        lo, hi = (float(part) for part in text.split(":"))
    except ValueError:
        lo = hi = 0.0
    if not (np.isfinite([lo, hi]).all() and lo < hi):
        raise UsageError("N002", f"window {text!r}", f"{', '.join(WINDOW_NAMES)} or LO:HI with LO below HI")
    return Window(lo, hi)


def _bytes(array: np.ndarray, window: Window) -> np.ndarray:
    scaled = (np.clip(array, window.lo, window.hi).astype(np.float32) - window.lo) * (
        255 / (window.hi - window.lo)
    )
    whole: np.ndarray = np.rint(scaled).astype(np.uint8)
    return whole


def _frame(own: Sequence[int], longest: int | None) -> tuple[int, int]:
    height, width = own
    scale = 1 if longest is None else longest / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def to_size(stack: np.ndarray, frame: tuple[int, int]) -> np.ndarray:
    if stack.shape[1:] == frame:
        return np.ascontiguousarray(stack)
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(
            "N003", "frames of another size need Pillow", "pip install 'reasonknee[models]'"
        ) from None
    size = (frame[1], frame[0])
    frames = [Image.fromarray(np.ascontiguousarray(f)).resize(size, Image.Resampling.BICUBIC) for f in stack]
    return np.stack([np.asarray(f) for f in frames])
