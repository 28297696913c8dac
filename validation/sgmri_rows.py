"""One question of SGMRI-VQA: its form, its answer against its own record, and its boxes.

What the tables' templates wrote (`derived`) is held to its record word by word; what was published stands as
it is, and only its types are checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from reasonknee.layout.records import Field, Repeated, Struct
from reasonknee.layout.sgmri import TASKS

Row = dict[str, Any]
Boxed = tuple[int, int, int, int, int]  # frame, first and past-the-last row, first and past-the-last column
_STATED = re.compile(r"Frame (\d{1,4}): <bbx>\[(\d{1,4}), (\d{1,4}), (\d{1,4}), (\d{1,4})\]</bbx>", re.ASCII)
_LETTER = re.compile(r"(?:^|; )([A-F])\) ")
_LINK = 0.1  # IoU above which two boxes on neighbouring frames show one thing: docs/sgmri.md
_FIELDS = {  # of an answer, beside its text
    "yes_no": {"yes"},
    "count": {"count"},
    "single_choice": {"letters"},
    "multiple_choice": {"letters"},
    "text": set(),
}


class Wrong(NamedTuple):
    code: str
    told: str


def wrongs(row: Row, fields: tuple[Field, ...]) -> Iterator[Wrong]:
    """All that is wrong with a question. What builds on a broken form is not looked at."""
    broken = [Wrong("X102", told) for told in misformed(row, fields)]
    yield from broken
    if broken:
        return
    yield from (Wrong("X701", told) for told in _form(row))
    yield from (Wrong("X703", told) for told in _id(row))
    yield from (Wrong("X710", told) for told in _boxes(row))
    if row["answer"]["kind"] != "text":
        yield from (Wrong("X702", told) for told in _answer(row))
    if row["source"] == "derived":
        yield from (Wrong("X702", told) for told in _derived(row))
        yield from (Wrong("X704", told) for told in _stated(row))


def misformed(value: Any, fields: tuple[Field, ...], where: str = "") -> Iterator[str]:
    """Nulls where a value is wanted, and values that a field does not know."""
    for field in fields:
        name, inner = f"{where}{field.name}", value.get(field.name)
        if inner is None:
            if not field.nullable:
                yield f"{name} is null"
        elif field.choices and inner not in field.choices:
            yield f"{name} is {str(inner)[:40]!r}"
        elif isinstance(field.type, Struct):
            yield from misformed(inner, field.type.fields, f"{name}.")
        elif isinstance(field.type, Repeated):
            if any(item is None for item in inner):
                yield f"{name} holds a null"
            elif isinstance(field.type.of, Struct):
                for item in inner:
                    yield from misformed(item, field.type.of.fields, f"{name}.")


def boxes_of(row: Row) -> list[Boxed]:
    """The boxes of all findings, in order."""
    names = ("frame", "y0", "y1", "x0", "x1")
    return sorted(tuple(box[n] for n in names) for f in row["findings"] for box in f["boxes"])


def _form(row: Row) -> Iterator[str]:
    if row["task"] not in TASKS[row["level"]]:
        yield f"task {row['task']} on a {row['level']}"
    if (row["frame"] is None) == (row["level"] == "slice"):
        yield f"level {row['level']}, frame {row['frame']}"
    shape = row["shape"]
    if shape and min(shape.values()) < 1:
        yield f"shape {tuple(shape.values())}"
    if row["frame"] is not None and not 0 <= row["frame"] < (shape["frames"] if shape else 1 << 12):
        yield f"frame {row['frame']} of {shape['frames'] if shape else 'so many'}"
    if row["first_frame"] not in (0, 1):
        yield f"frames are counted from {row['first_frame']}"
    letters = [choice["letter"] for choice in row["choices"]]
    if letters != list("ABCDEF")[: len(letters)]:
        yield f"choices {', '.join(letters)[:40]}"
    if not row["question"].strip() or not row["answer"]["text"].strip():
        yield "no question, or no answer"
    answer = row["answer"]
    given = {name for name in ("yes", "count") if answer[name] is not None}
    given |= {"letters"} if answer["letters"] else set()
    if given != _FIELDS[answer["kind"]] or (answer["unit"] is not None and answer["kind"] != "count"):
        yield f"an answer of kind {answer['kind']} with {', '.join(sorted(given)) or 'nothing'}"


def _id(row: Row) -> Iterator[str]:
    start = f"{row['anatomy']}-{row['split']}-{row['level']}-"
    form = rf"{re.escape(start)}[\w. -]{{1,80}}-[0-9]{{5}}-{re.escape(row['volume_id'])}"
    if not re.fullmatch(form, row["id"]):
        yield f"{row['id'][:80]} of {start}{row['volume_id'][:60]}"


def _boxes(row: Row) -> Iterator[str]:
    shape = row["shape"] or {"frames": 1 << 12, "height": 1 << 12, "width": 1 << 12}
    for z, y0, y1, x0, x1 in boxes_of(row):
        inside = 0 <= y0 < y1 <= shape["height"] and 0 <= x0 < x1 <= shape["width"]
        if not inside or not 0 <= z < shape["frames"]:
            yield f"frame {z}, rows {y0} to {y1}, columns {x0} to {x1} of {tuple(shape.values())}"
        elif row["frame"] is not None and z != row["frame"]:
            yield f"a box on frame {z}, the question is about frame {row['frame']}"


def _answer(row: Row) -> Iterator[str]:
    answer, text = row["answer"], row["answer"]["text"].strip()
    match answer["kind"]:
        case "yes_no":
            if answer["yes"] not in (0, 1) or text.lower().startswith("yes") != bool(answer["yes"]):
                yield f"{text[:40]!r} and yes = {answer['yes']}"
        case "count":
            if (answer["count"] or 0) < 0 or not re.match(rf"{answer['count']}(?![0-9])", text):
                yield f"{text[:40]!r} and count = {answer['count']}"
        case kind:
            known = {choice["letter"] for choice in row["choices"]}
            letters = answer["letters"]
            if not set(letters) <= known or len(set(letters)) < len(letters):
                yield f"letters {', '.join(letters)[:40]} of {', '.join(sorted(known))[:40]}"
            if kind == "single_choice" and len(letters) > 1:
                yield f"{len(letters)} letters for a single choice"


def _derived(row: Row) -> Iterator[str]:
    """Findings and answer say the same."""
    answer, boxes = row["answer"], boxes_of(row)
    match answer["kind"]:
        case "yes_no":
            if bool(answer["yes"]) != bool(boxes):
                yield f"{answer['text'][:20]!r}, and {len(boxes)} boxes"
        case "count":
            wanted = {"frames": len({z for z, *_ in boxes}), "lesions": _things(boxes)}.get(answer["unit"])
            if answer["count"] != wanted:
                yield f"{answer['count']} {answer['unit']}, the boxes show {wanted}"
        case "single_choice" | "multiple_choice":
            if _LETTER.findall(answer["text"]) != answer["letters"]:
                yield f"{answer['text'][:40]!r} and letters {', '.join(answer['letters'])[:40]}"
            if len({f["label"] for f in row["findings"]}) != len(answer["letters"]):
                yield f"{len(answer['letters'])} letters for {len(row['findings'])} findings"
    if not row["reasoning"] or not row["reasoning"][-1].endswith(answer["text"]):
        yield "the reasoning ends with another answer"


def _stated(row: Row) -> Iterator[str]:
    boxes, first = boxes_of(row), row["first_frame"]
    if row["task"] == "localization" and _in(row["answer"]["text"], first) != boxes:
        yield "the answer states other boxes than the findings have"
    if _in(" ".join(row["reasoning"][:-1]), first) != boxes:
        yield "the reasoning states other boxes than the findings have"


def _in(text: str, first: int) -> list[Boxed]:
    """The boxes that a text states, from left, top, width and height."""
    found = [tuple(map(int, m.groups())) for m in _STATED.finditer(text)]
    return sorted((z - first, y, y + h, x, x + w) for z, x, y, w, h in found)


def _things(boxes: list[Boxed]) -> int:
    """How many things boxes show, where those on neighbouring frames that overlap are one."""
    left, count = set(range(len(boxes))), 0
    while left:
        count += 1
        wave = [left.pop()]
        while wave:
            at = boxes[wave.pop()]
            linked = [i for i in left if abs(boxes[i][0] - at[0]) == 1 and _overlap(boxes[i], at) > _LINK]
            left -= set(linked)
            wave += linked
    return count


def _overlap(a: Boxed, b: Boxed) -> float:
    height, width = min(a[2], b[2]) - max(a[1], b[1]), min(a[4], b[4]) - max(a[3], b[3])
    both = max(0, height) * max(0, width)
    return both / ((a[2] - a[1]) * (a[4] - a[3]) + (b[2] - b[1]) * (b[4] - b[3]) - both)
