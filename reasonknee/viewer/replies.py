"""What a viewer answers a page, without a word about HTTP; and what the server needs of a viewer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

Asked = Mapping[str, list[str]]  # what stands behind the ? of an address


@dataclass(frozen=True)
class Reply:
    """Bytes, of what type they are, and headers that say more. Without bytes: there is nothing to show."""

    body: bytes | memoryview | None
    kind: str = "application/octet-stream"
    more: dict[str, str] = field(default_factory=dict)


class Viewer(Protocol):
    """What is looked at: its page, and what this page may ask for. None is what does not exist."""

    page: str  # the file in `static` that is shown first

    @property
    def opening(self) -> list[str]:
        """Lines for who starts it: what is open, then what is worth knowing of it."""

    def get(self, path: str, asked: Asked) -> Reply | None: ...

    def post(self, path: str, said: dict[str, Any]) -> Reply | None: ...


def as_json(value: Any) -> Reply:
    return Reply(json.dumps(value).encode(), "application/json")


def as_array(array: np.ndarray, more: dict[str, str] | None = None) -> Reply:
    """The numbers of an array, one after the other."""
    plain = np.ascontiguousarray(array).reshape(-1)
    return Reply(plain.view(np.uint8).data if plain.size else b"", more=more or {})


def as_file(name: str, parts: Iterable[bytes], kind: str) -> Reply:
    """A file that the browser saves."""
    return Reply(b"".join(parts), kind, {"Content-Disposition": f'attachment; filename="{name}"'})


def numbered(rest: str, count: int) -> int | None:
    """A number below `count`, as an address has it; None if it is none."""
    plain = rest.isascii() and rest.isdigit() and len(rest) < 10
    return int(rest) if plain and int(rest) < count else None
