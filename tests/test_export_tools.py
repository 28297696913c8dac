"""Other trainers take what is exported for them: ms-swift's reader, in an environment of its own, and a step of `trl sft`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from conftest import ROOT, command
from PIL import Image

pytestmark = pytest.mark.tools
SWIFT = ROOT / ".venv-swift" / "bin" / "python"
READ = """
import json, sys
from swift.dataset import load_dataset
for row in load_dataset("train.jsonl", strict=True)[0]:
    print("row", json.dumps(row))
"""


def exported(tool: str, release: Path, out: Path, *options: object) -> list[dict[str, Any]]:
    assert command("export", tool, release, out, "--slices", "even:4", "--limit", 3, *options) == 0
    return [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]


def ran(words: list[object], inside: Path, work: Path) -> subprocess.CompletedProcess[str]:
    folders = {"HF_DATASETS_CACHE": "hf", "HF_MODULES_CACHE": "modules", "MODELSCOPE_CACHE": "modelscope"}
    env = {**os.environ, **{name: str(work / folder) for name, folder in folders.items()}}
    env |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(word) for word in words], cwd=inside, env=env, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("kind", ["images", "video"])
def test_ms_swift_reads_what_is_exported_for_it(release: Path, tmp_path: Path, kind: str) -> None:
    assert SWIFT.is_file(), "make test-tools installs it"
    rows = exported("ms-swift", release, tmp_path / "out", "--kind", kind)
    done = ran([SWIFT, "-c", READ], tmp_path / "out", tmp_path)
    read = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("row ")]
    assert [row["messages"] for row in read] == [row["messages"] for row in rows], done.stderr[-2000:]
    for row, ours in zip(read, rows, strict=True):
        if kind == "video":
            (paths,) = row["videos"]
            assert paths == ours["videos"][0]
        else:
            paths = [image["path"] for image in row["images"]]
            assert paths == ours["images"]
        assert [Image.open(tmp_path / "out" / path).size for path in paths] == [(48, 48)] * 4


def test_its_reader_would_find_a_row_that_is_none(release: Path, tmp_path: Path) -> None:
    """So that passing means something."""
    rows = exported("ms-swift", release, tmp_path / "out")
    spoilt = [{**row, "messages": [{"role": "knee", "content": 1}]} for row in rows]
    (tmp_path / "out" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spoilt))
    done = ran([SWIFT, "-c", READ], tmp_path / "out", tmp_path)
    assert "row " not in done.stdout
    assert "messages" in done.stderr


def documented(tool: str) -> list[str]:
    """The command that docs/asking.md shows for a tool."""
    lines = (ROOT / "docs" / "asking.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{tool} sft ")]
    return line.partition("#")[0].split()


def test_ms_swift_knows_the_options_of_the_command_in_the_docs() -> None:
    names = [word[2:] for word in documented("swift") if word.startswith("--")]
    code = f"from swift.arguments import SftArguments as a; print({names!r} - a.__dataclass_fields__.keys())"
    done = ran([SWIFT, "-c", code.replace(repr(names), f"set({names!r})")], ROOT, ROOT)
    assert done.stdout.split() == ["set()"], done.stdout + done.stderr[-2000:]


def test_trl_takes_a_step_on_what_is_exported_for_it(release: Path, tmp_path: Path) -> None:
    """By the command of the docs, with a tiny model."""
    exported("trl", release, tmp_path / "OUT")
    checkpoint = tiny_models.checkpoint("qwen2_5_vl", tmp_path / "checkpoint")
    model = tiny_models.for_serving(checkpoint, tmp_path / "model")
    words: list[object] = [sys.executable, "-m", "trl.scripts.sft", *documented("trl")[2:]]
    words[words.index("--model_name_or_path") + 1] = model
    words += ["--trust_remote_code", "--max_steps", 1, "--per_device_train_batch_size", 1]
    words += [
        "--output_dir",
        tmp_path / "trained",
        "--report_to",
        "none",
        "--use_cpu",
        "true",
        "--bf16",
        "false",
    ]
    done = ran(words, tmp_path / "OUT", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    loss = re.search(r"'train_loss': '?([0-9.]+)", done.stdout)
    assert loss is not None
    assert float(loss[1]) > 0
    (tmp_path / "elsewhere").mkdir()
    words[words.index("--dataset_name") + 1] = tmp_path / "OUT"
    lost = ran(words, tmp_path / "elsewhere", tmp_path)
    assert lost.returncode != 0, "it read no image"
