"""A release of SGMRI-VQA: built twice it is the same, and `load_dataset` opens it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, command

from reasonknee.errors import DataError, UsageError
from reasonknee.layout.sgmri import read_qa_manifest
from reasonknee.sgmri.images import FastMriFile
from reasonknee.sgmri.release import Build


def everything(folder: Path) -> dict[Path, bytes]:
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_release_is_the_same_twice_and_opens(
    sgmri: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets

    scans, qa = sgmri / "scans", sgmri / "qa"
    assert command("sgmri", "build", qa, tmp_path / "one", "--images", scans / "images") == 0
    assert everything(tmp_path / "one") == everything(sgmri / "release")
    assert read_qa_manifest(tmp_path / "one").configs == ["qa", "slices", "volumes"]
    rows = datasets.load_dataset(
        str(tmp_path / "one"), "volumes", split="train", cache_dir=str(tmp_path / "c")
    )
    row = rows[0]
    with FastMriFile(next((scans / "images").rglob(f"{row['volume_id']}.h5"))) as file:
        assert row["image"]["bytes"] == file.frames("slice").tobytes()
    assert command("sgmri", "build", qa, tmp_path / "x", "--rendering", "loud") == 2
    assert "error Z033: " in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match=r"Z030.*8 volumes without an image: file9000001, .*file_brain_"):
        Build(qa, tmp_path / "three", tmp_path / "none").run()
    (tmp_path / "none" / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="Z040"):
        read_qa_manifest(tmp_path / "none")

    lines = (qa / "qa.jsonl").read_text()
    for old, new, code in (('"frame":', '"frame":4', "Z031"), ('"patient":"', '"patient":"other-', "Z032")):
        bad = tmp_path / code
        bad.mkdir()
        (bad / "qa.jsonl").write_text(lines.replace(old, new).replace('"frame":4null', '"frame":null'))
        with pytest.raises(DataError, match=code):
            Build(bad, tmp_path / f"{code}-release", scans / "images").run()


def test_the_commands_of_the_page_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From nothing to a report with six columns for slices and for volumes."""
    page = (ROOT / "docs" / "sgmri.md").read_text()
    block = page.partition("```bash\n")[2].partition("```")[0]
    commands = [
        shlex.split(line, comments=True) for line in block.splitlines() if line.startswith("reasonknee ")
    ]
    assert len(commands) == 6
    monkeypatch.chdir(tmp_path)
    for _, *words in commands:
        assert command(*words) == 0, words
    said = (tmp_path / "scores" / "scores.md").read_text()
    heads = [line for line in said.splitlines() if line.startswith("| model | detection")]
    assert [line.count("|") - 2 for line in heads] == [6, 6]


_KILLED = """
import os, sys
last = int(sys.argv[1])
from reasonknee.sgmri import images
from reasonknee.cli import main
frames, calls = images.FastMriFile.frames, []
def counted(self, rendering="slice"):
    calls.append(self.path.stem)
    if len(calls) == last:
        os._exit(9)
    return frames(self, rendering)
images.FastMriFile.frames = counted
sys.argv[1:2] = []
try:
    main()
finally:
    print(len(calls))
"""


def test_a_build_that_was_killed_goes_on_to_the_same_bytes(sgmri: Path, tmp_path: Path) -> None:
    scans, qa = sgmri / "scans", sgmri / "qa"
    words = ["sgmri", "build", str(qa), str(tmp_path / "killed"), "--images", str(scans / "images")]

    def run(at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _KILLED, str(at), *words], capture_output=True, text=True
        )

    assert run(7).returncode == 9  # the training split is written, the test split half read
    assert not (tmp_path / "killed").exists()
    again = run(99)
    assert again.returncode == 0, again.stderr
    assert again.stdout.split()[-1] == "4"  # what was finished is not read again
    assert everything(tmp_path / "killed") == everything(sgmri / "release")
