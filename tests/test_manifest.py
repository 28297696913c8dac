"""A manifest from elsewhere is believed nowhere: what it names lies within the release, whoever reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from conftest import run
from hypothesis import given
from hypothesis import strategies as st

from reasonknee.errors import DataError
from reasonknee.layout import Manifest, read_manifest
from reasonknee.layout.manifest import FILE_NAME, MAX_BYTES
from reasonknee.stream import quintuples


@pytest.fixture
def spoiled(release: Path, tmp_path: Path) -> Callable[[Callable[[dict[str, Any]], object]], Path]:
    def spoil(change: Callable[[dict[str, Any]], object]) -> Path:
        folder = tmp_path / "release"
        shutil.copytree(release, folder, copy_function=shutil.copyfile)
        raw = json.loads((folder / FILE_NAME).read_text())
        change(raw)
        (folder / FILE_NAME).write_text(json.dumps(raw))
        return folder

    return spoil


def elsewhere(raw: dict[str, Any]) -> None:
    """Every shard under another roof, where it really lies."""
    for shard in raw["shards"]:
        shard["path"] = f"../private/{shard['path']}"


def test_nobody_follows_a_path_out_of_the_release(
    spoiled: Callable[[Callable[[dict[str, Any]], object]], Path], release: Path, tmp_path: Path
) -> None:
    folder = spoiled(elsewhere)
    shutil.copytree(release, tmp_path / "private", copy_function=shutil.copyfile)
    (tmp_path / "p.jsonl").write_text("{}\n")
    commands = (
        ["look", folder],
        ["score", tmp_path / "p.jsonl", folder],
        ["diff", folder, release],
        ["validate", folder],
    )
    for words in commands:
        done = run(*words)
        assert done.returncode == 3, words
        assert "is no shard of" in done.stdout + done.stderr, words
        assert "Traceback" not in done.stderr
    with pytest.raises(DataError, match="M007"):
        next(iter(quintuples(folder, "annotations")))


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "cropped/../../x.parquet",
        "full/train-00000-of-00001.parquet",
        "cropped/train-00000-of-00001.parquet\0",
        "C:\\x.parquet",
        "https://x.org/cropped/train-00000-of-00001.parquet",
        7,
        None,
    ],
)
def test_a_shard_lies_under_its_own_config(
    spoiled: Callable[[Callable[[dict[str, Any]], object]], Path], path: object
) -> None:
    def change(raw: dict[str, Any]) -> None:
        shard = next(s for s in raw["shards"] if s["config"] == "cropped")
        shard["path"] = path

    with pytest.raises(DataError, match="M007"):
        read_manifest(spoiled(change))


def test_another_layout_is_told_as_such(
    spoiled: Callable[[Callable[[dict[str, Any]], object]], Path],
) -> None:
    with pytest.raises(DataError, match=r"M006: .*layout version 1"):
        read_manifest(spoiled(lambda raw: (raw.update(layout_version=1), raw.pop("versions"))))


def test_a_manifest_has_a_limit(release: Path, tmp_path: Path) -> None:
    with (tmp_path / FILE_NAME).open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(DataError, match=r"M005: .*larger"):
        read_manifest(tmp_path)


def test_versions_are_recorded(manifest: Manifest) -> None:
    assert manifest.versions["pyarrow"] == pyarrow.__version__
    assert {"python", "numpy", "nibabel"} <= set(manifest.versions)


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
)


@given(data=st.data())
def test_any_value_is_read_or_refused(release: Path, tmp_path_factory: Any, data: st.DataObject) -> None:
    """Any field replaced by anything: an error of ours, or a manifest of the types that it promises."""
    raw = json.loads((release / FILE_NAME).read_text())
    target = data.draw(st.sampled_from([raw, raw["shards"][0]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(JSON)
    folder = tmp_path_factory.mktemp("any")
    (folder / FILE_NAME).write_text(json.dumps(raw))
    try:
        manifest = read_manifest(folder)
    except DataError:  # any other error fails the test
        return
    assert sum(s.rows + s.bytes for s in manifest.shards) >= 0
    assert sum(manifest.volumes.values()) >= 0
    assert len(manifest.of("cropped")) <= len(manifest.shards)
