"""HDF5 files from elsewhere, behind a gate: no links, no external storage, no filter plugins, no bombs."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from reasonknee.errors import DataError, ReasonKneeError
from reasonknee.volumes.gunzip import MAX_RATIO

if TYPE_CHECKING:
    import h5py

_MAX_CHUNK, _MAX_CHUNKS = 1 << 26, 1 << 16  # bytes of a chunk, chunks of a dataset
_GZIP, _SHUFFLE, _FLETCHER = 1, 2, 3  # HDF5's numbers of its filters


def is_name(name: object) -> bool:
    """Text that names a thing in the root of a file: a path would be followed, through links to other
    files, too."""
    return isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".", "..")


def _filters(item: h5py.Dataset) -> list[int]:
    """In the order in which they were applied."""
    plist = item.id.get_create_plist()
    return [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]


def _wrong_chunks(item: h5py.Dataset, filters: list[int]) -> str:
    """What is wrong with how the numbers are stored, if anything is: all are there, and nothing is read
    before that is known."""
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
    right = all(
        not mask and (stored * MAX_RATIO >= size if _GZIP in filters else stored == plain)
        for stored, mask in sizes
    )
    return "" if right else "chunks of another length than they should have"


Guarded = TypeVar("Guarded", bound="GuardedFile")


class GuardedFile:
    """An HDF5 file of which only plain datasets in its root can be had."""

    def __init__(self, path: Path) -> None:
        import h5py

        self.path = path
        try:
            self.file: h5py.File = h5py.File(path, "r")
        except Exception as error:  # OSError as a rule, others on a damaged file
            reason = (str(error).splitlines() or [""])[0][:80]
            raise DataError("E001", "not a readable HDF5 file", f"write it again: {reason}").at(
                path.name
            ) from None

    def __enter__(self: Guarded) -> Guarded:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

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
            raise DataError("E006", f"{what} is damaged: {reason}", "write the file again").at(
                self.path.name
            ) from None

    def plain_dataset(self, name: str, axes: int, most: int, hint: str) -> h5py.Dataset:
        """The dataset of that name, of so many axes and at most so many numbers: nothing is read before that
        is known."""
        import h5py

        if not is_name(name) or not isinstance(self.file.get(name, getlink=True), h5py.HardLink):
            raise DataError("E002", f"it has no {name}", hint).at(self.path.name)
        item = self.file[name]
        if not isinstance(item, h5py.Dataset) or item.is_virtual or item.external:
            raise DataError(
                "E003",
                f"{name} is not a plain dataset",
                "links and external storage are refused",
            ).at(self.path.name)
        if item.ndim != axes or 0 in item.shape or math.prod(item.shape) > most:
            raise DataError("E004", f"{name} has shape {item.shape}", hint).at(self.path.name)
        self._check_storage(name, item)
        return item

    def _check_storage(self, name: str, item: h5py.Dataset) -> None:
        """The bytes are in the file, in chunks of a sane size, behind filters that every HDF5 has: no
        plugin is loaded, no bomb goes off."""
        filters = _filters(item)
        if not set(filters) <= {_GZIP, _SHUFFLE, _FLETCHER} or len(set(filters)) < len(filters):
            raise DataError(
                "E003",
                f"{name} needs filters {filters}",
                "use gzip, shuffle or fletcher32, each once at most",
            ).at(self.path.name)
        told = _wrong_chunks(item, filters)
        if told:
            raise DataError(
                "E004",
                f"{name} has {told}",
                f"chunks of at most {_MAX_CHUNK} bytes, all of them written",
            ).at(self.path.name)

    def check_chunks_inflate(self, name: str, item: h5py.Dataset) -> None:
        """Each chunk to as many bytes as it has: where they are fewer, HDF5 hands out whatever else was
        in memory, or crashes."""
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
                raise DataError(
                    "E006",
                    f"{name} has a chunk of another length than it should",
                    "write the file again",
                ).at(self.path.name)
