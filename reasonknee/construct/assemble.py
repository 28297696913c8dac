"""From the sources of a cohort to its annotations: grades from tables, boxes from masks, grids from images,
splits from files or our own.

Nothing is left out in silence: `construct.report.json` counts every table cell that was not used by reason,
and names every volume that was left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from reasonknee.boxes import Box
from reasonknee.cohort import Annotation, Provenance, Reading
from reasonknee.cohort.scans import Key, image_sha256, scans_by_key
from reasonknee.construct import columns, moaks_tables
from reasonknee.construct.knees import (
    SERIES_RULE,
    Job,
    Scans,
    Volumes,
    annotatable,
    scan_of_knee,
    without_scan,
)
from reasonknee.construct.masks import CONNECTIVITY, DEFAULT_LABELS, LabelMap, mask_boxes
from reasonknee.construct.moaks_tables import Knee, Readings
from reasonknee.construct.regions import made_by_rule
from reasonknee.construct.split_files import Listed, read_split_files
from reasonknee.errors import DataError, ReasonKneeError, UsageError, counted
from reasonknee.layout import volume_id
from reasonknee.layout.splits import assign, features, imbalance
from reasonknee.questions import REGIONS
from reasonknee.system.progress import Progress, silent
from reasonknee.system.workers import in_order
from reasonknee.version import VERSION
from reasonknee.volumes import Grid, read_grid

OWN = "own"
_BOX_RULE = f"largest component, {CONNECTIVITY}-connected, half-open voxels, null where absent"
NOT_ASKED_FOR = "not among the patients that were asked for"
NO_VOLUME, VOLUME_LEFT_OUT = "no volume of the knee and visit", "the volume was left out"


@dataclass(frozen=True)
class Options:
    labels: LabelMap = field(default_factory=lambda: DEFAULT_LABELS)
    splits: str = (
        ""  # a folder of split files, "own", or empty for the cohort's own split files if it has any
    )
    seed: int = 0  # of our own splits
    masks: bool = True  # without, no box is known
    columns: Mapping[str, str] = field(default_factory=dict)  # a user's names of OAI's variables
    patients: int = 0  # so many only, for a first try; 0: all


@dataclass
class Outcome:
    annotations: list[Annotation]
    report: dict[str, Any]

    @property
    def bad(self) -> list[dict[str, str]]:
        """Volumes that failed, as opposed to those that the sources say nothing about."""
        quarantine: list[dict[str, str]] = self.report["quarantine"]
        return quarantine


def construct(
    root: Path,
    options: Options | None = None,
    progress: Progress = silent,
    pool: Executor | None = None,
) -> Outcome:
    """Annotations of the cohort in `root`, made from its tables, images, masks and split files."""
    options = options or Options()
    if not root.is_dir():
        raise UsageError(
            "J000",
            f"no folder at {root}",
            "a cohort folder holds tables/, images/, masks/ and perhaps splits/",
        )
    readings = moaks_tables.read_tables(root / "tables", options.columns)
    listed = split_rows(root, options.splits)
    closed: list[str] = []
    images, masks = _sources(root, options, closed)
    volumes = Volumes(len(images))
    scans = scan_of_knee(images, listed, volumes, progress)
    missing = without_scan(readings.chosen, scans)
    jobs = list(annotatable(scans, readings.chosen, masks, volumes))
    kept: dict[str, str] = {}
    if options.patients:
        kept = _some_patients(jobs, readings, listed, options)
        for job in jobs:
            if job.knee[0] not in kept:
                volumes.drop(NOT_ASKED_FOR, volume_id(*job.knee), job.knee)
        jobs = [job for job in jobs if job.knee[0] in kept]
    made: list[Annotation] = []
    work = partial(_volume, labels=options.labels)
    for done, (job, result) in enumerate(in_order(work, jobs, pool), start=1):
        if isinstance(result, ReasonKneeError):
            volumes.fail(volume_id(*job.knee), result, job.knee)
        else:
            grid, boxes, digest = result
            split = listed[job.image.key].split if listed is not None else kept.get(job.knee[0], "")
            chosen = readings.chosen[job.knee]
            known = annotation(job.image.key, job.knee, split, grid, boxes, chosen.grades)
            others = [r for r in readings.others.get(job.knee, []) if r.grades]
            made.append(
                replace(
                    known,
                    readings=tuple(Reading(r.project, r.grades) for r in others),
                    provenance=Provenance(
                        grades=chosen.table,
                        project=chosen.project,
                        boxes=_source(job.mask, root / "masks"),
                        package=job.image.package,
                        image_sha256=digest,
                    ),
                )
            )
        progress("reading volumes", done, len(jobs))
    made, splits = with_splits(made, listed is not None or bool(kept), options.seed)
    if kept:
        splits["rule"] = f"as in the whole cohort, of which {counted(len(kept), 'patient')} taken"
    report = _report(readings, volumes, made, splits, options)
    report["readings"]["without_a_scan"] = {
        visit: [volume_id(*knee) for knee in knees] for visit, knees in missing.items()
    }
    report["folders_closed"] = closed
    return Outcome(made, report)


def _source(mask: Path | None, masks: Path) -> str | None:
    return None if mask is None else "rule" if made_by_rule(mask, masks) else "mask"


def _sources(root: Path, options: Options, closed: list[str]) -> tuple[Scans, Scans | None]:
    """The images of a cohort and its masks, None where boxes are done without."""
    images = scans_by_key(root / "images", closed)
    if not images:
        layouts = (
            "<patient>/<VISIT>/<study>_<series>_<side>.nii.gz or "
            "00mDESS/0.C.2/<patient>/<yyyymmdd>/<series>/ with DICOM files"
        )
        raise DataError(
            "J014",
            f"no scan in {root / 'images'}",
            f"wanted: {layouts}; `reasonknee plan {root}` says what is there",
        )
    masks = scans_by_key(root / "masks") if options.masks else None
    if masks is not None and not masks:
        raise DataError(
            "J008",
            f"no mask in {root / 'masks'}",
            "boxes come from masks; `--no-masks` makes annotations without boxes",
        )
    return images, masks


def _some_patients(
    jobs: list[Job], readings: Readings, listed: dict[Key, Listed] | None, options: Options
) -> dict[str, str]:
    """The first patients of each split, about in proportion and none of them empty: a patient is in the split
    that the whole cohort would have it in."""
    if listed is not None:
        split = {job.knee[0]: listed[job.image.key].split for job in jobs}
    else:
        split = assign(features((*job.knee, readings.chosen[job.knee].grades) for job in jobs), options.seed)
    members: dict[str, list[str]] = defaultdict(list)
    for patient in sorted(split):
        members[split[patient]].append(patient)
    share = min(1.0, options.patients / max(len(split), 1))
    wanted = {name: max(1, round(share * len(mine))) for name, mine in members.items()}
    while sum(wanted.values()) > max(options.patients, len(members)):
        wanted[max(wanted, key=lambda name: wanted[name])] -= 1
    return {patient: name for name, mine in members.items() for patient in mine[: wanted[name]]}


def split_rows(root: Path, choice: str) -> dict[Key, Listed] | None:
    """The rows of the split files, or None for our own splits."""
    folder = Path(choice) if choice and choice != OWN else root / "splits"
    files = [] if choice == OWN else sorted(p for p in folder.glob("*.csv") if not p.name.startswith("."))
    if choice and choice != OWN and not files:
        raise UsageError("J007", f"no split file (*.csv) in {choice}", f"name a folder, or `--splits {OWN}`")
    return read_split_files(files) if files else None


def annotation(
    key: Key,
    knee: Knee,
    split: str,
    grid: Grid,
    boxes: dict[str, Box | None],
    grades: dict[str, dict[str, int]],
) -> Annotation:
    return Annotation(*knee, split, key[1], key[2], grid.shape, grid.spacing, grid.orientation, boxes, grades)


def with_splits(made: list[Annotation], listed: bool, seed: int) -> tuple[list[Annotation], dict[str, Any]]:
    """The annotations, each with its split, and how well the splits are balanced."""
    counts = features((a.patient, a.visit, a.side, a.grades) for a in made)
    if not listed:
        chosen = assign(counts, seed)
        made = [replace(a, split=chosen[a.patient]) for a in made]
    rule = (
        "split files"
        if listed
        else f"own: by patient, 75/10/15, balanced over grades and visits, seed {seed}"
    )
    return made, {
        "rule": rule,
        "difference_from_the_cohort": imbalance(counts, {a.patient: a.split for a in made}),
    }


# --- the work on each volume --------------------------------------------------------------------------------

_Result = tuple[Grid, dict[str, Box | None], str] | ReasonKneeError


def _volume(job: Job, labels: LabelMap) -> _Result:
    try:
        grid = read_grid(job.image.path)
        boxes = mask_boxes(job.mask, grid, labels) if job.mask else dict.fromkeys(REGIONS)
        return grid, boxes, image_sha256(job.image.path)
    except UsageError:
        raise  # an extra that is not installed concerns every volume
    except ReasonKneeError as error:
        return error


# --- the report ---------------------------------------------------------------------------------------------


def _report(
    readings: Readings,
    volumes: Volumes,
    made: list[Annotation],
    splits: dict[str, Any],
    options: Options,
) -> dict[str, Any]:
    used = {(a.patient, a.visit, a.side) for a in made}
    unused = Counter(readings.unused)
    for knee, reading in readings.chosen.items():
        if knee not in used:
            unused[VOLUME_LEFT_OUT if knee in volumes.knees else NO_VOLUME] += reading.used
    chosen = {
        volume_id(*knee): {"chosen": readings.chosen[knee].project, "besides": [r.project for r in others]}
        for knee, others in sorted(readings.others.items())
    }
    return {
        "software": f"reasonknee {VERSION}",
        "rules": {
            "reading": moaks_tables.READING_RULE,
            "within-grade codes": "0.5, -0.5 and -1 are no grade: the attribute is unknown",
            "questions": "made if at least one attribute is graded; the others are null, which is unknown",
            "boxes": _BOX_RULE if options.masks else "none: made without masks",
            "series": SERIES_RULE,
        },
        "tables": readings.tables,
        "tables_not_read": readings.not_read,
        "columns_absent": columns.costs(readings.absent),
        "within_grade": {q: dict(sorted(n.items())) for q, n in sorted(readings.within_grade.items())},
        "cells": {
            "total": readings.cells,
            "used": sum(readings.chosen[k].used for k in used),
            "unused": dict(sorted((+unused).items())),
        },
        "recoded": dict(readings.recoded),
        "rows_refused": readings.refused_rows,
        "readings": {
            "knees": len(readings.chosen),
            "with_a_choice": len(chosen),
            "projects": _projects(readings),
            "choices": chosen,
        },
        "volumes": volumes.report(len(made)),
        "series": {"of_other_sequences": volumes.other_series, "choices": volumes.chosen},
        "quarantine": volumes.quarantine,
        "questions": sum(len(a.grades) for a in made),
        "splits": splits,
    }


def _projects(readings: Readings) -> dict[str, int]:
    return dict(sorted(Counter(r.project for r in readings.chosen.values()).items()))
