"""Links from a report to the viewer: a row, or the rows that a number counts.

A report is a file, the viewer runs on the reader's machine: a link works while `reasonknee view` runs.
"""

from __future__ import annotations

from urllib.parse import urlencode

PORT = 8642  # where the viewer listens, unless another program does
VIEWER = f"http://127.0.0.1:{PORT}/"


def rows(**filters: str) -> str:
    """The rows that fit the filters, as the viewer names them: id, split, category, region, verdict ..."""
    return f"{VIEWER}#{urlencode({name: value for name, value in filters.items() if value})}"
