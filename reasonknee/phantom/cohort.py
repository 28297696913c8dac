"""The synthetic cohort: a folder as a user with an OAI download would have it, with knees whose lesions follow their grades.

Patient ids start with 1; OAI's start with 9. The same seed gives the same bytes, and a patient does not change when more are added.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reasonknee.annotations import FILE_NAME, Annotation, write_annotations
from reasonknee.boxes import Shape
from reasonknee.errors import UsageError
from reasonknee.phantom.grades import progress_grades, sample_grades
from reasonknee.phantom.knee import FIELD_OF_VIEW_MM, draw_knee
from reasonknee.phantom.tables import TABLE_OF_VISIT, write_moaks_tables
from reasonknee.questions import QUESTIONS
from reasonknee.region_boxes import region_boxes
from reasonknee.splits import SPLIT_COLUMNS, SPLIT_FILES, assign, features
from reasonknee.volumes import Grid, Volume, write_nifti

OAI_SHAPE: Shape = (160, 384, 384)
_MIN_SHAPE = (16, 40, 40)


@dataclass(frozen=True)
class _Scan:
    patient: str
    visit: str
    side: str
    study: str
    series: str
    grades: dict[str, dict[str, int]]  # as the knee is
    ungraded: frozenset[str]  # questions that the reader left open
    anatomy_seed: int
    seed: int

    @property
    def read(self) -> dict[str, dict[str, int]]:
        return {q: g for q, g in self.grades.items() if q not in self.ungraded}

    @property
    def file(self) -> str:
        return f"{self.patient}/{self.visit.upper()}/{self.study}_{self.series}_{self.side}.nii.gz"


def write_cohort(
    out: Path, patients: int, seed: int = 0, shape: Shape = OAI_SHAPE, tick: Callable[[int, int], object] = lambda done, of: None
) -> int:
    """Writes the cohort to `out`, which must not exist, and returns the number of volumes."""
    if out.exists():
        raise UsageError("F001", f"{out} exists", "choose a new folder, or remove it")
    if not 1 <= patients <= 99_999:
        raise UsageError("F002", f"{patients} patients", "1 to 99,999")
    if any(n < least for n, least in zip(shape, _MIN_SHAPE, strict=True)) or any(n > 1024 for n in shape):
        raise UsageError("F002", f"a shape of {shape}", f"at least {_MIN_SHAPE}, at most 1024 along an axis")
    scans = [scan for n in range(1, patients + 1) for scan in _scans(n, seed)]
    split = assign(features((s.patient, s.visit, s.side, s.read) for s in scans), seed)
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)  # what an interrupted run left would get into this cohort
    grid = phantom_grid(shape)
    known: list[Annotation] = []
    embeddings: dict[str, np.ndarray] = {}
    for done, scan in enumerate(scans, start=1):
        knee = draw_knee(shape, scan.side, scan.grades, scan.seed, anatomy_seed=scan.anatomy_seed)  # type: ignore[arg-type]
        for folder, array in (("images", knee.image), ("masks", knee.mask)):
            path = partial / folder / scan.file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_nifti(path, Volume(array, grid))
        boxes = region_boxes(knee.mask, grid.orientation)
        place = (split[scan.patient], scan.study, scan.series, shape, grid.spacing, grid.orientation)
        known.append(Annotation(scan.patient, scan.visit, scan.side, *place, boxes, scan.read))
        embeddings[known[-1].volume_id] = _embed(knee.image)
        tick(done, len(scans))
    write_annotations(partial / FILE_NAME, known)
    _write_embeddings(partial / "embeddings.h5", embeddings)
    _write_splits(partial / "splits", scans, split)
    write_moaks_tables(partial / "tables", [(s.patient, s.visit, s.side, s.read) for s in scans], np.random.default_rng([seed, 7]))
    partial.rename(out)
    return len(scans)


def phantom_grid(shape: Shape) -> Grid:
    """Sagittal slices from right to left, rows downwards, columns backwards, as OAI's DESS; the field of view is centred on the origin."""
    z, y, x = (length / n for length, n in zip(FIELD_OF_VIEW_MM, shape, strict=True))
    affine = np.zeros((4, 4))
    affine[:, 0] = (0, -x, 0, 0)
    affine[:, 1] = (0, 0, -y, 0)
    affine[:, 2] = (-z, 0, 0, 0)
    centre = np.array([(n - 1) / 2 for n in shape[::-1]])
    affine[:3, 3] = -(affine[:3, :3] @ centre)
    affine[3, 3] = 1
    # what a NIfTI header can hold, so that a grid is the same before and after it was written
    return Grid(shape, affine.astype(np.float32).astype(np.float64))


def _scans(number: int, seed: int) -> list[_Scan]:
    """A patient's knees and visits: one or both knees, baseline and up to two follow-ups."""
    rng = np.random.default_rng([seed, number])
    patient = f"{1_000_000 + number}"
    sides = ("right", "left") if rng.random() < 0.4 else (("right", "left")[int(rng.integers(2))],)
    visits = ["00m", *sorted(rng.choice(list(TABLE_OF_VISIT)[1:], size=int(rng.integers(3)), replace=False).tolist())]
    severity = float(rng.uniform(0.1, 0.9))
    scans = []
    for knee, side in enumerate(sides):
        grades = sample_grades(rng, severity)
        for n, visit in enumerate(visits):
            if n:
                grades = progress_grades(rng, grades)
            left_open = frozenset({list(QUESTIONS)[int(rng.integers(len(QUESTIONS)))]} if rng.random() < 0.15 else ())
            study, series = f"{2000 + list(TABLE_OF_VISIT).index(visit)}0115", f"{10_000_000 + number * 100 + n * 10 + knee}"
            seeds = (_seed(seed, number, 0), _seed(seed, number, 1 + n * 2 + knee))
            scans.append(_Scan(patient, visit, side, study, series, grades, left_open, *seeds))
    return scans


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _embed(image: np.ndarray) -> np.ndarray:
    """A stand-in for a vision encoder: 4 x 4 x 4 tokens, each the block means of its part of the volume."""
    blocks = (8, 16, 16)
    z, y, x = (n // b * b for n, b in zip(image.shape, blocks, strict=True))
    pooled = image[:z, :y, :x].reshape(8, z // 8, 16, y // 16, 16, x // 16).mean(axis=(1, 3, 5))
    tokens = pooled.reshape(4, 2, 4, 4, 4, 4).transpose(0, 2, 4, 1, 3, 5).reshape(64, 32)
    embedding: np.ndarray = (tokens / 256).astype(np.float16)
    return embedding


def _write_embeddings(path: Path, embeddings: dict[str, np.ndarray]) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for volume_id in sorted(embeddings):
            file.create_dataset(volume_id, data=embeddings[volume_id], track_times=False)


def _write_splits(folder: Path, scans: list[_Scan], split: dict[str, str]) -> None:
    folder.mkdir()
    for name, file_name in SPLIT_FILES.items():
        with (folder / file_name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(SPLIT_COLUMNS)
            for s in scans:
                if split[s.patient] == name:
                    raw = f"{s.visit}DESS/0.C.2/{s.patient}/{s.study}/{s.series}"
                    files = (f"../data/images/{s.file}", f"../data/masks/{s.file}")
                    writer.writerow([s.patient, s.visit.upper(), s.study, s.series, s.side, raw, *files])
