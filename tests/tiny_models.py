"""Tiny Qwen2.5-VL and Qwen3-VL with random weights: the real classes, a tokenizer, a checkpoint folder.

Weights are scaled up, so that an answer depends on all that stands before it; with those of a fresh model every
answer is the same, and a wrong position or a missing frame would change nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 1024
KINDS = ("qwen2_5_vl", "qwen3_vl")
SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>",
]  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'image' or 'image' in c or 'image_url' in c %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif c.type == 'video' or 'video' in c %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in c %}{{ c.text }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# as in the published checkpoints, but for the fewest pixels: frames of 56 or 64 pixels pass as they are
_CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_PICTURES: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {**_CLIP, "patch_size": 14, "size": {"shortest_edge": 784, "longest_edge": 12845056}},
    "qwen3_vl": {**_HALF, "patch_size": 16, "size": {"shortest_edge": 1024, "longest_edge": 16777216}},
}


def tokenizer() -> Any:
    """Byte pairs, as Qwen's, learned from the questions: a prompt has some 400 tokens, not 1,500."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from reasonknee.questions import QUESTIONS
    from reasonknee.questions.prompts import SYSTEM, instruction, zero_shot

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [text for q in QUESTIONS.values() for text in (zero_shot(q), instruction(q))]
    made.train_from_iterator([SYSTEM, *texts], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        additional_special_tokens=SPECIAL[1:],
        chat_template=TEMPLATE,
    )


def model(kind: str, *, layers: int = 2, width: int = 32) -> Any:
    """`width` of the text part; 16 numbers a head."""
    import torch
    import transformers

    text = {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 16,
        "num_key_value_heads": width // 32,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 2,
        "bos_token_id": None,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": width,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    ids = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 3, "vision_end_token_id": 4}
    rope: dict[str, Any] = {"rope_type": "default"}
    if kind == "qwen2_5_vl":
        vision |= {"fullatt_block_indexes": [1], "patch_size": 14, "window_size": 112, "tokens_per_second": 2}
        rope |= {"rope_theta": 1e6, "mrope_section": [2, 3, 3]}
        config = transformers.Qwen2_5_VLConfig(
            text_config={**text, "rope_parameters": rope}, vision_config=vision, **ids
        )
        cls = transformers.Qwen2_5_VLForConditionalGeneration
    else:
        vision |= {"patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [0, 1]}
        rope |= {"rope_theta": 5e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
        config = transformers.Qwen3VLConfig(
            text_config={**text, "head_dim": 16, "rope_parameters": rope}, vision_config=vision, **ids
        )
        cls = transformers.Qwen3VLForConditionalGeneration
    torch.manual_seed(0)
    made = cls(config).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if (
                "q_norm" in name or "k_norm" in name
            ):  # Qwen3 undoes what is done to its queries and keys before
                weight.mul_(3)
            elif weight.ndim > 1 and "norm" not in name:
                inner = "language" in name and ("v_proj" in name or "o_proj" in name)
                weight.mul_(40 if inner else 12 if any(p in name for p in ("q_proj", "k_proj", "qkv")) else 4)
    return made


def checkpoint(kind: str, folder: Path, **sizes: int) -> Path:
    """A folder as `save_pretrained` leaves it, with the processor's file of a published checkpoint."""
    model(kind, **sizes).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    common = {"merge_size": 2, "temporal_patch_size": 2, **_PICTURES[kind]}
    video = "Qwen2VLVideoProcessor" if kind == "qwen2_5_vl" else "Qwen3VLVideoProcessor"
    said = {
        "processor_class": "Qwen2_5_VLProcessor" if kind == "qwen2_5_vl" else "Qwen3VLProcessor",
        "image_processor": {"image_processor_type": "Qwen2VLImageProcessor", **common},
        "video_processor": {"video_processor_type": video, "cap_pixels_per_frame": False, **common},
    }
    (folder / "processor_config.json").write_text(json.dumps(said))
    return folder


def noise(shape: tuple[int, int, int], seed: int = 0) -> Any:
    """Frames that are the same on every machine and with every version of numpy."""
    import numpy as np

    steps = np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(seed * 7919)
    mixed = (steps * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(56)
    return mixed.astype(np.uint8).reshape(shape)


_IMAGES_ONLY = '''"""The checkpoint's processor without its video part, which needs torchvision."""
from transformers import {parent}


class ImagesOnly({parent}):
    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)
'''


def for_serving(checkpoint: Path, folder: Path) -> Path:
    """A copy that `transformers serve --trust-remote-code` takes where torchvision is not installed."""
    import shutil

    shutil.copytree(checkpoint, folder)
    path = folder / "processor_config.json"
    said = json.loads(path.read_text())
    (folder / "images_only.py").write_text(_IMAGES_ONLY.format(parent=said["processor_class"]))
    del said["video_processor"]
    said |= {"processor_class": "ImagesOnly", "auto_map": {"AutoProcessor": "images_only.ImagesOnly"}}
    path.write_text(json.dumps(said))
    return folder
