"""Whole volumes: half as large along each axis, smoothed first, so that fine structures do not turn into
false ones; and two visits of a knee as one item.

python examples/volumes.py RELEASE
"""

import sys
from typing import Any

import reasonknee as rk
from reasonknee.collate.geometry import resampled


def halved(row: Any) -> Any:
    z, y, x = row["volume"].shape
    return resampled(row, (z // 2, y // 2, x // 2))


def main(release: str) -> None:
    small = rk.quintuples(release, "full", "train", questions=["acl"], boxed=True, seed=0)
    batch = next(iter(rk.loader(small, rk.Collator(transform=halved), 2)))
    print("halved", tuple(batch.volumes.shape), "box", [int(v) for v in batch.boxes[0]])

    collator = rk.Collator(fit="resize", grid=(8, 16, 16))

    def two(items: list[Any]) -> tuple[rk.Batch, rk.Batch]:
        return collator([i["first"] for i in items]), collator([i["second"] for i in items])

    visits = rk.pairs(release, "cropped", "train", questions=["acl", "pcl"], boxed=True, seed=0)
    for before, after in rk.loader(visits, two, 2):
        assert before.question_ids == after.question_ids
        change = after.grades - before.grades
        print("visits", before.volume_ids[0], after.volume_ids[0], "change", int(change.max()))


if __name__ == "__main__":
    main(sys.argv[1])
