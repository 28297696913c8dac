"""Loaders side by side: ours, upstream's way and the peers, on the same knees, in one run.

    python benchmarks/loaders.py --data <folder> --out docs/bench/loaders.json      # everything; `make bench`
    python benchmarks/loaders.py --quick                                            # small knees, ours and upstream's way only

Each measurement is one epoch, or its first seconds, of one loader in a process of its own: batches of four, two workers, warm page cache. Loaders
take turns, round by round, and the best round counts. Before that, on small knees, every loader gives a whole epoch whose samples are counted and
compared with ours, value by value.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import platform
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import knees
import loaders_limit
from loaders_report import write_report
from peers import BATCH, FEW, LOADERS, OURS, PEERS, PROTOCOLS, WHOLE, WORKERS, Loader, Ours, Upstream, items

SMALL, LARGE, VOLUMES = (24, 64, 64), (160, 384, 384), 12
GROWING, GROWN = (8, 32, 128), (80, 192, 192)
PACKAGES = ("torch", "numpy", "pyarrow", "nibabel", "datasets", "monai", "torchio", "webdataset", "litdata", "mosaicml-streaming", "zstandard")
_MARK = "@@ "  # tells an answer from what a peer prints


# --- in the process of one measurement --------------------------------------------------------------------------------------------


def epoch(loader: Loader) -> dict[str, Any]:
    """Samples, seconds, and processor seconds of this process and its workers: the latter hold on a busy machine, too."""
    loader.part = loader.protocol in loader.short
    batches = loader.batches()
    count, before = 0, processor()
    start = time.perf_counter()
    for batch in batches:
        count += len(batch["ids"])
    took = time.perf_counter() - start
    del batch, batches
    gc.collect()  # ends the workers, whose time is known only then
    return {"samples": count, "seconds": took, "cpu_seconds": processor() - before}


def processor() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def values(loader: Loader) -> dict[str, Any]:
    """What an epoch gives, sample by sample, in numbers that tell a wrong voxel, box or grade."""
    found: dict[str, Any] = {}
    for batch in loader.batches():
        for i, name in enumerate(batch["ids"]):
            if name in found:
                raise SystemExit(f"{loader.name}: {name} came twice")
            volume = batch["volumes"][int(batch["index"][i]) if "index" in batch else i, 0].double()
            place = [float(volume.sum(dim=[d for d in range(3) if d != axis]) @ _ramp(volume, axis)) for axis in range(3)]
            found[name] = [float(volume.sum()), *place, *batch["boxes"][i].tolist(), *batch["grades"][i].tolist()]
    return found


def _ramp(volume: Any, axis: int) -> Any:
    import torch

    return torch.arange(volume.shape[axis], dtype=torch.float64)


def shuffling(folder: Path) -> dict[str, float]:
    """Processor seconds of an epoch of crops in one process: in stored order, and shuffled with the position kept after every batch."""
    best = {"plain": 1e9, "shuffled": 1e9}
    for _ in range(3):
        for name, seed in (("plain", None), ("shuffled", 0)):
            loader = Ours(folder, "cropped")
            batches = loader.loader(loader.stream(seed=seed, ahead=0), workers=0)
            start = time.process_time()
            for _batch in batches:
                if seed is not None:
                    batches.state_dict()
            best[name] = min(best[name], time.process_time() - start)
    return {**best, "cost": best["shuffled"] / best["plain"] - 1}


TASKS = {"limit": loaders_limit.limit, "shuffling": shuffling}


def answer(loader: Loader, asked: dict[str, Any]) -> dict[str, Any]:
    if asked["what"] == "prepare":
        loader.prepare()
        return {}
    loader.part = False
    return values(loader) if asked["what"] == "values" else epoch(loader)


def child(name: str, folder: Path, protocols: list[str]) -> None:
    """Answers one line of JSON with one line, until there are no more."""
    if name in TASKS:
        print(_MARK + json.dumps(TASKS[name](folder)), flush=True)
        return
    loaders = {protocol: LOADERS[name](folder, protocol) for protocol in protocols}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            result = answer(loaders[asked["protocol"]], asked)
        except Exception as error:  # a peer may fail in any way; the table says so
            result = {"error": f"{type(error).__name__}: {str(error).strip()[:200]}"}
        print(_MARK + json.dumps(result), flush=True)
    os._exit(0)  # workers that still read ahead are not waited for


# --- in the main process ----------------------------------------------------------------------------------------------------------


class Process:
    """A loader, or a task, in a process of its own; the most memory that it and its children held together is kept."""

    def __init__(self, name: str, folder: Path, protocols: tuple[str, ...] = ()) -> None:
        quiet = {"PYTHONWARNINGS": "ignore", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "hf")}
        command = [sys.executable, __file__, "--child", name, "--data", str(folder), "--protocols", ",".join(protocols)]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        pipe = subprocess.PIPE
        env = {**os.environ, **quiet}
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=env, start_new_session=True)

    def ask(self, protocol: str, what: str) -> dict[str, Any]:
        print(json.dumps({"protocol": protocol, "what": what}), file=self.process.stdin, flush=True)
        return self.result(watch=what == "epoch")

    def result(self, watch: bool = False) -> dict[str, Any]:
        most = {"rss": 0.0, "own": 0.0}
        while True:
            ready, _, _ = select.select([self.process.stdout], [], [], 0.5 if watch else None)
            if not ready:
                most = {key: max(value, most[key]) for key, value in memory(self.process.pid).items()}
                continue
            line = self.process.stdout.readline()  # type: ignore[union-attr]
            if line.startswith(_MARK):
                found = json.loads(line.removeprefix(_MARK))
                return {**found, **{f"{key}_mb": round(value) for key, value in most.items()}} if watch else found
            if not line:
                self.errors.seek(0)
                return {"error": (self.errors.read().decode().strip().splitlines() or ["no output"])[-1][:200]}

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and its workers
        self.process.wait()
        self.errors.close()


class Here:
    """The same in this process, for a quick look."""

    def __init__(self, name: str, folder: Path, protocols: tuple[str, ...] = ()) -> None:
        self.loaders = {protocol: LOADERS[name](folder, protocol) for protocol in protocols}

    def ask(self, protocol: str, what: str) -> dict[str, Any]:
        return {**answer(self.loaders[protocol], {"what": what}), **({"rss_mb": 0, "own_mb": 0} if what == "epoch" else {})}

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def memory(pid: int) -> dict[str, float]:
    """Megabytes of a process and its children, shared pages counted once: all, and without pages of mapped files, which the system can drop."""
    total = {"rss": 0.0, "own": 0.0}
    pids = [pid]
    for each in pids:
        try:
            pids += [int(n) for n in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
            lines = dict(line.split(":") for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()[1:])
        except (OSError, ValueError):
            continue  # it has just ended
        kilobytes = {name: int(lines.get(name, "0 kB").split()[0]) for name in ("Pss", "Pss_File")}
        total["rss"] += kilobytes["Pss"] / 1024
        total["own"] += (kilobytes["Pss"] - kilobytes["Pss_File"]) / 1024
    return total


Where = Callable[..., Any]


def installed(loader: type[Loader]) -> bool:
    try:
        return bool(importlib.metadata.version(loader.package))
    except importlib.metadata.PackageNotFoundError:
        return False


def check(folder: Path, wanted: list[type[Loader]], where: Where) -> dict[str, str]:
    """Every loader gives every sample once, with the values that ours has. Says which do not."""
    found: dict[str, str] = {}
    truth: dict[str, Any] = {}
    for loader in sorted(wanted, key=lambda each: each is not Ours):
        with where(loader.__name__, folder, loader.protocols) as asked:
            for protocol in loader.protocols:
                names = {i["id"] for i in items(folder, protocol)}
                got = asked.ask(protocol, "prepare")
                got = got if "error" in got else asked.ask(protocol, "values")
                state = (
                    f"failed: {got['error']}" if "error" in got else _compared(got, truth.setdefault(protocol, got), names, "bfloat16" in loader.name)
                )
                found[f"{loader.__name__} {protocol}"] = state
                print(f"check  {protocol:8} {loader.name:34} {state}", flush=True)
    return found


def _compared(got: dict[str, Any], truth: dict[str, Any], names: set[str], rounded: bool) -> str:
    if set(got) != names:
        return f"{len(names & set(got))} of {len(names)} samples"
    return "same" if all(_near(got[n], truth[n], 2e-2 if rounded else 1e-5) for n in names) else "values differ"


def _near(a: list[float], b: list[float], loose: float) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= loose * max(1.0, abs(y)) for x, y in zip(a, b, strict=True))


def measure(folder: Path, wanted: list[type[Loader]], rounds: dict[str, int], where: Where) -> list[dict[str, Any]]:
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for protocol, turns in rounds.items():
        able = [loader for loader in wanted if protocol in loader.protocols]
        with ExitStack() as stack:
            asked = {loader: stack.enter_context(where(loader.__name__, folder, (protocol,))) for loader in able}
            for loader in able:
                if error := asked[loader].ask(protocol, "prepare").get("error"):
                    raise SystemExit(f"{loader.name}: {error}")
            for turn, loader in product(range(turns), able):
                got = asked[loader].ask(protocol, "epoch")
                expected = FEW if protocol in loader.short else len(items(folder, protocol))
                if "error" in got or got["samples"] not in (expected, len(items(folder, protocol))):
                    raise SystemExit(f"{loader.name}, {protocol}: {got.get('error') or str(got['samples']) + ' samples'}")
                rate = got["samples"] / got["seconds"]
                got["cpu_rate"] = WORKERS * got["samples"] / got["cpu_seconds"]
                told = f"{rate:8.1f} samples/s {got['cpu_rate']:8.1f} by processor time {got['rss_mb']:6.0f} MB  round {turn + 1}"
                print(f"{protocol:8} {loader.name:34} {told}", flush=True)
                row = {"protocol": protocol, "loader": loader.__name__, "name": loader.name, "ours": loader.ours, "rate": rate, **got}
                known = best.get((protocol, loader.__name__), row)
                most = {key: max(row[key], known[key]) for key in ("rss_mb", "own_mb", "cpu_rate")}
                best[protocol, loader.__name__] = {**(row if rate > known["rate"] else known), **most, "rates": [*known.get("rates", []), rate]}
    return list(best.values())


def growing(data: Path) -> list[dict[str, Any]]:
    """Memory and time a quintuple over larger and larger cohorts, shuffled."""
    found = []
    for count in GROWING:
        folder = data / f"grown-{count}"
        knees.make(folder, count, GROWN, noise=False, peers=False)
        for protocol in ("cropped", "full"):
            with Process("Ours", folder, (protocol,)) as ours:
                got = ours.ask(protocol, "epoch")
            found.append({"volumes": count, "protocol": protocol, "ms": 1000 * got["cpu_seconds"] / got["samples"], **got})
            ms, own = found[-1]["ms"], got["own_mb"]
            print(f"{count:4} volumes, {protocol:8} {ms:.2f} ms a quintuple, {own} MB ({got['rss_mb']} with mapped files)", flush=True)
    return found


def task(name: str, folder: Path) -> dict[str, Any]:
    with Process(name, folder) as running:
        found = running.result()
    print(name, json.dumps(found), flush=True)
    return found


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cores": str(os.cpu_count())}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where the knees and each loader's form of them are kept; default: a folder that is removed")
    parser.add_argument("--out", type=Path, help="JSON to write; a chart goes beside it")
    parser.add_argument("--page", type=Path, help="Markdown page to write")
    parser.add_argument("--quick", action="store_true", help="small knees, one round, ours and upstream's way only")
    parser.add_argument("--rounds", default="3,2,3", help="of each protocol")
    parser.add_argument("--only", default="", help="loaders by name, comma-separated")
    parser.add_argument("--report", type=Path, help="only write chart and page from this JSON")
    for name in ("child", "protocols"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.data, args.protocols.split(","))
    elif args.report:
        write_report(json.loads(args.report.read_text()), args.report, args.page)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            results = bench(args, args.data or Path(temporary))
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(results, indent=1) + "\n")
            write_report(results, args.out, args.page)


def bench(args: argparse.Namespace, data: Path) -> dict[str, Any]:
    where: Where = Here if args.quick else Process
    known = [each for each in ((Ours, Upstream) if args.quick else (*OURS, *PEERS)) if installed(each)]
    wanted = [each for each in known if not args.only or each.__name__ in args.only.split(",")]
    knees.make(data / "small", 2 if args.quick else VOLUMES, SMALL)
    results: dict[str, Any] = {
        "versions": versions(),
        "batch": BATCH,
        "workers": WORKERS,
        "missing": [e.name for e in (*OURS, *PEERS) if not installed(e)],
    }
    results["checked"] = check(data / "small", wanted, where)
    sound = [w for w in wanted if not any(k.split()[0] == w.__name__ and v != "same" for k, v in results["checked"].items())]
    turns = dict(zip(PROTOCOLS, (1, 1, 1) if args.quick else (int(n) for n in args.rounds.split(",")), strict=True))
    folder = data / "small"
    if not args.quick:
        folder = data / "large"
        knees.make(folder, VOLUMES, LARGE)
    results |= {"whole": WHOLE, "shape": SMALL if args.quick else LARGE, "volumes": 2 if args.quick else VOLUMES, "load_before": os.getloadavg()[0]}
    results["rows"] = measure(folder, sound, {p: n for p, n in turns.items() if n}, where)
    if not args.quick:
        results |= {name: task(name, folder) for name in TASKS}
        results["growing"] = growing(data)
        results["grown_shape"] = GROWN
    results["load_after"] = os.getloadavg()[0]
    return results


if __name__ == "__main__":
    main()
