"""nnU-Net v2, the paper's own way to masks: a cohort as a dataset that it trains on, and its predictions back
as masks of the cohort.

Every knee is stored as a right one, in one orientation, because nnU-Net ignores orientations and would learn
position as a cue for medial and lateral: train without mirroring. Folds are by patient.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.cohort import Annotation, Cohort
from reasonknee.cohort.annotations import read_annotation
from reasonknee.construct.tissues import turns
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions.regions import LABELS
from reasonknee.system.folders import whole_folder
from reasonknee.system.progress import Progress
from reasonknee.volumes import Grid, Volume, read_grid, read_volume, write_nifti

FOLDER, FOLDS, CASES = "Dataset501_Knee", 5, "cases.json"
NOTES = """Labels are those of reasonknee's masks. Left knees are stored as right ones, in one orientation:
switch mirroring off (nnUNetTrainerNoMirroring), or medial and lateral become one. Folds in
splits_final.json are by patient; nnU-Net's own would be by scan.
"""


def export(root: Path, out: Path, progress: Progress) -> Iterator[str]:
    """Writes a raw dataset: training and validation patients in folds, test patients as images to predict."""
    if os.path.lexists(out):
        raise UsageError("J050", f"{out} exists", "choose a new folder, or remove it")
    cohort = Cohort(root)
    entries, masks = cohort.entries(), cohort.masks()
    images = cohort.images(entries)
    cases: dict[str, dict[str, Any]] = {}
    with whole_folder(out) as folder:
        base = folder / FOLDER
        for name in ("imagesTr", "labelsTr", "imagesTs"):
            (base / name).mkdir(parents=True)
        for done, entry in enumerate(entries, start=1):
            a = read_annotation(cohort.annotations, entry.offset)
            mask = masks.get(entry.key, ())
            train = a.split != "test"
            if train and len(mask) != 1:
                continue
            image = read_volume(images[a.volume_id])
            write_nifti(
                base / ("imagesTr" if train else "imagesTs") / f"{a.volume_id}_0000.nii.gz",
                _stored(image, a.side),
            )
            if train:
                label = read_volume(mask[0])
                turned = label.grid.flips_to(image.grid)
                if turned is None:
                    raise DataError(
                        "J011", "the mask is on another grid than its image", "export both on the same voxels"
                    ).at(mask[0].name)
                same = Volume(np.ascontiguousarray(np.flip(label.array, turned)), image.grid)
                write_nifti(base / "labelsTr" / f"{a.volume_id}.nii.gz", _stored(same, a.side))
            cases[a.volume_id] = {"patient": a.patient, "side": a.side, "train": train, "file": _file(a)}
            progress("exporting", done, len(entries))
        training = [name for name, case in cases.items() if case["train"]]
        if not training:
            raise DataError("J053", "no training volume has a mask", "masks/ of the cohort holds them")
        _write(base / "dataset.json", {"channel_names": {"0": "DESS"}, "labels": {"background": 0, **LABELS},
                                       "numTraining": len(training), "file_ending": ".nii.gz"})  # fmt: skip
        _write(base / "splits_final.json", _folds({name: str(cases[name]["patient"]) for name in training}))
        _write(base / CASES, cases)
        (base / "NOTES.txt").write_text(NOTES, encoding="utf-8")
    yield f"{len(training):,} training cases and {len(cases) - len(training):,} to predict in {out / FOLDER}"
    yield f"next: nnUNetv2_plan_and_preprocess -d 501 --verify_dataset_integrity, with nnUNet_raw={out}"


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _file(a: Annotation) -> str:
    return f"{a.patient}/{a.visit.upper()}/{a.study}_{a.series}_{a.side}.nii.gz"


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
    known = {**_read(dataset / "dataset.json")["labels"]}
    if known != {"background": 0, **LABELS}:
        raise DataError(
            "J054", "its labels are not those that were exported", "name the exported dataset"
        ).at("dataset.json")
    cases = _read(dataset / CASES)
    cohort = Cohort(root)
    images = cohort.images(cohort.entries())
    missing, refused, without = [], [], 0
    with whole_folder(out) as folder:
        for done, (name, case) in enumerate(cases.items(), start=1):
            path = predictions / f"{name}.nii.gz"
            if not path.is_file():
                missing.append(name)
                continue
            try:
                mask = _checked(path, images[name], str(case["side"]))
            except ReasonKneeError as error:
                refused.append(f"{name}: {error.code}: {error.told}")
                continue
            without += len(LABELS) - len(np.unique(mask.array[mask.array > 0]))
            target = folder / str(case["file"])
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
    yield f"{made:,} masks in {out}; {len(missing):,} cases have no prediction; {without:,} regions absent"
    for each in refused[:5]:
        yield f"refused: {each}"


def _checked(path: Path, image: Path, side: str) -> Volume:
    """The prediction on its image's voxels; refused where grid, labels or the side of medial are not as
    exported."""
    predicted, grid = read_volume(path), read_grid(image)
    if not predicted.grid.same_place(_grid(grid)):
        raise DataError(
            "J056", f"it is on another grid than the case: {predicted.grid}", "predict the exported images"
        )
    if predicted.array.max(initial=0) > max(LABELS.values()):
        raise DataError(
            "J057", f"label {int(predicted.array.max())} was never exported", "is it of this dataset?"
        )
    centre = {
        compartment: _centre(predicted.array, [n for name, n in LABELS.items() if compartment in name])
        for compartment in ("medial", "lateral")
    }
    if None not in centre.values() and not centre["medial"] > centre["lateral"]:  # type: ignore[operator]
        raise DataError("J058", "medial lies where lateral should", "was the model trained with mirroring?")
    flips = turns(grid.orientation, side)
    return Volume(np.ascontiguousarray(np.flip(predicted.array.astype(np.uint8), flips)), grid)


def _centre(mask: np.ndarray, labels: list[int]) -> float | None:
    counts = np.isin(mask, labels).sum(axis=(1, 2))
    return float((counts * np.arange(len(counts))).sum() / counts.sum()) if counts.any() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        return parse_json(b" ".join(path.read_bytes().split()), path.name)
    except OSError as error:
        told = f"it cannot be read: {error.strerror}"
        raise UsageError("J059", told, "name the exported dataset", path.name) from None
