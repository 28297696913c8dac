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

import math
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
    """What a model is shown of a volume: which slices, how large, how bright, and the form of boxes."""

    slices: str = (
        "all"  # all, even:N (N of them, evenly spread), every:K (each K-th), planes:N (N of each plane)
    )
    size: int | None = None  # longest side of a frame in pixels; None for the volume's own
    window: str = "percentile"  # paper (0 to 400), percentile of the whole volume, or LO:HI
    orientation: str = "stored"  # or where z, y and x are to grow to, e.g. LIP
    kind: str = "video"  # or images, one by one
    form: str = "voxels"  # of boxes, see `coordinates`
    multiple: int = (
        1  # sides of a frame are multiples of so many pixels: what a server's processor leaves alone
    )

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
        if not 1 <= self.multiple <= 256:
            raise UsageError("N002", f"sides that are multiples of {self.multiple} pixels", "1 to 256")
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
        """The view in one line, as a run records it."""
        size = "own" if self.size is None else str(self.size)
        parts = [self.slices, size, self.window, self.orientation, self.kind, self.form]
        return " ".join(parts + ([f"x{self.multiple}"] if self.multiple > 1 else []))

    def as_dict(self) -> dict[str, Any]:
        """The view as JSON has it."""
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
        frame = self._frame(part.shape[1:])
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
            frame = self._frame(stack.shape[1:])
            stacks.append(to_size(stack[self._chosen(len(stack))], frame))
        return Showing(outline, stacks[0], tuple(stacks[1:]))

    def window_of(self, array: np.ndarray) -> Window:
        """The intensities that are shown as black and white."""
        if self.window == "percentile":
            return percentile_window(array)
        return WINDOWS.get(self.window) or _numbers(self.window)

    def _flips(self, orientation: str) -> tuple[bool, bool, bool]:
        if self.orientation == "stored":
            return (False, False, False)
        z, y, x = (a != b for a, b in zip(self.orientation, orientation, strict=True))
        return (z, y, x)

    def _frame(self, own: Sequence[int]) -> tuple[int, int]:
        height, width = own
        scale = (1 if self.size is None else self.size / max(height, width)) / self.multiple
        return max(1, round(height * scale)) * self.multiple, max(1, round(width * scale)) * self.multiple

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
    inset: Box | None = None  # a part of the volume that is shown after it, larger

    @property
    def part(self) -> Box:
        return self.crop or Box.whole(self.shape)

    @property
    def region(self) -> Outline | None:
        """Of the part that is shown after it."""
        if self.inset is None:
            return None
        return self.view.outline(self.shape, self.spacing, self.orientation, self.side, self.inset)

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
        if self.inset:
            c = _flipped(self.inset, self.shape, self.flips)
            note = (
                f"{note} Then a part of it is shown by itself: slices {c.z0} to {c.z1 - 1}, rows {c.y0} to "
                f"{c.y1 - 1}, columns {c.x0} to {c.x1 - 1}."
            ).strip()
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
    region: Showing | None = None  # a part of the volume that is shown after it

    def fitted(self, frames: np.ndarray, *others: np.ndarray) -> Showing:
        """The same in frames of another size: what a model sees after its own resizing."""
        frame = (int(frames.shape[1]), int(frames.shape[2]))
        return Showing(replace(self.outline, frame=frame), frames, others, self.region)

    @property
    def images(self) -> list[np.ndarray]:
        """Every picture that is shown, plane by plane; those of the region last."""
        return self.own + (self.region.images if self.region else [])

    @property
    def own(self) -> list[np.ndarray]:
        """The pictures without those of the region."""
        return [frame for stack in (self.frames, *self.others) for frame in stack]

    @property
    def view(self) -> View:
        """The view that made it."""
        return self.outline.view

    @property
    def crop(self) -> Box | None:
        """The part of the volume that is shown; None for all of it."""
        return self.outline.crop

    @property
    def slices(self) -> tuple[int, ...]:
        """Which slices of the volume the sagittal frames are."""
        return self.outline.slices

    @property
    def frame(self) -> tuple[int, int]:
        """Height and width of a sagittal frame."""
        return self.outline.frame

    @property
    def grid(self) -> Grid:
        """Where boxes of a frame lie in the volume."""
        return self.outline.grid

    @property
    def told(self) -> Shown:
        """What the prompt tells the model of it."""
        return self.outline.told


def region_of(box: Box, shape: Shape, spacing: Sequence[float], margin_mm: float) -> Box:
    """The part of a volume that is cut out around a box."""
    z, y, x = (math.ceil(margin_mm / mm) for mm in spacing)
    return box.grown((z, y, x), shape)


def together(whole: Showing, region: Showing) -> Showing:
    """The whole volume, then a part of it, larger; boxes are told in the whole."""
    return replace(whole, outline=replace(whole.outline, inset=region.outline.part), region=region)


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
