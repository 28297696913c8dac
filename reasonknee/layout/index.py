"""The index of a release: which volumes and questions every row group holds, so that a reader plans its order
without the footers of all shards, which are a hundred times as large.

`index/CONFIG-SPLIT.jsonl` has a line for the questions and one for each shard: its path, length and sha256 of
its footer, and its runs of rows on one volume. Which questions a run asks, and which of them have a box, are
bits in the order of the first line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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

    def line(run: IndexedRun) -> list[int | str]:
        bits = sum(1 << place[q] for q in run.questions)
        boxed = sum(1 << place[q] for q, has in zip(run.questions, run.boxed, strict=True) if has)
        return [run.group, run.first, run.rows, run.volume_id, f"{bits:x}", f"{boxed:x}"]

    lines: list[dict[str, Any]] = [{"questions": asked}]
    for shard in shards:
        about = {"path": shard.path, "footer_bytes": shard.footer_bytes, "footer_sha256": shard.footer_sha256}
        lines.append({**about, "runs": [line(run) for run in shard.runs]})
    return "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines)


def read_index(raw: bytes, where: str) -> list[IndexedShard]:
    """An index from wherever it comes, its questions in the order of the question table."""
    lines = [parse_json(line, where) for line in raw.splitlines()]
    try:
        asked = lines[0]["questions"]
        if not all(isinstance(q, str) and q in QUESTIONS for q in asked):
            raise ValueError("an unknown question")
        return [_shard(line, asked) for line in lines[1:]]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        told = f"{where}: {type(error).__name__}: {shown(error, 80)}"
        raise DataError("M008", told, "the index is damaged: copy or download it again") from None


def _shard(line: dict[str, Any], asked: Sequence[str]) -> IndexedShard:
    def run(raw: Sequence[Any]) -> IndexedRun:
        group, first, rows, volume_id, bits, boxed = raw
        if not all(type(n) is int and 0 <= n < _MOST for n in (group, first, rows)):
            raise ValueError("a run that is not in numbers")
        if not isinstance(volume_id, str) or volume_id.count("-") != 2:
            raise ValueError("a volume without its id")
        wanted, has = int(bits, 16), int(boxed, 16)
        if not 0 <= has <= wanted < 1 << len(asked) or has & ~wanted:
            raise ValueError("bits that stand for no question")
        places = [i for i in range(len(asked)) if wanted >> i & 1]
        questions = tuple(asked[i] for i in places)
        return IndexedRun(group, first, rows, volume_id, questions, tuple(bool(has >> i & 1) for i in places))

    size, digest = line["footer_bytes"], line["footer_sha256"]
    if type(size) is not int or not 12 <= size < _MOST or not isinstance(digest, str):
        raise ValueError("a footer without its size")
    return IndexedShard(str(line["path"]), size, digest, tuple(run(raw) for raw in line["runs"]))
