"""Where the rows of a release come from, summed over what was written: the manifest and the card tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from reasonknee.layout import PER_VOLUME, Shard
from reasonknee.questions import QUESTIONS
from reasonknee.questions.contradictions import of_knee

UNKNOWN = "unknown"
_OF_VOLUME = ("volume_id", "visit", "provenance")
_OF_QUESTION = ("question_id", "box", "box_source", "published_reasoning", "grades", "second_readings")


def summed(folder: Path, shards: Iterable[Shard]) -> dict[str, Any]:
    """Volumes by table, reading project and image package; quintuples by source of box and reasoning; grades
    that are asked for and unknown; quintuples with second readings; contradictions by rule.

    Every config has all quintuples, so one is read: the lightest.
    """
    shards = list(shards)
    config = min({s.config for s in shards}, key=lambda c: (c != "annotations", c in PER_VOLUME))
    names = ("grades", "projects", "images", "boxes", "reasoning", "contradictions")
    by: dict[str, Counter[str]] = {name: Counter() for name in names}
    unknown = second = 0
    for volume, quintuples in _volumes(folder, [s for s in shards if s.config == config]):
        told = volume["provenance"]
        for name, key in (("grades", "grades"), ("projects", "project"), ("images", "package")):
            by[name][told[key] or UNKNOWN] += 1
        for q in quintuples:
            by["boxes"]["none" if q["box"] is None else q["box_source"] or UNKNOWN] += 1
            by["reasoning"]["derived"] += 1
            by["reasoning"]["published"] += q["published_reasoning"] is not None
            unknown += sum(q["grades"][a.id] is None for a in QUESTIONS[q["question_id"]].attributes)
            second += bool(q["second_readings"])
        knee = {q["question_id"]: {a: g for a, g in q["grades"].items() if g is not None} for q in quintuples}
        by["contradictions"].update(rule for rule, _ in of_knee(knee, volume["visit"]))
    return {
        **{name: dict(sorted((+counts).items())) for name, counts in by.items()},
        "unknown_grades": unknown,
        "second_readings": second,
    }


def _volumes(folder: Path, shards: Iterable[Shard]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each volume with its quintuples, whose rows follow each other in a shard."""
    import pyarrow.parquet as pq

    for shard in shards:
        nested = shard.config in PER_VOLUME
        wanted = [f"quintuples.list.element.{name}" if nested else name for name in _OF_QUESTION]
        with (folder / shard.path).open("rb") as file:  # pyarrow takes no name that is not UTF-8
            rows = pq.ParquetFile(file).read(columns=[*_OF_VOLUME, *wanted]).to_pylist()
        if nested:
            yield from ((row, row["quintuples"]) for row in rows)
        else:
            for _, group in groupby(rows, key=lambda row: row["volume_id"]):
                mine = list(group)
                yield mine[0], mine
