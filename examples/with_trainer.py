"""The same by Hugging Face's Trainer. It would pull all rows again to find its place: the loader's own
position in the checkpoint spares that.

python examples/with_trainer.py RELEASE OUT [STOP AFTER SO MANY STEPS]        # or by torchrun
"""

import json
import sys
from pathlib import Path
from typing import Any

from knee_net import BATCH, COLLATOR, EPOCHS, leave, loss_of, network, note, rows
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import reasonknee as rk


class KeepsPosition(TrainerCallback):
    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            file = Path(args.output_dir, f"checkpoint-{state.global_step}", "batches.json")
            file.write_text(json.dumps(self.batches.state_dict()))


class KneeTrainer(Trainer):
    batches: Any
    out: Path

    def get_train_dataloader(self) -> Any:
        return self.batches

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        note(self.out, self.args.process_index, self.batches.epoch, inputs.ids)
        return loss_of(model, inputs)


def main(release: str, out: Path, stop: int) -> None:
    batches = rk.loader(rows(release), COLLATOR, BATCH)
    args = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=EPOCHS,
        max_steps=stop,
        per_device_train_batch_size=BATCH,
        save_steps=1,
        save_total_limit=1,
        ignore_data_skip=True,  # the position is loaded below
        remove_unused_columns=False,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = KneeTrainer(model=network(), args=args, callbacks=[KeepsPosition(batches)])
    trainer.batches, trainer.out = batches, out
    last = get_last_checkpoint(str(out)) if out.exists() else None
    if last:
        batches.load_state_dict(json.loads(Path(last, "batches.json").read_text()))
    trainer.train(resume_from_checkpoint=last)
    print(f"rank {args.process_index}: {trainer.state.global_step} steps")


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else -1)
leave()
