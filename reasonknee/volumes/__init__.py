"""Voxels. Everything that comes from elsewhere passes the gate: NIfTI (`nifti`), DICOM (`dicom`), HDF5
(`embeddings`)."""

from reasonknee.volumes.grid import Grid, Volume
from reasonknee.volumes.nifti import nifti_bytes, volume_from_bytes, write_nifti
from reasonknee.volumes.read import read_grid, read_volume

__all__ = ["Grid", "Volume", "nifti_bytes", "read_grid", "read_volume", "volume_from_bytes", "write_nifti"]
