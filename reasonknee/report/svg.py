"""Small charts as inline SVG, without a plotting library: they weigh little, scale, and hold their numbers as text."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from reasonknee.report.rows import Leaf, interval, number

OURS, PLAIN, GREY, GRID = "#1f5f99", "#c46a1b", "#6b7280", "#e5e7eb"
_CONTROL = {c: "\ufffd" for c in (*range(0x20), 0x7F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)) if c not in (0x09, 0x0A)}


def text(value: object) -> str:
    """Anything as text of a page: markup is escaped, and what a page cannot hold or what would reorder it is replaced."""
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8").translate(_CONTROL), quote=True)


def shade(value: float | None) -> tuple[str, str]:
    """A fill from white to blue for 0 to 1, and the colour of ink that is legible on it. What is undefined is grey."""
    if value is None:
        return "#eeeeee", GREY
    share = min(max(value, 0.0), 1.0)
    red, green, blue = (round(a + (b - a) * share) for a, b in ((247, 16), (250, 66), (252, 120)))
    return f"rgb({red},{green},{blue})", "#ffffff" if share > 0.55 else "#111827"


def diverging(value: float | None) -> tuple[str, str]:
    """From orange (-0.5) over white (0) to blue (0.5): better or worse than the baseline."""
    if value is None:
        return "#eeeeee", GREY
    share = min(abs(value) / 0.5, 1.0)
    end = (16, 84, 148) if value >= 0 else (190, 84, 16)
    red, green, blue = (round(250 + (b - 250) * share) for b in end)
    return f"rgb({red},{green},{blue})", "#ffffff" if share > 0.6 else "#111827"


def chart(width: int, height: int, body: str, label: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{text(label)}">{body}</svg>'


def words(x: float, y: float, what: object, size: int = 11, anchor: str = "middle", fill: str = "#374151", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" {extra}>{text(what)}</text>'


def dots(rows: Sequence[tuple[str, str, Leaf]], label: str) -> str:
    """Estimates with their intervals, one to a line, on an axis from 0 to 1."""
    left, width, step = 250, 440, 22
    height = step * len(rows) + 34
    body = "".join(
        f'<line x1="{left + width * t / 4}" x2="{left + width * t / 4}" y1="6" y2="{height - 24}" stroke="{GRID}"/>'
        + words(left + width * t / 4, height - 8, f"{t / 4:g}")
        for t in range(5)
    )
    for i, (name, colour, leaf) in enumerate(rows):
        y = 18 + i * step
        body += words(left - 10, y + 4, name, anchor="end", size=12)
        if leaf["value"] is None:
            body += words(left + 4, y + 4, leaf.get("reason", "undefined"), anchor="start", fill=GREY)
            continue
        x = left + width * leaf["value"]
        if leaf["low"] is not None:
            low, high = left + width * leaf["low"], left + width * leaf["high"]
            body += f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3" stroke-opacity=".45"/>'
        body += f'<circle cx="{x:.1f}" cy="{y}" r="4.5" fill="{colour}"><title>{text(interval(leaf))}</title></circle>'
        body += words(left + width + 12, y + 4, number(leaf), anchor="start", size=12)
    return chart(left + width + 60, height, body, label)


def scatter(points: Sequence[tuple[str, float, float]], label: str) -> str:
    """Each attribute once: what the majority grade gets against what the model gets. On the line, the model knows no more than the table."""
    side, pad = 400, 46
    body = f'<rect x="{pad}" y="10" width="{side}" height="{side}" fill="#fbfbfc" stroke="{GRID}"/>'
    for t in range(5):
        place = side * t / 4
        body += f'<line x1="{pad + place}" x2="{pad + place}" y1="10" y2="{10 + side}" stroke="{GRID}"/>' + words(
            pad + place, side + 26, f"{t / 4:g}"
        )
        body += f'<line x1="{pad}" x2="{pad + side}" y1="{10 + place}" y2="{10 + place}" stroke="{GRID}"/>'
        body += words(pad - 8, 14 + place, f"{1 - t / 4:g}", anchor="end")
    body += f'<line x1="{pad}" y1="{10 + side}" x2="{pad + side}" y2="10" stroke="{GREY}" stroke-dasharray="4 4"/>'
    for name, x, y in points:
        colour = OURS if y >= x else PLAIN
        centre = f'cx="{pad + side * x:.1f}" cy="{10 + side * (1 - y):.1f}"'
        body += f'<circle {centre} r="4" fill="{colour}" fill-opacity=".65"><title>{text(name)}: majority {x:.3f}, model {y:.3f}</title></circle>'
    body += words(pad + side / 2, side + 44, "accuracy of the majority grade")
    body += words(12, 10 + side / 2, "accuracy of the model, strict", extra=f'transform="rotate(-90 12 {10 + side / 2})"')
    return chart(side + pad + 14, side + 54, body, label)


def histogram(counts: Sequence[int], title: str) -> str:
    width, height, pad = 220, 110, 24
    top, n = max([1, *counts]), max(1, len(counts))
    body = words(pad, 14, title, anchor="start", size=12)
    for i, count in enumerate(counts):
        tall = (height - 44) * count / top
        x = pad + (width - pad) * i / n
        span = f"{i / n:g} to {(i + 1) / n:g}"
        body += (
            f'<rect x="{x:.1f}" y="{height - 20 - tall:.1f}" width="{(width - pad) / n - 1:.1f}" height="{tall:.1f}" fill="{OURS}">'
            f"<title>IoU {span}: {count}</title></rect>"
        )
    body += f'<line x1="{pad}" x2="{width}" y1="{height - 20}" y2="{height - 20}" stroke="{GREY}"/>'
    body += "".join(words(pad + (width - pad) * t, height - 6, f"{t:g}", size=10) for t in (0, 0.5, 1))
    return chart(width + 8, height, body, f"IoU of {title}")


def matrix(confusion: Sequence[Sequence[int]], title: str) -> str:
    """Rows are true grades; shades are shares of the row, so that a rare grade is seen as well as a common one."""
    k = len(confusion)
    head = "".join(f"<th>{j}</th>" for j in range(k)) + "<th>none</th>"
    rows = ""
    for i, row in enumerate(confusion):
        total = sum(row)
        cells = ""
        for count in row:
            fill, ink = shade(count / total if total else None)
            cells += f'<td style="background:{fill};color:{ink}">{count}</td>'
        rows += f"<tr><th>{i}</th>{cells}</tr>"
    return f'<table class="matrix"><caption>{text(title)}</caption><tr><th>true \\ given</th>{head}</tr>{rows}</table>'


def png_uri(pixels: Any) -> str:
    """A (rows, columns) array of bytes as a grey PNG inside a page."""
    import base64
    import struct
    import zlib

    height, width = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + pixels[row].tobytes() for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(whole).decode()
