"""A first look at a release: a quintuple of each config in words, and a picture of its slice with the box."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.manifest import Manifest, read_manifest
from reasonknee.questions import QUESTIONS
from reasonknee.records import PER_VOLUME
from reasonknee.volumes import volume_from_bytes


def describe_release(release: Path, row_id: str = "", out: Path | None = None) -> Iterator[str]:
    """Lines about one quintuple in every config; draws it to `out` if the release has the volume."""
    manifest = read_manifest(release)
    row_id = row_id or _with_finding(release, manifest)
    drawn = False
    for config in manifest.configs:
        row = _find(release, manifest, config, row_id)
        yield f"--- {config}"
        yield from describe(row)
        if out and config == "full":
            draw(row, row_id, out)
            drawn = True
    if out and not drawn:
        raise UsageError("L002", "the release has no config `full` to draw from", "leave --out away, or build `full`")
    if out:
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
        yield f"{name:12} {value}"


def draw(row: dict[str, Any], row_id: str, out: Path) -> None:
    """The middle slice of the box in the whole volume, beside the crop, as PNG."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise UsageError("L003", "drawing needs matplotlib", "pip install 'reasonknee[report]'") from None
    quintuple = next((q for q in row["quintuples"] if q["id"] == row_id), None)
    if quintuple is None:
        raise UsageError("L001", f"no quintuple {row_id[:80]!r} in this volume", "ids look like 1000001-00m-right-acl")
    volume = volume_from_bytes(row["volume"]["bytes"])
    box = Box.from_dict(quintuple["box"]) if quintuple["box"] else Box.whole(volume.grid.shape)
    middle = (box.z0 + box.z1 - 1) // 2
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    whole, part = figure.subplots(1, 2, width_ratios=(3, 2))
    bright = float(np.percentile(volume.array, 99.5))
    _, y, x = volume.grid.spacing
    for axes, image in ((whole, volume.array[middle]), (part, volume.array[middle, box.y0 : box.y1, box.x0 : box.x1])):
        axes.imshow(image, cmap="gray", vmin=0, vmax=bright, aspect=y / x)
        axes.set_axis_off()
    whole.add_patch(Rectangle((box.x0 - 0.5, box.y0 - 0.5), box.x1 - box.x0, box.y1 - box.y0, fill=False, edgecolor="#ffb000", linewidth=1.5))
    question = QUESTIONS[quintuple["question_id"]]
    grades = ", ".join(f"{a.title} {quintuple['grades'][a.id]}" for a in question.attributes)
    figure.suptitle(f"{question.lesion.title}, {question.region.title} ({row['side']} knee, {row['visit']})\n{grades}", fontsize=11)
    whole.set_title(f"slice {middle} of {volume.grid.shape[0]}", fontsize=9)
    part.set_title(f"the box: slices {box.z0} to {box.z1 - 1}", fontsize=9)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)


def _with_finding(release: Path, manifest: Manifest) -> str:
    """The quintuple with the highest first grade: something to see."""
    best, found = -1, ""
    for config in manifest.configs[:1]:
        for row in _rows(release, manifest, config, without=("volume", "embedding")):
            for quintuple in row["quintuples"] if config in PER_VOLUME else [row]:
                question = QUESTIONS[quintuple["question_id"]]
                first = quintuple["grades"][question.attributes[0].id]
                if quintuple["box"] and question.attributes[0].space.scale == "ordinal" and first > best:
                    best, found = first, quintuple["id"]
            if best >= 3:
                break
    if not found:
        raise DataError("L001", f"{release} holds no quintuple with a box", "name one with --id")
    return found


def _find(release: Path, manifest: Manifest, config: str, row_id: str) -> dict[str, Any]:
    wanted = row_id.rsplit("-", 1)[0] if config in PER_VOLUME else row_id
    key = "volume_id" if config in PER_VOLUME else "id"
    for row in _rows(release, manifest, config, equal=(key, wanted)):
        return row
    raise UsageError("L001", f"no quintuple {row_id[:80]!r} in {config}", "ids look like 1000001-00m-right-acl")


def _rows(
    release: Path, manifest: Manifest, config: str, equal: tuple[str, str] | None = None, without: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds

    for shard in manifest.of(config):
        table = ds.dataset(release / shard.path)
        names = [n for n in table.schema.names if n not in without]
        chosen = ds.field(equal[0]) == equal[1] if equal else None
        for batch in table.to_batches(columns=names, filter=chosen, batch_size=64):
            yield from batch.to_pylist()
