"""Rows, looked at before they become tensors: what they hold, where their voxels lie, and whether they
belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reasonknee.boxes import Box, Shape
from reasonknee.errors import DataError, ReasonKneeError, UsageError
from reasonknee.volumes import volume_from_bytes

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sample:
    """A row, looked at: its voxels as a (z, y, x) array if it has any, and where they lie in the full
    volume."""

    row: Row
    crop: Box
    box: Box | None
    array: np.ndarray | None
    mirrored: bool

    @property
    def volume_id(self) -> str:
        return str(self.row["volume_id"])


def full_shape(row: Row) -> Shape | None:
    size = row.get("shape")  # not there if the stream was asked for other columns
    return None if size is None else (size["z"], size["y"], size["x"])


def as_box(value: Any) -> Box | None:
    return value if value is None or isinstance(value, Box) else Box.from_dict(value)


def _array(value: Any) -> np.ndarray | None:
    """The voxels in a row: an array, the NIfTI bytes of a row loaded with decode=False, or the image of a
    decoded one."""
    if value is None or isinstance(value, np.ndarray):
        return value
    if isinstance(value, Mapping):
        if value.get("bytes") is None:
            raise DataError(
                "G011", "its volume has no bytes", "embed the files, or use the rows of a release"
            )
        return volume_from_bytes(value["bytes"]).array
    if hasattr(value, "dataobj"):  # a nibabel image; our NIfTI has axes (x, y, z)
        voxels: np.ndarray = np.asarray(value.dataobj).transpose()
        return voxels
    raise DataError(
        "G011",
        f"its volume is a {type(value).__name__}",
        'use rows loaded with decode=False, or reasonknee.stream; no format such as "torch"',
    )


def sample_of(row: Row, mirror_left: bool) -> Sample:
    try:
        box, array, crop = as_box(row.get("box")), _array(row.get("volume")), as_box(row.get("crop"))
        if crop is None:
            shape = full_shape(row)
            if shape is None and array is None:
                shape = box.stop if box else (1, 1, 1)  # no voxels that it must fit: the box stays as it is
            if shape is None:
                raise KeyError("shape")
            crop = Box.whole(shape)
        if array is not None and array.shape != crop.shape:
            raise DataError(
                "G012",
                f"its volume is {array.shape}, its crop {crop.shape} voxels",
                "the field `crop` says where the voxels lie",
            )
        if box is not None:
            box.inside(crop)  # else the box is not in the tensor
        return Sample(row, crop, box, array, mirror_left and row["side"] == "left")
    except KeyError as error:
        hint = "rows of `cropped` or of reasonknee.stream are wanted, with this column"
        raise DataError("G013", f"no field {error.args[0]!r}", hint, row.get("id", "a row")) from None
    except ReasonKneeError as error:
        raise error.at(row.get("id", "a row")) from None


def flat(items: Sequence[Row]) -> tuple[list[Row], bool]:
    """The quintuples in the items, and whether they come volume by volume, as from `stream.volumes`."""
    if isinstance(items, Mapping):
        raise UsageError("G015", "a row where a list of rows is wanted", "give the loader a batch_size")
    nested = [item for item in items if "quintuples" in item]
    raw = [item for item in nested if any("volume_id" not in q for q in item["quintuples"])]
    if raw:
        message = f"a row of a whole volume ({raw[0].get('volume_id')}) as it is stored, its questions nested"
        raise DataError("G014", message, "reasonknee.stream gives its quintuples")
    if nested and len(nested) < len(items):
        raise DataError(
            "G016", "some items are quintuples and some whole volumes", "collate the items of one stream"
        )
    return ([q for item in nested for q in item["quintuples"]], True) if nested else (list(items), False)


def kind_of(rows: Sequence[Row]) -> str:
    """What the rows hold: "volume", "embedding" or "text". All must hold the same."""
    kinds = {next((name for name in ("volume", "embedding") if name in row), "text") for row in rows}
    if not kinds:
        raise UsageError("G015", "no rows to collate", "a batch has at least one")
    if len(kinds) > 1:
        raise DataError(
            "G016",
            f"rows of mixed configs: some with {' and some with '.join(sorted(kinds))}",
            "collate the rows of one config",
        )
    return kinds.pop()


def without_repeats(samples: list[Sample]) -> tuple[list[Sample], list[int]]:
    """One sample for all that lie on the same voxels, and which of them each sample's is."""
    first: dict[tuple[str, Box, bool], int] = {}
    kept: list[Sample] = []
    index = []
    for s in samples:
        key = (s.volume_id, s.crop, s.array is None)
        if key not in first:
            first[key] = len(kept)
            kept.append(s)
        index.append(first[key])
    return kept, index
