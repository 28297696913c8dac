"""What is made by hand to be slow, large or deadly for a library: the gate's verdict on it comes all the same."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import run
from dicom_series import write_series
from hostile import many_elements, slow_gzip

from reasonknee.errors import DataError, StorageError
from reasonknee.phantom.cohort import phantom_grid
from reasonknee.system.limits import MEMORY, limited
from reasonknee.volumes import Volume, read_grid, read_volume, write_nifti

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="limits are those of a child process")

SHAPE = (40, 300, 300)


def test_a_slow_file_is_given_up_and_the_next_is_read(tmp_path: Path) -> None:
    slow = tmp_path / "slow.nii.gz"
    slow_gzip(slow, SHAPE)
    write_nifti(tmp_path / "knee.nii.gz", Volume(np.zeros((2, 2, 2), np.uint16), phantom_grid((2, 2, 2))))
    done = run("check-volume", "--seconds", "0.01", slow, tmp_path / "knee.nii.gz")
    first, second = done.stdout.splitlines()
    assert first.startswith(f"V010 {slow}: not read to its end in 0.01 s"), done.stdout
    assert second.startswith(f"ok {tmp_path / 'knee.nii.gz'}: NIfTI, 2 x 2 x 2 voxels")
    assert (done.returncode, done.stderr) == (3, "")
    assert run("check-volume", "--seconds", "60", slow).returncode == 0
    assert read_volume(slow).array.shape == SHAPE


def test_what_comes_of_work_within_limits(tmp_path: Path) -> None:
    def ask(error: Exception) -> str:
        raise error

    assert limited(lambda: "fine", 10) == "fine"
    with pytest.raises(StorageError, match=r"^V000: gone \(look\)$"):
        limited(lambda: ask(StorageError("V000", "gone", "look")), 10)
    if sys.platform == "linux":
        with pytest.raises(DataError, match=r"V013: not to be read in \d+ MB"):
            limited(lambda: str(np.ones(2 * MEMORY, np.uint8).sum()), 10)
    with pytest.raises(DataError, match=r"V010: not read to its end in 0.05 s"):
        limited(lambda: str(sum(iter(int, 1))), 0.05)  # for ever
    with pytest.raises(DataError, match=r"V011: it ended the process that read it \(SIGKILL\)"):
        limited(lambda: str(os.kill(os.getpid(), signal.SIGKILL)), 10)
    with pytest.raises(DataError, match=r"V014: RuntimeError while it was read: a fault of ours"):
        limited(lambda: ask(RuntimeError("a fault of ours")), 10)


@pytest.mark.parametrize("where", ["meta", "dataset", "sequence", "items"])
def test_a_series_that_is_slow_by_hand_is_given_up_and_the_next_file_is_read(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydicom takes as long as there are elements: a limit ends it, in `check-volume` and where a folder is read."""
    folder = tmp_path / "series"
    volume = Volume(np.zeros((3, 8, 8), np.uint16), phantom_grid((3, 8, 8)))
    write_series(folder, volume)
    write_nifti(tmp_path / "knee.nii.gz", volume)
    for path in folder.iterdir():
        many_elements(path, 200_000, where)
    done = run("check-volume", "--seconds", "0.5", folder, tmp_path / "knee.nii.gz")
    first, second = done.stdout.splitlines()
    assert first.startswith((f"V010 {folder}: not read to its end in 0.5 s", f"Y002 {folder}: ")), done.stdout
    assert second.startswith("ok ")
    assert (done.returncode, done.stderr) == (3, "")
    monkeypatch.setattr("reasonknee.volumes.dicom.PATIENT", 0.5)
    for read in (read_grid, read_volume):
        with pytest.raises(DataError, match=r"V010: series: |Y002: series/"):
            read(folder)


def test_a_verdict_is_one_line_whatever_a_name_holds(tmp_path: Path) -> None:
    """Neither a file nor what is in it can write a line of its own, or to the terminal; and what cannot be looked at keeps no other file waiting."""
    import h5py

    bad = "a\nok b.nii: NIfTI\x1b[2J" + "x" * 1000
    with h5py.File(tmp_path / "names.h5", "w") as file:
        file[bad] = np.zeros(3, np.float16)
    odd, good = tmp_path / "new\nline.nii", tmp_path / "good.nii.gz"
    odd.write_text("hello")
    write_nifti(good, Volume(np.zeros((2, 2, 2), np.uint16), phantom_grid((2, 2, 2))))
    unprintable = os.fsencode(tmp_path) + b"/\xff.nii"
    Path(os.fsdecode(unprintable)).write_text("hello")
    files = [
        tmp_path / "names.h5",
        odd,
        os.fsdecode(unprintable),
        tmp_path / ("n" * 300),
        "/proc/self/mem",
        good,
    ]
    done = run("check-volume", *files, env={**os.environ, "PYTHONIOENCODING": "ascii:strict"})
    codes = [line.split(" ")[0] for line in done.stdout.splitlines()]
    assert codes[:4] + codes[5:] == ["E002", "V001", "V001", "V000", "ok"], done.stdout
    assert codes[4] in ("V000", "V001"), done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 1000
    assert (done.returncode, done.stderr) == (4, "")


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no signal masks")
def test_limits_hold_whatever_the_caller_did_to_signals(tmp_path: Path) -> None:
    slow_gzip(tmp_path / "slow.nii.gz", SHAPE)
    code = (
        "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'reasonknee', 'check-volume', '--seconds', '0.01', sys.argv[1]])"
    )
    done = run("-c", code, tmp_path / "slow.nii.gz")
    assert done.stdout.startswith("V010 "), done.stdout + done.stderr
    assert done.returncode == 3
