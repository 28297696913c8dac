"""Loaders side by side: ours, upstream's way and the peers, on the same knees, in one run.

    python benchmarks/loaders.py --data <folder> --out docs/bench/loaders.json      # everything; `make bench`
    python benchmarks/loaders.py --quick                                            # small knees; ours,
    upstream's way and `datasets` only python benchmarks/loaders.py --data <folder> --out
    docs/bench/loaders.json --merge --parts once,limit --only Ours,MonaiPersistent --rounds 5

Each loader is made once, in a process of its own, and times epoch after epoch, or the first seconds of each:
batches of four, two workers, warm page cache. Loaders take turns of two epochs, each round in another order,
and the best epoch counts. Before that, on small knees, every loader gives a whole epoch whose samples are
counted and compared with ours, value by value. What is done is written after each part.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import knees
import numpy as np
from loaders_child import EVERY, LOADERS, TASKS
from loaders_process import Here, Process
from loaders_report import table, write_report
from ours import Ours
from peers import Loader, Upstream
from protocols import BATCH, CROPPED, FEW, PROTOCOLS, WHOLE, WORKERS, items
from streamed import HubStreamed, OursStreamed
from web import RELEASE, Web

SMALL, LARGE, CHECKED, VOLUMES = (24, 64, 64), (160, 384, 384), CROPPED + 2, 2 * CROPPED
GROWING, GROWN = (8, 32, 128), (80, 192, 192)
ROUNDS = {
    "cropped": 2,
    "full": 1,
    "once": 2,
    "streamed": 1,
    "throttled": 1,
    "streamed-cropped": 1,
    "throttled-cropped": 1,
}
# epochs of a turn: a machine may take memory back that nobody uses for some seconds, so that only the second
# one finds it
IN_A_ROW = 2
SLOW = (
    2.5  # processor seconds a batch from which one epoch is enough: what memory costs is little beside that
)
PARTS = (*PROTOCOLS, *TASKS, "growing")
QUICK = ("cropped", "full", "once", "streamed")
PACKAGES = (
    "torch",
    "numpy",
    "pyarrow",
    "nibabel",
    "datasets",
    "monai",
    "torchio",
    "webdataset",
    "litdata",
    "grain",
    "mosaicml-streaming",
    "zstandard",
)
Results = dict[str, Any]
Kind = type[Loader]


def installed(loader: Kind) -> bool:
    try:
        return bool(importlib.metadata.version(loader.package))
    except importlib.metadata.PackageNotFoundError:
        return False


def started(loader: Kind, folder: Path, protocols: tuple[str, ...], web: Web | None, quick: bool) -> Any:
    network = PROTOCOLS[protocols[0]].network
    if quick and not network:
        return Here(loader.__name__, folder, protocols)
    return Process(loader.__name__, folder, protocols, web.env if web and network else None)


def served(folder: Path, wanted: list[Kind], stack: ExitStack) -> Web | None:
    """A server, if a loader wants one."""
    return (
        stack.enter_context(Web(folder))
        if any(PROTOCOLS[p].network for each in wanted for p in each.protocols)
        else None
    )


# --- what is given ------------------------------------------------------------------------------------------


def check(folder: Path, wanted: list[Kind], quick: bool) -> dict[str, str]:
    """Every loader gives every sample once, with the values that ours has. Says which do not."""
    found: dict[str, str] = {}
    truth: dict[str, Any] = {}
    with ExitStack() as stack:
        web = served(folder, wanted, stack)
        running = {}
        for (
            loader
        ) in wanted:  # a protocol that differs from another in the speed of the server only needs no check
            protocols = tuple(p for p in loader.protocols if PROTOCOLS[p].megabytes is None)
            running[loader] = (stack.enter_context(started(loader, folder, protocols, web, quick)), protocols)
        for loader in sorted(wanted, key=lambda each: each is not Ours):
            asked, protocols = running[loader]
            for protocol in protocols:
                content = PROTOCOLS[protocol].content
                got = asked.ask(protocol, "prepare")
                got = got if "error" in got else asked.ask(protocol, "values")
                names, rounded = {i["id"] for i in items(folder, content)}, "bfloat16" in loader.name
                state = (
                    f"failed: {got['error']}"
                    if "error" in got
                    else _compared(got, truth.setdefault(content, got), names, rounded)
                )
                found[f"{loader.__name__} {protocol}"] = state
                print(f"check  {protocol:17} {loader.name:34} {state}", flush=True)
    return found


def _compared(got: dict[str, Any], truth: dict[str, Any], names: set[str], rounded: bool) -> str:
    if set(got) != names:
        return f"{len(names & set(got))} of {len(names)} samples"
    return (
        "same" if all(_near(got[n], truth[n], 2e-2 if rounded else 1e-5) for n in names) else "values differ"
    )


def _near(a: list[float], b: list[float], loose: float) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= loose * max(1.0, abs(y)) for x, y in zip(a, b, strict=True))


# --- how fast -----------------------------------------------------------------------------------------------


def find_memory() -> None:
    """Touches the memory that is free.

    A virtual machine gets a page from its host when it is first touched, which costs whoever comes first.
    """
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemFree"].split()[0]) * 1024
    size = min(free - (1 << 30), 4 << 30)
    if size > 0:
        start = time.perf_counter()
        np.empty(size, np.uint8)[::4096] = 1
        print(f"touched {size >> 20} MB of memory in {time.perf_counter() - start:.1f} s", flush=True)


def measure(
    folder: Path, protocol: str, wanted: list[Kind], rounds: int, web: Web | None, quick: bool
) -> tuple[list[Results], dict[str, str]]:
    """A row for each loader, its best epoch by the clock and by processor time; and which loaders failed,
    and how."""
    rows: dict[Kind, Results] = {}
    failed: dict[Kind, str] = {}
    whole = len(items(folder, PROTOCOLS[protocol].content))
    with ExitStack() as stack:
        running = {
            loader: stack.enter_context(started(loader, folder, (protocol,), web, quick)) for loader in wanted
        }
        for loader, asked in running.items():
            if error := asked.ask(protocol, "prepare").get("error"):
                failed[loader] = error
        if web:
            web.throttle(None)
            web.warm()
            web.throttle(PROTOCOLS[protocol].megabytes)
        for turn in range(rounds):
            first = turn * len(wanted) // rounds
            for loader in (*wanted[first:], *wanted[:first]):
                for _ in range(1 if quick else IN_A_ROW):
                    if loader in failed:
                        break
                    before = web.sent() if web else 0
                    got = running[loader].ask(protocol, "epoch")
                    expected = FEW if PROTOCOLS[protocol].content in loader.short else whole
                    if "error" in got or got["samples"] not in (expected, whole):
                        failed[loader] = (
                            got.get("error") or f"{got['samples']} of {expected} samples in round {turn + 1}"
                        )
                        rows.pop(loader, None)
                        break
                    got["moved_mb"] = (web.sent() - before) / 1e6 if web else 0
                    row = rows[loader] = _with_epoch(rows.get(loader), protocol, loader, got)
                    told = (
                        f"{row['rates'][-1]:8.2f} samples/s {row['cpu_rates'][-1]:8.2f} by processor "
                        "time "
                        f"{got['own_mb']:6.0f} MB"
                    )
                    print(
                        f"{protocol:17} {loader.name:34} {told} {got['moved_mb']:6.0f} MB moved  round "
                        f"{turn + 1}",
                        flush=True,
                    )
                    if got["cpu_seconds"] > SLOW * got["samples"] / BATCH:
                        break
        if web:
            web.throttle(None)
    for loader, error in failed.items():
        print(f"{protocol:17} {loader.name:34} failed: {error}", flush=True)
    return list(rows.values()), {f"{loader.__name__} {protocol}": error for loader, error in failed.items()}


def _with_epoch(known: Results | None, protocol: str, loader: Kind, got: Results) -> Results:
    row = known or {
        "protocol": protocol,
        "loader": loader.__name__,
        "name": loader.name,
        "ours": loader.ours,
        "samples": got["samples"],
    }
    rates = [*row.get("rates", []), got["samples"] / got["seconds"]]
    cpu_rates = [*row.get("cpu_rates", []), WORKERS * got["samples"] / got["cpu_seconds"]]
    most = {key: max(got[key], row.get(key, 0)) for key in ("rss_mb", "own_mb", "moved_mb")}
    return {
        **row,
        "rate": max(rates),
        "cpu_rate": max(cpu_rates),
        **most,
        "rates": rates,
        "cpu_rates": cpu_rates,
    }


def growing(data: Path) -> list[Results]:
    """Memory and time a quintuple over larger and larger cohorts, shuffled: of the second epoch, when
    everything is there."""
    found = []
    for count in GROWING:
        folder = data / f"grown-{count}"
        knees.make(folder, count, GROWN, noise=False, peers=False)
        for protocol in ("cropped", "full"):
            with Process("Ours", folder, (protocol,)) as ours:
                got = [ours.ask(protocol, "epoch") for _ in range(2)][-1]
            if "error" in got:
                raise SystemExit(f"growing, {count} volumes: {got['error']}")
            ms = {
                "ms": 1000 * got["cpu_seconds"] / got["samples"],
                "clock_ms": 1000 * got["seconds"] / got["samples"],
            }
            found.append({"volumes": count, "protocol": protocol, **ms, **got})
            told = (
                f"{ms['ms']:.2f} ms a quintuple ({ms['clock_ms']:.2f} by the clock), {got['own_mb']} MB "
                f"({got['rss_mb']} with mapped files)"
            )
            print(f"{count:4} volumes, {protocol:8} {told}", flush=True)
    return found


def prepare(data: Path, folder: Path, wanted: list[Kind]) -> None:
    """What a run would make before it measures: grown cohorts, and each loader's own form of the knees."""
    for count in GROWING:
        knees.make(data / f"grown-{count}", count, GROWN, noise=False, peers=False)
    for loader in wanted:
        local = tuple(p for p in loader.protocols if not PROTOCOLS[p].network)
        with Process(loader.__name__, folder, local) as asked:
            for protocol in local:
                told = asked.ask(protocol, "prepare").get("error", "ready")
                print(f"prepare {protocol:17} {loader.name:34} {told}", flush=True)


def task(name: str, folder: Path) -> Results:
    with Process(name, folder) as running:
        found = running.result()
    print(name, json.dumps(found), flush=True)
    if "error" in found:
        raise SystemExit(f"{name}: {found['error']}")
    return found


# --- the run ------------------------------------------------------------------------------------------------


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cores": str(os.cpu_count())}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    told = subprocess.run(command, capture_output=True, text=True)
    return told.stdout.strip() or "unknown"


_SAME = (
    "versions",
    "batch",
    "workers",
    "shape",
    "volumes",
    "cropped",
    "whole",
)  # what two runs must have in common to be put together


def merged(known: Results, new: Results) -> Results:
    """The known results with what a later run measured in place of the same rows and parts.

    Every row says which run it is of.
    """
    for name in _SAME:
        if known.get(name) != new[name]:
            raise SystemExit(
                f"these runs do not go together: {name} was {known.get(name)}, now it is {new[name]}"
            )
    before = len(known["runs"])
    rows = [{**row, "run": row["run"] + before} for row in new["rows"]]
    measured = {(row["protocol"], row["loader"]) for row in rows}
    measured |= {(protocol, loader) for loader, protocol in (key.split() for key in new["failed"])}
    failed = {
        key: error for key, error in known["failed"].items() if tuple(reversed(key.split())) not in measured
    }
    kept = [row for row in known["rows"] if (row["protocol"], row["loader"]) not in measured]
    return {
        **known,
        **new,
        "runs": [*known["runs"], *new["runs"]],
        "checked": {**known["checked"], **new["checked"]},
        "failed": {**failed, **new["failed"]},
        "rows": kept + rows,
    }


def bench(args: argparse.Namespace, data: Path) -> None:
    """The knees, then check and measurement, written down after each part."""
    began = time.time()
    available = [
        each
        for each in ((Ours, Upstream, OursStreamed, HubStreamed) if args.quick else EVERY)
        if installed(each)
    ]
    wanted = [each for each in available if not args.only or each.__name__ in args.only]
    volumes, shape = (2, SMALL) if args.quick else (VOLUMES, args.shape)
    folder = data / ("small" if args.quick else "x".join(str(n) for n in shape))
    if args.prepare:
        knees.make(folder, volumes, shape)
        prepare(data, folder, wanted)
        return
    run = {"commit": commit(), "load_before": os.getloadavg()[0], "parts": args.parts, "only": args.only}
    results: Results = {
        "versions": versions(),
        "batch": BATCH,
        "workers": WORKERS,
        "missing": [each.name for each in EVERY if not installed(each)],
        "shape": list(shape),
        "volumes": volumes,
        "cropped": min(CROPPED, volumes),
        "whole": min(WHOLE, volumes),
        "runs": [run],
        "failed": {},
        "rows": [],
    }
    known = json.loads(args.out.read_text()) if args.merge else None

    def save() -> None:
        run.update({"load_after": os.getloadavg()[0], "minutes": round((time.time() - began) / 60, 1)})
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(merged(known, results) if known else results, indent=1) + "\n")

    measured = [part for part in args.parts if part in PROTOCOLS]
    knees.make(data / "small", 2 if args.quick else CHECKED, SMALL)
    results["checked"] = (
        check(data / "small", list(dict.fromkeys([Ours, *wanted])), args.quick) if measured else {}
    )
    unsound = {key.split()[0]: state for key, state in results["checked"].items() if state != "same"}
    results["failed"] |= {f"{name} check": state for name, state in unsound.items()}
    sound = [each for each in wanted if each.__name__ not in unsound]
    save()
    knees.make(folder, volumes, shape)
    print(f"prepared after {(time.time() - began) / 60:.1f} minutes", flush=True)
    with ExitStack() as stack:
        web = served(folder, [each for each in sound if set(each.protocols) & set(measured)], stack)
        if web:
            web.warm()
            file = max((folder / "release").rglob("full/**/*.parquet"), key=lambda path: path.stat().st_size)
            results["server_mb_s"] = web.megabytes_a_second(
                f"datasets/{RELEASE}/resolve/main/{file.relative_to(folder / 'release')}"
            )
            print(f"the server sends {results['server_mb_s']:.0f} MB/s to two plain sockets", flush=True)
        if not args.quick:
            find_memory()
        for protocol in measured:
            able = [each for each in sound if protocol in each.protocols]
            rows, failed = measure(
                folder,
                protocol,
                able,
                args.rounds[protocol],
                web if PROTOCOLS[protocol].network else None,
                args.quick,
            )
            results["rows"] += [{**row, "run": 0} for row in rows]
            results["failed"] |= failed
            save()
            print(f"{protocol} done after {(time.time() - began) / 60:.1f} minutes", flush=True)
    for name in TASKS:
        if name in args.parts:
            results[name] = task(name, folder)
            save()
    if "growing" in args.parts:
        results |= {"growing": growing(data), "grown_shape": list(GROWN)}
        save()
    print(f"done after {(time.time() - began) / 60:.1f} minutes", flush=True)


def _rounds(text: str) -> dict[str, int]:
    """3 for all, or cropped=4,once=5 for some."""
    if text.isdigit():
        return dict.fromkeys(PROTOCOLS, int(text))
    given = dict(part.split("=") for part in text.split(",") if part)
    return {**ROUNDS, **{_known(name, PROTOCOLS): int(n) for name, n in given.items()}}


def _known(name: str, names: Any) -> str:
    if name not in names:
        raise SystemExit(f"no {name!r}: choose among {', '.join(names)}")
    return name


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="where the knees and each loader's form of them are kept; default: a folder that is removed",
    )
    parser.add_argument("--out", type=Path, help="JSON to write; a chart goes beside it")
    parser.add_argument("--page", type=Path, help="Markdown page to write")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small knees, one round; ours, upstream's way and `datasets` only",
    )
    parser.add_argument(
        "--shape",
        default=LARGE,
        type=lambda text: tuple(map(int, text.split(","))),
        help="voxels of a volume along z, y and x",
    )
    parser.add_argument(
        "--parts", default="", help=f"some of {', '.join(PARTS)}, comma-separated; default: all"
    )
    parser.add_argument(
        "--only", default="", help=f"loaders, comma-separated, among {', '.join(LOADERS)}; default: all"
    )
    parser.add_argument("--rounds", default="", help="of every protocol (3), or of some (cropped=4,once=5)")
    parser.add_argument(
        "--merge",
        action="store_true",
        help="put what is measured in place of the same rows and parts in --out",
    )
    parser.add_argument(
        "--prepare", action="store_true", help="only make the knees and every form of them: needs no quiet"
    )
    parser.add_argument("--report", type=Path, help="only write chart and page from this JSON")
    args = parser.parse_args()
    args.rounds = _rounds(args.rounds or ("1" if args.quick else ""))
    args.only = [_known(name, LOADERS) for name in args.only.split(",") if name]
    partial = bool(args.parts or args.only)
    args.parts = [_known(part, PARTS) for part in args.parts.split(",") if part] or list(
        QUICK if args.quick else PARTS
    )
    if args.merge and not (args.out and args.out.exists()):
        parser.error("--merge wants an --out that exists")
    if partial and not args.merge and args.out and args.out.exists():
        parser.error(f"a part of a run would replace {args.out}: give --merge, or another --out")
    return args


def main() -> None:
    args = arguments()
    if args.report:
        write_report(json.loads(args.report.read_text()), args.report, args.page)
        return
    with tempfile.TemporaryDirectory() as temporary:
        bench(args, args.data or Path(temporary))
    if args.out and not args.prepare:
        results = json.loads(args.out.read_text())
        write_report(results, args.out, args.page)
        print(table(results))


if __name__ == "__main__":
    main()
