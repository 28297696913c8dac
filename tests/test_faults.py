"""One folder per refusal: a fault in a cohort, the command a user runs, and the one line they get."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import command

from reasonknee.boxes import Box
from reasonknee.questions import QUESTIONS
from reasonknee.volumes import read_volume, write_nifti

FOLDER = Path(__file__).parent / "faults"
FAULTS = sorted(p.parent.name for p in FOLDER.glob("*/fault.json"))


def _periarticular(told: Any) -> Any:
    """What is told of periarticular questions, whether by question or by reading and question."""
    if isinstance(told, list):
        return [each | {"grades": _periarticular(each["grades"])} for each in told]
    return {q: value for q, value in told.items() if QUESTIONS[q].category.id == "periarticular"}


def spoil(cohort: Path, change: dict[str, Any]) -> None:
    """One change to a cohort: `set` a key of the first annotation, or do something to the first file that a pattern finds."""
    if "set" in change:
        path = cohort / "annotations.jsonl"
        lines = path.read_text().splitlines()
        first = json.loads(lines[0])
        for dotted, value in change["set"].items():
            *way, last = dotted.split(".")
            inner = first
            for step in way:
                inner = inner[step]
            inner[last] = value
        path.write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
        return
    target = sorted(cohort.glob(change["file"]))[0]
    match change["do"]:
        case "remove":
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        case "truncate":
            target.write_bytes(target.read_bytes()[: target.stat().st_size // 2])
        case "double":
            other = target.parent.with_name("99M")
            other.mkdir()
            shutil.copy(target, other / target.name)
        case "repeat line":
            target.write_text(target.read_text() + target.read_text().splitlines()[0] + "\n")
        case "move one visit":
            rows = [json.loads(line) for line in target.read_text().splitlines()]
            again = next(b for a, b in itertools.pairwise(rows) if a["patient"] == b["patient"])
            again["split"] = "test" if again["split"] != "test" else "train"
            target.write_text("".join(json.dumps(r) + "\n" for r in rows))
        case "append":
            target.write_text(target.read_text() + change["text"])
        case "only periarticular":
            rows = [json.loads(line) for line in target.read_text().splitlines()]
            for row in rows:
                for field in {"grades", "readings", "reasoning"} & set(row):
                    row[field] = _periarticular(row[field])
            target.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case "unreadable":  # for root, too: a regular file whose first byte is an error
            target.unlink()
            target.symlink_to("/proc/self/mem")
        case "prepend":
            target.write_text(change["text"] + target.read_text())
        case "crop":
            volume = read_volume(target)
            z, y, x = volume.grid.shape
            write_nifti(target, volume.crop(Box(1, z, 0, y, 0, x)))


@pytest.mark.parametrize("name", FAULTS)
def test_fault(name: str, cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = json.loads((FOLDER / name / "fault.json").read_text())
    spoiled, out = tmp_path / "cohort", tmp_path / "release"
    shutil.copytree(cohort, spoiled)
    for change in fault.get("changes", []):
        spoil(spoiled, change)
    if fault.get("out_exists"):
        out.mkdir()
    code = command(*(word.format(cohort=spoiled, out=out) for word in fault["command"]))
    said = capsys.readouterr().err.strip().splitlines()
    assert code == fault["exit"], said
    assert len(said) == 1, said
    assert said[0].startswith(f"error {name.split('-')[0]}: ")
    for words in fault["says"]:
        assert words in said[0]
    assert said[0].endswith(")"), "a hint is missing"
    assert fault.get("out_exists") or not out.exists(), "something stands under the final name"


def test_every_fault_is_of_a_code_that_is_still_raised() -> None:
    sources = "".join(p.read_text() for p in (FOLDER.parent.parent / "reasonknee").rglob("*.py"))
    assert [name for name in FAULTS if f'"{name.split("-")[0]}"' not in sources] == []
    assert {p.name for p in FOLDER.iterdir()} == set(FAULTS), "a folder without fault.json"
