"""Imports point down the layers only, and the light modules stay light."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest
from conftest import ROOT

LAYERS = {
    0: ["errors", "version", "gunzip", "limits", "dicom_elements", "lesions", "regions", "questions", "boxes"],
    1: [
        "records",
        "prompts",
        "reasoning",
        "answers",
        "answer_text",
        "answer_boxes",
        "answer_grades",
        "splits",
        "tables",
        "workers",
        "manifest",
        "annotations",
        "region_boxes",
        "score_layout",
        "schema",
    ],
    2: ["scoring", "volumes", "embeddings", "gate", "dicom", "scans", "cohort", "materialise", "memory"],
    3: [
        "builder",
        "release",
        "card",
        "croissant",
        "stream",
        "collate",
        "report",
        "look",
        "construct",
        "phantom",
        "shards",
        "locks",
        "cluster",
    ],
    4: ["__main__", "cli", "generate", "publish", "validation"],
}
LEVEL = {module: level for level, modules in LAYERS.items() for module in modules}
HEAVY = {"torch", "datasets", "nibabel", "h5py", "pyarrow", "dask", "matplotlib", "pandas", "scipy", "jsonschema", "yaml"}
WITHOUT_BUILDER = {"builder", "release", "materialise", "card", "croissant", "phantom", "construct"}  # what `validation` must not share


def modules() -> list[tuple[str, ast.Module]]:
    found = []
    for folder, prefix in ((ROOT / "reasonknee", ""), (ROOT / "schema", "schema"), (ROOT / "validation", "validation")):
        for path in sorted(folder.rglob("*.py")):
            name = prefix or path.relative_to(folder).parts[0].removesuffix(".py")
            if name != "__init__":
                found.append((name, ast.parse(path.read_text())))
    return found


def imported(tree: ast.AST, top_level_only: bool) -> set[str]:
    """Dotted names imported; `from reasonknee import schema` counts as reasonknee.schema."""
    names: set[str] = set()
    for node in tree.body if top_level_only else ast.walk(tree):  # type: ignore[attr-defined]
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{a.name}" for a in node.names} | {node.module}
    return names


def rooms(names: set[str]) -> set[str]:
    return {n.split(".")[1] for n in names if n.startswith("reasonknee.")} & set(LEVEL)


def upward(name: str, tree: ast.AST) -> list[str]:
    return sorted(other for other in rooms(imported(tree, top_level_only=False)) if other != name and LEVEL[other] > LEVEL[name])


def test_every_module_has_a_layer() -> None:
    assert {name for name, _ in modules()} <= set(LEVEL)


@pytest.mark.parametrize(("name", "tree"), modules(), ids=lambda v: v if isinstance(v, str) else "")
def test_imports_point_down(name: str, tree: ast.Module) -> None:
    assert not upward(name, tree)
    if LEVEL[name] <= 1 or name == "scoring":
        assert not {n.split(".")[0] for n in imported(tree, top_level_only=True)} & HEAVY


def test_an_upward_import_is_caught() -> None:
    assert upward("boxes", ast.parse("def f():\n    from reasonknee.release import build")) == ["release"]


def test_validation_shares_no_code_with_the_builder() -> None:
    for name, tree in modules():
        if name == "validation":
            assert not rooms(imported(tree, top_level_only=False)) & WITHOUT_BUILDER


def test_importing_the_package_is_light() -> None:
    code = "import sys, reasonknee, reasonknee.questions, reasonknee.cli; print(sorted({'torch', 'datasets', 'nibabel', 'pyarrow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
