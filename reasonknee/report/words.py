"""Counts, lists and estimates as a sentence has them, and text that stays text."""

from __future__ import annotations

from reasonknee.report.rows import Leaf, interval, number

_CONTROL = {
    c: "\ufffd"
    for c in (*range(0x20), 0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
    if c not in (0x09, 0x0A)
}


def plain_text(value: object) -> str:
    """Anything as text: what a page cannot hold, or what would reorder it, is replaced."""
    return str(value).encode("utf-8", "replace").decode("utf-8").translate(_CONTROL)


def told(leaf: Leaf, digits: int = 2) -> str:
    """The value, and its interval in brackets if it has one."""
    ends = interval(leaf, digits)
    return number(leaf, digits) + (f" ({ends})" if ends else "")


def share(leaf: Leaf) -> str:
    """The same, in per cent."""
    if leaf["value"] is None:
        return "–"
    ends = f" ({100 * leaf['low']:.0f} to {100 * leaf['high']:.0f} %)" if interval(leaf) else ""
    return f"{100 * leaf['value']:.0f} %{ends}"


def unbroken(text: str) -> str:
    """No line ends between a number and its per cent."""
    return text.replace(" %", "\u00a0%")


def count(n: int, one: str, many: str = "") -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
