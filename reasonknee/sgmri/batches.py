"""Questions of a stream as tensors: frames, and boxes on frames.

    collator = FrameCollator(size=224)                    # or size=None: padded to the largest of the batch
    for batch in loader(questions("release", "slices"), collator, 8):
        batch.images                                      # (B, 1, F, H, W) float32 from 0 to 1
        batch.boxes, batch.item                           # (N, 5) frame, y0, y1, x0, x1; whose they are
        batch.stored(boxes, item)                         # back to frames and pixels of the stored image

Boxes are half-open and lie in pixels of the tensor; frame 0 is its first frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.errors import UsageError, needed_torch
from reasonknee.sgmri.frames import FrameBox

if TYPE_CHECKING:
    import torch

IGNORED = -100  # of a yes or a count that is not asked for


@dataclass
class FrameBatch:
    """Tensors, texts and ids of some questions."""

    images: torch.Tensor  # (B, 1, frames, rows, columns)
    frames: torch.Tensor  # (B,) how many of the frames are its own; the rest is padding
    boxes: torch.Tensor  # (N, 5) of all findings, question by question
    item: torch.Tensor  # (N,) which question a box belongs to
    yes: torch.Tensor  # (B,) 0 or 1
    count: torch.Tensor  # (B,)
    labels: list[str]  # of each box
    ids: list[str]
    questions: list[str]
    answers: list[str]
    starts: list[int]  # array index of the first frame
    scales: list[tuple[float, float]]  # of rows and columns

    def to(self, device: Any, non_blocking: bool = True) -> FrameBatch:
        """On a device, as a new batch."""
        return self._mapped(lambda t: t.to(device, non_blocking=non_blocking and t.is_pinned()))

    def pin_memory(self) -> FrameBatch:
        """Page-locked tensors; itself where there is no accelerator."""
        import torch

        return self._mapped(lambda t: t.pin_memory()) if torch.accelerator.is_available() else self

    def _mapped(self, change: Callable[[Any], Any]) -> FrameBatch:
        tensors = ("images", "frames", "boxes", "item", "yes", "count")
        return replace(
            self, **{f.name: change(getattr(self, f.name)) for f in fields(self) if f.name in tensors}
        )

    def stored(self, boxes: Any, item: Any) -> list[FrameBox]:
        """Boxes in pixels of the tensor as boxes of the stored image, to the nearest pixel."""
        made = []
        for (z, y0, y1, x0, x1), n in zip(boxes.tolist(), item.tolist(), strict=True):
            high, wide = self.scales[n]
            edges = (round(y0 / high), round(y1 / high), round(x0 / wide), round(x1 / wide))
            made.append(FrameBox(round(z) + self.starts[n], *edges))
        return made


class FrameCollator:
    """Rows of `slices` or `volumes` as a `FrameBatch`; a `size` resizes every frame to that square."""

    def __init__(self, size: int | None = None) -> None:
        needed_torch()
        if size is not None and not 8 <= size <= 2048:
            raise UsageError("Z054", f"frames of {size} pixels", "8 to 2048, or None for their own size")
        self.size = size

    def __call__(self, rows: Sequence[dict[str, Any]]) -> FrameBatch:
        import torch

        if any("image" not in row for row in rows):
            raise UsageError("Z055", "rows without an image", "stream the config `slices` or `volumes`")
        shapes = [row["image"].shape for row in rows]
        side = (self.size, self.size) if self.size else tuple(max(s[a] for s in shapes) for a in (1, 2))
        images = torch.zeros((len(rows), 1, max(s[0] for s in shapes), *side))
        scales, boxes, item, labels = [], [], [], []
        for n, row in enumerate(rows):
            pixels = torch.from_numpy(np.array(row["image"])).float() / 255
            high, wide = ((side[a] / shapes[n][a + 1]) if self.size else 1.0 for a in (0, 1))
            if self.size:
                pixels = torch.nn.functional.interpolate(
                    pixels[:, None], side, mode="bilinear", antialias=True, align_corners=False
                )[:, 0]
            images[n, 0, : len(pixels), : pixels.shape[1], : pixels.shape[2]] = pixels
            scales.append((high, wide))
            for finding in row["findings"]:
                for b in finding["boxes"]:
                    frame = b["frame"] - row["start"]
                    boxes.append((frame, b["y0"] * high, b["y1"] * high, b["x0"] * wide, b["x1"] * wide))
                    item.append(n)
                    labels.append(finding["label"])
        answers = [row["answer"] for row in rows]
        yes, count = ([IGNORED if a[k] is None else a[k] for a in answers] for k in ("yes", "count"))
        return FrameBatch(
            images=images,
            frames=torch.tensor([s[0] for s in shapes]),
            boxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 5),
            item=torch.tensor(item, dtype=torch.int64),
            yes=torch.tensor(yes),
            count=torch.tensor(count),
            labels=labels,
            ids=[row["id"] for row in rows],
            questions=[row["question"] for row in rows],
            answers=[a["text"] for a in answers],
            starts=[row["start"] for row in rows],
            scales=scales,
        )
