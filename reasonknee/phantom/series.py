"""Volumes written as DICOM series, the way a scanner would: one file a slice, geometry in the patient's own
directions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import UsageError
from reasonknee.volumes import Volume

SECRET = "Doe^Jane"  # stands in every file; must stand nowhere else


def write_series(
    folder: Path,
    volume: Volume,
    description: str = "",
    change: Callable[[int, Any], bool | None] = lambda n, ds: None,
) -> None:
    """`change` may alter the header of slice n, or leave the slice out by returning False. File names and
    numbers tell nothing of the order."""
    try:
        from pydicom.dataset import FileDataset, FileMetaDataset
        from pydicom.uid import ExplicitVRLittleEndian, MRImageStorage, generate_uid
        from pydicom.valuerep import DSfloat
    except ImportError:
        raise UsageError(
            "F003", "DICOM is written by pydicom", "pip install 'reasonknee[construct]'"
        ) from None
    folder.mkdir(parents=True)
    to_lps = np.diag([-1.0, -1.0, 1.0])
    columns = to_lps @ volume.grid.affine[:3, :3]
    _, y, x = volume.grid.spacing
    series = generate_uid(entropy_srcs=[folder.name])
    names = np.random.default_rng(0).permutation(len(volume.array))
    for n, plane in enumerate(volume.array):
        meta = FileMetaDataset()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = MRImageStorage
        meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[folder.name, str(n)])
        path = folder / f"{names[n]:03d}"
        ds = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        ds.SOPClassUID, ds.SOPInstanceUID = MRImageStorage, meta.MediaStorageSOPInstanceUID
        ds.SeriesInstanceUID = series
        ds.Modality, ds.PatientName, ds.PatientBirthDate = "MR", SECRET, "19500101"
        ds.SeriesDescription = description
        ds.InstanceNumber = int(names[n]) + 1
        ds.Rows, ds.Columns = plane.shape
        ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
        ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 12, 11, 0
        place = to_lps @ (volume.grid.affine[:3, :3] @ [0, 0, n] + volume.grid.affine[:3, 3])
        ds.ImagePositionPatient = [DSfloat(v, auto_format=True) for v in place]
        ds.ImageOrientationPatient = [
            DSfloat(v, auto_format=True) for v in (*(columns[:, 0] / x), *(columns[:, 1] / y))
        ]
        ds.PixelSpacing = [DSfloat(y, auto_format=True), DSfloat(x, auto_format=True)]
        ds.PixelData = np.ascontiguousarray(plane, "<u2").tobytes()
        if change(n, ds) is not False:
            ds.save_as(path, enforce_file_format=True)
