"""A cohort folder, through the same gate as a build, but with everything that is wrong in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reasonknee.annotations import read_annotation
from reasonknee.cohort import Cohort, Entry, check_grids
from reasonknee.embeddings import EmbeddingFile
from reasonknee.errors import DataError
from reasonknee.scans import scans_by_key
from reasonknee.tables import MAX_LINE
from reasonknee.validation.findings import Findings
from reasonknee.volumes import read_grid, read_volume
from reasonknee.workers import in_order


def validate_cohort(
    root: Path, *, quick: bool = False, workers: int = 1, progress: Callable[[str, int, int], object] = lambda what, done, of: None
) -> Findings:
    """Every annotation; then, for those that are sound, images, masks and embeddings. `quick` reads headers only."""
    found, cohort = Findings(), Cohort(root)
    entries = _entries(cohort, found)
    if (root / "images").is_dir():
        for entry, wrong in _images(cohort, entries, quick, workers, progress, found):
            if wrong is not None:
                found.add_error(wrong, entry.volume_id)
    if cohort.embeddings.is_file():
        _embeddings(cohort, entries, quick, found)
    return found


def _entries(cohort: Cohort, found: Findings) -> list[Entry]:
    entries: dict[str, Entry] = {}
    split_of: dict[str, str] = {}
    for number, offset in _lines(cohort.annotations):
        place = f"{cohort.annotations.name}:{number}"
        try:
            a = read_annotation(cohort.annotations, offset)
            if a.volume_id in entries:
                raise DataError("A004", f"{a.volume_id} stands twice", "keep one line per volume")
            if split_of.setdefault(a.patient, a.split) != a.split:
                raise DataError("K003", f"patient {a.patient} is in both {split_of[a.patient]} and {a.split}", "a patient belongs to one split")
        except DataError as error:
            found.add_error(error, place)
            continue
        entries[a.volume_id] = Entry(a.volume_id, a.patient, a.split, offset, (a.patient, a.study, a.series), frozenset(a.grades))
    if not entries and not found:
        found.add_error(DataError("K002", "it holds no volume", "one JSON line per volume is wanted"), cohort.annotations.name)
    return list(entries.values())


def _lines(path: Path) -> Iterator[tuple[int, int]]:
    """Number and offset of each line that is not blank; a line that is too long is read in pieces, of which the first is refused."""
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
    entry: Entry
    path: Path
    masks: tuple[Path, ...]
    quick: bool


def _images(
    cohort: Cohort, entries: list[Entry], quick: bool, workers: int, progress: Callable[[str, int, int], object], found: Findings
) -> Iterator[tuple[Entry, DataError | None]]:
    """Each volume that has one image, and what is wrong with it."""
    scans, masks = scans_by_key(cohort.root / "images"), cohort.masks()
    matches = {e.volume_id: len(scans.get(e.key, ())) for e in entries}
    for wrong in ([e for e in entries if matches[e.volume_id] == 0], [e for e in entries if matches[e.volume_id] > 1]):
        try:
            cohort.images(wrong)
        except DataError as error:
            found.add_error(error, "images")
    jobs = [_Image(cohort.root, e, scans[e.key][0].path, masks.get(e.key, ()), quick) for e in entries if matches[e.volume_id] == 1]
    for done, (job, refused) in enumerate(zip(jobs, in_order(_check_image, jobs, workers), strict=True), start=1):
        yield job.entry, refused
        progress("checking images", done, len(jobs))


def _check_image(job: _Image) -> DataError | None:
    try:
        grid = read_grid(job.path) if job.quick else read_volume(job.path).grid
        check_grids(Cohort(job.root).annotation(job.entry), grid, job.masks)
    except DataError as error:
        return error
    return None


def _embeddings(cohort: Cohort, entries: list[Entry], quick: bool, found: Findings) -> None:
    try:
        cohort.check_embeddings(entries)
        with EmbeddingFile(cohort.embeddings) as file:
            for entry in [] if quick else entries:
                try:
                    file.read(entry.volume_id)
                except DataError as error:
                    found.add_error(error, f"{cohort.embeddings.name}, {entry.volume_id}")
    except DataError as error:
        found.add_error(error, cohort.embeddings.name)
