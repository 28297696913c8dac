"""The index of a release: which volumes and questions every row group holds, so that a reader plans its order
without the footers of all shards, which are a hundred times as large.

`index/CONFIG-SPLIT.jsonl` has a line for the questions and one for each shard: its path, length and sha256 of
its footer, and its runs of rows on one volume, neighbours behind the volume's id. Questions are bits in the
order of the first line. Few sets of them are asked by a run, so a run names one of those, and which of its
questions have no box.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from reasonknee.errors import DataError, shown
from reasonknee.layout.manifest import Shard
from reasonknee.layout.strict_text import parse_json
from reasonknee.questions import QUESTIONS

FOLDER = "index"
_MOST = 1 << 31  # of any number

_RANK = {name: place for place, name in enumerate(QUESTIONS)}  # what is not known comes last


class IndexedRun(NamedTuple):
    """Neighbouring rows of a row group on one volume."""

    group: int
    first: int
    rows: int
    volume_id: str
    questions: tuple[str, ...]
    boxed: tuple[bool, ...]  # of each question


@dataclass(frozen=True)
class IndexedShard:
    path: str
    footer_bytes: int  # its length and the closing mark included
    footer_sha256: str
    runs: tuple[IndexedRun, ...]


def index_name(config: str, split: str) -> str:
    return f"{FOLDER}/{config}-{split}.jsonl"


def index_names(shards: Iterable[Shard]) -> set[str]:
    """The index files that belong to some shards."""
    return {index_name(s.config, s.split) for s in shards}


def index_text(shards: Sequence[IndexedShard]) -> str:
    asked = sorted(
        {q for s in shards for run in s.runs for q in run.questions}, key=lambda q: _RANK.get(q, len(_RANK))
    )
    place = {name: i for i, name in enumerate(asked)}

    def bits(questions: Iterable[str]) -> int:
        return sum(1 << place[q] for q in questions)

    sets = {run.questions: bits(run.questions) for s in shards for run in s.runs}
    number = {each: i for i, each in enumerate(dict.fromkeys(sets.values()))}

    def line(run: IndexedRun) -> list[int | str]:
        bare = bits(q for q, has in zip(run.questions, run.boxed, strict=True) if not has)
        return [run.group, run.first, run.rows, number[sets[run.questions]], f"{bare:x}"]

    lines: list[dict[str, Any]] = [{"questions": asked, "sets": [f"{each:x}" for each in number]}]
    for shard in shards:
        about = {"path": shard.path, "footer_bytes": shard.footer_bytes, "footer_sha256": shard.footer_sha256}
        of_volumes = groupby(shard.runs, key=lambda run: run.volume_id)
        lines.append({**about, "runs": [[volume_id, *map(line, runs)] for volume_id, runs in of_volumes]})
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines)


def read_index(raw: bytes, where: str) -> list[IndexedShard]:
    """An index from wherever it comes, its questions in the order of the question table."""
    lines = [parse_json(line, where) for line in raw.splitlines()]
    try:
        asked = lines[0]["questions"]
        if not all(isinstance(q, str) and q in QUESTIONS for q in asked):
            raise ValueError("an unknown question")
        sets = [_Set.of(int(bits, 16), asked) for bits in lines[0]["sets"]]
        return [_shard(line, sets) for line in lines[1:]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        told = f"{where}: {type(error).__name__}: {shown(error, 80)}"
        raise DataError("M008", told, "the index is damaged: copy or download it again") from None


class _Set(NamedTuple):
    """Questions that a run asks together."""

    bits: int
    places: tuple[int, ...]
    questions: tuple[str, ...]

    @classmethod
    def of(cls, bits: int, asked: Sequence[str]) -> _Set:
        if not 0 <= bits < 1 << len(asked):
            raise ValueError("bits that stand for no question")
        places = tuple(i for i in range(len(asked)) if bits >> i & 1)
        return cls(bits, places, tuple(asked[i] for i in places))


def _shard(line: dict[str, Any], sets: Sequence[_Set]) -> IndexedShard:
    def run(volume_id: str, raw: Sequence[Any]) -> IndexedRun:
        group, first, rows, number, bits = raw
        if not all(type(n) is int and 0 <= n < _MOST for n in (group, first, rows, number)):
            raise ValueError("a run that is not in numbers")
        of, bare = sets[number], int(bits, 16)
        if bare < 0 or bare & ~of.bits:
            raise ValueError("bits that stand for no question")
        boxed = tuple(not bare >> i & 1 for i in of.places)
        return IndexedRun(group, first, rows, volume_id, of.questions, boxed)

    size, digest = line["footer_bytes"], line["footer_sha256"]
    if type(size) is not int or not 12 <= size < _MOST or not isinstance(digest, str):
        raise ValueError("a footer without its size")
    runs = []
    for volume_id, *of_one in line["runs"]:
        if not isinstance(volume_id, str) or volume_id.count("-") != 2:
            raise ValueError("a volume without its id")
        runs += [run(volume_id, each) for each in of_one]
    return IndexedShard(str(line["path"]), size, digest, tuple(runs))
