"""An image wherever it comes from: a NIfTI file, or a folder or archive with a DICOM series."""

from __future__ import annotations

import os

from reasonknee.volumes import dicom, nifti
from reasonknee.volumes.grid import Grid, Volume
from reasonknee.volumes.series_files import is_archive


def read_grid(path: str | os.PathLike[str]) -> Grid:
    """Shape and affine of a NIfTI file or a folder with a DICOM series; reads headers only."""
    return dicom.read_grid(path) if _is_series(path) else nifti.read_grid(path)


def read_volume(path: str | os.PathLike[str]) -> Volume:
    """The volume in a `.nii` or `.nii.gz` file, or in a folder with a DICOM series, checked to its last
    byte."""
    return dicom.read_volume(path) if _is_series(path) else nifti.read_volume(path)


def _is_series(path: str | os.PathLike[str]) -> bool:
    return os.path.isdir(path) or is_archive(path)
