"""The published questions of SGMRI-VQA, from a copy of its repository:
`{brain,knee}/{train,test}/{image_qa,volume_qa}/*.json`.

What is odd is handled in one way and counted by code:

    Z201 a choice list stands in the question's text       Z202 boxes stand in the text alone
    Z203 a box that leaves no area, or leaves the image    Z204 an answer that is not of its type: kept as
    text Z205 a path from another machine is left out           Z206 a question without text or answer is left
    out Z207 two questions on one place with the same text: both stay

*Frames.* A published brain frame is the table's slice + 1, a knee frame the slice itself. Slices count from
0, so the array index is frame - 1 for the brain and the frame itself for the knee. The published knee
pictures were numbered from 1, so each shows the slice before the one that its boxes belong to; here box and
image agree.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reasonknee.errors import DataError
from reasonknee.layout.sgmri import ANATOMIES, SPLITS, TASKS
from reasonknee.layout.strict_text import json_items
from reasonknee.sgmri.frames import FrameBox
from reasonknee.sgmri.records import Answer, Finding, Kind, Record, record_id

FIRST_FRAME = {"knee": 0, "brain": 1}
_LEVELS = {"image_qa": "slice", "volume_qa": "volume"}
_CHOICE = re.compile(r"(?:^|[\s(])([A-F])[).:]\s*(.+?)(?=(?:[\s,;(]+[A-F][).:]\s)|\s*$)", re.S)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_FRAME = re.compile(r"[Ff]rames?\s+([0-9]{1,3})(?:\s*(?:-|–|to)\s*([0-9]{1,3}))?")
_BOX = re.compile(r"(?:<bbx>\s*)?\[\s*(-?[0-9.]+)\s*,\s*(-?[0-9.]+)\s*,\s*(-?[0-9.]+)\s*,\s*(-?[0-9.]+)\s*\]")
_SIDE = 640  # no reconstruction is larger
_LETTERS = re.compile(r"(?<![A-Za-z])([A-F])(?![A-Za-z])")


def read_published(folder: Path, counts: Counter[str]) -> Iterator[Record]:
    """Every question below the folder, in the order of the files."""
    if not any(folder.glob("*/*/*_qa/*.json")):
        hint = "a copy of the repository has knee/test/image_qa/*.json and so on"
        raise DataError("Z006", f"no published question below {folder.name}", hint)
    for anatomy in ANATOMIES:
        for split in SPLITS:
            for name, level in _LEVELS.items():
                for path in sorted((folder / anatomy / split / name).glob("*.json")):
                    yield from _of_file(path, anatomy, split, level, counts)


def _of_file(path: Path, anatomy: str, split: str, level: str, counts: Counter[str]) -> Iterator[Record]:
    asked: Counter[tuple[object, ...]] = Counter()
    for number, item in json_items(path):
        where = f"{path.parent.name}/{path.name}, item {number}"
        if not item.get("question") or item.get("answer") in (None, ""):
            counts["Z206"] += 1
            continue
        if item.get("task") not in TASKS[level]:
            hint = f"{level}s have {', '.join(TASKS[level])}"
            raise DataError("Z007", f"{where}: task {str(item.get('task'))[:40]!r}", hint)
        place = (item.get("volume_id"), item.get("slice_num"), item["question"])
        asked[place] += 1
        counts["Z207"] += asked[place] > 1
        counts["Z205"] += str(item.get("image_path", "")).startswith("/")
        yield _record(item, anatomy, split, level, path.stem, number - 1, where, counts)


def _record(
    item: dict[str, Any],
    anatomy: str,
    split: str,
    level: str,
    file: str,
    position: int,
    where: str,
    counts: Counter[str],
) -> Record:
    volume = Path(str(item.get("volume_id", ""))).name.removesuffix(".h5")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,80}", volume):
        raise DataError("Z008", f"{where}: volume_id {volume[:60]!r}", "a file name is wanted")
    frame = _index(item.get("slice_num"), anatomy, where) if level == "slice" else None
    choices = _choices(item, counts)
    return Record(
        id=record_id(anatomy, split, level, file, position, volume),
        anatomy=anatomy,
        split=split,
        level=level,
        task=item["task"],
        source="published",
        volume_id=volume,
        sequence=str(item["modality"]) if item.get("modality") else None,
        frame=frame,
        first_frame=FIRST_FRAME[anatomy],
        question=str(item["question"]),
        answer=_answer(item, choices, counts),
        choices=choices,
        findings=_findings(item, anatomy, frame, counts),
        reasoning=_steps(item.get("reasoning")),
    )


def _index(number: Any, anatomy: str, where: str) -> int:
    if type(number) is not int or not FIRST_FRAME[anatomy] <= number < 512:
        raise DataError("Z009", f"{where}: slice_num {str(number)[:20]!r}", "an integer is wanted")
    return number - FIRST_FRAME[anatomy]


def _steps(reasoning: Any) -> tuple[str, ...]:
    if isinstance(reasoning, list):
        return tuple(map(str, reasoning))
    return (str(reasoning),) if reasoning else ()


def _choices(item: dict[str, Any], counts: Counter[str]) -> dict[str, str]:
    given = item.get("choices")
    if isinstance(given, dict) and given:
        return {str(key).strip()[:1].upper(): str(text) for key, text in given.items()}
    if isinstance(given, list) and given:
        texts = [re.sub(r"^\(?[A-F][).:]\s*", "", str(text)) for text in given]
        return dict(zip("ABCDEF", texts, strict=False))
    if item.get("type") not in ("single_choice", "multiple_choice"):
        return {}
    in_text = {letter: text.strip(" ,;()") for letter, text in _CHOICE.findall(str(item["question"]))}
    counts["Z201"] += bool(in_text)
    return in_text


def _answer(item: dict[str, Any], choices: dict[str, str], counts: Counter[str]) -> Answer:
    text, kind = str(item["answer"]).strip(), str(item.get("type"))
    if kind == "closed_ended" and text.lower().rstrip(".") in ("yes", "no"):
        return Answer("yes_no", text, yes=text.lower().startswith("yes"))
    if item["task"] == "counting" and _NUMBER.fullmatch(text.rstrip(".")):
        return Answer("count", text, count=int(float(text.rstrip("."))))
    if kind in ("single_choice", "multiple_choice") and choices:
        letters = tuple(dict.fromkeys(x for x in _LETTERS.findall(text) if x in choices))
        by_text = tuple(k for k, words in choices.items() if words.lower() == text.lower())
        right: Kind = "single_choice" if kind == "single_choice" else "multiple_choice"
        if by_text or letters:
            return Answer(right, text, letters=by_text or letters)
    counts["Z204"] += kind != "open_ended" or item["task"] == "counting"
    return Answer("text", text)


def _findings(
    item: dict[str, Any], anatomy: str, frame: int | None, counts: Counter[str]
) -> tuple[Finding, ...]:
    """Structured boxes where there are any, else those that the text names."""
    by_label: dict[str, list[FrameBox]] = {}
    given = item.get("ground_truth")
    truth: dict[str, Any] = given if isinstance(given, dict) else {}
    boxes = truth.get("bboxes") or ()
    for raw in boxes if isinstance(boxes, list) else ():
        numbers = [raw.get(k) for k in ("x", "y", "width", "height")] if isinstance(raw, dict) else []
        if len(numbers) == 4 and all(type(n) in (int, float) for n in numbers) and frame is not None:
            _add(by_label, str(raw.get("label", "")).strip(), frame, numbers, counts)
    if not by_label and item["task"] == "localization":
        for index, stated in _in_text(f"{item['answer']}", anatomy, frame):
            counts["Z202"] += 1
            _add(by_label, "", index, stated, counts)
    label = str(truth.get("final_diagnosis") or truth.get("diagnosis") or "")
    return tuple(Finding(name or label, tuple(sorted(boxes))) for name, boxes in sorted(by_label.items()))


def _add(
    by_label: dict[str, list[FrameBox]], label: str, frame: int, numbers: list[Any], counts: Counter[str]
) -> None:
    x, y, width, height = (round(n) for n in numbers)
    whole = FrameBox.from_xywh(frame, x, y, width, height)
    box = whole.clipped(_SIDE, _SIDE)
    counts["Z203"] += box != whole or not box.area
    if box.area and frame >= 0:
        by_label.setdefault(label, []).append(box)


def _in_text(text: str, anatomy: str, frame: int | None) -> Iterator[tuple[int, list[float]]]:
    """Boxes of a text with the frames that the words before them name: `Frame 21: <bbx>[...]</bbx>`, brackets
    alone, and ranges, whose frames all get the box."""
    named = [(m.start(), int(m[1]), int(m[2] or m[1])) for m in _FRAME.finditer(text)]
    for match in _BOX.finditer(text):
        before = [(first, last) for at, first, last in named if at < match.start()]
        numbers = [float(n) for n in match.groups()]
        if before:
            first, last = before[-1]
            for number in range(first, min(last, first + 511) + 1):
                yield number - FIRST_FRAME[anatomy], numbers
        elif frame is not None:
            yield frame, numbers
