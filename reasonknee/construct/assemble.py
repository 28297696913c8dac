"""From the sources of a cohort to its annotations: grades from tables, boxes from masks, grids from images, splits from files or our own.

Nothing is left out in silence: `construct.report.json` counts every table cell that was not used by reason, and names every volume that was left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from reasonknee import dicom
from reasonknee.annotations import Annotation
from reasonknee.boxes import Box
from reasonknee.construct import moaks_tables
from reasonknee.construct.masks import CONNECTIVITY, DEFAULT_LABELS, LabelMap, mask_boxes
from reasonknee.construct.moaks_tables import Knee, Readings
from reasonknee.construct.split_files import Listed, read_split_files
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.regions import REGIONS
from reasonknee.scans import Key, Scan, scans_by_key
from reasonknee.splits import assign, features, imbalance, volume_id
from reasonknee.version import VERSION
from reasonknee.volumes import Grid, read_grid
from reasonknee.workers import worker_pool

OWN = "own"
_BOX_RULE = f"largest component, {CONNECTIVITY}-connected, half-open voxels, null where absent"
Progress = Callable[[str, int, int], object]
NO_VOLUME, VOLUME_LEFT_OUT = "no volume of the knee and visit", "the volume was left out"


@dataclass(frozen=True)
class Options:
    labels: LabelMap = field(default_factory=lambda: DEFAULT_LABELS)
    splits: str = ""  # a folder of split files, "own", or empty for the cohort's own split files if it has any
    seed: int = 0  # of our own splits
    masks: bool = True  # without, no box is known
    workers: int = 1


@dataclass
class Outcome:
    annotations: list[Annotation]
    report: dict[str, Any]

    @property
    def bad(self) -> list[dict[str, str]]:
        """Volumes that failed, as opposed to those that the sources say nothing about."""
        found: list[dict[str, str]] = self.report["quarantine"]
        return found


@dataclass(frozen=True)
class _Job:
    knee: Knee
    image: Scan
    mask: Path | None


class _Volumes:
    """The volumes of a cohort and what became of each: used, left out for a reason, or quarantined with a code."""

    def __init__(self) -> None:
        self.found = 0
        self.left_out: dict[str, list[str]] = defaultdict(list)
        self.quarantine: list[dict[str, str]] = []
        self.knees: set[Knee] = set()  # of volumes that were left out, where it is known

    def drop(self, reason: str, name: str, knee: Knee | None = None) -> None:
        self.left_out[reason].append(name)
        self.knees |= {knee} if knee else set()

    def fail(self, name: str, error: ReasonKneeError, knee: Knee | None = None) -> None:
        self.quarantine.append({"volume": name, "code": error.code, "reason": error.message})
        self.knees |= {knee} if knee else set()

    def report(self, used: int) -> dict[str, Any]:
        return {"found": self.found, "used": used, "left_out": {reason: sorted(names) for reason, names in sorted(self.left_out.items())}}


def construct(root: Path, options: Options | None = None, progress: Progress = lambda stage, done, of: None) -> Outcome:
    """Annotations of the cohort in `root`, made from its tables, images, masks and split files."""
    options = options or Options()
    if not root.is_dir():
        raise UsageError("J000", f"no folder at {root}", "a cohort folder holds tables/, images/, masks/ and perhaps splits/")
    readings = moaks_tables.read_tables(root / "tables")
    listed = split_rows(root, options.splits)
    volumes = _Volumes()
    jobs = list(_jobs(root, readings, listed, options, volumes))
    made: list[Annotation] = []
    for done, (job, result) in enumerate(_run(jobs, options), start=1):
        if isinstance(result, ReasonKneeError):
            volumes.fail(volume_id(*job.knee), result, job.knee)
        else:
            grid, boxes = result
            split = listed[job.image.key].split if listed is not None else ""
            made.append(annotation(job.image.key, job.knee, split, grid, boxes, readings.chosen[job.knee].grades))
        progress("reading volumes", done, len(jobs))
    made, splits = with_splits(made, listed is not None, options.seed)
    return Outcome(made, _report(readings, volumes, made, splits, options))


def split_rows(root: Path, choice: str) -> dict[Key, Listed] | None:
    """The rows of the split files, or None for our own splits."""
    folder = Path(choice) if choice and choice != OWN else root / "splits"
    files = sorted(folder.glob("*.csv")) if choice != OWN else []
    if choice and choice != OWN and not files:
        raise UsageError("J007", f"no split file (*.csv) in {choice}", f"name a folder, or `--splits {OWN}`")
    return read_split_files(files) if files else None


def annotation(key: Key, knee: Knee, split: str, grid: Grid, boxes: dict[str, Box | None], grades: dict[str, dict[str, int]]) -> Annotation:
    return Annotation(*knee, split, key[1], key[2], grid.shape, grid.spacing, grid.orientation, boxes, grades)


def with_splits(made: list[Annotation], listed: bool, seed: int) -> tuple[list[Annotation], dict[str, Any]]:
    """The annotations, each with its split, and how well the splits are balanced."""
    counts = features((a.patient, a.visit, a.side, a.grades) for a in made)
    if not listed:
        chosen = assign(counts, seed)
        made = [replace(a, split=chosen[a.patient]) for a in made]
    rule = "split files" if listed else f"own: by patient, 75/10/15, balanced over grades and visits, seed {seed}"
    return made, {"rule": rule, "difference_from_the_cohort": imbalance(counts, {a.patient: a.split for a in made})}


# --- which volumes ----------------------------------------------------------------------------------------------------------------


def _jobs(root: Path, readings: Readings, listed: dict[Key, Listed] | None, options: Options, volumes: _Volumes) -> Iterator[_Job]:
    images, masks = scans_by_key(root / "images"), scans_by_key(root / "masks") if options.masks else {}
    if not images:
        layouts = "<patient>/<VISIT>/<study>_<series>_<side>.nii.gz or 00mDESS/0.C.2/<patient>/<yyyymmdd>/<series>/ with DICOM files"
        raise DataError("J014", f"no scan in {root / 'images'}", f"wanted: {layouts}")
    if options.masks and not masks:
        raise DataError("J008", f"no mask in {root / 'masks'}", "boxes come from masks; `--no-masks` makes annotations without boxes")
    volumes.found = len(images)
    by_knee: dict[Knee, list[Scan]] = defaultdict(list)
    for key, scans in sorted(images.items()):
        knee = _knee(key, scans, listed, volumes)
        if knee:
            by_knee[knee].append(scans[0])
    for key in sorted(set(listed or ()) - set(images)):
        volumes.drop("listed in a split file, but there is no image", "/".join(key))
    for knee, scans in sorted(by_knee.items()):
        name = volume_id(*knee)
        reading = readings.chosen.get(knee)
        mine = masks.get(scans[0].key, [])
        if len(scans) > 1:
            volumes.drop("several series of one knee and visit", f"{name}: {', '.join(s.series for s in scans)}", knee)
        elif reading is None:
            volumes.drop("no reading in the tables", name)
        elif not reading.grades:
            volumes.drop("no question is graded", name, knee)
        elif options.masks and len(mine) != 1:
            volumes.drop("no mask" if not mine else "more than one mask", name, knee)
        else:
            yield _Job(knee, scans[0], mine[0].path if mine else None)


def _knee(key: Key, scans: list[Scan], listed: dict[Key, Listed] | None, volumes: _Volumes) -> Knee | None:
    """Visit and side of a volume: what its split file, its path and its DICOM header say must agree."""
    name, scan = "/".join(key), scans[0]
    row = listed.get(key) if listed is not None else None
    if len(scans) > 1:
        volumes.drop("more than one image", name)
        return None
    if listed is not None and row is None:
        volumes.drop("in no split file", name)
        return None
    try:
        said = {scan.side, row and row.side, dicom.side(scan.path) if scan.path.is_dir() else None} - {None}
    except UsageError:
        raise
    except ReasonKneeError as error:
        volumes.fail(name, error)
        return None
    visits = {scan.visit, row and row.visit} - {None}
    for what, values in (("side", said), ("visit", visits)):
        if len(values) != 1:
            volumes.drop(f"{what} contradictory" if values else f"{what} unknown", name)
            return None
    return (key[0], str(visits.pop()), str(said.pop()))


# --- the work on each volume ------------------------------------------------------------------------------------------------------

_Result = tuple[Grid, dict[str, Box | None]] | ReasonKneeError


def _run(jobs: list[_Job], options: Options) -> Iterable[tuple[_Job, _Result]]:
    work = partial(_volume, labels=options.labels)
    with worker_pool(options.workers) if options.workers > 1 else nullcontext() as pool:
        yield from zip(jobs, pool.map(work, jobs, chunksize=4) if pool else map(work, jobs), strict=True)


def _volume(job: _Job, labels: LabelMap) -> _Result:
    try:
        grid = read_grid(job.image.path)
        return grid, mask_boxes(job.mask, grid, labels) if job.mask else dict.fromkeys(REGIONS)
    except UsageError:
        raise  # an extra that is not installed concerns every volume
    except ReasonKneeError as error:
        return error


# --- the report -------------------------------------------------------------------------------------------------------------------


def _report(readings: Readings, volumes: _Volumes, made: list[Annotation], splits: dict[str, Any], options: Options) -> dict[str, Any]:
    used = {(a.patient, a.visit, a.side) for a in made}
    unused = Counter(readings.unused)
    for knee, reading in readings.chosen.items():
        if knee not in used:
            unused[VOLUME_LEFT_OUT if knee in volumes.knees else NO_VOLUME] += reading.used
    chosen = {volume_id(*knee): {"chosen": readings.chosen[knee].project, "of": projects} for knee, projects in sorted(readings.several.items())}
    return {
        "software": f"reasonknee {VERSION}",
        "rules": {
            "reading": moaks_tables.READING_RULE,
            "within-grade codes": "0.5, -0.5 and -1 are no grade; the question is left out",
            "questions": "made only if all attributes are graded",
            "boxes": _BOX_RULE if options.masks else "none: made without masks",
        },
        "tables": readings.tables,
        "cells": {"total": readings.cells, "used": sum(readings.chosen[k].used for k in used), "unused": dict(sorted((+unused).items()))},
        "recoded": dict(readings.recoded),
        "rows_refused": readings.refused_rows,
        "readings": {"knees": len(readings.chosen), "with_a_choice": len(chosen), "projects": _projects(readings), "choices": chosen},
        "volumes": volumes.report(len(made)),
        "quarantine": volumes.quarantine,
        "questions": sum(len(a.grades) for a in made),
        "splits": splits,
        "warnings": dict(readings.warnings),
    }


def _projects(readings: Readings) -> dict[str, int]:
    return dict(sorted(Counter(r.project for r in readings.chosen.values()).items()))
