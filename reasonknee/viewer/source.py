"""What is looked at: rows of a release or a cohort as columns, their texts one by one, and their voxels.

Rows are numbered in the order of `truth`, all splits after each other. Everything that reaches the browser as
voxels has passed the gate: the bytes of a row are a NIfTI file from elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from reasonknee.boxes import Box, Shape
from reasonknee.cohort import Cohort
from reasonknee.cohort.annotations import FILE_NAME, Annotation
from reasonknee.errors import DataError
from reasonknee.layout import PER_VOLUME, SPLITS, quintuple_id
from reasonknee.layout.manifest import FILE_NAME as MANIFEST
from reasonknee.layout.records import arrow_schema
from reasonknee.questions import QUESTIONS, question_set
from reasonknee.release.reader import Release
from reasonknee.release.rows import Options, Sources, rows
from reasonknee.scoring.truth import COLUMNS, TABLE, Truth, truth_of_columns
from reasonknee.volumes import Grid, Volume, read_grid, read_volume, volume_from_bytes


@dataclass(frozen=True)
class Shown:
    """Voxels, and where the first of them lies in the full volume."""

    volume: Volume
    origin: Shape = (0, 0, 0)

    @property
    def full_grid(self) -> Grid | None:
        """The grid of the full volume, if these are its voxels."""
        return self.volume.grid if self.origin == (0, 0, 0) else None


class Source(Protocol):
    """A release or a cohort, as the viewer reads it."""

    name: str
    kind: str  # "release" or "cohort"
    path: Path
    note: str  # what it does not hold, in words; empty if it has whole volumes

    @property
    def truth(self) -> Truth: ...

    @property
    def splits(self) -> np.ndarray:
        """For each row an index into SPLITS."""

    def row(self, n: int) -> dict[str, Any]:
        """A quintuple with its texts."""

    def voxels(self, n: int) -> Shown | None:
        """The volume, or the crop, that row n is about."""

    def voxels_key(self, n: int) -> str:
        """Rows with the same key show the same voxels."""

    def mask(self, n: int) -> Shown | None:
        """Labels of the row's volume, on its grid."""


def open_source(place: str | Path) -> Source:
    """A release or a cohort by what lies in the folder, or a release on the Hub by its name."""
    path = Path(place)
    if (path / FILE_NAME).is_file() and not (path / MANIFEST).is_file():
        return CohortSource(path)
    return ReleaseSource(place)


class ReleaseSource:
    kind = "release"

    def __init__(self, place: str | Path) -> None:
        import pyarrow as pa

        self.release = Release(place)
        self.path, manifest = self.release.folder, self.release.manifest
        self.name = f"{Path(place).name} {manifest.release_version}"
        parts = {
            split: self.release.columns(split, COLUMNS) for split in SPLITS if split in self.release.splits
        }
        parts = {split: table for split, table in parts.items() if table.num_rows}
        if not parts:
            raise DataError(
                "H001", f"{place} holds no row", "is the release whole? `reasonknee validate` tells"
            )
        self.truth = truth_of_columns(pa.concat_tables(parts.values()), self.name)
        counts = [table.num_rows for table in parts.values()]
        self.splits = np.repeat([SPLITS.index(s) for s in parts], counts).astype(np.uint8)
        self.config = next((c for c in ("full", "cropped") if manifest.of(c)), "")
        self.note = {
            "full": "",
            "cropped": "This release holds crops alone: what lies around them is not in it.",
        }.get(self.config, "This release holds no voxels. Join it with your own scans: reasonknee attach.")

    def row(self, n: int) -> dict[str, Any]:
        split, id_ = SPLITS[self.splits[n]], self.truth.ids[n]
        row = self._read(n, self.release.lightest(split) or "", without=("volume", "embedding"))
        if "crop" not in row:  # where the margin ends, if the release has crops at all
            crops = self.release.rows([id_], "cropped", split, ["crop"])
            row["crop"] = next((crop["crop"] for crop in crops), None)
        return row

    def voxels_key(self, n: int) -> str:
        id_ = self.truth.ids[n]
        return id_ if self.config == "cropped" else id_.rpartition("-")[0]

    def voxels(self, n: int) -> Shown | None:
        if not self.config:
            return None
        row = self._read(n, self.config)
        if row["volume"] is None:
            return None
        volume = volume_from_bytes(row["volume"]["bytes"])
        crop = row.get("crop")
        place = Box.from_dict(crop) if crop else Box.whole(tuple(self.truth.shape[n].tolist()))
        if volume.grid.shape != place.shape:
            told = f"{self.truth.ids[n]}: {volume.grid.shape} voxels where the row says {place.shape}"
            raise DataError("H002", told, "`reasonknee validate` tells what else is wrong")
        return Shown(volume, place.start)

    def mask(self, n: int) -> Shown | None:
        return None

    def _read(self, n: int, config: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
        """The row of a config that tells row n, without the other questions on its volume."""
        id_ = self.truth.ids[n]
        row = self.release.row(id_, config, without)
        if row is not None and config in PER_VOLUME:
            row = {**row, **next((q for q in row.pop("quintuples") if q["id"] == id_), {})}
        if row is None or row.get("id") != id_:
            raise DataError("H003", f"{config} has no row {id_[:80]!r}", "`reasonknee validate` tells more")
        return row


class CohortSource:
    """A source folder before it is built: annotations, images, and masks where there are any."""

    kind = "cohort"

    def __init__(self, path: Path) -> None:
        self.path, self.cohort = path, Cohort(path)
        self.name = path.resolve().name
        self.entries = self.cohort.entries()
        annotations = [self.cohort.annotation(e) for e in self.entries]
        asked = [[q for q in question_set("all69") if q.id in a.grades] for a in annotations]
        counts = [len(questions) for questions in asked]
        if not sum(counts):
            raise DataError("H001", f"{path} holds no row", "its annotations grade no question")
        self.of_row = np.repeat(np.arange(len(annotations)), counts)
        self.truth = truth_of(annotations, self.name)
        self.splits = np.array([SPLITS.index(annotations[v].split) for v in self.of_row], np.uint8)
        self.images, wrong = self.cohort.match_images(self.entries)
        self.note = "" if not wrong else f"{len(self.entries) - len(self.images)} volumes have no image here."

    @cached_property
    def _masks(self) -> dict[Any, tuple[Path, ...]]:
        return self.cohort.masks()

    def row(self, n: int) -> dict[str, Any]:
        annotation = self.cohort.annotation(self.entries[self.of_row[n]])
        made = rows(Sources(annotation), "annotations", Options(questions="all69"))
        return next(row for row in made if row["id"] == self.truth.ids[n])

    def voxels_key(self, n: int) -> str:
        return self.truth.ids[n].rpartition("-")[0]

    def voxels(self, n: int) -> Shown | None:
        image = self.images.get(self.voxels_key(n))
        if image is None:
            return None
        volume = read_volume(image)
        if volume.grid.shape != tuple(self.truth.shape[n]):
            told = (
                f"{image.name}: {volume.grid.shape} voxels, the annotation says {tuple(self.truth.shape[n])}"
            )
            raise DataError("H002", told, "`reasonknee validate` names every such volume")
        return Shown(volume)

    def mask(self, n: int) -> Shown | None:
        """The labels, turned to lie on the image's voxels."""
        paths = self._masks.get(self.entries[self.of_row[n]].key, ())
        image = self.images.get(self.voxels_key(n))
        if len(paths) != 1 or image is None:
            return None
        mask, grid = read_volume(paths[0]), read_grid(image)
        flips = mask.grid.flips_to(grid)
        if flips is None:
            return None
        return Shown(Volume(np.ascontiguousarray(np.flip(mask.array, flips)), grid))


def truth_of(annotations: list[Annotation], where: str) -> Truth:
    """Annotations as the columns that a release's rows are read into."""
    import pyarrow as pa

    schema = arrow_schema("annotations")
    lines = []
    for a in annotations:
        about = {
            "volume_id": a.volume_id,
            **{name: getattr(a, name) for name in ("patient", "visit", "side")},
            **{name: dict(zip("zyx", getattr(a, name), strict=True)) for name in ("shape", "spacing")},
        }
        for q in (q for q in QUESTIONS.values() if q.id in a.grades):
            box = a.boxes.get(q.region.id)
            asked = {"id": quintuple_id(a.volume_id, q.id), "question_id": q.id, "grades": a.grades[q.id]}
            lines.append({**about, **asked, "box": box and box.as_dict()})
    return truth_of_columns(
        pa.Table.from_pylist(lines, pa.schema([schema.field(name) for name in COLUMNS])), where
    )


def question_facts() -> list[dict[str, Any]]:
    """The question table as the page needs it: titles, attributes, and what each grade means."""
    return [
        {
            "id": q.id,
            "title": f"{q.lesion.title}, {q.region.title}",
            "category": q.category.id,
            "category_title": q.category.title,
            "region": q.region.id,
            "region_title": q.region.title,
            "lesion_title": q.lesion.title,
            "attributes": [
                {"id": a.id, "title": a.title, "meanings": list(a.space.meanings)} for a in q.attributes
            ],
        }
        for q in TABLE
    ]
