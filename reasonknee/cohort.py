"""A cohort folder: annotations, and the images and embeddings that go with them.

    annotations.jsonl
    images/<patient>/<visit>/<study>_<series>_<side>.nii.gz     masks/ likewise, if there are any
    embeddings.h5                                               one dataset per volume id
    splits/*.csv, tables/*.txt                                  sources of the annotations

Images are matched by (patient, study, series), not by a path prefix, so a cohort may lie anywhere.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from reasonknee.annotations import FILE_NAME, Annotation, read_annotation, scan_annotations
from reasonknee.errors import DataError, UsageError
from reasonknee.splits import SPLITS, patient_id
from reasonknee.volumes import EmbeddingFile, Grid, read_grid

_IMAGE = re.compile(r"(?P<study>[^_]+)_(?P<series>[^_]+)_(?P<side>left|right)\.nii(\.gz)?", re.IGNORECASE)
Key = tuple[str, str, str]  # patient, study, series


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
    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise UsageError("K001", f"no cohort folder at {root}", "`reasonknee phantom` makes a synthetic one")
        self.annotations = self.root / FILE_NAME
        if not self.annotations.is_file():
            raise DataError("K002", f"{root} has no {FILE_NAME}", "`reasonknee phantom` shows what a cohort folder holds")

    @property
    def embeddings(self) -> Path:
        return self.root / "embeddings.h5"

    def entries(self) -> list[Entry]:
        """All volumes in the order of a release: by split, then by id. Every annotation is checked on the way."""
        found = []
        split_of: dict[str, str] = {}
        for offset, a in scan_annotations(self.annotations):
            if split_of.setdefault(a.patient, a.split) != a.split:
                raise DataError("K003", f"patient {a.patient} is in both {split_of[a.patient]} and {a.split}", "a patient belongs to one split")
            found.append(Entry(a.volume_id, a.patient, a.split, offset, (a.patient, a.study, a.series), frozenset(a.grades)))
        if not found:
            raise DataError("K002", f"{self.annotations} holds no volume", "one JSON line per volume is wanted")
        return sorted(found, key=lambda e: (SPLITS.index(e.split), e.volume_id))

    def annotation(self, entry: Entry) -> Annotation:
        return read_annotation(self.annotations, entry.offset)

    def images(self, entries: list[Entry]) -> dict[str, Path]:
        """The image of each volume; missing ones and those that match twice are counted and named, all before any work."""
        found = _files_by_key(self.root / "images")
        missing = [e.volume_id for e in entries if e.key not in found]
        if missing:
            raise DataError(
                "K004",
                f"{len(missing)} of {len(entries)} volumes have no image under {self.root / 'images'}: {_some(missing)}",
                "the config `annotations` needs no image",
            )
        twice = [e.volume_id for e in entries if len(found[e.key]) > 1]
        if twice:
            names = [str(p.relative_to(self.root)) for e in entries if len(found[e.key]) > 1 for p in found[e.key]]
            raise DataError("K005", f"{len(twice)} volumes match more than one image: {_some(names)}", "keep one; `annotations` needs no image")
        return {e.volume_id: found[e.key][0] for e in entries}

    def check_grids(self, entries: list[Entry], images: dict[str, Path], tick: Callable[[], object] = lambda: None) -> None:
        """Headers only: each image, and its mask if there is one, lies on the grid that the annotation was made on."""
        masks = _files_by_key(self.root / "masks")
        for entry in entries:
            grid, annotation = read_grid(images[entry.volume_id]), self.annotation(entry)
            check_grid(annotation, grid)
            for mask in masks.get(entry.key, ()):
                if not read_grid(mask).same_place(grid):
                    raise DataError("K007", f"{mask.name}: the mask is not on the grid of its image", "export both on the same voxels")
            tick()

    def check_embeddings(self, entries: list[Entry]) -> None:
        if not self.embeddings.is_file():
            raise DataError("K008", f"{self.root} has no {self.embeddings.name}", "embed the volumes first, or leave the config `embeddings` out")
        with EmbeddingFile(self.embeddings) as file:
            missing = sorted({e.volume_id for e in entries} - file.ids())
        if missing:
            raise DataError(
                "K009", f"{len(missing)} of {len(entries)} volumes have no embedding: {_some(missing)}", "embed them, or drop their lines"
            )


def check_grid(annotation: Annotation, grid: Grid) -> None:
    """The boxes of an annotation are voxels of its image: shape, spacing and orientation must agree."""
    same = grid.shape == annotation.shape and grid.orientation == annotation.orientation
    if not same or any(abs(a - b) > 1e-3 for a, b in zip(grid.spacing, annotation.spacing, strict=True)):
        raise DataError(
            "K006",
            f"{annotation.volume_id}: the image is {grid.shape} {grid.orientation}, the annotation {annotation.shape} {annotation.orientation}",
            "its boxes belong to another image",
        )


def _files_by_key(folder: Path) -> dict[Key, list[Path]]:
    found: dict[Key, list[Path]] = defaultdict(list)
    for path in _walk(folder):
        match = _IMAGE.fullmatch(path.name)
        if match and len(path.parts) > 2:
            try:
                patient = patient_id(path.parts[-3])
            except DataError:
                continue  # a file of another kind; a volume that needs it is named as missing
            found[(patient, match["study"], match["series"])].append(path)
    return found


def _walk(folder: Path) -> Iterator[Path]:
    return (p for p in sorted(folder.glob("*/*/*.nii*")) if p.is_file())


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
