"""OAI's images as they lie on people's disks: every layout goes from sources to a first batch, DESS is told by what says so, and archives are
read as they stand."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import command
from dicom_series import write_series

from reasonknee.cohort import Annotation, Cohort
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations
from reasonknee.cohort.scans import find_scans
from reasonknee.collate import Collator, loader
from reasonknee.phantom.cohort import write_cohort
from reasonknee.phantom.layouts import LAYOUTS
from reasonknee.release import Options, build
from reasonknee.stream import quintuples
from reasonknee.volumes import read_volume

pytest.importorskip("pydicom")
pytest.importorskip("cc3d")
torch = pytest.importorskip("torch")
SHAPE, SEED = (16, 40, 40), 3


@pytest.fixture(scope="module")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One synthetic patient in every layout."""
    folder = tmp_path_factory.mktemp("downloads")
    for layout in LAYOUTS:
        write_cohort(folder / layout, patients=1, seed=SEED, shape=SHAPE, layout=layout)
    return folder


@pytest.fixture
def download(downloads: Path, tmp_path: Path) -> Path:
    """A copy of one whose files say for themselves what they are."""
    shutil.copytree(downloads / "bare", tmp_path / "bare")
    return tmp_path / "bare"


def facts(folder: Path) -> list[Annotation]:
    """What is known, without what depends on where the images lie; spacing to what DICOM can write."""
    return [
        replace(
            a,
            reasoning={},
            split="train",
            spacing=tuple(round(mm, 3) for mm in a.spacing),
            provenance=replace(a.provenance, package=None, image_sha256=None),
        )
        for _, a in scan_annotations(folder / FILE_NAME)
    ]


def report(folder: Path) -> dict:
    return json.loads((folder / "construct.report.json").read_text())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_goes_from_sources_to_a_first_batch(
    downloads: Path, tmp_path: Path, layout: str
) -> None:
    cohort = tmp_path / "cohort"
    shutil.copytree(downloads / layout, cohort, ignore=shutil.ignore_patterns(FILE_NAME))
    assert command("construct", cohort, "--splits", "own" if layout not in ("nifti", "flat") else "") == 0
    assert facts(cohort) == facts(downloads / "nifti")
    packages = {a.provenance.package for _, a in scan_annotations(cohort / FILE_NAME)}
    assert ("0.C.2" in packages) == (layout in ("oai", "bare", "results", "tar"))
    build(Cohort(cohort), tmp_path / "release", ["cropped"], options=Options())
    (split,) = {p.name.split("-")[0] for p in (tmp_path / "release" / "cropped").iterdir()}
    rows = quintuples(str(tmp_path / "release"), "cropped", split, boxed=True, seed=0)
    batch = next(iter(loader(rows, Collator(fit="resize", grid=(8, 16, 16)), 4)))
    assert tuple(batch.volumes.shape) == (4, 1, 8, 16, 16)


def test_other_series_are_not_dess(download: Path) -> None:
    """Alone in its folder, a series of another sequence is still no DESS; one that says nothing is named."""
    scans = list(find_scans(download / "images"))
    dess = [s for s in scans if s.is_dess()]
    assert len(scans) == 3 * len(dess)
    alone = dess[0]
    shutil.rmtree(alone.path)
    assert command("construct", download) in (0, 3)
    knees = [a for _, a in scan_annotations(download / FILE_NAME)]
    assert len(knees) == len(dess) - 1
    assert report(download)["series"]["of_other_sequences"] == 2 * len(dess)


def test_a_series_that_says_nothing_is_named(download: Path) -> None:
    scan = next(s for s in find_scans(download / "images") if s.is_dess())
    volume = read_volume(scan.path)
    shutil.rmtree(scan.path)
    write_series(scan.path, volume)
    assert command("construct", download) == 0
    assert report(download)["volumes"]["left_out"]["nothing says that the series is DESS"] == [
        "/".join(scan.key)
    ]


def test_of_two_dess_series_the_later_is_taken_and_both_are_named(
    download: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scan = next(s for s in find_scans(download / "images") if s.is_dess())
    later = scan.path.with_name(f"{int(scan.series) + 7}")
    shutil.copytree(scan.path, later)
    for mask in (download / "masks").rglob(f"*_{scan.series}_*"):
        mask.rename(mask.with_name(mask.name.replace(scan.series, later.name)))
    assert command("construct", download) == 0
    assert f"{scan.study}/{later.name} was taken, not {scan.study}/{scan.series}" in capfd.readouterr().out
    (choice,) = report(download)["series"]["choices"].values()
    assert choice == {"chosen": f"{scan.study}/{later.name}", "besides": [f"{scan.study}/{scan.series}"]}


def test_archives_are_read_as_they_stand(downloads: Path, tmp_path: Path) -> None:
    """The same voxels as in the folder; a damaged archive costs its volume only, and nothing is left on the disk."""
    before = sorted(p.name for p in (downloads / "tar").rglob("*"))
    for packed in find_scans(downloads / "tar" / "images"):
        (plain,) = [s for s in find_scans(downloads / "bare" / "images") if s.key == packed.key]
        assert (read_volume(packed.path).array == read_volume(plain.path).array).all()
    assert sorted(p.name for p in (downloads / "tar").rglob("*")) == before
    broken = tmp_path / "broken"
    shutil.copytree(downloads / "tar", broken)
    dess = [s for s in find_scans(broken / "images") if s.is_dess()]
    dess[0].path.write_bytes(dess[0].path.read_bytes()[:2000])
    assert command("construct", broken, "--max-bad", "1") == 0
    (bad,) = report(broken)["quarantine"]
    assert bad["code"] == "Y002"


def test_an_archive_of_something_else_is_refused(downloads: Path, tmp_path: Path) -> None:
    path = tmp_path / "series.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(downloads / "tar" / "tables", "tables")
    assert command("check-volume", path) == 3
    path.write_bytes(b"not an archive")
    assert command("check-volume", path) == 3


def test_attach_links_archives(downloads: Path, tmp_path: Path) -> None:
    """Annotations that were made elsewhere find scans in archives, and the cohort of links is built from them."""
    truth = downloads / "nifti" / FILE_NAME
    assert (
        command("attach", truth, "--images", downloads / "tar" / "images", "--out", tmp_path / "cohort") == 0
    )
    cohort = Cohort(tmp_path / "cohort")
    assert all(p.name.endswith(".tar.gz") for p in cohort.images(cohort.entries()).values())
    build(cohort, tmp_path / "release", ["cropped"], options=Options())


@pytest.mark.parametrize("layout", LAYOUTS[2:])
def test_a_plan_says_what_is_there_and_what_to_type(
    downloads: Path, tmp_path: Path, layout: str, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "download"
    shutil.copytree(downloads / layout, folder)
    volumes = len(facts(downloads / "nifti"))
    assert command("plan", folder) == 0
    told = capfd.readouterr().out
    assert f"scans: {volumes} DESS volumes" in told
    assert f"next: reasonknee construct {folder} && reasonknee build" in told
    dess = [s for s in find_scans(folder / "images") if s.is_dess()]
    shutil.rmtree(dess[0].path) if dess[0].path.is_dir() else dess[0].path.unlink()
    shutil.rmtree(folder / "masks")
    assert command("plan", folder) == 0
    told = capfd.readouterr().out
    assert f"readings without a scan, {dess[0].visit}: 1 ({dess[0].patient}" in told
    assert "OAI's image package 0.C.*" in told
    assert "--no-masks" in told


def test_a_plan_of_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command("plan", tmp_path / "none") == 2
    assert "J017" in capfd.readouterr().err
    assert command("plan", tmp_path) == 0
    assert "no MOAKS table" in capfd.readouterr().out


def test_a_plan_without_tables_leads_to_the_published_annotations(
    download: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Most users have scans alone: they are told what a release needs, and what to type next."""
    shutil.rmtree(download / "tables")
    assert command("plan", download) == 0
    told = capfd.readouterr().out
    assert "a release of" in told
    assert f"reasonknee attach annotations.jsonl --images {download} --out cohort" in told
    assert "0.0 GB" not in told


def test_a_few_patients_for_a_first_try(cohort: Path, tmp_path: Path) -> None:
    """Every split has some, each patient in the split of the whole cohort."""
    whole = {a.patient: a.split for _, a in scan_annotations(cohort / FILE_NAME)}
    for n, options in enumerate((["--splits", "own", "--seed", "3"], [])):
        out = tmp_path / f"{n}.jsonl"
        assert command("construct", cohort, "--out", out, "--patients", "4", *options) == 0
        few = {a.patient: a.split for _, a in scan_annotations(out)}
        assert len(few) == 4
        assert few.items() <= whole.items()
        assert set(few.values()) == set(whole.values())


def test_a_layout_that_is_none_and_one_that_needs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    few = ("--patients", "1", "--shape", "16,40,40")
    assert command("phantom", tmp_path / "a", *few, "--layout", "attic") == 2
    assert "F004" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "pydicom.dataset", None)
    assert command("phantom", tmp_path / "a", *few, "--layout", "bare") == 2
    assert "F003" in capfd.readouterr().err
