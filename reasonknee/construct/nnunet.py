"""nnU-Net v2, the paper's own way to masks: a cohort as a dataset that it trains on, and its predictions back
as masks of the cohort.

Every knee is stored as a right one, in one orientation, because nnU-Net ignores orientations and would learn
position as a cue for medial and lateral: train without mirroring. Folds are by patient.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from reasonknee.cohort import Cohort
from reasonknee.construct.masks import DEFAULT_LABELS, LabelMap, relabelled
from reasonknee.construct.tissues import turns, values_in
from reasonknee.errors import DataError, ReasonKneeError, UsageError, counted
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions.regions import LABELS
from reasonknee.system.folders import whole_folder
from reasonknee.system.progress import Progress
from reasonknee.volumes import Grid, Volume, read_grid, read_volume, write_nifti

FOLDER, FOLDS = "Dataset501_Knee", 5
IMAGES = ("imagesTr", "imagesTs")  # to train on, and to predict
_CHANNEL = "_0000.nii.gz"  # nnU-Net's end of the name of an image
_NAMED = 5
NOTES = """Labels are those of reasonknee's masks. Left knees are stored as right ones, in one orientation:
switch mirroring off (nnUNetTrainerNoMirroring), or medial and lateral become one. Folds in
splits_final.json are by patient; nnU-Net's own would be by scan.
"""


def export(root: Path, out: Path, progress: Progress, labels: LabelMap = DEFAULT_LABELS) -> Iterator[str]:
    """Writes a raw dataset: training and validation patients in folds, test patients as images to predict.

    A volume that cannot be used is named, and the others go on.
    """
    if os.path.lexists(out):
        raise UsageError("J050", f"{out} exists", "choose a new folder, or remove it")
    cohort = Cohort(root)
    entries, masks = cohort.entries(), cohort.masks()
    images, _ = cohort.match_images(entries)
    training: dict[str, str] = {}  # case -> patient
    predicted, without, failed = 0, [], []
    with whole_folder(out) as folder:
        base = folder / FOLDER
        for name in (*IMAGES, "labelsTr"):
            (base / name).mkdir(parents=True)
        for done, entry in enumerate(entries, start=1):
            name, mine, train = entry.volume_id, masks.get(entry.key, ()), entry.split != "test"
            if name not in images or (train and len(mine) != 1):
                without.append(name)
                continue
            try:
                image, side = read_volume(images[name]), cohort.annotation(entry).side
                label = _label(mine[0], image.grid, labels) if train else None
            except ReasonKneeError as error:
                failed.append(f"{name}: {error.code}: {error.told}")
                continue
            write_nifti(base / IMAGES[not train] / f"{name}{_CHANNEL}", _stored(image, side))
            if label:
                write_nifti(base / "labelsTr" / f"{name}.nii.gz", _stored(label, side))
                training[name] = entry.patient
            predicted += not train
            progress("exporting", done, len(entries))
        if not training:
            first = f": {failed[0]}" if failed else ""
            raise DataError("J053", f"no training volume has a mask that can be used{first}", "see masks/")
        _write(base / "dataset.json", {"channel_names": {"0": "DESS"}, "labels": {"background": 0, **LABELS},
                                       "numTraining": len(training), "file_ending": ".nii.gz"})  # fmt: skip
        _write(base / "splits_final.json", _folds(training))
        (base / "NOTES.txt").write_text(NOTES, encoding="utf-8")
    yield f"{len(training):,} training cases and {predicted:,} to predict in {out / FOLDER}"
    if without:
        yield f"left out, without one image or one mask: {_some(without)}"
    places = " ".join(
        f"nnUNet_{name}={quote(os.path.abspath(place))}"
        for name, place in (
            ("raw", out),
            ("preprocessed", f"{out}-preprocessed"),
            ("results", f"{out}-results"),
        )
    )
    yield f"next: {places} nnUNetv2_plan_and_preprocess -d 501 --verify_dataset_integrity"
    if failed:
        raise DataError("J060", f"{counted(len(failed), 'volume')} left out, the first: {failed[0]}",
                        "mend or remove them; the rest is written")  # fmt: skip


def _label(path: Path, grid: Grid, labels: LabelMap) -> Volume:
    """The mask on the voxels of its image, in the labels that dataset.json lists."""
    mask = read_volume(path)
    turned = mask.grid.flips_to(grid)
    if turned is None:
        raise DataError(
            "J011", "the mask is on another grid than its image", "export both on the same voxels"
        ).at(path.name)
    return Volume(np.ascontiguousarray(np.flip(relabelled(mask.array, labels, path.name), turned)), grid)


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _stored(volume: Volume, side: str) -> Volume:
    """As a right knee whose axes grow medially, down and back, with spacing alone in the affine."""
    return Volume(
        np.ascontiguousarray(np.flip(volume.array, turns(volume.grid.orientation, side))), _grid(volume.grid)
    )


def _grid(grid: Grid) -> Grid:
    z, y, x = grid.spacing
    affine = np.array([[0, 0, -z, 0], [-x, 0, 0, 0], [0, -y, 0, 0], [0, 0, 0, 1]], dtype=np.float32)
    return Grid(grid.shape, affine.astype(np.float64))


def _folds(patient_of: dict[str, str]) -> list[dict[str, list[str]]]:
    """At most five, none without a patient."""
    patients = sorted(set(patient_of.values()))
    count = max(2, min(FOLDS, len(patients)))
    fold = {patient: n % count for n, patient in enumerate(patients)}
    return [
        {
            "train": [c for c, p in patient_of.items() if fold[p] != n],
            "val": [c for c, p in patient_of.items() if fold[p] == n],
        }
        for n in range(count)
    ]


# --- the way back -------------------------------------------------------------------------------------------


def bring_back(predictions: Path, dataset: Path, root: Path, out: Path, progress: Progress) -> Iterator[str]:
    """Predicted cases as masks of the cohort: on its images' voxels, in their orientation."""
    if os.path.lexists(out):
        raise UsageError("J050", f"{out} exists", "choose a new folder, or remove it")
    if _labels_of(dataset / "dataset.json") != {"background": 0, **LABELS}:
        raise DataError(
            "J054", "its labels are not those that were exported", "name the exported dataset"
        ).at("dataset.json")
    cohort = Cohort(root)
    entry_of = {entry.volume_id: entry for entry in cohort.entries()}
    images, _ = cohort.match_images(list(entry_of.values()))
    cases = _cases(dataset)
    missing, refused, absent = [], [], Counter[str]()
    with whole_folder(out) as folder:
        for done, name in enumerate(cases, start=1):
            path = predictions / f"{name}.nii.gz"
            if not path.is_file():
                missing.append(name)
                continue
            try:
                if name not in images:
                    raise DataError("J061", "the cohort has no image of it", "name the exported cohort")
                a = cohort.annotation(entry_of[name])
                mask = _checked(path, images[name], a.side)
            except ReasonKneeError as error:
                refused.append(f"{name}: {error.code}: {error.told}")
                continue
            present = values_in(mask.array)
            absent.update(region for region, number in LABELS.items() if number not in present)
            target = folder / f"{a.patient}/{a.visit.upper()}/{a.study}_{a.series}_{a.side}.nii.gz"
            target.parent.mkdir(parents=True, exist_ok=True)
            write_nifti(target, mask)
            progress("bringing back", done, len(cases))
        made = len(cases) - len(missing) - len(refused)
        if not made:
            raise DataError(
                "J055",
                f"no prediction can be used: {(refused or ['none is there'])[0]}",
                "name the folder of predictions",
            )
    yield f"{counted(made, 'mask')} in {out}"
    if missing:
        yield f"without a prediction: {len(missing):,} ({_some(missing)})"
    if absent:
        yield "regions that a prediction lacks: " + _some(
            [f"{r} {n:,} times" for r, n in absent.most_common()]
        )
    for each in refused[:5]:
        yield f"refused: {each}"
    if refused:
        raise DataError("J062", f"{counted(len(refused), 'prediction')} refused, the first: {refused[0]}",
                        "they have no mask; the others are written")  # fmt: skip


def _cases(dataset: Path) -> list[str]:
    """The cases that were exported, by the names of their images."""
    return sorted(
        path.name.removesuffix(_CHANNEL)
        for name in IMAGES
        for path in (dataset / name).glob(f"[!.]*{_CHANNEL}")
    )


def _checked(path: Path, image: Path, side: str) -> Volume:
    """The prediction on its image's voxels; refused where grid, labels or the side of medial are not as
    exported."""
    predicted, grid = read_volume(path), read_grid(image)
    if not predicted.grid.same_place(_grid(grid)):
        raise DataError(
            "J056", f"it is on another grid than the case: {predicted.grid}", "predict the exported images"
        )
    try:
        mask = relabelled(predicted.array, DEFAULT_LABELS, path.name)
    except DataError as error:
        told = f"a label that was never exported: {error.message}"
        raise DataError("J057", told, "is it of this dataset?") from None
    centre = {
        compartment: _centre(mask, [n for name, n in LABELS.items() if compartment in name])
        for compartment in ("medial", "lateral")
    }
    if None not in centre.values() and not centre["medial"] > centre["lateral"]:  # type: ignore[operator]
        raise DataError("J058", "medial lies where lateral should", "was the model trained with mirroring?")
    return Volume(np.ascontiguousarray(np.flip(mask, turns(grid.orientation, side))), grid)


def _centre(mask: np.ndarray, labels: list[int]) -> float | None:
    counts = np.isin(mask, labels).sum(axis=(1, 2))
    return float((counts * np.arange(len(counts))).sum() / counts.sum()) if counts.any() else None


def _labels_of(path: Path) -> object:
    try:
        told = parse_json(path.read_bytes(), path.name)
    except OSError as error:
        message = f"it cannot be read: {error.strerror}"
        raise UsageError("J059", message, "name the exported dataset", path.name) from None
    return told.get("labels")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
