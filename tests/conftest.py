"""One small synthetic cohort and one release of it, shared by the whole suite."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from hypothesis import HealthCheck, settings
from warm import Warm

from reasonknee.cohort import Cohort
from reasonknee.layout import Manifest
from reasonknee.phantom.cohort import write_cohort
from reasonknee.release import Options, build

# A busy machine is not a wrong result; CI tries the same examples each time, a person's machine ever new ones.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("suite")

# A shell has what it starts in the background ignore Ctrl-C, and so do all processes that the tests start from there.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent
SHAPE = (16, 48, 48)


@pytest.fixture(scope="session")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six patients, both sides, several visits. Tests read it; one that changes it works on a copy."""
    folder = tmp_path_factory.mktemp("data") / "cohort"
    write_cohort(folder, patients=6, seed=3, shape=SHAPE)
    return folder


@pytest.fixture(scope="session")
def release(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every config, all 69 questions, a margin."""
    folder = tmp_path_factory.mktemp("data") / "release"
    build(Cohort(cohort), folder, options=Options(questions="all69", margin_mm=3.0))
    return folder


@pytest.fixture(scope="session")
def few(cohort: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three volumes in every config: two of train and one of test, so that spoiling and checking it is quick."""
    folder = tmp_path_factory.mktemp("data")
    known = [json.loads(line) for line in (cohort / "annotations.jsonl").read_text().splitlines()]
    kept = [
        a
        for split, most in (("train", 2), ("test", 1))
        for a in [a for a in known if a["split"] == split][:most]
    ]
    for a in kept:  # published texts would disagree with what a fault changes
        a["reasoning"] = {}
    (folder / "cohort").mkdir()
    for name in ("images", "masks", "embeddings.h5"):
        (folder / "cohort" / name).symlink_to(cohort / name)
    (folder / "cohort" / "annotations.jsonl").write_text("".join(json.dumps(a) + "\n" for a in kept))
    build(Cohort(folder / "cohort"), folder / "release", options=Options(questions="all69", margin_mm=3.0))
    return folder / "release"


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight volumes, some of every split, with second readings and published texts among them: `cohort` and `release`,
    for what reads every row in many ways, or by a command of its own."""
    folder = tmp_path_factory.mktemp("eight")
    write_cohort(folder / "cohort", patients=4, seed=0, shape=SHAPE)
    build(Cohort(folder / "cohort"), folder / "release", options=Options(questions="all69", margin_mm=3.0))
    return folder


@pytest.fixture(scope="session")
def manifest(release: Path) -> Manifest:
    from reasonknee.layout import read_manifest

    return read_manifest(release)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    """Runs programs that import torch and what stands on it, all of which is imported once."""
    started = Warm(tmp_path_factory.mktemp("warm"))
    yield started
    started.close()


def needs(package: str) -> None:
    """Skips a test, or a file of tests, where a package is not installed; imports nothing, which may take seconds."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What a test counted (`record_property`), such as the points at which it killed a build."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties if report.when == "call" else ():
            terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {name}: {value}")


def run(
    *args: object, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A program as a user starts it: a Python file, `-c` code, or else the `reasonknee` command."""
    words = [str(a) for a in args]
    python = words[0] == "-c" or words[0].endswith(".py")
    command = [sys.executable, *([] if python else ["-m", "reasonknee"]), *words]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=300
    )


def run_as_anyone(*words: object) -> subprocess.CompletedProcess[str]:
    """The `reasonknee` command as one whom permissions bind: root may read everything, unless it gives that up."""
    before: list[str] = []
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("run as root, without setpriv")
        given_up = "-dac_override,-dac_read_search"
        before = ["setpriv", f"--bounding-set={given_up}", f"--inh-caps={given_up}"]
    line = [*before, sys.executable, "-m", "reasonknee", *map(str, words)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120)


def command(*args: object) -> int:
    """The `reasonknee` command in this process, for tests that want many: its exit code."""
    from unittest.mock import patch

    from reasonknee.__main__ import main

    with patch.object(sys, "argv", ["reasonknee", *map(str, args)]), pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="session")
def sgmri(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort of SGMRI-VQA, its questions and its release: scans, qa and release."""
    from reasonknee.sgmri.phantom import write_cohort

    out = tmp_path_factory.mktemp("sgmri")
    write_cohort(out / "scans", volumes=4, seed=1)
    tables = [w for a in ("knee", "brain") for w in ("--annotations", out / "scans/annotations" / f"{a}.csv")]
    assert command("sgmri", "construct", out / "qa", *tables, "--images", out / "scans/images") == 0
    assert command("sgmri", "build", out / "qa", out / "release", "--images", out / "scans/images") == 0
    return out


@pytest.fixture(scope="session")
def open_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium starts once for all tests of a process."""
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture
def browser(open_browser: Browser) -> Browser:
    open_browser.fresh()
    return open_browser
