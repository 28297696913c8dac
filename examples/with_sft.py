"""Fine-tuning of a language model by TRL's SFTTrainer on prompts, reasoning and answers: a tiny one, to
show the wiring. The loader stands in for the trainer's own, as in with_trainer.py.

python examples/with_sft.py RELEASE OUT
"""

import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from knee_net import BATCH
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

import reasonknee as rk


def tiny() -> tuple[Any, Any]:
    """Random weights over single bytes. With a real model this is two calls of `from_pretrained`."""
    words = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = Qwen2Config(vocab_size=len(words), **size, **heads, pad_token_id=0, eos_token_id=1)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    return Qwen2ForCausalLM(config), fast


class OurBatches(SFTTrainer):
    batches: Any

    def get_train_dataloader(self) -> Any:
        return self.batches


def main(release: str, out: Path) -> None:
    model, tokenizer = tiny()
    collator = rk.Collator(tokenizer=tokenizer, require_box=False)

    def tokens(rows: list[Any]) -> dict[str, Any]:
        batch = collator(rows)
        return {name: batch[name][:, :1024] for name in ("input_ids", "attention_mask", "labels")}

    rows = rk.quintuples(release, "annotations", "train", questions=["acl", "pcl"], seed=0)
    args = SFTConfig(
        output_dir=str(out),
        max_steps=3,
        per_device_train_batch_size=BATCH,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )
    unused = Dataset.from_dict({"input_ids": [[1]]})  # the trainer wants one
    trainer = OurBatches(model=model, args=args, train_dataset=unused, processing_class=tokenizer)
    trainer.batches = rk.loader(rows, tokens, BATCH)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("losses", " ".join(f"{loss:.2f}" for loss in losses))


main(sys.argv[1], Path(sys.argv[2]))
