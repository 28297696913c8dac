"""What a loader is, and the peers on local files, each set up as its own documentation recommends.

A loader has `prepare`, which writes its own form of the data (not timed), and `batches`, which gives an
iterable that is made once and iterated epoch after epoch, in random order, as a training loop does. Batches
are dicts: ids, volumes (B, 1, Z, Y, X) from 0 to 1, boxes (B, 6) in voxels of the tensor, grades (B,
attributes). All use batches of four and two workers, which a peer keeps from epoch to epoch where it can.
Packages of the peers are imported when their loader is used.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from protocols import BATCH, CROPPED, FEW, HIGHEST, LOCAL, PROTOCOLS, WHOLE, WORKERS, Item, by_volume, items
from torch.utils.data import DataLoader, Dataset, default_collate


def voxels(path: Path) -> np.ndarray:
    """A NIfTI file as the (z, y, x) array of its own type."""
    import nibabel

    return np.ascontiguousarray(np.asanyarray(nibabel.load(path).dataobj).T)


def cut(array: np.ndarray, item: Item) -> np.ndarray:
    z0, z1, y0, y1, x0, x1 = item["crop"]
    return array[z0:z1, y0:y1, x0:x1]


def scaled(array: np.ndarray) -> torch.Tensor:
    """Voxels as (1, z, y, x) numbers from 0 to 1, without a needless copy."""
    return torch.from_numpy(array.astype(np.float32)).clamp_(0, HIGHEST).div_(HIGHEST)[None]


def sample(item: Item, volume: torch.Tensor, cropped: bool) -> Item:
    start = np.repeat(item["crop"][::2], 2) if cropped else 0
    return {
        "id": item["id"],
        "volume": volume,
        "box": torch.tensor(np.array(item["box"]) - start, dtype=torch.float32),
        "grades": torch.tensor(item["grades"]),
    }


def collate(samples: list[Item]) -> Item:
    """Padded to the largest volume and stacked: what MONAI's pad_list_data_collate does; straight into
    shared memory where torch can."""
    most = [max(sizes) for sizes in zip(*(s["volume"].shape[1:] for s in samples), strict=True)]
    padded = []
    for s in samples:
        z, y, x = (to - of for to, of in zip(most, s["volume"].shape[1:], strict=True))
        padded.append(
            torch.nn.functional.pad(s["volume"], (0, x, 0, y, 0, z)) if z or y or x else s["volume"]
        )
    rest = {f"{name}s": default_collate([s[name] for s in samples]) for name in ("id", "box")}
    return {
        **rest,
        "boxes": rest.pop("boxs"),
        "volumes": default_collate(padded),
        "grades": default_collate([s["grades"] for s in samples]),
    }


class Indexed(Dataset):
    """A map-style dataset: an item, and a function that gives its volume."""

    def __init__(self, wanted: list[Item], volume: Callable[[Item], torch.Tensor], cropped: bool) -> None:
        self.wanted, self.volume, self.cropped = wanted, volume, cropped

    def __len__(self) -> int:
        return len(self.wanted)

    def __getitem__(self, index: int) -> Item:
        return sample(self.wanted[index], self.volume(self.wanted[index]), self.cropped)


class Loader(ABC):
    """One way to load. `package` is what has to be installed, `protocols` what it can do, `ours` whether
    it is this project's."""

    name: ClassVar[str]
    package: ClassVar[str] = "torch"
    protocols: ClassVar[tuple[str, ...]] = LOCAL
    ours: ClassVar[bool] = False
    short: ClassVar[
        tuple[str, ...]
    ] = ()  # protocols where every sample costs the same and is slow: a part of an epoch tells its rate
    stored_as: ClassVar[str] = ""  # the loader whose form this one reads, if not its own
    part: bool = False

    def __init__(self, folder: Path, protocol: str) -> None:
        self.folder, self.content = folder, PROTOCOLS[protocol].content
        self.cropped = self.content == "cropped"
        self.form = (
            folder
            / "forms"
            / f"{self.stored_as or type(self).__name__}-{'crops' if self.cropped else 'volumes'}"
        )

    def prepare(self) -> None:
        """Writes the loader's own form once; a form that was not finished is not taken for one."""
        if not self.form.exists():
            partial_ = self.form.with_name(self.form.name + ".partial")
            partial_.mkdir(parents=True, exist_ok=True)
            self.write(partial_)
            partial_.rename(self.form)

    def write(self, out: Path) -> None:
        """Nothing, for a loader that reads the release or the plain files."""
        return None

    @abstractmethod
    def batches(self) -> Iterable[Item]:
        """An iterable that gives one epoch each time it is iterated."""

    def wanted(self) -> list[Item]:
        """The samples of an epoch; of a short one, some that lie all over it."""
        every = items(self.folder, self.content)
        return every[:: max(1, len(every) // FEW)][:FEW] if self.part else every

    def indexed(self, volume: Callable[[Item], torch.Tensor]) -> Iterable[Item]:
        dataset = Indexed(self.wanted(), volume, self.cropped)
        return DataLoader(
            dataset, BATCH, shuffle=True, num_workers=WORKERS, collate_fn=collate, persistent_workers=True
        )

    def stored(self) -> Iterator[tuple[Item, np.ndarray]]:
        """What a form holds: each quintuple with its crop, or each volume with all its quintuples."""
        if self.cropped:
            for item in items(self.folder, self.content):
                yield item, voxels(self.folder / item["crop_file"])
        else:
            for group in by_volume(self.folder):
                yield (
                    {"volume_id": group[0]["volume_id"], "items": group},
                    voxels(self.folder / group[0]["image"]),
                )


# --- the peers ----------------------------------------------------------------------------------------------


class Upstream(Loader):
    """Loads the whole .nii.gz for each sample, as float64, and cuts the region out."""

    short = ("cropped", "full")
    name, package = "upstream's way", "nibabel"

    def batches(self) -> Iterable[Item]:
        return self.indexed(self.volume)

    def volume(self, item: Item) -> torch.Tensor:
        import nibabel

        whole = nibabel.load(self.folder / item["image"]).get_fdata().T
        part = cut(whole, item) if self.cropped else whole
        return torch.from_numpy(np.clip(part, 0, HIGHEST) / HIGHEST).float()[None]


def turned(image: torch.Tensor) -> torch.Tensor:
    return (
        image.permute(0, 3, 2, 1).contiguous().clone()
    )  # own memory: else the cache would hold what it is a view of


class MonaiPersistent(Loader):
    """The transformed volumes, or crops, as tensors on disk."""

    short = ("full",)
    name, package = "MONAI PersistentDataset", "monai"

    def data(self) -> list[Item]:
        key = "crop_file" if self.cropped else "image"
        return [
            {"image": str(self.folder / path)}
            for path in dict.fromkeys(i[key] for i in items(self.folder, self.content))
        ]

    def transform(self) -> Any:
        from monai.data import set_track_meta
        from monai.transforms import Compose, EnsureChannelFirstd, Lambdad, LoadImaged, ScaleIntensityRanged

        set_track_meta(False)
        steps = [LoadImaged("image", image_only=True), EnsureChannelFirstd("image", channel_dim="no_channel")]
        scale = ScaleIntensityRanged("image", a_min=0, a_max=HIGHEST, b_min=0, b_max=1, clip=True)
        return Compose([*steps, scale, Lambdad("image", turned)])

    def dataset(self) -> Any:
        from monai.data import PersistentDataset

        return PersistentDataset(self.data(), self.transform(), cache_dir=self.form)

    def prepare(self) -> None:
        dataset = self.dataset()
        for i in range(len(dataset)):
            dataset[i]

    def batches(self) -> Iterable[Item]:
        dataset = self.dataset()
        key = "crop_file" if self.cropped else "image"
        place = {each["image"]: i for i, each in enumerate(self.data())}
        return self.indexed(lambda item: dataset[place[str(self.folder / item[key])]]["image"])


class MonaiCache(MonaiPersistent):
    """The same in memory. Where each volume is wanted once there is nothing to keep."""

    name, protocols = "MONAI CacheDataset", ("cropped", "full")
    filled: Any = None

    def prepare(self) -> None:
        from monai.data import CacheDataset

        self.filled = CacheDataset(self.data(), self.transform(), num_workers=2, progress=False)

    def dataset(self) -> Any:
        return self.filled


class TorchIO(Loader):
    """Regions through a Queue of patches; whole volumes subject by subject."""

    short = ("full",)
    name, package = "TorchIO", "torchio"

    def batches(self) -> Iterable[Item]:
        import torchio as tio

        if not self.cropped:
            wanted = self.wanted()
            subjects = [tio.Subject(image=tio.ScalarImage(self.folder / i["image"]), item=i) for i in wanted]
            settings = {
                "batch_size": BATCH,
                "shuffle": True,
                "num_workers": WORKERS,
                "persistent_workers": True,
            }
            return tio.SubjectsLoader(tio.SubjectsDataset(subjects), self._collate, **settings)
        groups = by_volume(self.folder)[:CROPPED]
        most = max(len(g) for g in groups)
        subjects = [
            tio.Subject(image=tio.ScalarImage(self.folder / g[0]["image"]), regions=g, num_samples=len(g))
            for g in groups
        ]
        queue = tio.Queue(
            tio.SubjectsDataset(subjects),
            4 * most,
            most,
            _boxes_of_subject(),
            num_workers=WORKERS,
            start_background=False,
        )
        return tio.SubjectsLoader(queue, self._collate, batch_size=BATCH, num_workers=0)

    def _collate(self, subjects: list[Any]) -> Item:
        ready = []
        for s in subjects:
            image = s["image"].data.permute(0, 3, 2, 1)
            volume = (
                image.to(torch.float32, memory_format=torch.contiguous_format, copy=True)
                .clamp_(0, HIGHEST)
                .div_(HIGHEST)
            )
            ready.append(sample(s["item"], volume, self.cropped))
        return collate(ready)


def _boxes_of_subject() -> Any:
    import torchio as tio

    class Boxes(tio.data.PatchSampler):
        def _generate_patches(self, subject: Any, num_patches: int | None = None) -> Iterator[Any]:
            regions = subject["regions"]
            light = tio.Subject(image=subject["image"])
            for item in regions:
                z0, z1, y0, y1, x0, x1 = item["crop"]
                patch = self.crop(light, (x0, y0, z0), (x1 - x0, y1 - y0, z1 - z0))
                patch["item"] = item
                yield patch

    return Boxes(1)


class WebData(Loader):
    """Tar shards in random order, a shuffle buffer; whole volumes are decoded once and their questions
    shuffled."""

    name, package = "WebDataset, npy", "webdataset"
    packed = False

    def write(self, out: Path) -> None:
        import webdataset as wds

        stored = list(self.stored()) if self.cropped else self.stored()
        if self.cropped:
            np.random.default_rng(0).shuffle(stored)  # shards of mixed samples, as recommended
        with wds.ShardWriter(f"{out}/%06d.tar", maxcount=62 if self.cropped else 1, verbose=0) as shards:
            for n, (item, array) in enumerate(stored):
                voxels_ = {"npy.zst": _pack(array)} if self.packed else {"npy": array}
                shards.write({"__key__": f"{n:06d}", "json": item, **voxels_})

    def urls(self) -> list[str]:
        found = [str(p) for p in sorted(self.form.glob("*.tar"))]
        return found[:WHOLE] if self.content == "full" else found

    def batches(self) -> Iterable[Item]:
        import webdataset as wds

        urls = self.urls()
        data = wds.WebDataset(urls, shardshuffle=len(urls), cache_dir=None)
        if self.cropped:
            data = data.shuffle(200)
        data = data.decode(wds.handle_extension("npy.zst", _unpack)) if self.packed else data.decode()
        if not self.cropped:
            data = data.compose(partial(_exploded, every=self.content == "full"))
            data = data.shuffle(248) if self.content == "full" else data
        data = data.map(self._ready).batched(BATCH, collation_fn=collate, partial=True)
        return wds.WebLoader(data, batch_size=None, num_workers=WORKERS, persistent_workers=True)

    def _ready(self, row: Item) -> Item:
        return sample(row["json"], scaled(row["npy.zst" if self.packed else "npy"]), self.cropped)


def _pack(array: np.ndarray) -> bytes:
    import io

    import zstandard

    out = io.BytesIO()
    np.save(out, array)
    return zstandard.compress(out.getbuffer(), 3)


def _unpack(data: bytes) -> np.ndarray:
    import io

    import zstandard

    return np.load(io.BytesIO(zstandard.decompress(data)), allow_pickle=False)


def _exploded(rows: Iterable[Item], every: bool) -> Iterator[Item]:
    for row in rows:
        for item in row["json"]["items"] if every else row["json"]["items"][:1]:
            yield {**row, "json": item}


class WebDataZst(WebData):
    name, packed = "WebDataset, zst", True


class LitData(Loader):
    """Optimised chunks. No documented way to serve one stored volume for many questions."""

    name, package, protocols = "litdata", "litdata", ("cropped", "once")

    def write(self, out: Path) -> None:
        import litdata

        wanted = items(self.folder, self.content)
        key = "crop_file" if self.cropped else "image"
        litdata.optimize(
            partial(_lit_item, self.folder, key),
            wanted,
            output_dir=str(out),
            chunk_bytes="64MB",
            num_workers=2,
        )

    def batches(self) -> Iterable[Item]:
        import litdata

        data = litdata.StreamingDataset(
            str(self.form),
            shuffle=True,
            drop_last=False,
            transform=partial(_lit_sample, cropped=self.cropped),
        )
        return litdata.StreamingDataLoader(
            data, batch_size=BATCH, num_workers=WORKERS, collate_fn=collate, persistent_workers=True
        )


def _lit_sample(row: Item, cropped: bool) -> Item:
    return sample(json.loads(row["item"]), scaled(row["volume"]), cropped)


def _lit_item(folder: Path, key: str, item: Item) -> Item:
    return {"item": json.dumps(item), "volume": voxels(folder / item[key])}


class Grain(Loader):
    """Arrays by index from one file each, shuffled and batched, read by threads, which is its default. Its
    worker processes are started anew each epoch. No documented way to serve one stored volume for many
    questions."""

    name, package, protocols = "grain", "grain", ("cropped", "once")

    def write(self, out: Path) -> None:
        key = "crop_file" if self.cropped else "image"
        for number, item in enumerate(items(self.folder, self.content)):
            np.save(out / f"{number}.npy", voxels(self.folder / item[key]))

    def batches(self) -> Iterable[Item]:
        return _GrainEpochs(_GrainSource(self.form, self.wanted()), self.cropped)


class _GrainSource:
    def __init__(self, folder: Path, wanted: list[Item]) -> None:
        self.folder, self.wanted = folder, wanted

    def __len__(self) -> int:
        return len(self.wanted)

    def __getitem__(self, index: int) -> Item:
        return {"item": self.wanted[index], "array": np.load(self.folder / f"{index}.npy")}


class _GrainEpochs:
    """An epoch each time it is iterated, with an order of its own."""

    def __init__(self, source: _GrainSource, cropped: bool) -> None:
        self.source, self.cropped, self.epoch = source, cropped, 0

    def __iter__(self) -> Iterator[Item]:
        import grain

        self.epoch += 1
        rows = grain.MapDataset.source(self.source).seed(self.epoch).shuffle()
        made = rows.map(partial(_grain_sample, cropped=self.cropped)).batch(BATCH, batch_fn=collate)
        threads = grain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * WORKERS)
        yield from made.to_iter_dataset(threads)


def _grain_sample(row: Item, cropped: bool) -> Item:
    return sample(row["item"], scaled(row["array"]), cropped)


class HubNifti(Loader):
    """`load_dataset` of the release itself, rows decoded by its Nifti feature."""

    short = ("full",)
    name, package = "datasets, Nifti", "datasets"

    def dataset(self) -> Any:
        from datasets import load_dataset

        return load_dataset(
            str(self.folder / "release"), "cropped" if self.cropped else "full", split="train"
        )

    def prepare(self) -> None:
        self.dataset()

    def batches(self) -> Iterable[Item]:
        dataset = self.dataset()
        key = "id" if self.cropped else "volume_id"
        place = {name: i for i, name in enumerate(dataset[key])}
        volumes = dataset.select_columns(["volume"])
        return self.indexed(lambda item: scaled(np.asanyarray(volumes[place[item[key]]]["volume"].dataobj).T))


class HubArray(Loader):
    """Whole volumes as Array3D, which needs one shape for all, in the numpy format; regions are cut out."""

    short = ("cropped", "full")
    name, package = "datasets, Array3D", "datasets"

    def __init__(self, folder: Path, protocol: str) -> None:
        super().__init__(folder, protocol)
        self.form = folder / "forms" / "HubArray"

    def write(self, out: Path) -> None:
        from datasets import Array3D, Dataset, Features, Value

        groups = by_volume(self.folder)
        shape = voxels(self.folder / groups[0][0]["image"]).shape
        features = Features({"volume_id": Value("string"), "volume": Array3D(shape, "uint16")})
        names = {"folder": self.folder, "names": [(g[0]["volume_id"], g[0]["image"]) for g in groups]}
        made = Dataset.from_generator(
            _rows, gen_kwargs=names, features=features, writer_batch_size=1, cache_dir=str(out / "cache")
        )
        made.save_to_disk(str(out))

    def batches(self) -> Iterable[Item]:
        from datasets import load_from_disk

        dataset = load_from_disk(str(self.form))
        place = {name: i for i, name in enumerate(dataset["volume_id"])}
        volumes = dataset.select_columns(["volume"]).with_format("numpy")

        def volume(item: Item) -> torch.Tensor:
            whole = volumes[place[item["volume_id"]]]["volume"]
            return scaled(cut(whole, item) if self.cropped else whole)

        return self.indexed(volume)


def _rows(folder: Path, names: list[tuple[str, str]]) -> Iterator[Item]:
    for name, image in names:
        yield {"volume_id": name, "volume": voxels(folder / image)}


class Mosaic(Loader):
    """MDS shards. No documented way to serve one stored volume for many questions."""

    name, package, protocols = "Mosaic Streaming", "mosaicml-streaming", ("cropped", "once")

    def write(self, out: Path) -> None:
        from streaming import MDSWriter

        key = "crop_file" if self.cropped else "image"
        with MDSWriter(
            out=str(out), columns={"item": "json", "volume": "ndarray:uint16"}, compression=None
        ) as writer:
            for item in items(self.folder, self.content):
                writer.write({"item": item, "volume": voxels(self.folder / item[key])})

    def batches(self) -> Iterable[Item]:
        from streaming import StreamingDataset

        cropped = self.cropped

        class Volumes(StreamingDataset):
            def __getitem__(self, index: Any) -> Item:
                row = super().__getitem__(index)
                return sample(row["item"], scaled(row["volume"]), cropped)

        data = Volumes(local=str(self.form), shuffle=True, batch_size=BATCH)
        return DataLoader(
            data, batch_size=BATCH, num_workers=WORKERS, collate_fn=collate, persistent_workers=True
        )


PEERS: tuple[type[Loader], ...] = (
    Upstream,
    MonaiPersistent,
    MonaiCache,
    TorchIO,
    WebData,
    WebDataZst,
    LitData,
    Grain,
    HubNifti,
    HubArray,
    Mosaic,
)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
