"""Where the synthetic scans lie: as the published split files name them, or in one of the layouts in which
OAI's images are found on people's disks.

    nifti    <patient>/<VISIT>/<study>_<series>_<side>.nii.gz
    flat     <patient>_<study>_SAG_3D_DESS_<SIDE>_<series>_image.nii.gz, all in one folder
    oai      <visit>/0.C.2/<patient>/<study>/<series>/NNN, other series beside DESS, with contents.csv
    bare     the same without contents.csv: the files themselves say what they are
    data     <visit>/<patient>/data/<study>/<series>/NNN, other series beside DESS
    results  results%2F<visit>%2F0.C.2%2F<patient>%2F<study>%2F<series>/NNN
    tar      as oai, with an archive <series>.tar.gz in place of each folder
"""

from __future__ import annotations

import csv
import gzip
import io
import shutil
import tarfile
from pathlib import Path

from reasonknee.boxes import Box
from reasonknee.phantom.series import write_series
from reasonknee.volumes import Volume, write_nifti

LAYOUTS = ("nifti", "flat", "oai", "bare", "data", "results", "tar")
CONTENTS = ("Folder", "ParticipantID", "StudyDate", "Barcode", "SeriesDescription")
_OTHERS = ("COR_IW_TSE_{}", "SAG_IW_TSE_{}")  # what every visit has beside DESS
_PACKAGES = {"00m": "0.C.2", "12m": "1.C.2", "24m": "3.C.2", "36m": "5.C.1", "48m": "6.C.1"}


class ImageFolder:
    """The folder `images` of a cohort, in one of the layouts."""

    def __init__(self, root: Path, layout: str) -> None:
        self.root, self.layout = root, layout
        self.listed: list[tuple[str, ...]] = []

    def write(self, patient: str, visit: str, side: str, study: str, series: str, volume: Volume) -> None:
        dess = f"SAG_3D_DESS_{side.upper()}"
        if self.layout == "nifti":
            self._nifti(f"{patient}/{visit.upper()}/{study}_{series}_{side}.nii.gz", volume)
        elif self.layout == "flat":
            self._nifti(f"{patient}_{study}_{dess}_{series}_image.nii.gz", volume)
        else:
            self._series((patient, visit, study, series), dess, volume)
            if self.layout != "results":
                thick = volume.crop(Box(0, 4, 0, volume.array.shape[1], 0, volume.array.shape[2]))
                for n, name in enumerate(_OTHERS, start=1):
                    other = f"{int(series) + 50_000_000 * n}"
                    self._series((patient, visit, study, other), name.format(side.upper()), thick)

    def finish(self) -> None:
        """What a package tells of its series."""
        if self.listed:
            with (self.root / "contents.csv").open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([CONTENTS, *self.listed])

    def _nifti(self, name: str, volume: Volume) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_nifti(path, volume)

    def _series(self, key: tuple[str, str, str, str], description: str, volume: Volume) -> None:
        patient, visit, study, series = key
        package = _PACKAGES[visit]
        place = f"{visit}/{package}/{patient}/{study}/{series}"
        if self.layout == "data":
            place = f"{visit}/{patient}/data/{study}/{series}"
        elif self.layout == "results":
            place = f"results%2F{place}".replace("/", "%2F")
        folder = self.root / place
        write_series(folder, volume, description)
        if self.layout == "tar":
            _packed(folder)
        if self.layout in ("oai", "tar"):
            self.listed.append((place, patient, study, f"0166{series}", description))


def _packed(folder: Path) -> None:
    """The same bytes each time: no owner, no date."""
    with (
        open(f"{folder}.tar.gz", "wb") as raw,
        gzip.GzipFile("", "wb", 1, raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path in sorted(folder.iterdir()):
            member = tarfile.TarInfo(f"{folder.name}/{path.name}")
            content = path.read_bytes()
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    shutil.rmtree(folder)
