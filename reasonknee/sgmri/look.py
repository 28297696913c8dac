"""A look at one question of a release of SGMRI-VQA: in words, and as a picture of its frames with the true
boxes and those of a model.

The picture shows the frame of a slice's question; of a volume, the frames on which a box lies, true or a
model's. Frames have the array indices of the stored image, boxes lie on the edges of their pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import UsageError, shown
from reasonknee.layout.places import release_folder
from reasonknee.layout.sgmri import SPLITS, read_qa_manifest
from reasonknee.release.inspect import INK, TRUTH, dark_figure
from reasonknee.sgmri.answers import Image, QwenUnit, Said, qwen_unit
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.measures import THRESHOLDS, Measured
from reasonknee.sgmri.records import Record, record_of
from reasonknee.sgmri.scores import Drawn, Scoring, read_predictions, score
from reasonknee.sgmri.stream import Choosing, QaSource

MODEL = "#e69f00"  # the viewer's first model: orange and dashed
_MOST_FRAMES, _ACROSS = 12, 4
_LONGEST = 4000  # characters of a line
_LOCATING = Choosing(tasks=frozenset({"localization"}))
_WITH_PIXELS = ("volumes", "slices")


@dataclass(frozen=True)
class Looked:
    """A question, its pixels where the release has them, and what a model said of it."""

    record: Record
    image: np.ndarray | None  # (frames, rows, columns)
    start: int  # array index of the first of these frames
    words: str | None = None
    said: Said | None = None
    measured: Measured | None = None

    @property
    def frames(self) -> list[int]:
        """What is drawn: the slice that is asked about, the frames with a box, true ones before a model's, or
        the middle of the volume."""
        if self.image is None:
            return []
        stored = range(self.start, self.start + len(self.image))
        if self.record.frame is not None and self.record.frame in stored:
            return [self.record.frame]
        true = {box.frame for box in self.record.boxes if box.frame in stored}
        others = {box.frame for box in (self.said.boxes if self.said else ()) if box.frame in stored} - true
        chosen = [*sorted(true), *sorted(others)][:_MOST_FRAMES]
        return sorted(chosen) or [stored[len(stored) // 2]]


def find(release: str | Path, wanted: Collection[str] = ()) -> Looked:
    """The first question of those; of all, the first whose finding is to be located."""
    folder = release_folder(release)
    manifest = read_qa_manifest(folder)
    for split in (s for s in SPLITS if manifest.of("qa", s)):
        source = QaSource(
            folder, "qa", split, Choosing(tasks=None if wanted else frozenset({"localization"}))
        )
        for entry in source.entries:
            for id_ in (q for q in entry.questions if not wanted or q in wanted):
                record = record_of(source.open(entry).quintuple(id_), id_)
                return Looked(record, *_pixels(folder, record))
    what = f"no question {shown(next(iter(wanted)), 80)!r}" if wanted else "nothing to locate"
    hint = "ids stand in the column `id` of `qa`: name one with --id"
    raise UsageError("Z070", f"{what} in {release}", hint)


def _pixels(folder: Path, record: Record) -> tuple[np.ndarray | None, int]:
    manifest = read_qa_manifest(folder)
    for config in _WITH_PIXELS:
        if not manifest.of(config, record.split):
            continue
        source = QaSource(folder, config, record.split, Choosing())
        for entry in source.entries:
            if entry.volume_id == record.volume_id and record.id in entry.questions:
                row = source.open(entry).quintuple(record.id)
                return row["image"], row["start"]
    return None, 0


def judged(looked: Looked, words: dict[str, str], drawn: Drawn, qwen: QwenUnit) -> Looked:
    """With a model's words, what is read of them and what that is worth, as `score` does it."""
    record, image = looked.record, looked.image
    if record.id not in words:
        raise UsageError("Z071", f"the predictions have no line of {record.id}", "leave --predictions out")
    shape = image.shape[1:] if image is not None else record.shape[1:] if record.shape else None
    size = Image(*shape) if shape else None
    made = score({record.id: words[record.id]}, [record], Scoring(0, qwen=qwen), "", lambda _: size, drawn)
    return Looked(record, image, looked.start, words[record.id], made.said[0], made.measured[0])


def told(looked: Looked) -> Iterator[str]:
    """Lines of words: what is asked, what is right, what the model said and what was read of it."""
    record = looked.record
    yield record.id
    place = f"frame {record.frame}" if record.level == "slice" else "all frames"
    yield f"{record.anatomy}, {record.split}, {record.level}, {record.task}: {place} of {record.volume_id}"
    yield f"question   {record.question}"
    yield f"answer     {record.answer.text}"
    for finding in record.findings:
        yield f"finding    {finding.label}: {_listed(finding.boxes)}"
    for step in record.reasoning:
        yield f"reasoning  {step}"
    if looked.said is None or looked.measured is None:
        return
    said, measured = looked.said, looked.measured
    yield f"model      {' '.join((looked.words or '(no text)').split())}"
    for name, value in what_is_read(said).items():
        yield f"read       {name}: {value}"
    yield f"read       boxes: {_listed(said.boxes)}"
    for problem in said.problems:
        yield f"problem    {problem}"
    known = ", ".join(f"{name} {value:.3f}" for name, value in numbers_of(measured).items())
    yield f"score      {measured.status}: {known}"


def what_is_read(said: Said) -> dict[str, Any]:
    """What a text answers, by name; what it does not answer is left out."""
    read = {"yes": said.yes, "count": said.count, "letters": ", ".join(said.letters) or None}
    return {name: value for name, value in read.items() if value is not None}


def numbers_of(measured: Measured) -> dict[str, float]:
    """The measures that an answer has, by name."""
    numbers = {"A": measured.a, "V": measured.v, "BLEU": measured.bleu, "ROUGE-L": measured.rouge}
    numbers |= {f"F1 at {t:g}": measured.f1(i) for i, t in enumerate(THRESHOLDS)}
    return {name: float(value) for name, value in numbers.items() if not np.isnan(value)}


def _listed(boxes: Any) -> str:
    texts = [f"frame {b.frame} rows {b.y0}-{b.y1} columns {b.x0}-{b.x1}" for b in boxes]
    return "; ".join(texts) or "none"


def draw(looked: Looked) -> Any:
    """The frames with their boxes, as a figure."""
    if looked.image is None:
        hint = "build the release with --images, which are your own fastMRI files"
        raise UsageError("Z072", "the release has no pixels of this question", hint)
    frames = looked.frames
    across = min(_ACROSS, len(frames))
    down = -(-len(frames) // across)
    _, high, wide = looked.image.shape
    figure = dark_figure(max(4.0 * across, 6.0), 4.0 * down * high / wide + 0.8)
    table = figure.subplots(down, across, squeeze=False).ravel()
    for axes in table:
        axes.set_axis_off()
    for axes, frame in zip(table, frames, strict=False):
        pixels = looked.image[frame - looked.start]
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, extent=(0, wide, high, 0), interpolation="nearest")
        _add_boxes(axes, frame, looked.record.boxes, TRUTH, "solid")
        _add_boxes(axes, frame, looked.said.boxes if looked.said else [], MODEL, "dashed")
        axes.set_title(f"frame {frame}", fontsize=9, color=INK)
    labels = ", ".join(f.label for f in looked.record.findings) or "no finding"
    legend = "truth solid blue" + (", model dashed orange" if looked.said else "")
    title = f"{looked.record.task}: {labels}\n{legend}"
    figure.suptitle(title, fontsize=11, color=INK)
    return figure


def _add_boxes(axes: Any, frame: int, boxes: list[FrameBox], colour: str, line: str) -> None:
    from matplotlib.patches import Rectangle

    for box in (b for b in boxes if b.frame == frame):
        wide, high = box.x1 - box.x0, box.y1 - box.y0
        axes.add_patch(
            Rectangle(
                (box.x0, box.y0), wide, high, fill=False, edgecolor=colour, linestyle=line, linewidth=1.5
            )
        )


def look(
    release: str | Path,
    id_: str = "",
    predictions: Path | None = None,
    out: Path | None = None,
    qwen: str = "pixels",
) -> Iterator[str]:
    """Lines about a question; its picture is written to `out`."""
    words, drawn = read_predictions(predictions) if predictions else ({}, {})
    looked = find(release, [id_] if id_ else words)
    if predictions:
        looked = judged(looked, words, drawn, qwen_unit(qwen))
    yield from (shown(line, _LONGEST) for line in told(looked))
    if out:
        figure = draw(looked)
        out.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(out, dpi=100)
        yield f"picture: {out}"
