"""How a model is asked a question of SGMRI-VQA, and what it is taught to say: our own words, since those of
the paper are not public. Boxes are told in the convention that the model was trained in:

    paper       "bbox": [left, top, width, height] in pixels of the frames, as the paper's targets
    pixels      "bbox_2d": [x1, y1, x2, y2] in pixels of the frames (Qwen2.5-VL)
    thousand    "bbox_2d": [x1, y1, x2, y2] in thousandths of the frame (Qwen2-VL, Qwen3-VL)
    gemini      "box_2d": [y1, x1, y2, x2] in thousandths of the frame

`answers` reads all of them; only the unit of `bbox_2d` has to be said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from reasonknee.errors import UsageError
from reasonknee.sgmri.answers import QwenUnit
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.records import Record

SYSTEM = "You are a radiologist who reads MRI of the knee and the brain, frame by frame."
_KINDS = {
    "yes_no": '"Yes" or "No"',
    "count": "a whole number",
    "single_choice": "the letter of the right choice",
    "multiple_choice": "the letters of all right choices",
    "text": "your answer in words",
}


@dataclass(frozen=True)
class Form:
    """How a frame box is told: the key, its numbers, and of what they are fractions."""

    key: str
    order: tuple[str, str, str, str]
    thousandths: bool

    @property
    def unit(self) -> QwenUnit:
        """What the numbers of `bbox_2d` are, for the reader."""
        return "thousandths" if self.thousandths and self.key == "bbox_2d" else "pixels"

    def numbers(self, box: FrameBox, stored: tuple[int, int], shown: tuple[int, int]) -> list[int]:
        """A box of the stored image as numbers of the frame that is shown."""
        high, wide = (1000, 1000) if self.thousandths else shown
        edges = {
            "y1": round(box.y0 * high / stored[0]),
            "y2": round(box.y1 * high / stored[0]),
            "x1": round(box.x0 * wide / stored[1]),
            "x2": round(box.x1 * wide / stored[1]),
        }
        edges |= {"left": edges["x1"], "top": edges["y1"]}
        edges |= {"width": max(1, edges["x2"] - edges["x1"]), "height": max(1, edges["y2"] - edges["y1"])}
        return [edges[name] for name in self.order]


FORMS = {
    "paper": Form("bbox", ("left", "top", "width", "height"), False),
    "pixels": Form("bbox_2d", ("x1", "y1", "x2", "y2"), False),
    "thousand": Form("bbox_2d", ("x1", "y1", "x2", "y2"), True),
    "gemini": Form("box_2d", ("y1", "x1", "y2", "x2"), True),
}


def form_named(name: str) -> Form:
    if name not in FORMS:
        raise UsageError("Z060", f"unknown form of frame boxes {name!r}", f"choose one of {', '.join(FORMS)}")
    return FORMS[name]


def asked(record: Record, numbers: list[int], frame: tuple[int, int] | None, form: Form) -> str:
    """The question with what is shown, `numbers` being those of the frames in the words of the record. A
    `frame` of None shows nothing."""
    sequence = f", {record.sequence}" if record.sequence else ""
    if frame is None:
        told = f"The images are not shown. They are of a {record.anatomy} MRI{sequence}."
    else:
        many = "s" if len(numbers) > 1 else ""
        told = (
            f"You see {len(numbers)} frame{many} of a {record.anatomy} MRI{sequence}, "
            f"{frame[0]} x {frame[1]} pixels (height x width), with the number{many} {_numbers(numbers)}."
        )
    unit = "thousandths of the frame" if form.thousandths else "pixels of the frame"
    numbers_told = ", ".join(form.order)
    boxes = f'"bboxes": [{{"frame": <number>, "label": "<finding>", "{form.key}": [{numbers_told}]}}]'
    return (
        f"{told}\n\n{record.question}\n\nReason step by step. End with one JSON object: "
        f'{{"answer": <{_KINDS[record.answer.kind]}>, {boxes}}}. Boxes show what supports the answer, in '
        f"{unit}, x from the left and y from the top; the list is empty where nothing does."
    )


def taught(
    record: Record, stored: tuple[int, int], shown: tuple[int, int], form: Form, reasoning: bool
) -> str:
    """The right answer in the form that is asked for, with a box on every frame that shows a finding, on
    volumes too."""
    answer = record.answer
    said: dict[str, Any] = {"answer": ", ".join(answer.letters) or answer.text}
    if answer.kind == "count":
        said["answer"] = str(answer.count)
    said["bboxes"] = [
        {"frame": b.frame + record.first_frame, "label": f.label, form.key: form.numbers(b, stored, shown)}
        for f in record.findings
        for b in f.boxes
    ]
    steps = "\n".join(record.reasoning) + "\n" if reasoning and record.reasoning else ""
    return steps + json.dumps(said)


def _numbers(numbers: list[int]) -> str:
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
