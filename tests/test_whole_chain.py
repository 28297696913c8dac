"""A phantom cohort through embed, train (from pixels and from embeddings), ask and score, by command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny_models
from conftest import command, needs

needs("torch")
needs("trl")


def test_embed_train_ask_and_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_models.checkpoint("qwen2_5_vl", tmp_path / "model")
    cohort, release = tmp_path / "cohort", tmp_path / "release"
    view = ["--slices", "even:2"]
    assert command("phantom", cohort, "--patients", 5, "--shape", "16,48,48") == 0
    assert command("build", cohort, tmp_path / "first", "--configs", "full,annotations") == 0
    (cohort / "embeddings.h5").unlink()  # the phantom's own, of no model
    made = ["--model", model, *view, "--out", cohort / "embeddings.h5"]
    assert command("embed", tmp_path / "first", *made) == 0
    assert command("build", cohort, release, "--configs", "full,annotations,embeddings") == 0
    taught = ["--arm", "no_reasoning", "--setting", "zero_shot", "--packed", "--questions-per-volume", 2]
    short = ["--steps", 1, "--accumulate", 1, "--dtype", "float32"]
    ways = {"pixels": [], "embeddings": ["--embeddings", cohort / "embeddings.h5"]}
    for way, more in ways.items():
        run, answers = tmp_path / way, tmp_path / f"{way}-answers"
        assert command("train", release, "--model", model, *view, *taught, *short, *more, "--out", run) == 0
        asked = ["--adapter", run / "adapter", "--arm", "no_reasoning", "--max-tokens", 2, "--limit", 3]
        assert command("ask", release, "--model", model, *view, *asked, "--out", answers) == 0
        capsys.readouterr()
        scores = tmp_path / f"{way}-scores"
        assert command("score", answers / "predictions.jsonl", release, "--out", scores) == 0
        found = json.loads((scores / "scores.json").read_text())
        assert found["counts"]["lines"] == 3
        assert found["counts"]["unknown"] == 0
