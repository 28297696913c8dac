"""Imports point down the tree that CONTRIBUTING shows, light rooms stay light, and nothing imports in a circle.

The tree in CONTRIBUTING is the rule: rooms stand in the order in which data flows, and a room imports only what stands above it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT

HEAVY = {
    "torch",
    "datasets",
    "nibabel",
    "h5py",
    "pyarrow",
    "dask",
    "matplotlib",
    "pandas",
    "scipy",
    "jsonschema",
    "yaml",
}
LIGHT = {
    "answers",
    "boxes",
    "cohort",
    "errors",
    "layout",
    "questions",
    "schema",
    "scoring",
    "system",
    "version",
}  # and volumes, but for h5py
MAY_SERVE_VALIDATION = {
    "boxes",
    "cohort",
    "errors",
    "layout",
    "questions",
    "schema",
    "system",
    "validation",
    "version",
    "volumes",
}


def tree() -> dict[str, list[str]]:
    """Room or module -> the modules of a room, as CONTRIBUTING draws them below `reasonknee/`."""
    drawn = (ROOT / "CONTRIBUTING.md").read_text().split("\nreasonknee/\n")[1].split("```")[0]
    rooms: dict[str, list[str]] = {}
    for line in drawn.splitlines():
        if room := re.match(r"  ([a-z_]+)(/|\.py) ", line):
            rooms[room[1]] = []
        elif line.startswith("      "):
            rooms[list(rooms)[-1]] += line.split()
    return rooms


def package() -> dict[str, Path]:
    """Dotted name below `reasonknee` -> file; `schema` and `validation` lie at the top level of the repository."""
    files = {}
    for folder, below in (
        (ROOT / "reasonknee", ""),
        (ROOT / "schema", "schema."),
        (ROOT / "validation", "validation."),
    ):
        for path in sorted(folder.rglob("*.py")):
            name = below + ".".join(path.relative_to(folder).with_suffix("").parts)
            files[name.removesuffix(".__init__")] = path
    return files


TREE, PACKAGE = tree(), package()
ORDER = {room: place for place, room in enumerate(TREE)}


def imported(node: ast.AST, top_level_only: bool = False) -> set[str]:
    """Dotted names that a module imports; what only a type checker sees does not count."""
    names: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if isinstance(child, ast.Import):
            names |= {a.name for a in child.names}
        elif isinstance(child, ast.ImportFrom) and child.module:
            names |= {f"{child.module}.{a.name}" for a in child.names} | {child.module}
        elif not top_level_only or not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            names |= imported(child, top_level_only)
    return names


def ours(names: set[str]) -> set[str]:
    return {
        n.removeprefix("reasonknee.")
        for n in names
        if n.startswith("reasonknee.") and n.removeprefix("reasonknee.") in PACKAGE
    }


def room(module: str) -> str:
    return module.split(".")[0]


def upward(module: str, source: str) -> set[str]:
    here = room(module)
    return {other for other in map(room, ours(imported(ast.parse(source)))) if ORDER[other] > ORDER[here]}


def test_the_tree_in_contributing_is_the_tree() -> None:
    on_disk: dict[str, set[str]] = {}
    for name in PACKAGE:
        if name != "__init__":
            on_disk.setdefault(room(name), set()).update(name.split(".")[1:])
    assert {name: sorted(modules) for name, modules in TREE.items()} == {
        name: sorted(modules) for name, modules in on_disk.items()
    }


@pytest.mark.parametrize("module", [m for m in PACKAGE if m != "__init__"])
def test_imports_point_down_the_tree(module: str) -> None:
    source = PACKAGE[module].read_text()
    assert not upward(module, source)
    if room(module) in LIGHT:
        assert not {name.split(".")[0] for name in imported(ast.parse(source), top_level_only=True)} & HEAVY


def test_an_upward_import_is_caught() -> None:
    assert upward("boxes", "def f():\n    from reasonknee.release import build") == {"release"}


def test_nothing_imports_in_a_circle() -> None:
    graph = {
        module: ours(imported(ast.parse(path.read_text()))) - {module} for module, path in PACKAGE.items()
    }
    doors = {module for module in graph if any(other.startswith(module + ".") for other in graph)}
    graph = {
        module: uses - {d for d in doors if module.startswith(d + ".")} for module, uses in graph.items()
    }  # a door opens its own room
    TopologicalSorter(graph).prepare()
    with pytest.raises(CycleError):
        TopologicalSorter({**graph, "boxes": {"cli"}}).prepare()


def test_the_rooms_that_rules_name_are_there() -> None:
    assert set(TREE) >= LIGHT | MAY_SERVE_VALIDATION
    assert set(PACKAGE) >= WORDS_OF_ROWS


def crowded(module: str, source: str) -> list[str]:
    """Functions of more than ten parameters, but for those that users call by keyword and that say so."""
    lines, found = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        given = [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg != "self"]
        if len(given) + len(node.args.kwonlyargs) > 10:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            above = lines[: first - 1]
            while above and above[-1].lstrip().startswith("#"):
                told = above.pop().strip()
            if len(given) > 3 or len(above) == first - 1 or not told.startswith("# Keywords"):
                found.append(f"{module}:{node.lineno} {node.name}")
    return found


def test_what_takes_many_parameters_is_a_door_with_keywords() -> None:
    """A command's parameters are its options, which typer reads off its signature: they are left alone."""
    sources = {m: path.read_text() for m, path in PACKAGE.items() if room(m) != "cli"}
    assert [place for m, source in sources.items() for place in crowded(m, source)] == []
    many = ", ".join("abcdefghijk")
    assert crowded("boxes", f"def f({many}): ...") == ["boxes:1 f"]
    assert crowded("boxes", f"def f(*, {many}): ...") == ["boxes:1 f"]
    assert crowded("boxes", f"# Keywords: so.\ndef f(*, {many}): ...") == []


WORDS_OF_ROWS = {"questions.reasoning", "questions.prompts"}


def test_validation_shares_nothing_with_what_makes_rows() -> None:
    """Neither rooms that make rows, nor the modules that word them: a bug there must not approve itself."""
    for module, path in PACKAGE.items():
        if room(module) == "validation":
            uses = ours(imported(ast.parse(path.read_text())))
            assert {room(name) for name in uses} <= MAY_SERVE_VALIDATION, module
            assert not uses & WORDS_OF_ROWS, module


def test_the_front_door_offers_what_it_says_and_loads_nothing() -> None:
    code = (
        "import sys, reasonknee as rk, reasonknee.questions, reasonknee.cli\n"
        "assert not {'torch', 'datasets', 'nibabel', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert sorted(rk._HOMES) == sorted(rk.__all__)\n"
        "assert set(rk.__all__) <= set(dir(rk))\n"
        "assert all(getattr(rk, name) is not None for name in rk.__all__)\n"
        "assert rk.read_answer.__module__ == 'reasonknee.answers.answer'\n"
        "rk.nothing\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "AttributeError: module 'reasonknee' has no attribute 'nothing'"


@pytest.mark.parametrize(
    "name",
    [
        "questions",
        "volumes",
        "answers",
        "stream",
        "collate",
        "scoring",
        "builder",
        "prompts",
        "schema",
        "validation",
    ],
)
def test_paths_that_programs_import_stay(name: str) -> None:
    assert name in PACKAGE
