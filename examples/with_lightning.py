"""The same by Lightning, in one process or several. It tells epochs to the loader, and keeps its position in
the checkpoint; `even=` is needed with several, since it waits for all of them at every step.

python examples/with_lightning.py RELEASE OUT DEVICES [STOP AFTER SO MANY STEPS]
"""

import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from knee_net import BATCH, COLLATOR, EPOCHS, leave, loss_of, network, note, rows
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

import reasonknee as rk


class Knees(lightning.LightningModule):
    def __init__(self, out: Path) -> None:
        super().__init__()
        self.net, self.out = network(), out

    def training_step(self, batch: rk.Batch, index: int) -> torch.Tensor:
        note(self.out, self.global_rank, self.current_epoch, batch.ids)
        loss = loss_of(self.net, batch)
        self.log("loss", loss, batch_size=len(batch))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class CountsEpochs(Callback):
    """Keeps right what Lightning 2.6 miscounts, so that rows would be lost or repeated without a word.

    Resumed after the last batch of an epoch, it does not count the next one as begun, and drops the position
    of a checkpoint inside that one. Where `max_steps` ends a fit inside an epoch, a checkpoint of that end
    says that the epoch is done; where it ends a fit with an epoch, the next one is taken for done as well.
    """

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        epochs = trainer.fit_loop.epoch_progress
        if epochs.current.ready == epochs.current.processed:
            epochs.increment_ready()
            epochs.increment_started()

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        loop = checkpoint["loops"]["fit_loop"]
        batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
        if not batches["is_last_batch"]:
            for counts in epochs.values():
                counts["processed"] = counts["completed"] = counts["ready"] - 1
        elif epochs["current"]["processed"] == epochs["current"]["ready"]:  # the epoch is over
            batches["current"] = dict.fromkeys(batches["current"], 0)


def main(release: str, out: Path, devices: int, stop: int) -> None:
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        max_steps=stop,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=[
            CountsEpochs(),
            ModelCheckpoint(out, filename="step", every_n_train_steps=1, save_top_k=1),
        ],
        default_root_dir=out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = out / "step.ckpt"
    trainer.fit(
        Knees(out),
        train_dataloaders=rk.loader(rows(release), COLLATOR, BATCH),
        ckpt_path=str(last) if last.exists() else None,
    )
    print(f"rank {trainer.global_rank}: {trainer.global_step} steps")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if sys.argv[4:] else -1)
    leave()
