"""What a stream serves: elements in groups of one volume or two that are open together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

import numpy as np

from reasonknee.stream.entries import Entry
from reasonknee.stream.order import Numbers
from reasonknee.stream.served import Opened, Row


@dataclass(frozen=True)
class Plan:
    """What a stream serves: groups of one volume or two, each with the questions asked of it; an element
    is a question, or a whole group."""

    groups: tuple[tuple[Entry, ...], ...]
    questions: tuple[tuple[str, ...], ...]
    whole: bool = False

    @property
    def counts(self) -> Numbers:
        return np.array([1 if self.whole else len(asked) for asked in self.questions], np.int64)

    def item(self, group: int, opened: Sequence[Opened], element: int, epoch: int) -> Row:
        asked = self.questions[group]
        if self.whole:
            return opened[0].together(asked)
        rows = [one.quintuple(asked[element]) for one in opened]
        for row in rows:
            row.epoch = epoch
        return rows[0] if len(rows) == 1 else {"first": rows[0], "second": rows[1]}

    def digest(self) -> str:
        """Tells plans apart: a position in one means nothing in another."""
        digest = hashlib.sha256(str(self.whole).encode())
        for group, asked in zip(self.groups, self.questions, strict=True):
            digest.update(json.dumps([[e.volume_id for e in group], asked]).encode())
        return digest.hexdigest()[:16]


def by_question(entries: Sequence[Entry]) -> Plan:
    return Plan(tuple((e,) for e in entries), tuple(e.questions for e in entries))


def by_volume(entries: Sequence[Entry]) -> Plan:
    return Plan(tuple((e,) for e in entries), tuple(e.questions for e in entries), whole=True)


Between = Literal["successive", "all"] | tuple[str, str]


def by_pair(entries: Sequence[Entry], between: Between) -> Plan:
    """Two volumes of one knee, the earlier visit first, with the questions that both have."""
    knees: dict[tuple[str, str], dict[str, Entry]] = {}
    for entry in entries:
        patient, visit, side = entry.volume_id.split("-")
        knees.setdefault((patient, side), {})[visit] = entry
    groups = []
    for visits in knees.values():
        in_time = sorted(visits, key=lambda v: int(v.removesuffix("m")))
        pairs_of = (
            combinations(in_time, 2)
            if between == "all"
            else pairwise(in_time)
            if between == "successive"
            else [between]
        )
        groups += [(visits[a], visits[b]) for a, b in pairs_of if a in visits and b in visits]
    asked = [tuple(q for q in first.questions if q in set(second.questions)) for first, second in groups]
    kept = [i for i, questions in enumerate(asked) if questions]
    return Plan(tuple(groups[i] for i in kept), tuple(asked[i] for i in kept))
