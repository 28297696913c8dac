"""The first training batch of a release on this machine: python examples/first_batch.py RELEASE"""

import sys

from reasonknee.collate import Collator, loader
from reasonknee.stream import quintuples

rows = quintuples(sys.argv[1], "cropped", "train", boxed=True, seed=0, batch_size=4)
batch = next(iter(loader(rows, Collator(fit="resize", grid=(32, 64, 64)), 4)))
print("volumes", tuple(batch.volumes.shape), batch.volumes.dtype)
print("boxes  ", tuple(batch.boxes.shape), "in voxels of that tensor")
print("grades ", tuple(batch.grades.shape), "-100 where a question does not ask for the attribute")
