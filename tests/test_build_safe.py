"""Nothing of the user's is lost to a build, nothing stale or false gets into a release, and what stops it is one line."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import run, run_as_anyone

from reasonknee.cohort import Cohort
from reasonknee.cohort.scans import find_scans
from reasonknee.errors import DataError, StorageError, UsageError, remedy
from reasonknee.layout import read_manifest
from reasonknee.phantom.cohort import write_cohort
from reasonknee.release import Build, build, shards
from reasonknee.system.files import sha256_of
from reasonknee.system.folders import MARK, whole_folder
from reasonknee.system.locks import Lock
from reasonknee.volumes import Volume, read_volume, write_nifti
from reasonknee.volumes.plausible import why_no_scan

CONFIGS = ("cropped", "annotations")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("safe") / "cohort"
    write_cohort(folder, patients=1, seed=1, shape=(16, 40, 40))
    return folder


@pytest.fixture
def own(one: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one, tmp_path / "cohort"))


def images(cohort: Path) -> list[Path]:
    return sorted(scan.path for scan in find_scans(cohort / "images"))


# --- what is the user's stays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["knee.records/notes.json", "knee.partial/notes.txt", "knee.lock", "knee.records/.reasonknee"]
)
def test_what_is_not_ours_is_left_as_it_is(one: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    done = run("build", one, tmp_path / "knee", "--configs", "annotations")
    assert (done.returncode, done.stderr[:10]) == (2, "error R011"), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert path.read_text() == "mine"
    assert not (tmp_path / "knee").exists()


@pytest.mark.parametrize("name", ["knee.records", "knee.partial", "knee.lock", "knee"])
def test_no_link_is_followed(one: Path, tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if name == "knee.lock":
        elsewhere.write_text("mine")
    else:
        elsewhere.mkdir()
    (tmp_path / name).symlink_to(elsewhere)
    done = run("build", one, tmp_path / "knee", "--configs", "annotations")
    assert done.returncode in (2, 4), done.stderr
    assert done.stderr.startswith(("error R011", "error R012", "error R001")), done.stderr
    assert (elsewhere.read_text() == "mine") if elsewhere.is_file() else not list(elsewhere.iterdir())
    assert (tmp_path / name).is_symlink()


def test_a_stranger_in_our_own_working_folder_is_not_cleared(one: Path, tmp_path: Path) -> None:
    Build(Cohort(one), tmp_path / "knee", CONFIGS).run_part(1, 1)
    assert (tmp_path / "knee.records" / MARK).is_file()
    note = tmp_path / "knee.partial" / "notes.txt"
    note.write_text("mine")
    with pytest.raises(UsageError, match=r"R013: .*notes\.txt"):
        build(Cohort(one), tmp_path / "knee", CONFIGS)
    assert note.read_text() == "mine"
    note.rename(tmp_path / "notes.txt")
    (tmp_path / "knee.partial" / "full").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="R012"):
        build(Cohort(one), tmp_path / "knee", CONFIGS)
    (tmp_path / "knee.partial" / "full").unlink()
    build(Cohort(one), tmp_path / "knee", CONFIGS)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["knee", "notes.txt"]


def test_a_pipe_for_a_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "r.lock")
    with pytest.raises(UsageError, match="R011"), Lock(tmp_path / "r.lock"):
        pass
    assert (tmp_path / "r.lock").is_fifo()


def test_a_folder_is_whole_or_not_there(tmp_path: Path) -> None:
    def half() -> None:
        with whole_folder(tmp_path / "new") as folder:
            (folder / "a").write_text("half")
            raise DataError("T999", "stopped")

    with pytest.raises(DataError, match="stopped"):
        half()
    assert not list(tmp_path.iterdir())
    (tmp_path / "c.partial").mkdir()
    (tmp_path / "c.partial" / "mine").write_text("mine")
    write_cohort(tmp_path / "c", patients=1, shape=(16, 40, 40))
    assert (tmp_path / "c.partial" / "mine").read_text() == "mine"


# --- the same command again --------------------------------------------------------------------------------------------------------


def test_a_finished_build_says_so_and_another_is_refused(own: Path, tmp_path: Path) -> None:
    command = ["build", own, tmp_path / "knee", "--configs", "cropped,annotations"]
    assert run(*command).returncode == 0
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "knee").rglob("*")}
    again = run(*command)
    assert (again.returncode, again.stderr) == (0, "")
    assert "finished it before" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "knee").rglob("*")} == before
    for other in (["--margin", "3"], ["--release-version", "2.0.0"], ["--questions", "all69"]):
        done = run(*command, *other)
        assert (done.returncode, done.stderr[:10]) == (2, "error R001"), done.stderr
    image = images(own)[0]
    data, then = image.read_bytes(), image.stat()
    image.write_bytes(data)  # the same bytes, but who could tell without reading all of them?
    os.utime(image, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert run(*command).returncode == 2


def test_an_image_put_in_place_of_another_is_seen(own: Path, tmp_path: Path) -> None:
    """Same size and same time of change, between a kill and the next run: the old voxels may not stay."""
    out = tmp_path / "knee"
    Build(Cohort(own), out, ["full"]).run_part(1, 1)
    image = images(own)[0]
    volume = read_volume(image)
    plain = image.with_name(image.name.removesuffix(".gz"))
    before = image.stat()
    other = Volume(volume.array[:, ::-1].copy(), volume.grid)
    write_nifti(plain, other)
    data = plain.read_bytes()
    plain.unlink()
    image.write_bytes(data + b"\0" * max(0, before.st_size - len(data)))  # gzip may be padded
    os.truncate(image, max(before.st_size, len(data)))
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    build(Cohort(own), out, ["full"])
    build(Cohort(own), tmp_path / "clean", ["full"])
    assert {s.sha256 for s in read_manifest(out).shards} == {
        s.sha256 for s in read_manifest(tmp_path / "clean").shards
    }


def test_a_shard_damaged_between_two_runs_is_made_again(one: Path, tmp_path: Path) -> None:
    Build(Cohort(one), tmp_path / "knee", CONFIGS).run_part(1, 1)
    for shard in (tmp_path / "knee.partial").rglob("*.parquet"):
        data, times = bytearray(shard.read_bytes()), shard.stat()
        data[len(data) // 2] ^= 1
        shard.write_bytes(data)
        os.utime(shard, ns=(times.st_atime_ns, times.st_mtime_ns))
    manifest = build(Cohort(one), tmp_path / "knee", CONFIGS)
    assert all(sha256_of(tmp_path / "knee" / s.path) == s.sha256 for s in manifest.shards)


def test_workers_with_another_pyarrow_are_refused(one: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    job = Build(Cohort(one), tmp_path / "knee", ["cropped"])
    group = job._groups(job._volumes()[0])[0]
    with pytest.raises(UsageError, match="R014"):
        shards.write_group(replace(group, pyarrow="1.0"))


# --- one line, the right code, the right hint --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env", [{}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}], ids=["utf-8", "C"]
)
def test_odd_names(one: Path, tmp_path: Path, env: dict[str, str]) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/kn\xff\xc3\xa9e\n1"))
    done = run("build", one, odd, "--configs", "cropped,annotations", env=env)
    assert done.returncode == 0, done.stderr
    assert read_manifest(odd).configs == ["cropped", "annotations"]
    assert sorted(os.listdir(os.fsencode(tmp_path))) == [os.fsencode(odd.name)]
    for words, code in ((["build", one, odd, "--configs", "annotations"], "R001"), (["look", odd], "I002")):
        done = run(*words, env=env)
        assert (done.returncode, done.stderr[:10]) == (2, f"error {code}"), done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_link_that_leads_back_to_itself_is_one_bad_volume(own: Path, tmp_path: Path) -> None:
    image = images(own)[0]
    image.unlink()
    image.symlink_to(image.name)
    done = run("build", own, tmp_path / "knee", "--configs", "cropped", "--max-bad", "1")
    assert done.returncode == 0, done.stderr
    assert "V000" in done.stdout
    done = run("build", own, tmp_path / "other", "--configs", "cropped")
    assert (done.returncode, done.stderr[:10]) == (3, "error R005"), done.stderr
    assert "symbolic links" in done.stderr


def test_hints_fit_the_error() -> None:
    import errno

    hints = {
        number: remedy(OSError(number, "x"))
        for number in (errno.ENOSPC, errno.EACCES, errno.ELOOP, errno.EIO)
    }
    assert hints == {
        errno.ENOSPC: "make room",
        errno.EACCES: "check the permissions",
        errno.ELOOP: "a link leads back to itself: remove it",
        errno.EIO: "check the path and the disk",
    }


def test_where_nothing_may_be_written(one: Path, tmp_path: Path) -> None:
    """A folder that cannot be written to, for root, too."""
    for parent in ("/proc", "/sys/kernel"):
        done = run("build", one, f"{parent}/knee", "--configs", "annotations")
        assert done.returncode == 4, done.stderr
        assert "make room" not in done.stderr
        assert len(done.stderr.splitlines()) == 1
    (tmp_path / "loop").symlink_to("loop")
    done = run("build", one, tmp_path / "loop" / "knee", "--configs", "annotations")
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "make room" not in done.stderr


def test_the_root_of_all_folders_is_no_place_for_a_release(one: Path) -> None:
    done = run("build", one, "/")
    assert (done.returncode, done.stderr[:10]) == (2, "error R001"), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_visit_has_one_spelling(own: Path, tmp_path: Path) -> None:
    path = own / "annotations.jsonl"
    lines = path.read_text().splitlines()
    first = json.loads(lines[0])
    first["volume_id"] = first["volume_id"].replace(f"-{first['visit']}-", "-012m-")
    first["visit"] = "012m"
    path.write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    done = run("build", own, tmp_path / "knee")
    assert (done.returncode, done.stderr[:10]) == (3, "error A001"), done.stderr
    assert "012m" in done.stderr


# --- masks are no images -----------------------------------------------------------------------------------------------------------


def test_masks_for_images_are_refused_by_attach_build_and_validate(own: Path, tmp_path: Path) -> None:
    shutil.rmtree(own / "images")
    (own / "masks").rename(own / "images")
    names = [e.volume_id for e in Cohort(own).entries()]
    attached = run("attach", own / "annotations.jsonl", "--images", own / "images", "--out", tmp_path / "c")
    assert attached.returncode == 3, attached.stdout
    assert "V015" in attached.stdout
    assert "--accept" in attached.stderr, "how it is overruled"
    built = run("build", own, tmp_path / "r", "--configs", "full", "--max-bad", "0")
    assert (built.returncode, built.stderr[:10]) == (3, "error R005"), built.stderr
    assert "looks like a label map" in built.stderr
    checked = run("validate", own)
    assert checked.returncode == 3
    assert "V015" in checked.stdout
    accept = [word for name in names for word in ("--accept", name)]
    assert run("build", own, tmp_path / "r", "--configs", "full", *accept).returncode == 0
    assert run("attach", own / "annotations.jsonl", "--images", own / "images", *accept).returncode == 0
    checked = run("validate", tmp_path / "r")
    assert checked.returncode == 3
    assert "X311" in checked.stdout
    assert "X311" not in run("validate", tmp_path / "r", *accept).stdout
    unknown = run("build", own, tmp_path / "s", "--accept", "nobody")
    assert (unknown.returncode, unknown.stderr[:10]) == (2, "error C006")


@pytest.mark.parametrize("seed", range(3))
def test_scans_look_like_scans(one: Path, seed: int) -> None:
    """Knees of the synthetic cohort, noise, a knee in 8 bits, one with blank ends, one with a zeroed background."""
    rng = np.random.default_rng(seed)
    for path in images(one):
        knee = read_volume(path).array
        assert why_no_scan(knee) == ""
        assert why_no_scan((knee / max(1, knee.max()) * 255).astype(np.uint8)) == ""
        assert why_no_scan(np.where(knee > np.median(knee), knee, 0)) == ""
        assert why_no_scan(np.concatenate([knee * 0, knee, knee])) == ""
    assert why_no_scan(rng.integers(0, 4000, (20, 40, 40)).astype(np.int16)) == ""
    assert why_no_scan(np.zeros((2, 2, 2), np.uint8)) == "", "too small to be judged"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_no_scan_does_not_look_like_one(one: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    masks = [read_volume(scan.path).array for scan in find_scans(one / "masks")]
    for mask in masks:
        assert "label map" in why_no_scan(mask)
        assert "label map" in why_no_scan(mask.astype(np.float32) * 100 + 7)
    blank = np.zeros((20, 40, 40), np.uint16)
    assert "constant" in why_no_scan(blank)
    blank[:, 3, rng.integers(40)] = 5
    assert "all but" in why_no_scan(blank)
    few = rng.integers(0, 4000, (20, 40, 40)).astype(np.uint16)
    few[:11] = 4
    assert "11 of its 20 slices are constant" in why_no_scan(few)


def test_what_may_not_be_read_says_so(few: Path, tmp_path: Path) -> None:
    """A shard without permission is no damaged release, a folder that may not be written is not a full one."""
    shutil.copytree(few, tmp_path / "r", copy_function=shutil.copyfile)
    for shard in (tmp_path / "r" / "full").iterdir():
        shard.chmod(0)
    (tmp_path / "closed").mkdir(0o555)
    old = Path(__file__).parent / "layout2"
    for words in (
        ("look", tmp_path / "r"),
        ("validate", tmp_path / "r"),
        ("migrate", old, tmp_path / "closed" / "r"),
    ):
        done = run_as_anyone(*words)
        said = done.stderr
        assert done.returncode == 4, said
        assert "Permission denied" in said
        assert "permissions)" in said or "check the permissions" in said
