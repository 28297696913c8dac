"""`reasonknee ask` on a release of SGMRI-VQA: the same views, engines, journal and ledger as for knees.

A question on a volume is shown all frames that the view chooses, one on a slice its frame alone, as an image.
Frames have the numbers that the texts of the record give them. Predictions carry the words, and the boxes in
pixels of the stored image, whatever form the model used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import numpy as np

from reasonknee.boxes import Box
from reasonknee.collate.intensity import Window
from reasonknee.errors import DataError, UsageError
from reasonknee.layout.manifest import FILE_NAME
from reasonknee.layout.places import release_folder
from reasonknee.models.command import Asking, dry_run, engine_for, probed
from reasonknee.models.journal import Journal
from reasonknee.models.ledger import Prices
from reasonknee.models.plan import Choice, Job, Knee, Request, Row, sampled
from reasonknee.models.requests import digest
from reasonknee.models.run import estimate, run, told, versions_of
from reasonknee.models.servers import Servers
from reasonknee.models.views import Outline, Showing, View, blank
from reasonknee.sgmri.answers import Image, Said, read
from reasonknee.sgmri.prompts import SYSTEM, Form, asked, form_named
from reasonknee.sgmri.records import Record, record_of
from reasonknee.sgmri.stream import Choosing, QaSource
from reasonknee.system.files import sha256_of
from reasonknee.volumes import Grid, Volume

ALL_SHADES = Window(0, 255)  # frames are bytes already, as the release renders them
_CONTROLS = (None, "blank", "text")


@dataclass(frozen=True)
class QaRow(Row):
    """A question that is asked. `knee` is its volume, whichever part of the body that shows."""

    record: Record = None  # type: ignore[assignment]


class Read(NamedTuple):
    """What a text answers, and whether it could be read, for the ledger."""

    said: Said
    status: str


def scan_of(image: np.ndarray) -> Volume:
    """Frames as a volume: nothing is known of where they lie in the body."""
    return Volume(image, Grid(tuple(image.shape), np.eye(4)))  # type: ignore[arg-type]


def view_of(record: Record, view: View) -> tuple[View, Box | None]:
    """What is shown for a question: the volume as the view has it, or its frame as an image."""
    if record.frame is None or record.shape is None:
        return view, None
    _, height, width = record.shape
    crop = Box(record.frame, record.frame + 1, 0, height, 0, width)
    return replace(view, slices="all", kind="images"), crop


def numbers_of(record: Record, outline: Outline) -> list[int]:
    return [z + record.first_frame for z in outline.slices]


class QaPlan:
    """The requests of a run, as `models.plan.Plan` has those on knees."""

    def __init__(
        self,
        source: QaSource,
        rows: Sequence[QaRow],
        choice: Choice,
        form: Form,
        about: dict[str, Any],
        sized: Callable[[Outline], Outline],
        fitted: Callable[[Showing], Showing],
    ) -> None:
        plain = choice.setting in ("zero_shot", "instruction") and not choice.parameters.grammar
        if choice.control not in _CONTROLS or not plain:
            hint = "SGMRI-VQA is asked zero_shot, plainly or with --control blank or text, without --grammar"
            raise UsageError("Z061", f"setting {choice.setting}, control {choice.control or 'none'}", hint)
        self.source, self.rows, self.choice, self.form = source, rows, choice, form
        self.about, self.sized, self.fitted = about, sized, fitted
        self.boxes = None

    def jobs(self, step: str, journal: Journal) -> Iterator[Job]:
        """What is left to ask, volume by volume, its frames after it."""
        left: dict[str, dict[tuple[str, Box | None], list[Request]]] = {}
        for row in self.rows:
            request = self.request(step, row, journal)
            if request.key not in journal.answers:
                kind = view_of(row.record, self.choice.view)[0].kind
                crop = request.outline.crop if request.outline else None
                left.setdefault(row.record.volume_id, {}).setdefault((kind, crop), []).append(request)
        entries = {e.volume_id: e for e in self.source.entries}
        for volume_id, scenes in left.items():
            if self.choice.control == "text":
                for requests in scenes.values():
                    yield Job(volume_id, None, tuple(requests))
                continue
            entry = entries[volume_id]
            image = self.source.open(entry).quintuple(entry.questions[0])["image"]
            volume = blank(scan_of(image)) if self.choice.control == "blank" else scan_of(image)
            for (_, crop), requests in scenes.items():
                outline = requests[0].outline
                assert outline is not None
                showing = self.fitted(outline.view.show(volume, "", crop, ALL_SHADES))
                yield Job(volume_id, showing, tuple(requests))

    def request(self, step: str, row: QaRow, journal: Journal) -> Request:
        record, outline, numbers = row.record, None, []
        if self.choice.control != "text":
            view, crop = view_of(record, self.choice.view)
            grid = Grid(row.knee.shape, np.eye(4))
            outline = self.sized(view.outline(grid.shape, grid.spacing, grid.orientation, "", crop))
            numbers = numbers_of(record, outline)
        text = asked(record, numbers, outline.frame if outline else None, self.form)
        key = digest(
            {
                "row": row.id,
                "system": SYSTEM,
                "prompt": text,
                "view": self.choice.view.as_dict(),
                "control": self.choice.control,
                "model": self.about,
                "parameters": self.choice.parameters.as_dict(),
            }
        )
        return Request(key, row, step, text, record.volume_id if outline else "", outline)

    def read(self, request: Request, text: str) -> Read:
        """A model's words, its boxes in pixels of the stored image."""
        row = request.row
        assert isinstance(row, QaRow)
        _, height, width = row.knee.shape
        frame = request.outline.frame if request.outline else (height, width)
        said = read(row.record, text, Image(height, width, frame), self.form.unit)
        whole = bool(said.boxes) if row.record.task == "localization" else bool(said.text)
        return Read(said, "parsed" if whole and not said.problems else "unread")

    def predictions(self, journal: Journal) -> Iterator[dict[str, Any]]:
        """A line for each answered question."""
        for row in self.rows:
            request = self.request("answer", row, journal)
            entry = journal.answers.get(request.key)
            if entry is not None and entry.reply is not None:
                boxes = [list(box) for box in self.read(request, entry.reply.text).said.boxes]
                yield {"id": row.id, "response": entry.reply.text, "boxes": boxes}

    def stamp(self, folder: Path, split: str, form: str) -> dict[str, Any]:
        """All that a score needs to be made again."""
        words = [asked(row.record, [], None, self.form) for row in self.rows[:100]]
        return {
            "kind": "reasonknee.run",
            "version": 1,
            "benchmark": "SGMRI-VQA",
            "model": self.about,
            **self.choice.as_dict(),
            "boxes": form,
            "prompts": digest(hashlib.sha256(json.dumps([SYSTEM, *words]).encode()).hexdigest()),
            "release": {"manifest": sha256_of(folder / FILE_NAME)},
            "split": split,
            "versions": versions_of(),
        }


def read_rows(source: QaSource) -> list[QaRow]:
    """The questions of a split, those of a volume together."""
    rows = []
    for entry in source.entries:
        opened = source.open(entry)
        for id_ in entry.questions:
            served = opened.quintuple(id_)
            record = replace(record_of(served, id_), shape=served["image"].shape)
            assert record.shape is not None
            about = Knee(entry.volume_id, record.cluster, "", record.shape, (1.0, 1.0, 1.0), "")
            rows.append(QaRow(id_, about, None, None, record))  # type: ignore[arg-type]
    return rows


def ask_questions(release: str, out: Path, choice: Choice, asking: Asking, form: str) -> Iterator[str]:
    """The same steps as for a release of knees."""
    folder = release_folder(release, configs=["volumes"])
    source = QaSource(folder, "volumes", asking.split, Choosing())
    every = read_rows(source)
    rows = every
    if asking.sample:
        kept = {row.id for row in sampled(every, asking.sample, choice.parameters.seed)}
        rows = [row for row in every if row.id in kept]
    rows = rows[: asking.limit] if asking.limit else rows
    if not rows:
        raise DataError("Z024", "no question to ask", "is the release whole? `reasonknee validate` tells")
    if asking.max_cost is not None and asking.prices == Prices():
        raise UsageError("N051", "--max-cost without prices", "give --price-in and --price-out")
    engine = engine_for(choice, asking)
    setattr(getattr(engine, "model", engine), "system", SYSTEM)  # noqa: B010 - whoever speaks
    plan: Any = QaPlan(source, rows, choice, form_named(form), engine.about, engine.sized, engine.fitted)
    if asking.mode == "estimate":
        yield from estimate(plan, out, asking.prices, engine.lanes)
        return
    if asking.mode == "dry-run":
        yield from dry_run(plan, engine, out)
        return
    if isinstance(engine, Servers) and asking.probe:
        yield from probed(engine, choice)
    chosen = {"limit": asking.limit, "sample": asking.sample, "seed": choice.parameters.seed}
    stamp = plan.stamp(folder, asking.split, form)
    ledger = run(
        plan,
        engine,
        out,
        split=asking.split,
        prices=asking.prices,
        max_cost=asking.max_cost,
        chosen=chosen,
        stamp=stamp,
        lines=plan.predictions,
    )
    yield from told(ledger, plan, out, f"reasonknee sgmri score --out {quote(str(out / 'scores'))}")
