"""Questions of a release into a training loop, by the same stream as quintuples: an order that a seed fixes,
shared out over ranks without overlap, resumed exactly.

    stream = questions("release", "slices", "train", tasks="localization", seed=0)
    for batch in loader(stream, FrameCollator(), 8): ...        # reasonknee.collate.loader

A served question is a dict with the fields of `qa` and, from `slices` and `volumes`, `image`, a uint8 array
(frames, rows, columns), and `start`, the array index of its first frame. Questions on one volume share its
array. `scans` serves volume by volume: {"volume_id", "image", "start", "questions": [...]}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reasonknee.errors import DataError, UsageError
from reasonknee.layout.places import release_folder
from reasonknee.layout.sgmri import ALL_TASKS, ANATOMIES, LEVELS, QA, QaManifest, read_qa_manifest
from reasonknee.sgmri.images import MOST_PIXELS
from reasonknee.stream import Stream
from reasonknee.stream.entries import Entry, Rows
from reasonknee.stream.folder import Folder
from reasonknee.stream.order import Even, Mix
from reasonknee.stream.parquet import Bounds, Wanted
from reasonknee.stream.plan import by_question, by_volume
from reasonknee.stream.ranks import Ranks, given_part
from reasonknee.stream.served import Opened
from reasonknee.stream.shown import ShownRow
from reasonknee.stream.streams import Settings

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
_TEXT = 1 << 22  # bytes of a row without its pixels: those of a volume hold all its questions
_NESTED = "questions.list.element."
_PLANNED = ("id", "anatomy", "level", "task")


@dataclass(frozen=True)
class Choosing:
    """Which questions are wanted: those of some anatomies, levels and tasks; None for all."""

    anatomies: frozenset[str] | None = None
    levels: frozenset[str] | None = None
    tasks: frozenset[str] | None = None

    def takes(self, row: Row) -> bool:
        pairs = (("anatomy", self.anatomies), ("level", self.levels), ("task", self.tasks))
        return all(wanted is None or row[name] in wanted for name, wanted in pairs)


# Keywords, as those of `reasonknee.stream.quintuples`: what is asked for goes on as `Choosing`, and its order
# as `Settings`.
def questions(
    release: str | Path,
    config: str = "slices",
    split: str = "train",
    *,
    anatomies: str | Iterable[str] | None = None,
    levels: str | Iterable[str] | None = None,
    tasks: str | Iterable[str] | None = None,
    seed: int | None = None,
    batch_size: int | None = None,
    lanes: int = 8,
    pool: int = 16,
    ranks: Ranks | None = None,
    even: Even | None = None,
    whole: bool = False,
) -> Stream:
    """One dict per question. `anatomies`, `levels` and `tasks` narrow it; the other options are those of
    `reasonknee.stream.quintuples`."""
    chosen = Choosing(
        _names("anatomy", anatomies, ANATOMIES),
        _names("level", levels, LEVELS),
        _names("task", tasks, ALL_TASKS),
    )
    source = QaSource(release_folder(release, configs=[config]), config, split, chosen)
    plan = (by_volume if whole else by_question)(source.entries)
    if not plan.groups:
        raise UsageError(
            "Z051", f"nothing in {config}/{split} is selected", "check anatomies, levels and tasks"
        )
    part = given_part(None, None, ranks)
    mix = Mix(lanes, pool, batch_size or 1)
    known = batch_size is not None
    return Stream(
        source, plan, Settings(seed=seed, mix=mix, part=part, ranks=ranks, even=even, batch_known=known)
    )


def scans(release: str | Path, split: str = "train", **options: Any) -> Stream:
    """One item per volume with `questions`, the list of all that is asked of it."""
    return questions(release, "volumes", split, whole=True, **options)


def _names(what: str, given: str | Iterable[str] | None, legal: Sequence[str]) -> frozenset[str] | None:
    if given is None:
        return None
    names = frozenset([given] if isinstance(given, str) else given)
    if unknown := sorted(names - set(legal)):
        raise UsageError("Z050", f"unknown {what} {unknown[0][:40]!r}", f"choose among {', '.join(legal)}")
    return names


class OpenedScan(Opened):
    """The questions of one volume by their ids, with the pixels that each is shown."""

    def __init__(self, rows: Sequence[Row], images: Sequence[np.ndarray | None]) -> None:
        super().__init__([], None, "")
        self.asked = {row["id"]: (row, image) for row, image in zip(rows, images, strict=True)}

    def quintuple(self, question_id: str) -> ShownRow:
        row, image = self.asked[question_id]
        if image is None:
            return ShownRow(row)
        start = row["frame"] if len(image) == 1 and row["frame"] else 0
        return ShownRow({**row, "image": image, "start": start})

    def together(self, questions: Sequence[str]) -> Row:
        asked = [self.quintuple(id_) for id_ in questions]
        about = {name: asked[0][name] for name in ("volume_id", "anatomy", "patient", "image", "start")}
        own = [{k: v for k, v in q.items() if k not in ("image", "start")} for q in asked]
        return {**about, "questions": own}


class QaSource:
    """The shards of one config and split, as `reasonknee.stream` reads them."""

    remote = False

    def __init__(self, folder: Path, config: str, split: str, chosen: Choosing) -> None:
        manifest: QaManifest = read_qa_manifest(folder)
        stored = manifest.of(config, split)
        if not stored:
            have = ", ".join(sorted({f"{s.config}/{s.split}" for s in manifest.shards}))
            raise UsageError("Z052", f"the release has no {config}/{split}", f"it has {have}")
        self.config, self.shards = config, Folder(folder, stored)
        hashes = json.dumps([[s.path, s.sha256] for s in stored])
        self.identity = hashlib.sha256(hashes.encode()).hexdigest()[:16]
        self.entries = [e for n in range(len(stored)) for e in self._planned(n, chosen)]

    def _planned(self, number: int, chosen: Choosing) -> Iterator[Entry]:
        nested = self.config == "volumes"
        names = ["volume_id", *(f"{_NESTED}{n}" if nested else n for n in _PLANNED)]
        groups = range(self.shards.footer(number).num_row_groups)
        bounds = Bounds(_TEXT)
        for group in groups:
            table = self.shards.read(Wanted(number, [group], names), bounds)[0].table
            first = 0
            for volume, run in groupby(table.to_pylist(), key=lambda row: row["volume_id"]):
                rows = list(run)
                asked = [q for row in rows for q in row.get("questions", [row]) if chosen.takes(q)]
                if asked:
                    place = Rows(number, group, first, len(rows))
                    yield Entry(volume, tuple(q["id"] for q in asked), (place,))
                first += len(rows)

    def open(self, entry: Entry, margin_mm: float | None = None) -> OpenedScan:
        (place,) = entry.parts
        own = ["volume_id", "questions"] if self.config == "volumes" else [f.name for f in QA]
        if self.config != "qa":
            own += [f"image.{name}" for name in ("frames", "height", "width")]
        wanted = Wanted(place.shard, [place.group], own, "image" if self.config != "qa" else None)
        (read,) = self.shards.read(wanted, Bounds(_TEXT, _pixel_bytes))
        stop = place.first + place.many
        rows = read.table.slice(place.first, place.many).to_pylist()
        images: list[np.ndarray | None] = [None] * len(rows)
        if read.stored is not None:
            keys = read.stored.keys[place.first : stop]
            images = [
                _image(row, None if key is None else read.stored.values[key])
                for row, key in zip(rows, keys, strict=True)
            ]
        if self.config == "volumes":
            images = images * len(rows[0]["questions"])
            rows = rows[0]["questions"]
        found = {row["id"] for row in rows}
        if not set(entry.questions) <= found:
            where = self.shards.stored[place.shard].path
            raise DataError("D023", f"{where} holds other rows than {entry.volume_id} with its questions")
        return OpenedScan([{k: v for k, v in row.items() if k != "image"} for row in rows], images)


def _pixel_bytes(table: pa.Table) -> int:
    return sum(min(_size(row["image"]), MOST_PIXELS) for row in table.select(["image"]).to_pylist())


def _size(image: Row) -> int:
    return int(max(image["frames"], 0) * max(image["height"], 0) * max(image["width"], 0))


def _image(row: Row, data: Any) -> np.ndarray:
    image = row["image"]
    if data is None or len(memoryview(data)) != _size(image) or not _size(image):
        raise DataError(
            "Z053", f"{row['volume_id']}: its pixels are not as many as it says", "the release is damaged"
        )
    pixels = np.frombuffer(data, np.uint8).reshape(image["frames"], image["height"], image["width"])
    pixels.flags.writeable = False
    return pixels
