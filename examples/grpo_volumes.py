"""TRL's GRPO on views of volumes, from a tuned model: rewards by name, their parts logged, the tuned model as
reference. With a model of millions of weights on a CPU it shows the wiring; the same words run a real one.

    pip install torch==2.13.0 && pip install 'reasonknee[train]'
    reasonknee train release --model Qwen/Qwen2.5-VL-3B-Instruct --slices even:8 --packed --out run
    python examples/grpo_volumes.py release Qwen/Qwen2.5-VL-3B-Instruct run/adapter --slices even:8 --out grpo

TRL shows pictures, no videos: frames go in one by one. `benchmarks/learn_grpo.py` computes all completions of
a volume behind one prefix instead.
"""

import argparse
from itertools import islice

from datasets import Dataset
from peft import LoraConfig, PeftModel
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer, Qwen2_5_VLProcessor
from trl import GRPOConfig, GRPOTrainer

from reasonknee.answers import read
from reasonknee.models import View
from reasonknee.models.targets import Teaching, target
from reasonknee.models.training_rows import volume_of
from reasonknee.questions import question
from reasonknee.questions.prompts import SYSTEM
from reasonknee.scoring.consistency import check
from reasonknee.scoring.rewards import completion_text, reward_with
from reasonknee.stream import volumes

LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


class Pictures(Qwen2_5_VLProcessor):
    """The model's processor without its video part, which needs torchvision."""

    def __init__(self, image_processor=None, tokenizer=None, chat_template=None, **kwargs):
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)


def part(name, **how):
    """One part of the score as a reward of its own, so that TRL weighs and logs it under its name."""
    reward = reward_with({name: 1.0}, **how)
    reward.__name__ = name
    return reward


def consistency(completions, question_id, **columns):
    """How well the steps hold together: the region is named, grades are stated and are those of the JSON, and
    the steps stand in their order."""
    earned = []
    for completion, name in zip(completions, question_id, strict=True):
        answer = read(question(name), completion_text(completion))
        seen = check(question(name), answer.reasoning, answer.grades)
        earned.append((seen.region + (seen.states and seen.agrees) + seen.steps) / 3)
    return earned


REWARDS = {
    "grades": part("grades"),
    "box": part("box", box_reward="giou"),
    "form": part("form"),
    "consistency": consistency,
}
WEIGHTS = {"grades": 0.5, "box": 0.3, "form": 0.1, "consistency": 0.1}


def prompts(release, view, teaching, count):
    """Questions on volumes with their pictures, and the columns that rewards compare with."""
    for item in islice(volumes(release, "full", "train", seed=0, batch_size=1), count):
        showing = view.show(volume_of(item), item["side"])
        pictures = [Image.fromarray(frame).convert("RGB") for frame in showing.images]
        for row in item["quintuples"]:
            text = target({**item, **row}, showing, teaching).question
            yield {
                "prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}],
                "images": pictures,
                **{name: row[name] for name in ("question_id", "grades", "box")},
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("release")
    parser.add_argument("model")
    parser.add_argument("adapter", nargs="?", help="of `reasonknee train`; none for a whole model")
    parser.add_argument("--out", default="grpo")
    parser.add_argument("--slices", default="even:8")
    parser.add_argument("--size", type=int)
    parser.add_argument("--arm", default="reasoning")
    parser.add_argument("--setting", default="instruction")
    parser.add_argument("--rewards", default=",".join(REWARDS), help="some of these, by commas")
    parser.add_argument("--volumes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--group", type=int, default=8, help="completions of a question")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--beta", type=float, default=0.02, help="how close to the tuned model")
    given = parser.parse_args()

    view = View(given.slices, size=given.size, kind="images")
    rows = Dataset.from_list(
        list(prompts(given.release, view, Teaching(given.arm, given.setting), given.volumes))
    )
    model = AutoModelForImageTextToText.from_pretrained(given.model, dtype="auto")
    if given.adapter:  # merged, so that the reference (our new adapter switched off) is the tuned model
        model = PeftModel.from_pretrained(model, given.adapter).merge_and_unload()
    processor = Pictures(
        AutoImageProcessor.from_pretrained(given.model), AutoTokenizer.from_pretrained(given.model)
    )
    processor.chat_template = processor.tokenizer.chat_template
    chosen = given.rewards.split(",")
    options = GRPOConfig(
        output_dir=given.out,
        use_cpu=model.device.type == "cpu",
        bf16=False,
        max_steps=given.steps,
        per_device_train_batch_size=given.group,
        num_generations=given.group,
        max_completion_length=given.tokens,
        beta=given.beta,
        reward_weights=[WEIGHTS[name] for name in chosen],
        logging_steps=1,
        report_to=[],
        remove_unused_columns=False,
        gradient_checkpointing=False,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[REWARDS[name] for name in chosen],
        args=options,
        train_dataset=rows,
        processing_class=processor,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules=LANGUAGE, task_type="CAUSAL_LM"),
    )
    trainer.train()
    for entry in trainer.state.log_history:
        if "reward" in entry:
            parts = ", ".join(f"{name} {entry[f'rewards/{name}/mean']:.3f}" for name in chosen)
            print(f"step {entry['step']}: reward {entry['reward']:.3f} ({parts}), kl {entry['kl']:.2e}")
    trainer.save_model(given.out)


if __name__ == "__main__":
    main()
