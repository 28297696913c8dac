"""Training in two real processes, by torchrun on the CPU, against one process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import needs
from warm import Warm

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'reasonknee[torch]'")
needs("trl")

import tiny_models  # noqa: E402
from training_job import RECIPE  # noqa: E402

from reasonknee.errors import ReasonKneeError  # noqa: E402
from reasonknee.models.team import Team, gathered  # noqa: E402
from reasonknee.models.training import Job, fine_tune  # noqa: E402
from reasonknee.release.reader import Release  # noqa: E402


def test_two_processes_train_as_one(release: Path, tmp_path: Path, warm: Warm) -> None:
    """Each row once, the weights of one process with twice the forwards, one folder that the first wrote;
    the second half of the run again ends the same; what the first decides ends all."""
    from safetensors.torch import load_file

    model = tiny_models.checkpoint("qwen2_5_vl", tmp_path / "model")
    job = Path(__file__).parent / "training_job.py"
    warm.run(job, release, model, tmp_path, needs=("transformers.trainer", "peft"), ranks=2)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    volumes = sorted(set(Release(str(release)).columns("train", ["volume_id"])["volume_id"].to_pylist()))
    passed = sorted(v for rank in ranks for v in rank["passed"])
    assert len(passed) == len(set(passed)) == len(volumes) - len(volumes) % 2
    assert set(passed) <= set(volumes)
    assert abs(len(ranks[0]["passed"]) - len(ranks[1]["passed"])) == 0

    alone = Job(str(release), str(model), tmp_path / "alone", dtype="float32", device="cpu")
    steps = len(passed) // 2
    folder = fine_tune(alone, replace(RECIPE, accumulate=2, steps=steps, epochs=2))
    one, two, again = (
        load_file(place / "adapter_model.safetensors")
        for place in (folder, tmp_path / "first", tmp_path / "pass" / "adapter")
    )
    moved = max(one[name].abs().max().item() for name in one if "lora_B" in name)
    assert moved > 1e-4
    for name in one:
        assert (one[name] - two[name]).abs().max().item() < 0.02 * moved, name
        assert torch.equal(two[name], again[name]), name
    losses = [
        [json.loads(line)["loss"] for line in (tmp_path / run / "losses.jsonl").open()]
        for run in ("alone", "pass")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)

    looks = [json.loads(line)["step"] for line in (tmp_path / "early" / "validation.jsonl").open()]
    assert looks == list(range(1, len(looks) + 1))
    assert 2 <= len(looks) < steps
    assert (tmp_path / "early" / "adapter" / "adapter_model.safetensors").is_file()
    assert ranks[0]["told"]
    assert not ranks[1]["told"]
    assert [rank["refused"] for rank in ranks] == ["N078", "N078"]


def test_weights_in_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gathered("cpu") == Team()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ReasonKneeError, match="N091"):
        gathered("cpu")
