"""A 3D model with another interface: networks that take a volume as one tensor, such as Med3DVLM's
(batch, 1, 128, 256, 256) from 0 to 1.

Give `Volumetric` the network and its tokenizer. The network needs one method,

    generate(images, input_ids, max_new_tokens=..., do_sample=...)

which returns the ids of the answer, or of prompt and answer. A function of your own that returns a
`Volumetric` is what `--interface module:function` names. A view of all slices is resampled to the network's
shape; boxes are best told in thousandths (`--form thousand`), since it sees no voxel of the volume's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.boxes import Shape
from reasonknee.errors import UsageError
from reasonknee.models.requests import Parameters, Reply
from reasonknee.models.views import Outline, Showing
from reasonknee.questions.prompts import SYSTEM

if TYPE_CHECKING:
    import torch

MED3DVLM: Shape = (128, 256, 256)


class Volumetric:
    """A model of this process, for `engines.InProcess`."""

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        *,
        shape: Shape = MED3DVLM,
        about: dict[str, Any],
        device: str = "cpu",
    ) -> None:
        self.network, self.tokenizer, self.shape, self.device = network, tokenizer, shape, device
        self.about = {**about, "shape": list(shape)}

    def sized(self, outline: Outline) -> Outline:
        return replace(outline, frame=self.shape[1:])

    def fitted(self, showing: Showing) -> Showing:
        """Frames of the network's size; their number is made its depth when they become a tensor."""
        return showing.fitted(resampled(showing.frames, (len(showing.frames), *self.shape[1:])))

    def tensor(self, showing: Showing | None) -> torch.Tensor:
        """(1, 1, depth, height, width) from 0 to 1; zeros where nothing is shown."""
        import torch

        if showing is None:
            return torch.zeros(1, 1, *self.shape, device=self.device)
        frames = resampled(showing.frames, self.shape)
        return torch.from_numpy(frames).to(self.device).float()[None, None] / 255

    def replies(
        self, showing: Showing | None, texts: Sequence[str], parameters: Parameters, **_: Any
    ) -> Iterator[Reply]:
        import torch

        if showing is not None and showing.region is not None:
            raise UsageError(
                "N058", "a network of one volume cannot be shown its region too", "--setting region"
            )
        images = self.tensor(showing)
        torch.manual_seed(parameters.seed)
        for text in texts:
            start = time.perf_counter()
            ids = torch.tensor([self.tokenizer(f"{SYSTEM}\n\n{text}\n\n")["input_ids"]], device=self.device)
            with torch.inference_mode():
                made = self.network.generate(
                    images, ids, max_new_tokens=parameters.max_tokens, do_sample=parameters.temperature > 0
                )[0].tolist()
            words = made[ids.shape[1] :] if made[: ids.shape[1]] == ids[0].tolist() else made
            ended = self.tokenizer.eos_token_id in words
            words = words[: words.index(self.tokenizer.eos_token_id)] if ended else words
            told = self.tokenizer.decode(words, skip_special_tokens=False)
            finish = "stop" if ended or len(words) < parameters.max_tokens else "length"
            yield Reply(told, finish, ids.shape[1], 0, len(words), time.perf_counter() - start)


def resampled(frames: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    import torch
    import torch.nn.functional as functional

    if frames.shape == tuple(shape):
        return frames
    given = torch.from_numpy(np.ascontiguousarray(frames)).float()[None, None]
    made = functional.interpolate(given, size=tuple(shape), mode="trilinear", align_corners=False)
    array: np.ndarray = made[0, 0].round().clamp(0, 255).to(torch.uint8).numpy()
    return array
