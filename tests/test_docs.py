"""Documents that cannot drift: generated blocks, commands, and the code that the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, command, run

from reasonknee.cli import app
from reasonknee.generate import BLOCKS, with_blocks

README = (ROOT / "README.md").read_text()
DOCS = README + "".join(p.read_text() for p in sorted((ROOT / "docs").glob("*.md")))


def test_generated_blocks_are_fresh() -> None:
    assert with_blocks(DOCS) == DOCS, "run `make gen`"
    assert set(re.findall("<!-- gen:([a-z-]+) -->", DOCS)) == set(BLOCKS)


def test_a_stale_block_is_noticed() -> None:
    page = next(text for p in (ROOT / "docs").glob("*.md") if "| `bml_size` |" in (text := p.read_text()))
    assert with_blocks(page.replace("| `bml_size` |", "| `bml_sise` |")) == page


@pytest.mark.parametrize(
    "name", [c.name or c.callback.__name__.replace("_", "-") for c in app.registered_commands]
)
def test_every_command_is_documented(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"reasonknee {name}" in DOCS
    assert command(name, "--help") == 0
    assert "Usage" in capsys.readouterr().out


def test_help_reads_like_the_flow() -> None:
    said = run("--help").stdout
    order = [
        re.search(rf"^\W*{name} {{2,}}", said, flags=re.M).start()
        for name in (
            "phantom",
            "construct",
            "attach",
            "build",
            "validate",
            "publish",
            "look",
            "score",
            "compare",
        )
    ]
    assert order == sorted(order)


def test_the_code_in_the_readme_runs(release: Path, cohort: Path, tmp_path: Path) -> None:
    """All Python blocks in one program, where a folder of the repository's name lies, as after `make demo`."""
    (tmp_path / "rajpurkarlab").mkdir()
    (tmp_path / "rajpurkarlab" / "3DReasonKnee").symlink_to(release)
    (tmp_path / "cohort").symlink_to(cohort)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    checks = "assert voxels.ndim == 3\nassert len(box) == 6\nassert len(train)\nimport os; os._exit(0)\n"
    (tmp_path / "readme.py").write_text(
        "if __name__ == '__main__':\n"
        + "\n".join("    " + line for line in ("\n".join(blocks) + "\n" + checks).splitlines())
    )
    env = {"HF_HOME": str(tmp_path / "home"), "USE_TORCH": "0"}
    done = run(tmp_path / "readme.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


def test_links_lead_somewhere() -> None:
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_loading_script_re_exports_the_builder() -> None:
    code = "import importlib; m = importlib.import_module('3DReasonKnee'); print(m.ReasonKnee.__module__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "reasonknee.builder"
