"""fastMRI's reconstructions, behind the gate: `reconstruction_rss` of an HDF5 file, (frames, rows, columns).

Stored images are turned upside down, which is how the readers of fastMRI+ saw them, so that boxes fit.
fastMRI's images may not be redistributed: users bring their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from reasonknee.errors import DataError, shown
from reasonknee.volumes.hdf5 import GuardedFile

DATASET = "reconstruction_rss"
_MOST_FRAMES, _MOST_SIDE = 256, 768
MOST_PIXELS = _MOST_FRAMES * _MOST_SIDE**2  # of a volume
RENDERINGS = ("slice", "volume")
Rendering = Literal["slice", "volume"]
_BRIGHT = 99.5  # percentile of a volume that becomes white


@dataclass(frozen=True)
class Scan:
    """What a file says of itself."""

    path: Path
    shape: tuple[int, int, int]
    patient: str | None
    sequence: str | None

    @property
    def volume_id(self) -> str:
        return self.path.stem

    @property
    def split(self) -> str | None:
        """By the folder that fastMRI's archives unpack to: `knee_multicoil_train`, `multicoil_val`, ..."""
        folder = self.path.parent.name.lower()
        if "train" in folder:
            return "train"
        return "test" if re.search(r"val|test", folder) else None


class FastMriFile(GuardedFile):
    """One scan. Nothing is read before its shape and its storage are known to be sane."""

    def scan(self) -> Scan:
        with self._guard("its header"):
            item = self.plain_dataset(
                DATASET,
                3,
                MOST_PIXELS,
                "(frames, rows, columns) of a reconstruction are wanted",
            )
            frames, height, width = item.shape
            if frames > _MOST_FRAMES or max(height, width) > _MOST_SIDE or min(height, width) < 8:
                raise DataError(
                    "E004",
                    f"{self.path.name}: {DATASET} has shape {item.shape}",
                    f"at most {_MOST_FRAMES} frames of {_MOST_SIDE} pixels a side",
                )
            if item.dtype.kind != "f":
                raise DataError(
                    "E005", f"{self.path.name}: {DATASET} is {item.dtype.name}", "floats are wanted"
                )
            return Scan(
                self.path, (frames, height, width), self._text("patient_id"), self._text("acquisition")
            )

    def _text(self, name: str) -> str | None:
        value = self.file.attrs.get(name)
        text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return shown(text, 128) if isinstance(text, str) and text else None

    def frames(self, rendering: Rendering = "slice") -> np.ndarray:
        """All frames as uint8, upside down: each divided by its own maximum as the published pictures are
        (`slice`), or by one window of the volume (`volume`), so that frames can be compared."""
        self.scan()
        with self._guard(DATASET):
            item = self.file[DATASET]
            self.check_chunks_inflate(DATASET, item)
            array = item[:].astype(np.float32)
        if not np.isfinite(array).all() or array.min() < 0:
            raise DataError("E008", f"{self.path.name}: negative or infinite voxels", "reconstruct it again")
        if rendering == "slice":
            most = array.max(axis=(1, 2), keepdims=True)
        else:
            most = np.full((1, 1, 1), np.percentile(array, _BRIGHT), np.float32)
        scaled = np.minimum(array / np.where(most > 0, most, 1), 1)
        upside_down: np.ndarray = np.ascontiguousarray((scaled * 255).astype(np.uint8)[:, ::-1])
        return upside_down


def find_scans(folder: Path) -> dict[str, Path]:
    """Volume id -> file, for every `.h5` below a folder."""
    if not folder.is_dir():
        raise DataError("Z010", f"no folder at {folder}", "name the folder of your fastMRI files")
    scans: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.h5")):
        other = scans.setdefault(path.stem, path)
        if other != path:
            raise DataError(
                "Z011",
                f"{path.stem} lies in two folders: {other.parent.name} and {path.parent.name}",
                "keep one",
            )
    return scans


def read_scan(path: Path) -> Scan:
    with FastMriFile(path) as file:
        return file.scan()


def missing(volume_ids: Iterable[str], scans: dict[str, Path]) -> list[str]:
    return sorted(set(volume_ids) - set(scans))
