"""From one volume's annotation, image and embedding to the rows of a config.

The only place where rows are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from reasonknee.boxes import Box, Shape
from reasonknee.cohort import Annotation, Cohort, Entry
from reasonknee.cohort.folder import check_grids, reading
from reasonknee.errors import DataError, UsageError, shown
from reasonknee.layout import PER_VOLUME, quintuple_id
from reasonknee.layout.manifest import EVIDENCE
from reasonknee.layout.records import fields
from reasonknee.questions import (
    ATTRIBUTES,
    DEFAULT_SET,
    QUESTIONS,
    Question,
    in_sections,
    prompts,
    question_set,
    reasoning,
)
from reasonknee.volumes import Volume, nifti_bytes, read_volume
from reasonknee.volumes.embeddings import Embedding, EmbeddingFile
from reasonknee.volumes.plausible import check_scan

WORDING_CHOICES = ("all", *prompts.WORDINGS)
MAX_MARGIN_MM = (
    15.0  # crops of one volume share a row group: at 20 mm it takes 1.5 GB to write or read, at 60 mm 7 GB
)
NEEDS_IMAGES = frozenset({"cropped", "full"})


@dataclass(frozen=True)
class Options:
    """What a user may choose about the rows."""

    questions: str = DEFAULT_SET
    margin_mm: float | str = 0.0  # around the ground-truth box of a crop; EVIDENCE: as its lesion needs
    wording: str = "all"  # with one the others are null, so that a zero-shot run cannot read the instruction

    def __post_init__(self) -> None:
        question_set(self.questions)
        if self.wording not in WORDING_CHOICES:
            raise UsageError(
                "C002", f"unknown wording {self.wording!r}", f"choose one of {', '.join(WORDING_CHOICES)}"
            )
        if self.margin_mm != EVIDENCE and not (
            isinstance(self.margin_mm, int | float) and 0 <= self.margin_mm <= MAX_MARGIN_MM
        ):
            raise UsageError(
                "C003",
                f"a margin of {self.margin_mm} mm",
                f"0 to {MAX_MARGIN_MM:g} mm, or `{EVIDENCE}`; the config `full` has all the context there is",
            )

    def asked(self, graded: frozenset[str] | dict[str, Any]) -> list[Question]:
        """The questions of the set that a volume has grades for, in the table's order."""
        return [q for q in question_set(self.questions) if q.id in graded]


@dataclass(frozen=True)
class Sources:
    """All that the rows of one volume are made of; what the wanted configs do not need is None."""

    annotation: Annotation
    volume: Volume | None = None
    embedding: Embedding | None = None


@dataclass(frozen=True)
class Member:
    """A volume and the files that go with it."""

    entry: Entry
    image: Path | None = None
    masks: tuple[Path, ...] = ()
    accepted: bool = False  # by name, though it looks like no scan

    @property
    def files(self) -> list[Path]:
        return [self.image, *self.masks] if self.image else []


def members(
    cohort: Cohort,
    entries: list[Entry],
    configs: Iterable[str],
    *,
    max_bad: int = 0,
    accept: Iterable[str] = (),
) -> list[Member]:
    """The volumes and their files. What is missing is told before any work, unless so many bad volumes are
    allowed."""
    chosen, accepted = frozenset(configs), frozenset(accept)
    unknown = sorted(accepted - {e.volume_id for e in entries})
    if unknown:
        raise UsageError("C006", f"no volume is called {shown(unknown[0])}", "--accept takes a volume id")
    if "embeddings" in chosen:
        cohort.check_embeddings(entries, max_bad)
    if not NEEDS_IMAGES & chosen:
        return [Member(e) for e in entries]
    images, masks = cohort.images(entries, max_bad), cohort.masks()
    return [
        Member(e, images.get(e.volume_id), masks.get(e.key, ()), e.volume_id in accepted) for e in entries
    ]


def read_sources(cohort: Cohort, member: Member, configs: Iterable[str]) -> Sources:
    """Reads a volume once for all the configs that want it."""
    annotation, chosen = cohort.annotation(member.entry), frozenset(configs)
    volume = embedding = None
    if chosen & NEEDS_IMAGES:
        image = member.image
        if image is None:
            raise DataError(
                "K004",
                "no image, or more than one",
                "the config `annotations` needs none",
            ).at(annotation.volume_id)
        with reading(image):
            volume = read_volume(image)
            check_grids(annotation, volume.grid, member.masks)
        if not member.accepted:
            check_scan(volume)
    if "embeddings" in chosen:
        with EmbeddingFile(cohort.embeddings) as file:
            embedding = file.read(annotation.volume_id)
    return Sources(annotation, volume, embedding)


def rows(sources: Sources, config: str, options: Options) -> Iterator[dict[str, Any]]:
    """The rows of one volume: one for `full` and `embeddings`, one per question for the rest; none in any
    config where nothing is asked."""
    annotation, volume = sources.annotation, sources.volume
    names = [f.name for f in fields(config)]
    about = _about_volume(annotation)
    asked = options.asked(annotation.grades)
    if not asked:
        return
    quintuples = (
        _quintuple(q, annotation, options) for q in (in_sections(asked) if config == "cropped" else asked)
    )
    if config in PER_VOLUME:
        payload = (
            {"volume": volume and _packed(volume)}
            if config == "full"
            else {"embedding": _embedding(sources.embedding)}
        )
        yield _ordered(names, {**about, **payload, "quintuples": list(quintuples)})
        return
    packed: dict[Box, dict[str, Any]] = {}  # questions on one region share its crop
    for quintuple in quintuples:
        row = {**about, **quintuple}
        if config == "cropped" and volume is not None:
            box = annotation.boxes.get(quintuple["region"])
            asked_for = QUESTIONS[quintuple["question_id"]]
            crop = box and crop_box(box, annotation, asked_for, options.margin_mm)
            if crop and crop not in packed:
                packed[crop] = _packed(volume.crop(crop))
            row.update(crop=crop and crop.as_dict(), volume=crop and packed[crop])
        yield _ordered(names, row)


def crop_box(box: Box, annotation: Annotation, asked: Question, margin_mm: float | str) -> Box:
    """The box with the margin, in whole voxels and inside the volume."""
    around = asked.lesion.evidence_mm if isinstance(margin_mm, str) else (margin_mm,) * 3
    z, y, x = (math.ceil(mm / s) for mm, s in zip(around, annotation.spacing, strict=True))
    return box.grown((z, y, x), annotation.shape)


def _packed(volume: Volume) -> dict[str, Any]:
    return {"bytes": nifti_bytes(volume), "path": None}


def _embedding(embedding: Embedding | None) -> dict[str, Any] | None:
    if embedding is None:
        return None
    tokens, width = embedding.array.shape
    return {
        "dtype": embedding.dtype,
        "tokens": tokens,
        "width": width,
        "bytes": embedding.array.tobytes(),
        **asdict(embedding.made),
    }


def _about_volume(a: Annotation) -> dict[str, Any]:
    by_axis = {
        "shape": dict(zip("zyx", a.shape, strict=True)),
        "spacing": dict(zip("zyx", a.spacing, strict=True)),
    }
    same = {
        name: getattr(a, name)
        for name in ("volume_id", "patient", "visit", "side", "study", "series", "orientation")
    }
    told = asdict(a.provenance)
    del told["boxes"]  # each row says it of its own box
    return {**same, **by_axis, "provenance": told}


def _quintuple(q: Question, a: Annotation, options: Options) -> dict[str, Any]:
    box, grades = a.boxes.get(q.region.id), a.grades[q.id]
    return {
        "id": quintuple_id(a.volume_id, q.id),
        "question_id": q.id,
        "category": q.category.id,
        "region": q.region.id,
        "box": box and box.as_dict(),
        "box_source": box and a.provenance.box_of(q.region.id),
        "published_reasoning": a.reasoning.get(q.id),
        "grades": {name: grades.get(name) for name in ATTRIBUTES},
        "second_readings": [
            {"project": reading.project, "attribute": name, "grade": grade}
            for reading in a.readings
            for name, grade in reading.grades.get(q.id, {}).items()
        ],
        **derived(q, grades, box, a.shape, quintuple_id(a.volume_id, q.id), options.wording),
    }


def derived(
    q: Question, grades: Mapping[str, int], box: Box | None, shape: Shape, row_id: str, wording: str
) -> dict[str, Any]:
    """The words of a row, which follow from its facts."""
    return {
        "question": _wordings(q, wording),
        "reasoning": reasoning.steps(q, grades, box, shape, row_id),
    }


@lru_cache(maxsize=256)
def _wordings(q: Question, wording: str) -> dict[str, str | None]:
    return {name: text if wording in ("all", name) else None for name, text in prompts.wordings(q).items()}


def _ordered(names: list[str], row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in names}
