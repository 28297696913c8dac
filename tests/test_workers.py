"""One way to share long work: here, by processes or by a cluster, the same results, and one end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reasonknee.errors import DataError, StorageError
from reasonknee.system.files import whole, write_text
from reasonknee.system.workers import as_finished, executor, in_order


def square(n: int) -> int:
    if n < 0:
        raise DataError("T999", "below zero")
    return n * n


def die(n: int) -> int:
    os._exit(n)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_job_comes_with_its_result(workers: int) -> None:
    jobs = list(range(7))
    with executor(workers) as pool:
        assert list(in_order(square, jobs, pool)) == [(n, n * n) for n in jobs]
        assert sorted(as_finished(square, jobs, pool)) == [(n, n * n) for n in jobs]
        with pytest.raises(DataError, match="below zero"):
            list(in_order(square, [1, -1, 2], pool))


def test_a_worker_that_dies_is_one_clear_error() -> None:
    with pytest.raises(StorageError, match="R004"), executor(2) as pool:
        list(in_order(die, [1, 1], pool))


def test_a_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "file", "first")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "new" / "file", "second, but not to its \udcff")
    with whole(tmp_path / "new" / "none"):
        pass
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["file"]
    assert (tmp_path / "new" / "file").read_text() == "first"


SLEEPERS = """
import sys, time
from reasonknee.errors import reported
from reasonknee.system.workers import executor, in_order
if __name__ == "__main__":
    def command():
        with executor(4) as pool:
            print("begun", flush=True)
            list(in_order(time.sleep, [30] * 8, pool))
    reported(command)
"""


@pytest.mark.parametrize("after", [0.0, 0.05, 0.1, 0.2])
def test_an_interrupt_ends_all_of_it_without_a_word(tmp_path: Path, after: float) -> None:
    """Ctrl-C goes to every process of a terminal, also to workers that have not begun yet."""
    (tmp_path / "job.py").write_text(SLEEPERS)
    job = subprocess.Popen(
        [sys.executable, str(tmp_path / "job.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "begun\n"
    time.sleep(after)
    os.killpg(job.pid, signal.SIGINT)
    _, told = job.communicate(timeout=20)
    assert (job.returncode, told) == (130, "")


def test_an_error_carries_its_place_between_processes() -> None:
    import pickle

    error = DataError("V006", "truncated", "copy it again").at("a/b.nii.gz").at("elsewhere")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == "V006: a/b.nii.gz: truncated (copy it again)"
    assert (again.place, again.message, type(again)) == ("a/b.nii.gz", "truncated", DataError)
