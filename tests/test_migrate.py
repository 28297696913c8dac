"""A release of an earlier layout: told as such wherever it is opened, and written anew without losing a voxel."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import command, run

from reasonknee.errors import DataError, StorageError, UsageError
from reasonknee.layout import CONFIGS, read_manifest
from reasonknee.release.migrate import migrate
from reasonknee.release.reader import Release
from reasonknee.stream import quintuples
from reasonknee.system.folders import claim

OLD = Path(__file__).parent / "layout2"  # written by the last version that knew no other layout


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("migrated") / "r3"
    done = run("migrate", OLD, out)
    assert done.returncode == 0, done.stderr
    assert "layout 3" in done.stdout
    return out


def rows(release: Path, config: str) -> list[dict[str, Any]]:
    return [
        row
        for path in sorted((release / config).glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


def kept(row: dict[str, Any], old: dict[str, Any]) -> None:
    """All that was there is there, but for the words, which are this version's."""
    for name, value in old.items():
        if name == "quintuples":
            for mine, before in zip(row[name], value, strict=True):
                kept(mine, before)
        elif name == "embedding":
            assert {k: row[name][k] for k in value} == value
            assert all(row[name][k] is None for k in set(row[name]) - set(value))
        elif name not in ("question", "reasoning"):
            assert row[name] == value, name
    if "question" in row:
        assert row["question"].keys() == {"zero_shot", "instruction", "region"}
        assert (row["published_reasoning"], row["second_readings"], row["box_source"]) == (None, [], None)


@pytest.mark.parametrize("config", CONFIGS)
def test_nothing_is_lost(config: str, new: Path) -> None:
    before, after = rows(OLD, config), rows(new, config)
    assert len(before) == len(after) > 0
    for mine, old in zip(after, before, strict=True):
        kept(mine, old)
    groups = [
        [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        for file in (pq.ParquetFile(next((root / config).glob("*.parquet"))) for root in (OLD, new))
    ]
    assert groups[0] == groups[1]


def test_the_new_release_is_sound(new: Path) -> None:
    done = run("validate", new)
    assert done.returncode == 0, done.stdout
    assert "0 errors, 0 warnings" in done.stdout
    told = read_manifest(new)
    assert (told.layout_version, told.wording) == (3, "all")
    assert told.provenance["boxes"] == {"unknown": 62}
    assert not list(new.parent.glob("*.partial"))


@pytest.mark.parametrize(
    "words",
    [
        ("look", OLD),
        ("view", OLD, "--no-browser"),
        ("publish", OLD, "./elsewhere"),
        ("score", "none.jsonl", OLD),
        ("baselines", OLD, "guesses"),
        ("export", "trl", OLD, "rows"),
        ("ask", OLD, "--model", "none", "--out", "asked"),
    ],
)
def test_an_old_release_is_told_as_such_wherever_it_is_opened(
    words: tuple[object, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(*words) == 3
    told = capsys.readouterr().err
    assert told.startswith("error M006: manifest.json: layout version 2")
    assert "`reasonknee migrate OLD NEW`" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [("validate", OLD), ("diff", OLD, OLD)])
def test_checks_of_an_old_release_say_how_to_migrate(
    words: tuple[object, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words) == 3
    captured = capsys.readouterr()
    told = captured.out + captured.err
    assert "X401" in told
    assert "manifest.json: layout version 2; this program knows 3: `reasonknee migrate OLD NEW`" in told
    assert "to do: download" not in told  # which would bring the same again


def test_an_old_release_is_told_as_such_from_python() -> None:
    with pytest.raises(DataError, match=r"M006: .*reasonknee migrate"):
        Release(OLD).columns("test", ["id"])
    with pytest.raises(DataError, match=r"M006: .*reasonknee migrate"):
        quintuples(OLD, "cropped")


def spoilt(tmp_path: Path, **changed: Any) -> Path:
    copy = tmp_path / "old"
    shutil.copytree(OLD, copy)
    raw = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**raw, **changed}))
    return copy


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"layout_version": 1}, "M010"),
        ({"layout_version": 3}, "M012"),
        ({"layout_version": 4}, "only layout 2"),
        ({"questions": "paper63"}, "M010"),
        ({"shards": [{"path": "../../etc/passwd"}]}, "M010"),
    ],
)
def test_what_cannot_be_migrated(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    done = run("migrate", spoilt(tmp_path, **changed), tmp_path / "new")
    assert done.returncode in (2, 3)
    assert words in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_newer_layout_is_no_old_one(tmp_path: Path) -> None:
    done = run("look", spoilt(tmp_path, layout_version=4))
    assert done.returncode == 3
    assert "newer reasonknee" in done.stderr


def test_a_damaged_shard_is_not_laundered(tmp_path: Path) -> None:
    copy = spoilt(tmp_path)
    shard = next((copy / "full").glob("*.parquet"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 3] ^= 1
    shard.write_bytes(data)
    done = run("migrate", copy, tmp_path / "new")
    assert done.returncode == 3
    assert "M009" in done.stderr
    assert not (tmp_path / "new").exists()


def test_it_starts_over_after_a_kill_and_overwrites_nothing(tmp_path: Path, new: Path) -> None:
    claim(tmp_path / "r.partial", "migration to r")
    (tmp_path / "r.partial" / "cropped").mkdir(parents=True)
    (tmp_path / "r.partial" / "cropped" / "half.parquet").write_bytes(b"PAR1")
    migrate(OLD, tmp_path / "r")
    assert (tmp_path / "r" / "manifest.json").read_bytes() == (new / "manifest.json").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir() if "lock" not in p.name) == ["r"]
    done = run("migrate", OLD, tmp_path / "r")
    assert done.returncode == 2
    assert "R001" in done.stderr


def test_killed_at_its_last_step_it_starts_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, to: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            migrate(OLD, tmp_path / "r")
    assert not (tmp_path / "r").exists()
    assert (tmp_path / "r.partial").is_dir()
    migrate(OLD, tmp_path / "r")
    assert sorted(p.name for p in tmp_path.iterdir() if "lock" not in p.name) == ["r"]


def test_what_is_the_users_stays(tmp_path: Path) -> None:
    mine = tmp_path / "r.partial" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(UsageError, match="R011"):
        migrate(OLD, tmp_path / "r")
    assert mine.read_text() == "mine"
    mine.parent.rename(tmp_path / "elsewhere")
    (tmp_path / "r.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="R012"):
        migrate(OLD, tmp_path / "r")
    assert [p.name for p in (tmp_path / "elsewhere").iterdir()] == ["thesis.txt"]
    (tmp_path / "r.partial").rename(tmp_path / "r")
    with pytest.raises(UsageError, match="R001"):  # a link, wherever it leads
        migrate(OLD, tmp_path / "r")
