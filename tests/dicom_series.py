"""Where tests put DICOM series; what writes them is the phantom's own."""

from __future__ import annotations

from pathlib import Path

from reasonknee.phantom.series import SECRET, write_series

__all__ = ["SECRET", "oai_folder", "write_series"]


def oai_folder(root: Path, patient: str, visit: str, study: str, series: str) -> Path:
    return root / f"{visit}DESS" / "0.C.2" / patient / study / series
