"""Rows in, a batch of tensors out.

    collator = Collator(fit="resize", grid=(32, 64, 64), dtype="bfloat16")
    batch = collator(rows)                      # rows of `cropped`, or quintuples of reasonknee.stream
    batch.volumes, batch.boxes, batch.grades    # (B, 1, 32, 64, 64), boxes in its voxels, a grade for each
    attribute batch.to_voxels(predicted)                  # back to voxels of the full volumes

Importing this needs no torch; calling a Collator does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee import answers
from reasonknee.boxes import Shape
from reasonknee.collate.batch import IGNORED, Batch, Frames, Place
from reasonknee.collate.geometry import Change, Transform
from reasonknee.collate.intensity import Again, Scratch, WindowChoice, Windowing, fill
from reasonknee.collate.samples import (
    Row,
    Sample,
    as_box,
    flat,
    full_shape,
    kind_of,
    sample_of,
    without_repeats,
)
from reasonknee.errors import DataError, UsageError, needed_torch
from reasonknee.questions import ATTRIBUTES, question, reasoning
from reasonknee.questions.prompts import WORDINGS
from reasonknee.system.memory import Recycled
from reasonknee.volumes.embeddings import EMBEDDING_DTYPES

if TYPE_CHECKING:
    import torch

FITS = ("pad", "resize", "native")
DTYPES = ("float32", "bfloat16", "float16")


def frames(
    row: Row, count: int | None = None, window: WindowChoice = "paper", mirror_left: bool = False
) -> Frames:
    """Slices of a row's volume as a clip, evenly spaced from the first to the last; one is the middle one.

    All of them without a count.
    """
    return _frames(sample_of(row, mirror_left), count, Windowing(window))


def _frames(sample: Sample, count: int | None, windowing: Windowing) -> Frames:
    torch = needed_torch()
    if sample.array is None:
        raise DataError(
            "G017", f"{sample.row['id']}: no volume to take frames from", "leave rows without a box out"
        )
    slices = len(sample.array)
    if count is not None and count < 1:
        raise UsageError("G020", f"frames={count}", "a clip has one frame or more")
    picked = (
        np.linspace(0, slices - 1, min(count or slices, slices)).round().astype(int)
        if count != 1
        else np.array([slices // 2])
    )
    if sample.mirrored:
        picked = picked[::-1]
    window = windowing.of(sample.volume_id, sample.crop, sample.array)
    if window is None:
        raise UsageError(
            "G001",
            "frames without an intensity window",
            "choose one: eight bits need to know what is black and what is white",
        )
    grey = torch.empty((len(picked), *sample.array.shape[1:]), dtype=torch.float32)
    fill(grey, sample.array[picked], window, Scratch())
    pixels = grey.mul_(255).round_().to(torch.uint8).numpy()
    return Frames(np.repeat(pixels[..., None], 3, axis=3), [int(i) + sample.crop.z0 for i in picked])


def completion(row: Row, wording: str = "zero_shot", mirrored: bool = False) -> str:
    """What a model should say: the reasoning, then the answer in the project's form, its box in voxels of
    the full volume; of the mirrored one, where that is what the model is shown. In the wording `region`,
    which asks for no box, neither place nor box is told. Grades that nobody knows are left out."""
    asked, boxed = question(row["question_id"]), wording != "region"
    grades = {a.id: g for a in asked.attributes if (g := row["grades"][a.id]) is not None}
    box, steps = as_box(row["box"]), list(row["reasoning"])
    if not boxed:
        steps = reasoning.in_region(asked, steps)
    elif mirrored:
        shape = full_shape(row)
        if shape is None:
            raise DataError("G013", f"{row['id']}: no field 'shape'", "a mirrored label needs it")
        box, steps = box and box.mirrored(shape[0]), [_mirrored(step, shape[0]) for step in steps]
    return "\n".join([*steps, answers.write(asked, grades, box, partial=True, boxed=boxed)])


_SLICES = re.compile(r"(\bslices?\s+)(\d+)(?:(\s*(?:to|through|and|[-–])\s*)(\d+))?", re.IGNORECASE)


_PLACED = re.compile(r"\b(slice|row|column)s?\b[^.]*\d", re.IGNORECASE)


def _mirrored(step: str, slices: int) -> str:
    """A sentence with the slices that it names counted from the other end."""

    def turned(match: re.Match[str]) -> str:
        word, first, between, last = match.groups()
        if last is None:
            return f"{word}{slices - 1 - int(first)}"
        return f"{word}{slices - 1 - int(last)}{between}{slices - 1 - int(first)}"

    return _SLICES.sub(turned, step)


# --- many rows ----------------------------------------------------------------------------------------------


class Collator:
    """Call it with a list of rows, or of the items of `stream.volumes`, whose quintuples share their volume's
    tensor.

    - fit: "pad" to the largest of the batch, or to `grid`; "resize" (trilinear) to `grid`; "native" for rows
      of one shape.
    - dtype: of the volumes, float32, bfloat16 or float16.
    - window: "paper" (clip at 400), "percentile", (lo, hi), {volume id: (lo, hi)}, or None for the voxels'
      own values.
    - mirror_left: left knees as right ones: slices in reverse, with them boxes and what a label says of both.
    - require_box: a row without a box is an error; else its box_mask is false, and a missing volume is zeros
      of size 0.
    - share: quintuples on the same voxels share one tensor; `volume_index` says which is whose.
    - frames: this many slices of each volume as uint8 (T, H, W, 3) as well.
    - transform: a function of a row that gives a row, before anything else: see `geometry`. Threads take
      turns in it.
    - seed: the transform is random: it is called with a row and a numpy Generator made of (seed, epoch, row).
    - tokenizer: a Hugging Face tokenizer: adds input_ids, attention_mask and labels of prompt (`wording`) and
      completion.

    A batch is written into memory that nothing refers to any more, so it lasts as long as you hold it or a
    view of it. Several threads may call one collator.
    """

    # Keywords: a user writes the two or three that differ from what most want.
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
        transform: Transform | None = None,
        seed: int | None = None,
    ) -> None:
        for name, value, choices in (
            ("fit", fit, FITS),
            ("dtype", dtype, DTYPES),
            ("wording", wording, WORDINGS),
        ):
            if value not in choices:
                raise UsageError("G020", f"{name}={value!r}", f"choose one of {', '.join(choices)}")
        if (grid is None) if fit == "resize" else (grid is not None and fit == "native"):
            raise UsageError(
                "G021", f"fit={fit!r} with grid={grid}", '"resize" needs a grid, "native" takes none'
            )
        if grid is not None and (len(grid) != 3 or not all(isinstance(n, int) and n > 0 for n in grid)):
            raise UsageError("G021", f"a grid of {grid}", "three positive sizes, z, y and x")
        if frames is not None and frames < 1:
            raise UsageError("G020", f"frames={frames}", "a clip has one frame or more")
        self.fit, self.grid, self.dtype, self.mirror_left = fit, grid, dtype, mirror_left
        self.windowing, self.require_box, self.share = Windowing(window), require_box, share
        self.frames, self.tokenizer, self.wording = frames, tokenizer, wording
        if seed is not None and (transform is None or type(seed) is not int or seed < 0):
            raise UsageError("G020", f"seed={seed!r}"[:80], "a whole number from 0 on, with a transform")
        self.change = None if transform is None else Change(transform, seed)
        self._memory, self._scratch, self._again = Recycled(), Scratch(), Again()

    def __repr__(self) -> str:
        mirrored = ", left knees mirrored" if self.mirror_left else ""
        changed = ", rows transformed" if self.change else ""
        labels = f", labels of {self.wording}" if self.tokenizer else ""
        to = f" to {self.grid}" if self.grid else ""
        return f"Collator: {self.fit}{to}, {self.dtype}{mirrored}{changed}{labels}"

    def __call__(self, items: Sequence[Row]) -> Batch:
        torch = needed_torch()
        rows, by_volume = flat(items)
        kind = kind_of(rows)
        if self.mirror_left and kind == "embedding":
            raise UsageError(
                "G022",
                "mirror_left with embeddings",
                "an embedding cannot be mirrored; mirror the volumes before they are embedded",
            )
        if self.change is not None:
            if self.share or by_volume:
                raise UsageError(
                    "G087", "a transform of rows that share a volume", "each row would change it: share=False"
                )
            rows = [self.change(row) for row in rows]
        samples = [sample_of(row, self.mirror_left) for row in rows]
        if self.require_box:
            lost = [s.row["id"] for s in samples if s.box is None]
            if lost:
                more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
                raise DataError(
                    "G018",
                    f"no box: {', '.join(lost[:3])}{more}",
                    "filter such rows out, or collate with require_box=False",
                )
        distinct, index = (
            without_repeats(samples) if self.share or by_volume else (samples, list(range(len(samples))))
        )
        batch = self._annotations(samples, [self._place(s) for s in samples], torch.tensor(index))
        if kind == "volume":
            batch.volumes, batch.sizes = self._volumes(distinct)
            if self.frames is not None:
                batch.frames = [
                    None if s.array is None else _frames(s, self.frames, self.windowing) for s in distinct
                ]
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
        scale, shift = (
            np.array([getattr(p, name) for p in places], np.float64)[:, :, None]
            for name in ("scale", "shift")
        )
        found = np.array([s.box is not None for s in samples])
        boxes = (
            np.sort(edges * scale + shift, axis=-1).reshape(len(rows), 6) * found[:, None]
        )  # a mirrored axis swaps its two ends
        graded = [row.get("grades") or {} for row in rows]
        grades = np.array(
            [[IGNORED if (g := given.get(name)) is None else g for name in ATTRIBUTES] for given in graded],
            np.int64,
        )
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

    def _volumes(self, samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        shapes = [s.crop.shape if s.array is not None else (0, 0, 0) for s in samples]
        grid = self._grid(samples, shapes)
        volumes = self._empty((len(samples), 1, *grid))
        for out, sample in zip(volumes[:, 0], samples, strict=True):
            if sample.array is None:
                out.zero_()
                continue
            array = sample.array[::-1] if sample.mirrored else sample.array
            window = self.windowing.of(sample.volume_id, sample.crop, sample.array, self.change is None)
            if self.fit == "resize":
                source = torch.empty(array.shape, dtype=torch.float32)
                fill(source, array, window, self._scratch)
                out.copy_(
                    torch.nn.functional.interpolate(
                        source[None, None], size=grid, mode="trilinear", align_corners=False
                    )[0, 0]
                )
                continue
            z, y, x = array.shape
            self._again.fill(out[:z, :y, :x], sample.array, sample.mirrored, window, self._scratch)
            for rest in (
                out[z:],
                out[:z, y:],
                out[:z, :y, x:],
            ):  # only the padding: the voxels are written once
                rest.zero_()
        sizes = [grid if self.fit == "resize" and any(shape) else shape for shape in shapes]
        return volumes, torch.tensor(sizes)

    def _grid(self, samples: list[Sample], shapes: list[Shape]) -> Shape:
        if self.fit == "native" and len(set(shapes)) > 1:
            raise DataError(
                "G030",
                f"shapes {sorted(set(shapes))[:4]} in one batch",
                "reasonknee.collate.loading.bucket_by_shape groups rows of one shape",
            )
        if self.grid is None:
            z, y, x = (max(1, max(sizes)) for sizes in zip(*shapes, strict=True))
            return (z, y, x)
        if self.fit == "pad":
            for sample, shape in zip(samples, shapes, strict=True):
                if any(n > most for n, most in zip(shape, self.grid, strict=True)):
                    raise DataError(
                        "G031",
                        f"{sample.row['id']}: a crop of {shape} does not fit the grid {self.grid}",
                        "a larger grid, or fit='resize'",
                    )
        return self.grid

    def _empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Memory that nothing refers to; in a worker process of a DataLoader such as the main process sees,
        too, which spares a copy."""
        import torch
        from torch.utils.data import get_worker_info

        dtype: torch.dtype = getattr(torch, self.dtype)
        size = int(np.prod(shape)) * dtype.itemsize
        shared = getattr(torch.UntypedStorage, "_new_shared", None)
        if get_worker_info() is None or shared is None:
            memory = torch.from_numpy(self._memory.take(size))
        else:
            memory = torch.empty(0, dtype=torch.uint8).set_(shared(size))
        return memory.view(dtype).view(shape)

    # --- text

    def _tokens(
        self, tokenizer: Callable[..., Any], samples: list[Sample]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Prompt and completion are tokenised apart, so that the loss starts exactly where the completion
        does."""
        import torch

        end = getattr(tokenizer, "eos_token_id", None)
        pad = getattr(tokenizer, "pad_token_id", None)
        pairs = []
        for s in samples:
            prompt = (s.row.get("question") or {}).get(self.wording)
            if prompt is None:
                raise DataError(
                    "G040",
                    f"{s.row['id']}: no {self.wording} wording",
                    "these rows were built or streamed without it",
                )
            asked = list(tokenizer(prompt + "\n")["input_ids"])
            if end is not None and asked and asked[-1] == end:
                asked.pop()  # some tokenizers end every text
            if s.row.get("moved") and any(_PLACED.search(step) for step in s.row.get("reasoning") or ()):
                raise DataError(
                    "G041",
                    f"{s.row['id']}: its reasoning names slices of the volume before its transform",
                    "leave geometry as it is where labels are text, or give rows without reasoning",
                )
            told_of = ("grades", "reasoning", "box", *(("shape",) if s.mirrored else ()))
            missing = [name for name in told_of if name not in s.row]
            if missing:
                raise DataError(
                    "G013",
                    f"{s.row['id']}: no field {missing[0]!r}",
                    "tokens of an answer need it: stream this column too",
                )
            words = completion(s.row, self.wording, s.mirrored)
            told = list(tokenizer(words, add_special_tokens=False)["input_ids"])
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
        tensors.append(
            torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
            if dtype == "bfloat16"
            else torch.from_numpy(bits)
        )
    if len({t.shape for t in tensors}) > 1:
        raise DataError(
            "G051",
            f"embeddings of shapes {sorted({tuple(t.shape) for t in tensors})} in one batch",
            "use the embeddings of one encoder",
        )
    return torch.stack(tensors)
