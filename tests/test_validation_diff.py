"""Two releases: what changed, and whether the version says so."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import command, run
from hub import Hub
from spoil import _set, spoil

from reasonknee.validation.diff import compare, version_step


@pytest.fixture(scope="module")
def old(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff") / "old"
    spoil(release, folder, {"only": ["full", "annotations"], "rows": []})
    return folder


CASES: dict[str, tuple[dict[str, Any], str, str, dict[str, int]]] = {
    "nothing": ({}, "1.0.0", "none", {}),
    "text": (
        {"rows": [{"question": "acl", "set": {"question.zero_shot": "?"}}]},
        "1.0.1",
        "patch",
        {"text": 1},
    ),
    "grades": (
        {
            "rows": [
                {"question": "acl", "set": {"grades.repair": 1, "grades.complete_tear": 1}, "derive": True}
            ]
        },
        "1.1.0",
        "minor",
        {"grades": 1, "text": 1},
    ),
    "boxes": (
        {"rows": [{"question": "acl", "set": {"box.x0": 0}, "derive": True}]},
        "1.1.0",
        "minor",
        {"boxes": 1, "text": 1},
    ),
    "voxels": (
        {"rows": [{"configs": ["full"], "bytes": [{"at": 400, "xor": 1}]}]},
        "1.1.0",
        "minor",
        {"voxels": 1},
    ),
    "spacing": ({"rows": [{"volume": 0, "set": {"spacing.z": 0.5}}]}, "1.1.0", "minor", {"spacing": 69}),
    "shape": ({"rows": [{"volume": 0, "set": {"shape.x": 47}}]}, "1.1.0", "minor", {"shape": 69}),
    "scan": ({"rows": [{"volume": 0, "set": {"series": "10000009"}}]}, "1.1.0", "minor", {"scan": 69}),
    "sources": (
        {"rows": [{"question": "acl", "set": {"published_reasoning": "It is torn."}}]},
        "1.0.1",
        "patch",
        {"sources": 1},
    ),
    "rows removed": (
        {"rows": [{"configs": ["annotations"], "drop": True}]},
        "2.0.0",
        "major",
        {"removed": 1},
    ),
    "question set": ({"manifest": {"questions": "paper62"}}, "2.0.0", "major", {}),
    "config removed": ({"only": ["annotations"]}, "2.0.0", "major", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_changed_and_the_step_it_needs(name: str, old: Path, tmp_path: Path) -> None:
    fault, version, needed, rows = CASES[name]
    spoil(
        old,
        tmp_path / "new",
        {"rows": [], **fault, "manifest": {**fault.get("manifest", {}), "release_version": version}},
    )
    difference = compare(old, tmp_path / "new")
    if name == "nothing":
        assert difference.needed in ("none", "patch")  # the card names the version
    else:
        assert difference.needed == needed
    assert {k: v for k, v in difference.rows.items() if v} == rows
    assert difference.enough
    if needed in ("minor", "major"):
        spoil(
            old,
            tmp_path / "low",
            {"rows": [], **fault, "manifest": {**fault.get("manifest", {}), "release_version": "1.0.1"}},
        )
        assert not compare(old, tmp_path / "low").enough


def test_added_rows_and_the_command(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(
        old,
        tmp_path / "less",
        {"rows": [{"configs": ["annotations"], "drop": True}], "manifest": {"release_version": "0.9.0"}},
    )
    assert command("diff", tmp_path / "less", old, "--json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rows"]["added"], said["needed"], said["declared"], said["enough"]) == (
        1,
        "minor",
        "major",
        True,
    )
    assert said["histograms"], "one more row is one more grade"
    assert command("diff", old, tmp_path / "less") == 3
    text = capsys.readouterr().out
    assert "1 removed" in text
    assert "NOT enough" in text
    capsys.readouterr()
    for names in ((old, tmp_path / "none"), (tmp_path / "none", old), (old, old / "README.md")):
        assert command("diff", *names) == 2, "as `validate` has it"
        assert capsys.readouterr().err.startswith("error M002: no folder at ")


def test_a_patient_that_moved(old: Path, tmp_path: Path) -> None:
    change = {"split": "test", "volume": 0, "patient_of": ["train", 0], "visit": "96m"}
    spoil(old, tmp_path / "new", {"rows": [change], "manifest": {"release_version": "1.9.0"}})
    difference = compare(old, tmp_path / "new")
    assert list(difference.moved.values()) == ["train to test+train"]
    assert difference.needed == "major"
    assert not difference.enough


# --- releases that are not what their manifests say -------------------------------------------------------------------------------

SHARD = "full/train-00000-of-00001.parquet"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def loop(path: Path) -> None:
    """No user can read it, not even root."""
    path.unlink()
    path.symlink_to(path)


DAMAGES: dict[str, tuple[str, Callable[[Path], object], int, str]] = {
    "missing": (SHARD, Path.unlink, 4, "X000"),
    "unreadable": (SHARD, loop, 4, "X000"),
    "cut": (SHARD, lambda path: os.truncate(path, path.stat().st_size - 1), 3, "X404"),
    "flipped": (SHARD, flip, 3, "X404"),
    "flipped rows": ("annotations/test-00000-of-00001.parquet", flip, 3, "X404"),
    "other grade spaces": ("schema/answers.schema.json", flip, 3, "X404"),
    "no card": ("README.md", Path.unlink, 4, "X000"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_equal_manifests_of_unequal_files(
    name: str, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That nothing changed is said of files that were looked at."""
    file, damage, code, said = DAMAGES[name]
    new = tmp_path / "new"
    shutil.copytree(old, new)
    assert command("diff", old, new) == 0
    damage(new / file)
    for names in ((old, new), (new, old)):
        capsys.readouterr()
        assert command("diff", *names) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error {said}: {new / file}"), "of the two, the one that is meant"
        assert code == 4 or "validate it first" in line


def test_a_pipe_for_a_text_keeps_nobody_waiting(old: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    shutil.copytree(old, new)
    (new / "README.md").unlink()
    os.mkfifo(new / "README.md")
    done = run("diff", old, new)
    assert (done.returncode, done.stderr[:10]) == (3, "error X402")


@pytest.mark.parametrize(
    ("dotted", "value"),
    [
        ("release_version", None),
        ("release_version", "1.0"),
        ("shards", []),
        ("shards.0.split", 0),
        ("shards.0.bytes", None),
        ("files", "x"),
    ],
)
def test_a_manifest_that_is_none(
    dotted: str, value: Any, old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new"
    shutil.copytree(old, new)
    raw = json.loads((new / "manifest.json").read_text())
    _set(raw, dotted, value)
    (new / "manifest.json").write_text(json.dumps(raw))
    for names in ((old, new), (new, old)):
        assert command("diff", *names) == 3
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error X401: {new}/manifest.json: ")
        assert "validate it first" in line


@pytest.mark.parametrize(
    ("config", "field"),
    [("cropped", "volume.bytes"), ("full", "volume.bytes"), ("embeddings", "embedding.bytes")],
)
def test_bytes_that_are_null_are_a_difference(config: str, field: str, release: Path, tmp_path: Path) -> None:
    spoil(release, tmp_path / "old", {"only": [config]})
    spoil(tmp_path / "old", tmp_path / "new", {"rows": [{"question": "acl", "set": {field: None}}]})
    for names in (("old", "new"), ("new", "old")):
        difference = compare(*(tmp_path / name for name in names))
        assert (difference.rows["voxels"], difference.needed) == (1, "minor")
    assert compare(tmp_path / "new", tmp_path / "new").needed == "none"


def test_rows_that_are_null(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A volume without its list lost its rows; a row without a name cannot be compared."""
    spoil(release, tmp_path / "old", {"only": ["full"]})
    for field, needed in (("quintuples", "major"), ("quintuples.0", ""), ("id", ""), ("patient", "")):
        spoil(tmp_path / "old", tmp_path / field, {"rows": [{"question": "acl", "set": {field: None}}]})
        if needed:
            assert compare(tmp_path / "old", tmp_path / field).needed == needed
        else:
            assert command("diff", tmp_path / "old", tmp_path / field) == 3
            assert capsys.readouterr().err.startswith(f"error X102: {tmp_path / field / SHARD}: ")


def test_progress_is_told(old: Path, tmp_path: Path) -> None:
    """Every shard that is read: the rows' once, and those with voxels again, equal ones for their sha256."""
    told: list[tuple[str, int, int]] = []
    spoil(old, tmp_path / "new", {"rows": [{"configs": ["full"], "bytes": [{"at": 400, "xor": 1}]}]})
    compare(old, tmp_path / "new", progress=lambda *now: told.append(now))
    assert len(told) == len(list(old.rglob("*.parquet"))) * 2
    assert {stage for stage, _, _ in told} == {"comparing shards, MB"}
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert {of - told[-1][1] for _, _, of in told} == {1}, "all of it, in whole MB"


def test_version_steps() -> None:
    pairs = {
        ("1.0.0", "1.0.1"): "patch",
        ("1.0.9", "1.1.0"): "minor",
        ("1.9.9", "2.0.0"): "major",
        ("1.0.0", "1.0.0"): "none",
        ("2.0.0", "1.9.9"): "none",
    }
    assert {pair: version_step(*pair) for pair in pairs} == pairs


def test_a_crop_and_a_side_are_told_by_name(release: Path, tmp_path: Path) -> None:
    spoil(release, tmp_path / "old", {"only": ["cropped", "annotations"], "rows": []})
    rows: list[dict[str, Any]] = [{"configs": ["cropped"], "question": "acl", "set": {"crop.z0": 0}}]
    spoil(tmp_path / "old", tmp_path / "crop", {"rows": rows, "manifest": {"release_version": "1.1.0"}})
    difference = compare(tmp_path / "old", tmp_path / "crop")
    assert {k: v for k, v in difference.rows.items() if v} == {"crop": 1}
    assert difference.needed == "minor"
    rows = [{"volume": 0, "turned_side": True}]
    spoil(tmp_path / "old", tmp_path / "side", {"rows": rows, "manifest": {"release_version": "2.0.0"}})
    difference = compare(tmp_path / "old", tmp_path / "side")
    assert {k: v for k, v in difference.rows.items() if v} == {"added": 69, "removed": 69, "side": 1}
    assert " is now " in difference.examples["side"][0]


def test_equal_shards_are_not_opened(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a shard was opened")

    monkeypatch.setattr("reasonknee.validation.diff.opened", fail)
    difference = compare(old, old)
    assert (difference.needed, sum(difference.rows.values())) == ("none", 0)


# --- wherever a release is --------------------------------------------------------------------------------------------------------


def test_a_repo_on_the_hub_stands_where_a_folder_does(old: Path, tmp_path: Path) -> None:
    """Of a repo, only the texts and the shards that are asked for are fetched."""
    with Hub({"someone/knees": old}) as hub:
        env = hub.env(tmp_path / "home")
        done = run("diff", "someone/knees", old, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "version step needed: none" in done.stdout
        code = (
            "from reasonknee.layout import release_folder, read_manifest\n"
            "folder = release_folder('someone/knees', configs=['annotations'])\n"
            "print(sorted(p.parent.name for p in folder.rglob('*.parquet')), read_manifest(folder).configs)"
        )
        done = run("-c", code, env=hub.env(tmp_path / "another"))
        assert done.stdout.startswith("['annotations', 'annotations', 'annotations'] ["), done.stderr
        done = run("diff", "someone/none", old, env=env)
        assert (done.returncode, done.stderr[:10]) == (4, "error M003")


def test_a_version_that_no_number_holds(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(old, tmp_path / "new", {"manifest": {"release_version": "1.0." + "9" * 5000}})
    assert command("diff", old, tmp_path / "new") == 3
    assert capsys.readouterr().err.startswith("error X003: versions '1.0.0' and '1.0.9999999")
