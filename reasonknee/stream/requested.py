"""What users ask for: quintuples, volumes or pairs of a source, as a stream.

    stream = quintuples("rajpurkarlab/3DReasonKnee", "cropped", "train", seed=0)   # or a release folder, or a
    for row in stream: ...                                                         # map-style dataset

`quintuples` gives one dict per quintuple (fields: `served`), `volumes` one item per volume with all its
quintuples, `pairs` the same question on the same knee at two visits. All three are `Stream`s: iterable
datasets for `reasonknee.collate.loader`, torch's DataLoader and torchdata's StatefulDataLoader, also without
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from reasonknee.errors import UsageError
from reasonknee.layout import SPLITS
from reasonknee.stream.entries import Entry
from reasonknee.stream.order import Even, Mix
from reasonknee.stream.plan import Between, Plan, by_pair, by_question, by_volume
from reasonknee.stream.ranks import Ranks, given_part
from reasonknee.stream.selection import Names, Selection, refuse_unknown, selection, whole_number
from reasonknee.stream.sources import Request, find
from reasonknee.stream.streams import Settings, Stream


# Keywords: a user writes the two or three that are wanted, and an editor completes them. What they say goes
# on as small objects: what is read (`Request`), what of it (`Selection`) and in which order (`Settings`).
def quintuples(
    source: Any,
    config: str | None = None,
    split: str = "train",
    *,
    questions: str | Iterable[str | int] | None = None,
    categories: Names | None = None,
    regions: Names | None = None,
    sides: Names | None = None,
    visits: Names | None = None,
    patients: Names | None = None,
    boxed: bool = False,
    columns: Iterable[str] | None = None,
    cut_regions: bool = False,
    margin_mm: float = 0.0,
    seed: int | None = None,
    batch_size: int | None = None,
    lanes: int = 8,
    pool: int = 16,
    rank: int | None = None,
    world_size: int | None = None,
    ranks: Ranks | None = None,
    even: Even | None = None,
    ahead: int | None = None,
    revision: str | None = None,
    hub: Mapping[str, Any] | None = None,
    plan: Callable[[Sequence[Entry]], Plan] = by_question,
) -> Stream:
    """One dict per quintuple.

    source: a release folder, a Hub repo id (at `revision`; `hub` holds what its client takes: token,
    endpoint), or a map-style dataset. questions: a set by name, one question, or several by id; categories,
    regions, sides, visits, patients narrow it; `boxed` keeps what has a box. columns: the fields that rows
    need; what is not named is not read, and without `volume` no voxel is. cut_regions: from `full`, serve
    each question its region, with `margin_mm` around it, in place of the whole volume. seed: None for the
    order of the files. batch_size: of the batches; `reasonknee.collate.loader` gives its own to a stream that
    has none, a DataLoader with several workers needs it said. lanes, pool: how volumes are mixed, see
    `reasonknee.stream.order`. rank, world_size: whose share this is; or ranks="group", the share of this
    process in torch.distributed, which `loader` takes by itself; or ranks="whole", everything, for a
    framework that deals rows out itself. even: "pad" or "drop" for the same number of batches on every rank.
    ahead: volumes read in advance.
    """
    request = Request(
        source,
        config,
        split,
        selection(questions, categories, regions, sides, visits, patients, boxed),
        None if columns is None else frozenset(columns),
        revision,
        dict(hub or {}),
    )
    numbers = {"lanes": (lanes, 1), "pool": (pool, 1)}
    optional = {"seed": (seed, 0), "batch_size": (batch_size, 1), "ahead": (ahead, 0)}
    optional |= {"rank": (rank, 0), "world_size": (world_size, 1)}
    for name, (value, least) in (numbers | {k: v for k, v in optional.items() if v[0] is not None}).items():
        whole_number(name, value, least)  # type: ignore[arg-type]
    if even not in (None, "pad", "drop"):
        raise UsageError("D006", f"even={even!r}", 'None, "pad" or "drop"')
    settings = Settings(
        seed=seed,
        mix=Mix(lanes, pool, batch_size or 1),
        part=given_part(rank, world_size, ranks),
        ranks=ranks,
        even=even,
        margin_mm=margin_mm if cut_regions else None,
        ahead=ahead,
        batch_known=batch_size is not None,
    )
    read = find(request)
    if not request.selection.found_in(e.volume_id for e in read.entries):
        refuse_unknown(request.selection, _every_volume(request, read.config))
    if (cut_regions or margin_mm) and (read.config != "full" or not cut_regions or not 0 <= margin_mm <= 200):
        raise UsageError(
            "D047",
            f"cut_regions={cut_regions}, margin_mm={margin_mm} on {read.config}",
            "regions are cut from `full`, with 0 to 200 mm around",
        )
    planned = plan(read.entries)
    if not planned.groups:
        raise UsageError(
            "D046",
            f"nothing in {read.config}/{split} is selected",
            "check the sides, visits, patients and questions",
        )
    return Stream(read, planned, settings)


def _every_volume(request: Request, config: str) -> list[str]:
    """All volumes of a config, of every split where the source has several: what there is to choose among."""
    known = []
    for split in SPLITS if isinstance(request.source, str | Path | dict) else (request.split,):
        everything = Request(
            request.source, config, split, Selection(), frozenset(), request.revision, request.hub
        )
        try:
            known += [e.volume_id for e in find(everything).entries]
        except UsageError as error:
            if error.code != "D021":  # it has no such split
                raise
    return known


def volumes(source: Any, config: str | None = "full", split: str = "train", **options: Any) -> Stream:
    """One item per volume, with `quintuples`, the list of all that is asked of it.

    Options as for `quintuples`; batch_size counts volumes.
    """
    return quintuples(source, config, split, plan=by_volume, **options)


def pairs(
    source: Any,
    config: str | None = None,
    split: str = "train",
    *,
    between: Between = "successive",
    **options: Any,
) -> Stream:
    """The same question on the same knee at two visits: {"first": quintuple, "second": quintuple}. `between`
    is "successive", "all", or two visits. Options as for `quintuples`; pool and lanes count pairs of
    volumes."""
    return quintuples(source, config, split, plan=partial(by_pair, between=between), **options)
