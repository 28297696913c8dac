"""A synthetic cohort for SGMRI-VQA: HDF5 like fastMRI's, the tables of fastMRI+ with their known faults, and
questions in the published form, with both ways of counting frames.

A scan is an ellipse of tissue with structures in it; a finding is a patch of another brightness that grows
and shrinks over its frames. Ids are made so that no real file has them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reasonknee.errors import UsageError
from reasonknee.sgmri.derive import Deriving, derive
from reasonknee.sgmri.fastmri_plus import COLUMNS, AnnotatedVolume
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.labels import LABELS
from reasonknee.sgmri.published import FIRST_FRAME
from reasonknee.sgmri.records import Record

_LEVEL_FOLDERS = {"slice": "image_qa", "volume": "volume_qa"}
_TYPES = {"yes_no": "closed_ended", "count": "open_ended", "text": "open_ended"}
_FOLDERS = {"train": "multicoil_train", "test": "multicoil_val"}


@dataclass(frozen=True)
class _Drawn:
    volume: AnnotatedVolume
    voxels: np.ndarray
    patient: str
    split: str
    acquisition: str


def write_cohort(
    out: Path, volumes: int = 8, seed: int = 0, progress: Callable[[int, int], object] = lambda done, of: None
) -> int:
    """So many volumes of each anatomy below `out`, which must not exist: images/, annotations/,
    published/."""
    if out.exists():
        raise UsageError("Z012", f"{out} exists", "choose a new folder, or remove it")
    (out / "annotations").mkdir(parents=True)
    done = 0
    for anatomy in LABELS:
        drawn = []
        for number in range(volumes):
            scan = _draw(anatomy, number, np.random.default_rng([seed, anatomy == "brain", number]))
            _write_scan(out / "images" / f"{anatomy}_{_FOLDERS[scan.split]}", scan)
            drawn.append(scan)
            done += 1
            progress(done, volumes * len(LABELS))
        _write_tables(out / "annotations", anatomy, [scan.volume for scan in drawn])
        _write_published(out / "published", anatomy, drawn, seed)
    return done


def _draw(anatomy: str, number: int, rng: np.random.Generator) -> _Drawn:
    frames = int(rng.integers(28, 51) if anatomy == "knee" else rng.integers(10, 17))
    side = 320 if anatomy == "knee" else int(rng.choice([256, 320]))
    sequence = str(rng.choice(["AXFLAIR", "AXT2", "AXT1"]))
    name = f"file{9000001 + number}" if anatomy == "knee" else f"file_brain_{sequence}_900_{9000001 + number}"
    volume = AnnotatedVolume(name, anatomy)
    y, x = np.mgrid[:side, :side].astype(np.float32) / side - 0.5
    body = (x / 0.38) ** 2 + (y / 0.42) ** 2 < 1
    texture = 0.35 + 0.1 * np.sin(18 * x + rng.uniform(0, 6)) * np.cos(15 * y + rng.uniform(0, 6))
    middle = np.hypot(x, y) < 0.12
    base = np.where(body, np.where(middle, 0.22, texture), 0.02).astype(np.float32)
    voxels = np.repeat(base[None], frames, 0) + rng.normal(0, 0.015, (frames, side, side)).astype(np.float32)
    if number % 4 != 3:  # each fourth shows nothing: a reviewed file without a finding
        labels = list(LABELS[anatomy])
        for label in rng.choice(labels, size=int(rng.integers(1, 4)), replace=False):
            _add_finding(volume, str(label), labels.index(str(label)), voxels, rng)
    split = "test" if number // 2 % 2 else "train"  # two scans of a patient, both in one split
    acquisition = sequence if anatomy == "brain" else str(rng.choice(["CORPD_FBK", "CORPDFS_FBK"]))
    upright = np.maximum(voxels, 0)[:, ::-1] * np.float32(1e-4)  # files hold small numbers, the other way up
    return _Drawn(volume, upright, f"synthetic-{anatomy}-{number // 2:05d}", split, acquisition)


def _add_finding(
    volume: AnnotatedVolume, label: str, kind: int, voxels: np.ndarray, rng: np.random.Generator
) -> None:
    """A patch whose brightness and outline tell its label, on several frames, with the box of each."""
    frames, side, _ = voxels.shape
    count = int(rng.integers(2, min(7, frames // 2)))
    first = int(rng.integers(2, frames - count - 1))
    centre = rng.uniform(0.3, 0.7, 2) * side
    size = rng.uniform(8, 26, 2)
    y, x = np.mgrid[:side, :side]
    for frame in range(first, first + count):
        half = np.maximum(size * (0.6 + 0.4 * np.sin(np.pi * (frame - first + 1) / (count + 1))), 3)
        y0, x0 = np.floor(centre - half).astype(int)
        y1, x1 = np.ceil(centre + half).astype(int)
        patch = ((y - centre[0]) / half[0]) ** 2 + ((x - centre[1]) / half[1]) ** 2 < 1
        striped = np.where((x + y) % (3 + kind % 5) < 2, 1.0, 0.4 + 0.1 * (kind % 4))
        voxels[frame] = np.where(patch, (0.85 if kind % 2 else 0.04) * striped, voxels[frame])
        box = FrameBox(frame, int(y0), int(y1), int(x0), int(x1)).clipped(side, side)
        volume.boxes.setdefault(label, []).append(box)


def _write_scan(folder: Path, scan: _Drawn) -> None:
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / f"{scan.volume.volume_id}.h5", "w", libver="latest") as file:
        file.create_dataset("reconstruction_rss", data=scan.voxels, track_times=False)
        file.attrs["patient_id"] = scan.patient
        file.attrs["acquisition"] = scan.acquisition


def _write_tables(folder: Path, anatomy: str, volumes: list[AnnotatedVolume]) -> None:
    """With the faults of the public ones: a label with a blank after it on a box that nearly stands twice, a
    box without area, one that starts above the image, a row that stands twice, a study row, a line of the
    list that is no file."""
    rows = []
    for volume in volumes:
        for label, boxes in volume.boxes.items():
            written = "Joint Effusion " if label == "Joint Effusion" else label
            rows += [[volume.volume_id, b.frame, "No", *b.as_xywh(), written] for b in boxes]
    boxed = next(v for v in volumes if v.boxes)
    label, (first, *_) = next(iter(boxed.boxes.items()))
    rows.append(rows[0])
    x, y, width, height = first.as_xywh()
    rows.append([boxed.volume_id, first.frame, "No", x, y, width + 1, height, f"{label} "])
    rows.append([boxed.volume_id, first.frame, "No", 50, 60, 12, 0, label])
    rows.append([boxed.volume_id, first.frame, "No", 40, -1, 30, 20, label])
    study = "artifact" if anatomy == "knee" else "Normal for age"
    rows.append([boxed.volume_id, 0, "Yes", "", "", "", "", study])
    with (folder / f"{anatomy}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([list(COLUMNS), *rows])
    names = "\n".join([*(v.volume_id for v in volumes), f"{anatomy.capitalize()} data"])
    (folder / f"{anatomy}_file_list.csv").write_text(names + "\n", encoding="utf-8")


def _write_published(folder: Path, anatomy: str, scans: list[_Drawn], seed: int) -> None:
    items: dict[tuple[str, str], list[dict[str, object]]] = {}
    for scan in scans:
        depth = scan.voxels.shape[0]
        for record in derive(scan.volume, scan.split, Deriving(seed, 2), None, depth):
            items.setdefault((record.split, record.level), []).append(_as_published(record, depth))
    for (split, level), listed in items.items():
        path = folder / anatomy / split / _LEVEL_FOLDERS[level] / f"{anatomy}_{split}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(listed, indent=1), encoding="utf-8")


def _as_published(record: Record, depth: int) -> dict[str, object]:
    """As the Hub has it: other numbers of frames, choices in the text of the knee's questions, absolute
    paths."""
    first = FIRST_FRAME[record.anatomy]
    kind = record.answer.kind
    answer = record.answer.text
    for box in sorted(record.boxes, reverse=True):
        answer = answer.replace(f"Frame {box.frame}:", f"Frame {box.frame + first}:")
    item: dict[str, object] = {
        "volume_id": record.volume_id,
        "modality": record.sequence or "PD",
        "level": record.level,
        "task": record.task,
        "type": _TYPES.get(kind, kind),
        "question": record.question,
        "answer": answer,
        "reasoning": " ".join(record.reasoning),
    }
    if record.choices and record.anatomy == "brain":
        item["choices"] = dict(record.choices)
    if record.level == "volume":
        labels = ", ".join(f.label for f in record.findings)
        return item | {"num_slices": depth, "step": 1, "ground_truth": {"final_diagnosis": labels}}
    boxes = [
        dict(zip(("x", "y", "width", "height"), box.as_xywh(), strict=True)) | {"label": finding.label}
        for finding in record.findings
        for box in finding.boxes
    ]
    number = (record.frame or 0) + first
    truth = {"labels": [f.label for f in record.findings], "diagnosis": answer, "bboxes": boxes}
    root = "/data/" if record.anatomy == "knee" else ""
    path = f"{root}images/{record.volume_id}_{number}.png"
    return item | {"slice_num": number, "image_path": path, "ground_truth": truth}
