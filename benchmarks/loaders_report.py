"""The results of `loaders.py` as a table, a list of targets and a chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from pages import put

Results = dict[str, Any]


class Target(NamedTuple):
    text: str
    wanted: str
    measured: str
    met: bool | None  # None: the noise does not let us say


_VERDICT = {True: "met", False: "**missed**", None: "undecided"}


def rates(results: Results, protocol: str) -> dict[str, float]:
    return {row["loader"]: row["cpu_rate"] for row in results["rows"] if row["protocol"] == protocol}


def best_peer(results: Results, protocol: str) -> tuple[str, float]:
    row = max((r for r in results["rows"] if r["protocol"] == protocol and not r["ours"]), key=lambda r: r["cpu_rate"])
    return row["name"], row["cpu_rate"]


def targets(results: Results) -> list[Target]:
    made: list[Target] = []

    def least(text: str, value: float, wanted: float) -> None:
        made.append(Target(text, f"at least {wanted:g}x", f"{value:.2f}x", value >= wanted))

    for protocol, over_peer, over_upstream, ours in (("cropped", 2.0, 80.0, "Ours"), ("full", 1.7, 8.0, "Ours"), ("once", 1.2, 0.0, "OursCached")):
        found = rates(results, protocol)
        name, rate = best_peer(results, protocol)
        least(f"`{protocol}`{', `datasets` cache' if ours == 'OursCached' else ''}: over the best peer ({name})", found[ours] / rate, over_peer)
        if over_upstream:
            least(f"`{protocol}`: over upstream's way", found[ours] / found["Upstream"], over_upstream)
    full = rates(results, "full")
    least("`full`: a ring over fresh buffers", full["OursRing"] / full["Ours"], 4)
    least("`full`: bfloat16 over float32, both with a ring (nearly 2x)", full["OursHalfRing"] / full["OursRing"], 1.8)
    least("`full`: volume-major over question by question, both bfloat16 with a ring (far more)", full["OursByVolumeHalf"] / full["OursHalfRing"], 2)
    for protocol in ("cropped", "full", "once") if "limit" in results else ():
        share = rates(results, protocol)["Ours"] / results["limit"][f"{protocol} fresh"]
        made.append(Target(f"`{protocol}`: share of the limit, fresh buffers", "at least 55 %", f"{share:.0%}", share >= 0.55))
    if "shuffling" in results:
        cost = results["shuffling"]["cost"]
        made.append(
            Target("shuffling with exact resume, over stored order", "under 5 %", f"{cost:+.1%}", None if cost < -0.05 else cost < 0.05)
        )  # faster than plain order can only be noise
    for protocol in ("cropped", "full"):
        few, many = (next(g for g in results["growing"] if g["protocol"] == protocol and g["volumes"] == n) for n in (32, 128))
        for key, what in (("own_mb", "memory"), ("ms", "processor time a quintuple")):
            ratio = many[key] / few[key]
            made.append(Target(f"`{protocol}`: {what}, 128 volumes over 32", "flat (within 10 %)", f"{ratio:.2f}x", ratio <= 1.1))
    return made


def table(results: Results) -> str:
    """Markdown: what was measured."""
    z, y, x = results["shape"]
    names = {row["loader"]: row["name"] for row in results["rows"]}
    lines = [
        f"Samples a second over {results['volumes']} volumes of {z} x {y} x {x}, batches of {results['batch']}, {results['workers']} workers; "
        "best round. First by processor time (workers x samples / processor seconds of the loader and its workers), which other load on the machine "
        "changes little; then by the clock; in brackets the peak memory in MB, workers included, pages of mapped files left out.",
        "",
        f"| loader | `cropped` | `full`, {results['whole']} volumes with 62 questions | each volume once |",
        "|---|---:|---:|---:|",
    ]
    for loader, name in names.items():
        cells = []
        for protocol in ("cropped", "full", "once"):
            row = next((r for r in results["rows"] if (r["protocol"], r["loader"]) == (protocol, loader)), None)
            cells.append("-" if row is None else f"**{row['cpu_rate']:.1f}** / {row['rate']:.1f} ({row['own_mb']})")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if "limit" in results:
        for kind in ("fresh", "kept"):
            cells = [f"**{results['limit'][f'{p} {kind}']:.1f}**" for p in ("cropped", "full", "once")]
            lines.append(f"| *the limit, {kind} pages* | {' | '.join(cells)} |")
    if "growing" in results:
        lines += ["", "| target | wanted | measured | |", "|---|---|---|---|"]
        lines += [f"| {t.text} | {t.wanted} | {t.measured} | {_VERDICT[t.met]} |" for t in targets(results)]
        z, y, x = results["grown_shape"]
        lines += ["", f"Ours over growing cohorts of {z} x {y} x {x} voxels:", "", "| volumes | config | processor ms | MB | MB with mapped files |"]
        lines += ["|---:|---|---:|---:|---:|"]
        lines += [f"| {g['volumes']} | `{g['protocol']}` | {g['ms']:.2f} | {g['own_mb']} | {g['rss_mb']} |" for g in results["growing"]]
    told = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    load = f"Load of the machine before and after: {results['load_before']:.1f}, {results['load_after']:.1f}."
    return "\n".join([*lines, "", f"Measured with {told}. {load}"])


def write_report(results: Results, out: Path, page: Path | None) -> None:
    """The chart beside the JSON, and the table between the markers of the page."""
    _chart(results, out.with_suffix(".png"))
    if page is not None:
        put(page, "loaders.py", table(results))


def _chart(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(16, 5.5), layout="constrained")
    titles = {"cropped": "cropped", "full": "full, 62 questions a volume", "once": "each volume once"}
    for axes, (protocol, title) in zip(panels, titles.items(), strict=True):
        rows = sorted((r for r in results["rows"] if r["protocol"] == protocol), key=lambda r: r["cpu_rate"])
        bars = axes.barh([r["name"] for r in rows], [r["cpu_rate"] for r in rows], color=["#1f6f8b" if r["ours"] else "#b8b8b8" for r in rows])
        axes.bar_label(bars, [f"{r['cpu_rate']:.3g}" for r in rows], padding=3, fontsize=8)
        axes.set_xscale("log")
        axes.margins(x=0.15)
        axes.set_title(title)
        axes.set_xlabel("samples a second by processor time (log)")
        axes.tick_params(axis="y", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    pyplot.close(figure)
    figure.savefig(path, dpi=100, metadata={"Software": None})
