"""A release of SGMRI-VQA on the Hub: `qa` alone goes there, and what came down is checked and scored by its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import command, run
from hub import Hub, Repo

from reasonknee.layout.sgmri import is_release, read_qa_manifest
from reasonknee.validation import validate

REPO = "someone/frames"


@pytest.fixture(scope="module")
def public(sgmri: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The questions of the release alone, as `publish` writes them to a folder."""
    out = tmp_path_factory.mktemp("public") / "qa"
    assert command("publish", sgmri / "release", out) == 0
    return out


def everything(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_a_folder_gets_no_image(sgmri: Path, public: Path) -> None:
    whole, alone = read_qa_manifest(sgmri / "release"), read_qa_manifest(public)
    assert (whole.restricted, alone.restricted) == (True, False)
    assert alone.shards == tuple(whole.of("qa"))
    assert everything(public) == {"README.md", "manifest.json", *(s.path for s in alone.shards)}
    assert validate(public).as_dict()["findings"] == []


def test_questions_go_up_alone_and_are_read_by_name(sgmri: Path, public: Path, tmp_path: Path) -> None:
    """Terms for OAI's images are none for fastMRI's: not even a closed repo gets them."""
    (tmp_path / "home").mkdir()
    with Hub() as hub:
        hub.repos[REPO] = Repo(heads={"main": {}}, gated="manual")
        env = hub.env(tmp_path / "home")
        done = run("publish", sgmri / "release", REPO, "--accept-oai-terms", env=env)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("qa alone: fastMRI's images")
        assert set(hub.repos[REPO].files("main")[1]) == everything(public)
        (tmp_path / "p.jsonl").write_text('{"id": "of no question", "response": "Yes"}\n')
        words = (tmp_path / "p.jsonl", REPO, "--out", tmp_path / "scores", "--bootstrap", 0)
        done = run("sgmri", "score", *words, env=env)
        assert done.returncode == 0, done.stderr
        made = json.loads((tmp_path / "scores/scores.json").read_text())
        assert made["items"] == read_qa_manifest(public).questions["test"]


def test_images_of_another_release_are_not_pushed_out(sgmri: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        there = {"full/train-00000-of-00001.parquet": hub.store(b"of knees")}
        hub.repos[REPO] = Repo(heads={"main": dict(there)}, gated="manual")
        done = run("publish", sgmri / "release", REPO, env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr.split(":")[0]) == (2, "error U007"), done.stderr
        assert hub.repos[REPO].heads["main"] == there


def test_what_is_no_release_is_not_asked_for(tmp_path: Path) -> None:
    assert not is_release(tmp_path)
    assert not is_release("a folder that is not there")
