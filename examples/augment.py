"""Augmentation with MONAI and with TorchIO: they move the voxels and say by an affine where these lie now;
`moved` moves box, crop and all else with them. What is drawn depends on seed, epoch and row alone.

python examples/augment.py RELEASE
"""

import sys
from typing import Any

import numpy as np
import torch

import reasonknee as rk
from reasonknee.collate.geometry import moved


def by_monai() -> Any:
    from monai.data import MetaTensor
    from monai.transforms import Compose, RandAdjustContrast, RandFlip, RandRotate90, SpatialPad

    change = Compose(
        [
            RandFlip(prob=0.5, spatial_axis=0),
            RandRotate90(prob=0.5, spatial_axes=(0, 1)),
            SpatialPad((24, 24, 12)),
            RandAdjustContrast(prob=0.5),
        ]
    )

    def transform(row: Any, rng: np.random.Generator) -> Any:
        change.set_random_state(seed=int(rng.integers(2**32)))
        voxels = torch.from_numpy(row["volume"].astype(np.float32).transpose(2, 1, 0))[None]  # c, x, y, z
        out = change(MetaTensor(voxels, affine=torch.from_numpy(np.array(row["affine"]))))
        return moved(row, out[0].numpy().transpose(2, 1, 0), out.affine.numpy())

    return transform


def by_torchio() -> Any:
    import torchio

    def transform(row: Any, rng: np.random.Generator) -> Any:
        # drawn here: TorchIO's own Random... draw from torch's global state, which the model draws from too
        flip = torchio.Flip(axes=[axis for axis in range(3) if rng.random() < 0.5])
        change = torchio.Compose([flip, torchio.Gamma(np.exp(rng.uniform(-0.3, 0.3))), torchio.Pad(2)])
        voxels = torch.from_numpy(row["volume"].astype(np.float32).transpose(2, 1, 0).copy())[None]
        out = change(torchio.ScalarImage(tensor=voxels, affine=np.array(row["affine"])))
        return moved(row, out.data[0].numpy().transpose(2, 1, 0), np.asarray(out.affine))

    return transform


def main(release: str) -> None:
    for name, transform in (("MONAI", by_monai()), ("TorchIO", by_torchio())):
        rows = rk.quintuples(release, "cropped", "train", questions=["acl"], boxed=True, seed=0)
        batch = next(iter(rk.loader(rows, rk.Collator(transform=transform, seed=0), 4)))
        inside = (batch.boxes[:, 1::2] <= batch.sizes).all() and (batch.boxes[:, ::2] >= 0).all()
        print(name, tuple(batch.volumes.shape), "boxes inside" if inside else "BOXES OUTSIDE")


if __name__ == "__main__":
    main(sys.argv[1])
