"""A dataset in a few words: what the machinery of releases has to know to write, list and open its shards.

The knee's stands here. Another dataset brings its own, and the machinery stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reasonknee.layout.records import CONFIGS, Field, arrow_fields
from reasonknee.layout.splits import SPLITS
from reasonknee.questions import REGIONS
from reasonknee.questions.prompts import WORDINGS

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Dataset:
    configs: Mapping[str, tuple[Field, ...]]  # in the order of the card: the first that is there is default
    splits: tuple[str, ...]
    public: str  # the config without pixels; written last, so that it holds the same volumes as the rest
    volumes_per_row_group: Mapping[str, int]
    # How column names end: of what is compressed, of what rows are selected by (statistics of the rest would
    # double the footers, which a reader of a Hub repo fetches first), of texts that are all different.
    packed: tuple[str, ...]
    selected: tuple[str, ...]
    said_once: tuple[str, ...] = ()
    shares_bytes: frozenset[str] = frozenset()  # configs in which rows share pixels
    # configs in which a volume has several row groups: how its rows fall into them
    row_group_of: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    def arrow_schema(self, config: str) -> pa.Schema:
        return arrow_fields(self.configs[config])


def _section(row: Mapping[str, Any]) -> str:
    return REGIONS[row["region"]].section


KNEE = Dataset(
    configs=CONFIGS,
    splits=SPLITS,
    public="annotations",
    volumes_per_row_group={"annotations": 16, "full": 1, "embeddings": 1},
    packed=(
        ".bytes",
        *(f"question.{name}" for name in WORDINGS),
        "reasoning.list.element",
        "published_reasoning",
    ),
    selected=(
        "id",
        "volume_id",
        "patient",
        "visit",
        "side",
        "question_id",
        "category",
        "region",
        "box.z0",
    ),
    said_once=("published_reasoning",),
    shares_bytes=frozenset({"cropped"}),
    row_group_of={"cropped": _section},
)
