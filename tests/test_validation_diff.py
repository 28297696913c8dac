"""Two releases: what changed, and whether the version says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import command
from spoil import spoil

from reasonknee.validation.diff import compare, version_step


@pytest.fixture(scope="module")
def old(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff") / "old"
    spoil(release, folder, {"only": ["full", "annotations"], "rows": []})
    return folder


CASES: dict[str, tuple[dict[str, Any], str, str, dict[str, int]]] = {
    "nothing": ({}, "1.0.0", "none", {}),
    "text": ({"rows": [{"question": "acl", "set": {"question.zero_shot": "?"}}]}, "1.0.1", "patch", {"text": 1}),
    "grades": (
        {"rows": [{"question": "acl", "set": {"grades.repair": 1, "grades.complete_tear": 1}, "derive": True}]},
        "1.1.0",
        "minor",
        {"grades": 1, "text": 1},
    ),
    "boxes": ({"rows": [{"question": "acl", "set": {"box.x0": 0}, "derive": True}]}, "1.1.0", "minor", {"boxes": 1, "text": 1}),
    "voxels": ({"rows": [{"configs": ["full"], "bytes": [{"at": 400, "xor": 1}]}]}, "1.1.0", "minor", {"voxels": 1}),
    "rows removed": ({"rows": [{"configs": ["annotations"], "drop": True}]}, "2.0.0", "major", {"removed": 1}),
    "question set": ({"manifest": {"questions": "paper62"}}, "2.0.0", "major", {}),
    "config removed": ({"only": ["annotations"]}, "2.0.0", "major", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_changed_and_the_step_it_needs(name: str, old: Path, tmp_path: Path) -> None:
    fault, version, needed, rows = CASES[name]
    spoil(old, tmp_path / "new", {"rows": [], **fault, "manifest": {**fault.get("manifest", {}), "release_version": version}})
    difference = compare(old, tmp_path / "new")
    if name == "nothing":
        assert difference.needed in ("none", "patch")  # the card names the version
    else:
        assert difference.needed == needed
    assert {k: v for k, v in difference.rows.items() if v} == rows
    assert difference.enough
    if needed in ("minor", "major"):
        spoil(old, tmp_path / "low", {"rows": [], **fault, "manifest": {**fault.get("manifest", {}), "release_version": "1.0.1"}})
        assert not compare(old, tmp_path / "low").enough


def test_added_rows_and_the_command(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(old, tmp_path / "less", {"rows": [{"configs": ["annotations"], "drop": True}], "manifest": {"release_version": "0.9.0"}})
    assert command("diff", tmp_path / "less", old, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"]["added"], said["needed"], said["declared"], said["enough"]) == (1, "minor", "major", True)
    assert said["histograms"], "one more row is one more grade"
    assert command("diff", old, tmp_path / "less") == 3
    text = capsys.readouterr().out
    assert "1 removed" in text
    assert "NOT enough" in text
    assert command("diff", old, tmp_path / "none") == 3


def test_a_patient_that_moved(old: Path, tmp_path: Path) -> None:
    change = {"split": "test", "volume": 0, "patient_of": ["train", 0], "visit": "96m"}
    spoil(old, tmp_path / "new", {"rows": [change], "manifest": {"release_version": "1.9.0"}})
    difference = compare(old, tmp_path / "new")
    assert list(difference.moved.values()) == ["train to test+train"]
    assert difference.needed == "major"
    assert not difference.enough


def test_version_steps() -> None:
    pairs = {
        ("1.0.0", "1.0.1"): "patch",
        ("1.0.9", "1.1.0"): "minor",
        ("1.9.9", "2.0.0"): "major",
        ("1.0.0", "1.0.0"): "none",
        ("2.0.0", "1.9.9"): "none",
    }
    assert {pair: version_step(*pair) for pair in pairs} == pairs
