"""A Qwen2.5-VL of about a million parameters with random weights, and a tokenizer that has the dataset's own
phrases as tokens: a tiny model has no capacity to spell."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from reasonknee.models.local import Local
from reasonknee.models.targets import Target, target
from reasonknee.models.training_rows import Recipe, Scene
from reasonknee.questions import REGIONS
from reasonknee.questions.prompts import SYSTEM
from reasonknee.stream import volumes

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
SPECIAL += ["<|image_pad|>", "<|video_pad|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.content %}{% if c.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif c.type == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ c.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEIGHTS = 0.1  # deviation of the random weights: with the usual 0.02 so narrow a model hardly begins to look
_READ = 60  # knees whose texts make the vocabulary
_OFTEN = 8  # a phrase that is rarer is told in words
_TITLES = "|".join(sorted({re.escape(r.title) for r in REGIONS.values()}, key=len, reverse=True))
_STOP = rf'\d|\n|["{{}}]|(?:{_TITLES})'
# a number, an end of line, the keys between two values, the name of a region, a clause
_PIECE = re.compile(
    rf'\d+|\n|[{{}}, ]*(?:"[a-z_0-9]+": \{{?)+|\}}+|(?:{_TITLES})'
    rf"|(?:(?!{_STOP}).)+?[,:;.](?: |(?=\n)|$)|(?:(?!{_STOP}).)+"
)
_SENTENCE = re.compile(r".+?\.(?: |$)")
_WORD = re.compile(r"\s?[A-Za-z]+")


def taught(release: Path, recipes: Sequence[Recipe], local: Local) -> Iterator[Target]:
    """What the arms teach of the first knees of the training split."""
    for number, item in enumerate(volumes(str(release), "full", "train", seed=0, batch_size=1)):
        if number == _READ:
            return
        for recipe in recipes:
            scene = Scene(local, recipe, item)
            for row in item["quintuples"]:
                yield target({**item, **row}, scene.of(row), recipe.teaching)


def phrases(texts: Iterator[Target]) -> list[str]:
    """Lines of the prompts; sentences of descriptions, and clauses of these and of answers, where they are
    frequent, else their words."""
    lines, sentences, pieces, words = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for made in texts:
        described, _, rest = made.question.partition("\n\n")
        *first, last = rest.splitlines(keepends=True)
        lines.update(line for line in (*first, last) if len(line) > 3)
        sentences.update(_SENTENCE.findall(described))
        pieces.update(_PIECE.findall(described))
        pieces.update(_PIECE.findall(made.answer))
    often = [p for p, n in (*sentences.items(), *pieces.items()) if n >= _OFTEN and not p.isdigit()]
    for piece, count in pieces.items():
        if count < _OFTEN:
            words.update(_WORD.findall(piece))
    return [SYSTEM, "system", "user", "assistant", *lines, *often, *words, *map(str, range(100))]


def checkpoint(folder: Path, release: Path, recipes: Sequence[Recipe]) -> dict[str, Any]:
    """Writes it, unless it is there; how large it is."""
    about = folder / "about.json"
    if not about.is_file():
        _save(folder, [])  # how it sees is needed to read what it is taught
        bare = Local.load(str(folder), dtype="float32", device="cpu")
        _save(folder, phrases(taught(release, recipes, bare)))
        made = Local.load(str(folder), dtype="float32", device="cpu")
        count = sum(p.numel() for p in made.model.parameters())
        about.write_text(json.dumps({"parameters": count, "vocabulary": len(made.tokenizer)}))
    found: dict[str, Any] = json.loads(about.read_text())
    return found


def _save(folder: Path, phrases: Sequence[str]) -> None:
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=SPECIAL[1:],
        chat_template=TEMPLATE,
    )
    new = [p for p in dict.fromkeys(phrases) if p not in words]
    tokenizer.add_tokens([AddedToken(p, normalized=False) for p in new])
    torch.manual_seed(0)
    Qwen2_5_VLForConditionalGeneration(_config(len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    size = {"size": {"shortest_edge": 256, "longest_edge": 12845056}, **half}
    (folder / "processor_config.json").write_text(
        json.dumps({"image_processor": size, "video_processor": size})
    )


def _config(vocabulary: int, width: int = 96) -> Qwen2_5_VLConfig:
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": vocabulary,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 4096,
            "tie_word_embeddings": True,
            "initializer_range": WEIGHTS,
            "pad_token_id": 0,
            "eos_token_id": 2,
            "bos_token_id": None,
            # 12 frequencies that all tell a place from the next: the grid has 8 x 4 x 4 places
            "rope_parameters": {"rope_type": "default", "rope_theta": 1.3, "mrope_section": [4, 4, 4]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_heads": 4,
            "out_hidden_size": width,
            "patch_size": 8,
            "temporal_patch_size": 4,
            "spatial_merge_size": 2,
            "fullatt_block_indexes": [0, 1],
            "window_size": 64,
            "tokens_per_second": 1,
            "initializer_range": WEIGHTS,
        },
        tie_word_embeddings=True,
        image_token_id=5,
        video_token_id=6,
        vision_start_token_id=3,
        vision_end_token_id=4,
    )
