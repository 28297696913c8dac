"""DICOM series as OAI ships them: the same volume as from NIfTI, and every doubt refused by code."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, command, run
from dicom_series import SECRET, oai_folder, write_series

from reasonknee.cohort import Annotation
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations
from reasonknee.cohort.scans import find_scans
from reasonknee.errors import ReasonKneeError
from reasonknee.phantom.cohort import phantom_grid
from reasonknee.volumes import Grid, Volume, dicom, read_grid, read_volume, write_nifti

SHAPE = (6, 9, 7)


def knee(grid: Grid | None = None) -> Volume:
    grid = grid or phantom_grid(SHAPE)
    return Volume(np.random.default_rng(1).integers(0, 4096, grid.shape).astype(np.uint16), grid)


def rotated(grid: Grid, degrees: float) -> Grid:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turn = np.eye(4)
    turn[:3, :3] = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    return Grid(grid.shape, turn @ grid.affine)


# --- the same volume --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("degrees", [0, 11.3, -20])
def test_a_series_is_the_volume_that_its_nifti_is(tmp_path: Path, degrees: float) -> None:
    volume = knee(rotated(phantom_grid(SHAPE), degrees))
    write_series(tmp_path / "series", volume)
    write_nifti(tmp_path / "v.nii.gz", volume)
    ours, theirs = read_volume(tmp_path / "series"), read_volume(tmp_path / "v.nii.gz")
    assert np.array_equal(ours.array, theirs.array)
    assert ours.array.dtype == theirs.array.dtype
    assert np.abs(ours.grid.affine - theirs.grid.affine).max() < 1e-3
    assert ours.grid.orientation == theirs.grid.orientation
    assert read_grid(tmp_path / "series").shape == ours.array.shape


@pytest.mark.parametrize("order", ["coronal", "axial"])
def test_other_slice_directions_are_taken_from_the_affine(tmp_path: Path, order: str) -> None:
    """Files cut along another axis still come out as sagittal slices, rows downwards, columns backwards."""
    volume = knee()
    axes = {"coronal": (2, 1, 0), "axial": (1, 2, 0)}[order]  # of (z, y, x): slice, row, column of the files
    affine = volume.grid.affine[:, [2 - axes[2], 2 - axes[1], 2 - axes[0], 3]]
    array = np.ascontiguousarray(volume.array.transpose(axes))
    write_series(tmp_path / "series", Volume(array, Grid(array.shape, affine)))
    ours = read_volume(tmp_path / "series")
    flips = volume.grid.flips_to(ours.grid)
    assert flips is not None
    assert np.array_equal(np.flip(volume.array, flips), ours.array)


def test_the_side_is_what_the_series_says(tmp_path: Path) -> None:
    for description, side in (
        ("SAG_3D_DESS_LEFT", "left"),
        ("SAG 3D DESS right", "right"),
        ("SAG_3D_DESS", None),
        ("BRIGHT_T2", None),
    ):
        write_series(tmp_path / description, knee(), description)
        assert dicom.side(tmp_path / description) == side

    def contradict(n: int, ds: Any) -> None:
        ds.Laterality = "R"

    write_series(tmp_path / "both", knee(), "DESS_LEFT", contradict)
    with pytest.raises(ReasonKneeError, match="Y009"):
        dicom.side(tmp_path / "both")


@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2", "1.2.840.10008.1.2.1"], ids=["implicit", "explicit"])
def test_elements_are_found_among_any_others(syntax: str, tmp_path: Path) -> None:
    """A header such as scanners write: private elements, sequences of both kinds in each other, another image within one, and something after the pixels."""
    from pydicom.dataset import Dataset
    from pydicom.sequence import Sequence
    from pydicom.uid import UID

    def among(n: int, ds: Any) -> None:
        ds.file_meta.TransferSyntaxUID = UID(syntax)
        block = ds.private_block(0x0019, "A MAKER", create=True)
        for number in range(150):
            block.add_new(number, "LO", f"value {number}")
        inner, icon = Dataset(), Dataset()
        inner.ReferencedSOPInstanceUID, inner.Rows = "1.2.3", 3
        icon.Rows, icon.Columns, icon.BitsAllocated, icon.PixelData = 2, 2, 16, bytes(8)
        icon.ReferencedImageSequence = Sequence([inner, inner])
        icon["ReferencedImageSequence"].is_undefined_length = True
        for name, undefined in (("IconImageSequence", True), ("ReferencedImageSequence", n % 2 == 0)):
            setattr(ds, name, Sequence([icon, icon]))
            ds[name].is_undefined_length = undefined
            for item in ds[name].value:
                item.is_undefined_length_sequence_item = undefined
        ds.DataSetTrailingPadding = bytes(1 << 18)

    volume = knee()
    write_series(tmp_path / "series", volume, change=among)
    assert np.array_equal(read_volume(tmp_path / "series").array, volume.array)
    assert dicom.check_volume(tmp_path / "series")[0].same_place(volume.grid)


# --- the whole way ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def oai(cohort: Path, tmp_path: Path) -> Path:
    """The cohort's tables, masks and split files, with its images as OAI's DICOM folders."""
    root = tmp_path / "oai"
    shutil.copytree(cohort, root, ignore=shutil.ignore_patterns(FILE_NAME, "*.h5", "images"))
    for scan in find_scans(cohort / "images"):
        folder = oai_folder(root / "images", scan.patient, str(scan.visit), scan.study, scan.series)
        write_series(folder, read_volume(scan.path), f"SAG_3D_DESS_{str(scan.side).upper()}")
    return root


def facts(path: Path) -> list[tuple[Any, ...]]:
    known: list[Annotation] = [a for _, a in scan_annotations(path)]
    return [
        (
            a.volume_id,
            a.split,
            a.study,
            a.series,
            a.shape,
            np.round(a.spacing, 4).tolist(),
            a.orientation,
            a.boxes,
            a.grades,
        )
        for a in known
    ]


def test_from_an_oai_download_to_a_release(cohort: Path, oai: Path, tmp_path: Path) -> None:
    """Tables, DICOM and masks, nothing else; the release holds the same voxels as the one made from NIfTI; no name of a person gets through."""
    assert command("construct", oai) == 0
    assert facts(oai / FILE_NAME) == facts(cohort / FILE_NAME)
    assert command("build", oai, tmp_path / "release", "--configs", "full,annotations") == 0
    import pyarrow.parquet as pq

    from reasonknee.volumes import volume_from_bytes

    images = {f"{s.patient}-{s.visit}-{s.side}": s.path for s in find_scans(cohort / "images")}
    rows = [
        row
        for path in sorted((tmp_path / "release").rglob("*.parquet"))
        if "full" in str(path)
        for row in pq.read_table(path).to_pylist()
    ]
    assert {row["volume_id"] for row in rows} == set(images)
    for row in rows:
        assert np.array_equal(
            volume_from_bytes(row["volume"]["bytes"]).array, read_volume(images[row["volume_id"]]).array
        )
    for path in [
        oai / FILE_NAME,
        oai / "construct.report.json",
        *(p for p in (tmp_path / "release").rglob("*") if p.is_file()),
    ]:
        assert SECRET.encode() not in path.read_bytes()


def test_without_split_files_the_side_comes_from_the_series(cohort: Path, oai: Path) -> None:
    shutil.rmtree(oai / "splits")
    assert command("construct", oai, "--seed", "3") == 0
    assert facts(oai / FILE_NAME) == facts(cohort / FILE_NAME)


def test_damaged_series_are_quarantined(cohort: Path, oai: Path) -> None:
    series = sorted(p for p in (oai / "images").glob("*/*/*/*/*") if p.is_dir())
    next(p for p in sorted(series[0].iterdir()) if p.name == "008").unlink()
    assert command("construct", oai) == 3
    report = json.loads((oai / "construct.report.json").read_text())
    assert [each["code"] for each in report["quarantine"]] == ["Y007"]
    assert len(facts(oai / FILE_NAME)) == len(facts(cohort / FILE_NAME)) - 1


# --- refusals ---------------------------------------------------------------------------------------------------------------------


def setting(**tags: Any) -> Callable[[int, Any], bool | None]:
    """Sets these tags on the third slice only."""

    def change(n: int, ds: Any) -> None:
        if n == 2:
            for name, value in tags.items():
                setattr(ds, name, value)

    return change


def everywhere(**tags: Any) -> Callable[[int, Any], bool | None]:
    def change(n: int, ds: Any) -> None:
        for name, value in tags.items():
            setattr(ds, name, value)

    return change


def without(tag: str) -> Callable[[int, Any], bool | None]:
    def change(n: int, ds: Any) -> None:
        delattr(ds, tag)

    return change


REFUSALS: dict[str, tuple[str, Callable[[int, Any], bool | None]]] = {
    "a slice is missing": ("Y007", lambda n, ds: n != 2),
    "every other slice is missing, as the header tells": (
        "Y007",
        lambda n, ds: (setattr(ds, "SpacingBetweenSlices", "18.6"), n % 2 == 0)[1],
    ),
    "two slices in one place": (
        "Y006",
        lambda n, ds: setattr(ds, "ImagePositionPatient", [0, 0, 0]) if n < 2 else None,
    ),
    "a slice off the line": (
        "Y007",
        lambda n, ds: (
            ds.ImagePositionPatient.__setitem__(1, ds.ImagePositionPatient[1] + 3) if n == 2 else None
        ),
    ),
    "another series among them": ("Y005", setting(SeriesInstanceUID="1.2.3")),
    "another size": ("Y005", setting(Rows=4)),
    "another orientation": ("Y005", setting(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])),
    "another pixel spacing": ("Y005", setting(PixelSpacing=[1, 1])),
    "no position": ("Y004", without("ImagePositionPatient")),
    "no orientation": ("Y004", without("ImageOrientationPatient")),
    "orientation without right angles": ("Y004", everywhere(ImageOrientationPatient=[1, 0, 0, 1, 0, 0])),
    "no pixel spacing": ("Y004", without("PixelSpacing")),
    "zero pixel spacing": ("V005", everywhere(PixelSpacing=[0, 0])),
    "oblique": (
        "V005",
        everywhere(ImageOrientationPatient=[0, 0.7071068, 0.7071068, 0, 0.7071068, -0.7071068]),
    ),
    "too few pixels": ("Y002", setting(PixelData=b"\0" * 10)),
    "no pixels": ("Y002", without("PixelData")),
    "colour": ("Y003", everywhere(SamplesPerPixel=3)),
    "scaled": ("Y003", everywhere(RescaleSlope="2", RescaleIntercept="0")),
    "several frames": ("Y003", everywhere(NumberOfFrames="5")),
    "32 bits": ("Y003", everywhere(BitsAllocated=32)),
    "scaled by nothing": ("Y003", everywhere(RescaleSlope="0")),
    "scaled by a table": ("Y003", everywhere(ModalityLUTSequence=[])),
    "no sample": ("Y003", everywhere(SamplesPerPixel=0)),
    "bits in another place": ("Y003", everywhere(HighBit=15)),
    "more than its bits hold": ("Y003", everywhere(BitsStored=4, HighBit=3)),
    "negative pixel spacing": ("Y004", everywhere(PixelSpacing=[-0.4, 0.4])),
    "no number of slices": ("Y004", everywhere(SpacingBetweenSlices="nan")),
    "a header that lies": ("Y008", everywhere(Rows=65000, Columns=65000)),
    "not an image": ("Y003", without("Rows")),
    "one slice": ("Y008", lambda n, ds: n == 0),
}


@pytest.mark.parametrize("fault", REFUSALS)
def test_doubtful_series_are_refused(tmp_path: Path, fault: str) -> None:
    code, change = REFUSALS[fault]
    write_series(tmp_path / "series", knee(), change=change)
    with pytest.raises(ReasonKneeError) as refused:
        read_volume(tmp_path / "series")
    assert refused.value.code == code, refused.value


def test_compressed_files_are_refused_unread(tmp_path: Path) -> None:
    """Deflated DICOM could unpack to any size: it is refused by its transfer syntax."""
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    def deflate(n: int, ds: Any) -> None:
        ds.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian

    write_series(tmp_path / "series", knee(), change=deflate)
    with pytest.raises(ReasonKneeError, match="Y003"):
        read_grid(tmp_path / "series")


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 128 + b"DICM", b"\0" * 128 + b"DICM" + b"\xff" * 300, b"notes about the series"]
)
def test_a_file_that_is_no_slice_is_refused(tmp_path: Path, content: bytes) -> None:
    write_series(tmp_path / "series", knee())
    (tmp_path / "series" / "notes").write_bytes(content)
    with pytest.raises(ReasonKneeError) as refused:
        read_grid(tmp_path / "series")
    assert refused.value.code in ("Y002", "Y003")


def test_damaged_bytes_never_escape_as_another_error(tmp_path: Path) -> None:
    write_series(tmp_path / "series", knee())
    path = tmp_path / "series" / "003"
    good, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(150):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad), 4):
            bad[at] = int(rng.integers(256))
        path.write_bytes(bytes(bad[: int(rng.integers(132, len(bad)))] if rng.random() < 0.3 else bad))
        try:
            read_volume(tmp_path / "series")
        except ReasonKneeError:
            refused += 1
    assert refused > 30


@pytest.mark.parametrize(("package", "code"), [("cc3d", "J012"), ("pydicom", "Y010")])
def test_a_missing_extra_is_one_line(oai: Path, package: str, code: str) -> None:
    without = f"import sys; sys.modules['{package}'] = None; from reasonknee.cli import main; sys.argv[0] = 'reasonknee'; main()"
    done = run("-c", without, "construct", oai)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(f"error {code}: ")
    assert "pip install 'reasonknee[construct]'" in line


def test_the_commands_of_the_page(oai: Path) -> None:
    """From an OAI download to a first batch in five commands or fewer, exactly as the page shows them."""
    (block,) = re.findall(
        r"```bash\n(pip install [^`]*?construct oai\b.*?)```",
        (ROOT / "docs/construct.md").read_text(),
        flags=re.S,
    )
    lines = block.strip().splitlines()
    assert len(lines) <= 5
    (oai.parent / "examples").symlink_to(ROOT / "examples")
    for line in lines[1:]:
        program, *words = shlex.split(line, comments=True)
        assert program in ("reasonknee", "python")
        done = run(*words, cwd=oai.parent)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("volumes (4, 1, 32, 64, 64) torch.float32")
