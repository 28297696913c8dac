"""Fine-tuning: gradients of packed questions, labels, resume, embeddings, and each refusal, with tiny models."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, command, needs

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'reasonknee[torch]'")
needs("trl")

import tiny_models  # noqa: E402

from reasonknee.answers import read  # noqa: E402
from reasonknee.errors import ReasonKneeError  # noqa: E402
from reasonknee.layout import read_manifest  # noqa: E402
from reasonknee.models import examples, prefix, training, training_rows  # noqa: E402
from reasonknee.models.embed import Embedding, embed, size_of  # noqa: E402
from reasonknee.models.local import Local  # noqa: E402
from reasonknee.models.targets import ARMS, Teaching, target  # noqa: E402
from reasonknee.models.training import Job, fine_tune  # noqa: E402
from reasonknee.models.training_rows import Examples, Recipe, volume_of  # noqa: E402
from reasonknee.models.views import View  # noqa: E402
from reasonknee.questions import question  # noqa: E402
from reasonknee.stream import volumes  # noqa: E402
from reasonknee.volumes.embeddings import EmbeddingFile  # noqa: E402

VIEW = View("even:8")
SHORT = Recipe(
    view=VIEW,
    teaching=Teaching("no_reasoning", "zero_shot"),
    packed=True,
    questions_per_volume=3,
    steps=4,
    save_every=2,
    accumulate=1,
    dropout=0.0,
    rate=1e-3,
)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return {kind: tiny_models.checkpoint(kind, folder / kind) for kind in tiny_models.KINDS}


@pytest.fixture(scope="module")
def item(release: Path) -> dict[str, Any]:
    return next(iter(volumes(release, "full", "train", seed=0, batch_size=1)))


def loaded(folder: Path) -> Local:
    torch.set_num_threads(1)
    return Local.load(str(folder), dtype="float32", device="cpu")


def taught(local: Local, item: dict[str, Any], teaching: Teaching, count: int = 4) -> tuple[list[Any], Any]:
    showing = local.fitted(VIEW.show(volume_of(item), item["side"]))
    rows = [{**item, **q} for q in item["quintuples"] if q["box"]][:count]
    return [target(row, showing, teaching) for row in rows], local.packed(showing)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
@pytest.mark.parametrize("how", ["full", "lora", "checkpointing"])
def test_packing_equals_one_by_one(
    kind: str, how: str, checkpoints: dict[str, Path], item: dict[str, Any]
) -> None:
    """Loss and every gradient, the vision tower's and Qwen3-VL's deep features' among them."""
    local = loaded(checkpoints[kind])
    targets, packed = taught(local, item, Teaching("no_reasoning", "zero_shot"))
    together, alone = (
        examples.example(local, targets, packed),
        [examples.example(local, [t], packed) for t in targets],
    )
    inner = local.model.train()
    model = training._prepared(local, replace(SHORT, packed=False, full=how != "lora"))
    if how == "lora":
        torch.manual_seed(1)
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.1)
    if how == "checkpointing":
        inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def run(made: dict[str, Any], by_prefix: bool) -> Any:
        if by_prefix:
            prefix.use(inner)
        else:
            inner.set_attn_implementation({"text_config": "sdpa"})
        extra = {k: made[k] for k in ("prefix", "lengths")} if by_prefix else {}
        given = {k: made[k] for k in ("input_ids", "mm_token_type_ids", "position_ids")}
        logits = model(**given, **local.inputs(packed), **extra, use_cache=False).logits
        loss = examples.loss_of(logits, made, "tokens")
        loss.backward()
        return loss.item()

    loss = run(together, True)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    summed = sum(run(made, False) for made in alone)
    assert loss == pytest.approx(summed, rel=1e-5)
    assert len(gradients) > 5
    assert any("visual" in name for name in gradients) == (how != "lora")
    for name, weight in model.named_parameters():
        if weight.grad is not None and weight.grad.norm() > 1e-6:
            assert (weight.grad - gradients[name]).norm() / weight.grad.norm() < 1e-5, name
    model.zero_grad()
    inner.set_attn_implementation(
        {"text_config": "sdpa"}
    )  # a plain causal mask, in which questions see each other
    wrong = {k: together[k] for k in ("input_ids", "mm_token_type_ids", "position_ids")}
    with torch.no_grad():
        seen = examples.loss_of(
            model(**wrong, **local.inputs(packed), use_cache=False).logits, together, "tokens"
        )
    assert abs(seen.item() - summed) / summed > 1e-4


@pytest.mark.parametrize("arm", ARMS)
def test_labels_are_the_answer_alone(arm: str, checkpoints: dict[str, Path], item: dict[str, Any]) -> None:
    local = loaded(checkpoints["qwen2_5_vl"])
    targets, packed = taught(local, item, Teaching(arm, "instruction"))
    made = examples.example(local, targets, packed)
    ids, labels = made["input_ids"][0], made["labels"][0]
    start = made["prefix"]
    assert (labels[:start] == examples.IGNORED).all()
    for length, each in zip(made["lengths"], targets, strict=True):
        own = labels[start : start + length]
        said = own[own != examples.IGNORED].tolist()
        assert said[-1] == local.ends[0]
        assert local.tokenizer.decode(said[:-1]) == each.answer
        assert ids[start : start + length][own != examples.IGNORED].tolist() == said
        start += length


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_what_is_taught_is_a_chat_and_nothing_of_it_is_cut(
    kind: str, checkpoints: dict[str, Path], item: dict[str, Any]
) -> None:
    """The chat template stands around question and answer, and of more than 2,048 tokens none is lost: each row
    of the vision tower has its place, and the question behind them is whole."""
    local = loaded(checkpoints[kind])
    showing = local.fitted(View("all", size=672).show(volume_of(item), item["side"]))
    (row, *_) = [{**item, **q} for q in item["quintuples"] if q["box"]]
    made_of, packed = target(row, showing, Teaching("no_reasoning", "zero_shot")), local.packed(showing)
    made = examples.example(local, [made_of], packed)
    ids = made["input_ids"][0].tolist()
    rows = (
        sum(int(grid.prod()) for grid in packed.grids)
        // local.model.config.vision_config.spatial_merge_size**2
    )
    assert rows > 2048
    assert ids.count(local.model.config.video_token_id) == rows
    assert made["position_ids"].shape == (3, 1, len(ids)), "three axes of positions, not one"
    chat = [
        {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": made_of.question}]},
        {"role": "assistant", "content": [{"type": "text", "text": made_of.answer}]},
    ]
    wanted = local.tokenizer.apply_chat_template(chat, tokenize=False)
    said = local.tokenizer.decode(ids)
    _, _, after = wanted.rpartition("<|vision_end|>")
    assert made_of.question in after
    assert said.rpartition("<|vision_end|>")[2].rstrip() == after.rstrip()
    assert "<|im_start|>user\n" in said.partition("<|vision_start|>")[0]


def test_an_embedding_that_is_missing_or_unreadable_ends_it(
    release: Path, checkpoints: dict[str, Path], item: dict[str, Any], tmp_path: Path
) -> None:
    """No other row stands in for it."""
    h5py = pytest.importorskip("h5py")
    local, out = loaded(checkpoints["qwen2_5_vl"]), tmp_path / "embeddings.h5"
    embed(Embedding(str(release), local, VIEW), out)
    collate = Examples(local, SHORT, {}, out)
    assert "embedding" in collate([item])
    name = item["volume_id"]
    with h5py.File(out, "r+") as file:
        file[name][0, 0] = float("nan") if file[name].dtype.kind == "f" else 0x7FC0
    with pytest.raises(ReasonKneeError, match=f"E008.*{name}"):
        collate([item])
    with h5py.File(out, "r+") as file:
        del file[name]
        left = len(file)
    assert left, "there are others that could stand in"
    with pytest.raises(ReasonKneeError, match=name):
        collate([item])
    with pytest.raises(ReasonKneeError, match=name):
        fine_tune(job(release, checkpoints["qwen2_5_vl"], tmp_path / "run", embeddings=out), SHORT)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("form", ["voxels", "thousand"])
def test_what_is_taught_is_read_back_as_the_truth(
    arm: str, form: str, checkpoints: dict[str, Path], item: dict[str, Any]
) -> None:
    local = loaded(checkpoints["qwen2_5_vl"])
    showing = local.fitted(replace(VIEW, form=form).show(volume_of(item), item["side"]))
    from reasonknee.models.coordinates import form_named

    for row in item["quintuples"][:40:5]:
        made = target({**item, **row}, showing, Teaching(arm, "zero_shot"))
        answer = form_named(form).read(question(row["question_id"]), made.answer, showing.grid)
        known = {k: v for k, v in row["grades"].items() if v is not None}
        assert answer.grades == known
        if row["box"] and arm != "box_given" and form == "voxels":
            assert answer.box is not None
            assert answer.box.as_dict() == row["box"]
        if arm == "box_given":
            assert read(question(row["question_id"]), made.answer).box is None
            assert ("The region is at" in made.question) or not row["box"]


def test_weights_of_a_loss_add_up(checkpoints: dict[str, Path], item: dict[str, Any]) -> None:
    local = loaded(checkpoints["qwen2_5_vl"])
    made = examples.example(local, *taught(local, item, Teaching("reasoning", "zero_shot")))
    for weighting in examples.WEIGHTINGS:
        assert float(examples.weights(made, weighting).sum()) == pytest.approx(
            examples.units(made, weighting)
        )


def job(release: Path, model: Path, out: Path, **more: Any) -> Job:
    return Job(str(release), str(model), out, dtype="float32", device="cpu", **more)


def weights_of(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.parametrize("packed", [True, False])
def test_a_run_that_goes_on_ends_with_the_same_weights(
    packed: bool, release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    recipe = replace(SHORT, packed=packed)
    whole = job(release, checkpoints["qwen2_5_vl"], tmp_path / "run")
    first = weights_of(fine_tune(whole, recipe))
    losses = (tmp_path / "run" / "losses.jsonl").read_text()
    assert len(losses.splitlines()) == 4
    for folder in ("adapter", "checkpoint-4"):
        shutil.rmtree(tmp_path / "run" / folder)
    told: list[str] = []
    again = weights_of(fine_tune(whole, recipe, told.append))
    assert told[0] == "goes on from checkpoint-2"
    assert re.fullmatch(r"step 4 of 4: loss [\d.]+, [\d,]+ tokens a second, 0 s left", told[-1])
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_run_that_goes_on_in_a_pass_whose_last_step_is_short(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """And looks at the validation split leave what is drawn as it is: dropout, here."""
    count = read_manifest(release).volumes["train"]
    accumulate = next(n for n in range(2, count) if count % n)
    steps = -(-count // accumulate)  # of a pass, the last with fewer forwards
    recipe = replace(
        SHORT,
        accumulate=accumulate,
        steps=steps + 2,
        save_every=steps - 1,
        dropout=0.1,
        questions_per_volume=1,
    )
    whole = job(release, checkpoints["qwen2_5_vl"], tmp_path / "run")
    first = weights_of(fine_tune(whole, recipe))
    losses = (tmp_path / "run" / "losses.jsonl").read_text()
    shutil.rmtree(tmp_path / "run" / f"checkpoint-{steps + 2}")
    told: list[str] = []
    again = weights_of(fine_tune(whole, recipe, told.append))
    assert told[0] == f"goes on from checkpoint-{steps - 1}"
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert (tmp_path / "run" / "losses.jsonl").read_text() == losses
    look = replace(
        whole, out=tmp_path / "seen", evaluate_every=steps - 1, evaluate_volumes=1, evaluate_tokens=2
    )
    seen = weights_of(fine_tune(look, recipe))
    assert all(torch.equal(first[name], seen[name]) for name in first)


@pytest.mark.slow
def test_a_run_that_was_killed_ends_with_the_same_weights(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    words = [
        sys.executable, "-m", "reasonknee", "train", str(release), "--model", str(checkpoints["qwen2_5_vl"]), "--slices", "even:8",
        "--arm", "no_reasoning", "--setting", "zero_shot", "--packed", "--questions-per-volume", "3", "--accumulate", "1",
        "--steps", "40", "--save-every", "4", "--dtype", "float32", "--rate", "1e-3",
    ]  # fmt: skip
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*words, "--out", str(tmp_path / "whole")], check=True, env=env, capture_output=True)
    running = subprocess.Popen(
        [*words, "--out", str(tmp_path / "cut")],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list((tmp_path / "cut").glob("checkpoint-*/data.json")) and running.poll() is None:
        time.sleep(0.05)
    running.send_signal(signal.SIGKILL)
    running.wait()
    done = subprocess.run(
        [*words, "--out", str(tmp_path / "cut")], check=True, env=env, capture_output=True, text=True
    )
    assert "goes on from checkpoint-" in done.stdout or running.returncode == 0
    one, other = weights_of(tmp_path / "whole" / "adapter"), weights_of(tmp_path / "cut" / "adapter")
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_from_embeddings_as_from_pixels(
    kind: str, release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """bfloat16 costs a few thousandths of the loss; positions, deep features and order are the same."""
    local = loaded(checkpoints[kind])
    size = size_of(str(release), local, VIEW)
    out = tmp_path / "embeddings.h5"
    work = Embedding(str(release), local, VIEW)
    assert embed(work, out, 1, 2) is None
    with pytest.raises(ReasonKneeError, match="R011"):  # two views in one file would go unnoticed
        embed(replace(work, view=View("even:4")), out)
    with pytest.raises(ReasonKneeError, match="N084"):
        embed_joined_early(work, out)
    assert embed(work, out) == out
    with EmbeddingFile(out) as file:
        assert sum(file.nbytes(name) for name in file.ids()) == size.nbytes
    recipe = replace(SHORT, steps=2)
    losses = []
    for name, source in (("pixels", None), ("embeddings", out)):
        fine_tune(job(release, checkpoints[kind], tmp_path / name, embeddings=source), recipe)
        losses.append([json.loads(line)["loss"] for line in (tmp_path / name / "losses.jsonl").open()])
    assert losses[0] == pytest.approx(losses[1], rel=2e-2)
    other = replace(recipe, view=View("even:4"))
    with pytest.raises(ReasonKneeError, match="N085"):
        fine_tune(job(release, checkpoints[kind], tmp_path / "other", embeddings=out), other)


def embed_joined_early(work: Embedding, out: Path) -> None:
    """As if all volumes had been embedded, when a part is missing."""
    from reasonknee.models.embed import _join

    _join(out.with_name(out.name + ".parts"), out, 10_000)


def test_balanced_sampling_draws_rare_grades(
    checkpoints: dict[str, Path], release: Path, item: dict[str, Any]
) -> None:
    local = loaded(checkpoints["qwen2_5_vl"])
    rarity = training_rows.rarity_of(str(release))
    weights = [rarity[training_rows._kind(q)] for q in item["quintuples"]]
    mean = {}
    for sampling in training_rows.SAMPLINGS:
        drawn = [
            rarity[training_rows._kind(q)]
            for seed in range(30)
            for q in Examples(local, replace(SHORT, sampling=sampling, seed=seed), rarity)._chosen(
                item["volume_id"], item["quintuples"]
            )
        ]
        mean[sampling] = sum(drawn) / len(drawn)
    assert mean["balanced"] > mean["natural"]
    assert min(weights) <= mean["natural"] <= max(weights)


def test_embed_and_train_by_command(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = checkpoints["qwen3_vl"]
    small = ["--model", model, "--slices", "even:8"]
    assert command("embed", release, *small, "--out", tmp_path / "e.h5", "--estimate") == 0
    assert "GB" in capsys.readouterr().out
    assert not (tmp_path / "e.h5").exists()
    page = tmp_path / "example.html"
    assert command("train", release, *small, "--out", tmp_path / "run", "--packed", "--dry-run", page) == 0
    text = page.read_text()
    assert "vision tokens]" in text
    assert "<mark>" in text
    assert not (tmp_path / "run").exists()
    assert (
        command(
            "train",
            release,
            *small,
            "--out",
            tmp_path / "run",
            "--check",
            "--packed",
            "--arm",
            "no_reasoning",
        )
        == 0
    )
    said = capsys.readouterr().out
    assert "packing equals one by one: holds" in said
    assert "resume: weights are the same to the last bit" in said


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["--arm", "guessing"], "N071", 2),
        (["--sampling", "balanced"], "N074", 2),
        (["--setting", "corner", "--packed"], "N071", 2),
        (["--weighting", "luck"], "N073", 2),
        (["--setting", "both", "--embeddings", "none.h5"], "N087", 2),
        (["--out", "{taken}"], "N078", 2),
    ],
)
def test_refusals(
    words: list[str], code: str, exit_code: int, release: Path, checkpoints: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.txt").write_text("mine")
    given = [word.format(taken=tmp_path / "taken") for word in words]
    if "--out" not in given:
        given += ["--out", str(tmp_path / "run")]
    fixed = [
        "--model",
        checkpoints["qwen2_5_vl"],
        "--slices",
        "even:8",
        "--steps",
        "1",
        "--questions-per-volume",
        "0",
    ]
    assert command("train", release, *fixed, *given) == exit_code
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith(f"error {code}: ")
    assert (tmp_path / "taken" / "thesis.txt").read_text() == "mine"


def test_another_recipe_does_not_go_on(release: Path, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    run = job(release, checkpoints["qwen2_5_vl"], tmp_path / "run")
    fine_tune(run, replace(SHORT, steps=1))
    with pytest.raises(ReasonKneeError, match=r"N078.*recipe"):
        fine_tune(run, replace(SHORT, steps=1, rate=0.5))


def test_a_loss_that_is_no_number_ends_the_run(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ReasonKneeError, match="N079"):
        fine_tune(
            job(release, checkpoints["qwen2_5_vl"], tmp_path / "run"), replace(SHORT, rate=1e30, steps=6)
        )


def test_refusals_of_embeddings(release: Path, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    local = loaded(checkpoints["qwen2_5_vl"])
    with pytest.raises(ReasonKneeError, match="N080"):
        Embedding(str(release), local, VIEW, "float64")
    (tmp_path / "mine.h5").write_text("mine")
    with pytest.raises(ReasonKneeError, match="N081"):
        embed(Embedding(str(release), local, VIEW), tmp_path / "mine.h5")
    with pytest.raises(ReasonKneeError, match="N082"):
        embed(Embedding(str(release), local, VIEW), tmp_path / "new.h5", 3, 2)
    mine = tmp_path / "other.h5.parts" / "mine.h5"
    mine.parent.mkdir()
    mine.write_text("mine")
    with pytest.raises(ReasonKneeError, match="R011"):
        embed(Embedding(str(release), local, VIEW), tmp_path / "other.h5")
    assert mine.read_text() == "mine"
    with torch.no_grad():
        local.model.model.visual.merger.mlp[2].bias.fill_(1e6) if hasattr(
            local.model.model.visual.merger, "mlp"
        ) else None
    with pytest.raises(ReasonKneeError, match="N083"):
        embed(Embedding(str(release), local, VIEW, "float16"), tmp_path / "new.h5")


def test_attention_without_a_prefix_and_a_volume_without_questions(
    checkpoints: dict[str, Path], item: dict[str, Any]
) -> None:
    local = loaded(checkpoints["qwen2_5_vl"])
    _, packed = taught(local, item, Teaching())
    with pytest.raises(ReasonKneeError, match="N072"):
        examples.example(local, [], packed)
    with pytest.raises(ReasonKneeError, match="N070"):
        prefix.attend(None, *[torch.zeros(1, 1, 1, 1)] * 3, None)


def test_the_validation_split_is_looked_at_and_the_best_is_kept(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    run = job(
        release,
        checkpoints["qwen2_5_vl"],
        tmp_path / "run",
        evaluate_every=1,
        evaluate_volumes=1,
        evaluate_tokens=16,
        patience=2,
    )
    fine_tune(run, replace(SHORT, steps=4))
    looks = [json.loads(line) for line in (tmp_path / "run" / "validation.jsonl").open()]
    assert [look["step"] for look in looks] == list(range(1, len(looks) + 1))
    assert all(0 <= look["accuracy"] <= 1 and look["asked"] == 3 for look in looks)
    assert (tmp_path / "run" / "best" / "adapter_model.safetensors").is_file()
    assert len(looks) == 3  # random weights learn nothing: two looks without a better one end the run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "N076"),
        (OSError(28, "No space left on device"), "N077"),
    ],
)
def test_a_device_and_a_disk_that_are_full(
    error: Exception,
    code: str,
    release: Path,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import Trainer

    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(Trainer, "training_step", fails)
    with pytest.raises(ReasonKneeError, match=code):
        fine_tune(job(release, checkpoints["qwen2_5_vl"], tmp_path / "run"), SHORT)


def test_a_release_without_a_validation_split(cohort: Path, tmp_path: Path) -> None:
    from reasonknee.models.evaluating import Evaluator

    lines = [json.loads(line) for line in (cohort / "annotations.jsonl").open()]
    (tmp_path / "cohort").mkdir()
    train = "".join(json.dumps(line) + "\n" for line in lines if line["split"] == "train")
    (tmp_path / "cohort" / "annotations.jsonl").write_text(train)
    assert command("build", tmp_path / "cohort", tmp_path / "release", "--configs", "annotations") == 0
    with pytest.raises(ReasonKneeError, match="N086"):
        Evaluator(str(tmp_path / "release"), VIEW, Teaching(), 1, 1)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
@pytest.mark.parametrize("setting", ["region", "both"])
def test_packed_regions_equal_one_by_one(
    kind: str, setting: str, checkpoints: dict[str, Path], item: dict[str, Any]
) -> None:
    """Each question sees its own region, alone or after the volume, and nothing of the others' regions."""
    local = loaded(checkpoints[kind])
    recipe = replace(SHORT, teaching=Teaching("no_reasoning", setting), questions_per_volume=0)
    boxed = [q for q in item["quintuples"] if q["box"]][:12:4]
    rows = [*boxed, {**item["quintuples"][0], "box": None}]  # the last is shown the whole volume
    make = Examples(local, recipe, {})

    def loss(some: list[dict[str, Any]]) -> float:
        made = make([{**item, "quintuples": some}])
        prefix.use(local.model)
        given = {k: v for k, v in made.items() if k != "labels"}
        with torch.no_grad():
            return float(examples.loss_of(local.model(**given, use_cache=False).logits, made, "tokens"))

    alone = [loss([row]) for row in rows]
    assert loss(rows) == pytest.approx(sum(alone), rel=1e-5)
    assert len({round(value, 4) for value in alone}) == len(rows)


def test_a_tuned_model_is_asked_in_its_words_and_on_boxes_of_another(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from reasonknee.release.reader import Release

    ids = Release(str(release)).columns("test", ["id"])["id"].to_pylist()
    drawn = {"z0": 1, "z1": 9, "y0": 2, "y1": 30, "x0": 3, "x1": 31}
    boxes = tmp_path / "boxes.jsonl"
    boxes.write_text("".join(json.dumps({"id": i, "grades": {}, "box": drawn}) + "\n" for i in ids))
    words = ["ask", release, "--model", checkpoints["qwen2_5_vl"], "--slices", "even:8", "--max-tokens", "4"]
    words += ["--limit", "2", "--arm", "no_reasoning", "--boxes", boxes]
    assert command(*words, "--setting", "region", "--out", tmp_path / "run") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "predictions.jsonl").open()]
    assert [line["box"] for line in lines] == [drawn, drawn]
    assert command(*words, "--setting", "region", "--out", tmp_path / "dry", "--dry-run") == 0
    assert "without reasoning" in (tmp_path / "dry" / "request.json").read_text()
    assert command(*words, "--setting", "zero_shot", "--out", tmp_path / "other") == 2
    assert "N051" in capsys.readouterr().err


def test_each_epoch_draws_its_own_questions(checkpoints: dict[str, Path], item: dict[str, Any]) -> None:
    made = Examples(loaded(checkpoints["qwen2_5_vl"]), SHORT, {})
    drawn = []
    for epoch in (0, 1, 0):
        made.epoch = lambda epoch=epoch: epoch  # type: ignore[misc]
        drawn.append([q["id"] for q in made._chosen(item["volume_id"], item["quintuples"])])
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_whole_model_keeps_how_it_sees(release: Path, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Without the processor's file frames would get other sizes than in training."""
    folder = fine_tune(
        job(release, checkpoints["qwen2_5_vl"], tmp_path / "run"), replace(SHORT, full=True, steps=1)
    )
    before, after = (loaded(f).family for f in (checkpoints["qwen2_5_vl"], folder))
    assert after == before


def test_a_tokenizer_without_a_chat_template_is_told(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    bare = shutil.copytree(checkpoints["qwen2_5_vl"], tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(ReasonKneeError, match=r"N089.*no chat template"):
        loaded(bare)


def test_what_was_best_before_counts_after_a_resume(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    run = job(
        release,
        checkpoints["qwen2_5_vl"],
        tmp_path / "run",
        evaluate_every=1,
        evaluate_volumes=1,
        evaluate_tokens=16,
    )
    fine_tune(run, SHORT)
    looks = tmp_path / "run" / "validation.jsonl"
    lines = [json.loads(line) for line in looks.open()]
    lines[0]["accuracy"] = lines[0]["iou"] = 0.99  # the first was better than any that comes
    looks.write_text("".join(json.dumps(line) + "\n" for line in lines))
    best = tmp_path / "run" / "best" / "adapter_model.safetensors"
    best.write_bytes(b"kept")
    shutil.rmtree(tmp_path / "run" / "checkpoint-4")
    fine_tune(run, SHORT)
    assert [json.loads(line)["step"] for line in looks.open()] == [1, 2, 3, 4]
    assert best.read_bytes() == b"kept"


@pytest.mark.parametrize("setting", ["region", "both"])
def test_a_look_shows_what_is_taught(
    setting: str, release: Path, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from reasonknee.models.evaluating import Evaluator

    local = loaded(checkpoints["qwen2_5_vl"])
    seen: list[Any] = []
    asked = Local.replies
    monkeypatch.setattr(
        Local, "replies", lambda self, showing, *a, **k: seen.append(showing) or asked(self, showing, *a, **k)
    )
    recipe = replace(SHORT, teaching=Teaching("no_reasoning", setting))
    assert Evaluator(str(release), recipe, 1, 3)(local, 2).asked == 3
    assert any((showing.region or showing).crop for showing in seen)
    assert all(
        (showing.region is not None) == (setting == "both")
        for showing in seen
        if (showing.region or showing).crop
    )


def test_a_merged_model_answers_as_its_adapter_does(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By command, with its scores in the card; and the card of a run says what the validation split said."""
    import yaml

    model, run = checkpoints["qwen2_5_vl"], tmp_path / "run"
    look = job(release, model, run, evaluate_every=2, evaluate_volumes=1, evaluate_tokens=8)
    adapter = fine_tune(look, replace(SHORT, rate=1e-2))
    seen = [json.loads(line) for line in (run / "validation.jsonl").open()]
    assert f"| validation | step 4: {seen[-1]['asked']} questions" in (adapter / "README.md").read_text()
    assert "| validation | step " in (run / "best" / "README.md").read_text()
    asked = ["ask", release, "--slices", "even:8", "--max-tokens", 8, "--limit", 4, "--arm", "no_reasoning"]
    tuned = ["--model", model, "--adapter", adapter, "--dtype", "float32"]
    assert command(*asked, *tuned, "--out", tmp_path / "by-adapter") == 0
    answers, scores = tmp_path / "by-adapter" / "predictions.jsonl", tmp_path / "scores"
    assert command("score", answers, release, "--out", scores) == 0
    assert command("merge", adapter, tmp_path / "merged", "--scores", scores) == 0
    whole = ["--model", tmp_path / "merged", "--dtype", "float32"]
    assert command(*asked, *whole, "--out", tmp_path / "by-merged") == 0
    assert command(*asked, "--model", model, "--dtype", "float32", "--out", tmp_path / "before") == 0
    said = {
        how: [json.loads(line)["reply"]["text"] for line in (tmp_path / how / "journal.jsonl").open()]
        for how in ("by-adapter", "by-merged", "before")
    }
    assert said["by-adapter"] == said["by-merged"]
    assert said["by-adapter"] != said["before"]
    before, after = loaded(model), loaded(tmp_path / "merged")
    name = "model.language_model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(before.model.state_dict()[name], after.model.state_dict()[name])
    assert before.family == after.family
    _, head, body = (tmp_path / "merged" / "README.md").read_text().split("---\n", 2)
    written = yaml.safe_load(head)
    assert written["library_name"] == "transformers"
    assert written["model-index"][0]["results"][0]["metrics"]
    assert "on ReasonKnee-Bench" in body
    assert (tmp_path / "merged" / ".eval_results" / "reasonknee-bench.yaml").is_file()
    capsys.readouterr()
    for wrong in (
        [adapter, tmp_path / "merged"],
        [run, tmp_path / "new"],
        [adapter, tmp_path / "new", "--scores", run],
    ):
        assert command("merge", *wrong) == 2
        assert "error N092: " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_an_embedding_run_that_was_killed_gives_the_same_file(
    release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    words = ["embed", release, "--model", checkpoints["qwen2_5_vl"], "--slices", "even:8", "--device", "cpu"]
    start = [str(word) for word in (sys.executable, "-m", "reasonknee", *words, "--out", tmp_path / "cut.h5")]
    parts = tmp_path / "cut.h5.parts"
    running = subprocess.Popen(
        start, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while running.poll() is None and len(list(parts.glob("*.h5"))) < 2:
        time.sleep(0.001)
    running.send_signal(signal.SIGSTOP)  # so that it is in the middle when it dies
    done = {path: path.stat().st_mtime_ns for path in parts.glob("*.h5")}
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert len(done) >= 2
    assert not (tmp_path / "cut.h5").exists()
    (parts / ".half-a-volume.h5.tmp").write_bytes(b"what a killed process leaves")
    joined: list[int] = []

    def watched(stage: str, number: int, of: int) -> None:
        joined.append(of)
        assert all(path.stat().st_mtime_ns == at for path, at in done.items())  # none is made again

    torch.set_num_threads(1)
    local = Local.load(str(checkpoints["qwen2_5_vl"]), device="cpu")
    work = Embedding(str(release), local, VIEW)
    embed(work, tmp_path / "cut.h5", progress=watched)
    assert len(done) < joined[0]
    embed(work, tmp_path / "whole.h5")
    assert (tmp_path / "cut.h5").read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cut.h5", "whole.h5"]


@pytest.mark.parametrize("how", ["removed", "overwritten"])
def test_a_shard_that_is_lost_under_way_ends_the_run_with_a_code_and_a_checkpoint(
    how: str, release: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    own = shutil.copytree(release, tmp_path / "release")
    shards = list((own / "full").glob("train-*.parquet")) or list(own.rglob("full*/train-*.parquet"))
    assert shards

    def told(line: str) -> None:
        if line.startswith("step 1 "):
            for shard in shards:
                if how == "removed":
                    shard.unlink(missing_ok=True)
                else:
                    shard.write_bytes(b"PAR1" + b"lost" * 10)

    recipe = replace(SHORT, epochs=4, steps=-1, save_every=1)
    with pytest.raises(ReasonKneeError) as ended:
        fine_tune(job(own, checkpoints["qwen2_5_vl"], tmp_path / "run"), recipe, told)
    assert ended.value.code == {"removed": "D030", "overwritten": "D031"}[how]
    assert list((tmp_path / "run").glob("checkpoint-*/data.json"))


def test_the_page_shows_what_was_measured() -> None:
    """docs/training.md stands on its JSON, and the loss of packed questions on that of one by one."""
    sys.path.append(str(ROOT / "benchmarks"))
    from pages import END, begin
    from training import table

    found = json.loads((ROOT / "docs" / "bench" / "training.json").read_text())
    page = (ROOT / "docs" / "training.md").read_text()
    assert page.partition(begin("training.py"))[2].partition(END)[0].strip() == table(found)
    assert found["packing"]["questions"] == 31
    assert abs(found["packing"]["prefix"] - 2000) < 300
    assert found["packing"]["loss_off"] < 1e-5
    assert found["packing"]["gradients_off"] < 1e-4
