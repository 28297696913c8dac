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
from reasonknee.limits import MEMORY, limited
from reasonknee.phantom.cohort import phantom_grid
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
    with pytest.raises(DataError, match=r"V010: not to be read in \d+ MB") if sys.platform == "linux" else pytest.raises(DataError):
        limited(lambda: str(np.ones(2 * MEMORY, np.uint8).sum()), 10)
    with pytest.raises(DataError, match=r"V010: not read to its end in 0.05 s"):
        limited(lambda: str(sum(iter(int, 1))), 0.05)  # for ever
    with pytest.raises(DataError, match=r"V011: it ended the process that read it \(SIGKILL\)"):
        limited(lambda: str(os.kill(os.getpid(), signal.SIGKILL)), 10)
    with pytest.raises(DataError, match=r"V011: it ended the process that read it \(code 1\)"):
        limited(lambda: ask(RuntimeError("a fault of ours")), 10)


@pytest.mark.parametrize("where", ["meta", "dataset", "sequence"])
def test_a_million_elements_are_not_read(where: str, tmp_path: Path) -> None:
    folder = tmp_path / "series"
    write_series(folder, Volume(np.zeros((3, 8, 8), np.uint16), phantom_grid((3, 8, 8))))
    first = min(folder.iterdir())
    many_elements(first, 100_000, where)
    for read in (read_grid, read_volume):
        with pytest.raises(DataError, match=f"^Y008: series/{first.name}: more than"):
            read(folder)
    done = run("check-volume", folder)
    assert done.stdout.startswith(f"Y008 {folder}: {first.name}: more than 16384 elements"), done.stdout
    assert (done.returncode, done.stderr) == (3, "")
