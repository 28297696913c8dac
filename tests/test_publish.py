"""Publishing, against a Hub on the loopback: what may go where, and that what went up comes down the same."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, command, run
from hub import Hub, Repo
from spoil import spoil

from reasonknee.cohort import Cohort
from reasonknee.layout import read_manifest
from reasonknee.release import build

REPO = "someone/knees"


@pytest.fixture(scope="module")
def annotations(eight: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("publish") / "annotations"
    spoil(eight / "release", folder, {"only": ["annotations"], "manifest": {"restricted": False}})
    return folder


@pytest.fixture(scope="module")
def images(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One volume per split with its voxels."""
    folder = tmp_path_factory.mktemp("publish")
    known = [json.loads(line) for line in (cohort / "annotations.jsonl").read_text().splitlines()]
    (folder / "cohort").mkdir()
    (folder / "cohort" / "images").symlink_to(cohort / "images")
    first = {a["split"]: a for a in reversed(known)}
    (folder / "cohort" / "annotations.jsonl").write_text(
        "".join(json.dumps(a) + "\n" for a in first.values())
    )
    build(Cohort(folder / "cohort"), folder / "release", ["full", "annotations"])
    return folder / "release"


def names(hub: Hub, revision: str = "main") -> set[str]:
    return set(hub.repos[REPO].files(revision)[1])


def everything(release: Path) -> set[str]:
    return {p.relative_to(release).as_posix() for p in release.rglob("*") if p.is_file()}


LOAD = """
import json, os, sys
from datasets import load_dataset
rows = load_dataset(sys.argv[1], sys.argv[2], split="train")
first = rows[0]
shape = list(first["volume"].shape) if "volume" in first else []
print(json.dumps([len(rows), first["volume_id"], shape]), flush=True)
os._exit(0)
"""


def load(hub: Hub, home: Path, config: str) -> list[object]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, REPO, config],
        env=hub.env(home) | {"USE_TORCH": "0"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def test_annotations_go_up_and_come_down(annotations: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with Hub() as hub:
        hub.repos[REPO] = Repo(heads={"main": {}})
        stale = hub.store(b"of an earlier release")
        hub.store(
            (annotations / read_manifest(annotations).shards[0].path).read_bytes()
        )  # by an upload that was cut short
        hub.repos[REPO].heads["main"] = {"annotations/train-00007-of-00008.parquet": stale, "LICENSE": stale}
        done = run("publish", annotations, REPO, env=hub.env(tmp_path / "home"))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith(f"{hub.endpoint}/datasets/{REPO}/commit/")
        assert names(hub) == everything(annotations) | {"LICENSE"}, "stale shards go, what is not ours stays"
        assert len([r for r in hub.log if r.method == "PUT"]) == len(everything(annotations)) - 1, (
            "what is there is not sent again"
        )
        assert hub.token not in done.stdout + done.stderr
        rows = sum(s.rows for s in read_manifest(annotations).of("annotations", "train"))
        assert load(hub, tmp_path / "home", "annotations")[0] == rows


def test_images_need_a_closed_repo_and_the_terms(images: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    with Hub() as hub:
        hub.repos[REPO] = Repo(heads={"main": {}}, gated="manual")
        done = run("publish", images, REPO, "--accept-oai-terms", "--pr", env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines()[-1] == f"{hub.endpoint}/datasets/{REPO}/discussions/1"
        assert (names(hub), names(hub, "refs/pr/1")) == (set(), everything(images))
        hub.repos[REPO].heads["main"] = hub.repos[REPO].heads["refs/pr/1"]
        count, _, shape = load(hub, tmp_path / "home", "full")
        assert (count, shape) == (1, [48, 48, 16])


@pytest.mark.parametrize(
    ("words", "gated", "why"),
    [([], "manual", "OAI's terms"), (["--accept-oai-terms"], False, f"{REPO} is open to everyone")],
)
def test_elsewhere_annotations_go_alone(
    words: list[str], gated: str | bool, why: str, images: Path, tmp_path: Path
) -> None:
    """As a release of their own: what comes down again is sound, and tells of no image."""
    (tmp_path / "home").mkdir()
    before = {p: p.read_bytes() for p in images.rglob("*") if p.is_file()}
    with Hub() as hub:
        hub.repos[REPO] = Repo(heads={"main": {}}, gated=gated)
        env = hub.env(tmp_path / "home")
        done = run("publish", images, REPO, *words, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1].startswith(f"{hub.endpoint}/datasets/{REPO}/commit/")
        assert done.stderr.startswith(f"annotations alone: {why}")
        assert names(hub) == {n for n in everything(images) if not n.startswith(("full/", "index/full"))}
        assert run("validate", REPO, env=env).returncode == 0
        for path, file in hub.repos[REPO].files("main")[1].items():
            (tmp_path / "down" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, tmp_path / "down" / path)
        manifest, whole = read_manifest(tmp_path / "down"), read_manifest(images)
        assert (manifest.configs, manifest.restricted) == (["annotations"], False)
        assert (manifest.shards, manifest.quintuples) == (tuple(whole.of("annotations")), whole.quintuples)
        rows = sum(s.rows for s in whole.of("annotations", "train"))
        assert load(hub, tmp_path / "home", "annotations")[0] == rows
    assert {p: p.read_bytes() for p in images.rglob("*") if p.is_file()} == before, "the release is as it was"


def test_annotations_alone_do_not_push_images_out(images: Path, annotations: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        there = {"full/train-00000-of-00001.parquet": hub.store(b"of an earlier release")}
        hub.repos[REPO] = Repo(heads={"main": dict(there)}, gated="manual")
        for release in (images, annotations):
            done = run("publish", release, REPO, env=hub.env(tmp_path / "home"))
            assert (done.returncode, done.stderr.split(":")[0]) == (2, "error U007"), done.stderr
        assert hub.repos[REPO].heads["main"] == there


def test_images_without_annotations_stay_here(images: Path, tmp_path: Path) -> None:
    spoil(images, tmp_path / "full", {"only": ["full"]})
    with Hub() as hub:
        hub.repos[REPO] = Repo(heads={"main": {}})
        done = run("publish", tmp_path / "full", REPO, "--accept-oai-terms", env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr.split(":")[0]) == (2, "error U008"), done.stderr
        assert names(hub) == set()


class Opening(Repo):
    """A repo that is made public while a release is being checked."""

    asked = 0
    closed = 1  # how often it says that it is gated

    @property  # type: ignore[override]
    def gated(self) -> str | bool:
        self.asked += 1
        return "manual" if self.asked <= self.closed else False

    @gated.setter
    def gated(self, value: str | bool) -> None:
        pass


def test_a_repo_that_opens_meanwhile_gets_nothing(images: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        hub.repos[REPO] = Opening(heads={"main": {}})
        done = run("publish", images, REPO, "--accept-oai-terms", env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr.split(":")[0]) == (2, "error U005"), done.stderr
        assert names(hub) == set()
        assert not [r for r in hub.log if r.method == "PUT"]


def opens_at(hub: Hub, pattern: str) -> type[Repo]:
    """A repo that is made public once a request of this kind has been answered."""

    class Turning(Repo):
        @property  # type: ignore[override]
        def gated(self) -> str | bool:
            return False if any(re.search(pattern, f"{r.method} {r.path}") for r in hub.log) else "manual"

        @gated.setter
        def gated(self, value: str | bool) -> None:
            pass

    return Turning


def test_a_repo_that_opens_during_the_upload_gets_no_commit(images: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        hub.repos[REPO] = opens_at(hub, "^PUT ")(heads={"main": {}})
        done = run("publish", images, REPO, "--accept-oai-terms", env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr.split(":")[0]) == (2, "error U005"), done.stderr
        assert [r for r in hub.log if r.method == "PUT"]
        assert names(hub) == set(), "what no commit names is not to be seen"


def test_images_in_public_after_all_are_told_loudly(images: Path, tmp_path: Path) -> None:
    with Hub() as hub:
        hub.repos[REPO] = opens_at(hub, "^POST .*/commit/")(heads={"main": {}})
        done = run("publish", images, REPO, "--accept-oai-terms", env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr.split(":")[0]) == (3, "error U012"), done.stderr
        assert "IS OPEN TO EVERYONE" in done.stderr
        assert read_manifest(images).of("full")[0].path in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_what_is_sent_is_what_was_checked(annotations: Path, images: Path, tmp_path: Path) -> None:
    """A text that changes during the check does not go; a shard that changes is noticed."""
    mine = Path(shutil.copytree(images, tmp_path / "mine"))
    card = (mine / "README.md").read_bytes()
    code = (
        "import sys; from pathlib import Path; from reasonknee import publish as p; release = Path(sys.argv[1]); done = p.validate\n"
        "def check(*args, **more):\n"
        "    findings = done(*args, **more)\n"
        "    with (release / sys.argv[3]).open('ab') as file: file.write(b'a secret')\n"
        "    return findings\n"
        "p.validate = check\n"
        "p.publish(release, sys.argv[2], p.Wish(accept_oai_terms=True))"
    )
    with Hub() as hub:
        hub.repos[REPO] = Repo(heads={"main": {}}, gated="manual")
        env = hub.env(tmp_path / "home")
        done = run("-c", code, mine, REPO, "README.md", env=env)
        assert done.returncode == 0, done.stderr
        assert hub.repos[REPO].files("main")[1]["README.md"].read_bytes() == card
        (mine / "README.md").write_bytes(card)
        done = run("-c", code, mine, REPO, read_manifest(mine).shards[0].path, env=env)
        assert "U011" in done.stderr, done.stderr


def test_a_missing_token_is_the_first_thing(tmp_path: Path) -> None:
    env = {"HF_TOKEN": "", "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1"}
    done = run("publish", tmp_path / "no release at all", REPO, env=env)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "error U010"), done.stderr


def test_the_same_tree_in_a_folder(images: Path, tmp_path: Path) -> None:
    """Without a token and without a network; images only for one who says that they may go."""
    env = {"HF_TOKEN": "", "HF_HOME": str(tmp_path), "HF_ENDPOINT": "http://127.0.0.1:1"}
    done = run("publish", images, tmp_path / "alone", env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("annotations alone: ")
    assert read_manifest(tmp_path / "alone").configs == ["annotations"]
    done = run("publish", images, "./whole", "--accept-oai-terms", env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *rows, last = done.stdout.splitlines()
    assert (first, last) == ("to ./whole:", "whole")
    assert any("full: 3 rows, 3 shards" in row for row in rows), "what goes is shown"
    assert {n: (tmp_path / "whole" / n).read_bytes() for n in everything(images)} == {
        n: (images / n).read_bytes() for n in everything(tmp_path / "whole")
    }
    assert not any((tmp_path / "whole" / n).is_symlink() for n in everything(images))
    done = run("publish", images, tmp_path / "whole", env=env)
    assert (done.returncode, done.stderr.split(":")[0]) == (2, "error U013")


def test_a_release_with_an_error_stays_here(annotations: Path, tmp_path: Path) -> None:
    spoil(annotations, tmp_path / "bad", {"rows": [{"question": "acl", "set": {"grades.repair": 5}}]})
    with Hub() as hub:
        hub.repos[REPO] = Repo(heads={"main": {}})
        done = run("publish", tmp_path / "bad", REPO, env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr.split(":")[0]) == (3, "error U001")
        assert "X104" in done.stderr
        done = run("publish", annotations, "someone/else", env=hub.env(tmp_path / "home"))
        assert (done.returncode, done.stderr.split(":")[0]) == (4, "error U006"), done.stderr
        assert names(hub) == set()
        assert not [r for r in hub.log if r.method == "PUT"]


@pytest.mark.parametrize(
    "name", ["notes.txt", "full/train-00000-of-00001.parquet", "schema/image.schema.json"]
)
def test_only_what_belongs_in_a_release_goes_up(
    name: str,
    annotations: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor do images as plain files of a release that says it has none."""
    spoil(
        annotations, tmp_path / "r", {"files": [{"do": "write", "path": name, "text": "x", "listed": True}]}
    )
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    assert command("publish", tmp_path / "r", REPO) == 3
    assert capsys.readouterr().err.startswith("error U004")


@pytest.mark.parametrize("kind", ["pipe", "folder", "nowhere"])
def test_what_is_no_file_is_told_by_name(
    kind: str, annotations: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release, strange = tmp_path / "r", tmp_path / "r" / "schema" / "more"
    shutil.copytree(annotations, release)
    if kind == "pipe":
        os.mkfifo(strange)
    else:
        strange.symlink_to(tmp_path if kind == "folder" else tmp_path / "nowhere")
    assert command("publish", release, tmp_path / "out") == 3
    assert capsys.readouterr().err.startswith("error U004: 'schema/more'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("patients", {}),
        ("margin_mm", "x"),
        ("files", ["README.md"]),
        ("files", None),
        ("shards.0.rows", None),
        ("shards", []),
    ],
)
def test_a_manifest_made_by_hand_is_one_line(
    key: str,
    value: object,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    shutil.copytree(images, tmp_path / "r")
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    inner, *way = manifest, *key.split(".")
    for step in way[:-1]:
        inner = inner[int(step) if step.isdigit() else step]
    inner[way[-1]] = value
    (tmp_path / "r" / "manifest.json").write_text(json.dumps(manifest))
    assert command("publish", tmp_path / "r", REPO) == 3
    assert capsys.readouterr().err.startswith(("error U001: ", "error M005: "))
    assert command("publish", images, "https://hub/someone/knees") == 2
    assert capsys.readouterr().err.startswith("error U009: ")


# --- CI ---------------------------------------------------------------------------------------------------------------------------


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def as_ci_runs_it(
    release: Path, checkout: Path, tools: Path, package: str = ""
) -> subprocess.CompletedProcess[str]:
    """The two files where the docs put them, and the workflow's own line in the checkout of the dataset. Nothing but `tools` has a `reasonknee`."""
    places = re.findall(
        r"\| \[[\w.-]+\]\(([\w.-]+)\) \| `(.+)` \|", (ROOT / "docs" / "validation.md").read_text()
    )
    assert dict(places) == {
        "validate-release.yml": ".github/workflows/validate-release.yml",
        "validate_release.sh": ".github/validate_release.sh",
    }
    shutil.copytree(release, checkout)
    for name, place in places:
        (checkout / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / name, checkout / place)
    workflow = yaml.safe_load((checkout / ".github/workflows/validate-release.yml").read_text())
    line = workflow["jobs"]["validate"]["steps"][-1]["run"]
    env = {
        **os.environ,
        "PATH": f"{tools}:/usr/bin:/bin",
        "REASONKNEE_WORKERS": "1",
        "REASONKNEE_PACKAGE": package,
    }  # empty, as an unset `vars.` is
    return subprocess.run(
        ["bash", "-c", line], cwd=checkout, env=env, capture_output=True, text=True, timeout=120
    )


@pytest.mark.skipif(shutil.which("bash", path="/usr/bin:/bin") is None, reason="the script is for bash")
def test_the_workflow_in_the_repo_of_a_dataset(annotations: Path, tmp_path: Path) -> None:
    """A clean release passes with the workflow in it, one with an error does not."""
    tool(tmp_path / "bin", "reasonknee", f'exec "{sys.executable}" -m reasonknee "$@"')
    spoil(annotations, tmp_path / "bad", {"rows": [{"question": "acl", "set": {"grades.repair": 5}}]})
    for release, code in ((annotations, 0), (tmp_path / "bad", 3)):
        done = as_ci_runs_it(release, tmp_path / f"checkout{code}", tmp_path / "bin")
        assert done.returncode == code, done.stdout + done.stderr
        assert ("::error file=annotations/train-00000-of-00001.parquet,title=X104" in done.stdout) == (
            code == 3
        )


@pytest.mark.skipif(shutil.which("bash", path="/usr/bin:/bin") is None, reason="the script is for bash")
def test_a_package_that_pip_cannot_find_is_explained(annotations: Path, tmp_path: Path) -> None:
    tool(
        tmp_path / "bin",
        "python3",
        '[ "$*" = "-m pip install --quiet reasonknee==9" ] || exit 9\necho no matching distribution >&2; exit 1',
    )
    done = as_ci_runs_it(annotations, tmp_path / "checkout", tmp_path / "bin", "reasonknee==9")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "no matching distribution\n::error::pip cannot install reasonknee==9: set " in done.stderr


@pytest.mark.skipif(shutil.which("bash", path="/usr/bin:/bin") is None, reason="the script is for bash")
def test_ci_installs_no_name_that_nobody_gave(annotations: Path, tmp_path: Path) -> None:
    tool(tmp_path / "bin", "python3", f'touch "{tmp_path}/asked"')
    done = as_ci_runs_it(annotations, tmp_path / "checkout", tmp_path / "bin")
    assert done.returncode == 4, done.stdout + done.stderr
    assert "::error::there is no reasonknee: set REASONKNEE_PACKAGE to " in done.stderr
    assert not (tmp_path / "asked").exists()


def test_what_builds_the_package_is_pinned() -> None:
    line = next(x for x in (ROOT / "pyproject.toml").read_text().splitlines() if x.startswith("requires = "))
    assert re.fullmatch(r'requires = \["setuptools==[0-9.]+"\].*', line)
    pins = [x for x in (ROOT / "constraints.txt").read_text().splitlines() if x and not x.startswith("#")]
    assert [x for x in pins if "==" not in x] == []
