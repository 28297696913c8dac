"""Cases: answers that went wrong, some that went right, and some that could not be read.

Each has three planes, all boxes, the grades, the model's words and the dataset's reasoning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reasonknee.boxes import Box
from reasonknee.collate.intensity import percentile_window
from reasonknee.layout.scores import STATUSES
from reasonknee.questions import CATEGORIES, Question
from reasonknee.questions.prompts import zero_shot
from reasonknee.release.reader import Release
from reasonknee.report import links
from reasonknee.report.svg import png_uri
from reasonknee.scoring import Scored
from reasonknee.scoring.lines import BOXED, INVALID, PARSED, UNPARSED, line_at
from reasonknee.scoring.truth import NONE, SLOTS, TABLE
from reasonknee.volumes import volume_from_bytes
from reasonknee.volumes.planes import Plane, grey, planes, scale_mm

WRONG, RIGHT, UNREAD = 2, 1, 3  # of each category, and in all
LONGEST = 4000  # characters of a model's words that are shown
PIXELS = 170  # of the longer side of a picture


@dataclass
class Picture:
    """A plane in millimetres: its image, and where the boxes lie in it."""

    plane: Plane
    uri: str
    boxes: list[
        tuple[str, tuple[float, float, float, float], bool]
    ]  # whose, rectangle, whether the slice cuts it

    @property
    def bar(self) -> int:
        return scale_mm(self.plane.size_mm[0])


@dataclass
class Said:
    """What one model said of the row."""

    name: str
    status: str
    # by attribute: grade, meaning, right; None where the true grade is unknown
    grades: list[tuple[str, str, bool | None]]
    box: str
    words: str
    more: int

    @property
    def verdict(self) -> str:
        judged = [right for _, _, right in self.grades if right is not None]
        return f"{sum(judged)} of {len(judged)} right" if self.status == "parsed" else self.status


@dataclass
class Case:
    row: int
    id: str
    kind: str  # a category's id, "right" or "unread"
    question: Question
    side: str
    visit: str
    truth: list[tuple[str, str, str]]  # attribute, grade, meaning
    said: list[Said]
    asked: str
    reasoning: list[str] = field(default_factory=list)
    published: str = ""  # the published dataset's own reasoning
    pictures: list[Picture] = field(default_factory=list)

    @property
    def link(self) -> str:
        return links.rows(id=self.id)


def chosen(models: Sequence[Scored]) -> list[tuple[int, str]]:
    """Rows and why they are shown: the worst of each category by the first model, some that it has right,
    some that are unread; with two models first those of which one is right and the other is not."""
    scored = models[0]
    truth, judged, predicted = scored.truth, scored.judged, scored.predicted
    highest = np.array(
        [[len(a.space.grades) - 1 for a in q.attributes] + [1] * (SLOTS - len(q.attributes)) for q in TABLE]
    )
    far = np.abs(truth.grades.astype(float) - predicted.grades) / highest[truth.question]
    badness = np.where(judged.answered, far, 0.0).max(1) + np.where(judged.given, 1 - judged.iou, 0.2) * 0.5
    whole = (judged.right == judged.asked).all(1)
    for other in models[1:]:
        badness += whole != (other.judged.right == other.judged.asked).all(1)
    read = predicted.status == PARSED
    category = np.array([CATEGORIES.index(q.category) for q in TABLE])[truth.question]
    order = np.argsort(-badness, kind="stable")
    found: list[tuple[int, str]] = []
    for c, each in enumerate(CATEGORIES):
        worst = order[(read & ~whole & (category == c))[order]]
        found += [(r, each.id) for r in _varied(worst, truth.question)[:WRONG]]
    lesions = np.where(
        truth.grades.max(1) > 0, 0, 1
    )  # a lesion that was seen tells more than a healthy place
    best = np.lexsort((-judged.iou, lesions))
    for c in range(len(CATEGORIES)):
        found += [(r, "right") for r in best[(read & whole & (category == c))[best]][:RIGHT].tolist()]
    unread = np.flatnonzero((predicted.status == UNPARSED) | (predicted.status == INVALID))
    return found + [(r, "unread") for r in unread[:: max(1, len(unread) // UNREAD)][:UNREAD].tolist()]


def _varied(rows: np.ndarray, question: np.ndarray) -> list[int]:
    """In their order, but no question a second time before all have come: a next visit shows little new."""
    first = np.sort(np.unique(question[rows], return_index=True)[1])
    return [*rows[first].tolist(), *np.delete(rows, first).tolist()]


def cases(models: Sequence[Scored], release: Release, words: Sequence[Path | None]) -> list[Case]:
    rows = chosen(models)
    made = [_case(models, words, row, kind) for row, kind in rows]
    split = models[0].scores["split"]
    by_id = {case.id: case for case in made}
    config = release.lightest(split) or "annotations"
    for n, case in enumerate(made):
        told = release.row(case.id, config, without=("volume", "embedding")) or {}
        quintuple = next((q for q in told.get("quintuples", ()) if q["id"] == case.id), told)
        made[n].reasoning = [str(step) for step in quintuple.get("reasoning") or ()]
        made[n].published = quintuple.get("published_reasoning") or ""
    for id_, pictures in _pictures(models, release, split, by_id):
        by_id[id_].pictures = pictures
    return made


def _case(models: Sequence[Scored], words: Sequence[Path | None], row: int, kind: str) -> Case:
    truth = models[0].truth
    question = TABLE[truth.question[row]]
    shown = []
    for slot, attribute in enumerate(question.attributes):
        grade = int(truth.grades[row, slot])
        shown.append(
            (
                attribute.title,
                "unknown" if grade == NONE else str(grade),
                "" if grade == NONE else attribute.space.meanings[grade],
            )
        )
    said = [_said(scored, path, row, question) for scored, path in zip(models, words, strict=True)]
    _, visit, side, _ = truth.ids[row].split("-", 3)
    return Case(row, truth.ids[row], kind, question, side, visit, shown, said, zero_shot(question))


def _said(scored: Scored, path: Path | None, row: int, question: Question) -> Said:
    predicted, judged = scored.predicted, scored.judged
    grades = []
    for slot, attribute in enumerate(question.attributes):
        grade = int(predicted.grades[row, slot])
        meaning = "" if grade == NONE else attribute.space.meanings[grade]
        right = bool(judged.right[row, slot]) if judged.asked[row, slot] else None
        grades.append(("none" if grade == NONE else str(grade), meaning, right))
    if judged.given[row]:
        box = f"IoU {judged.iou[row]:.2f}, centre {judged.centre_mm[row]:.0f} mm off"
    else:
        box = "no box given" if judged.wanted[row] else "no box wanted"
    text = _words(path, int(predicted.offset[row]))
    return Said(
        scored.scores["model"],
        STATUSES[predicted.status[row]],
        grades,
        box,
        text[:LONGEST],
        max(0, len(text) - LONGEST),
    )


def _words(path: Path | None, offset: int) -> str:
    if offset < 0:
        return "(no answer)"
    if path is None:
        return "(the words are in the predictions)"
    fields = line_at(path, offset)
    text = fields.get("response") if "response" in fields else fields.get("reasoning")
    return "(no text: the answer came ready)" if text is None else str(text)


# --- pictures -----------------------------------------------------------------------------------------------


def _pictures(
    models: Sequence[Scored], release: Release, split: str, wanted: dict[str, Case]
) -> Iterator[tuple[str, list[Picture]]]:
    """Of each case that the release has voxels for: of the whole volume if it can be, else of the crop."""
    config = next((c for c in ("full", "cropped") if release.manifest.of(c, split)), None)
    if config is None:
        return
    of = {id_: id_ if config == "cropped" else id_.rpartition("-")[0] for id_ in wanted}
    columns = ["volume", *(["crop"] if config == "cropped" else [])]
    for shown in release.rows(sorted(set(of.values())), config, split, columns):
        if shown["volume"] is None:
            continue
        volume = volume_from_bytes(shown["volume"]["bytes"])
        origin = Box.from_dict(shown["crop"]).start if shown.get("crop") else (0, 0, 0)
        window = percentile_window(volume.array)
        for id_ in [i for i, key in of.items() if key == shown["id" if config == "cropped" else "volume_id"]]:
            named = _boxes(models, wanted[id_].row)
            drawn = []
            for plane in planes(volume, [box for _, box in named], origin):
                boxes = [(whose, plane.rectangle(box), plane.cuts(box)) for whose, box in named]
                drawn.append(Picture(plane, png_uri(grey(plane.pixels, window.lo, window.hi, PIXELS)), boxes))
            yield id_, drawn


def _boxes(models: Sequence[Scored], row: int) -> list[tuple[str, Box]]:
    truth = models[0].truth
    found = [("truth", Box(*map(int, truth.boxes[row])))] if truth.has_box[row] else []
    for m, scored in enumerate(models):
        if scored.predicted.box_state[row] == BOXED:
            found.append((f"model-{m}", Box(*map(int, scored.predicted.boxes[row]))))
    return found
