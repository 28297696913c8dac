"""`reasonknee ask`: from what a user typed to a run, an estimate or a dry run, told line by line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from reasonknee.boxes import Box
from reasonknee.errors import UsageError, counted
from reasonknee.models.engines import Engine, InProcess, load_model
from reasonknee.models.journal import Journal
from reasonknee.models.ledger import Prices
from reasonknee.models.pictures import abbreviated, pictures, png
from reasonknee.models.plan import Choice, Job, Knee, Plan, Row, read_rows, sampled, widened
from reasonknee.models.run import estimate, run, told
from reasonknee.models.servers import Options, Servers
from reasonknee.release.reader import Release
from reasonknee.scoring.bench import Options as Reading
from reasonknee.scoring.bench import predictions_at, reading_of
from reasonknee.scoring.lines import BOXED
from reasonknee.scoring.truth import read_truth
from reasonknee.system.files import sha256_of, write_text


@dataclass(frozen=True)
class Asking:
    """Who is asked, how much, and for how much."""

    model: str
    servers: tuple[str, ...] = ()
    interface: str = ""
    local: dict[str, Any] = field(default_factory=dict)
    remote: dict[str, Any] = field(default_factory=dict)
    probe: bool = True
    split: str = "test"
    boxes: Path | None = None  # predictions whose boxes are shown in the setting `region`
    limit: int = 0
    sample: int = 0
    prices: Prices = field(default_factory=Prices)
    max_cost: float | None = None
    mode: str = "ask"


def ask_release(place: str, out: Path, choice: Choice, asking: Asking) -> Iterator[str]:
    release = Release(place)
    every = read_rows(release, asking.split)
    rows = sampled(every, asking.sample, choice.parameters.seed) if asking.sample else every
    rows = rows[: asking.limit] if asking.limit else rows
    if asking.max_cost is not None and asking.prices == Prices():
        raise UsageError("N051", "--max-cost without prices", "give --price-in and --price-out")
    drawn = None
    if asking.boxes:
        if choice.setting not in ("region", "both"):
            raise UsageError("N051", f"--boxes in setting {choice.setting}", "--setting region or both")
        rows, drawn = _with_boxes(release, rows, asking.boxes, asking.split), sha256_of(asking.boxes)
    engine = engine_for(choice, asking)
    others = _others(release, every) if choice.control == "swapped" else []
    plan = Plan(release, rows, choice, engine.about, engine.sized, engine.fitted, others, drawn)
    if len(rows) < len(every):
        least, most = widened(every, rows)
        patients = len({row.knee.patient for row in rows})
        yield (
            f"{len(rows):,} of {len(every):,} quintuples, of {counted(patients, 'patient')}: intervals will "
            f"be {least:.1f} to {most:.1f} times as wide as those of all"
        )
    if asking.mode == "estimate":
        yield from estimate(plan, out, asking.prices, engine.lanes)
        return
    if asking.mode == "dry-run":
        yield from dry_run(plan, engine, out)
        return
    if isinstance(engine, Servers) and asking.probe:
        yield from probed(engine, choice)
    chosen = {"limit": asking.limit, "sample": asking.sample, "seed": choice.parameters.seed}
    ledger = run(
        plan,
        engine,
        out,
        split=asking.split,
        prices=asking.prices,
        max_cost=asking.max_cost,
        chosen=chosen,
    )
    yield from told(ledger, plan, out)


def _with_boxes(release: Release, rows: Sequence[Row], path: Path, split: str) -> list[Row]:
    """Rows with the boxes that another model drew; those without one are shown the whole volume."""
    truth = read_truth(release, split)
    predicted = predictions_at(path, truth, reading_of(release, split, Reading()))
    drawn = {}
    for row in rows:
        i = truth.rows[row.id]
        given = Box(*map(int, predicted.boxes[i])) if predicted.box_state[i] == BOXED else None
        drawn[row.id] = given if given and given.fits(row.knee.shape) else None
    return [replace(row, box=drawn[row.id]) for row in rows]


def _others(release: Release, rows: Sequence[Row]) -> list[Knee]:
    """The knees of the split, and of the other splits where it has one patient alone."""
    knees = dict.fromkeys(row.knee for row in rows)
    if len({knee.patient for knee in knees}) == 1:
        knees |= dict.fromkeys(row.knee for split in release.splits for row in read_rows(release, split))
    return list(knees)


def engine_for(choice: Choice, asking: Asking) -> Engine:
    if asking.servers:
        if asking.interface:
            raise UsageError("N051", "--interface and --server at once", "a server has its own")
        return Servers(
            Options(asking.model, asking.servers, schema=choice.parameters.grammar, **asking.remote)
        )
    if asking.interface:
        return InProcess(load_model(asking.interface, asking.model, asking.local))
    from reasonknee.models.local import Checkpoint

    return InProcess(Checkpoint(asking.model, **asking.local))


def probed(engine: Servers, choice: Choice) -> Iterator[str]:
    for url, honours in engine.probe().items():
        yield f"{url} honours: " + ", ".join(f"{what} {'yes' if h else 'no'}" for what, h in honours.items())
        needed = "video" if choice.view.kind == "video" else "several images"
        if choice.parameters.grammar and not honours["json_schema"]:
            raise UsageError("N052", f"{url} honours no json_schema", "leave --grammar out, or --no-probe")
        if choice.control != "text" and not honours[needed]:
            raise UsageError("N052", f"{url} takes no {needed}", "see --kind, --slices and --no-probe")


def dry_run(plan: Plan, engine: Engine, out: Path) -> Iterator[str]:
    """One request as a file, and its pictures as one, to look at."""
    with Journal(out) as journal:
        job = next(plan.jobs(plan.choice.steps[0], journal), None)
    if job is None:
        raise UsageError("N051", "nothing is left to ask", "choose another folder for --out")
    parameters = plan.choice.parameters
    request = job.requests[0]
    speaker = engine if isinstance(engine, Servers) else Servers(Options(str(plan.about.get("model")), ("",)))
    speaker.system = getattr(getattr(engine, "model", engine), "system", speaker.system)
    content = pictures(job.showing)
    write_text(out / "request.json", abbreviated(speaker.body(content, request.text, parameters)) + "\n")
    yield f"wrote {out / 'request.json'}: {request.row.id}, {len(job.requests)} questions share its images"
    if job.showing is not None:
        (out / "frames.png").write_bytes(_sheet(job))
        yield f"wrote {out / 'frames.png'}: {len(job.showing.images)} frames of {job.showing.frame} pixels"


def _sheet(job: Job) -> bytes:
    """All frames on one sheet, row by row."""
    assert job.showing is not None
    images = job.showing.images
    return png(contact_sheet(images))


def contact_sheet(images: Sequence[np.ndarray]) -> np.ndarray:
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    columns = max(1, round((len(images) * height / width) ** 0.5))
    rows = -(-len(images) // columns)
    sheet = np.zeros((rows * height, columns * width), np.uint8)
    for i, image in enumerate(images):
        y, x = i // columns * height, i % columns * width
        sheet[y : y + image.shape[0], x : x + image.shape[1]] = image
    return sheet
