"""From one volume's annotation, image and embedding to the rows of a config. The only place where rows are made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from reasonknee import prompts, reasoning
from reasonknee.annotations import Annotation
from reasonknee.boxes import Box
from reasonknee.cohort import Cohort, Entry, check_grids, reading
from reasonknee.embeddings import Embedding, EmbeddingFile
from reasonknee.errors import DataError, UsageError
from reasonknee.questions import ATTRIBUTES, DEFAULT_SET, Question, in_sections, question_set
from reasonknee.records import PER_VOLUME, fields
from reasonknee.splits import quintuple_id
from reasonknee.volumes import Volume, read_volume

WORDING_CHOICES = ("both", *prompts.WORDINGS)
MAX_MARGIN_MM = 15.0  # crops of one volume share a row group: at 20 mm it takes 1.5 GB to write or read, at 60 mm 7 GB
NEEDS_IMAGES = frozenset({"cropped", "full"})


@dataclass(frozen=True)
class Options:
    """What a user may choose about the rows."""

    questions: str = DEFAULT_SET
    margin_mm: float = 0.0  # around the ground-truth box of a crop
    wording: str = "both"  # with one wording the other is null, so that a zero-shot run cannot read the instruction

    def __post_init__(self) -> None:
        question_set(self.questions)
        if self.wording not in WORDING_CHOICES:
            raise UsageError("C002", f"unknown wording {self.wording!r}", f"choose one of {', '.join(WORDING_CHOICES)}")
        if not 0 <= self.margin_mm <= MAX_MARGIN_MM:
            raise UsageError("C003", f"a margin of {self.margin_mm} mm", f"0 to {MAX_MARGIN_MM:g} mm; the config `full` has all the context there is")

    def asked(self, graded: frozenset[str] | dict[str, Any]) -> list[Question]:
        """The questions of the set that a volume has grades for, in the table's order."""
        return [q for q in question_set(self.questions) if q.id in graded]


@dataclass(frozen=True)
class Sources:
    """All that the rows of one volume are made of; what the wanted configs do not need is None."""

    annotation: Annotation
    volume: Volume | None = None
    embedding: Embedding | None = None


def read_sources(cohort: Cohort, entry: Entry, configs: Iterable[str], image: Path | None = None, masks: Iterable[Path] = ()) -> Sources:
    """Reads a volume once for all the configs that want it."""
    annotation, wanted = cohort.annotation(entry), frozenset(configs)
    volume = embedding = None
    if wanted & NEEDS_IMAGES:
        if image is None:
            raise DataError("K004", f"{annotation.volume_id}: no image, or more than one", "the config `annotations` needs none")
        with reading(image):
            volume = read_volume(image)
            check_grids(annotation, volume.grid, masks)
    if "embeddings" in wanted:
        with EmbeddingFile(cohort.embeddings) as file:
            embedding = file.read(annotation.volume_id)
    return Sources(annotation, volume, embedding)


def rows(sources: Sources, config: str, options: Options) -> Iterator[dict[str, Any]]:
    """The rows of one volume: one for `full` and `embeddings`, one per question for the rest; none in any config where nothing is asked."""
    annotation, volume = sources.annotation, sources.volume
    names = [f.name for f in fields(config)]
    about = _about_volume(annotation)
    asked = options.asked(annotation.grades)
    if not asked:
        return
    quintuples = (_quintuple(q, annotation, options) for q in (in_sections(asked) if config == "cropped" else asked))
    if config in PER_VOLUME:
        payload = {"volume": volume and _packed(volume)} if config == "full" else {"embedding": _embedding(sources.embedding)}
        yield _ordered(names, {**about, **payload, "quintuples": list(quintuples)})
        return
    packed: dict[Box, dict[str, Any]] = {}  # questions on one region share its crop
    for quintuple in quintuples:
        row = {**about, **quintuple}
        if config == "cropped" and volume is not None:
            box = annotation.boxes.get(quintuple["region"])
            crop = box and crop_box(box, annotation, options.margin_mm)
            if crop and crop not in packed:
                packed[crop] = _packed(volume.crop(crop))
            row.update(crop=crop and crop.as_dict(), volume=crop and packed[crop])
        yield _ordered(names, row)


def crop_box(box: Box, annotation: Annotation, margin_mm: float) -> Box:
    """The box with the margin, in whole voxels and inside the volume."""
    z, y, x = (math.ceil(margin_mm / s) for s in annotation.spacing)
    return box.grown((z, y, x), annotation.shape)


def _packed(volume: Volume) -> dict[str, Any]:
    return {"bytes": volume.to_nifti(), "path": None}


def _embedding(embedding: Embedding | None) -> dict[str, Any] | None:
    if embedding is None:
        return None
    tokens, width = embedding.array.shape
    return {"dtype": embedding.dtype, "tokens": tokens, "width": width, "bytes": embedding.array.tobytes()}


def _about_volume(a: Annotation) -> dict[str, Any]:
    by_axis = {"shape": dict(zip("zyx", a.shape, strict=True)), "spacing": dict(zip("zyx", a.spacing, strict=True))}
    same = {name: getattr(a, name) for name in ("volume_id", "patient", "visit", "side", "study", "series", "orientation")}
    return {**same, **by_axis}


def _quintuple(q: Question, a: Annotation, options: Options) -> dict[str, Any]:
    box, grades = a.boxes.get(q.region.id), a.grades[q.id]
    return {
        "id": quintuple_id(a.volume_id, q.id),
        "question_id": q.id,
        "category": q.category.id,
        "region": q.region.id,
        "question": _wordings(q, options.wording),
        "box": box and box.as_dict(),
        "reasoning": reasoning.steps(q, grades, box, a.shape),
        "grades": {name: grades.get(name) for name in ATTRIBUTES},
    }


@lru_cache(maxsize=256)
def _wordings(q: Question, wording: str) -> dict[str, str | None]:
    return {name: text if wording in ("both", name) else None for name, text in prompts.wordings(q).items()}


def _ordered(names: list[str], row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in names}
