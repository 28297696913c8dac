"""Rows in, a batch of tensors out.

    collator = Collator(fit="resize", grid=(32, 64, 64), dtype="bfloat16")
    batch = collator(rows)                      # rows of `cropped`, or quintuples of reasonknee.stream
    batch.volumes, batch.boxes, batch.grades    # (B, 1, 32, 64, 64), boxes in its voxels, a grade for each attribute
    batch.to_voxels(predicted)                  # back to voxels of the full volumes

Importing this needs no torch; calling a Collator does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee import answers
from reasonknee.boxes import Shape
from reasonknee.collate.batch import IGNORED, Batch, Frames, Place
from reasonknee.collate.buffers import Here, Take
from reasonknee.collate.intensity import Again, Scratch, WindowChoice, Windowing, fill
from reasonknee.collate.samples import Row, Sample, as_box, flat, full_shape, kind_of, sample_of, without_repeats
from reasonknee.embeddings import EMBEDDING_DTYPES
from reasonknee.errors import DataError, UsageError, needed_torch
from reasonknee.prompts import WORDINGS
from reasonknee.questions import ATTRIBUTES, question

if TYPE_CHECKING:
    import torch

FITS = ("pad", "resize", "native")
DTYPES = ("float32", "bfloat16", "float16")
BUFFERS = ("fresh", "ring")


def frames(row: Row, count: int | None = None, window: WindowChoice = "paper", mirror_left: bool = False) -> Frames:
    """Slices of a row's volume as a clip, evenly spaced from the first to the last; one is the middle one. All of them without a count."""
    return _frames(sample_of(row, mirror_left), count, Windowing(window))


def _frames(sample: Sample, count: int | None, windowing: Windowing) -> Frames:
    torch = needed_torch()
    if sample.array is None:
        raise DataError("G017", f"{sample.row['id']}: no volume to take frames from", "leave rows without a box out")
    slices = len(sample.array)
    if count is not None and count < 1:
        raise UsageError("G020", f"frames={count}", "a clip has one frame or more")
    picked = np.linspace(0, slices - 1, min(count or slices, slices)).round().astype(int) if count != 1 else np.array([slices // 2])
    if sample.mirrored:
        picked = picked[::-1]
    window = windowing.of(sample.volume_id, sample.crop, sample.array)
    if window is None:
        raise UsageError("G001", "frames without an intensity window", "choose one: eight bits need to know what is black and what is white")
    grey = torch.empty((len(picked), *sample.array.shape[1:]), dtype=torch.float32)
    fill(grey, sample.array[picked], window, Scratch())
    pixels = grey.mul_(255).round_().to(torch.uint8).numpy()
    return Frames(np.repeat(pixels[..., None], 3, axis=3), [int(i) + sample.crop.z0 for i in picked])


def completion(row: Row) -> str:
    """What a model should say: the reasoning, then the answer in the project's form, its box in voxels of the full volume."""
    asked = question(row["question_id"])
    grades = {a.id: row["grades"][a.id] for a in asked.attributes}
    return "\n".join([*row["reasoning"], answers.write(asked, grades, as_box(row["box"]))])


# --- many rows --------------------------------------------------------------------------------------------------------------------


class Collator:
    """Call it with a list of rows, or of the items of `stream.volumes`, whose quintuples share their volume's tensor.

    fit          "pad" to the largest of the batch, or to `grid`; "resize" (trilinear) to `grid`; "native" for rows of one shape
    dtype        of the volumes: float32, bfloat16 or float16
    window       "paper" (clip at 400), "percentile", (lo, hi), {volume id: (lo, hi)}, or None for the voxels' own values
    mirror_left  left knees as right ones: slices in reverse, boxes with them
    require_box  a row without a box is an error; else its box_mask is false, and a missing volume is zeros of size 0
    share        quintuples on the same voxels share one tensor; `volume_index` says which is whose
    frames       this many slices of each volume as uint8 (T, H, W, 3) as well
    tokenizer    a Hugging Face tokenizer: adds input_ids, attention_mask and labels of prompt (`wording`) and completion
    buffers      "fresh": memory that nothing refers to any more, so that a batch lasts as long as you hold it or a view of it; or a "ring" of
                 `ring_size` that are written again in turn: a batch is good only until ring_size - 1 more were made
    """

    def __init__(
        self,
        *,
        fit: str = "pad",
        grid: Shape | None = None,
        dtype: str = "float32",
        window: WindowChoice = "paper",
        mirror_left: bool = False,
        require_box: bool = True,
        share: bool = False,
        frames: int | None = None,
        tokenizer: Callable[..., Any] | None = None,
        wording: str = "zero_shot",
        buffers: str = "fresh",
        ring_size: int = 4,
    ) -> None:
        for name, value, choices in (("fit", fit, FITS), ("dtype", dtype, DTYPES), ("wording", wording, WORDINGS), ("buffers", buffers, BUFFERS)):
            if value not in choices:
                raise UsageError("G020", f"{name}={value!r}", f"choose one of {', '.join(choices)}")
        if (grid is None) if fit == "resize" else (grid is not None and fit == "native"):
            raise UsageError("G021", f"fit={fit!r} with grid={grid}", '"resize" needs a grid, "native" takes none')
        if grid is not None and (len(grid) != 3 or not all(isinstance(n, int) and n > 0 for n in grid)):
            raise UsageError("G021", f"a grid of {grid}", "three positive sizes, z, y and x")
        if ring_size < 2 or (frames is not None and frames < 1):
            raise UsageError("G020", f"ring_size={ring_size}, frames={frames}", "a ring has two buffers or more, a clip one frame or more")
        self.fit, self.grid, self.dtype, self.windowing, self.mirror_left = fit, grid, dtype, Windowing(window), mirror_left
        self.require_box, self.share, self.frames, self.tokenizer, self.wording = require_box, share, frames, tokenizer, wording
        self.ring_size = ring_size if buffers == "ring" else 0
        self._ring: list[torch.Tensor] = []
        self._turn = 0
        self._scratch, self._again = Scratch(), Again()
        self._fresh = Here()

    def __call__(self, items: Sequence[Row]) -> Batch:
        return self.collate(items)

    def collate(self, items: Sequence[Row], take: Take | None = None) -> Batch:
        """A batch; its volumes are written into memory that `take` gives, by default such as nothing refers to."""
        torch = needed_torch()
        rows, by_volume = flat(items)
        kind = kind_of(rows)
        if self.mirror_left and kind == "embedding":
            raise UsageError("G022", "mirror_left with embeddings", "an embedding cannot be mirrored; mirror the volumes before they are embedded")
        samples = [sample_of(row, self.mirror_left) for row in rows]
        if self.require_box:
            lost = [s.row["id"] for s in samples if s.box is None]
            if lost:
                more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
                raise DataError("G018", f"no box: {', '.join(lost[:3])}{more}", "filter such rows out, or collate with require_box=False")
        distinct, index = without_repeats(samples) if self.share or by_volume else (samples, list(range(len(samples))))
        batch = self._annotations(samples, [self._place(s) for s in samples], torch.tensor(index))
        batch.items = len(items)
        if kind == "volume":
            batch.volumes, batch.sizes = self._volumes(distinct, take or self._fresh)
            if self.frames is not None:
                batch.frames = [None if s.array is None else _frames(s, self.frames, self.windowing) for s in distinct]
        elif kind == "embedding":
            batch.embeddings = _embeddings(distinct)
        if self.tokenizer is not None:
            batch.input_ids, batch.attention_mask, batch.labels = self._tokens(self.tokenizer, samples)
        return batch

    # --- what is known of a quintuple besides its voxels

    def _place(self, sample: Sample) -> Place:
        factor = (1.0, 1.0, 1.0)
        if self.fit == "resize" and self.grid and sample.array is not None:
            z, y, x = (to / of for to, of in zip(self.grid, sample.crop.shape, strict=True))
            factor = (z, y, x)
        return Place.of(sample.crop, full_shape(sample.row), factor, sample.mirrored)

    def _annotations(self, samples: list[Sample], places: list[Place], index: torch.Tensor) -> Batch:
        import torch

        rows = [s.row for s in samples]
        corners = [(s.box.start, s.box.stop) if s.box else ((0, 0, 0), (0, 0, 0)) for s in samples]
        edges = np.array(corners, np.float64).transpose(0, 2, 1)
        scale, shift = (np.array([getattr(p, name) for p in places], np.float64)[:, :, None] for name in ("scale", "shift"))
        found = np.array([s.box is not None for s in samples])
        boxes = np.sort(edges * scale + shift, axis=-1).reshape(len(rows), 6) * found[:, None]  # a mirrored axis swaps its two ends
        graded = [row.get("grades") or {} for row in rows]
        grades = np.array([[IGNORED if (g := given.get(name)) is None else g for name in ATTRIBUTES] for given in graded], np.int64)
        asked = [row.get("question") or {} for row in rows]
        return Batch(
            ids=[row["id"] for row in rows],
            volume_ids=[row["volume_id"] for row in rows],
            question_ids=[row["question_id"] for row in rows],
            zero_shot=[words.get("zero_shot") for words in asked],
            instruction=[words.get("instruction") for words in asked],
            reasoning=[list(row.get("reasoning") or ()) for row in rows],
            places=places,
            boxes=torch.from_numpy(boxes.astype(np.float32)),
            box_mask=torch.from_numpy(found),
            grades=torch.from_numpy(grades),
            grade_mask=torch.from_numpy(grades != IGNORED),
            volume_index=index,
        )

    # --- voxels

    def _volumes(self, samples: list[Sample], take: Take) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        shapes = [s.crop.shape if s.array is not None else (0, 0, 0) for s in samples]
        grid = self._grid(samples, shapes)
        volumes = self._empty((len(samples), 1, *grid), take)
        for out, sample in zip(volumes[:, 0], samples, strict=True):
            if sample.array is None:
                out.zero_()
                continue
            array = sample.array[::-1] if sample.mirrored else sample.array
            window = self.windowing.of(sample.volume_id, sample.crop, sample.array)
            if self.fit == "resize":
                source = torch.empty(array.shape, dtype=torch.float32)
                fill(source, array, window, self._scratch)
                out.copy_(torch.nn.functional.interpolate(source[None, None], size=grid, mode="trilinear", align_corners=False)[0, 0])
                continue
            z, y, x = array.shape
            self._again.fill(out[:z, :y, :x], sample.array, sample.mirrored, window, self._scratch)
            for rest in (out[z:], out[:z, y:], out[:z, :y, x:]):  # only the padding: the voxels are written once
                rest.zero_()
        sizes = [grid if self.fit == "resize" and any(shape) else shape for shape in shapes]
        return volumes, torch.tensor(sizes)

    def _grid(self, samples: list[Sample], shapes: list[Shape]) -> Shape:
        if self.fit == "native" and len(set(shapes)) > 1:
            raise DataError(
                "G030", f"shapes {sorted(set(shapes))[:4]} in one batch", "reasonknee.collate.loading.bucket_by_shape groups rows of one shape"
            )
        if self.grid is None:
            z, y, x = (max(1, max(sizes)) for sizes in zip(*shapes, strict=True))
            return (z, y, x)
        if self.fit == "pad":
            for sample, shape in zip(samples, shapes, strict=True):
                if any(n > most for n, most in zip(shape, self.grid, strict=True)):
                    raise DataError(
                        "G031", f"{sample.row['id']}: a crop of {shape} does not fit the grid {self.grid}", "a larger grid, or fit='resize'"
                    )
        return self.grid

    def _empty(self, shape: tuple[int, ...], take: Take) -> torch.Tensor:
        import torch

        dtype: torch.dtype = getattr(torch, self.dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        if not self.ring_size:
            return take(size).view(dtype).view(shape)
        if len(self._ring) < self.ring_size:
            self._ring.append(take(size))
            self._turn = len(self._ring) - 1
        else:
            self._turn = (self._turn + 1) % self.ring_size
            if len(self._ring[self._turn]) < size:
                self._ring[self._turn] = take(size)
        return self._ring[self._turn][:size].view(dtype).view(shape)

    # --- text

    def _tokens(self, tokenizer: Callable[..., Any], samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prompt and completion are tokenised apart, so that the loss starts exactly where the completion does."""
        import torch

        end = getattr(tokenizer, "eos_token_id", None)
        pad = getattr(tokenizer, "pad_token_id", None)
        pairs = []
        for s in samples:
            prompt = (s.row.get("question") or {}).get(self.wording)
            if prompt is None:
                raise DataError("G040", f"{s.row['id']}: no {self.wording} wording", "these rows were built or streamed without it")
            asked = list(tokenizer(prompt + "\n")["input_ids"])
            if end is not None and asked and asked[-1] == end:
                asked.pop()  # some tokenizers end every text
            missing = [name for name in ("grades", "reasoning", "box") if name not in s.row]
            if missing:
                raise DataError("G013", f"{s.row['id']}: no field {missing[0]!r}", "tokens of an answer need it: stream this column too")
            told = list(tokenizer(completion(s.row), add_special_tokens=False)["input_ids"])
            pairs.append((asked, told if end is None else [*told, end]))
        longest = max(len(a) + len(b) for a, b in pairs)
        ids = torch.full((len(pairs), longest), pad if pad is not None else end or 0)
        attention, labels = torch.zeros_like(ids), torch.full_like(ids, IGNORED)
        for i, (asked, told) in enumerate(pairs):
            n = len(asked) + len(told)
            ids[i, :n] = torch.tensor(asked + told)
            attention[i, :n] = 1
            labels[i, len(asked) : n] = torch.tensor(told)
        return ids, attention, labels


def _embeddings(samples: list[Sample]) -> torch.Tensor:
    import torch

    tensors = []
    for s in samples:
        array, dtype = np.asarray(s.row["embedding"]), s.row.get("embedding_dtype", "float16")
        if array.ndim != 2 or dtype not in EMBEDDING_DTYPES:
            raise DataError(
                "G050",
                f"{s.row['id']}: an embedding of shape {array.shape} and type {dtype}",
                "reasonknee.stream gives the embedding as (tokens, width)",
            )
        bits = np.array(array)  # own memory: a row's may be read-only
        tensors.append(torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(bits))
    if len({t.shape for t in tensors}) > 1:
        raise DataError("G051", f"embeddings of shapes {sorted({tuple(t.shape) for t in tensors})} in one batch", "use the embeddings of one encoder")
    return torch.stack(tensors)
