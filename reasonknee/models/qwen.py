"""Frames as Qwen2.5-VL and Qwen3-VL take them, without torchvision: resized, cut into patches, with tokens
and positions. The numbers are those of the checkpoint's own processors, bit for bit.

Positions follow a named rule, since the libraries do not agree where text goes on after a video:

    after_max   one past the largest position so far: as the models were trained, and as vLLM serves them
    after_grid  one past the larger side of the grid: transformers since 5.3; overlaps the frames of a deep
                volume

Both are the same for images, and for Qwen3-VL, whose frames follow each other in time as text does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reasonknee.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

RULES = ("after_max", "after_grid")
FPS = 1.0  # a slice a second, so that Qwen3-VL's time stamps are slice numbers
Size = tuple[int, int]


@dataclass(frozen=True)
class Limits:
    """What a processor does to a picture: mean and deviation of a colour, fewest and most pixels."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    fewest: int
    most: int


@dataclass(frozen=True)
class Family:
    """One of the two kinds of models, with the sizes of its checkpoint."""

    name: str  # model_type of the checkpoint
    patch: int
    merge: int
    temporal: int
    tokens_per_second: float
    video: Limits
    image: Limits

    @property
    def stamped(self) -> bool:
        """Whether each pair of frames gets its time in words."""
        return self.name == "qwen3_vl"

    @property
    def factor(self) -> int:
        return self.patch * self.merge

    def video_size(self, frames: int, frame: Size) -> Size:
        """The size in which a video's frames are seen."""
        limits = self.video
        if not self.stamped:
            return _fitted(frame, self.factor, limits.fewest, limits.most)
        if frames < self.temporal:
            raise DataError("N010", f"a video of {frames} frame", f"{self.temporal} at least, or images")
        height, width = frame
        if min(frame) < self.factor:
            scale = max(self.factor / height, self.factor / width)
            height, width = int(height * scale), int(width * scale)
        clip = round(frames / self.temporal) * self.temporal
        return _fitted((height, width), self.factor, limits.fewest, limits.most, frames, clip)

    def image_size(self, frame: Size) -> Size:
        return _fitted(frame, self.factor, self.image.fewest, self.image.most)


def _fitted(frame: Size, factor: int, fewest: int, most: int, frames: int = 1, clip: int = 1) -> Size:
    """The size nearest to the frame's whose sides are multiples of `factor`, within the limits."""
    height, width = frame
    if max(frame) > 200 * min(frame):
        raise DataError(
            "N010", f"frames of {height} x {width} pixels", "the longer side is at most 200 times the other"
        )
    fitted = (round(height / factor) * factor, round(width / factor) * factor)
    if clip * fitted[0] * fitted[1] > most:
        beta = math.sqrt(frames * height * width / most)
        return (
            max(factor, math.floor(height / beta / factor) * factor),
            max(factor, math.floor(width / beta / factor) * factor),
        )
    if clip * fitted[0] * fitted[1] < fewest:
        beta = math.sqrt(fewest / (frames * height * width))
        return math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return fitted


# --- pixels -------------------------------------------------------------------------------------------------


class Packed(NamedTuple):
    """Frames as a model's tower takes them."""

    kind: str  # video or images
    pixels: torch.Tensor  # (patches, numbers)
    grids: torch.Tensor  # (videos or images, 3): patches along time, height and width
    slices: tuple[int, ...]  # slice of each frame, for time stamps
    seconds: float  # of a step in time, where one slice takes a second


Shown = Packed | Sequence[Packed] | None  # what stands before a question: a volume, several, or nothing


def packs_of(shown: Shown) -> tuple[Packed, ...]:
    """In the order in which the model sees them."""
    if shown is None:
        return ()
    return (shown,) if isinstance(shown, Packed) else tuple(shown)


def resized(frames: np.ndarray, size: Size) -> np.ndarray:
    """As the video processors resize: bicubic, on bytes."""
    import torch
    import torch.nn.functional as functional

    if frames.shape[1:] == size:
        return frames
    given = torch.from_numpy(np.ascontiguousarray(frames))[:, None]
    made = functional.interpolate(given, size=size, mode="bicubic", antialias=True, align_corners=False)
    array: np.ndarray = made[:, 0].numpy()
    return array


def pack_video(family: Family, frames: np.ndarray, slices: Sequence[int], depth: int) -> Packed:
    """Frames of a size that the family sees as it is; `depth` slices lie between the first and the last."""
    import torch

    left = -len(frames) % family.temporal
    padded = np.concatenate([frames, np.repeat(frames[-1:], left, axis=0)]) if left else frames
    pixels, grid = _patches(family, padded, family.video)
    numbers = (*slices, *[slices[-1]] * left)
    return Packed(
        "video", pixels, torch.tensor([grid]), numbers, family.temporal / (FPS * len(frames) / depth)
    )


def pack_images(family: Family, images: Sequence[np.ndarray], slices: Sequence[int]) -> Packed:
    """Each frame for itself, shown for as long as a step in time takes."""
    import torch

    parts = [
        _patches(family, np.repeat(image[None], family.temporal, axis=0), family.image) for image in images
    ]
    return Packed(
        "images", torch.cat([p for p, _ in parts]), torch.tensor([g for _, g in parts]), tuple(slices), 1.0
    )


def tensors(packs: Sequence[Packed]) -> dict[str, torch.Tensor]:
    """What a model's forward takes of them: pixels and grids, one after another."""
    import torch

    if not packs:
        return {}
    pixels, grids = (
        ("pixel_values_videos", "video_grid_thw")
        if packs[0].kind == "video"
        else ("pixel_values", "image_grid_thw")
    )
    return {pixels: torch.cat([p.pixels for p in packs]), grids: torch.cat([p.grids for p in packs])}


def _patches(family: Family, frames: np.ndarray, limits: Limits) -> tuple[torch.Tensor, tuple[int, int, int]]:
    import torch

    count, height, width = frames.shape
    if height % family.factor or width % family.factor:
        raise DataError("N010", f"frames of {height} x {width} pixels", f"multiples of {family.factor}")
    p, m, t = family.patch, family.merge, family.temporal
    grid = (count // t, height // p, width // p)
    colours = torch.from_numpy(np.ascontiguousarray(frames))[:, None].float().expand(-1, 3, -1, -1)
    mean, std = (torch.tensor(n)[:, None, None] * 255 for n in (limits.mean, limits.std))
    scaled = (colours - mean) / std
    cut = scaled.reshape(grid[0], t, 3, grid[1] // m, m, p, grid[2] // m, m, p)
    return cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(math.prod(grid), -1), grid


# --- tokens -------------------------------------------------------------------------------------------------

VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
PADS = {"video": "<|video_pad|>", "images": "<|image_pad|>"}


def expanded(family: Family, text: str, shown: Shown) -> str:
    """The text of a chat with a place for each vision token instead of one for each video or image."""
    packs = packs_of(shown)
    place = PADS[packs[0].kind]
    framed = f"{VISION_START}{place}{VISION_END}"
    if packs[0].kind == "video" and family.stamped and framed in text:
        place = framed  # each pair of frames brings its own
    parts = text.split(place)
    filled = [words for packed in packs for words in _filled(family, packed)]
    if len(parts) != len(filled) + 1:
        raise DataError(
            "N011",
            f"a chat template with {len(parts) - 1} places for {len(filled)} pictures",
            "use the model's own",
        )
    return parts[0] + "".join(words + part for words, part in zip(filled, parts[1:], strict=True))


def _filled(family: Family, packed: Packed) -> list[str]:
    """What stands in each place of a pack: of a video one, of images one each."""
    pad = PADS[packed.kind]
    if packed.kind == "images" or not family.stamped:
        return [pad * (int(grid.prod()) // family.merge**2) for grid in packed.grids]
    steps, height, width = packed.grids[0].tolist()
    each = pad * (height * width // family.merge**2)
    times = [
        sum(packed.slices[i * family.temporal :][: family.temporal]) / family.temporal for i in range(steps)
    ]
    return ["".join(f"<{t / FPS:.1f} seconds>{VISION_START}{each}{VISION_END}" for t in times)]


def token_kinds(ids: torch.Tensor, video: int, image: int) -> torch.Tensor:
    """0 for text, 1 for an image, 2 for a video: what the models call mm_token_type_ids."""
    return (ids == image).int() + 2 * (ids == video).int()


# --- positions ----------------------------------------------------------------------------------------------


def positions(family: Family, kinds: Sequence[int], shown: Shown, rule: str) -> torch.Tensor:
    """Time, height and width of each token, (3, 1, tokens)."""
    import torch

    if rule not in RULES:
        raise UsageError("N012", f"unknown rule of positions {rule!r}", f"choose one of {', '.join(RULES)}")
    runs = iter([run for packed in packs_of(shown) for run in _runs(family, packed)])
    parts: list[torch.Tensor] = []
    at, i = 0, 0
    while i < len(kinds):
        if kinds[i] == 0:
            end = next((j for j in range(i, len(kinds)) if kinds[j]), len(kinds))
            parts.append(torch.arange(at, at + end - i).expand(3, -1))
            at, i = at + end - i, end
            continue
        t, h, w, interval = next(runs)
        time = (torch.arange(t) * interval).long()
        place = torch.stack(torch.meshgrid(time, torch.arange(h), torch.arange(w), indexing="ij")).reshape(
            3, -1
        )
        parts.append(place + at)
        at += max(h, w) if rule == "after_grid" else int(place.max()) + 1
        i += t * h * w
    return torch.cat(parts, dim=1)[:, None]


def _runs(family: Family, packed: Packed) -> list[tuple[int, int, int, float]]:
    """Tokens along time, height and width of each run of vision tokens, and how far a step in time goes."""
    small = [(t, h // family.merge, w // family.merge) for t, h, w in packed.grids.tolist()]
    if family.stamped and packed.kind == "video":
        return [(1, h, w, 1) for t, h, w in small for _ in range(t)]
    interval = family.tokens_per_second * packed.seconds if packed.kind == "video" else 1
    return [(t, h, w, 1 if family.stamped else interval) for t, h, w in small]


# --- the checkpoint -----------------------------------------------------------------------------------------

_DEFAULTS = {
    "qwen2_5_vl": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "qwen3_vl": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
_PIXELS = {  # fewest and most, of the published checkpoints: a frame's, but a whole video's for Qwen3-VL
    "qwen2_5_vl": {"video": (3136, 12845056), "image": (3136, 12845056)},
    "qwen3_vl": {"video": (4096, 25165824), "image": (65536, 16777216)},
}


def family_of(config: Any, processor: dict[str, Any]) -> Family:
    """From a checkpoint's configuration, and what its processor's file says."""
    name = str(config.model_type)
    if name not in _DEFAULTS:
        raise UsageError(
            "N013", f"a model of type {name!r}", f"local models are {' and '.join(_DEFAULTS)}; serve others"
        )
    vision = config.vision_config
    return Family(
        name,
        vision.patch_size,
        vision.spatial_merge_size,
        vision.temporal_patch_size,
        float(getattr(vision, "tokens_per_second", 1)),
        _limits(name, "video", processor.get("video_processor") or processor),
        _limits(name, "image", processor.get("image_processor") or processor),
    )


def _limits(name: str, kind: str, said: dict[str, Any]) -> Limits:
    mean, std = _DEFAULTS[name]
    fewest, most = _PIXELS[name][kind]
    size = said.get("size") or {}
    return Limits(
        tuple(said.get("image_mean", mean)),
        tuple(said.get("image_std", std)),
        int(size.get("shortest_edge") or said.get("min_pixels") or fewest),
        int(size.get("longest_edge") or said.get("max_pixels") or most),
    )
