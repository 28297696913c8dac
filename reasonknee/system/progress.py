"""How long work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], object]
"""The stage, how much of it is done, and of how much: volumes, or MB where the stage ends with ", MB"."""


def silent(stage: str, done: int, of: int) -> None:
    """For those who do not watch."""
