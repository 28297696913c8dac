"""Trains a small 3D network to grade the size of bone marrow lesions, stops half-way, resumes, and ends with
the same weights.

reasonknee phantom cohort --patients 20 --shape 16,48,48 && reasonknee build cohort release --margin 3
python examples/train.py release
"""

import sys
from pathlib import Path

import torch
from torch import nn

from reasonknee.collate import Collator, Loader, loader
from reasonknee.questions import ATTRIBUTES
from reasonknee.stream import quintuples

torch.set_num_threads(1)  # sums in one order, so that two runs can be compared bit by bit
EPOCHS, SIZE = 6, ATTRIBUTES.index("size")


def batches(release: str, split: str) -> Loader:
    """All 15 subregions of the bones, cropped, left knees mirrored, in an order that the seed fixes."""
    rows = quintuples(release, "cropped", split, categories="bml", boxed=True, seed=0, batch_size=16)
    return loader(rows, Collator(fit="resize", grid=(8, 16, 16), mirror_left=True), 16)


class Training:
    def __init__(self, release: str) -> None:
        torch.manual_seed(0)
        layers = [nn.Conv3d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv3d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.net = nn.Sequential(*layers, nn.Linear(1024, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        self.batches = batches(release, "train")
        self.parts = {"net": self.net, "optimizer": self.optimizer, "batches": self.batches}
        self.epoch = self.steps = 0

    def run(self, stop: int | None = None) -> None:
        while self.epoch < EPOCHS:
            self.batches.set_epoch(self.epoch)
            for batch in self.batches:
                loss = nn.functional.cross_entropy(self.net(batch.volumes), batch.grades[:, SIZE])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.steps += 1
                if self.steps == stop:
                    return
            self.epoch += 1

    def save(self, path: Path) -> None:
        torch.save(
            {
                "epoch": self.epoch,
                "steps": self.steps,
                **{name: part.state_dict() for name, part in self.parts.items()},
            },
            path,
        )

    def resume(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)  # tensors and numbers only: a checkpoint cannot run code
        self.epoch, self.steps = saved["epoch"], saved["steps"]
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])


def main(release: str, checkpoint: Path) -> None:
    through = Training(release)
    through.run()
    first = Training(release)
    first.run(stop=through.steps // 2 + 1)  # in the middle of an epoch
    first.save(checkpoint)
    second = Training(release)
    second.resume(checkpoint)
    second.run()
    same = all(
        torch.equal(a, b) for a, b in zip(through.net.parameters(), second.net.parameters(), strict=True)
    )
    print(
        f"stopped after {first.steps} of {through.steps} steps and resumed: "
        f"{'the same weights' if same else 'OTHER WEIGHTS'}"
    )

    train = torch.cat([b.grades[:, SIZE] for b in batches(release, "train")])
    answers = [(second.net(b.volumes).argmax(1), b.grades[:, SIZE]) for b in batches(release, "test")]
    given, true = (torch.cat(column) for column in zip(*answers, strict=True))
    right, majority = (
        (given == true).float().mean().item(),
        (true == train.mode().values).float().mean().item(),
    )
    print(
        f"size of bone marrow lesions on {len(true)} test crops: {right:.3f} right; the majority grade "
        f"alone: {majority:.3f}"
    )


if __name__ == "__main__":
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python examples/train.py RELEASE [CHECKPOINT]")
    main(sys.argv[1], Path(sys.argv[2] if len(sys.argv) > 2 else "checkpoint.pt"))
