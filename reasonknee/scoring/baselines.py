"""What can be had without looking at the image, or hardly: beside it a score means something.

Each is fitted on the training split alone and answers like a model; none but `constant_box` gives a box, and
that one gives no grade.

- majority: each attribute's most frequent training grade (the lower one of two equally frequent).
- stratified: grades drawn with their training frequencies; what is drawn hangs on the id alone.
- text_only: what the question's text tells: the question, side and visit, the volume's shape and spacing.
- box_only: what the true box tells by its place and size. A model that is given the region sees as much.
- image_mean: mean and spread of the voxels in the region (needs a config with voxels).
- constant_box: for each region the median training box of knees of that side, as a share of the volume.

The three that are fitted are ridge regressions on the grades' indicators, one for each attribute.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import BOX_FIELDS, Box
from reasonknee.errors import DataError, UsageError
from reasonknee.layout import SIDES
from reasonknee.layout.scores import BASELINES
from reasonknee.release.reader import Release
from reasonknee.scoring import lines
from reasonknee.scoring.predictions import Predictions
from reasonknee.scoring.tally import REGION_IDS, REGION_OF, SLOTS_OF
from reasonknee.scoring.truth import NONE, SLOTS, TABLE, Truth, read_truth
from reasonknee.system.files import whole
from reasonknee.system.folders import note_ours

RIDGE = 1.0  # of standardised features
NEEDS_VOXELS = "image_mean"
QUICK = tuple(name for name in BASELINES if name != NEEDS_VOXELS)  # what `score` makes by itself


def predict(name: str, train: Truth, truth: Truth, release: Release | None = None) -> Predictions:
    """The answers of a baseline to every question of the truth."""
    if name == "constant_box":
        return _constant_box(train, truth)
    if name == "majority":
        return _with_grades(truth, _majority(train, truth))
    if name == "stratified":
        return _with_grades(truth, _stratified(train, truth))
    if name == NEEDS_VOXELS:
        if release is None:
            raise DataError("S030", "image_mean needs the release's voxels", "leave it out")
        features = [image_features(release, t) for t in (train, truth)]
    else:
        features = [{"text_only": text_features, "box_only": box_features}[name](t) for t in (train, truth)]
    return _with_grades(truth, _ridge(train, truth, *features))


def fit_and_write(release: str | Path, out: Path, split: str, names: Sequence[str] = ()) -> Iterator[str]:
    """A file of predictions for each, and a line about it; all that the release has the data for, if none is
    named."""
    for name in names:
        if name not in BASELINES:
            raise UsageError("S033", f"unknown baseline {name!r}", f"choose among {', '.join(BASELINES)}")
    opened = Release(release)
    train, truth = read_truth(opened, "train"), read_truth(opened, split)
    voxels = {"cropped", "full"} & set(opened.manifest.configs)
    chosen = names or (BASELINES if voxels else QUICK)
    note_ours(out, [f"{name}.jsonl" for name in chosen])
    for name in chosen:
        predicted = predict(name, train, truth, opened)
        path = out / f"{name}.jsonl"
        with whole(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
            for row in range(len(truth)):
                file.write(json.dumps(_line(truth, predicted, row)) + "\n")
        yield f"wrote {path}"
    if not names and not voxels:
        yield f"{NEEDS_VOXELS} is left out: the release holds no voxels"


def _line(truth: Truth, predicted: Predictions, row: int) -> dict[str, Any]:
    attributes = TABLE[truth.question[row]].attributes
    given = zip(attributes, predicted.grades[row].tolist(), strict=False)
    grades = {a.id: grade for a, grade in given if grade != NONE}
    boxed = predicted.box_state[row] == lines.BOXED
    box = dict(zip(BOX_FIELDS, predicted.boxes[row].tolist(), strict=True)) if boxed else None
    return {"id": truth.ids[row], "grades": grades, "box": box}


def _with_grades(truth: Truth, grades: np.ndarray) -> Predictions:
    predicted = Predictions.empty(len(truth))
    predicted.grades[:] = grades
    complete = ((grades != NONE) == SLOTS_OF[truth.question]).all(1)
    predicted.status[:] = np.where(complete, lines.PARSED, lines.UNPARSED)
    return predicted


# --- frequencies --------------------------------------------------------------------------------------------


def frequencies(train: Truth) -> dict[tuple[int, int], np.ndarray]:
    """(question, slot) -> share of each grade in training; what is unknown does not count."""
    shares = {}
    for q in np.unique(train.question):
        mine = train.question == q
        for slot, attribute in enumerate(TABLE[q].attributes):
            grades = train.grades[mine, slot]
            counts = np.bincount(grades[grades != NONE], minlength=len(attribute.space.grades))
            if counts.sum():
                shares[int(q), slot] = counts / counts.sum()
    return shares


def _majority(train: Truth, truth: Truth) -> np.ndarray:
    grades = np.full((len(truth), SLOTS), NONE, np.int8)
    for (q, slot), shares in frequencies(train).items():
        grades[truth.question == q, slot] = np.argmax(shares)
    return grades


def _stratified(train: Truth, truth: Truth) -> np.ndarray:
    grades = np.full((len(truth), SLOTS), NONE, np.int8)
    for slot in range(SLOTS):
        drawn = np.array([zlib.crc32(f"{slot} {id_}".encode()) for id_ in truth.ids]) / 2**32
        for (q, of), shares in frequencies(train).items():
            if of == slot:
                mine = truth.question == q
                edges = np.cumsum(shares)[:-1]
                grades[mine, slot] = np.searchsorted(edges, drawn[mine], side="right")
    return grades


def _constant_box(train: Truth, truth: Truth) -> Predictions:
    boxes = np.full((len(SIDES), len(REGION_IDS), 6), np.nan)
    shares = train.boxes / np.repeat(train.shape, 2, axis=1)
    region = REGION_OF[train.question]
    for side in range(len(SIDES)):
        for r in range(len(REGION_IDS)):
            mine = train.has_box & (region == r) & (train.side == side)
            if mine.any():
                boxes[side, r] = np.median(shares[mine], axis=0)
    chosen = boxes[truth.side, REGION_OF[truth.question]]
    known = ~np.isnan(chosen[:, 0])
    corners = np.round(np.nan_to_num(chosen) * np.repeat(truth.shape, 2, axis=1)).astype(np.int32)
    corners[:, 1::2] = np.maximum(corners[:, 1::2], corners[:, 0::2] + 1)
    predicted = Predictions.empty(len(truth))
    predicted.status[:] = lines.UNPARSED
    predicted.boxes[known] = corners[known]
    predicted.box_state[known] = lines.BOXED
    return predicted


# --- regressions --------------------------------------------------------------------------------------------


def text_features(truth: Truth) -> np.ndarray:
    months = np.array([float("".join(c for c in visit if c.isdigit()) or 0) for visit in truth.visits])
    month = months[truth.visit]
    return np.column_stack([truth.side, month, month == 0, truth.shape, truth.spacing]).astype(float)


def box_features(truth: Truth) -> np.ndarray:
    """Place as shares of the volume, sizes in millimetres and their logarithms; without a box, the mean of
    those that have one."""
    place = truth.boxes / np.repeat(truth.shape, 2, axis=1)
    size = (truth.boxes[:, 1::2] - truth.boxes[:, 0::2]) * truth.spacing
    logs = np.log(np.maximum(size, 1e-6))
    features = np.column_stack([place, size, logs, logs.sum(1)])
    features[~truth.has_box] = np.nan
    return np.column_stack([features, truth.has_box, truth.side])


def image_features(release: Release, truth: Truth) -> np.ndarray:
    """Mean and spread of the region's voxels, one row group in memory at a time."""
    from reasonknee.volumes import volume_from_bytes

    config = next((c for c in ("cropped", "full") if c in release.manifest.configs), None)
    if config is None:
        raise DataError(
            "S030", "image_mean needs the release's voxels", "this release holds annotations alone"
        )
    features = np.full((len(truth), 2), np.nan)
    volumes: dict[str, list[int]] = {}
    for row, id_ in enumerate(truth.ids):
        volumes.setdefault(id_.rsplit("-", 1)[0], []).append(row)
    keys = truth.ids if config == "cropped" else list(volumes)
    for stored in release.rows(keys, config, columns=["volume"]):
        if stored["volume"] is None:
            continue
        voxels = volume_from_bytes(stored["volume"]["bytes"]).array
        if config == "cropped":
            features[truth.rows[stored["id"]]] = voxels.mean(), voxels.std()
            continue
        for row in volumes[stored["volume_id"]]:
            if truth.has_box[row]:
                part = voxels[Box(*truth.boxes[row].tolist()).slices]
                features[row] = part.mean(), part.std()
    return features


def _ridge(train: Truth, truth: Truth, known: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The grade with the highest prediction, attribute by attribute."""
    grades = np.full((len(truth), SLOTS), NONE, np.int8)
    for (q, slot), shares in frequencies(train).items():
        mine = (train.question == q) & (train.grades[:, slot] != NONE)
        here = truth.question == q
        if not here.any():
            continue
        x, new = _standardised(known[mine], asked[here])
        target = np.eye(len(shares))[train.grades[mine, slot]] - shares
        weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ target)
        grades[here, slot] = np.argmax(np.round(new @ weights + shares, 12), axis=1)
    return grades


def _standardised(known: np.ndarray, asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    there = ~np.isnan(known)
    n = np.maximum(there.sum(0), 1)
    middle = np.where(there, known, 0.0).sum(0) / n
    spread = np.sqrt(np.where(there, (known - middle) ** 2, 0.0).sum(0) / n)
    varies = spread > 1e-9 * np.maximum(1.0, np.abs(middle))
    scaled = [(np.nan_to_num(x - middle) / np.where(varies, spread, 1.0))[:, varies] for x in (known, asked)]
    return scaled[0], scaled[1]
