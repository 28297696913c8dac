"""Results on a page: what stands between two markers is made from the JSON, so that no number is typed
twice."""

from __future__ import annotations

from pathlib import Path

END = "<!-- end -->"


def begin(script: str) -> str:
    return f"<!-- made by benchmarks/{script}: begin -->"


def put(page: Path, script: str, text: str) -> None:
    """The page with `text` in the block of a script."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(begin(script))
    if not mark:
        raise SystemExit(f"{page} has no block {begin(script)}")
    page.write_text(f"{before}{mark}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
