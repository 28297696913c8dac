"""The verdict of the input gate on one file, whatever it claims to be: NIfTI, HDF5 embeddings or a folder with a DICOM series.

The reading is done within limits (see `limits`), so that a verdict comes within a second and 512 MB even on what was made by hand to be slow.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from reasonknee.embeddings import EmbeddingFile
from reasonknee.errors import DataError, ReasonKneeError
from reasonknee.limits import SECONDS, limited
from reasonknee.volumes import Grid, check_volume, regular_file

_HDF5 = b"\x89HDF\r\n\x1a\n"
_LONGEST_IMPORT = 0.2  # pydicom's; it counts, but where nothing is compiled to bytecode yet it takes longer, and that is not the file's fault
_MOST_LOOKED_AT, _MOST_READ = 256, 2**26  # embeddings of an HDF5 file, and bytes of their numbers: a whole file may have thousands and gigabytes


def print_verdicts(files: Iterable[Path], seconds: float = SECONDS) -> int:
    """A line for each file; returns the worst exit code."""
    worst = 0
    for file in files:
        try:
            began = time.process_time()
            read = _reader(file)
            spent = min(time.process_time() - began, _LONGEST_IMPORT)
            print(f"ok {file}: {limited(lambda path=file, read=read: read(path), seconds - spent)}", flush=True)  # type: ignore[misc]
        except ReasonKneeError as error:
            worst = max(worst, error.exit_code)
            print(f"{error.code} {file}: {_reason(error.message, file)} ({error.hint})", flush=True)
    return worst


def _reason(message: str, file: Path) -> str:
    """Without the gate's own name of the file, which is the end of ours; a slice of a series keeps its name."""
    name, _, reason = message.partition(": ")
    return reason if reason and str(file).endswith(name) else message.removeprefix(f"{file.name}/")


def describe_file(path: str | os.PathLike[str]) -> str:
    """What the file is, in a line, if the gate lets it in; raises what the gate says otherwise. Memory stays small."""
    return _reader(Path(path))(Path(path))


def _reader(path: Path) -> Callable[[Path], str]:
    """What reads such a file, with the library that it needs imported."""
    if path.is_dir():
        from reasonknee import dicom

        if dicom.is_series(path):
            dicom.library()
        return _series
    with regular_file(path) as file:
        start = file.read(len(_HDF5))
    if start == _HDF5 or path.suffix.lower() in (".h5", ".hdf5"):
        import h5py  # noqa: F401

        return _embeddings
    return _nifti


def _series(path: Path) -> str:
    from reasonknee import dicom

    grid, dtype = dicom.check_volume(path)
    return f"DICOM series, {_grid(grid)}, {dtype.name}"


def _nifti(path: Path) -> str:
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
        left, read = _MOST_READ, 0
        for name in names[:_MOST_LOOKED_AT]:
            size = file.nbytes(name)
            if size <= left:
                file.read(name)
                left, read = left - size, read + 1
    others = f", {read} of them read; the others are checked when they are used" if read < len(names) else ""
    return f"HDF5, {len(names)} embeddings{others}"
