"""A cohort folder, through the same gate as a build, but with everything that is wrong in one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reasonknee.boxes import BOX_FIELDS
from reasonknee.cohort import Annotation, Cohort, Entry
from reasonknee.cohort.annotations import read_annotation
from reasonknee.cohort.folder import check_grids, reading
from reasonknee.errors import DataError, ReasonKneeError, StorageError
from reasonknee.layout.strict_text import MAX_LINE
from reasonknee.questions import DEFAULT_SET, QUESTIONS, REGIONS, question_set
from reasonknee.system.progress import Progress, silent
from reasonknee.system.workers import executor, in_order
from reasonknee.validation.findings import Findings
from reasonknee.validation.geometry import REGION_NUMBER, Boxes, check_sides
from reasonknee.validation.reading import NONE
from reasonknee.volumes import read_grid, read_volume
from reasonknee.volumes.embeddings import EmbeddingFile
from reasonknee.volumes.plausible import check_scan


def validate_cohort(
    root: Path,
    *,
    quick: bool = False,
    accept: Iterable[str] = (),
    workers: int = 1,
    dask: str = "",
    progress: Progress = silent,
) -> Findings:
    """Every annotation; then, for those that are sound and have grades, images, masks and embeddings.

    `quick` reads headers only.
    """
    findings, cohort = Findings(), Cohort(root)
    entries = _entries(cohort, findings)
    if (root / "images").is_dir():
        with executor(workers, dask) as pool:
            _images(cohort, entries, None if quick else frozenset(accept), pool, progress, findings)
    if cohort.embeddings.is_file():
        _embeddings(cohort, list(entries.values()), quick, findings)
    return findings


def _entries(cohort: Cohort, findings: Findings) -> dict[str, Entry]:
    """The volumes that a build may use, by their place in the annotations."""
    entries: dict[str, Entry] = {}
    seen: set[str] = set()
    split_of: dict[str, str] = {}
    for number, offset in _lines(cohort.annotations):
        line = f"{cohort.annotations.name}:{number}"
        try:
            a = read_annotation(cohort.annotations, offset, line)
            if a.volume_id in seen:
                raise DataError("A004", f"{a.volume_id} stands twice", "keep one line per volume")
            if split_of.setdefault(a.patient, a.split) != a.split:
                raise DataError(
                    "K003",
                    f"patient {a.patient} is in both {split_of[a.patient]} and {a.split}",
                    "a patient belongs to one split",
                )
        except DataError as error:
            # the gate names the volume, too, where it knows it
            findings.add_error(error, error.place if error.place.startswith(line) else line)
            continue
        seen.add(a.volume_id)
        place = f"{line}, {a.volume_id}"
        check_sides(place, a.side, a.orientation, _boxes(a), findings)
        if not any(q.id in a.grades for q in question_set(DEFAULT_SET)):
            told, hint = "no grades", "no build uses it: grade it, or remove its line"
            if a.grades:
                told, hint = (
                    f"no grades for a question of {DEFAULT_SET}",
                    "`reasonknee build --questions all69` uses it",
                )
            findings.add_error(DataError("K010", told, hint), place, "warning", "left out of a release")
        if a.grades:
            entries[place] = Entry(
                a.volume_id, a.patient, a.split, offset, (a.patient, a.study, a.series), frozenset(a.grades)
            )
    if not entries and not findings.count("error"):
        told = "no volume in it has grades" if seen else "it holds no volume"
        findings.add_error(
            DataError("K002", told, "one JSON line per volume is wanted"), cohort.annotations.name
        )
    return entries


def _boxes(a: Annotation) -> Boxes:
    """As a release holds them: of the regions that a question is about."""
    boxes = np.full((len(REGIONS), len(BOX_FIELDS)), NONE, np.int64)
    for region in {QUESTIONS[q].region.id for q in a.grades}:
        box = a.boxes.get(region)
        if box:
            boxes[REGION_NUMBER[region]] = [getattr(box, name) for name in BOX_FIELDS]
    return boxes


def _lines(path: Path) -> Iterator[tuple[int, int]]:
    """Number and offset of each line that is not blank; a line that is too long is read in pieces, of
    which the first is refused."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
            if line.strip():
                yield number, offset
            offset += len(line)


@dataclass(frozen=True)
class _Image:
    """All that a worker needs to check one."""

    root: Path
    place: str
    entry: Entry
    path: Path
    masks: tuple[Path, ...]
    accepted: frozenset[str] | None


def _images(
    cohort: Cohort,
    entries: dict[str, Entry],
    accepted: frozenset[str] | None,  # None: headers only
    pool: Executor | None,
    progress: Progress,
    findings: Findings,
) -> None:
    images, wrong = cohort.match_images(list(entries.values()))
    for error in wrong:
        findings.add_error(error, cohort.annotations.name)
    masks, there = cohort.masks(), [(place, e) for place, e in entries.items() if e.volume_id in images]
    jobs = [
        _Image(cohort.root, place, e, images[e.volume_id], masks.get(e.key, ()), accepted)
        for place, e in there
    ]
    for done, (job, refused) in enumerate(in_order(_check_image, jobs, pool), start=1):
        if refused is not None:
            findings.add_error(refused, job.place)
        progress("checking images", done, len(jobs))


def _check_image(job: _Image) -> ReasonKneeError | None:
    annotation = Cohort(job.root).annotation(job.entry)
    try:
        with reading(job.path):
            volume = None if job.accepted is None else read_volume(job.path)
            check_grids(annotation, volume.grid if volume else read_grid(job.path), job.masks)
        if volume and job.accepted is not None and annotation.volume_id not in job.accepted:
            check_scan(volume)
    except (DataError, StorageError) as error:
        return error
    return None


def _embeddings(cohort: Cohort, entries: list[Entry], quick: bool, findings: Findings) -> None:
    try:
        with EmbeddingFile(cohort.embeddings) as file:
            there = file.ids()
            for entry in [] if quick else [e for e in entries if e.volume_id in there]:
                try:
                    file.read(entry.volume_id)
                except DataError as error:
                    findings.add_error(error, f"{cohort.embeddings.name}, {entry.volume_id}")
        cohort.check_embeddings(entries)
    except DataError as error:
        findings.add_error(error, cohort.embeddings.name)
