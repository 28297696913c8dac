"""What a release's files may do to a stream: be cut, be links, lead elsewhere, unpack to more than they should. Each is an error with a code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run
from hub import Handler, Hub
from test_stream import ids, stored
from test_stream_network import REPO, hub, rewritten, streamed  # noqa: F401 - a fixture

from reasonknee.errors import DataError, ReasonKneeError, StorageError, UsageError
from reasonknee.layout import read_manifest
from reasonknee.stream import quintuples
from reasonknee.volumes import Grid, Volume, nifti_bytes

Change = Callable[[dict[str, Any]], dict[str, Any]]

# --- cut while it is read ---------------------------------------------------------------------------------------------------------

CUT = """
import os, sys
from reasonknee.errors import ReasonKneeError
from reasonknee.stream import quintuples

rows = iter(quintuples(sys.argv[1], sys.argv[2], "train", ahead=0))
first = next(rows)
(shard,) = [f"{sys.argv[1]}/{sys.argv[2]}/{name}" for name in os.listdir(f"{sys.argv[1]}/{sys.argv[2]}") if "train" in name]
os.truncate(shard, int(sys.argv[3]))
try:
    print(len(list(rows)))
except ReasonKneeError as error:
    print(error.code)
"""


@pytest.mark.parametrize("config", ["cropped", "full", "embeddings", "annotations"])
def test_a_shard_that_is_cut_while_it_is_streamed_is_an_error(
    release: Path, tmp_path: Path, config: str
) -> None:
    """It used to end the process by SIGBUS, since the file was mapped."""
    shutil.copytree(release, tmp_path / "release")
    done = run("-c", CUT, tmp_path / "release", config, 4096)
    assert (done.returncode, done.stdout.strip()) == (0, "D031"), done.stderr[-500:]


def test_a_shard_that_is_exchanged_while_it_is_streamed_is_an_error(release: Path, tmp_path: Path) -> None:
    """Rows of two versions used to be mixed where the second one was laid out as the first."""
    shutil.copytree(release, copy := tmp_path / "release")
    (shard,) = (copy / "full").glob("train-*")
    whole, wanted = shard.read_bytes(), ids(quintuples(release, "full", ahead=0))
    rows = iter(quintuples(copy, "full", ahead=0))
    seen = [next(rows)["id"]]
    shard.touch()  # and copied again, as by a program that mends a download: the same bytes
    while len(seen) < len(wanted) // 3:
        seen.append(next(rows)["id"])
    shard.write_bytes(whole)
    while len(seen) < len(wanted) // 2:
        seen.append(next(rows)["id"])
    assert seen == wanted[: len(seen)]
    shard.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])  # as long, and its rows are readable
    with pytest.raises(DataError, match="D037"):
        list(rows)


# --- outside of the folder --------------------------------------------------------------------------------------------------------


def listing(release: Path, folder: Path, path: str) -> Path:
    """A copy of the release whose manifest names another file as its shard of training crops."""
    shutil.copytree(release, folder)
    manifest = read_manifest(release)
    shards = [
        replace(s, path=path) if (s.config, s.split) == ("cropped", "train") else s for s in manifest.shards
    ]
    (folder / "manifest.json").write_text(replace(manifest, shards=tuple(shards)).to_json())
    return folder


@pytest.mark.parametrize(
    "path",
    [
        "../release/cropped/train-00000-of-00001.parquet",
        "/etc/passwd",
        "cropped/../cropped/train-00000-of-00001.parquet",
        "cropped/train-00000-of-00001.parquet/..",
        "cropped/test-00000-of-00001.parquet",
        "cropped/train-00000-of-00001.parquet\n",
        "",
    ],
)
def test_a_path_that_no_release_has_is_not_opened(release: Path, tmp_path: Path, path: str) -> None:
    with pytest.raises(DataError, match="M007"):
        quintuples(listing(release, tmp_path / "release", path), "cropped")


def test_manifests_without_numbers_are_refused(release: Path, tmp_path: Path) -> None:
    shutil.copytree(release, tmp_path / "release")
    raw = json.loads((release / "manifest.json").read_text())
    for key, value in (("rows", "many"), ("bytes", -1), ("arrow_bytes", None), ("sha256", 7), ("path", 3)):
        for shard in raw["shards"]:
            shard[key] = value
        (tmp_path / "release" / "manifest.json").write_text(json.dumps(raw))
        with pytest.raises(ReasonKneeError) as error:
            quintuples(tmp_path / "release", "cropped")
        assert error.value.code in {"M005", "M007"}


def test_links_out_of_the_release_are_not_followed(release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(release, copy)
    (shard,) = (copy / "cropped").glob("train-*")
    (tmp_path / "elsewhere.parquet").write_bytes(shard.read_bytes())
    shard.unlink()
    shard.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(DataError, match="D028"):
        quintuples(copy, "cropped")
    shard.unlink()
    os.mkfifo(shard)  # to open one waits for ever
    with pytest.raises(DataError, match="D028"):
        quintuples(copy, "cropped")


def test_a_snapshot_of_the_hubs_cache_is_a_release(release: Path, tmp_path: Path) -> None:
    """Its files are links to blobs beside it; and a release may itself be found by a link."""
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "datasets--a--b" / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(p for p in release.rglob("*") if p.is_file())):
        shutil.copy(file, blobs / str(number))
        link = snapshot / file.relative_to(release)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    (tmp_path / "mine").symlink_to(snapshot)
    wanted = ids(quintuples(release, "cropped"))
    assert ids(quintuples(snapshot, "cropped")) == ids(quintuples(tmp_path / "mine", "cropped")) == wanted


# --- more than it should be -------------------------------------------------------------------------------------------------------

PEAK = """
import resource, sys
from reasonknee.errors import ReasonKneeError
from reasonknee.stream import quintuples

list(quintuples(sys.argv[1], sys.argv[3], "test"))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(len(list(quintuples(sys.argv[2], sys.argv[3], "train", ahead=0))), end=" ")
except ReasonKneeError as error:
    print(error.code, end=" ")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def bombed(release: Path, folder: Path, config: str, change: Change, times: int = 1) -> Path:
    """The release with a training shard of one row that says the truth of itself in every field but one."""
    row = next(r for r in stored(release, config) if config in ("annotations", "embeddings") or r["volume"])
    rows = [change(row)] + [
        {**change(row), "volume_id": f"{1_500_000 + n}-00m-left"}  # no volume may be asked a question twice
        for n in range(1, times)
    ]
    return rewritten(release, folder, config, [[rows]])


def huge_volume(row: dict[str, Any]) -> dict[str, Any]:
    shape = (200, 1000, 1000)
    return {
        **row,
        "volume": {
            "bytes": nifti_bytes(Volume(np.zeros(shape, np.uint16), Grid(shape, np.eye(4)))),
            "path": None,
        },
    }


def huge_text(row: dict[str, Any]) -> dict[str, Any]:
    long = ["a" * (300 << 20)]
    if "quintuples" in row:
        return {**row, "quintuples": [{**row["quintuples"][0], "reasoning": long}]}
    return {**row, "reasoning": long}


def repeated_text(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "reasoning": ["b" * 40_000]}


@pytest.mark.parametrize(
    ("config", "change", "times"),
    [
        ("cropped", huge_volume, 1),
        ("full", huge_volume, 1),
        ("cropped", huge_text, 1),
        ("full", huge_text, 1),
        ("annotations", huge_text, 1),
        ("annotations", repeated_text, 15_000),  # one text of 40 kB that 15,000 rows refer to: 600 MB
    ],
)
def test_a_small_shard_that_unpacks_to_hundreds_of_megabytes_is_refused(
    release: Path, tmp_path: Path, config: str, change: Change, times: int
) -> None:
    folder = bombed(release, tmp_path / "bomb", config, change, times)
    (shard,) = (folder / config).glob("train-*")
    assert shard.stat().st_size < 2_000_000
    done = run("-c", PEAK, release, folder, config)
    assert done.returncode == 0, done.stderr[-500:]
    code, megabytes = done.stdout.split()
    assert code == "D031"
    assert int(megabytes) < 150


# --- the Hub ----------------------------------------------------------------------------------------------------------------------


def test_bytes_that_change_under_the_same_commit_are_noticed(hub: Hub, release: Path, tmp_path: Path) -> None:  # noqa: F811
    copy = tmp_path / "release"
    shutil.copytree(release, copy)
    hub.repos[REPO].folder = copy
    rows = iter(streamed(hub, "full", "train", ahead=0))
    next(rows)
    (shard,) = (copy / "full").glob("train-*")
    whole = shard.read_bytes()
    shard.write_bytes(
        whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    )  # of the same length, still readable rows
    with pytest.raises(DataError, match="D037"):
        list(rows)


def test_a_server_that_drips_is_given_up(hub: Hub) -> None:  # noqa: F811
    options = {"endpoint": hub.endpoint, "token": False, "patience": 0.4}
    rows = iter(quintuples(REPO, "cropped", "test", hub=options, ahead=0))
    next(rows)
    hub.faults = lambda n: "drip"
    with pytest.raises(
        StorageError, match=r"D036.*patience"
    ):  # it used to go on for as long as there were bytes
        quintuples(REPO, "cropped", "test", hub=options)


class DripsAtOnce(Handler):
    def info(self, *_: Any) -> None:
        self.head(200, 10_000, {})
        self.drip(10_000)


class SaysNothing(Handler):
    def info(self, *_: Any) -> None:
        threading.Event().wait(3)


@pytest.mark.parametrize(("handler", "code"), [(DripsAtOnce, "D036"), (SaysNothing, "D032")])
def test_nor_is_the_first_answer_waited_for_for_ever(
    release: Path, monkeypatch: pytest.MonkeyPatch, handler: type[Handler], code: str
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Hub({REPO: release}, handler) as slow, pytest.raises(StorageError, match=code):
        quintuples(REPO, "cropped", hub={"endpoint": slow.endpoint, "token": False, "patience": 0.4})


def test_an_option_that_the_hub_does_not_have_is_named(hub: Hub) -> None:  # noqa: F811
    with pytest.raises(UsageError, match=r"D009.*'tokens'") as error:
        quintuples(REPO, "cropped", hub={"endpoint": hub.endpoint, "tokens": "hf_secret"})
    assert "hf_secret" not in str(error.value)


@pytest.mark.parametrize("patience", [0, -1, "60", True, float("inf")])
def test_a_patience_that_is_no_time_is_refused(hub: Hub, patience: Any) -> None:  # noqa: F811
    with pytest.raises(UsageError, match="D009"):
        quintuples(REPO, "cropped", hub={"endpoint": hub.endpoint, "token": False, "patience": patience})


# --- left in the middle -----------------------------------------------------------------------------------------------------------

LEFT = """
import sys
from reasonknee.stream import quintuples

rows = iter(quintuples(sys.argv[1], "cropped", "train", seed=0, ahead=int(sys.argv[2])))
kept = [next(rows) for _ in range(3)]
"""


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_program_that_ends_with_an_unfinished_stream_ends_without_a_word(release: Path, ahead: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT, str(release), str(ahead)], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
