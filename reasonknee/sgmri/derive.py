"""Questions, answers and reasoning from the readers' boxes, by templates: no language model, the same every
time.

Each slice and each volume gets one question of every task. What is asked, which choices stand beside the
right one and whether a finding that is not there is asked for are drawn by the seed and the place alone, so a
record does not change when others come or go. Where there are findings, detection asks for one that is there
and for one that is not equally often; where there are none, for one that is not.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from reasonknee.sgmri.fastmri_plus import AnnotatedVolume
from reasonknee.sgmri.frames import FrameBox, instances
from reasonknee.sgmri.labels import LABELS, NORMAL, NOT_DISEASE, listed, named
from reasonknee.sgmri.records import Answer, Finding, Record, record_id

_CHOICES = 4
FILE = "fastmri-plus"  # what stands for a file's name in the ids of derived records


@dataclass(frozen=True)
class Deriving:
    """What a user may choose: `slices` is the most that one volume contributes, evenly chosen."""

    seed: int = 0
    slices: int = 6


@dataclass(frozen=True)
class _Place:
    """A slice or a volume that is asked about."""

    volume: AnnotatedVolume
    split: str
    patient: str | None
    frame: int | None
    findings: tuple[Finding, ...]

    @property
    def level(self) -> str:
        return "volume" if self.frame is None else "slice"

    @property
    def seen(self) -> list[Finding]:
        return [f for f in self.findings if f.boxes]

    @property
    def noun(self) -> str:
        return f"{'volume' if self.frame is None else 'slice'} of a {self.volume.anatomy} MRI"


def derive(
    volume: AnnotatedVolume,
    split: str,
    options: Deriving,
    patient: str | None = None,
    depth: int | None = None,
) -> Iterator[Record]:
    """All records of one volume. `depth`, its number of frames, is known where its image is at hand."""
    boxed = sorted({box.frame for boxes in volume.boxes.values() for box in boxes})
    frames = boxed
    if volume.is_negative and depth:
        frames = list(range(depth // 4, depth - depth // 4))  # the outer quarters show little of anything
    places = [
        _Place(volume, split, patient, frame, volume.on(frame)) for frame in _evenly(frames, options.slices)
    ]
    places.append(_Place(volume, split, patient, None, volume.findings()))
    for place in places:
        yield from _records(place, options.seed)


def _evenly(frames: list[int], most: int) -> list[int]:
    if len(frames) <= most:
        return frames
    return [frames[(2 * i + 1) * len(frames) // (2 * most)] for i in range(most)]


def _records(place: _Place, seed: int) -> Iterator[Record]:
    makers = [("detection", _detection), ("captioning", _captioning)]
    if place.seen:
        makers += [("localization", _localization), ("classification", _classification)]
        makers += [("diagnosis", _diagnosis)] if place.level == "slice" else [("counting", _counting)]
    for task, make in sorted(makers):
        key = f"{seed}/{place.volume.volume_id}/{place.frame}/{task}"
        made = make(place, random.Random(hashlib.sha256(key.encode()).digest()))
        position = 0 if place.frame is None else place.frame
        name = f"{FILE}.{task}"
        yield Record(
            id=record_id(
                place.volume.anatomy, place.split, place.level, name, position, place.volume.volume_id
            ),
            anatomy=place.volume.anatomy,
            split=place.split,
            level=place.level,
            task=task,
            source="derived",
            volume_id=place.volume.volume_id,
            patient=place.patient,
            sequence=place.volume.sequence,
            frame=place.frame,
            question=made.question,
            answer=made.answer,
            choices=dict(made.choices),
            findings=made.findings,
            reasoning=(*_steps(made.findings, place, task), f"So the answer is: {made.answer.text}"),
        )


@dataclass(frozen=True)
class _Made:
    question: str
    answer: Answer
    findings: tuple[Finding, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)


def _detection(place: _Place, draw: random.Random) -> _Made:
    present = [f for f in place.seen if f.label not in NOT_DISEASE]
    absent = _absent(place)
    there = bool(present) and draw.random() < 0.5
    label = draw.choice(present).label if there else draw.choice(absent)
    name = named(place.volume.anatomy, label)
    about = tuple(f for f in place.seen if f.label == label)
    return _Made(
        f"Does this {place.noun} show {name.article}{name.words}? Answer yes or no.",
        Answer("yes_no", "Yes" if there else "No", yes=there),
        about,
    )


def _localization(place: _Place, draw: random.Random) -> _Made:
    finding = draw.choice(place.seen)
    many = named(place.volume.anatomy, finding.label).many
    where = (
        "" if place.level == "slice" else " on each frame that shows it, and name the frame, counted from 0"
    )
    return _Made(
        f"Locate the {many} in this {place.noun}. Give a box as [x, y, width, height] in pixels{where}.",
        Answer("text", _boxes_in_words(finding.boxes)),
        (finding,),
    )


def _counting(place: _Place, draw: random.Random) -> _Made:
    finding = draw.choice(place.seen)
    name = named(place.volume.anatomy, finding.label)
    if draw.random() < 0.5:
        count, unit = len({box.frame for box in finding.boxes}), "frames"
        question = f"On how many frames of this {place.noun} is {name.article}{name.words} seen?"
    else:
        count, unit = len(instances(finding.boxes)), "lesions"
        question = (
            f"How many {name.many} does this {place.noun} show? One that goes on from frame to frame "
            "counts once."
        )
    return _Made(
        f"{question} Answer with a number.", Answer("count", str(count), count=count, unit=unit), (finding,)
    )


def _classification(place: _Place, draw: random.Random) -> _Made:
    finding = draw.choice(place.seen)
    choices = _choices([finding.label], place, draw)
    letter = next(key for key, label in choices.items() if label == finding.label)
    texts = _in_words(choices, place)
    return _Made(
        f"Which of these findings does this {place.noun} show? {_options(texts)} Answer with one letter.",
        Answer("single_choice", f"{letter}) {texts[letter]}", letters=(letter,)),
        (finding,),
        texts,
    )


def _diagnosis(place: _Place, draw: random.Random) -> _Made:
    shown = sorted({f.label for f in place.seen})[: _CHOICES - 1]
    choices = _choices(shown, place, draw)
    letters = tuple(key for key, label in choices.items() if label in shown)
    texts = _in_words(choices, place)
    return _Made(
        f"Which of these findings does this {place.noun} show? {_options(texts)} Answer with all letters "
        "that apply.",
        Answer("multiple_choice", "; ".join(f"{k}) {texts[k]}" for k in letters), letters=letters),
        tuple(f for f in place.seen if f.label in shown),
        texts,
    )


def _captioning(place: _Place, draw: random.Random) -> _Made:
    names = [named(place.volume.anatomy, f.label) for f in place.seen]
    whole = _of_study(place)
    normal = not names and NORMAL & set(place.volume.of_study)
    if names or whole:
        parts = [f"{name.article}{name.words}" for name in names]
        text = f"This {place.noun} shows {listed(parts + [f'{words} (whole study)' for words in whole])}."
        text += " It is otherwise normal for age." if normal else ""
    else:
        text = f"This {place.noun} {'is normal for age' if normal else 'shows no finding'}."
    if place.level == "volume":
        text += "".join(
            f" The {named(place.volume.anatomy, f.label).words}: {_frames_in_words(f.boxes)}."
            for f in place.seen
        )
    return _Made(
        f"Describe what this {place.noun} shows, in one or two sentences.",
        Answer("text", text),
        place.findings,
    )


# --- parts of sentences -------------------------------------------------------------------------------------


def _absent(place: _Place) -> list[str]:
    """Labels that are nowhere in the volume, so that a neighbouring slice cannot make a "no" doubtful."""
    present = set(place.volume.boxes) | set(place.volume.of_study)
    return [label for label in LABELS[place.volume.anatomy] if label not in present | NOT_DISEASE]


def _of_study(place: _Place) -> list[str]:
    """What the readers said of the whole study, without a box, other than that it is normal."""
    labels = [f.label for f in place.findings if not f.boxes and f.label not in NORMAL]
    return [named(place.volume.anatomy, label).words for label in labels]


def _choices(right: list[str], place: _Place, draw: random.Random) -> dict[str, str]:
    labels = [*right, *draw.sample(_absent(place), _CHOICES - len(right))]
    draw.shuffle(labels)
    return dict(zip("ABCD", labels, strict=True))


def _in_words(choices: dict[str, str], place: _Place) -> dict[str, str]:
    return {key: named(place.volume.anatomy, label).words for key, label in choices.items()}


def _options(texts: Mapping[str, str]) -> str:
    return " ".join(f"{key}) {text}" for key, text in texts.items())


def _boxes_in_words(boxes: tuple[FrameBox, ...]) -> str:
    return "; ".join(f"Frame {box.frame}: <bbx>{box.as_xywh()}</bbx>" for box in boxes)


def _frames_in_words(boxes: tuple[FrameBox, ...]) -> str:
    """The frames of boxes, neighbours together: frame 2, frames 2 to 5 and 9."""
    frames = sorted({box.frame for box in boxes})
    runs: list[list[int]] = []
    for frame in frames:
        if runs and frame == runs[-1][-1] + 1:
            runs[-1].append(frame)
        else:
            runs.append([frame])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"frame{'s' if len(frames) > 1 else ''} {listed(texts)}"


def _steps(findings: tuple[Finding, ...], place: _Place, task: str) -> Iterator[str]:
    boxed = [f for f in findings if f.boxes]
    if not boxed:
        what = "a finding" if task == "captioning" else "it"
        volume = place.level == "volume"
        yield f"Go through all frames: none shows {what}." if volume else f"The slice does not show {what}."
    for finding in boxed:
        yield f"Look at {_frames_in_words(finding.boxes)}."
        name = named(place.volume.anatomy, finding.label)
        shown = "They show" if len({box.frame for box in finding.boxes}) > 1 else "It shows"
        yield f"{shown} {name.article}{name.words}: {_boxes_in_words(finding.boxes)}."
    if task == "captioning" and (whole := _of_study(place)):
        yield f"Of the whole study, the readers name {listed(whole)}, without a box."
