"""Lays out what `make docs` builds from: pages as in the repository, a page of reference for each room's
door, and the package as it is installed, so that docstrings are found. Standard library and yaml only."""

from __future__ import annotations

import ast
import shutil
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")
LINKED = ("examples", "benchmarks", "schema")  # files that pages lead to


def names(path: Path) -> list[str]:
    """`__all__` of a module, without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def homes(path: Path) -> dict[str, str]:
    """The front door's names, each with its room and what it is called there."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            found: dict[str, str] = ast.literal_eval(node.value)
            return found
    raise LookupError("_HOMES")


def doors() -> dict[str, Path]:
    """Room -> the file that is its door; rooms and modules that the front door opens."""
    rooms = {path.parent.name: path for path in sorted((ROOT / "reasonknee").glob("*/__init__.py"))}
    rooms |= {room: ROOT / room / "__init__.py" for room in ("schema", "validation")}
    for home in homes(ROOT / "reasonknee" / "__init__.py").values():
        room = home.partition(":")[0]
        rooms.setdefault(room, ROOT / "reasonknee" / f"{room}.py")
    return {room: rooms[room] for room in sorted(rooms)}


def reference(room: str, path: Path, front: dict[str, str]) -> str:
    """A page: what the room is for, and each of its public names."""
    offered = names(path) or sorted(name for name, home in front.items() if home == room)
    options = "    options: {members: false, show_root_heading: false, show_root_toc_entry: false}"
    lines = [f"# reasonknee.{room}", "", f"::: reasonknee.{room}", options, ""]
    if room not in (
        "cli",
        "system",
    ):  # the command has its own help, and the machine's modules no single door
        lines += [line for name in offered for line in (f"::: reasonknee.{room}.{name}", "")]
    return "\n".join(lines)


def front_page(front: dict[str, str]) -> str:
    """What `import reasonknee as rk` offers, each name with the way to its room."""
    lines = ["# The front door", "", "::: reasonknee"]
    lines += ["    options: {members: false, show_root_heading: false, show_root_toc_entry: false}", ""]
    lines += ["| `rk.` | room |", "| --- | --- |"]
    for name, home in front.items():
        room, _, called = home.partition(":")
        lines.append(f"| [`{name}`][reasonknee.{room}.{called or name}] | [{room}]({room}.md) |")
    return "\n".join(lines) + "\n"


def stage(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    pages = out / "pages"
    pages.mkdir(parents=True)
    for name in TOP:
        shutil.copy(ROOT / name, pages / name)
    skip = shutil.ignore_patterns("__pycache__", "site")
    for name in ("docs", *LINKED, "reasonknee"):
        shutil.copytree(ROOT / name, pages / name, ignore=skip)
    for page in [*(pages / "reasonknee").rglob("*.md"), *(pages / "schema").rglob("*.md")]:
        page.unlink()  # parts of cards, no pages
    shutil.copytree(ROOT / "reasonknee", out / "package" / "reasonknee", ignore=skip)
    for name in ("schema", "validation"):
        shutil.copytree(ROOT / name, out / "package" / "reasonknee" / name, ignore=skip)
    shutil.copytree(ROOT / "docs" / "site" / "theme", out / "theme")
    front = homes(ROOT / "reasonknee" / "__init__.py")
    (pages / "reference").mkdir()
    (pages / "reference" / "reasonknee.md").write_text(front_page(front), encoding="utf-8")
    for room, path in doors().items():
        (pages / "reference" / f"{room}.md").write_text(reference(room, path, front), encoding="utf-8")
    config = yaml.safe_load((ROOT / "docs" / "site" / "mkdocs.yml").read_text(encoding="utf-8"))
    for section in config["nav"]:
        if "Reference" in section:
            section["Reference"] = ["reference/reasonknee.md", *(f"reference/{room}.md" for room in doors())]
        if "Tutorials" in section:
            tutorials = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
            section["Tutorials"] = [str(path.relative_to(ROOT)) for path in tutorials]
    config["nav"] = [section for section in config["nav"] if all(section.values())]
    (out / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
