"""OAI's images as they lie on people's disks: every layout goes from sources to a first batch, DESS is told by what says so, and archives are
read as they stand."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import command, needs, run_as_anyone
from dicom_series import write_series

from reasonknee.cohort import Annotation, Cohort
from reasonknee.cohort.annotations import FILE_NAME, scan_annotations, write_annotations
from reasonknee.cohort.scans import find_scans
from reasonknee.collate import Collator, loader
from reasonknee.errors import DataError, counted
from reasonknee.phantom.cohort import write_cohort
from reasonknee.phantom.layouts import LAYOUTS
from reasonknee.questions import QUESTION_SETS
from reasonknee.release import Options, build
from reasonknee.stream import quintuples
from reasonknee.volumes import read_volume

needs("pydicom")
needs("cc3d")
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


def test_an_archive_is_read_before_the_folder_unpacked_beside_it(downloads: Path, tmp_path: Path) -> None:
    """Whoever unpacks and keeps the archives has each series twice, and perhaps half of it."""
    both = tmp_path / "both"
    shutil.copytree(downloads / "tar", both)
    packed = list(find_scans(both / "images"))
    for scan in packed:
        (plain,) = [s for s in find_scans(downloads / "bare" / "images") if s.key == scan.key]
        half = scan.path.with_name(plain.path.name)
        half.mkdir()
        shutil.copy(min(plain.path.iterdir()), half)
    assert list(find_scans(both / "images")) == packed


def test_an_archive_that_was_cut_is_no_short_series(downloads: Path, tmp_path: Path) -> None:
    """Wherever it was cut, between two files, too, where a tar looks like a whole one with fewer; and a bit that turned is found."""
    whole = next(s for s in find_scans(downloads / "tar" / "images") if s.is_dess()).path.read_bytes()
    tar = gzip.decompress(whole)
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        members = [member.offset for member in archive]
    turned = bytearray(whole)
    turned[-8] ^= 1
    bad = {
        "between.tar": tar[: members[-1]],
        "half.tar": tar[: members[-1] + 512] + b"\0" * 512,
        "between.tar.gz": gzip.compress(tar[: members[8]]),
        "no-end.tar.gz": gzip.compress(tar[: members[-1] + 600]),
        "cut.tgz": whole[:-9],
        "checksum.tar.gz": bytes(turned),
        "empty.tar": b"",
        "empty.tar.gz": b"",
    }
    for name, content in {**bad, "padded.TAR": tar + bytes(20480), "whole.TAR.GZ": whole}.items():
        (tmp_path / name).write_bytes(content)
    for name in bad:
        with pytest.raises(DataError, match="Y002"):
            read_volume(tmp_path / name)
    assert (read_volume(tmp_path / "padded.TAR").array == read_volume(tmp_path / "whole.TAR.GZ").array).all()


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


def planned(folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    assert command("plan", folder) == 0
    return capfd.readouterr().out


def typed(line: str) -> None:
    """What a plan says to type next, typed: each command must do its work."""
    for words in (shlex.split(part) for part in line.partition(": ")[2].split(" && ")):
        assert (command(*words[1:]) if words[0] == "reasonknee" else subprocess.call(words)) == 0, words


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_plan_says_what_is_there_and_what_to_type(
    downloads: Path,
    tmp_path: Path,
    layout: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It announces what `construct` then does, on a whole download and on one with holes."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "my download"
    shutil.copytree(downloads / layout, folder, ignore=shutil.ignore_patterns(FILE_NAME))
    volumes = len(facts(downloads / "nifti"))
    told = planned(folder, capfd)
    assert f"scans: {volumes} DESS volumes" in told
    asked = sum(
        q in {p.id for p in QUESTION_SETS["paper62"]} for a in facts(downloads / "nifti") for q in a.grades
    )
    assert f"can be answered: {asked:,} of paper62 on {volumes} volumes" in told
    (line,) = re.findall("^next: .*", told, re.MULTILINE)
    typed(line)
    assert len(facts(folder)) == volumes
    assert (tmp_path / "release" / "manifest.json").is_file()
    assert "annotations are there" in planned(folder, capfd)
    (folder / FILE_NAME).unlink()
    lost = next(s for s in find_scans(folder / "images") if s.is_dess())
    shutil.rmtree(lost.path) if lost.path.is_dir() else lost.path.unlink()
    shutil.rmtree(folder / "masks")
    told = planned(folder, capfd)
    visit = next(a.visit for a in facts(downloads / "nifti") if a.study == lost.study)
    assert f"readings without a scan that can be used, {visit}: 1 ({lost.patient}" in told
    assert re.search(
        r"OAI's image package [0-9]\.C\.\*, path [0-9]\.C\.\*/<patient>/<yyyymmdd>/<series>", told
    )
    (line,) = re.findall("^a first try: .*", told, re.MULTILINE)
    assert "--no-masks" in line
    shutil.rmtree(folder / "splits", ignore_errors=True)
    if layout == "flat":  # only split files know its visits
        assert f"not used, visit unknown: {volumes - 1}" in planned(folder, capfd)
        return
    typed(line)
    assert len(facts(folder)) == volumes - 1
    report_ = report(folder)["readings"]["without_a_scan"]
    assert [name[:7] for names in report_.values() for name in names] == [lost.patient]


def test_a_plan_of_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command("plan", tmp_path / "none") == 2
    assert "J017" in capfd.readouterr().err
    told = planned(tmp_path, capfd)
    assert "no MOAKS table" in told
    assert "next: bring scans" in told
    assert "a release of" not in told


def test_a_plan_without_tables_leads_to_the_published_annotations(
    downloads: Path,
    download: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Most users have scans alone: they are told what a release needs, and what to type next. Masks that lie beside are no scans."""
    shutil.rmtree(download / "tables")
    told = planned(download, capfd)
    assert "a release of" in told
    assert "0.0 GB" not in told
    (attach,) = re.findall("reasonknee (attach .*)", told)
    monkeypatch.chdir(tmp_path)
    write_annotations(tmp_path / "annotations.jsonl", facts(downloads / "nifti"))
    assert command(*shlex.split(attach)) == 0
    assert (tmp_path / "cohort" / FILE_NAME).is_file()


def test_a_plan_of_scans_that_lie_beside_the_tables(
    download: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`construct` reads images/: what a plan says to type makes a folder that it takes, with masks and without."""
    monkeypatch.chdir(tmp_path)
    for visit in (download / "images").iterdir():
        visit.rename(download / visit.name)
    told = planned(download, capfd)
    volumes = re.findall("scans: ([0-9]+) DESS", told)
    typed(re.findall("^next: .*", told, re.MULTILINE)[0])
    told = planned(tmp_path / "cohort", capfd)
    assert re.findall("scans: ([0-9]+) DESS", told) == volumes
    assert command("construct", "cohort") == 0
    assert [str(len(facts(tmp_path / "cohort")))] == volumes
    shutil.rmtree(tmp_path / "cohort")
    shutil.rmtree(download / "masks")
    typed(re.findall("^next: .*", planned(download, capfd), re.MULTILINE)[0])
    assert command("construct", "cohort", "--no-masks") == 0


def test_a_plan_tells_what_construct_will_leave_out(
    downloads: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A mask that is missing, masks under other names, a file of no bytes: counted, named, and not among what can be answered."""
    folder = tmp_path / "download"
    shutil.copytree(downloads / "nifti", folder, ignore=shutil.ignore_patterns(FILE_NAME))
    images, masks = (sorted((folder / name).rglob("*.nii.gz")) for name in ("images", "masks"))
    images[0].write_bytes(b"")
    masks[1].unlink()
    told = planned(folder, capfd)
    assert "cannot be read: 1 x V001, the first: " in told
    assert f"masks: {len(masks) - 1}; left out, since they have none: 1 volume (" in told
    assert f"on {counted(len(images) - 2, 'volume')}" in told
    assert command("construct", folder, "--max-bad", "1") == 0
    assert len(facts(folder)) == len(images) - 2
    for mask in masks[2:] + masks[:1]:
        mask.rename(mask.with_name("mask.nii.gz"))
    (folder / FILE_NAME).unlink()
    told = planned(folder, capfd)
    assert "none named as masks are" in told
    assert "--no-masks" in told


def test_a_folder_that_cannot_be_opened_is_named(download: Path) -> None:
    scan = next(s for s in find_scans(download / "images") if s.is_dess())
    scan.path.parent.chmod(0)
    try:
        done = run_as_anyone("plan", download)
        assert (
            f"folders that cannot be opened: 1, the first: {scan.path.parent}: Permission denied"
            in done.stdout
        )
        assert run_as_anyone("construct", download).returncode == 0
        assert report(download)["folders_closed"] == [f"{scan.path.parent}: Permission denied"]
    finally:
        scan.path.parent.chmod(0o700)


def test_names_that_are_no_text_do_not_end_the_report(downloads: Path, tmp_path: Path) -> None:
    folder = tmp_path / "download"
    shutil.copytree(downloads / "nifti", folder, ignore=shutil.ignore_patterns(FILE_NAME))
    patient = min((folder / "images").iterdir())
    odd = Path(os.fsdecode(os.fsencode(folder / "images") + b"/\xff"))
    odd.mkdir()
    patient.rename(odd / patient.name)
    min(odd.rglob("*.nii.gz")).write_bytes(b"")
    assert command("construct", folder, "--max-bad", "1") in (0, 3)
    assert "\\udcff" in (folder / "construct.report.md").read_text()


def test_contents_csv_tells_the_visit(download: Path) -> None:
    """A package whose folder was renamed: the path says no visit, its list of contents does."""
    dess = [s for s in find_scans(download / "images") if s.is_dess()]
    lines = ["Folder,ParticipantID,StudyDate,Barcode,SeriesDescription"]
    for s in dess:
        place = s.path.relative_to(download / "images").as_posix()
        lines.append(f"{place},{s.patient},{s.study},0166{s.series},SAG_3D_DESS_{s.side_in_file().upper()}")
    (download / "images" / "contents.csv").write_text("\ufeff" + "\r\n".join(lines) + "\r\n")
    for folder in list((download / "images").iterdir()):
        if folder.is_dir():
            for package in folder.iterdir():
                package.rename(download / "images" / f"downloaded {folder.name}")
            folder.rmdir()
    assert {s.visit for s in find_scans(download / "images") if s.is_dess()} == {s.visit for s in dess}


def test_a_first_slice_of_no_bytes_costs_its_volume_and_is_named(download: Path) -> None:
    scan = next(s for s in find_scans(download / "images") if s.is_dess())
    min(scan.path.iterdir()).write_bytes(b"")
    assert command("construct", download, "--max-bad", "1") == 0
    (bad,) = report(download)["quarantine"]
    assert (bad["code"], bad["volume"][:7]) == ("Y002", scan.patient)


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
        told = json.loads(out.with_name("construct.report.json").read_text())
        assert len(told["volumes"]["left_out"]["not among the patients that were asked for"]) > 1
        assert "no volume of the knee and visit" not in told["cells"]["unused"]


def test_a_layout_that_is_none_and_one_that_needs_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    few = ("--patients", "1", "--shape", "16,40,40")
    assert command("phantom", tmp_path / "a", *few, "--layout", "attic") == 2
    assert "F004" in capfd.readouterr().err
    monkeypatch.setitem(sys.modules, "pydicom.dataset", None)
    assert command("phantom", tmp_path / "a", *few, "--layout", "bare") == 2
    assert "F003" in capfd.readouterr().err
