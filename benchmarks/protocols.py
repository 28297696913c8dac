"""What loaders are measured on: the protocols, and the samples that an epoch of each holds."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

BATCH, WORKERS, HIGHEST = 4, 2, 400.0
CROPPED, WHOLE = (
    12,
    4,
)  # volumes whose crops are served, and volumes that are served whole for each of their questions
FEW = 32  # samples of an epoch of a slow loader whose samples all cost the same
THROTTLE = 200  # MB/s that a slow server sends, over all connections
Item = dict[str, Any]


class Protocol(NamedTuple):
    title: str
    content: str  # what an epoch holds: see `items`
    network: bool = False
    megabytes: int | None = None  # that the server sends in a second; None: as many as it can


PROTOCOLS = {
    "cropped": Protocol("`cropped`", "cropped"),
    "full": Protocol("`full`, 62 questions a volume", "full"),
    "once": Protocol("each volume once", "once"),
    "streamed": Protocol("each volume once, over HTTP", "once", network=True),
    "throttled": Protocol(
        f"each volume once, over HTTP at {THROTTLE} MB/s", "once", network=True, megabytes=THROTTLE
    ),
    "streamed-cropped": Protocol("`cropped`, over HTTP", "cropped", network=True),
    "throttled-cropped": Protocol(
        f"`cropped`, over HTTP at {THROTTLE} MB/s", "cropped", network=True, megabytes=THROTTLE
    ),
}
LOCAL = tuple(name for name, protocol in PROTOCOLS.items() if not protocol.network)
NETWORK = tuple(name for name, protocol in PROTOCOLS.items() if protocol.network)


def by_volume(folder: Path) -> list[list[Item]]:
    """The quintuples of each volume."""
    every: list[Item] = json.loads((folder / "items.json").read_text())
    return [list(group) for _, group in groupby(every, key=lambda i: i["volume_id"])]


def items(folder: Path, content: str) -> list[Item]:
    """Every quintuple of the first volumes, fewer of them where each comes with its whole volume, or one
    for each volume there is."""
    groups = by_volume(folder)
    if content == "once":
        return [group[0] for group in groups]
    return [item for group in groups[: {"cropped": CROPPED, "full": WHOLE}[content]] for item in group]
