"""Boxes as models write them: named conventions, each with a reader and a writer. Standard library only.

    canonical   {"z0": .., "z1": .., "y0": .., "y1": .., "x0": .., "x1": ..} or the same six as a list:
                half-open voxels
    upstream    [start_slice, end_slice, x_min, x_max, y_min, y_max] or a dict with those keys: voxels, ends
                inclusive
    frames      [{"frame": z, "bbox": [x0, y0, x1, y1]}, ...]: half-open in x and y, each frame counts; the
                box is their union
    normalised  the canonical list in thousandths of the volume's size; the start is rounded down, the end up
    unit        the same as fractions from 0 to 1
    cuboid      [x1, y1, z1, x2, y2, z2], half-open, perhaps as the text "<|box_start|>[...]<|box_end|>"

Keys that name a convention decide it. Only a plain list of six numbers, which looks the same in most of
them, is read as the caller says. A part of a voxel counts as that voxel.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

from reasonknee.answers.text import Pairs, normal
from reasonknee.boxes import BOX_FIELDS, Box, Shape
from reasonknee.errors import DataError, UsageError

Convention = Literal["canonical", "upstream", "frames", "normalised", "unit", "cuboid"]
CONVENTIONS: tuple[str, ...] = get_args(Convention)
"""The names that `--convention` and `read_box` take."""

# In words and by the same box each, for documents and help. The last two are canonical on another grid: the
# scorer knows the way back (`reasonknee score --convention`).
EXAMPLES: dict[str, tuple[str, str]] = {
    "canonical": (
        "half-open voxels, as an object or the same six as a list",
        '{"z0": 10, "z1": 42, "y0": 80, "y1": 131, "x0": 64, "x1": 120}',
    ),
    "upstream": ("voxels, slices then x then y, ends inclusive", "[10, 41, 64, 119, 80, 130]"),
    "frames": (
        "a 2D box for each slice, x and y half-open; the box is their union",
        '[{"frame": 10, "bbox": [64, 80, 120, 131]}, {"frame": 41, "bbox": [64, 80, 120, 131]}]',
    ),
    "normalised": (
        "the canonical list in thousandths of the volume's size",
        "[63, 262, 209, 341, 167, 312]",
    ),
    "unit": (
        "the canonical list as fractions of the volume's size",
        "[0.063, 0.262, 0.209, 0.341, 0.167, 0.312]",
    ),
    "cuboid": (
        "half-open voxels, one corner then the other",
        "<|box_start|>[64,80,10,120,131,42]<|box_end|>",
    ),
    "resized": (
        "canonical, in the voxels of the volume resized to `--view`, here 32,256,256",
        "[2, 9, 53, 88, 42, 80]",
    ),
    "crop": (
        "canonical, in the voxels of the row's `crop` in the release, here from (8, 76, 60)",
        "[2, 34, 4, 55, 4, 60]",
    ),
}
"""Convention -> what its numbers are, and the same box written in it."""

FULL = 1000  # the volume's far edge in the normalised convention

# In upstream's order. A minimum and a maximum are the outermost voxels themselves, hence inclusive like the
# rest of the family.
_UPSTREAM_FIELDS = ("start_slice", "end_slice", "x_min", "x_max", "y_min", "y_max")
_UPSTREAM_KEYS = tuple(normal(name) for name in _UPSTREAM_FIELDS)
_CUBOID = re.compile(r"<\|box_start\|>\s*\[([^\[\]]{1,120})\]\s*<\|box_end\|>")
_DIGITS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_CANONICAL, _UPSTREAM = frozenset(BOX_FIELDS), frozenset(_UPSTREAM_KEYS)
_SLICE_SPELLINGS = {
    "zmin": "startslice",
    "zmax": "endslice",
    "slicemin": "startslice",
    "slicemax": "endslice",
}
_FRAME_KEYS = frozenset({"frame", "frameindex", "framenumber", "slice", "sliceindex", "slicenumber"})
_BOX_KEYS = frozenset(
    {
        "box",
        "bbox",
        "boundingbox",
        "box3d",
        "bbox3d",
        "3dbox",
        "3dbbox",
        "boundingbox3d",
        "3dboundingbox",
        "bbox2d",
        "box2d",
    }
)
_LIST_KEYS = frozenset({"boxes", "bboxes", "boundingboxes", "frames"})


def check_convention(convention: str) -> None:
    if convention not in CONVENTIONS:
        raise UsageError(
            "W031", f"unknown box convention {convention!r}", f"choose one of {', '.join(CONVENTIONS)}"
        )


def read_box(value: Any, convention: str = "canonical", shape: Shape | None = None) -> Box | None:
    """The box that a JSON value means; None for null.

    A value that is no box, or not one inside `shape`, is a DataError.
    """
    check_convention(convention)
    if value is None:
        return None
    if isinstance(value, str) and (cuboid := _CUBOID.fullmatch(value.strip())):
        value, convention = [n.strip() for n in cuboid[1].split(",")], "cuboid"
    box = (
        _from_fields(_fields(value), convention, shape)
        if isinstance(value, (Pairs, dict))
        else _from_list(value, convention, shape)
    )
    if shape is not None and not box.fits(shape):
        raise DataError("W012", f"the box reaches outside the volume of {'x'.join(map(str, shape))} voxels")
    return box


def write_box(box: Box | None, convention: str = "canonical", shape: Shape | None = None) -> Any:
    """The JSON value of a box in a convention; `read_box` is the way back."""
    check_convention(convention)
    if box is None:
        return None
    if convention == "canonical":
        return box.as_dict()
    if convention == "upstream":
        return box.to_upstream()
    if convention == "frames":
        return [{"frame": z, "bbox": [box.x0, box.y0, box.x1, box.y1]} for z in range(box.z0, box.z1)]
    if convention == "cuboid":
        x, y, z = reversed(box.start)
        return f"<|box_start|>{[x, y, z, *reversed(box.stop)]}<|box_end|>".replace(" ", "")
    numbers: list[int] = []
    for start, stop, size in zip(box.start, box.stop, _needed(shape), strict=True):
        if size > FULL or stop > size:
            raise DataError(
                "W014", f"voxels {start} to {stop} of {size} have no exact place among {FULL} steps"
            )
        # inwards, because the reader rounds outwards: exact as long as a step is no finer than a voxel
        numbers += [-(-start * FULL // size), stop * FULL // size]
    return [n / FULL for n in numbers] if convention == "unit" else numbers


def boxes_in(value: Any) -> Iterator[Any]:
    """Every value inside a JSON value that stands where a box would, null included."""
    if isinstance(value, Pairs):
        keys = {normal(key) for key, _ in value}
        if _is_frame(keys):
            yield [value]
        elif _names_fields(keys):
            yield value
        else:
            for key, item in value:
                if normal(key) in _BOX_KEYS or (normal(key) in _LIST_KEYS and isinstance(item, list)):
                    yield item
                else:
                    yield from boxes_in(item)
    elif isinstance(value, list):
        if _are_frames(value):
            yield value
        else:
            for item in value:
                yield from boxes_in(item)


def is_frame(value: Any) -> bool:
    """Whether a JSON object is the box of one frame."""
    return isinstance(value, Pairs) and _is_frame({normal(key) for key, _ in value})


def _is_frame(keys: set[str]) -> bool:
    return not keys.isdisjoint(_FRAME_KEYS) and not keys.isdisjoint(_BOX_KEYS)


def _names_fields(keys: set[str]) -> bool:
    return len(keys) >= len(_CANONICAL) and (
        keys >= _CANONICAL or {_SLICE_SPELLINGS.get(key, key) for key in keys} >= _UPSTREAM
    )


def _are_frames(value: list[Any]) -> bool:
    return bool(value) and all(
        isinstance(item, (Pairs, dict)) and {normal(k) for k in dict(item)} & _FRAME_KEYS for item in value
    )


def _fields(value: Pairs | dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in value.items() if isinstance(value, dict) else value:
        name = _SLICE_SPELLINGS.get(normal(key), normal(key))
        if name in fields and fields[name] != item:
            raise DataError("W013", f"the box says {ascii(key)[:40]} twice, differently")
        fields[name] = item
    return fields


def _from_fields(fields: dict[str, Any], convention: str, shape: Shape | None) -> Box:
    if fields.keys() >= _CANONICAL:
        return Box(*_whole([fields[name] for name in BOX_FIELDS], _STOPS))
    if fields.keys() >= _UPSTREAM:
        return Box.from_upstream(_whole([fields[name] for name in _UPSTREAM_KEYS]))
    inner = [
        item for name, item in fields.items() if name in _BOX_KEYS | _LIST_KEYS and isinstance(item, list)
    ]
    if len(inner) == 1:  # {"boxes": [...]} inside the box
        return _from_list(inner[0], convention, shape)
    raise DataError("W011", "the keys of the box name no convention")


def _from_list(value: Any, convention: str, shape: Shape | None) -> Box:
    if not isinstance(value, list) or not value:
        raise DataError("W011", "the box is neither an object nor a list of numbers")
    if _are_frames(value):
        return _from_frames(value)
    if len(value) != 6 or convention == "frames":
        raise DataError("W011", f"a list of {len(value)} is no box of the {convention} convention")
    if convention == "canonical":
        return Box(*_whole(value, _STOPS))
    if convention == "upstream":
        return Box.from_upstream(_whole(value))
    if convention == "cuboid":
        x0, y0, z0, x1, y1, z1 = _whole(value, (None, None, None, 0, 1, 2))
        return Box(z0, z1, y0, y1, x0, x1)
    if convention == "unit":
        # rounded, because 0.07 * 1000 is a hair more than 70
        value = [round(n * FULL, 6) if type(n) in (int, float) else n for n in value]
    elif all(type(n) in (int, float) and 0 <= n <= 1 for n in value) and any(n % 1 for n in value):
        raise DataError("W011", "the box holds shares of the volume, not thousandths")
    return _from_normalised(value, _needed(shape))


def _from_frames(frames: list[Any]) -> Box:
    corners: list[list[int]] = []
    for frame in frames:
        fields = _fields(frame)
        number = [item for name, item in fields.items() if name in _FRAME_KEYS]
        inner = [item for name, item in fields.items() if name in _BOX_KEYS]
        if len(number) != 1 or len(inner) != 1 or not isinstance(inner[0], list) or len(inner[0]) != 4:
            raise DataError("W011", "a frame needs its number and one box of four numbers")
        z, x0, y0, x1, y1 = *_whole(number), *_whole(inner[0], (None, None, 0, 1))
        Box(z, z + 1, y0, y1, x0, x1)  # each must be a box, or a good one would hide a bad one
        corners.append([z, z + 1, y0, y1, x0, x1])
    low, high = (
        [min(column) for column in zip(*corners, strict=True)],
        [max(column) for column in zip(*corners, strict=True)],
    )
    return Box(low[0], high[1], low[2], high[3], low[4], high[5])


def _from_normalised(numbers: list[Any], shape: Shape) -> Box:
    if not all(isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        raise DataError("W011", "the box holds something that is not a number")
    if not all(0 <= n <= FULL for n in numbers):
        raise DataError("W012", f"a normalised box lies between 0 and {FULL}")
    bounds: list[int] = []
    for start, stop, size in zip(numbers[0::2], numbers[1::2], shape, strict=True):
        if start > stop:  # rounding outwards could turn a slightly reversed range into a voxel
            raise DataError("B001", "the normalised box is reversed")
        bounds += [math.floor(start * size / FULL), math.ceil(stop * size / FULL)]
    return Box(*bounds)


def _needed(shape: Shape | None) -> Shape:
    if shape is None:
        raise DataError("W014", "a normalised box needs the shape of the volume")
    return shape


# For each number of a box in its order: where the start of the range is that it ends, if it ends one.
_STOPS = (None, 0, None, 2, None, 4)


def _whole(numbers: list[Any], stops: Sequence[int | None] = ()) -> list[int]:
    """Voxels as whole numbers. A part of a voxel counts as that voxel: a start is rounded down and so is an
    end that is inclusive, an end that is exclusive is rounded up."""
    if {*map(type, numbers)} == {int}:
        return numbers
    plain = [_number(n) for n in numbers]
    if all(0 <= n <= 1 for n in plain) and any(n % 1 for n in plain):
        raise DataError("W011", "the box holds shares of the volume, not voxels")
    for i, start in enumerate(stops):
        if start is not None and plain[start] > plain[i]:  # or rounding could make a voxel of it
            raise DataError("B001", "the box is reversed")
    ends = {i for i, start in enumerate(stops) if start is not None}
    return [math.ceil(n) if i in ends else math.floor(n) for i, n in enumerate(plain)]


def _number(n: Any) -> float:
    if isinstance(n, str) and _DIGITS.fullmatch(n):
        n = float(n)
    if isinstance(n, bool) or not isinstance(n, (int, float)) or not math.isfinite(n):
        raise DataError("W011", f"{ascii(n)[:40]} in the box is not a number")
    return n
