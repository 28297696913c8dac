"""Rows that show themselves: short as text, with a picture in a notebook. To all else they are dicts."""

from __future__ import annotations

import base64
import html
import struct
import zlib
from typing import Any

import numpy as np

_WIDE = 100  # characters of a value
_GREY = 99.5  # percentile that is white


class ShownRow(dict[str, Any]):
    """A row as a stream gives it. `epoch` is that of the pass it came in, which a random transform is drawn
    from; None where a row was asked for by index."""

    epoch: int | None = None

    def __repr__(self) -> str:
        lines = [f"{name:17} {_told(value)}" for name, value in self.items()]
        return "\n".join(
            [f"Row {self.get('id', self.get('volume_id', ''))}", *(f"  {each}" for each in lines)]
        )

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(_told(value))}</td></tr>"
            for name, value in self.items()
        )
        return f"{self._picture()}<table>{cells}</table>"

    def _picture(self) -> str:
        """The middle slice of the box, or of the volume, the box drawn into it."""
        volume, crop, box = self.get("volume"), self.get("crop"), self.get("box")
        if not isinstance(volume, np.ndarray) or volume.ndim != 3 or not volume.size or not crop:
            return ""
        z = (box["z0"] + box["z1"]) // 2 - crop["z0"] if box else len(volume) // 2
        plane = volume[min(max(z, 0), len(volume) - 1)].astype(np.float32)
        white = float(np.percentile(plane, _GREY)) or 1.0
        grey: np.ndarray = (np.clip(plane / white, 0, 1) * 255).astype(np.uint8)
        if box:
            y0, y1, x0, x1 = (box[e] - crop[f"{e[0]}0"] for e in ("y0", "y1", "x0", "x1"))
            grey[y0:y1, [x0, x1 - 1]] = 255
            grey[[y0, y1 - 1], x0:x1] = 255
        return f"<img src='data:image/png;base64,{base64.b64encode(png(grey)).decode()}' style='width:256px'>"


def _told(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {' x '.join(map(str, value.shape))}"
    if isinstance(value, dict):
        value = {k: v for k, v in value.items() if v is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)} of them"
    text = str(value).replace("\n", " ")
    return text if len(text) <= _WIDE else f"{text[:_WIDE]} ... ({len(text)} characters)"


def png(grey: np.ndarray) -> bytes:
    """A picture of 8 bits a pixel."""
    height, width = grey.shape
    lines = b"".join(b"\0" + bytes(line) for line in np.ascontiguousarray(grey))

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = part(b"IHDR", size) + part(b"IDAT", zlib.compress(lines)) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts
