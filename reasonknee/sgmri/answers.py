"""A model's words as an answer to a question of SGMRI-VQA. Nothing is guessed: what can be read in two ways
is not read, and says so.

Read are, in this order: the last JSON object with `answer` or boxes; else the words after the thinking,
inside an `<answer>` tag where there is one. Boxes:

    "bbox": [x, y, width, height], <bbx>[x, y, width, height]</bbx>, [x, y, width, height]   pixels of the
    image "bbox_2d": [x1, y1, x2, y2], <|box_start|>(x1,y1),(x2,y2)<|box_end|>                      Qwen; see
    `qwen` "box_2d": [y1, x1, y2, x2]                                                             Gemini,
    thousandths

`qwen` says what Qwen's numbers are: "pixels" of the image (Qwen2.5-VL on images that were not resized) or
"thousandths" (Qwen2-VL, Qwen3-VL). Frames carry the numbers that the question's texts use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

from reasonknee.answers.text import LONGEST, Pairs, json_values, tagged_answer, thinking_end
from reasonknee.errors import UsageError
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.records import Record

QwenUnit = Literal["pixels", "thousandths"]
MOST_BOXES = 512


def qwen_unit(name: str) -> QwenUnit:
    """What a user calls the unit of Qwen's boxes."""
    if name not in get_args(QwenUnit):
        raise UsageError("Z018", f"Qwen's boxes in {name!r}", "pixels or thousandths")
    return cast(QwenUnit, name)


_YES_NO = re.compile(r"(?<![a-z])(yes|no)(?![a-z])")
_DENIED = re.compile(r"(?<![a-z])(no|not|without|neither|nor)(?![a-z])")
_NUMBER = re.compile(r"(?<![\w.,-])([0-9]{1,4})(?!\w|\s?%|[.,][0-9])")
_STATED = re.compile(r"(?:answer|count|total)\s*(?:is|:|=)\s*\**\s*([0-9]{1,4})(?!\w|\s?%|[.,][0-9])")
_LETTER = re.compile(r"(?<![A-Za-z])\(?([A-F])(?:[).:]|(?=\s*(?:[,;&]|and\b|or\b|$)))")
_PLAIN = re.compile(
    r"(?:<bbx>\s*)?\[\s*(-?[0-9]{1,5}(?:\.[0-9]{1,4})?)\s*,\s*(-?[0-9]{1,5}(?:\.[0-9]{1,4})?)\s*,"
    r"\s*(-?[0-9]{1,5}(?:\.[0-9]{1,4})?)\s*,\s*(-?[0-9]{1,5}(?:\.[0-9]{1,4})?)\s*\]"
)
_QWEN = re.compile(
    r"<\|box_start\|>\(([0-9]{1,5}),\s?([0-9]{1,5})\),\s?\(([0-9]{1,5}),\s?([0-9]{1,5})\)<\|box_end\|>"
)
_FRAME = re.compile(r"(?<![a-z])(?:frame|slice)s?\s{0,4}#?\s{0,4}([0-9]{1,3})(?![0-9])")


@dataclass
class Said:
    """What a text answers. A field that it does not answer, or answers in two ways, is None or empty;
    `problems` says what was odd."""

    yes: bool | None = None
    count: int | None = None
    letters: tuple[str, ...] = ()
    text: str = ""
    boxes: list[FrameBox] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Image:
    """Size of the image that the boxes are on, which thousandths need."""

    height: int
    width: int
    shown: tuple[int, int] | None = None  # of the frames that a model saw, where they were resized


def read(record: Record, text: str, image: Image | None = None, qwen: QwenUnit = "pixels") -> Said:
    """What `text` answers to the record's question. Never raises on any text."""
    said = Said()
    tail = text[-LONGEST:]
    end, open_ended = thinking_end(tail)
    if open_ended:
        said.problems.append("the thinking has no end")
        return said
    tail = tail[end:]
    tagged = tagged_answer(tail)
    if tagged:
        tail = tail[tagged[0] : tagged[1]]
    reader = _Boxes(record, image, qwen, said.problems)
    structured = _structured(tail)
    if structured is not None:
        answer = structured.get("answer", structured.get("final_answer"))
        said.text = answer if isinstance(answer, str) else "" if answer is None else str(answer)
        said.boxes = reader.of_json(structured)
        if not said.boxes and "bboxes" not in structured:
            said.boxes = reader.of_text(said.text)
    else:
        said.text = tail.strip()
        said.boxes = reader.of_text(tail)
    _read_kind(record, said)
    return said


def _structured(text: str) -> dict[str, Any] | None:
    """The last JSON object that answers, its keys in lower case; a key that stands twice keeps its last
    value."""
    for value in reversed(json_values(text)):
        plain = _plain(value.value)
        if isinstance(plain, dict) and {"answer", "final_answer", "bboxes", "bbox_2d", "box_2d"} & set(plain):
            return plain
        if isinstance(plain, list) and plain and all(isinstance(item, dict) for item in plain):
            return {"bboxes": plain}
    return None


def _plain(value: Any, depth: int = 8) -> Any:
    if isinstance(value, Pairs):
        return {str(key).lower(): _plain(item, depth - 1) if depth else None for key, item in value}
    if isinstance(value, list):
        return [_plain(item, depth - 1) if depth else None for item in value]
    return value


def _read_kind(record: Record, said: Said) -> None:
    match record.answer.kind:
        case "yes_no":
            said.yes = _yes(said)
        case "count":
            said.count = _count(said)
        case "single_choice" | "multiple_choice":
            said.letters = _letters(record, said)


def _yes(said: Said) -> bool | None:
    words = _YES_NO.findall(said.text.lower())
    if not words:
        return None
    first = re.match(r"[\s*\"'(]*(yes|no)\b", said.text.lower())
    if first:
        return first[1] == "yes"
    if len(set(words)) > 1:
        said.problems.append("it says both yes and no")
        return None
    return bool(words[0] == "yes")


def _count(said: Said) -> int | None:
    text = said.text.lower().strip()
    stated = _STATED.findall(text)
    numbers = stated or _NUMBER.findall(text)
    if len(set(numbers)) != 1:
        if numbers:
            said.problems.append(f"it states {len(set(numbers))} numbers")
        return None
    return int(numbers[0])


def _letters(record: Record, said: Said) -> tuple[str, ...]:
    """Letters in a place where a choice is named; the words of a choice, where no letter is."""
    text = said.text.strip()
    final = re.split(r"(?i)\banswers?\b\s*(?:is|are|:)\s*", text)[-1] if len(text) > 1 else text
    letters = [x for x in dict.fromkeys(_LETTER.findall(final)) if x in record.choices]
    if not letters and re.fullmatch(r"[A-F]{2,6}", final.strip(" .")):
        letters = [x for x in final.strip(" .") if x in record.choices]
    if not letters:
        letters = _by_words(record, text.lower(), said)
    if record.answer.kind == "single_choice" and len(letters) > 1:
        said.problems.append(f"it names {len(letters)} choices where one is asked for")
        return ()
    return tuple(letters)


def _by_words(record: Record, text: str, said: Said) -> list[str]:
    """Choices whose words a text has. The longest go first and are taken out: an extra-axial mass is not also
    a mass. A text that says no to something is not read: nothing tells to what."""
    by_length = sorted(record.choices, key=lambda letter: -len(record.choices[letter]))
    named = set()
    for letter in by_length:
        words = record.choices[letter].lower()
        if words and words in text:
            named.add(letter)
            text = text.replace(words, "|")
    if named and _DENIED.search(text):
        said.problems.append("it names a choice and says no to something")
        return []
    return [letter for letter in record.choices if letter in named]


class _Boxes:
    """Boxes in the forms that models use, as frame boxes of the stored image."""

    def __init__(self, record: Record, image: Image | None, qwen: QwenUnit, problems: list[str]) -> None:
        self.record, self.image, self.qwen, self.problems = record, image, qwen, problems

    def of_json(self, value: dict[str, Any]) -> list[FrameBox]:
        listed = value.get("bboxes", value.get("boxes"))
        items = listed if isinstance(listed, list) else [value]
        boxes: list[FrameBox] = []
        for item in items[:MOST_BOXES]:
            if isinstance(item, list):
                item = {"bbox": item}
            if not isinstance(item, dict):
                continue
            for name, form in (("bbox", "xywh"), ("bbox_2d", "qwen"), ("box_2d", "gemini")):
                numbers = item.get(name)
                if isinstance(numbers, list) and len(numbers) == 4 and all(_is_number(n) for n in numbers):
                    boxes += self._box(item.get("frame"), [float(n) for n in numbers], form)
        return boxes

    def of_text(self, text: str) -> list[FrameBox]:
        lower = text.lower()
        named = [(match.start(), int(match[1])) for match in _FRAME.finditer(lower)]
        boxes: list[FrameBox] = []
        for form, pattern, source in (("xywh", _PLAIN, text), ("qwen", _QWEN, text)):
            for match in pattern.finditer(source):
                frame = next((number for at, number in reversed(named) if at < match.start()), None)
                boxes += self._box(frame, [float(n) for n in match.groups()], form)
                if len(boxes) >= MOST_BOXES:
                    self.problems.append(f"more than {MOST_BOXES} boxes: the rest is not read")
                    return boxes
        return boxes

    def _box(self, frame: Any, numbers: list[float], form: str) -> Iterator[FrameBox]:
        index = self._index(frame)
        if index is None:
            return
        a, b, c, d = numbers
        if self.image and self.image.shown and form != "gemini" and self.unit_of(form) == "pixels":
            high, wide = self.image.height / self.image.shown[0], self.image.width / self.image.shown[1]
            a, b, c, d = a * wide, b * high, c * wide, d * high
        if form == "gemini" or (form == "qwen" and self.qwen == "thousandths"):
            if self.image is None:
                self.problems.append("thousandths, and the size of the image is not known")
                return
            high, wide = self.image.height / 1000, self.image.width / 1000
            a, b, c, d = (
                (a * high, b * wide, c * high, d * wide)
                if form == "gemini"
                else (a * wide, b * high, c * wide, d * high)
            )
        if form == "xywh":
            box = FrameBox(index, round(b), round(b + d), round(a), round(a + c))
        elif form == "qwen":
            box = FrameBox(index, round(b), round(d), round(a), round(c))
        else:
            box = FrameBox(index, round(a), round(c), round(b), round(d))
        if box.y1 <= box.y0 or box.x1 <= box.x0:
            self.problems.append("a box without area")
            return
        yield box

    def unit_of(self, form: str) -> QwenUnit:
        return self.qwen if form == "qwen" else "pixels"

    def _index(self, frame: Any) -> int | None:
        """The array index of a frame; that of a slice's question is known, whatever a model calls it."""
        if self.record.level == "slice":
            return self.record.frame
        if type(frame) is not int or not 0 <= frame - self.record.first_frame < 1000:
            self.problems.append("a box on a volume without a frame")
            return None
        return frame - self.record.first_frame


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e5
