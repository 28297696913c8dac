"""Local models: packing as the processors do it, positions by a rule, one prefix for many questions."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiny_models
from conftest import needs

from reasonknee.boxes import Box
from reasonknee.errors import DataError, UsageError
from reasonknee.models import Parameters, View, local, qwen
from reasonknee.models.local import Local
from reasonknee.questions import QUESTIONS
from reasonknee.questions.prompts import ask
from reasonknee.volumes import Grid, Volume

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # tiny models are slower on several


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    return {kind: tiny_models.checkpoint(kind, folder / kind) for kind in tiny_models.KINDS}


def knee(shape: tuple[int, int, int] = (12, 56, 64), seed: int = 0) -> Volume:
    array = np.random.default_rng(seed).integers(0, 400, shape).astype(np.uint16)
    affine = np.diag([0.4, -0.4, 0.7, 1.0])
    return Volume(array, Grid(shape, affine))


def asked(showing: Any, count: int) -> list[str]:
    return [ask(q, "zero_shot", showing.told) for q in list(QUESTIONS.values())[:count]]


def one_by_one(model: Local, showing: Any, texts: list[str], tokens: int, **position: Any) -> list[str]:
    """As anyone would ask: all frames with each question, by `generate` alone."""
    packed = model.packs(showing)
    said = []
    for text in texts:
        ids = model.tokens(text, packed)
        given: dict[str, Any] = {
            "input_ids": torch.tensor([ids]),
            "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
            "mm_token_type_ids": model.kinds(ids)[None],
            **model.inputs(packed),
        }
        if packed[0].kind == "video" and not model.family.stamped:
            given["second_per_grid_ts"] = torch.tensor([p.seconds for p in packed])
        if model.rule == "after_max":
            given["position_ids"] = model.positions(ids, packed)
        words = model.model.generate(**given, max_new_tokens=tokens, do_sample=False)[0, len(ids) :].tolist()
        words = words[: words.index(2)] if 2 in words else words
        said.append(model.tokenizer.decode(words, skip_special_tokens=False))
    return said


@pytest.mark.parametrize("kind", tiny_models.KINDS)
@pytest.mark.parametrize("rule", qwen.RULES)
@pytest.mark.parametrize("shown", ["video", "images"])
def test_answers_from_a_shared_prefix_are_those_of_one_question_at_a_time(
    checkpoints: dict[str, Path], kind: str, rule: str, shown: str
) -> None:
    model = Local.load(str(checkpoints[kind]), rule=rule, batch=3, dtype="float32")
    showing = model.fitted(View(kind=shown, slices="even:8").show(knee(), "right"))
    texts = asked(showing, 4)
    replies = list(model.replies(showing, texts, Parameters(max_tokens=12)))
    assert [r.text for r in replies] == one_by_one(model, showing, texts, 12)
    assert len({r.text for r in replies}) > 1  # else the test would see nothing
    assert all(0 < r.cached_tokens < r.prompt_tokens for r in replies[1:]), "the volume was read again"


@pytest.mark.parametrize("kind", tiny_models.KINDS)
@pytest.mark.parametrize("shown", ["video", "images"])
def test_a_region_after_the_volume_is_seen(checkpoints: dict[str, Path], kind: str, shown: str) -> None:
    """By the model's own `generate`, and the region changes what is said."""
    from reasonknee.models.views import together

    model = Local.load(str(checkpoints[kind]), batch=3, dtype="float32")
    view, volume = View(kind=shown, slices="even:8"), knee()
    said = []
    for crop in (Box(0, 8, 0, 30, 0, 30), Box(4, 12, 20, 50, 20, 50)):
        showing = together(
            model.fitted(view.show(volume, "right")), model.fitted(view.show(volume, "right", crop))
        )
        if shown == "images":
            assert sum(len(pack.grids) for pack in model.packs(showing)) == len(showing.images) == 16
        texts = [ask(q, "region", showing.told) for q in list(QUESTIONS.values())[:3]]
        replies = [r.text for r in model.replies(showing, texts, Parameters(max_tokens=12))]
        assert replies == one_by_one(model, showing, texts, 12)
        said.append(replies)
    assert said[0] != said[1]


def test_what_is_taught_in_both_is_what_is_asked(
    checkpoints: dict[str, Path], release: Path, tmp_path: Path
) -> None:
    """The same tokens, positions and pixels."""
    from reasonknee.models.examples import IGNORED
    from reasonknee.models.journal import Journal
    from reasonknee.models.plan import Choice, Plan, read_rows
    from reasonknee.models.targets import Teaching
    from reasonknee.models.training_rows import Examples, Recipe, training_rows
    from reasonknee.release.reader import Release

    model = Local.load(str(checkpoints["qwen2_5_vl"]), dtype="float32")
    view = View("even:4")
    recipe = Recipe(view=view, teaching=Teaching(setting="both"))
    item = next(row for row in training_rows(str(release), recipe) if row["box"])
    taught = Examples(model, recipe, {})([item])
    rows = [row for row in read_rows(Release(release), "train") if row.id == item["id"]]
    choice = Choice("both", view=view, arm="reasoning")
    plan = Plan(Release(release), rows, choice, model.about, model.sized, model.fitted)
    with Journal(tmp_path) as journal:
        (job,) = plan.jobs("answer", journal)
    packs = model.packs(job.showing)
    ids = model.tokens(job.requests[0].text, packs)
    assert len(packs) == 2
    assert taught["input_ids"][0, : len(ids)].tolist() == ids
    assert (taught["labels"][0, : len(ids)] == IGNORED).all()
    assert taught["labels"][0, len(ids)] != IGNORED
    assert torch.equal(taught["position_ids"][:, :, : len(ids)], model.positions(ids, packs))
    for name, tensor in model.inputs(packs).items():
        assert torch.equal(taught[name], tensor), name


def test_an_answer_ends_where_the_model_ends_it(checkpoints: dict[str, Path]) -> None:
    model = Local.load(str(checkpoints["qwen2_5_vl"]), dtype="float32")
    showing = model.fitted(View(slices="even:4").show(knee(), "right"))
    (text,) = asked(showing, 1)
    (whole,) = model.replies(showing, [text], Parameters(max_tokens=6))
    assert (whole.finish, whole.completion_tokens) == ("length", 6)
    model.ends = tuple(range(tiny_models.VOCABULARY))  # whatever it says first ends it
    model.model.generation_config.eos_token_id = list(model.ends)
    (cut,) = model.replies(showing, [text], Parameters(max_tokens=6))
    assert (cut.finish, cut.completion_tokens, cut.text) == ("stop", 1, "")


def test_the_image_changes_the_answer_and_none_at_all_is_an_answer_too(checkpoints: dict[str, Path]) -> None:
    model = Local.load(str(checkpoints["qwen3_vl"]), dtype="float32")
    said = []
    for seed in (0, 1):
        showing = model.fitted(View(slices="even:4").show(knee(seed=seed), "right"))
        texts = asked(showing, 12)
        said.append([r.text for r in model.replies(showing, texts, Parameters(max_tokens=12))])
    said.append([r.text for r in model.replies(None, texts, Parameters(max_tokens=12))])
    assert said[0] != said[1]
    assert said[2] not in said[:2]


# --- packing ------------------------------------------------------------------------------------------------

# sha256 of `pixel_values_videos` of Qwen2VLVideoProcessor and Qwen3VLVideoProcessor (transformers 5.23 with torchvision
# 0.28, which cannot be installed beside a torch without CUDA), with the sizes of the published checkpoints
PROCESSED = [
    ("qwen2_5_vl", (8, 384, 384), (4, 28, 28), "c477c3afa634bdcf"),
    ("qwen2_5_vl", (17, 61, 33), (9, 6, 4), "95ec3c5cdd119ee5"),
    ("qwen2_5_vl", (6, 56, 64), (3, 4, 4), "5a2447dd9515732c"),
    ("qwen2_5_vl", (3, 40, 200), (2, 2, 14), "f6aa7510f1c675ec"),
    ("qwen2_5_vl", (9, 100, 90), (5, 8, 6), "d59b1e67e1515fdf"),
    ("qwen3_vl", (8, 384, 384), (4, 24, 24), "291a403d13da22f2"),
    ("qwen3_vl", (17, 61, 33), (9, 4, 2), "2d0821323318a267"),
    ("qwen3_vl", (6, 56, 64), (3, 4, 4), "d061df0631b6d1a0"),
    ("qwen3_vl", (3, 40, 200), (2, 2, 12), "839211df2d9f6362"),
    ("qwen3_vl", (9, 100, 90), (5, 6, 6), "87227538234d3d7e"),
]


def published(kind: str) -> qwen.Family:
    vision = SimpleNamespace(
        patch_size=14 if kind == "qwen2_5_vl" else 16,
        spatial_merge_size=2,
        temporal_patch_size=2,
        tokens_per_second=2,
    )
    return qwen.family_of(SimpleNamespace(model_type=kind, vision_config=vision), {})


@pytest.mark.parametrize(("kind", "shape", "grid", "digest"), PROCESSED)
def test_frames_are_packed_as_the_video_processors_do_it(
    kind: str, shape: tuple[int, int, int], grid: tuple[int, int, int], digest: str
) -> None:
    family = published(kind)
    frames = qwen.resized(tiny_models.noise(shape), family.video_size(shape[0], shape[1:]))
    packed = qwen.pack_video(family, frames, range(len(frames)), len(frames))
    assert tuple(packed.grids[0].tolist()) == grid
    assert hashlib.sha256(packed.pixels.numpy().tobytes()).hexdigest().startswith(digest)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
@pytest.mark.parametrize("frame", [(56, 64), (61, 33), (384, 384)])
def test_images_are_packed_as_the_image_processors_do_it(kind: str, frame: tuple[int, int]) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    family = published(kind)
    limits = family.image
    theirs = Qwen2VLImageProcessorPil(
        size={"shortest_edge": limits.fewest, "longest_edge": limits.most},
        patch_size=family.patch,
        image_mean=list(limits.mean),
        image_std=list(limits.std),
    )
    frames = tiny_models.noise((2, *frame))
    made = theirs([np.repeat(f[..., None], 3, axis=2) for f in frames], return_tensors="pt")
    volume = Volume(frames, Grid((2, *frame), np.diag([0.4, -0.4, 0.7, 1.0])))
    showing = local.fitted(family, View(kind="images", window="0:255").show(volume, "left"))
    packed = local.packed(family, showing)
    assert packed.grids.tolist() == made["image_grid_thw"].tolist()
    torch.testing.assert_close(packed.pixels, made["pixel_values"], rtol=0, atol=1e-6)


def test_a_full_volume_has_the_tokens_that_the_documents_say() -> None:
    counts = {}
    for kind in tiny_models.KINDS:
        family = published(kind)
        for shape in ((160, 384, 384), (80, 384, 384), (160, 256, 256)):
            height, width = family.video_size(shape[0], shape[1:])
            counts[kind, shape] = shape[0] // 2 * height * width // family.factor**2
    assert list(counts.values()) == [15680, 7840, 6480, 11520, 5760, 5120]


# --- positions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny_models.KINDS)
@pytest.mark.parametrize("shown", ["video", "images"])
def test_positions_by_the_rule_of_transformers_are_theirs(
    checkpoints: dict[str, Path], kind: str, shown: str
) -> None:
    model = Local.load(str(checkpoints[kind]), rule="after_grid", dtype="float32")
    showing = model.fitted(View(kind=shown, slices="every:2").show(knee((30, 56, 90)), "left"))
    packed = model.packed(showing)
    ids = model.tokens("Is there a tear?", packed)
    name = "video_grid_thw" if shown == "video" else "image_grid_thw"
    extra = {"second_per_grid_ts": torch.tensor([packed.seconds])} if not model.family.stamped else {}
    theirs, _ = model.model.model.get_rope_index(
        torch.tensor([ids]), model.kinds(ids)[None], **{name: packed.grids}, **extra
    )
    assert torch.equal(model.positions(ids, packed), theirs)


def test_positions_after_the_largest_do_not_overlap_a_deep_volume(checkpoints: dict[str, Path]) -> None:
    """Qwen2.5-VL was trained so; the rule of transformers puts the question among the frames."""
    first, last = {}, {}
    for rule in qwen.RULES:
        model = Local.load(str(checkpoints["qwen2_5_vl"]), rule=rule, dtype="float32")
        packed = model.packed(model.fitted(View().show(knee((24, 56, 56)), "left")))
        ids = model.tokens("Is there a tear?", packed)
        places, end = model.positions(ids, packed)[:, 0], ids.index(4)
        first[rule], last[rule] = int(places[0, end]), int(places[:, :end].max())
    assert first["after_max"] == last["after_max"] + 1
    assert first["after_grid"] < last["after_grid"]


def test_qwen3_is_told_the_numbers_of_the_slices(checkpoints: dict[str, Path]) -> None:
    model = Local.load(str(checkpoints["qwen3_vl"]), dtype="float32")
    showing = model.fitted(View(slices="every:5").show(knee((20, 64, 64)), "left"))
    text = model.tokenizer.decode(model.tokens("?", model.packed(showing)))
    assert "<2.5 seconds>" in text  # the middle of slices 0 and 5
    assert "<12.5 seconds>" in text  # the middle of slices 10 and 15


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "error", "call"),
    [
        ("N012", UsageError, lambda m: qwen.positions(m.family, [0], None, "after_all")),
        ("N013", UsageError, lambda m: qwen.family_of(SimpleNamespace(model_type="llava"), {})),
        ("N020", UsageError, lambda m: Local.load("x/y", dtype="int3")),
        ("N024", DataError, lambda m: Local.load("./no/such/model")),
        ("N010", DataError, lambda m: m.family.video_size(4, (4, 900))),
        ("N010", DataError, lambda m: qwen.pack_video(m.family, np.zeros((2, 30, 30), np.uint8), [0, 1], 2)),
        (
            "N011",
            DataError,
            lambda m: qwen.expanded(m.family, "no place", m.packed(m.fitted(View().show(knee(), "left")))),
        ),
        ("N022", DataError, lambda m: list(m.replies(None, ["?"], Parameters(max_tokens=32768)))),
    ],
)
def test_refusals(checkpoints: dict[str, Path], code: str, error: type[Exception], call: Any) -> None:
    model = Local.load(str(checkpoints["qwen2_5_vl"]), dtype="float32")
    with pytest.raises(error, match=f"^{code}: "):
        call(model)


def test_a_broken_checkpoint_is_one_line(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(checkpoints["qwen2_5_vl"], folder)
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{]")
    with pytest.raises(DataError, match=r"^N021: .* cannot be loaded"):
        Local.load(str(folder))
    (folder / "processor_config.json").write_text("{")
    with pytest.raises(DataError, match=r"^N021: processor_config.json"):
        Local.load(str(folder))


# --- the last object by its schema --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_with_a_grammar_random_weights_answer_as_asked(checkpoints: dict[str, Path], kind: str) -> None:
    needs("xgrammar")
    from reasonknee.answers import read

    model = Local.load(str(checkpoints[kind]), dtype="float32")
    showing = model.fitted(View(slices="even:4").show(knee(), "right"))
    questions = list(QUESTIONS.values())[:2]
    free = list(model.replies(showing, asked(showing, 2), Parameters(max_tokens=6)))
    held = list(model.replies(showing, asked(showing, 2), Parameters(max_tokens=6, grammar=True), questions))
    for question, before, reply in zip(questions, free, held, strict=True):
        assert read(question, before.text).status != "parsed"
        assert reply.text.startswith(before.text)  # the reasoning stays as it was
        assert reply.finish == "stop"
        assert read(question, reply.text).status == "parsed", reply.text


# --- a network that takes a volume as one tensor ------------------------------------------------------------


class Network(torch.nn.Module):  # type: ignore[name-defined,misc]
    """Of Med3DVLM's interface, tiny: (1, 1, depth, height, width) from 0 to 1 and a prompt become ids."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.eye = torch.nn.Conv3d(1, 8, 8, 8)
        self.word = torch.nn.Embedding(vocabulary, 8)
        self.head = torch.nn.Linear(8, vocabulary)
        self.shapes: list[tuple[int, ...]] = []
        self.lengths: list[int] = []

    def generate(self, images: Any, input_ids: Any, max_new_tokens: int, do_sample: bool) -> Any:
        self.shapes.append(tuple(images.shape))
        self.lengths.append(input_ids.shape[1])
        assert 0 <= float(images.min()) <= float(images.max()) <= 1
        state = self.eye(images).mean(dim=(2, 3, 4))[0] * 30 + self.word(input_ids)[0].mean(0) * 30
        made = []
        for _ in range(max_new_tokens):
            made.append(int((self.head(state)).argmax()))
            state = state * 0.9 + self.word(torch.tensor(made[-1]))
        return torch.tensor([made])


def test_a_network_of_another_interface_by_a_few_methods(tmp_path: Path, release: Path) -> None:
    from reasonknee.models.engines import InProcess
    from reasonknee.models.plan import Choice, Plan, read_rows
    from reasonknee.models.run import run
    from reasonknee.models.volumetric import Volumetric
    from reasonknee.release.reader import Release

    words = tiny_models.tokenizer()
    network = Network(len(words))
    model = Volumetric(network, words, shape=(32, 64, 64), about={"model": "tiny"})
    opened = Release(release)
    rows = read_rows(opened, "test")
    rows = [rows[0], rows[1], rows[-1]]
    choice = Choice(view=View(form="thousand"), parameters=Parameters(max_tokens=5))
    plan = Plan(opened, rows, choice, model.about, model.sized, model.fitted)
    ledger = run(plan, InProcess(model), tmp_path, split="test")
    assert (ledger.answers, ledger.completion) == (3, 15)
    assert network.shapes == [(1, 1, 32, 64, 64)] * 3
    showing = model.fitted(View(form="thousand").show(knee((20, 50, 70)), "left"))
    assert showing.frame == (64, 64)
    assert tuple(model.tensor(showing).shape) == (1, 1, 32, 64, 64)
    assert not model.tensor(None).any()
    (reply,) = model.replies(showing, ["Is there a tear? " * 400], Parameters(max_tokens=1))
    assert network.lengths[-1] == reply.prompt_tokens > 1000  # Med3DVLM's own code cuts texts at 512 tokens
    both = replace(showing, region=showing)
    with pytest.raises(UsageError, match=r"^N058: "):
        list(model.replies(both, ["?"], Parameters()))
