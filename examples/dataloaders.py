"""Without our loader: the stream in torchdata's StatefulDataLoader, stopped in mid-epoch and resumed; a
validation loader in fixed order; and batches in which all grades come equally often.

python examples/dataloaders.py RELEASE
"""

import sys
from collections import Counter

import torch
from knee_net import BATCH, COLLATOR, SIZE, rows
from torch.utils.data import DataLoader, WeightedRandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import reasonknee as rk
from reasonknee.stream import MapView


def stateful(release: str) -> StatefulDataLoader:
    stream = rows(release, batch_size=BATCH)  # several workers need to know it
    return StatefulDataLoader(stream, BATCH, num_workers=2, collate_fn=COLLATOR)


def main(release: str) -> None:
    whole = [batch.ids for batch in stateful(release)]
    first = stateful(release)
    seen = [batch.ids for _, batch in zip(range(3), first, strict=False)]
    second = stateful(release)
    second.load_state_dict(first.state_dict())
    seen += [batch.ids for batch in second]
    print("stateful:", "the same batches" if seen == whole else "OTHER BATCHES")

    fixed = rk.quintuples(
        release, "cropped", "validation", categories="bml", boxed=True
    )  # no seed, no shuffling
    order = [i for batch in rk.loader(fixed, COLLATOR, BATCH) for i in batch.ids]
    print(
        "validation:",
        len(order),
        "rows",
        "in stored order" if order == [r["id"] for r in fixed] else "SHUFFLED",
    )

    chosen = {"categories": "bml", "boxed": True}
    grades = [r["grades"]["size"] for r in MapView(release, "cropped", "train", **chosen, columns=["grades"])]
    often = Counter(grades)
    torch.manual_seed(0)
    sampler = WeightedRandomSampler([1 / often[g] for g in grades], 400)
    view = MapView(release, "cropped", "train", **chosen)
    drawn = Counter()
    for batch in DataLoader(view, 16, sampler=sampler, collate_fn=COLLATOR):
        drawn.update(batch.grades[:, SIZE].tolist())
    print("grades stored:", *(often[g] for g in sorted(often)))
    print("grades drawn:", *(drawn[g] for g in sorted(often)))


if __name__ == "__main__":
    main(sys.argv[1])
