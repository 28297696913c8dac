"""The site: every page is in it, every public name has a docstring, every code its line, nothing from elsewhere."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from conftest import ROOT, command, run

from reasonknee import codes

SITE = ROOT / "docs" / "site"


def staging() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stage", SITE / "stage.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation() -> None:
    (guides,) = (
        s["Guides"] for s in yaml.safe_load((SITE / "mkdocs.yml").read_text())["nav"] if "Guides" in s
    )
    assert sorted([*guides, "docs/errors.md"]) == sorted(
        f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")
    )


def described(room: str, name: str) -> bool:
    """A function or class by its docstring; a constant by the string below it, in the module that sets it."""
    value = getattr(importlib.import_module(f"reasonknee.{room}"), name)
    if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
        return bool((value.__doc__ or "").strip()) and not (value.__doc__ or "").startswith(f"{name}(")
    door = importlib.import_module(f"reasonknee.{room}")
    for path in Path(door.__file__).parent.glob("*.py"):
        body = ast.parse(path.read_text()).body
        for node, after in itertools.pairwise(body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if name in names and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return True
    return False


def test_every_public_name_has_a_docstring() -> None:
    stage = staging()
    public = [
        (room, name) for room, path in stage.doors().items() for name in stage.names(path) if room != "system"
    ]
    assert len(public) > 80
    assert [f"{room}.{name}" for room, name in public if not described(room, name)] == []
    assert not described("errors", "_LONGEST")


def test_every_code_has_its_line() -> None:
    told = {entry.code: entry for entry in codes.entries()}
    sources = [p for room in ("reasonknee", "schema", "validation") for p in (ROOT / room).rglob("*.py")]
    raised = {code for path in sources for code in re.findall(r'"([A-Z][0-9]{3})"', path.read_text())}
    assert sorted(raised - set(told)) == []
    said = [bool(codes.literal(e.happened) and codes.literal(e.remedy) and e.why) for e in told.values()]
    assert [code for code, told_ in zip(told, said, strict=True) if not told_] == [], (
        "only blanks: add it to SPECIAL"
    )


def test_a_code_has_one_kind() -> None:
    """What a program does about an error depends on its kind, so one code never stands for two."""
    kinds: dict[str, set[str]] = {}
    for entry in codes.raised():
        if entry.why.endswith(")"):  # with an exit code
            kinds.setdefault(entry.code, set()).add(entry.why)
    assert len(kinds) > 300
    assert {code: found for code, found in kinds.items() if len(found) > 1} == {}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["questions", "alc"], "did you mean acl?"),
        (["score", "{predictions}", "{release}", "--categories", "cartilege"], "did you mean cartilage?"),
    ],
)
def test_near_misses_are_suggested(
    words: list[str], meant: str, release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.jsonl").write_text("")
    assert command(*(w.format(predictions=tmp_path / "p.jsonl", release=release) for w in words)) == 2
    assert meant in capsys.readouterr().err


def test_a_stream_suggests_regions(release: Path) -> None:
    from reasonknee.errors import UsageError
    from reasonknee.stream import quintuples

    with pytest.raises(UsageError, match="did you mean acl"):
        quintuples(release, "annotations", "train", regions="aclx", seed=0)


def test_next_lines_quote_blanks_and_count_in_english(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my knees"
    assert command("phantom", folder, "--patients", 1, "--shape", "16,40,40") == 0
    said = capsys.readouterr().out
    assert shlex.split(said.split("next: ")[1].splitlines()[0])[:3] == ["reasonknee", "build", str(folder)]
    assert " of 1 patient in " in said


def test_a_system_without_file_locks_is_one_line(cohort: Path, tmp_path: Path) -> None:
    """As on Windows, which has no fcntl."""
    code = "import sys; sys.modules['fcntl'] = None\nsys.argv = ['reasonknee', 'build', *sys.argv[1:]]\nfrom reasonknee.__main__ import main; main()"
    done = run("-c", code, cohort, tmp_path / "release")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error R015: ")


def test_what_the_system_refuses_is_one_line(tmp_path: Path) -> None:
    code = "import sys; from reasonknee.errors import reported; reported(lambda: open(sys.argv[1]))"
    done = run("-c", code, tmp_path / "none")
    assert done.returncode == 4
    assert (
        done.stderr
        == f"error I000: No such file or directory: {tmp_path / 'none'} (check the path and the disk)\n"
    )


def built(sources: Path, out: Path) -> subprocess.CompletedProcess[str]:
    words = [ROOT / ".venv-docs/bin/mkdocs", "build", "--strict", "-f", sources / "mkdocs.yml", "-d", out]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(words, capture_output=True, text=True, timeout=600, env=env)


@pytest.mark.tools
def test_the_site_is_built_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    stage = staging()
    stage.stage(tmp_path / "sources")
    done = built(tmp_path / "sources", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    loads = r"<(?:script|img|iframe)[^>]+src=[\"']?(?:https?:)?//|<link(?![^>]+rel=[\"']?canonical)[^>]+href=[\"']?(?:https?:)?//"
    assert [p.name for p in pages if re.search(loads, p.read_text())] == []
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:url\(|@import\s)[\"']?(?:https?:)?//", style.read_text()), style
    for room, path in stage.doors().items():
        page = (tmp_path / "site" / "reference" / f"{room}.html").read_text()
        for name in stage.names(path) if room not in ("cli", "system") else ():
            assert f'id="reasonknee.{room}.{name}"' in page, f"{room}.{name}"
    with (tmp_path / "sources" / "pages" / "docs" / "record.md").open("a") as page:
        page.write("\n[nowhere](nowhere.md)\n")
    assert built(tmp_path / "sources", tmp_path / "bad").returncode != 0, "a broken link fails"
