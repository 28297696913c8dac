"""A volume that was read, ready to serve its quintuples: the one place where what a release stores becomes
what a training loop gets.

A served quintuple is a dict with the fields of `annotations`, and

- from `cropped` and `full`: `volume`, a (z, y, x) array, `crop`, where it lies in the full volume, and
  `affine` of its (x, y, z) grid; all three None where the region was not found. Whole volumes and stored
  crops are C-contiguous, read-only views of the bytes read; regions cut out of a whole volume are views of
  it.
- from `embeddings`: `embedding`, a (tokens, width) array of float16, or of uint16 where `embedding_dtype` is
  "bfloat16".

Questions on the same voxels get the same array object.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.layout.records import fields
from reasonknee.stream.shown import ShownRow
from reasonknee.volumes import Grid, Volume, volume_from_bytes
from reasonknee.volumes.embeddings import EMBEDDING_DTYPES
from reasonknee.volumes.nifti import VOXEL_OFFSET

Row = dict[str, Any]
VOXELS = ("volume", "crop", "affine")
NO_VOXELS: Row = dict.fromkeys(VOXELS)
_NAMES = tuple(f.name for f in fields("annotations"))


class Payload(Protocol):
    """What a volume has beside text and numbers."""

    def of(self, row: Row, index: int) -> Row:
        """The fields that the payload adds to the row with this index."""

    def whole(self) -> Row:
        """The fields that it adds to an item of the whole volume."""


class Opened:
    """The quintuples of one volume, by question, and its payload."""

    def __init__(self, rows: Sequence[Row], payload: Payload | None, where: str) -> None:
        self.rows, self.payload, self.where = rows, payload, where
        self.index = {row["question_id"]: i for i, row in enumerate(rows)}

    def quintuple(self, question_id: str) -> ShownRow:
        i = self.index[question_id]
        row = self.rows[i]
        if self.payload is None:
            return ShownRow(row)
        try:
            served = ShownRow({**row, **self.payload.of(row, i)})
        except DataError as error:
            raise error.at(f"{self.where}, {row['id']}") from None
        if served.get("crop"):
            served["crop"] = dict(served["crop"])
        return served

    def together(self, questions: Sequence[str]) -> Row:
        """The volume as one item: its own fields and payload, and `quintuples`, the list of what was
        asked."""
        quintuples = [self.quintuple(q) for q in questions]
        own = {
            f.name: quintuples[0][f.name]
            for f in fields("full")
            if f.name in quintuples[0] and f.name != "volume"
        }
        whole = self.payload.whole() if self.payload else {}
        return ShownRow({**own, **whole, "quintuples": quintuples})


def ordered(row: Mapping[str, Any]) -> Row:
    """Fields in the order of the record, whichever config they come from."""
    return {name: row[name] for name in _NAMES if name in row}


def from_row(row: Mapping[str, Any], margin_mm: float | None = None) -> Opened:
    """A row of any config as `datasets` gives it without decoding."""
    stored = {
        name: value
        for name, value in row.items()
        if name not in ("volume", "embedding", "quintuples", "crop")
    }
    where, volume = str(row["volume_id"]), row.get("volume")
    if volume is not None and not (isinstance(volume, Mapping) and isinstance(volume.get("bytes"), bytes)):
        hint = 'dataset.cast_column("volume", datasets.Nifti(decode=False)) gives its bytes'
        raise UsageError("D013", f"{where}: the volume is a {type(volume).__name__}", hint)
    data = volume and volume["bytes"]
    if "quintuples" not in row:
        payload = Crops([None if data is None else 0], [data], [row.get("crop")]) if "volume" in row else None
        return Opened([ordered(stored)], payload, where)
    rows = [ordered({**stored, **q}) for q in row["quintuples"]]
    if "embedding" in row:
        return Opened(rows, Embedded(row["embedding"], row["embedding"]["bytes"]), where)
    return Opened(rows, Whole(data, stored, margin_mm) if data is not None else None, where)


# --- payloads -----------------------------------------------------------------------------------------------


class Crops:
    """Stored crops: for each row the bytes of a NIfTI file, or None. Rows with the same key share them."""

    def __init__(
        self, keys: Sequence[int | None], data: Sequence[Any], crops: Sequence[Mapping[str, int] | None]
    ) -> None:
        self.keys, self.data, self.crops = keys, data, crops
        self.served: dict[int, Row] = {}
        self.read = _Siblings()

    def of(self, row: Row, index: int) -> Row:
        key, crop = self.keys[index], self.crops[index]
        if key is None or crop is None:
            if key is not None or crop is not None or row.get("box") is not None:
                raise DataError(
                    "D010", "a crop without its place, or a box without its crop", "the release is damaged"
                )
            return NO_VOXELS
        if key not in self.served:
            volume, place = self.read(self.data[key]), Box.from_dict(crop)
            _same_shape(volume, place.shape)
            self.served[key] = _voxels(volume, place)
        if self.served[key]["crop"] != crop:
            raise DataError("D010", "one crop for two places", "the release is damaged")
        return self.served[key]

    def whole(self) -> Row:
        return {}


class Whole:
    """A whole volume, served as it is, or region by region with a margin of so many millimetres."""

    def __init__(self, data: Any, about: Row, margin_mm: float | None) -> None:
        self.volume = _volume(data)
        _same_shape(self.volume, tuple(about["shape"][a] for a in "zyx"))
        self.margin = (
            None if margin_mm is None else tuple(math.ceil(margin_mm / about["spacing"][a]) for a in "zyx")
        )
        self.fields = _voxels(self.volume, Box.whole(self.volume.grid.shape))
        self.cut: dict[Box, Row] = {}

    def of(self, row: Row, index: int) -> Row:
        if self.margin is None:
            return self.fields
        if row["box"] is None:
            return NO_VOXELS
        z, y, x = self.margin
        box = Box.from_dict(row["box"]).grown((z, y, x), self.volume.grid.shape)
        if box not in self.cut:
            self.cut[box] = _voxels(self.volume.crop(box), box)
        return self.cut[box]

    def whole(self) -> Row:
        return self.fields


class Embedded:
    def __init__(self, stored: Mapping[str, Any], data: Any) -> None:
        name, shape = stored["dtype"], (stored["tokens"], stored["width"])
        if name not in EMBEDDING_DTYPES or min(shape) < 1 or len(memoryview(data)) != 2 * math.prod(shape):
            raise DataError(
                "D011",
                f"an embedding of {shape} {name} in {len(memoryview(data))} bytes",
                "the release is damaged",
            )
        kind = "<f2" if name == "float16" else "<u2"
        self.fields = {"embedding": np.frombuffer(data, kind).reshape(shape), "embedding_dtype": name}

    def of(self, row: Row, index: int) -> Row:
        return self.fields

    def whole(self) -> Row:
        return self.fields


def _voxels(volume: Volume, place: Box) -> Row:
    volume.grid.affine.flags.writeable = False  # like the voxels, it is shared by every question on them
    return {"volume": volume.array, "crop": place.as_dict(), "affine": volume.grid.affine}


def _volume(data: Any) -> Volume:
    volume = volume_from_bytes(memoryview(data))
    if volume.array.flags.aligned:
        return volume
    return Volume(
        volume.array.copy(), volume.grid
    )  # an odd place in a buffer: torch and fast loops want alignment


class _Siblings:
    """Reads crops of one volume. Their NIfTI headers differ in size and place only: the first one passes the
    gate, the rest are compared with it, since to take apart 30 headers costs as much as to decompress their
    voxels."""

    _SIZE, _PLACE = slice(42, 48), (292, 308, 324)  # three shorts; the last float of each row of the sform

    def __init__(self) -> None:
        self.common, self.like = b"", Volume(np.empty((0, 0, 0), np.uint16), Grid((0, 0, 0), np.eye(4)))

    def __call__(self, data: Any) -> Volume:
        head = bytes(memoryview(data)[:VOXEL_OFFSET])
        x, y, z = shape = struct.unpack("<3h", head[self._SIZE]) if len(head) == VOXEL_OFFSET else (0, 0, 0)
        if self.common and self._common(head) == self.common and min(shape) > 0:
            dtype, affine = self.like.array.dtype, self.like.grid.affine.copy()
            affine[:3, 3] = [struct.unpack_from("<f", head, at)[0] for at in self._PLACE]
            if (
                len(memoryview(data)) == VOXEL_OFFSET + x * y * z * dtype.itemsize
                and np.isfinite(affine).all()
            ):
                return Volume(
                    np.frombuffer(data, dtype, offset=VOXEL_OFFSET).reshape(z, y, x), Grid((z, y, x), affine)
                )
        volume = _volume(data)
        stored = [struct.unpack_from("<4f", head, at - 12) for at in self._PLACE]
        if (
            np.array_equal(stored, volume.grid.affine[:3])
            and volume.array.dtype.kind in "iu"
            and not volume.array.flags.owndata
        ):
            self.common, self.like = (
                self._common(head),
                volume,
            )  # integers in the order of memory, placed by the sform: as releases hold them
        return volume

    def _common(self, head: bytes) -> bytes:
        a, b, c = self._PLACE
        return (
            head[: self._SIZE.start]
            + head[self._SIZE.stop : a]
            + head[a + 4 : b]
            + head[b + 4 : c]
            + head[c + 4 :]
        )


def _same_shape(volume: Volume, wanted: tuple[int, ...]) -> None:
    if volume.array.shape != wanted:
        raise DataError(
            "D012", f"{volume.array.shape} voxels where the row says {wanted}", "the release is damaged"
        )
