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
from lightning.pytorch.callbacks import ModelCheckpoint

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


def main(release: str, out: Path, devices: int, stop: int) -> None:
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        max_steps=stop,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        callbacks=[ModelCheckpoint(out, filename="step", every_n_train_steps=1, save_top_k=1)],
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


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]) if sys.argv[4:] else -1)
leave()
