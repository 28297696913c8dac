"""A small model with eyes, through the interface that `--interface` documents: it boxes the brightest part of what it
is shown and grades by how bright that is. Its answers depend on the image and on the question, in no time."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError
from reasonknee.models import Parameters, Reply
from reasonknee.models.coordinates import form_named
from reasonknee.models.views import Outline, Showing


def load(name: str, options: dict[str, Any]) -> Eyes:
    return Eyes(name)


class Eyes:
    """`name` may hold a file to which each question is logged, and words that say how it misbehaves."""

    def __init__(self, name: str) -> None:
        self.about = {"model": name}
        self.log = Path(name.split("@")[1]) if "@" in name else None
        self.fails = "fails" in name
        self.shy = "shy" in name  # draws no box
        self.blind = "blind" in name
        self.asked = 0

    def sized(self, outline: Outline) -> Outline:
        return outline

    def fitted(self, showing: Showing) -> Showing:
        return showing

    def replies(
        self, showing: Showing | None, texts: Sequence[str], parameters: Parameters
    ) -> Iterator[Reply]:
        for text in texts:
            self.asked += 1
            if self.log:
                with self.log.open("a") as file:
                    file.write(f"{zlib.crc32(text.encode())}\n")
            if int(os.environ.get("EYES_KILLED_AT", "0")) == self.asked:
                os.kill(os.getpid(), 9)
            if self.fails and self.asked == 3:
                raise DataError("N022", "too many tokens")
            yield Reply(self.words(showing, text), "stop", 100, 0, 10, 0.01)

    def words(self, showing: Showing | None, text: str) -> str:
        showing = None if self.blind else showing
        names = re.findall(r'"(\w+)": <[0-9]', text)
        bright = zlib.crc32(text[-300:].encode())
        box: Any = None
        if showing is not None and showing.frames.any():
            bright += int(showing.frames.astype(np.int64).sum())
            if '"box":' in text and not self.shy:
                box = form_named(showing.view.form).write(seen(showing), showing.grid)
        said: dict[str, Any] = {"box": box} if '"box":' in text else {}
        if names:
            said["grades"] = {name: bright // (i + 1) % 2 for i, name in enumerate(names)}
        return f"1. I look.\n{json.dumps(said)}"


def seen(showing: Showing) -> Box:
    """Some voxels around the brightest one, in the full volume."""
    place = np.unravel_index(int(showing.frames.argmax()), showing.frames.shape)
    part, frame = showing.outline.part, showing.frame
    z = showing.slices[int(place[0])]
    y, x = (int(part.start[a] + place[a] * part.shape[a] // frame[a - 1]) for a in (1, 2))
    return Box(z, z + 1, y, y + 1, x, x + 1).grown((2, 4, 4), showing.outline.shape)
