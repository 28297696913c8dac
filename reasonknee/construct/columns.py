"""Which columns of a MOAKS table hold which variables: by OAI's names, or by names that a user gives.

For some questions the name of OAI's column is our assumption; what a table lacks costs those questions some
or all of their grades, and that is told.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reasonknee.construct.moaks_cells import VARIABLES
from reasonknee.errors import UsageError
from reasonknee.layout.strict_text import parse_json

KEYS = ("ID", "SIDE", "READPRJ")
ABSENT = "absent"
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")
_VISIT = re.compile(r"V[0-9]{2}(?=M)")


class Column(NamedTuple):
    """A variable, the column that holds it in a table, and how the two were brought together."""

    variable: str
    column: str | None
    status: str  # matched, assumed (present under a name that we only assume), named (by the user) or absent
    questions: tuple[str, ...]


def read_names(path: Path) -> dict[str, str]:
    """A user's names: `{"MACLBL": "MACLBML"}`, ours -> the table's, both without the visit prefix."""
    try:
        raw = parse_json(path.read_bytes(), path.name)
    except OSError as error:
        raise UsageError("J015", f"{path}: {error.strerror}", "--columns takes a JSON file") from None
    names: dict[str, str] = {}
    for ours, theirs in raw.items():
        if ours not in VARIABLES:
            near = difflib.get_close_matches(ours, VARIABLES, 1)
            hint = f"did you mean {near[0]}?" if near else "`reasonknee columns TABLE` lists the variables"
            raise UsageError("J015", f"{path.name}: no question asks for a variable {ours[:40]!r}", hint)
        bare = _VISIT.sub("", theirs.strip().upper(), count=1) if isinstance(theirs, str) else ""
        if not _NAME.fullmatch(bare):
            raise UsageError("J015", f"{path.name}: {ours} is {str(theirs)[:40]!r}", "the name of a column")
        names[ours] = bare
    if len(set(names.values())) != len(names):
        raise UsageError("J015", f"{path.name}: one column for two variables", "give each its own")
    return names


def match(header: Sequence[str], number: str, names: Mapping[str, str]) -> list[Column]:
    """Every variable of the question table, in its order, with its column among a table's."""
    given = set(header)
    found = []
    for variable, parts in VARIABLES.items():
        column = f"V{number}{names.get(variable, variable)}"
        status = "named" if variable in names else "assumed" if _assumed(variable) else "matched"
        questions = tuple(dict.fromkeys(q for q, _ in parts))
        there = column in given
        found.append(Column(variable, column if there else None, status if there else ABSENT, questions))
    return found


def _assumed(variable: str) -> bool:
    return any(a.oai.evidence == "assumed" for _, a in VARIABLES[variable])


def unasked(header: Iterable[str], columns: Iterable[Column]) -> list[str]:
    taken = {c.column for c in columns} | set(KEYS)
    return [name for name in header if name not in taken]


def costs(absent: Iterable[str]) -> str:
    """What absent variables cost: `MACLBL (acl: insertion_bml_cyst), ...`."""
    parts = []
    for variable in absent:
        question = VARIABLES[variable][0][0]
        parts.append(f"{variable} ({question}: {', '.join(a.id for _, a in VARIABLES[variable])})")
    return ", ".join(parts)


def missing(tables: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What the tables lack, and what that costs: first what all of them lack, then what one does."""
    lacking = {str(table["file"]): table["columns_absent"] for table in tables}
    everywhere = [v for v in VARIABLES if lacking and all(v in absent for absent in lacking.values())]
    if everywhere:
        yield f"no table has these variables, so their grades are unknown: {costs(everywhere)}"
    for name, absent in lacking.items():
        mine = [v for v in absent if v not in everywhere]
        if mine:
            yield f"{name} lacks variables that other tables have: {costs(mine)}"
    if any(lacking.values()):
        yield "`reasonknee columns TABLE` shows what is there; --columns FILE names them"


def described(header: Sequence[str], number: str, names: Mapping[str, str]) -> list[str]:
    """What `reasonknee columns` says of a table."""
    columns = match(header, number, names)
    rest = unasked(header, columns)
    lines = [f"{'variable':10} {'column':14} {'status':8} questions"]
    for c in columns:
        near = difflib.get_close_matches(f"V{number}{c.variable}", rest, 2, 0.8) if c.column is None else []
        hint = f"  (is it {' or '.join(near)}?)" if near else ""
        lines.append(f"{c.variable:10} {c.column or '-':14} {c.status:8} {', '.join(c.questions)}{hint}")
    counts = {s: sum(c.status == s for c in columns) for s in ("matched", "assumed", "named", ABSENT)}
    lines.append(", ".join(f"{n} {status}" for status, n in counts.items()))
    if rest:
        lines.append(f"no question asks for: {', '.join(rest[:40])}" + (", ..." if len(rest) > 40 else ""))
    if counts[ABSENT]:
        lines.append('names of absent variables go into a file for --columns: {"MACLBL": "MACLBML"}')
    return lines
