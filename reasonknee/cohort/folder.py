"""A cohort folder: annotations, and the images and embeddings that go with them.

    annotations.jsonl
    images/<patient>/<visit>/<study>_<series>_<side>.nii.gz     or DICOM series folders (see `scans`); masks/
    likewise, if there are any embeddings.h5                                               one dataset per
    volume id splits/*.csv, tables/*.txt                                  sources of the annotations

Images are matched by (patient, study, series), not by a path prefix, so a cohort may lie anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reasonknee.cohort.annotations import FILE_NAME, Annotation, read_annotation, scan_annotations
from reasonknee.cohort.scans import Key, scans_by_key
from reasonknee.errors import DataError, StorageError, UsageError, reason
from reasonknee.layout import SPLITS
from reasonknee.layout.strict_text import line_at
from reasonknee.volumes import Grid, read_grid
from reasonknee.volumes.embeddings import EmbeddingFile

UNREADABLE = ("V000", "Y000")  # codes of a NIfTI file or a DICOM series that is there and cannot be read


@dataclass(frozen=True)
class Entry:
    """A volume of a cohort, light enough to hold thousands: its annotation is read again by offset."""

    volume_id: str
    patient: str
    split: str
    offset: int
    key: Key
    questions: frozenset[str]


class Cohort:
    """A folder with annotations.jsonl, images/ and perhaps masks/ and embeddings.h5.

    Opening it reads nothing; `entries` lists its volumes, and `annotation` reads one.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise UsageError(
                "K001", f"no cohort folder at {root}", "`reasonknee phantom` makes a synthetic one"
            )
        self.annotations = self.root / FILE_NAME
        if not self.annotations.is_file():
            raise DataError(
                "K002",
                f"{root} has no {FILE_NAME}",
                "`reasonknee construct` makes it; `reasonknee phantom` shows how it looks",
            )

    @property
    def embeddings(self) -> Path:
        """Where the vision embeddings are, if there are any."""
        return self.root / "embeddings.h5"

    def entries(self) -> list[Entry]:
        """All volumes in the order of a release: by split, then by id.

        Every annotation is checked on the way.
        """
        entries = []
        split_of: dict[str, str] = {}
        for offset, a in scan_annotations(self.annotations):
            if split_of.setdefault(a.patient, a.split) != a.split:
                raise DataError(
                    "K003",
                    f"patient {a.patient} is in both {split_of[a.patient]} and {a.split}",
                    "a patient belongs to one split",
                )
            entries.append(
                Entry(
                    a.volume_id,
                    a.patient,
                    a.split,
                    offset,
                    (a.patient, a.study, a.series),
                    frozenset(a.grades),
                )
            )
        if not entries:
            raise DataError(
                "K002", f"{self.annotations} holds no volume", "one JSON line per volume is wanted"
            )
        return sorted(entries, key=lambda e: (SPLITS.index(e.split), e.volume_id))

    def annotation(self, entry: Entry) -> Annotation:
        """What is known of a volume, read from its line."""
        annotation = read_annotation(self.annotations, entry.offset)
        if annotation.volume_id != entry.volume_id:
            told = f"{self.annotations.name} changed while it was read"
            raise UsageError("K011", told, "run the same command again").at(entry.volume_id)
        return annotation

    def line(self, entry: Entry) -> bytes:
        """The line of its annotation, unread: what tells whether it has changed."""
        return line_at(self.annotations, entry.offset)

    def images(self, entries: list[Entry], max_bad: int = 0) -> dict[str, Path]:
        """The image of each volume.

        Missing ones and those that match twice are counted and named before any work; up to `max_bad` are
        left out.
        """
        images, wrong = self.match_images(entries)
        if len(entries) - len(images) > max_bad:
            raise wrong[0]
        return images

    def match_images(self, entries: list[Entry]) -> tuple[dict[str, Path], list[DataError]]:
        """The image of each volume that has just one, and what is wrong with the others."""
        scans, wrong = scans_by_key(self.root / "images"), []
        images = {e.volume_id: scans[e.key][0].path for e in entries if len(scans.get(e.key, ())) == 1}
        missing = [e.volume_id for e in entries if e.key not in scans]
        twice = [e for e in entries if len(scans.get(e.key, ())) > 1]
        bad = len(missing) + len(twice)
        hint = (
            f"`reasonknee build --max-bad {bad}` and `reasonknee attach` leave them out; the config "
            "`annotations` needs no image"
        )
        if missing:
            told = (
                f"{len(missing)} of {len(entries)} volumes have no image under {self.root / 'images'}: "
                f"{_some(missing)}"
            )
            wrong.append(DataError("K004", told, hint))
        if twice:
            names = [str(s.path.relative_to(self.root)) for e in twice for s in scans[e.key]]
            wrong.append(
                DataError(
                    "K005",
                    f"{len(twice)} volumes match more than one image: {_some(names)}",
                    f"keep one; {hint}",
                )
            )
        return images, wrong

    def masks(self) -> dict[Key, tuple[Path, ...]]:
        """The label masks by (patient, study, series)."""
        return {key: tuple(s.path for s in scans) for key, scans in scans_by_key(self.root / "masks").items()}

    def check_embeddings(self, entries: list[Entry], max_bad: int = 0) -> None:
        """Raises unless all but `max_bad` of the volumes have an embedding."""
        if not self.embeddings.is_file():
            raise DataError(
                "K008",
                f"{self.root} has no {self.embeddings.name}",
                "embed the volumes first, or leave the config `embeddings` out",
            )
        with EmbeddingFile(self.embeddings) as file:
            missing = sorted({e.volume_id for e in entries} - file.ids())
        if len(missing) > max_bad:
            told = f"{len(missing)} of {len(entries)} volumes have no embedding: {_some(missing)}"
            raise DataError(
                "K009", told, f"embed them; `reasonknee build --max-bad {len(missing)}` leaves them out"
            )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A disk that fails in the middle of a file is told as one that fails at its start: it is this volume
    that cannot be read."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            UNREADABLE[0],
            f"cannot be read: {reason(error)}",
            "check the disk and its permissions",
        ).at(path.name) from None


def check_grids(annotation: Annotation, grid: Grid, masks: Iterable[Path] = ()) -> None:
    """The boxes of an annotation are voxels of its image, and so are those of its mask: shape, spacing
    and orientation must agree."""
    same = grid.shape == annotation.shape and grid.orientation == annotation.orientation
    if not same or any(abs(a - b) > 1e-3 for a, b in zip(grid.spacing, annotation.spacing, strict=True)):
        of_image, of_annotation = (
            f"{g.shape} {g.orientation} of {[round(mm, 4) for mm in g.spacing]} mm"
            for g in (grid, annotation)
        )
        told = f"the image is {of_image}, the annotation {of_annotation}"
        raise DataError("K006", told, "its boxes belong to another image").at(annotation.volume_id)
    for mask in masks:
        theirs = read_grid(mask)
        if theirs.flips_to(grid) is None:
            told = f"the mask is not on the grid of its image: {theirs}; the image: {grid}"
            raise DataError("K007", told, "export both on the same voxels").at(mask.name)


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
