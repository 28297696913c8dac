"""The command as a user meets it."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import command, run

from reasonknee.cli import _Bar
from reasonknee.questions import QUESTIONS
from reasonknee.version import VERSION


def test_version() -> None:
    assert run("--version").stdout.strip() == f"reasonknee {VERSION}"


def test_version_imports_nothing_heavy() -> None:
    """It answers fast because of what it leaves alone; a stopwatch would be noisier than this."""
    code = "import sys; sys.argv = ['reasonknee', '--version']\nimport atexit\natexit.register(lambda: print(sorted({'numpy', 'pyarrow', 'datasets', 'torch', 'nibabel', 'h5py'} & set(sys.modules))))\nfrom reasonknee.cli import main; main()"
    assert run("-c", code).stdout.splitlines()[-1] == "[]"


def test_questions() -> None:
    lines = run("questions").stdout.splitlines()
    assert [line.split()[1] for line in lines] == list(QUESTIONS)
    assert [line.split()[2] for line in lines] == [q.category.id for q in QUESTIONS.values()], "the names that filters take"
    assert all(f"({q.category.title})" in line and f" {q.region.id} " in line for line, q in zip(lines, QUESTIONS.values(), strict=True))
    assert run("questions", "acl").stdout == run("questions", "60").stdout
    assert "DESS" in run("questions", "acl").stdout
    assert "DESS" not in run("questions", "acl", "--wording", "zero_shot").stdout


def test_wrong_usage() -> None:
    for words in (["build"], ["phantom", "x", "--shape", "1,2"], ["no-such-command"], ["phantom", "x", "--seed", "-1"]):
        done = run(*words)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["buidl"], "No such command 'buidl'"),
        (["score", "--foo"], "No such option"),
        (["score"], "Missing argument"),
        (["build", "a", "b", "--workers", "two"], "Invalid value for '--workers'"),
        (["parse", "acl", "--shape", "1"], "'1' is not Z,Y,X"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_a_mistake_in_the_call_is_one_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(*words) == 2
    said = capsys.readouterr()
    line, end = said.err.split("\n")
    assert line.startswith("error I001: ")
    assert told in line
    assert line.endswith("--help` shows how it is called)")
    assert (end, said.out) == ("", "")


def test_look(release: Path, tmp_path: Path) -> None:
    done = run("look", release, "--out", tmp_path / "slice.png")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("---")] == ["--- cropped", "--- full", "--- embeddings", "--- annotations"]
    assert (tmp_path / "slice.png").read_bytes().startswith(b"\x89PNG")
    one = run("look", release, "--id", "1000001-00m-nowhere-acl")
    assert one.returncode == 2
    assert "L001" in one.stderr


def test_phantom_same_seed_same_bytes(tmp_path: Path) -> None:
    for name, seed, env in (
        ("a", 1, {"PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1"}),
        ("b", 1, {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo"}),
        ("c", 2, {}),
    ):
        assert run("phantom", tmp_path / name, "--patients", 1, "--seed", seed, "--shape", "16,40,40", env=env).returncode == 0
    files = {name: {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()} for name in "abc"}
    assert files["a"] == files["b"]
    assert files["a"] != files["c"]
    kinds = {str(p).split("/")[0] for p in files["a"]}
    assert kinds == {"annotations.jsonl", "embeddings.h5", "images", "masks", "splits", "tables"}


def test_no_space_is_one_line(cohort: Path, tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk."""
    code = "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nresource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\nsys.argv = ['reasonknee', 'build', *sys.argv[1:]]\nfrom reasonknee.cli import main; main()"
    done = run("-c", code, cohort, tmp_path / "r")
    assert done.returncode == 4, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error R010: the build stopped: ")
    assert "the same command goes on" in line
    assert not (tmp_path / "r").exists()
    assert run("build", cohort, tmp_path / "r").returncode == 0


@pytest.mark.parametrize(("stage", "unit"), [("checking shards, MB", "MB/s"), ("writing cropped, full", "vol/s")])
def test_a_bar_names_what_it_counts(stage: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    bar = _Bar()
    bar(stage, 3, 10)
    bar.close()
    assert unit in screen.getvalue()
    assert f"{stage.removesuffix(', MB')}:" in screen.getvalue()


def test_interrupted(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "reasonknee.cli", "phantom", str(tmp_path / "c"), "--patients", "500", "--shape", "16,40,40"]
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - a job in the background of a script starts with it ignored
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    while not (tmp_path / "c.partial").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not (tmp_path / "c").exists()
