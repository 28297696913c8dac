"""The loaders that read over HTTP, from the server of `web`, which HF_ENDPOINT names: those whose
documentation says how to.

litdata documents object stores, not a plain web server; MONAI and TorchIO read local files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import web
from ours import Ours
from peers import Loader, WebData, WebDataZst, collate, sample, scaled
from protocols import BATCH, NETWORK, WORKERS, Item, items
from torch.utils.data import DataLoader


class OursStreamed(Ours):
    """From the Hub, by its name."""

    protocols = NETWORK

    def source(self) -> Any:
        return web.RELEASE

    def prepare(self) -> None:
        pass


class WebDataStreamed(WebData):
    """An http URL, which WebDataset reads through a pipe from curl."""

    protocols, stored_as = NETWORK, "WebData"

    def urls(self) -> list[str]:
        repo = web.repo_of(self.form)
        return [
            f"{os.environ['HF_ENDPOINT']}/datasets/{repo}/resolve/main/{os.path.basename(path)}"
            for path in super().urls()
        ]


class WebDataZstStreamed(WebDataStreamed):
    name, packed, stored_as = WebDataZst.name, True, "WebDataZst"


class HubStreamed(Loader):
    """`load_dataset(..., streaming=True)` of the release, wanted columns only, a row group a shard, rows
    decoded by its Nifti feature."""

    name, package, protocols = "datasets, Nifti", "datasets", NETWORK

    def batches(self) -> Iterable[Item]:
        from datasets import load_dataset

        wanted = items(self.folder, self.content)
        key, config = ("id", "cropped") if self.cropped else ("volume_id", "full")
        patients = sorted({item["volume_id"].split("-")[0] for item in wanted})
        settings = {"columns": [key, "volume"], "filters": [("patient", "in", patients)]}
        rows = load_dataset(web.RELEASE, config, split="train", streaming=True, **settings)
        rows = rows.reshard().shuffle(
            seed=0, buffer_size=200 if self.cropped else 1
        )  # a shard is a volume, or the crops of one
        made = {item[key]: item for item in wanted}

        def ready(batch: list[Item]) -> Item:
            return collate(
                [
                    sample(made[row[key]], scaled(np.asanyarray(row["volume"].dataobj).T), self.cropped)
                    for row in batch
                ]
            )

        return DataLoader(rows, BATCH, num_workers=WORKERS, collate_fn=ready, persistent_workers=True)


STREAMED: tuple[type[Loader], ...] = (OursStreamed, WebDataStreamed, WebDataZstStreamed, HubStreamed)
