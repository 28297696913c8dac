"""The verdict of the input gate on one file, whatever it claims to be: NIfTI, HDF5 embeddings or a folder with a DICOM series."""

from __future__ import annotations

import os
from pathlib import Path

from reasonknee.embeddings import EmbeddingFile
from reasonknee.errors import DataError, StorageError
from reasonknee.volumes import MAX_BYTES, Grid, check_volume, read_grid

_HDF5 = b"\x89HDF\r\n\x1a\n"


def describe_file(path: str | os.PathLike[str]) -> str:
    """What the file is, in a line, if the gate lets it in; raises what the gate says otherwise. Memory stays small."""
    path = Path(path)
    if path.is_dir():
        return f"DICOM series, headers only, {_grid(read_grid(path))}"
    try:
        with path.open("rb") as file:
            start = file.read(len(_HDF5))
    except OSError as error:
        raise StorageError("V000", f"{path.name}: cannot be read: {error.strerror}", "check the path and its permissions") from None
    if start == _HDF5 or path.suffix.lower() in (".h5", ".hdf5"):
        return _embeddings(path)
    grid, dtype = check_volume(path)
    return f"NIfTI, {_grid(grid)}, {dtype.name}"


def _grid(grid: Grid) -> str:
    shape, spacing = " x ".join(map(str, grid.shape)), " x ".join(f"{s:.4g}" for s in grid.spacing)
    return f"{shape} voxels of {spacing} mm (z, y, x), {grid.orientation}"


def _embeddings(path: Path) -> str:
    with EmbeddingFile(path) as file:
        names = sorted(file.ids())
        if not names:
            raise DataError("E002", f"{path.name}: no embedding", "one dataset per volume id is wanted")
        for name in names:
            file.check(name)
        size = path.stat().st_size
        if size > MAX_BYTES:
            return f"HDF5, {len(names)} embeddings, too many to read here: their numbers are checked when they are used"
        for name in names:
            file.read(name)
    return f"HDF5, {len(names)} embeddings"
