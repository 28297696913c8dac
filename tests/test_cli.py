"""The command as a user meets it."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import command, run

from reasonknee.cli.app import Bar
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
    assert [line.split()[2] for line in lines] == [q.category.id for q in QUESTIONS.values()], (
        "the names that filters take"
    )
    assert all(
        f"({q.category.title})" in line and f" {q.region.id} " in line
        for line, q in zip(lines, QUESTIONS.values(), strict=True)
    )
    assert run("questions", "acl").stdout == run("questions", "60").stdout
    assert "DESS" in run("questions", "acl").stdout
    assert "DESS" not in run("questions", "acl", "--wording", "zero_shot").stdout


def test_wrong_usage() -> None:
    for words in (
        ["build"],
        ["phantom", "x", "--shape", "1,2"],
        ["no-such-command"],
        ["phantom", "x", "--seed", "-1"],
    ):
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
def test_a_mistake_in_the_call_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
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
    assert [line for line in done.stdout.splitlines() if line.startswith("---")] == [
        "--- cropped",
        "--- full",
        "--- embeddings",
        "--- annotations",
    ]
    assert (tmp_path / "slice.png").read_bytes().startswith(b"\x89PNG")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed").open(tmp_path / "slice.png")
    pixels = np.asarray(image.convert("RGB")).astype(int)
    blue = (np.abs(pixels - (0x56, 0xB4, 0xE9)).sum(2) < 40).sum(0).nonzero()[0]
    thirds = np.histogram(blue, 3, (0, pixels.shape[1]))[0]
    assert (thirds > 0).all(), "the box is in all three planes"
    assert np.median(pixels[:6, :6]) < 30, "on a dark ground"
    one = run("look", release, "--id", "1000001-00m-nowhere-acl")
    assert one.returncode == 2
    assert "L001" in one.stderr


def test_look_at_crops_and_boxes(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A release with crops alone has its picture, and boxes come as a label map on the volume's grid."""
    import nibabel

    from reasonknee.boxes import Box
    from reasonknee.release.reader import Release

    only = tmp_path / "crops"
    only.mkdir()
    (only / "cropped").symlink_to(release / "cropped")
    manifest = json.loads((release / "manifest.json").read_text())
    kept = [s for s in manifest["shards"] if s["config"] == "cropped"]
    (only / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    id_ = next(i for i in Release(release).columns("test", ["id"])["id"].to_pylist() if i.endswith("-acl"))
    arguments = ["--id", id_, "--out", tmp_path / "crop.png", "--boxes", tmp_path / "boxes.nii.gz"]
    assert command("look", only, *arguments) == 0
    assert (tmp_path / "crop.png").read_bytes().startswith(b"\x89PNG")
    labels = np.asarray(nibabel.load(tmp_path / "boxes.nii.gz").dataobj).transpose(2, 1, 0)
    names = (tmp_path / "boxes.label.txt").read_text()
    number = int(re.search(r'^(\d+) .*"acl"$', names, re.M)[1])
    (row,) = Release(release).rows([id_], "annotations")
    whole, drawn = Box.from_dict(row["box"]), Box.from_mask(labels == number)
    assert drawn
    assert whole.iou(drawn) > 0.5, "smaller boxes lie on top of larger ones"
    assert set(np.unique(labels[whole.slices])) - {0}, "and none of it is empty"
    assert command("look", release, "--id", id_, "--boxes", tmp_path / "boxes.nii") == 2
    assert "H022" in capsys.readouterr().err
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "annotations").symlink_to(release / "annotations")
    kept = [s for s in manifest["shards"] if s["config"] == "annotations"]
    (bare / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    assert command("look", bare, "--out", tmp_path / "none.png") == 2
    assert "L002" in capsys.readouterr().err


def test_phantom_same_seed_same_bytes(tmp_path: Path) -> None:
    for name, seed, env in (
        ("a", 1, {"PYTHONHASHSEED": "1", "OPENBLAS_NUM_THREADS": "1"}),
        ("b", 1, {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo"}),
        ("c", 2, {}),
    ):
        assert (
            run(
                "phantom", tmp_path / name, "--patients", 1, "--seed", seed, "--shape", "16,40,40", env=env
            ).returncode
            == 0
        )
    files = {
        name: {
            p.relative_to(tmp_path / name): p.read_bytes()
            for p in (tmp_path / name).rglob("*")
            if p.is_file()
        }
        for name in "abc"
    }
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


@pytest.mark.parametrize(
    ("stage", "unit"), [("checking shards, MB", "MB/s"), ("writing cropped, full", "vol/s")]
)
def test_a_bar_names_what_it_counts(stage: str, unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    bar = Bar()
    bar(stage, 3, 10)
    bar.close()
    assert unit in screen.getvalue()
    assert f"{stage.removesuffix(', MB')}:" in screen.getvalue()


def test_interrupted(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "reasonknee",
        "phantom",
        str(tmp_path / "c"),
        "--patients",
        "500",
        "--shape",
        "16,40,40",
    ]
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - a job in the background of a script starts with it ignored
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    while not list(tmp_path.glob(".c.*")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_a_shell_completes_commands() -> None:
    """As bash asks, after `reasonknee --install-completion`."""
    asked = {"COMP_WORDS": "reasonknee che", "COMP_CWORD": "1", "_REASONKNEE_COMPLETE": "complete_bash"}
    code = "import sys; sys.argv = ['reasonknee']; from reasonknee.__main__ import main; main()"
    assert run("-c", code, env=asked).stdout.split() == ["check-volume"]
