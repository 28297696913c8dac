"""Rows in the formats of other trainers, with their images as files: TRL's and ms-swift's.

    trl        train.jsonl: prompt, completion (both as messages) and images, paths relative to the file
    ms-swift   train.jsonl: messages with <image> or <video>, and images or videos (lists of frames)

Boxes are told in the form of the view, within the answer's JSON, as both tools train on text; ms-swift's own
`objects` hold 2D boxes alone. The answer is the reasoning and the object that `reasonknee score` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError, UsageError
from reasonknee.models.pictures import png
from reasonknee.models.targets import Teaching, target
from reasonknee.models.views import Showing, View
from reasonknee.questions.prompts import SYSTEM
from reasonknee.release.reader import Release
from reasonknee.system.files import write_text

TOOLS = ("trl", "ms-swift")  # whose rows are written here
ALL_TOOLS = (*TOOLS, "med3dvlm", "nnunet")


def export(tool: str, place: str, out: Path, split: str, setting: str, view: View, limit: int = 0) -> int:
    """Writes OUT/<split>.jsonl and OUT/images/; how many rows."""
    if tool not in TOOLS:
        raise UsageError("N056", f"unknown tool {tool!r}", f"choose one of {', '.join(ALL_TOOLS)}")
    if tool == "trl" and view.kind == "video":
        raise UsageError("N056", "TRL has no column for videos", "--kind images")
    if setting not in ("zero_shot", "instruction"):
        raise UsageError("N056", f"a row for {setting!r}", "zero_shot or instruction")
    if out.exists() and any(out.iterdir()):
        raise UsageError("N056", f"{out} is not empty", "choose another folder")
    lines = [
        json.dumps(row, ensure_ascii=False)
        for row in _rows(tool, Release(place), out, split, setting, view, limit)
    ]
    write_text(out / f"{split}.jsonl", "".join(f"{line}\n" for line in lines))
    return len(lines)


def _rows(
    tool: str, release: Release, out: Path, split: str, setting: str, view: View, limit: int
) -> Iterator[dict[str, Any]]:
    volumes = release.columns(split, ["volume_id"], "full")["volume_id"].unique().to_pylist()
    if not volumes:
        raise DataError("N034", "the release holds no whole volumes", "build it with the config `full`")
    made = 0
    for volume_id in volumes:
        volume = release.volume(volume_id)
        row = next(release.rows([volume_id], "full", split, ["side", "quintuples"]))
        assert volume is not None
        showing = view.show(volume, row["side"])
        paths = _written(showing, out / "images" / volume_id, out)
        for quintuple in row["quintuples"]:
            if limit and made >= limit:
                return
            made += 1
            yield _row(tool, quintuple, showing, setting, paths)


def _written(showing: Showing, folder: Path, out: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, frame in enumerate(showing.images):
        path = folder / f"{number:03}.png"
        path.write_bytes(png(frame))
        paths.append(path.relative_to(out).as_posix())
    return paths


def _row(
    tool: str, quintuple: dict[str, Any], showing: Showing, setting: str, paths: list[str]
) -> dict[str, Any]:
    taught = target(quintuple, showing, Teaching(setting=setting))
    if tool == "trl":
        return {
            "id": taught.row_id,
            "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": taught.question}],
            "completion": [{"role": "assistant", "content": taught.answer}],
            "images": paths,
        }
    video = showing.view.kind == "video"
    shown = "<video>" if video else "<image>" * len(paths)
    messages = [("system", SYSTEM), ("user", shown + taught.question), ("assistant", taught.answer)]
    return {
        "id": taught.row_id,
        "messages": [{"role": role, "content": content} for role, content in messages],
        **({"videos": [paths]} if video else {"images": paths}),
    }
