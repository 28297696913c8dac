"""Quintuples without a stream: by index, or out of rows that come one by one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reasonknee.stream.requested import quintuples
from reasonknee.stream.served import Opened, Row, from_row


class MapView:
    """The quintuples of a source by index, in stored order, for samplers and `Trainer`: `len`, `[i]`, and
    lists of indices from a DataLoader.

    Copies no volume: rows of a map-style dataset are views of its memory-mapped table. The `keep` volumes
    used last stay open, in each worker, which spares decoding where neighbours in the sampler's order share a
    volume. Takes the arguments of `quintuples` that say what is read.
    """

    def __init__(
        self, source: Any, config: str | None = None, split: str = "train", *, keep: int = 2, **options: Any
    ) -> None:
        stream = quintuples(source, config, split, **options)
        self.source, self.plan, self.keep = stream.source, stream.plan, keep
        self.margin_mm = stream.settings.margin_mm
        self._ends = np.cumsum(stream.plan.counts)
        self._open: OrderedDict[int, Opened] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": OrderedDict()}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Row:
        # negative ones count from the end, others raise IndexError, which ends a for loop
        i = range(len(self))[index]
        group = int(np.searchsorted(self._ends, i, side="right"))
        if group not in self._open:
            if len(self._open) >= self.keep:
                self._open.popitem(last=False)
            self._open[group] = self.source.open(self.plan.groups[group][0], self.margin_mm)
        self._open.move_to_end(group)
        asked = self.plan.questions[group]
        return self._open[group].quintuple(asked[i - int(self._ends[group]) + len(asked)])

    def __getitems__(self, indices: Sequence[int]) -> list[Row]:
        return [self[i] for i in indices]


def explode(
    rows: Iterable[Mapping[str, Any]], *, cut_regions: bool = False, margin_mm: float = 0.0
) -> Iterator[Row]:
    """Quintuples of rows that come one by one in any config, such as `load_dataset(..., streaming=True)`
    gives: in their order, whatever it is."""
    for row in rows:
        opened = from_row(row, margin_mm if cut_regions else None)
        for question_id in opened.index:
            yield opened.quintuple(question_id)
