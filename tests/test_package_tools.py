"""Wheel and sdist, made by pip's own way and installed into an empty environment."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.tools


def done(*words: object, cwd: Path | None = None) -> str:
    ended = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended.stdout


def environment(folder: Path, *packages: str) -> Path:
    done(sys.executable, "-m", "venv", folder)
    if packages:
        done(folder / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from what git tracks, as a maintainer's clean clone has it."""
    folder = tmp_path_factory.mktemp("package")
    for name in done("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines():
        if (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "tree" / name).write_bytes((ROOT / name).read_bytes())
    backend = re.search(r'requires = \["(.+?)"\]', (ROOT / "pyproject.toml").read_text())[1]
    python = environment(folder / "maker", backend)
    code = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    done(python, "-c", code, folder, cwd=folder / "tree")
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(scope="session")
def wheel(sdist: Path) -> Path:
    """Made from the sdist, so that an sdist that lacks a file of the package makes a wheel that lacks it, too."""
    done(sys.executable, "-m", "venv", sdist.parent / "pip")
    python = sdist.parent / "pip" / "bin" / "python"
    done(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", sdist.parent, sdist)
    return next(sdist.parent.glob("*.whl"))


def test_the_sdist_holds_tests_and_docs_whole(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    tracked = done("git", "ls-files", cwd=ROOT).splitlines()
    folders = ("tests/", "docs/", "examples/", "reasonknee/", "validation/", "schema/")
    assert [name for name in tracked if name.startswith(folders) and name not in held] == []
    assert {"README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "Makefile", "constraints.txt"} <= held


def test_the_wheel_holds_every_module_and_file_of_the_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        about = archive.read(next(n for n in held if n.endswith("/METADATA"))).decode()
    tracked = done("git", "ls-files", "reasonknee", "schema", "validation", cwd=ROOT).splitlines()
    wanted = {name if name.startswith("reasonknee/") else f"reasonknee/{name}" for name in tracked}
    assert sorted(name for name in wanted - held if Path(name).name != ".gitignore") == []
    assert not [name for name in held if name.startswith(("tests", "docs"))]
    links = re.findall(r"\]\(([^)]+)\)", about.partition("\n\n")[2])
    assert [link for link in links if not link.startswith(("https://", "#"))] == [], (
        "an index has no other pages"
    )
    assert re.search(r"resolve/main/docs/\S+\.png", about), "pictures are shown, not their pages"
    assert about.count("Project-URL: ") >= 4


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_empty_environment_passes_the_selftest(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    package = request.getfixturevalue(kind)
    python = environment(tmp_path / "empty")
    done(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", package)
    command = python.with_name("reasonknee")
    assert "numbers are the golden ones" in done(command, "selftest", cwd=tmp_path)
    done(command, "phantom", "cohort", "--patients", 2, "--shape", "16,48,48", cwd=tmp_path)
    done(command, "build", "cohort", "release", cwd=tmp_path)
    assert "sound, 0 errors" in done(command, "validate", "release", cwd=tmp_path)
