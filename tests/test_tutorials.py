"""The tutorials and the README are run: every block of each, in order, as it stands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import page_runner
import pytest
from conftest import ROOT, needs

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
WITH_MODELS = ("2-train-on-one-gpu-or-two.md", "3-ask-a-model.md")


@pytest.fixture
def demo(eight: Path, tmp_path: Path) -> Path:
    """The folder that `make demo` leaves, in a clone; smaller, and with a tiny model where one is named."""
    for name in ("examples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    folder = tmp_path / "demo"
    (folder / "rajpurkarlab").mkdir(parents=True)
    shutil.copytree(eight / "cohort", folder / "cohort")
    (folder / "rajpurkarlab" / "3DReasonKnee").symlink_to(eight / "release")
    return folder


def run_page(page: Path, folder: Path, python: Path = Path(sys.executable), *options: str) -> str:
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    words = [python, ROOT / "tests" / "page_runner.py", page, *options]
    done = subprocess.run(
        [str(w) for w in words],
        cwd=folder,
        env={**env, "HF_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-2000:]
    return done.stdout


@pytest.mark.parametrize("page", [p for p in TUTORIALS if p.name not in WITH_MODELS], ids=lambda p: p.stem)
def test_a_tutorial(page: Path, demo: Path) -> None:
    assert "blocks: " in run_page(page, demo, Path(sys.executable), "--installed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(p for p in TUTORIALS if p.name in WITH_MODELS)], ids=lambda p: p.stem
)
def test_a_page_with_a_model(page: Path, demo: Path) -> None:
    needs("trl")
    from tiny_models import checkpoint

    checkpoint("qwen2_5_vl", demo / "Qwen" / "Qwen2.5-VL-3B-Instruct")
    assert "blocks: " in run_page(page, demo, Path(sys.executable), "--installed")


@pytest.mark.tools
def test_the_readme_in_a_fresh_clone(tmp_path: Path) -> None:
    """`make demo` and then the page, in the environment that it made and with what the page itself installs. Where
    the page names a model of 3 billion parameters, a tiny one with random weights stands."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(lambda name: (ROOT / name).is_file(), tracked.splitlines()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    made = subprocess.run(["make", "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=1800)
    assert made.returncode == 0, made.stdout[-2000:] + made.stderr[-2000:]
    from tiny_models import checkpoint

    checkpoint("qwen2_5_vl", tmp_path / "demo" / "Qwen" / "Qwen2.5-VL-3B-Instruct")
    said = run_page(tmp_path / "README.md", tmp_path / "demo", tmp_path / ".venv" / "bin" / "python")
    assert "blocks: " in said


def test_there_are_seven_and_each_is_linked() -> None:
    assert len(TUTORIALS) == 7
    readme = (ROOT / "README.md").read_text()
    assert [p.name for p in TUTORIALS if f"(docs/tutorials/{p.name})" not in readme] == []


def test_a_page_that_does_not_hold_is_noticed(tmp_path: Path) -> None:
    """The runner itself: a failing command, an exception, and words that are not printed."""
    for body, fault in (
        ("```bash\nfalse\n```\n", "exit 1"),
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"),
        ("```bash\necho one two\n```\n\n```text\none ... three\n```\n", "not printed: one ... three"),
    ):
        page = tmp_path / "page.md"
        page.write_text(body)
        done = subprocess.run([sys.executable, page_runner.__file__, page], capture_output=True, text=True)
        assert done.returncode != 0
        assert fault in done.stderr
