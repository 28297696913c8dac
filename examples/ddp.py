"""Several processes on one machine: DistributedDataParallel by torchrun. Run it again to go on after a stop.

torchrun --nproc-per-node 2 examples/ddp.py RELEASE OUT [STOP AFTER SO MANY STEPS]
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from knee_net import BATCH, COLLATOR, EPOCHS, leave, loss_of, network, note, rows
from torch.nn.parallel import DistributedDataParallel

import reasonknee as rk


def main(release: str, out: Path, stop: int) -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else "cpu"
    batches = rk.loader(rows(release), COLLATOR, BATCH)  # each process gets its share
    net = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    parts, steps = {"net": net.module, "optimizer": optimizer, "batches": batches}, 0
    if (out / "checkpoint.pt").exists():
        saved = torch.load(out / "checkpoint.pt", map_location=device, weights_only=True)
        steps = saved.pop("steps")
        for name, part in parts.items():
            part.load_state_dict(saved[name])  # a position is the same for every rank
    for epoch in range(batches.epoch, EPOCHS):
        batches.set_epoch(epoch)
        for batch in batches:
            loss = loss_of(net, batch.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            note(out, rank, epoch, batch.ids)
            if steps == stop:
                if rank == 0:
                    state = {name: part.state_dict() for name, part in parts.items()}
                    torch.save({"steps": steps, **state}, out / "checkpoint.pt")
                dist.barrier()
                dist.destroy_process_group()
                return
    total = torch.cat([p.detach().flatten() for p in net.parameters()]).double().sum()
    print(f"rank {rank}: {steps} steps, weights {total.item():.6f}")
    dist.destroy_process_group()


main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if sys.argv[3:] else -1)
leave()
