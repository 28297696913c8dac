"""What a collator gives: tensors, text and ids of some quintuples, and the way back from a box in the
tensor to voxels of the full volume."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from reasonknee.boxes import Box, Shape
from reasonknee.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import torch

_MAX_AXIS = 1 << 20  # where the rows do not say how large the volume is
IGNORED = -100  # what torch's cross-entropy leaves out: grades not asked for, prompts and padding in labels
"""The grade, or the label, that a loss leaves out."""


class Frames(NamedTuple):
    """Slices as a clip for a video model: uint8 (T, H, W, 3), and the slice of the full volume that each
    frame shows."""

    pixels: np.ndarray
    indices: list[int]


@dataclass(frozen=True)
class Place:
    """How voxels of the full volume lie in the tensor, along z, y and x: position in tensor = scale *
    position in volume + shift.

    Positions count from the outer edge of voxel 0, so that half-open boxes map as they are. A mirrored axis
    has a negative scale.
    """

    scale: tuple[float, float, float]
    shift: tuple[float, float, float]
    shape: Shape | None  # of the full volume, if the rows say

    @classmethod
    def of(
        cls,
        crop: Box,
        shape: Shape | None,
        factor: tuple[float, float, float] = (1, 1, 1),
        mirrored: bool = False,
    ) -> Place:
        z, y, x = (-f * start for f, start in zip(factor, crop.start, strict=True))
        if mirrored:  # slice edge v becomes z1 - v
            return cls((-factor[0], *factor[1:]), (factor[0] * crop.z1, y, x), shape)
        return cls(factor, (z, y, x), shape)


@dataclass(repr=False)
class Batch:
    """B quintuples on V volumes; V = B unless the collator shares volumes.

    Tensors stay None where the rows have nothing to fill them. Where a framework wants a mapping, it is one
    of its tensors by name: `model(**batch)`, `dict(batch)`, `batch["boxes"]`; but `len` counts quintuples.
    """

    ids: list[str]
    volume_ids: list[str]
    question_ids: list[str]
    zero_shot: list[str | None]
    instruction: list[str | None]
    reasoning: list[list[str]]
    places: list[Place]
    boxes: (
        torch.Tensor
    )  # (B, 6) float32: z0 z1 y0 y1 x0 x1 in voxels of `volumes`, half-open; zeros where box_mask is false
    box_mask: torch.Tensor  # (B,) bool
    grades: (
        torch.Tensor
    )  # (B, attributes) int64 in the order of questions.ATTRIBUTES; IGNORED where grade_mask is false
    grade_mask: torch.Tensor  # (B, attributes) bool
    volume_index: torch.Tensor  # (B,) int64: the volume of each quintuple
    volumes: torch.Tensor | None = None  # (V, 1, Z, Y, X)
    sizes: torch.Tensor | None = (
        # (V, 3) int64: how much of each volume's tensor is voxels rather than padding; zeros without a volume
        None
    )
    embeddings: torch.Tensor | None = None  # (V, tokens, width)
    frames: list[Frames | None] | None = None  # one clip for each volume there is
    input_ids: torch.Tensor | None = None  # (B, longest) int64, padded on the right
    attention_mask: torch.Tensor | None = None
    labels: torch.Tensor | None = None  # input_ids with IGNORED over prompt and padding

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        """Short: a batch is megabytes, and lands in notebooks and logs."""
        volumes = len(set(self.volume_ids))
        lines = [f"Batch of {len(self)} on {volumes} volume{'s' if volumes != 1 else ''}"]
        for name, tensor in self.items():
            kind, size = str(tensor.dtype).removeprefix("torch."), " x ".join(map(str, tensor.shape))
            lines.append(f"  {name:14} {kind:8} {size} on {tensor.device}")
        shown = ", ".join(self.ids[:3]) + (f" and {len(self) - 3} more" if len(self) > 3 else "")
        return "\n".join([*lines, f"  ids            {shown}"])

    def keys(self) -> list[str]:
        """The names of the tensors that the batch has."""
        return list(self.tensors())

    def values(self) -> list[torch.Tensor]:
        """Its tensors, in the order of `keys`."""
        return list(self.tensors().values())

    def items(self) -> list[tuple[str, torch.Tensor]]:
        """Pairs of name and tensor."""
        return list(self.tensors().items())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.tensors()

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors()[name]

    @property
    def mask(self) -> torch.Tensor | None:
        """(V, 1, Z, Y, X) bool, true on voxels, false on padding.

        Made when asked for, where the volumes are.
        """
        import torch

        if self.volumes is None or self.sizes is None:
            return None
        z, y, x = (
            torch.arange(n, device=self.volumes.device) < self.sizes[:, axis, None].to(self.volumes.device)
            for axis, n in enumerate(self.volumes.shape[2:])
        )
        return (z[:, :, None, None] & y[:, None, :, None] & x[:, None, None, :])[:, None]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by name, for a model that takes keyword arguments."""
        import torch

        return {
            f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), torch.Tensor)
        }

    def to(self, device: Any, non_blocking: bool = True) -> Batch:
        """On a device, as a new batch. Only what is pinned is sent without waiting: other memory may be
        written again once the batch is let go."""
        return self._mapped(lambda t: t.to(device, non_blocking=non_blocking and t.is_pinned()))

    def pin_memory(self) -> Batch:
        """Page-locked tensors, from which a copy to an accelerator does not wait; itself where there is none.

        DataLoader calls this.
        """
        import torch

        return self._mapped(lambda t: t.pin_memory()) if torch.accelerator.is_available() else self

    def _mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        return replace(self, **{name: change(tensor) for name, tensor in self.tensors().items()})

    def to_voxels(self, boxes: torch.Tensor) -> torch.Tensor:
        """Boxes in tensor coordinates, (B, 6) or (B, n, 6), as positions in the full volumes: float64 on the
        CPU, nothing rounded.

        Exact for padded, native and mirrored volumes; after a resize, within the rounding of the type that
        the boxes come in.
        """
        import torch

        if boxes.shape[0] != len(self) or boxes.shape[-1] != 6:
            raise UsageError(
                "G010",
                f"boxes of shape {tuple(boxes.shape)} for a batch of {len(self)}",
                "(B, 6) or (B, n, 6) is wanted",
            )
        corners = boxes.detach().to("cpu", torch.float64).unflatten(-1, (3, 2))
        ones = (1,) * (corners.ndim - 3)
        scale, shift = (
            torch.tensor([getattr(p, name) for p in self.places], dtype=torch.float64).view(
                len(self), *ones, 3, 1
            )
            for name in ("scale", "shift")
        )
        return (((corners - shift) / scale).sort(dim=-1).values).flatten(-2)

    def voxel_boxes(self, boxes: torch.Tensor) -> list[Box | None]:
        """One predicted box a quintuple, (B, 6), as a Box of the full volume: rounded to voxels, cut to
        the volume; None if nothing is left."""
        found: list[Box | None] = []
        for row, place in zip(self.to_voxels(boxes).tolist(), self.places, strict=True):
            most = place.shape or (_MAX_AXIS,) * 3
            edges = [
                min(max(round(v), 0), most[i // 2]) if math.isfinite(v) else 0 for i, v in enumerate(row)
            ]
            found.append(
                Box(*edges) if all(a < b for a, b in zip(edges[::2], edges[1::2], strict=True)) else None
            )
        return found
