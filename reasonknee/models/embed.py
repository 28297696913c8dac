"""Volumes through a model's vision tower, once: what `build` takes into the config `embeddings`, and what
training can start from without the tower.

    embed(Embedding(release, local, View("even:80")), Path("embeddings.h5"))

Each volume is a small file of its own until all are there, so a run can be killed, goes on where it stopped,
and can be spread over array jobs. The last step puts them into one file and needs their size on disk a second
time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.errors import DataError, UsageError
from reasonknee.layout import read_manifest, release_folder
from reasonknee.models import qwen
from reasonknee.models.local import Local
from reasonknee.models.views import Showing, View
from reasonknee.stream import volumes
from reasonknee.system.files import whole
from reasonknee.system.folders import claim, clear, refuse_links
from reasonknee.system.progress import Progress, silent
from reasonknee.version import VERSION
from reasonknee.volumes import Grid, Volume
from reasonknee.volumes.embeddings import EmbeddingFile

DTYPES = ("bfloat16", "float16")


@dataclass(frozen=True)
class Size:
    """What embedding a release takes, told before it is done."""

    volumes: int
    tokens: int
    width: int

    @property
    def nbytes(self) -> int:
        return 2 * self.volumes * self.tokens * self.width

    def __str__(self) -> str:
        return (
            f"{self.volumes:,} volumes of {self.tokens:,} tokens x {self.width:,} numbers: "
            f"{self.nbytes / 1e9:,.2f} GB, and as much again for the last step"
        )


def showing_of(item: dict[str, Any], local: Local, view: View) -> Showing:
    volume = Volume(item["volume"], Grid(item["volume"].shape, item["affine"]))
    return local.fitted(view.show(volume, item["side"]))


def width_of(local: Local) -> int:
    """Numbers of a token: those of the tower's output, and of the layers that Qwen3-VL hands deeper in."""
    config = local.model.config
    levels = len(getattr(config.vision_config, "deepstack_visual_indexes", None) or ())
    return int(config.text_config.hidden_size) * (1 + levels)


def size_of(release: str, local: Local, view: View) -> Size:
    """By the first volume; those of another size differ."""
    manifest = read_manifest(release_folder(release))
    split = next(iter(manifest.volumes))
    first = next(iter(volumes(release, "full", split, seed=None, batch_size=1)))
    packed = local.packed(showing_of(first, local, view))
    tokens = int(packed.grids.prod(1).sum()) // local.family.merge**2
    return Size(sum(manifest.volumes.values()), tokens, width_of(local))


def embedded(local: Local, packed: qwen.Packed) -> Any:
    """(tokens, width) of one volume: the tower's output and, side by side, what goes deeper in."""
    import torch

    core = _core(local.model)
    given = local.inputs(packed)
    with torch.inference_mode():
        if packed.kind == "video":
            made = core.get_video_features(*given.values(), return_dict=True)
        else:
            made = core.get_image_features(*given.values(), return_dict=True)
        parts = [torch.cat(list(made.pooler_output))]
        parts += [torch.cat(list(level)) for level in getattr(made, "deepstack_features", None) or ()]
        return torch.cat(parts, -1)


def encoder_outputs(local: Local, matrix: Any, grids: Any) -> dict[str, Any]:
    """What the model's forward takes in place of the pixels of a video."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    width = local.model.config.text_config.hidden_size
    merge = local.family.merge**2
    counts = [int(grid.prod()) // merge for grid in grids]
    parts = [matrix[:, i : i + width].split(counts) for i in range(0, matrix.shape[1], width)]
    if len(parts) == 1:
        return {"video": BaseModelOutputWithPooling(pooler_output=list(parts[0]))}
    from transformers.models.qwen3_vl.modeling_qwen3_vl import BaseModelOutputWithDeepstackFeatures

    return {
        "video": BaseModelOutputWithDeepstackFeatures(
            pooler_output=list(parts[0]), deepstack_features=[list(part) for part in parts[1:]]
        )
    }


def _core(model: Any) -> Any:
    """The model inside an adapter."""
    return getattr(model, "base_model", model).model if not hasattr(model, "get_video_features") else model


@dataclass(frozen=True)
class Embedding:
    """What is embedded, and how it is stored."""

    release: str
    local: Local
    view: View
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise UsageError("N080", f"embeddings of {self.dtype!r}", f"one of {', '.join(DTYPES)}")


def embed(job: Embedding, out: Path, part: int = 1, of: int = 1, progress: Progress = silent) -> Path | None:
    """Embeds every `of`-th volume, from number `part` on; the job without others puts all into one file, if
    all are there. None for a job that is one of many."""
    if os.path.lexists(out):
        raise UsageError("N081", f"{out} exists", "choose a new file, or remove it")
    if not 1 <= part <= of:
        raise UsageError("N082", f"part {part} of {of}", "parts count from 1: --shard 1/8 to --shard 8/8")
    manifest = read_manifest(release_folder(job.release))
    total = sum(manifest.volumes.values())
    parts = out.with_name(out.name + ".parts")
    # a part that another model, view or release left is none of this file's
    claim(parts, f"embeddings of {manifest.sources} by {job.local.about} as {job.view}, {job.dtype}")
    refuse_links(parts)
    for number, item in enumerate(_items(job.release, list(manifest.volumes))):
        progress("embedding", number + 1, total)
        path = parts / f"{item['volume_id']}.h5"
        if number % of == part - 1 and not path.exists():
            _write(job, item, path)
    if of > 1:
        return None
    _join(parts, out, total)
    clear(parts, "*.h5")
    return out


def _items(release: str, splits: list[str]) -> Iterator[dict[str, Any]]:
    for split in splits:
        yield from volumes(release, "full", split, seed=None, batch_size=1)


def _write(job: Embedding, item: dict[str, Any], path: Path) -> None:
    import h5py
    import torch

    showing = showing_of(item, job.local, job.view)
    packed = job.local.packed(showing)
    matrix = embedded(job.local, packed).to(getattr(torch, job.dtype)).cpu()
    if not torch.isfinite(matrix).all():
        hint = "use --dtype bfloat16, whose range is larger"
        raise DataError("N083", f"{item['volume_id']}: its embedding is not finite in {job.dtype}", hint)
    array = matrix.view(torch.int16).numpy().view(np.uint16) if job.dtype == "bfloat16" else matrix.numpy()
    window = job.view.window_of(item["volume"])
    with whole(path) as temporary, h5py.File(temporary, "w", track_order=True) as file:
        data = file.create_dataset(item["volume_id"], data=array, track_times=False)
        if job.dtype == "bfloat16":
            data.attrs["dtype"] = "bfloat16"
        if packed.kind == "video":
            data.attrs["grid"] = [int(n) for n in packed.grids[0]]
        data.attrs["slices"] = list(showing.slices)
        data.attrs["fps"] = qwen.FPS
        data.attrs["window"] = [float(window.lo), float(window.hi)]
        data.attrs["model"] = str(job.local.about.get("model"))
        if job.local.about.get("revision"):
            data.attrs["revision"] = str(job.local.about["revision"])
        data.attrs["versions"] = versions()


def versions() -> str:
    import torch
    import transformers

    return f"reasonknee {VERSION}, torch {torch.__version__}, transformers {transformers.__version__}"


def _join(parts: Path, out: Path, total: int) -> None:
    """One file of all; each is read back through the gate."""
    import h5py

    files = sorted(parts.glob("*.h5"))
    if len(files) != total:
        hint = "run the jobs that are missing, then this command again"
        raise DataError("N084", f"{len(files)} of {total} volumes are embedded", hint)
    with whole(out) as temporary:
        with h5py.File(temporary, "w", libver="latest") as joined:
            for path in files:
                with h5py.File(path) as one:
                    one.copy(path.stem, joined)
        with EmbeddingFile(temporary) as check:
            for path in files:
                check.check(path.stem)
