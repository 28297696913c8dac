"""A first look at a release: a quintuple of each config in words, and a picture of it in three planes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.questions import QUESTIONS
from reasonknee.release.reader import Release
from reasonknee.volumes import volume_from_bytes
from reasonknee.volumes.planes import Plane, planes, scale_mm

GROUND, INK, TRUTH = "#0b0d10", "#dfe4ea", "#56b4e9"  # the viewer's: truth is blue in both


def describe_release(release: str | Path, row_id: str = "", out: Path | None = None) -> Iterator[str]:
    """Lines about one quintuple in every config; draws it to `out` if the release has the volume."""
    opened = Release(release)
    row_id = row_id or _with_finding(opened)
    drawable: dict[str, dict[str, Any]] = {}
    for config in opened.manifest.configs:
        row = opened.row(row_id, config)
        if row is None:
            raise _no_such(row_id, config)
        yield f"--- {config}"
        yield from describe(row)
        if config in ("full", "cropped") and row["volume"] is not None:
            drawable[config] = row
    if out and not drawable:
        raise UsageError("L002", "the release has no voxels to draw", "leave --out away, or build `full`")
    if out:
        draw(drawable.get("full") or drawable["cropped"], row_id, out)
        yield f"picture: {out}"


def describe(row: dict[str, Any]) -> Iterator[str]:
    """A row, field by field, with long bytes told by their size."""
    for name, value in row.items():
        if name == "volume" and value is not None:
            volume = volume_from_bytes(value["bytes"])
            z, y, x = volume.array.shape
            value = f"NIfTI of {len(value['bytes']):,} bytes: {z} x {y} x {x} {volume.array.dtype}"
        elif name == "embedding":
            value = f"{value['tokens']} x {value['width']} {value['dtype']}"
        elif name == "quintuples":
            value = f"{len(value)} of them, the first is {value[0]['id']}" if value else "none"
        elif name == "question":
            value = {wording: text and text.split("\n")[0] + " ..." for wording, text in value.items()}
        elif name == "grades":
            value = {a: g for a, g in value.items() if g is not None}
        yield f"{name:20} {value}"


def draw(row: dict[str, Any], row_id: str, out: Path) -> None:
    """Three planes through the box with some of the knee around it, as PNG; a row of `full` or `cropped`."""
    quintuple = next((q for q in row.get("quintuples", [row]) if q["id"] == row_id), None)
    if quintuple is None:
        raise _no_such(row_id, "this volume")
    question = QUESTIONS[quintuple["question_id"]]
    volume = volume_from_bytes(row["volume"]["bytes"])
    origin = Box.from_dict(row["crop"]).start if row.get("crop") else (0, 0, 0)
    boxes = [Box.from_dict(quintuple["box"])] if quintuple["box"] else []
    shown = planes(volume, boxes, origin)
    heights = [plane.size_mm[1] / plane.size_mm[0] for plane in shown]
    figure = dark_figure(13, 13 / 3 * max(heights) + 0.7 + 0.2 * len(question.attributes))
    dark, bright = np.percentile(volume.array, (0.5, 99.5))
    for axes, plane in zip(figure.subplots(1, 3), shown, strict=True):
        _draw_plane(axes, plane, boxes, float(dark), float(bright))
    graded = [(a, quintuple["grades"][a.id]) for a in question.attributes]
    grades = "\n".join(
        f"{a.title}: {'unknown' if g is None else f'{g} ({a.space.meanings[g]})'}" for a, g in graded
    )
    place = f"{question.lesion.title}, {question.region.title}: {row['side']} knee, {row['visit']}"
    figure.suptitle(f"{place[0].upper()}{place[1:]}\n{grades}", fontsize=11, color=INK)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=100)


def dark_figure(wide: float, high: float) -> Any:
    """An empty figure of so many inches, in the viewer's colours."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("L003", "drawing needs matplotlib", "pip install 'reasonknee[report]'") from None
    return Figure(figsize=(wide, high), layout="constrained", facecolor=GROUND)


def _draw_plane(axes: Any, plane: Plane, boxes: list[Box], dark: float, bright: float) -> None:
    from matplotlib.patches import Rectangle

    wide, high = plane.size_mm
    axes.imshow(
        plane.pixels, cmap="gray", vmin=dark, vmax=bright, extent=(0, wide, high, 0), interpolation="bilinear"
    )
    for box in boxes:
        left, top, width, height = plane.rectangle(box)
        axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=TRUTH, linewidth=1.8))
    left_letter, right_letter, top_letter, bottom_letter = plane.letters
    bar, edge = scale_mm(wide), wide * 0.02
    marks = (
        (edge, high / 2, left_letter, "left", "center"),
        (wide - edge, high / 2, right_letter, "right", "center"),
        (wide / 2, edge, top_letter, "center", "top"),
        (wide / 2, high - edge, bottom_letter, "center", "bottom"),
        (wide - edge, high - 2.2 * edge, f"{bar} mm", "right", "bottom"),
    )
    for x, y, text, across, down in marks:
        axes.text(x, y, text, color="white", ha=across, va=down, fontsize=10)
    axes.plot((wide - edge - bar, wide - edge), (high - 1.6 * edge,) * 2, color="white", linewidth=2)
    axes.set_title(f"{plane.name}, slice {plane.at}", fontsize=9, color=INK)
    axes.set_axis_off()


def _with_finding(release: Release) -> str:
    """The quintuple with the highest first grade: something to see."""
    highest, chosen = -1, ""
    names = ("id", "question_id", "box", "grades")
    for table in (part for split in release.splits for part in release.parts(split, names)):
        for quintuple in table.to_pylist():
            attribute = QUESTIONS[quintuple["question_id"]].attributes[0]
            grade = quintuple["grades"][attribute.id]
            if (
                quintuple["box"]
                and attribute.space.scale == "ordinal"
                and grade is not None
                and grade > highest
            ):
                highest, chosen = grade, quintuple["id"]
        if highest >= 3:
            break
    if not chosen:
        raise DataError("L004", f"{release.folder} holds no quintuple with a box", "name one with --id")
    return chosen


def _no_such(row_id: str, place: str) -> UsageError:
    return UsageError(
        "L001", f"no quintuple {row_id[:80]!r} in {place}", "ids look like 1000001-00m-right-acl"
    )
