"""Vision embeddings in HDF5, behind a gate: no links, no external storage, no filter plugins, no bombs."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from reasonknee.errors import DataError, ReasonKneeError, shown
from reasonknee.gunzip import MAX_RATIO

if TYPE_CHECKING:
    import h5py

_MAX_NUMBERS = 2**27
_MAX_EMBEDDINGS = 2**16  # of one file: all of OAI's knees at all visits
_MAX_CHUNK, _MAX_CHUNKS = 1 << 26, 1 << 16  # bytes of a chunk, chunks of an embedding
_GZIP, _SHUFFLE, _FLETCHER = 1, 2, 3  # HDF5's numbers of its filters
EMBEDDING_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Embedding:
    """tokens x width numbers. numpy has no bfloat16: its 16 bits are kept as uint16 and `dtype` says what they are."""

    array: np.ndarray
    dtype: str


def _is_name(name: object) -> bool:
    """Text that names a thing in the root of a file: a path would be followed, through links to other files, too."""
    return isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".", "..")


def _is_finite(array: np.ndarray, dtype: str) -> bool:
    return bool(np.isfinite(array).all() if dtype == "float16" else ((array & 0x7F80) != 0x7F80).all())


def _filters(item: h5py.Dataset) -> list[int]:
    """In the order in which they were applied."""
    plist = item.id.get_create_plist()
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def _wrong_chunks(item: h5py.Dataset, filters: list[int]) -> str:
    """What is wrong with how the numbers are stored, if anything is: all are there, and nothing is read before that is known."""
    if not item.chunks:
        return "" if item.id.get_storage_size() == item.nbytes else "values that were never written"
    size, sizes = math.prod(item.chunks) * item.dtype.itemsize, []
    wanted = math.prod(-(-n // c) for n, c in zip(item.shape, item.chunks, strict=True))
    if size > _MAX_CHUNK or wanted > _MAX_CHUNKS:
        return f"{wanted} chunks of {size} bytes"
    item.id.chunk_iter(lambda stored: sizes.append((stored.size, stored.filter_mask)))
    if len(sizes) != wanted:
        return "values that were never written"
    plain = size + 4 * filters.count(_FLETCHER)
    right = all(not mask and (stored * MAX_RATIO >= size if _GZIP in filters else stored == plain) for stored, mask in sizes)
    return "" if right else "chunks of another length than they should have"


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
            names = list(self.file)
            wrong = next((name for name in names if not _is_name(name)), None)
            if wrong is not None:
                raise DataError("E002", f"{self.path.name}: an embedding called {shown(wrong)}", "embeddings are called as the volume is")
            return set(names)

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
        filters = _filters(item)
        if not set(filters) <= {_GZIP, _SHUFFLE, _FLETCHER} or len(set(filters)) < len(filters):
            raise DataError("E003", f"{self.path.name}: {volume_id} needs filters {filters}", "use gzip, shuffle or fletcher32, each once at most")
        told = _wrong_chunks(item, filters)
        if told:
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

        if not _is_name(volume_id) or not isinstance(self.file.get(volume_id, getlink=True), h5py.HardLink):
            raise DataError("E002", f"{self.path.name}: no embedding for {volume_id}", "embed the volume, or leave it out of the annotations")
        item = self.file[volume_id]
        if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
            raise DataError("E003", f"{self.path.name}: {volume_id} is not a plain dataset", "links and external storage are refused")
        if item.ndim != 2 or 0 in item.shape or math.prod(item.shape) > _MAX_NUMBERS:
            raise DataError("E004", f"{self.path.name}: {volume_id} has shape {item.shape}", "one (tokens, width) matrix a volume")
        self._check_storage(volume_id, item)
        name = {"float16": "float16", "uint16": str(item.attrs.get("dtype", "uint16"))}.get(item.dtype.name, item.dtype.name)
        if name not in EMBEDDING_DTYPES:
            raise DataError("E005", f"{self.path.name}: {volume_id} is {shown(name)}", f"use one of {', '.join(EMBEDDING_DTYPES)}")
        return str(name)

    def read(self, volume_id: str) -> Embedding:
        name = self.check(volume_id)
        with self._guard(volume_id):
            item = self.file[volume_id]
            self._check_chunks_inflate(volume_id, item)
            array = np.ascontiguousarray(item[:]).astype("<" + item.dtype.str[1:], copy=False)
            if not _is_finite(array, name):
                raise DataError("E008", f"{self.path.name}: {volume_id} holds NaN or infinite numbers", "embed the volume again")
            return Embedding(array, name)

    def _check_chunks_inflate(self, volume_id: str, item: h5py.Dataset) -> None:
        """Each chunk to as many bytes as it has: where they are fewer, HDF5 hands out whatever else was in memory, or crashes."""
        filters = _filters(item)
        if _GZIP not in filters:
            return
        before = filters[: filters.index(_GZIP)]
        wanted = math.prod(item.chunks) * item.dtype.itemsize + 4 * before.count(_FLETCHER)
        places: list[tuple[int, ...]] = []
        item.id.chunk_iter(lambda stored: places.append(stored.chunk_offset))
        for place in places:
            packed = item.id.read_direct_chunk(place)[1]
            inflate = zlib.decompressobj()
            try:
                short = len(inflate.decompress(packed, wanted + 1)) != wanted or not inflate.eof
            except zlib.error:
                short = True
            if short:
                raise DataError("E006", f"{self.path.name}: {volume_id} has a chunk of another length than it should", "write the file again")
