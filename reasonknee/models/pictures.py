"""Frames and requests as a server takes them: parts of a message, a schema, and a file to look at."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from reasonknee.layout.records import answer_schema
from reasonknee.models.plan import Request
from reasonknee.models.views import Showing


def pictures(showing: Showing | None) -> list[dict[str, Any]]:
    """The frames as parts of a message: images one by one, or one video of them."""
    if showing is None:
        return []
    if showing.view.kind == "video":
        return [video(list(showing.frames)), *pictures(showing.region)]
    return [image(frame) for frame in showing.images]


def png(frame: np.ndarray) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(frame).save(out, "PNG")
    return out.getvalue()


def image(frame: np.ndarray) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(png(frame)).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def video(frames: Sequence[np.ndarray]) -> dict[str, Any]:
    """As vLLM takes frames: base64 pictures with commas between them."""
    joined = ",".join(base64.b64encode(png(frame)).decode() for frame in frames)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{joined}"}}


def answer_format(request: Request) -> dict[str, Any]:
    schema = answer_schema(request.row.question)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def abbreviated(body: dict[str, Any]) -> str:
    """A request as a file to look at: its pictures are told by their size."""

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: short(v) for k, v in value.items()}
        if isinstance(value, list):
            return [short(v) for v in value]
        if isinstance(value, str) and value.startswith("data:"):
            return f"{value[:22]}... {len(value):,} characters"
        return value

    return json.dumps(short(body), indent=1, ensure_ascii=False)
