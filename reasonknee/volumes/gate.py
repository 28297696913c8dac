"""The verdict of the input gate on one file, whatever it claims to be: NIfTI, HDF5 embeddings or a folder
with a DICOM series.

The command reads within limits (see `limits`), so that a verdict comes within a second and 512 MB even on
what was made by hand to be slow; ten seconds for a series, which pydicom reads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from reasonknee.errors import DataError, ReasonKneeError, shown
from reasonknee.system.limits import SECONDS, SECONDS_OF_A_SERIES, limited
from reasonknee.volumes import dicom
from reasonknee.volumes.embeddings import EmbeddingFile
from reasonknee.volumes.grid import Grid
from reasonknee.volumes.nifti import check_volume, regular_file
from reasonknee.volumes.series_files import is_archive

_HDF5 = b"\x89HDF\r\n\x1a\n"
_MOST_LOOKED_AT, _MOST_READ = (
    256,
    2**26,
)  # embeddings of an HDF5 file, and bytes of their numbers: a whole file may have thousands and gigabytes
_LONGEST_LINE = 400


def print_verdicts(files: Iterable[Path], seconds: float | None = None) -> int:
    """A line for each file; returns the worst exit code. Each has so many seconds of the processor, or those
    that are usual for its kind."""
    worst = 0
    for file in files:
        name = shown(file, 4096)
        try:
            limit = seconds or (SECONDS_OF_A_SERIES if os.path.isdir(file) or is_archive(file) else SECONDS)
            print(f"ok {name}: {limited(partial(describe_file, file), limit)}", flush=True)
        except ReasonKneeError as error:
            worst = max(worst, error.exit_code)
            # of a file itself the name stands already; a slice of a series keeps its own
            told = error.message if str(file).endswith(error.place) else error.told
            print(
                f"{error.code} {name}: {shown(told, _LONGEST_LINE)} ({shown(error.hint, _LONGEST_LINE)})",
                flush=True,
            )
    return worst


def describe_file(path: str | os.PathLike[str]) -> str:
    """What the file is, in a line, if the gate lets it in; raises what the gate says otherwise.

    Memory stays small.
    """
    path = Path(path)
    if path.is_dir() or is_archive(path):
        grid, dtype = dicom.check_volume(path)
        return f"DICOM series, {_grid(grid)}, {dtype.name}"
    with regular_file(path) as file:
        start = file.read(len(_HDF5))
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
            raise DataError("E002", "no embedding", "one dataset per volume id is wanted").at(path.name)
        left, read = _MOST_READ, 0
        for name in names[:_MOST_LOOKED_AT]:
            size = file.nbytes(name)
            if size <= left:
                file.read(name)
                left, read = left - size, read + 1
    others = f", {read} of them read; the others are checked when they are used" if read < len(names) else ""
    return f"HDF5, {len(names)} embeddings{others}"
