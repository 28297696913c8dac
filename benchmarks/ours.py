"""This project's loaders, as `peers` has the others: the stream and the collator, from a release folder
or from the cache of `datasets`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from peers import Loader
from protocols import BATCH, WORKERS, Item, items

COLUMNS = ("volume", "box", "grades", "shape")  # the tensors that the peers give


class Epochs:
    """A loader of ours, made once; each pass over it is an epoch with an order of its own."""

    def __init__(self, loader: Any, shared: bool = False) -> None:
        self.loader, self.shared, self.epoch = loader, shared, count()

    def __iter__(self) -> Iterator[Item]:
        self.loader.set_epoch(next(self.epoch))
        for b in self.loader:
            batch = {"ids": b.ids, "volumes": b.volumes, "boxes": b.boxes, "grades": b.grades}
            yield {**batch, "index": b.volume_index} if self.shared else batch
            del b, batch  # what the caller has let go is not held here


class Ours(Loader):
    name = "ours"
    package, ours = "reasonknee", True
    dtype, cached, processes = "float32", False, 0

    def source(self) -> Any:
        if not self.cached:
            return self.folder / "release"
        from datasets import load_dataset

        return load_dataset(str(self.folder / "release"), self.config, split="train")

    @property
    def config(self) -> str:
        return "cropped" if self.cropped else "full"

    def prepare(self) -> None:
        self.source()

    def stream(self, **options: Any) -> Any:
        from reasonknee.stream import quintuples

        settings = {
            "boxed": True,
            "columns": COLUMNS,
            "seed": 0,
            "batch_size": BATCH,
            **self.chosen(),
            **options,
        }
        return quintuples(self.source(), self.config, **settings)

    def chosen(self) -> dict[str, Any]:
        """The same samples as the peers have."""
        if not (
            self.folder / "items.json"
        ).exists():  # a growing cohort, for ours alone: of whole volumes, some questions each will do
            from reasonknee.questions import QUESTIONS

            return {} if self.cropped else {"questions": list(QUESTIONS)[:8]}
        wanted = items(self.folder, self.content)
        if self.content == "once":
            return {"questions": wanted[0]["id"].removeprefix(wanted[0]["volume_id"]).strip("-/:")}
        return {"patients": {i["volume_id"].split("-")[0] for i in wanted}}

    def loader(self, stream: Any, batch: int = BATCH, workers: int = WORKERS) -> Any:
        from reasonknee.collate import Collator, loader

        return loader(stream, Collator(dtype=self.dtype), batch, workers=workers, processes=self.processes)

    def batches(self) -> Iterable[Item]:
        return Epochs(self.loader(self.stream()))


class OursCached(Ours):
    name, cached = "ours, `datasets` cache", True


class OursProcesses(Ours):
    """Worker processes in place of threads."""

    name, processes = "ours, processes", WORKERS


class OursHalf(Ours):
    name, dtype = "ours, bfloat16", "bfloat16"


class OursByVolume(Ours):
    """One tensor a volume with all its questions."""

    name, protocols = "ours, volume-major", ("full",)

    def batches(self) -> Iterable[Item]:
        from reasonknee.stream import volumes

        stream = volumes(
            self.source(), "full", boxed=True, columns=COLUMNS, seed=0, batch_size=1, **self.chosen()
        )
        return Epochs(self.loader(stream, 1), shared=True)


class OursByVolumeHalf(OursByVolume):
    name, dtype = "ours, volume-major, bfloat16", "bfloat16"


OURS: tuple[type[Loader], ...] = (
    Ours,
    OursCached,
    OursProcesses,
    OursHalf,
    OursByVolume,
    OursByVolumeHalf,
)
