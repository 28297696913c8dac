"""Vision embeddings in HDF5, behind a gate: no links, no external storage, no filter plugins, no bombs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reasonknee.errors import DataError, ReasonKneeError
from reasonknee.gunzip import MAX_RATIO

if TYPE_CHECKING:
    import h5py

_MAX_NUMBERS = 2**27
_MAX_EMBEDDINGS = 2**16  # of one file: all of OAI's knees at all visits
_MAX_CHUNK = 1 << 26
_FILTERS = {1, 2, 3}  # gzip, shuffle, fletcher32
EMBEDDING_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Embedding:
    """tokens x width numbers. numpy has no bfloat16: its 16 bits are kept as uint16 and `dtype` says what they are."""

    array: np.ndarray
    dtype: str


class EmbeddingFile:
    """An HDF5 file with one (tokens, width) dataset per volume id, float16, or uint16 with the attribute dtype="bfloat16"."""

    def __init__(self, path: Path) -> None:
        import h5py

        self.path = path
        try:
            self.file: h5py.File = h5py.File(path, "r")
        except Exception as error:  # OSError as a rule, others on a damaged file
            reason = (str(error).splitlines() or [""])[0][:80]
            raise DataError("E001", f"{path.name}: not a readable HDF5 file", f"write it again: {reason}") from None

    def __enter__(self) -> EmbeddingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def ids(self) -> set[str]:
        with self._guard("the list of embeddings"):
            if len(self.file) > _MAX_EMBEDDINGS:
                raise DataError("E007", f"{self.path.name}: {len(self.file)} embeddings", f"at most {_MAX_EMBEDDINGS} in a file")
            return {name.encode().decode() for name in self.file}  # h5py gives bytes for what is not text

    @contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """h5py's errors on a damaged file are of many types; all of them become one."""
        try:
            yield
        except (ReasonKneeError, MemoryError):
            raise
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0][:80]
            if "memory allocation failed" in reason:
                raise MemoryError from None
            raise DataError("E006", f"{self.path.name}: {what} is damaged: {reason}", "write the file again") from None

    def _check_storage(self, volume_id: str, item: h5py.Dataset) -> None:
        """The bytes are in the file, in chunks of a sane size, behind filters that every HDF5 has: no plugin is loaded, no bomb goes off."""
        plist = item.id.get_create_plist()
        filters = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
        if not filters <= _FILTERS:
            raise DataError("E003", f"{self.path.name}: {volume_id} needs filter {sorted(filters - _FILTERS)}", "use gzip, shuffle or fletcher32")
        chunk = math.prod(item.chunks) * item.dtype.itemsize if item.chunks else 0
        stored = item.id.get_storage_size() * (MAX_RATIO if filters & {1} else 1)
        if chunk > _MAX_CHUNK or stored < item.size * item.dtype.itemsize:
            told = f"chunks of {chunk} bytes" if chunk > _MAX_CHUNK else "values that were never written"
            raise DataError("E004", f"{self.path.name}: {volume_id} has {told}", f"chunks of at most {_MAX_CHUNK} bytes, all of them written")

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
        import h5py

        if not isinstance(self.file.get(volume_id, getlink=True), h5py.HardLink):
            raise DataError("E002", f"{self.path.name}: no embedding for {volume_id}", "embed the volume, or leave it out of the annotations")
        item = self.file[volume_id]
        if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
            raise DataError("E003", f"{self.path.name}: {volume_id} is not a plain dataset", "links and external storage are refused")
        if item.ndim != 2 or 0 in item.shape or math.prod(item.shape) > _MAX_NUMBERS:
            raise DataError("E004", f"{self.path.name}: {volume_id} has shape {item.shape}", "one (tokens, width) matrix a volume")
        self._check_storage(volume_id, item)
        name = {"float16": "float16", "uint16": str(item.attrs.get("dtype", "uint16"))}.get(item.dtype.name, item.dtype.name)
        if name not in EMBEDDING_DTYPES:
            raise DataError("E005", f"{self.path.name}: {volume_id} is {name}", f"use one of {', '.join(EMBEDDING_DTYPES)}")
        return str(name)

    def read(self, volume_id: str) -> Embedding:
        name = self.check(volume_id)
        with self._guard(volume_id):
            item = self.file[volume_id]
            return Embedding(np.ascontiguousarray(item[:]).astype("<" + item.dtype.str[1:], copy=False), name)
