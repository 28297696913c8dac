"""The error browser: the answers that went most wrong, each with its slice, both boxes, the question and the model's words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reasonknee.boxes import Box
from reasonknee.collate.intensity import percentile_window
from reasonknee.lesions import CATEGORIES
from reasonknee.manifest import Manifest, read_manifest
from reasonknee.prompts import zero_shot
from reasonknee.report.svg import png_uri, text
from reasonknee.score_layout import STATUSES
from reasonknee.scoring import Scored
from reasonknee.scoring import predictions as pr
from reasonknee.scoring.truth import NONE, TABLE
from reasonknee.volumes import volume_from_bytes

PER_CATEGORY = 4
UNREAD = 6  # answers that no grade could be read from
LONGEST = 4000  # characters of a model's words that are shown


class Picture(NamedTuple):
    uri: str
    z: int
    place: Box  # what part of the volume the picture shows
    spacing: tuple[float, float]  # of rows and columns


def worst(scored: Scored) -> list[int]:
    """Rows by how wrong they are: the distance of their grades and the IoU that is lacking, some of each category, and some unread."""
    truth, judged, predicted = scored.truth, scored.judged, scored.predicted
    highest = np.array([[len(a.space.grades) - 1 for a in q.attributes] + [1] * (3 - len(q.attributes)) for q in TABLE])[truth.question]
    far = np.where(judged.answered, np.abs(truth.grades.astype(float) - predicted.grades) / highest, 0.0).max(1)
    badness = far + np.where(judged.wanted, 1 - judged.iou, 0.0) * 0.5
    wrong = (judged.right != judged.asked).any(1) & (predicted.status == pr.PARSED)
    category = np.array([CATEGORIES.index(TABLE[q].category) for q in range(len(TABLE))])[truth.question]
    order = np.argsort(-badness, kind="stable")
    chosen: list[int] = []
    for c in range(len(CATEGORIES)):
        chosen += order[(wrong & (category == c))[order]][:PER_CATEGORY].tolist()
    unread = np.flatnonzero((predicted.status == pr.UNPARSED) | (predicted.status == pr.INVALID))
    spread: list[int] = unread[:: max(1, len(unread) // UNREAD)][:UNREAD].tolist()
    return chosen + spread


def browser(scored: Scored, release: Path, predictions: Path) -> str:
    rows = worst(scored)
    if not rows:
        return "<p>No answer went wrong.</p>"
    pictures = dict(_pictures(scored, release, rows))
    kinds = ["all", *(c.id for c in CATEGORIES), "unread"]
    titles = {"all": "All", "unread": "Unread", **{c.id: c.title for c in CATEGORIES}}
    found = [(row, _kind(scored, row)) for row in rows]
    present = [k for k in kinds if k == "all" or any(kind == k for _, kind in found)]
    inputs = "".join(
        f'<input type="radio" name="kind" id="kind-{k}"{" checked" * (k == "all")}><label for="kind-{k}">{text(titles[k])}</label>' for k in present
    )
    rules = "".join(f"#kind-{k}:checked ~ .errors .error:not(.{k}){{display:none}}" for k in present[1:])
    cards = "".join(_card(scored, row, kind, predictions, pictures.get(row)) for row, kind in found)
    return f'<style>{rules}</style><div class="browser">{inputs}<div class="errors">{cards}</div></div>'


def _kind(scored: Scored, row: int) -> str:
    return TABLE[scored.truth.question[row]].category.id if scored.predicted.status[row] == pr.PARSED else "unread"


def _card(scored: Scored, row: int, kind: str, predictions: Path, picture: Picture | None) -> str:
    truth, predicted, judged = scored.truth, scored.predicted, scored.judged
    question = TABLE[truth.question[row]]
    lines = ""
    for slot, attribute in enumerate(question.attributes):
        true, given = int(truth.grades[row, slot]), int(predicted.grades[row, slot])
        mark = "right" if judged.right[row, slot] else "wrong"
        shown = "none" if given == NONE else f"{given}: {attribute.space.meanings[given]}"
        wanted = "none" if true == NONE else f"{true}: {attribute.space.meanings[true]}"
        lines += f"<tr><td>{text(attribute.title)}</td><td>{text(wanted)}</td><td class={mark}>{text(shown)}</td></tr>"
    if judged.found[row]:
        box = f"IoU {judged.iou[row]:.2f}, centre {judged.centre_mm[row]:.0f} mm off"
    else:
        box = "no box given" if judged.wanted[row] else "no box wanted"
    image = _figure(scored, row, picture) if picture else '<p class="none">The release holds no voxels for this one.</p>'
    words_of_model = _words(predictions, int(predicted.offset[row]))
    return (
        f'<article class="error {kind}"><h3>{text(question.lesion.title)}, {text(question.region.title)}</h3>'
        f'<p class="id">{text(truth.ids[row])} · {STATUSES[predicted.status[row]]} · {box}</p><div class="sides"><div>{image}</div><div>'
        f"<table><tr><th></th><th>truth</th><th>model</th></tr>{lines}</table>"
        f"<details><summary>The question</summary><pre>{text(zero_shot(question))}</pre></details>"
        f"<details open><summary>The model's words</summary><pre>{text(words_of_model)}</pre></details></div></div></article>"
    )


def _words(predictions: Path, offset: int) -> str:
    fields = pr.line_at(predictions, offset)
    said = fields.get("response") if "response" in fields else fields.get("reasoning")
    said = "(no text: the answer came ready)" if said is None else str(said)
    return said if len(said) <= LONGEST else said[:LONGEST] + f"\n… {len(said) - LONGEST} characters more"


def _box(corners: np.ndarray) -> Box:
    return Box(*(int(c) for c in corners))


def _figure(scored: Scored, row: int, picture: Picture) -> str:
    """The slice with the true box (solid) and the model's (dashed); a box that does not reach this slice is drawn thin."""
    truth, predicted = scored.truth, scored.predicted
    sy, sx = picture.spacing
    _, rows, columns = picture.place.shape
    width, height = columns * sx, rows * sy
    body = f'<image href="{picture.uri}" x="0" y="0" width="{width:.2f}" height="{height:.2f}" preserveAspectRatio="none"/>'
    said = []
    for name, there, corners, colour, dash in (
        ("true box", truth.has_box[row], truth.boxes[row], "#4ade80", ""),
        ("model's box", predicted.box_state[row] == pr.BOX, predicted.boxes[row], "#fb923c", "6 4"),
    ):
        if not there:
            said.append(f"no {name}")
            continue
        box = _box(corners)
        here = box.z0 <= picture.z < box.z1
        x, y = (box.x0 - picture.place.x0) * sx, (box.y0 - picture.place.y0) * sy
        body += (
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{box.shape[2] * sx:.2f}" height="{box.shape[1] * sy:.2f}" fill="none" stroke="{colour}" '
            f'stroke-width="{2 if here else 0.8}" stroke-dasharray="{dash}" vector-effect="non-scaling-stroke"/>'
        )
        said.append(f"{name} on slices {box.z0} to {box.z1 - 1}")
    drawn = f'<svg viewBox="0 0 {width:.2f} {height:.2f}" class="slice" role="img" aria-label="slice {picture.z}">{body}</svg>'
    return f"<figure>{drawn}<figcaption>slice {picture.z}: {text('; '.join(said))}</figcaption></figure>"


# --- pictures ---------------------------------------------------------------------------------------------------------------------


def _pictures(scored: Scored, release: Path, rows: list[int]) -> Iterator[tuple[int, Picture]]:
    """A slice for each row that the release has voxels for: of the whole volume if it can be, else of the crop."""
    manifest = read_manifest(release)
    config = next((c for c in ("full", "cropped") if manifest.of(c, scored.scores["split"])), None)
    if config is None:
        return
    names = {row: scored.truth.ids[row] if config == "cropped" else scored.truth.ids[row].rsplit("-", 1)[0] for row in rows}
    for found in _rows_with_voxels(release, manifest, config, scored.scores["split"], sorted(set(names.values()))):
        if found["volume"] is None:
            continue
        volume = volume_from_bytes(found["volume"]["bytes"])
        place = Box.from_dict(found["crop"]) if found.get("crop") else Box.whole(volume.grid.shape)
        window = percentile_window(volume.array)
        for row in [r for r, name in names.items() if name == found["id" if config == "cropped" else "volume_id"]]:
            z = _slice(scored, row, place)
            grey = np.clip((volume.array[z - place.z0].astype(np.float32) - window.lo) / (window.hi - window.lo), 0, 1)
            _, sy, sx = volume.grid.spacing
            yield row, Picture(png_uri((grey * 255).astype(np.uint8)), z, place, (sy, sx))


def _slice(scored: Scored, row: int, place: Box) -> int:
    truth, predicted = scored.truth, scored.predicted
    shown = truth.boxes[row] if truth.has_box[row] else predicted.boxes[row] if predicted.box_state[row] == pr.BOX else (place.z0, place.z1)
    return int(min(max((int(shown[0]) + int(shown[1]) - 1) // 2, place.z0), place.z1 - 1))


def _rows_with_voxels(release: Path, manifest: Manifest, config: str, split: str, wanted: list[str]) -> Iterator[dict[str, Any]]:
    import pyarrow.dataset as ds

    key = "id" if config == "cropped" else "volume_id"
    columns = [key, "volume", *(["crop"] if config == "cropped" else [])]
    for shard in manifest.of(config, split):
        source = ds.dataset(release / shard.path)
        for batch in source.to_batches(columns=columns, filter=ds.field(key).isin(wanted), batch_size=1, batch_readahead=0, fragment_readahead=0):
            yield from batch.to_pylist()
