"""The results of `loaders.py` as tables, a list of targets and a chart.

What was not measured is left out, and so are the targets that need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pages import put
from protocols import LOCAL, NETWORK, PROTOCOLS, THROTTLE

QUIET = 1.2  # load of the machine at the start up to which the clock is believed
# What the loader of worker processes and rings of buffers had over the best peer of its last quiet run
BEFORE = {
    ("cropped", "Ours"): ("MonaiCache", 4.0),
    ("full", "Ours"): ("MonaiCache", 7.3),
    ("once", "Ours"): ("LitData", 1.5),
    ("once", "OursCached"): ("LitData", 8.9),
}
GONE = {"OursRing", "OursHalfRing"}  # loaders of ours that are no more
Results = dict[str, Any]


class Target(NamedTuple):
    text: str
    wanted: str
    measured: str
    met: bool | None  # None: the noise does not let us say


_VERDICT = {True: "met", False: "**missed**", None: "undecided"}


def judged_by(results: Results) -> str:
    """The clock, if the machine was quiet when each run began; else processor time."""
    return "clock" if all(run["load_before"] < QUIET for run in results["runs"]) else "processor"


class Rates:
    """Samples a second of each loader in each protocol, by what the run is judged by."""

    def __init__(self, results: Results) -> None:
        self.by = judged_by(results)
        self.rows = results["rows"]
        self.gone = bool(GONE & {row["loader"] for row in self.rows})

    def pair(self, row: Results) -> tuple[float, float]:
        """What counts, and the other one.

        To wait for a slow server costs no processor time, so that only the clock tells it.
        """
        by_clock = self.by == "clock" or PROTOCOLS[row["protocol"]].megabytes is not None
        return (row["rate"], row["cpu_rate"]) if by_clock else (row["cpu_rate"], row["rate"])

    def of(self, row: Results) -> float:
        return self.pair(row)[0]

    def row(self, protocol: str, loader: str) -> Results | None:
        return next((r for r in self.rows if (r["protocol"], r["loader"]) == (protocol, loader)), None)

    def get(self, protocol: str, loader: str) -> float | None:
        row = self.row(protocol, loader)
        return row and self.of(row)

    def best_peer(self, protocol: str) -> Results | None:
        return max(
            (r for r in self.rows if r["protocol"] == protocol and not r["ours"]), key=self.of, default=None
        )

    def __call__(self, protocol: str) -> list[Results]:
        return [r for r in self.rows if r["protocol"] == protocol]


def targets(results: Results) -> list[Target]:
    made: list[Target] = []
    rates = Rates(results)

    def least(text: str, value: float | None, over: float | None, wanted: float) -> None:
        if value and over:
            made.append(Target(text, f"at least {wanted:g}x", f"{value / over:.2f}x", value / over >= wanted))

    def over_peer(protocol: str, loader: str, wanted: float, note: str = "") -> None:
        if peer := rates.best_peer(protocol):
            text = f"{PROTOCOLS[protocol].title}{note}: over the best peer ({peer['name']})"
            least(text, rates.get(protocol, loader), rates.of(peer), wanted)

    for protocol, peer, upstream in (("cropped", 2.0, 80.0), ("full", 1.7, 8.0)):
        over_peer(protocol, "Ours", peer)
        least(
            f"{PROTOCOLS[protocol].title}: over upstream's way",
            rates.get(protocol, "Ours"),
            rates.get(protocol, "Upstream"),
            upstream,
        )
    full = {name: rates.get("full", name) for name in ("Ours", "OursHalf", "OursByVolumeHalf")}
    least("`full`: bfloat16 over float32 (nearly 2x)", full["OursHalf"], full["Ours"], 1.4)
    least(
        "`full`: volume-major over question by question, both bfloat16 (far more)",
        full["OursByVolumeHalf"],
        full["OursHalf"],
        2,
    )
    for (protocol, loader), (peer_then, ratio) in () if rates.gone else BEFORE.items():
        row = rates.row(protocol, peer_then)
        how = " from the `datasets` cache" if loader == "OursCached" else ""
        text = f"{PROTOCOLS[protocol].title}{how}: over {row['name']}, " if row else ""
        text += f"where the loader of processes and rings had {ratio:g}x: at most a tenth is lost"
        least(text, rates.get(protocol, loader), row and rates.of(row), round(0.9 * ratio, 2))
    over_peer("once", "OursCached", 1.2, ", from the `datasets` cache")
    over_peer("once", "Ours", 1.2, ", from the release folder")
    for protocol in NETWORK:
        over_peer(protocol, "OursStreamed", 1.0)
    for protocol in LOCAL if "limit" in results else ():
        if ours := rates.get(
            protocol, "Ours"
        ):  # which writes into memory that the caller let go: the limit with kept pages is its own
            share = ours / results["limit"][protocol]["kept"][rates.by]
            made.append(
                Target(
                    f"{PROTOCOLS[protocol].title}: share of the limit, kept pages",
                    "at least 55 %",
                    f"{share:.0%}",
                    share >= 0.55,
                )
            )
    if "shuffling" in results:
        cost = results["shuffling"]["cost"]
        verdict = None if cost < -0.05 else cost < 0.05  # faster than stored order can only be noise
        made.append(
            Target(
                "shuffling with exact resume, over stored order, by processor time",
                "under 5 %",
                f"{cost:+.1%}",
                verdict,
            )
        )
    for protocol in ("cropped", "full") if "growing" in results else ():
        few, many = (
            next(g for g in results["growing"] if g["protocol"] == protocol and g["volumes"] == n)
            for n in (32, 128)
        )
        for key, what in (("own_mb", "memory"), ("ms", "processor time a quintuple")):
            ratio = many[key] / few[key]
            made.append(
                Target(
                    f"`{protocol}`: {what}, 128 volumes over 32",
                    "flat (within 10 %)",
                    f"{ratio:.2f}x",
                    ratio <= 1.1,
                )
            )
    return made


# --- the page -----------------------------------------------------------------------------------------------


def _markdown(head: Sequence[str], align: str, rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [head, [{"l": "---", "r": "---:"}[a] for a in align], *rows]
    return ["", *(f"| {' | '.join(map(str, line))} |" for line in lines)]


def table(results: Results) -> str:
    """Markdown: what was measured."""
    rates = Rates(results)
    z, y, x = results["shape"]
    other = {"clock": "by processor time", "processor": "by the clock"}[rates.by]
    how = {
        "clock": "by the clock",
        "processor": "by processor time (workers x samples / processor seconds of the loader and its "
        "workers)",
    }[rates.by]
    load = ", ".join(f"{run['load_before']:.1f}" for run in results["runs"])
    lines = [
        *(
            [
                "*Our rows are those of a loader of worker processes and rings of buffers, which is gone: "
                "threads have taken its place. `make bench-loaders` on a quiet machine replaces them.*",
                "",
            ]
            if rates.gone
            else []
        ),
        f"Samples a second, {z} x {y} x {x} voxels a volume, batches of {results['batch']}, "
        f"{results['workers']} workers, best epoch; "
        f"bold {how}, then {other}. Targets are judged by the former: the load of the machine was {load} at "
        f"the start, and below {QUIET} "
        "the clock is believed. In brackets the peak memory in MB, workers included, pages of mapped files "
        "left out.",
    ]

    def cell(row: Results | None, note: str) -> str:
        if row is None:
            return "-"
        counts, other = rates.pair(row)
        return f"**{counts:.1f}** / {other:.1f} ({row[note]:.0f})"

    def section(protocols: Sequence[str], note: str) -> list[list[str]]:
        names = {r["loader"]: r["name"] for p in protocols for r in rates(p)}
        return [
            [name, *(cell(rates.row(p, loader), note) for p in protocols)] for loader, name in names.items()
        ]

    titles = [
        f"`cropped`, {results['cropped']} volumes",
        f"`full`, {results['whole']} volumes with 62 questions",
        f"each of {results['volumes']} volumes once",
    ]
    rows = section(LOCAL, "own_mb")
    for kind in ("fresh", "kept") if "limit" in results else ():
        cells = []
        for protocol in LOCAL:
            by, ours = results["limit"][protocol][kind], rates.get(protocol, "Ours")
            share = f" ({ours / by[rates.by]:.0%})" if ours else ""
            cells.append(
                f"**{by[rates.by]:.1f}** / {by['processor' if rates.by == 'clock' else 'clock']:.1f}{share}"
            )
        rows.append([f"*the limit, {kind} pages* (what ours reaches of it)", *cells])
    lines += _markdown(["loader", *titles], "lrrr", rows)
    if any(rates(p) for p in NETWORK):
        sends = (
            f", which sends {results['server_mb_s'] / 1000:.1f} GB/s to two plain sockets"
            if "server_mb_s" in results
            else ""
        )
        lines += [
            "",
            f"Over HTTP, from a server on the loopback{sends}, and from the same one slowed down to "
            f"{THROTTLE} MB/s over all connections, "
            "where the clock counts in any case; in brackets the megabytes that it sent in an epoch.",
        ]
        measured = [p for p in NETWORK if rates(p)]
        lines += _markdown(
            ["loader", *(PROTOCOLS[p].title for p in measured)],
            "l" + "r" * len(measured),
            section(measured, "moved_mb"),
        )
    if made := targets(results):
        lines += _markdown(
            ["target", "wanted", "measured", ""],
            "llll",
            [(t.text, t.wanted, t.measured, _VERDICT[t.met]) for t in made],
        )
    if "waiting" in results:
        lines += [
            "",
            "Beside a training step of a small 3D network on the same two cores: the share of the loop's "
            "time spent waiting for a batch, and the milliseconds of a whole step.",
        ]
        lines += _markdown(
            ["config", "batches made by", "waiting", "ms a step"],
            "llrr",
            [
                (f"`{protocol}`", how, f"{got['share']:.0%}", f"{got['step_ms']:.0f}")
                for protocol, ways in results["waiting"].items()
                for how, got in ways.items()
            ],
        )
    if "growing" in results:
        z, y, x = results["grown_shape"]
        lines += ["", f"Ours over growing cohorts of {z} x {y} x {x} voxels, second epoch:"]
        memory = ("own_mb", "rss_mb")  # 0: over before it was looked at
        numbers = [
            (g["volumes"], f"`{g['protocol']}`", f"{g['ms']:.2f}", f"{g['clock_ms']:.2f}")
            for g in results["growing"]
        ]
        grown = [
            (*of, *(g[key] or "-" for key in memory))
            for of, g in zip(numbers, results["growing"], strict=True)
        ]
        lines += _markdown(
            [
                "volumes",
                "config",
                "processor ms a quintuple",
                "ms by the clock",
                "MB",
                "MB with mapped files",
            ],
            "rlrrrr",
            grown,
        )
    if results["failed"]:
        lines += [
            "",
            "Not measured: " + "; ".join(f"{what} ({why})" for what, why in results["failed"].items()) + ".",
        ]
    told = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    after = ", ".join(f"{run['load_after']:.1f}" for run in results["runs"])
    runs = (
        "One run"
        if len(results["runs"]) == 1
        else f"Put together from {len(results['runs'])} runs; the JSON says which row is of which"
    )
    return "\n".join([*lines, "", f"{runs}. Measured with {told}. Load of the machine at the end: {after}."])


def write_report(results: Results, out: Path, page: Path | None) -> None:
    """The chart beside the JSON, and the tables between the markers of the page."""
    _chart(results, out.with_suffix(".png"))
    if page is not None:
        put(page, "loaders.py", table(results))


# --- the chart ----------------------------------------------------------------------------------------------

_OURS, _PEER = "#1f6f8b", "#b8b8b8"


def _chart(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = Rates(results)

    def drawn(protocol: str) -> list[Results]:
        """Ours once, as a reader would first use it, and every peer."""
        return sorted(
            (r for r in rates(protocol) if not r["ours"] or r["loader"] in ("Ours", "OursStreamed")),
            key=rates.of,
        )

    rows_of_panels = [
        shown for shown in ([p for p in group if drawn(p)] for group in (LOCAL, NETWORK)) if shown
    ]
    heights = [max(len(drawn(p)) for p in shown) + 4 for shown in rows_of_panels]
    figure = pyplot.figure(figsize=(16, 0.3 * sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    panels = [
        part.subplots(1, len(shown), squeeze=False)[0]
        for part, shown in zip(parts, rows_of_panels, strict=True)
    ]
    for protocol, axes in zip(chain(*rows_of_panels), chain(*panels), strict=True):
        rows = drawn(protocol)
        values = [rates.of(r) for r in rows]
        bars = axes.barh(
            [r["name"] for r in rows], values, color=[_OURS if r["ours"] else _PEER for r in rows]
        )
        labels = [f"{v:.0f}" if v >= 100 else f"{v:.3g}" for v in values]
        axes.bar_label(bars, labels, padding=3, fontsize=8)
        axes.margins(x=0.25)
        axes.set_xlim(left=0)
        axes.set_title(PROTOCOLS[protocol].title.replace("`", ""), fontsize=10)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    slow = f"; at {THROTTLE} MB/s by the clock" if rates.by == "processor" and len(rows_of_panels) > 1 else ""
    figure.supxlabel(
        f"samples a second by {'the clock' if rates.by == 'clock' else 'processor time'}{slow}", fontsize=10
    )
    figure.savefig(path, dpi=100, metadata={"Software": None})
    pyplot.close(figure)
