"""Two steps of TRL's GRPO with the score as the reward, on a tiny random language model: the wiring, not a
result. Offline, on a CPU.

pip install torch==2.13.0 && pip install trl   # beside reasonknee
reasonknee phantom cohort --patients 6 && reasonknee build cohort release --configs annotations
python examples/grpo.py release
"""

import sys
import tempfile

from datasets import load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from reasonknee.questions import question
from reasonknee.questions.prompts import zero_shot
from reasonknee.scoring import reward


def tiny_model() -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """Random weights over single bytes, and words of digits only.

    With a real model this is two calls of `from_pretrained`.
    """
    special = {"pad_token": "<pad>", "eos_token": "<end>"}
    words = [*special.values(), *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    template = "{% for m in messages %}{{ m['content'] }}\n{% endfor %}"
    model = Qwen2ForCausalLM(config)
    model.generation_config.suppress_tokens = [
        i for i, word in enumerate(words) if word not in "0123"
    ]  # or two steps would find no answer
    return model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **special)


def main(release: str) -> None:
    rows = load_dataset(release, "annotations", split="train").filter(
        lambda row: row["category"] == "osteophyte"
    )  # answered by one grade
    prompts = rows.map(
        lambda row: {"prompt": [{"role": "user", "content": zero_shot(question(row["question_id"]))}]}
    )
    model, tokenizer = tiny_model()
    with tempfile.TemporaryDirectory() as folder:
        options = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            max_steps=2,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=1,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            # the reward compares with the columns question_id, grades, box and shape
            remove_unused_columns=False,
        )
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=[reward],
            args=options,
            train_dataset=prompts,
            processing_class=tokenizer,
        )
        trainer.train()
    for entry in trainer.state.log_history:
        if "reward" in entry:
            print(
                f"step {entry['step']}: reward {entry['rewards/reasonknee_reward/mean']:.3f}, gradient "
                f"{entry['grad_norm']:.3f}"
            )


main(sys.argv[1])
