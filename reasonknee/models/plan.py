"""What is asked in a run: rows of a release in a setting, perhaps under a control, as requests that share
showings.

A setting takes one step or two; a control may add one:

    zero_shot, instruction   answer: the whole volume
    region                   answer: the true region alone
    both                     answer: the whole volume, then the true region, as `train --setting both` teaches
    locate_grade             locate: the whole volume; grade: what lies in the box that the model drew
    --control occluded       occluded: the last step again, with the model's own box blacked out

The key of a request is a digest of all that decides its answer. It is known before a voxel is read, so that a
run that goes on reads only the volumes of which something is left to ask.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from reasonknee.answers import Answer
from reasonknee.boxes import Box, Shape
from reasonknee.errors import DataError, UsageError
from reasonknee.models.coordinates import form_named
from reasonknee.models.journal import Journal
from reasonknee.models.requests import Parameters, digest
from reasonknee.models.targets import ARMS, worded
from reasonknee.models.views import Outline, Showing, View, blank, occluded, region_of, together
from reasonknee.questions import QUESTIONS, Question
from reasonknee.questions.prompts import SYSTEM, VOXELS, ask
from reasonknee.release.reader import Release

SETTINGS = ("zero_shot", "instruction", "region", "both", "locate_grade")
CONTROLS = ("blank", "swapped", "text", "occluded")
_Parts = tuple[Box | None, Box | None, Box | None]  # shown alone, shown after the whole, blacked out
_COLUMNS = ("id", "volume_id", "patient", "side", "shape", "spacing", "orientation", "question_id", "box")


@dataclass(frozen=True)
class Knee:
    """A volume, but for its voxels."""

    id: str
    patient: str
    side: str
    shape: Shape
    spacing: tuple[float, float, float]
    orientation: str


@dataclass(frozen=True)
class Row:
    """A quintuple that is asked."""

    id: str
    knee: Knee
    question: Question
    box: Box | None


@dataclass(frozen=True)
class Request:
    key: str
    row: Row
    step: str
    text: str
    shown: str  # the volume that is shown; empty for none
    outline: Outline | None
    dark: Box | None = None  # blacked out
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """Requests on one showing, which all of them share."""

    volume: str
    showing: Showing | None
    requests: tuple[Request, ...]


class _Scene(NamedTuple):
    """What a step shows of a knee: the wording that goes with it, the part, alone or after the whole, what is
    blacked out."""

    wording: str
    crop: Box | None
    inset: Box | None = None
    dark: Box | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """What a run asks, whichever model is asked."""

    setting: str = "zero_shot"
    control: str | None = None
    view: View = field(default_factory=View)
    parameters: Parameters = field(default_factory=Parameters)
    margin_mm: float = 10.0  # around a region that is cut out
    arm: str = ""  # in whose words a tuned model is asked; empty for the plain ones

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise UsageError(
                "N032", f"unknown setting {self.setting!r}", f"choose one of {', '.join(SETTINGS)}"
            )
        if self.arm not in ("", *ARMS):
            raise UsageError("N032", f"unknown arm {self.arm!r}", f"choose one of {', '.join(ARMS)}")
        if self.arm == "box_given" and self.setting == "locate_grade":
            raise UsageError("N032", "arm box_given in setting locate_grade", "nothing is left to locate")
        if self.control is not None and self.control not in CONTROLS:
            raise UsageError(
                "N032", f"unknown control {self.control!r}", f"choose one of {', '.join(CONTROLS)}"
            )
        alone = {
            "text": ("zero_shot", "instruction"),
            "occluded": ("zero_shot", "instruction", "locate_grade"),
        }
        if self.setting not in alone.get(self.control or "", SETTINGS):
            raise UsageError(
                "N032",
                f"control {self.control} in setting {self.setting}",
                "there is no box of the model's own",
            )

        if self.parameters.grammar and form_named(self.view.form).told.template != VOXELS.template:
            raise UsageError(
                "N055",
                f"--grammar with boxes as {self.view.form}",
                "voxels, pixels and thousand have a schema",
            )

    @property
    def steps(self) -> tuple[str, ...]:
        first = ("locate", "grade") if self.setting == "locate_grade" else ("answer",)
        return (*first, "occluded") if self.control == "occluded" else first

    def as_dict(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "control": self.control,
            "view": self.view.as_dict(),
            "parameters": self.parameters.as_dict(),
            "margin_mm": self.margin_mm,
            "arm": self.arm,
        }


def read_rows(release: Release, split: str) -> list[Row]:
    """The quintuples of a split, those of a volume together."""
    if release.lightest(split) is None:
        raise DataError(
            "N033", f"no split {split!r}", f"the release has {', '.join(release.splits) or 'none'}"
        )
    knees: dict[str, Knee] = {}
    rows: list[Row] = []
    for part in release.parts(split, _COLUMNS):
        for r in part.to_pylist():
            knee = knees.setdefault(
                r["volume_id"],
                Knee(
                    r["volume_id"],
                    r["patient"],
                    r["side"],
                    (r["shape"]["z"], r["shape"]["y"], r["shape"]["x"]),
                    (r["spacing"]["z"], r["spacing"]["y"], r["spacing"]["x"]),
                    r["orientation"],
                ),
            )
            box = Box.from_dict(r["box"]) if r["box"] else None
            if r["question_id"] not in QUESTIONS:
                raise DataError("N033", f"{r['id']}: no such question", "the release is of another version")
            rows.append(Row(r["id"], knee, QUESTIONS[r["question_id"]], box))
    place = {id_: i for i, id_ in enumerate(QUESTIONS)}
    order = {id_: i for i, id_ in enumerate(knees)}
    return sorted(rows, key=lambda row: (order[row.knee.id], place[row.question.id]))


def sampled(rows: Sequence[Row], count: int, seed: int) -> list[Row]:
    """So many of the rows, as many of each patient as of any other; in their order."""
    draw = random.Random(seed)
    of_patient: dict[str, list[Row]] = {}
    for row in rows:
        of_patient.setdefault(row.knee.patient, []).append(row)
    patients = list(of_patient)
    draw.shuffle(patients)
    for listed in of_patient.values():
        draw.shuffle(listed)
    chosen: set[str] = set()
    turn = 0
    while len(chosen) < min(count, len(rows)):
        for patient in patients:
            if turn < len(of_patient[patient]) and len(chosen) < count:
                chosen.add(of_patient[patient][turn].id)
        turn += 1
    return [row for row in rows if row.id in chosen]


def widened(rows: Sequence[Row], chosen: Sequence[Row]) -> tuple[float, float]:
    """By what factor intervals over patients grow with a sample: at least, where the answers of a patient are
    alike, and at most, where they are not."""
    patients = [len({row.knee.patient for row in some}) for some in (rows, chosen)]
    least, most = math.sqrt(patients[0] / patients[1]), math.sqrt(len(rows) / len(chosen))
    return min(least, most), max(least, most)


class Plan:
    """The requests of a run. `sized` and `fitted` say how the model sees an outline and a showing; `others`
    are knees that may be shown in place of those that are asked about."""

    def __init__(
        self,
        release: Release,
        rows: Sequence[Row],
        choice: Choice,
        about: dict[str, Any],
        sized: Callable[[Outline], Outline],
        fitted: Callable[[Showing], Showing],
        others: Sequence[Knee] = (),
        boxes: str | None = None,
    ) -> None:
        self.release, self.rows, self.choice, self.about = release, rows, choice, about
        self.sized, self.fitted = sized, fitted
        self.boxes = boxes  # digest of the predictions whose boxes stand in place of the true ones
        self.form = form_named(choice.view.form)
        self.of_volume: dict[str, list[Row]] = {}
        for row in rows:
            self.of_volume.setdefault(row.knee.id, []).append(row)
        self.partners: dict[str, Knee] = {}
        if choice.control == "swapped":
            self.partners = _partners([rows[0].knee for rows in self.of_volume.values()], others)
        if choice.control != "text" and not release.manifest.of("full"):
            raise DataError("N034", "the release holds no whole volumes", "build it with the config `full`")

    def jobs(self, step: str, journal: Journal) -> Iterator[Job]:
        """What is left to ask in a step, showing by showing."""
        for rows in self.of_volume.values():
            scenes: dict[_Parts, list[Request]] = {}
            for row in rows:
                request = self.request(step, row, journal)
                if request is not None and request.key not in journal.answers:
                    outline = request.outline
                    parts = (outline.crop, outline.inset) if outline else (None, None)
                    scenes.setdefault((*parts, request.dark), []).append(request)
            if scenes:
                yield from self._shown(rows[0].knee, scenes)

    def _shown(self, knee: Knee, scenes: dict[_Parts, list[Request]]) -> Iterator[Job]:
        control, view = self.choice.control, self.choice.view
        if control == "text":
            for requests in scenes.values():
                yield Job(knee.id, None, tuple(requests))
            return
        shown = self.knee_shown(knee)
        volume = self.release.volume(shown.id)
        if volume is None or volume.grid.shape != shown.shape:
            raise DataError(
                "N034", f"no volume {shown.id} of {shown.shape} voxels", "`reasonknee validate` tells"
            )
        window = view.window_of(volume.array)
        if control == "blank":
            volume = blank(volume)
        for (crop, inset, dark), requests in scenes.items():
            seen = volume if dark is None else occluded(volume, dark, window)
            showing = self.fitted(view.show(seen, shown.side, crop, window))
            if inset is not None:
                showing = together(showing, self.fitted(view.show(seen, shown.side, inset, window)))
            yield Job(knee.id, showing, tuple(requests))

    def request(self, step: str, row: Row, journal: Journal) -> Request | None:
        """None where the step has nothing to ask, or not yet: an earlier one has no answer."""
        scene = self._scene(step, row, journal)
        if scene is None:
            return None
        choice = self.choice
        shown = self.knee_shown(row.knee)
        outline = None
        if choice.control != "text":
            outline = self.sized(
                choice.view.outline(shown.shape, shown.spacing, shown.orientation, shown.side, scene.crop)
            )
            outline = replace(outline, inset=scene.inset)
        text = ask(row.question, scene.wording, outline.told if outline else None)
        if step != "locate":
            grid = (outline or _whole(shown)).grid
            inside = row.box if row.box and row.box.fits(shown.shape) else None
            text = worded(
                text, choice.arm, self.form.write(inside, grid) if choice.arm == "box_given" else None
            )
        key = digest(
            {
                "row": row.id,
                "step": step,
                "system": SYSTEM,
                "prompt": text,
                "view": choice.view.as_dict(),
                "shown": shown.id if outline else None,
                "control": choice.control if step == "occluded" or choice.control != "occluded" else None,
                "crop": scene.crop.as_dict() if scene.crop else None,
                **({"inset": scene.inset.as_dict()} if scene.inset else {}),
                "dark": scene.dark.as_dict() if scene.dark else None,
                "model": self.about,
                "parameters": choice.parameters.as_dict(),
            }
        )
        return Request(key, row, step, text, shown.id if outline else "", outline, scene.dark, scene.notes)

    def _scene(self, step: str, row: Row, journal: Journal) -> _Scene | None:
        setting = self.choice.setting
        boxed = bool(row.question.region.labels)  # else the question is about the whole knee
        if step == "locate":
            return _Scene("locate", None) if boxed else None
        if step == "occluded":
            last = "grade" if setting == "locate_grade" else "answer"
            scene, answer = self._scene(last, row, journal), self.answer(last, row, journal)
            if scene is None or answer is None:
                return None
            own = self._own_box(row, journal)
            return scene._replace(dark=own, notes=(*scene.notes, *([] if own else ["nothing blacked out"])))
        if setting in ("region", "both"):
            box = row.box
        elif setting == "locate_grade":
            if boxed and self.answer("locate", row, journal) is None:
                return None
            box = self._own_box(row, journal)
        else:
            return _Scene(setting, None)
        shown = self.knee_shown(row.knee)
        if box is None or not box.fits(shown.shape):  # another patient's volume may be smaller
            return _Scene("instruction", None, notes=("no box: the whole volume is shown",) if boxed else ())
        part = region_of(box, shown.shape, shown.spacing, self.choice.margin_mm)
        return _Scene("region", None, part) if setting == "both" else _Scene("region", part)

    def knee_shown(self, knee: Knee) -> Knee:
        """The knee itself, or the one that is shown in its place."""
        return self.partners[knee.id] if self.choice.control == "swapped" else knee

    def _own_box(self, row: Row, journal: Journal) -> Box | None:
        """The box that the model drew in the whole volume."""
        step = "locate" if self.choice.setting == "locate_grade" else "answer"
        answer = self.answer(step, row, journal)
        shape = self.knee_shown(row.knee).shape
        return answer.box if answer and answer.box and answer.box.fits(shape) else None

    def answer(self, step: str, row: Row, journal: Journal) -> Answer | None:
        """What the journal has for a step, read; None if nothing yet."""
        request = self.request(step, row, journal)
        entry = journal.answers.get(request.key) if request else None
        if request is None or entry is None or entry.reply is None:
            return None
        return self.read(request, entry.reply.text)

    def read(self, request: Request, text: str) -> Answer:
        """A model's words, with the box in voxels of the volume that was shown."""
        if request.outline is None:
            return form_named("voxels").read(request.row.question, text, _whole(request.row.knee).grid)
        return self.form.read(request.row.question, text, request.outline.grid)


def _whole(knee: Knee) -> Outline:
    """All of a knee, voxel by voxel."""
    return View().outline(knee.shape, knee.spacing, knee.orientation, knee.side, None)


def _partners(knees: Sequence[Knee], others: Sequence[Knee]) -> dict[str, Knee]:
    """Another patient's knee for each, of the same side where there is one."""
    partners: dict[str, Knee] = {}
    for i, knee in enumerate(knees):
        after = [*knees[i + 1 :], *knees[:i], *others]
        foreign = [k for k in after if k.patient != knee.patient]
        if not foreign:
            raise UsageError("N053", "no other patient to swap with", "the release has one alone")
        partners[knee.id] = next((k for k in foreign if k.side == knee.side), foreign[0])
    return partners
