"""Vision embeddings in HDF5, behind its gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.errors import DataError, shown
from reasonknee.volumes.hdf5 import GuardedFile, is_name

if TYPE_CHECKING:
    import h5py

_MAX_NUMBERS = 2**27
_MAX_SLICES, _MAX_TEXT = 4096, 500
_MAX_EMBEDDINGS = 2**16  # of one file: all of OAI's knees at all visits
EMBEDDING_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Making:
    """What an embedding was made of: all that is needed to use it. None where it is not told, as by an
    encoder that has no grid."""

    grid: dict[str, int] | None = None  # t, h, w: patches before merging
    slices: list[int] | None = None
    fps: float | None = None
    window: dict[str, float] | None = None  # low, high
    model: str | None = None
    revision: str | None = None
    versions: str | None = None


@dataclass(frozen=True)
class Embedding:
    """tokens x width numbers.

    numpy has no bfloat16: its 16 bits are kept as uint16 and `dtype` says what they are.
    """

    array: np.ndarray
    dtype: str
    made: Making = Making()


def _is_finite(array: np.ndarray, dtype: str) -> bool:
    return bool(np.isfinite(array).all() if dtype == "float16" else ((array & 0x7F80) != 0x7F80).all())


class EmbeddingFile(GuardedFile):
    """An HDF5 file with one (tokens, width) dataset per volume id, float16, or uint16 with the attribute
    dtype="bfloat16".

    Attributes of a dataset tell what it was made of, and none is required: `grid` (t, h, w), `slices`, `fps`,
    `window` (low, high), `model`, `revision`, `versions`. Those of the file itself hold for every dataset
    that does not say otherwise.
    """

    def ids(self) -> set[str]:
        with self._guard("the list of embeddings"):
            if len(self.file) > _MAX_EMBEDDINGS:
                raise DataError(
                    "E007",
                    f"{len(self.file)} embeddings",
                    f"at most {_MAX_EMBEDDINGS} in a file",
                ).at(self.path.name)
            names = list(self.file)
            wrong = next((name for name in names if not is_name(name)), None)
            if wrong is not None:
                raise DataError(
                    "E002",
                    f"an embedding called {shown(wrong)}",
                    "embeddings are called as the volume is",
                ).at(self.path.name)
            return set(names)

    def check(self, volume_id: str) -> str:
        """What can be told without reading the numbers; returns their type."""
        with self._guard(volume_id):
            return self._check(volume_id)

    def nbytes(self, volume_id: str) -> int:
        """How long the numbers are, once they are read."""
        self.check(volume_id)
        with self._guard(volume_id):
            return int(self.file[volume_id].nbytes)

    def _check(self, volume_id: str) -> str:
        item = self.plain_dataset(volume_id, 2, _MAX_NUMBERS, "one (tokens, width) matrix a volume")
        name = {"float16": "float16", "uint16": str(item.attrs.get("dtype", "uint16"))}.get(
            item.dtype.name, item.dtype.name
        )
        if name not in EMBEDDING_DTYPES:
            raise DataError(
                "E005",
                f"{volume_id} is {shown(name)}",
                f"use one of {', '.join(EMBEDDING_DTYPES)}",
            ).at(self.path.name)
        return str(name)

    def read(self, volume_id: str) -> Embedding:
        name = self.check(volume_id)
        with self._guard(volume_id):
            item = self.file[volume_id]
            self.check_chunks_inflate(volume_id, item)
            array = np.ascontiguousarray(item[:]).astype("<" + item.dtype.str[1:], copy=False)
            if not _is_finite(array, name):
                raise DataError(
                    "E008",
                    f"{volume_id} holds NaN or infinite numbers",
                    "embed the volume again",
                ).at(self.path.name)
            return Embedding(array, name, self._making(volume_id, item))

    def _making(self, volume_id: str, item: h5py.Dataset) -> Making:
        told = {
            name: source.attrs[name]
            for source in (self.file, item)
            for name in (f.name for f in fields(Making))
            if name in source.attrs
        }
        try:
            return _checked(told)
        except (ValueError, TypeError) as error:
            raise DataError(
                "E009",
                f"{volume_id} was made with {shown(error, 80)}",
                "grid is three numbers from 1 on, slices some from 0 on, window two, the rest short texts",
            ).at(self.path.name) from None


def _checked(told: Mapping[str, Any]) -> Making:
    """The attributes in their forms; a ValueError names the first that has another one."""

    def numbers(name: str, kind: type, least: float, count: int | None) -> list[Any] | None:
        if name not in told:
            return None
        array = np.asarray(told[name])
        right = array.dtype.kind in ("iu" if kind is int else "iuf") and array.size <= _MAX_SLICES
        if not right or array.ndim > 1 or (count is not None and array.size != count):
            raise ValueError(f"{name} of {array.dtype} and shape {array.shape}")
        if not np.isfinite(array).all() or (array < least).any():
            raise ValueError(f"{name} out of its range")
        return [kind(value) for value in array.reshape(-1)]

    def text(name: str) -> str | None:
        if name not in told:
            return None
        value = told[name]
        value = value.decode("utf-8") if isinstance(value, bytes) else value
        if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _MAX_TEXT:
            raise ValueError(f"{name} that is no short text")
        return value

    grid, fps = numbers("grid", int, 1, 3), numbers("fps", float, 0, 1)
    window = numbers("window", float, -1e6, 2)
    return Making(
        dict(zip("thw", grid, strict=True)) if grid else None,
        numbers("slices", int, 0, None),
        fps[0] if fps else None,
        dict(zip(("low", "high"), window, strict=True)) if window else None,
        text("model"),
        text("revision"),
        text("versions"),
    )
