"""The synthetic cohort: a folder as a user with an OAI download would have it, with knees whose lesions
follow their grades.

Patient ids start with 1; OAI's start with 9. The same seed gives the same bytes, and a patient does not
change when more are added.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reasonknee.boxes import Box, Shape
from reasonknee.cohort import Annotation, Provenance, Reading
from reasonknee.cohort.annotations import FILE_NAME, write_annotations
from reasonknee.cohort.scans import image_sha256
from reasonknee.errors import UsageError
from reasonknee.layout.splits import SPLIT_COLUMNS, SPLIT_FILES, assign, features
from reasonknee.phantom.dictation import dictation
from reasonknee.phantom.grades import another_reading, progress_grades, sample_grades
from reasonknee.phantom.knee import FIELD_OF_VIEW_MM, draw_knee
from reasonknee.phantom.layouts import LAYOUTS, ImageFolder
from reasonknee.phantom.tables import PROJECTS, TABLE_OF_VISIT, TableRow, table_name, write_moaks_tables
from reasonknee.questions import QUESTIONS
from reasonknee.system.folders import whole_folder
from reasonknee.system.progress import Progress, silent
from reasonknee.version import VERSION
from reasonknee.volumes import Grid, Volume, write_nifti
from reasonknee.volumes.region_boxes import region_boxes

OAI_SHAPE: Shape = (160, 384, 384)
_MIN_SHAPE = (16, 40, 40)
WITH_SPLITS = ("nifti", "flat")  # names of flat files say nothing of the visit
_TOKENS = (4, 4, 4)  # of an embedding along z, y and x


@dataclass(frozen=True)
class PhantomScan:
    patient: str
    visit: str
    side: str
    study: str
    series: str
    grades: dict[str, dict[str, int]]  # as the knee is
    ungraded: frozenset[str]  # questions that the reader left open
    project: str  # who read it
    again: dict[str, dict[str, int]]  # what another reader saw, who left more open; mostly nothing
    anatomy_seed: int
    seed: int

    @property
    def read(self) -> dict[str, dict[str, int]]:
        return {q: g for q, g in self.grades.items() if q not in self.ungraded}

    @property
    def rows(self) -> list[TableRow]:
        knee = (self.patient, self.visit, self.side)
        first = TableRow(*knee, self.project, self.read)
        return [first, TableRow(*knee, PROJECTS[-1], self.again)] if self.again else [first]

    def dictated(self, boxes: Mapping[str, Box | None]) -> dict[str, str]:
        """Every fourth patient's knees have been talked through."""
        if int(self.patient) % 4 != 2:
            return {}
        asked = ((QUESTIONS[q], grades) for q, grades in self.read.items())
        return {q.id: dictation(q, grades, boxes.get(q.region.id), self.seed) for q, grades in asked}

    @property
    def file(self) -> str:
        return f"{self.patient}/{self.visit.upper()}/{self.study}_{self.series}_{self.side}.nii.gz"


def write_cohort(
    out: Path,
    patients: int,
    seed: int = 0,
    shape: Shape = OAI_SHAPE,
    progress: Progress = silent,
    layout: str = LAYOUTS[0],
) -> int:
    """Writes the cohort to `out`, which must not exist, and returns the number of volumes.

    In a layout other than the first it is what a download is: sources only, from which `construct` makes the
    annotations.
    """
    if layout not in LAYOUTS:
        raise UsageError("F004", f"no layout {layout!r}", f"one of {', '.join(LAYOUTS)}")
    if os.path.lexists(out):
        raise UsageError("F001", f"{out} exists", "choose a new folder, or remove it")
    if not 1 <= patients <= 99_999:
        raise UsageError("F002", f"{patients} patients", "1 to 99,999")
    if any(n < least for n, least in zip(shape, _MIN_SHAPE, strict=True)) or any(n > 1024 for n in shape):
        raise UsageError("F002", f"a shape of {shape}", f"at least {_MIN_SHAPE}, at most 1024 along an axis")
    scans = [scan for n in range(1, patients + 1) for scan in patient_scans(n, seed)]
    split = assign(features((s.patient, s.visit, s.side, s.read) for s in scans), seed)
    grid = phantom_grid(shape)
    with whole_folder(out) as partial:
        images, tidy = ImageFolder(partial / "images", layout), layout == LAYOUTS[0]
        known: list[Annotation] = []
        embeddings: dict[str, np.ndarray] = {}
        for done, scan in enumerate(scans, start=1):
            knee = draw_knee(shape, scan.side, scan.grades, scan.seed, anatomy_seed=scan.anatomy_seed)  # type: ignore[arg-type]
            knee_of = (scan.patient, scan.visit, scan.side, scan.study, scan.series)
            images.write(*knee_of, Volume(knee.image, grid))
            path = partial / "masks" / scan.file
            path.parent.mkdir(parents=True, exist_ok=True)
            write_nifti(path, Volume(knee.mask, grid))
            boxes = region_boxes(knee.mask, grid.orientation)
            place = (split[scan.patient], scan.study, scan.series, shape, grid.spacing, grid.orientation)
            known.append(
                Annotation(
                    scan.patient,
                    scan.visit,
                    scan.side,
                    *place,
                    boxes,
                    scan.read,
                    readings=(Reading(PROJECTS[-1], scan.again),) if scan.again else (),
                    reasoning=scan.dictated(boxes),
                    provenance=Provenance(
                        table_name(scan.visit),
                        scan.project,
                        "mask",
                        # in another layout nothing but sources is written
                        image_sha256=image_sha256(partial / "images" / scan.file) if tidy else None,
                    ),
                )
            )
            embeddings[known[-1].volume_id] = _embed(knee.image)
            progress("drawing knees", done, len(scans))
        images.finish()
        if tidy:
            write_annotations(partial / FILE_NAME, known)
        _write_embeddings(partial / "embeddings.h5", embeddings, shape[0])
        if layout in WITH_SPLITS:
            _write_splits(partial / "splits", scans, split)
        write_moaks_tables(
            partial / "tables", [row for s in scans for row in s.rows], np.random.default_rng([seed, 7])
        )
    return len(scans)


def phantom_grid(shape: Shape) -> Grid:
    """Sagittal slices from right to left, rows downwards, columns backwards, as OAI's DESS; the field of
    view is centred on the origin."""
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


def patient_scans(number: int, seed: int) -> list[PhantomScan]:
    """A patient's knees and visits: one or both knees, baseline and up to two follow-ups."""
    rng = np.random.default_rng([seed, number])
    patient = f"{1_000_000 + number}"
    sides = ("right", "left") if rng.random() < 0.4 else (("right", "left")[int(rng.integers(2))],)
    visits = [
        "00m",
        *sorted(rng.choice(list(TABLE_OF_VISIT)[1:], size=int(rng.integers(3)), replace=False).tolist()),
    ]
    severity = float(rng.uniform(0.1, 0.9))
    scans = []
    for knee, side in enumerate(sides):
        grades = sample_grades(rng, severity)
        twice = rng.random() < 0.3
        for n, visit in enumerate(visits):
            if n:
                grades = progress_grades(rng, grades, (int(visit[:2]) - int(visits[n - 1][:2])) / 12)
            left_open = frozenset(
                {list(QUESTIONS)[int(rng.integers(len(QUESTIONS)))]} if rng.random() < 0.15 else ()
            )
            study, series = (
                f"{2000 + list(TABLE_OF_VISIT).index(visit)}0115",
                f"{10_000_000 + number * 100 + n * 10 + knee}",
            )
            seeds = (_seed(seed, number, 0), _seed(seed, number, 1 + n * 2 + knee))
            again = _read_again(grades, seeds[0] + knee, n) if twice else {}
            read = (left_open, PROJECTS[number % 2], again)
            scans.append(PhantomScan(patient, visit, side, study, series, grades, *read, *seeds))
    return scans


def _read_again(grades: dict[str, dict[str, int]], reader: int, visit: int) -> dict[str, dict[str, int]]:
    """Another reader grades half of the questions, the same ones at each visit, and a few of them in part."""
    asked = np.random.default_rng([reader, 13]).random(len(QUESTIONS)) < 0.5
    seen = another_reading(grades, reader)
    kept = {q: seen[q] for q, wanted in zip(QUESTIONS, asked, strict=True) if wanted}
    if visit and "pcl" in kept:
        kept["pcl"] = {"complete_tear": kept["pcl"]["complete_tear"]}
    return kept


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


def _write_embeddings(path: Path, embeddings: dict[str, np.ndarray], slices: int) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.attrs["model"], file.attrs["versions"] = "block means", f"reasonknee {VERSION}"
        for volume_id in sorted(embeddings):
            made = file.create_dataset(volume_id, data=embeddings[volume_id], track_times=False)
            made.attrs["grid"], made.attrs["window"] = _TOKENS, (0.0, 256.0)
            made.attrs["slices"] = np.arange(slices)


def _write_splits(folder: Path, scans: list[PhantomScan], split: dict[str, str]) -> None:
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
