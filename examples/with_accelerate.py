"""The same by accelerate. `prepare` leaves the loader alone, which takes its share itself; its position is a
part of the checkpoint.

torchrun --nproc-per-node 2 examples/with_accelerate.py RELEASE OUT [STOP AFTER SO MANY STEPS]

On GPUs `accelerate launch` does as well; without one it starts a single process, whatever is asked for.
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from knee_net import BATCH, COLLATOR, EPOCHS, leave, loss_of, network, note, rows

import reasonknee as rk


def main(release: str, out: Path, stop: int) -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    batches = rk.loader(rows(release), COLLATOR, BATCH, device=accelerator.device)
    net = network()
    net, optimizer, batches = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=3e-3), batches)
    accelerator.register_for_checkpointing(batches)
    if (out / "checkpoint").exists():
        accelerator.load_state(str(out / "checkpoint"))
    steps = 0
    for epoch in range(batches.epoch, EPOCHS):
        batches.set_epoch(epoch)
        for batch in batches:
            accelerator.backward(loss_of(net, batch))
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
            note(out, accelerator.process_index, epoch, batch.ids)
            if steps == stop:
                accelerator.save_state(str(out / "checkpoint"))
                accelerator.wait_for_everyone()
                accelerator.end_training()
                return
    print(f"rank {accelerator.process_index}: {steps} steps")
    accelerator.wait_for_everyone()
    accelerator.end_training()


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else -1)
leave()
