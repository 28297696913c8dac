"""Loaders side by side: ours, upstream's way and the peers, on the same knees, in one run.

    python benchmarks/loaders.py --data <folder> --out docs/bench/loaders.json      # everything; `make bench`
    python benchmarks/loaders.py --quick                                            # small knees, ours and upstream's way only

Each measurement is one epoch, or its first seconds, of one loader in a process of its own: batches of four, two workers, warm page cache. Loaders
take turns, round by round, and the best round counts. Before that, on small knees, every loader gives a whole epoch whose samples are counted and
compared with ours, value by value.
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
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import knees
import loaders_limit
from loaders_report import write_report
from peers import BATCH, LOADERS, OURS, PEERS, PROTOCOLS, WORKERS, Loader, Ours, Upstream, items

SMALL, LARGE, VOLUMES = (24, 64, 64), (160, 384, 384), 12
GROWING, GROWN = (8, 32, 128), (80, 192, 192)
PACKAGES = ("torch", "numpy", "pyarrow", "nibabel", "datasets", "monai", "torchio", "webdataset", "litdata", "mosaicml-streaming", "zstandard")


# --- in the process of one measurement --------------------------------------------------------------------------------------------


def epoch(loader: Loader, seconds: float) -> dict[str, Any]:
    batches = loader.batches()
    count = 0
    start = time.perf_counter()
    for batch in batches:
        count += len(batch["ids"])
        if time.perf_counter() - start > seconds:
            break
    took = time.perf_counter() - start
    return {"samples": count, "seconds": took, "whole": took <= seconds}


def values(loader: Loader) -> dict[str, Any]:
    """What an epoch gives, sample by sample, in numbers that tell a wrong voxel, box or grade."""
    found: dict[str, Any] = {}
    for batch in loader.batches():
        for i, name in enumerate(batch["ids"]):
            if name in found:
                raise SystemExit(f"{loader.name}: {name} came twice")
            volume = batch["volumes"][int(batch["index"][i]) if "index" in batch else i, 0].double()
            place = [float((volume.sum(dim=[d for d in range(3) if d != axis]) @ _ramp(volume, axis))) for axis in range(3)]
            found[name] = [float(volume.sum()), *place, *batch["boxes"][i].tolist(), *batch["grades"][i].tolist()]
    return found


def _ramp(volume: Any, axis: int) -> Any:
    import torch

    return torch.arange(volume.shape[axis], dtype=torch.float64)


def shuffling(folder: Path) -> dict[str, float]:
    """Seconds of an epoch of crops in one process, in stored order, and shuffled with the position kept after every batch; three turns each."""
    best = {"plain": 1e9, "shuffled": 1e9}
    for _ in range(3):
        for name, seed in (("plain", None), ("shuffled", 0)):
            loader = Ours(folder, "cropped")
            batches = loader.loader(loader.stream(seed=seed, ahead=0), workers=0)
            start = time.perf_counter()
            for _batch in batches:
                if seed is not None:
                    batches.state_dict()
            best[name] = min(best[name], time.perf_counter() - start)
    return {**best, "cost": best["shuffled"] / best["plain"] - 1}


def child(args: argparse.Namespace) -> None:
    folder = Path(args.data)
    if args.child == "limit":
        print(json.dumps(loaders_limit.limit(folder)))
    elif args.child == "shuffling":
        print(json.dumps(shuffling(folder)))
    else:
        loader = LOADERS[args.child](folder, args.protocol)
        if args.what == "prepare":
            loader.prepare()
            result: Any = {}
        else:
            result = values(loader) if args.what == "values" else epoch(loader, args.seconds)
        print("\n" + json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # workers that still read ahead are not waited for


# --- in the main process ----------------------------------------------------------------------------------------------------------


def run(name: str, folder: Path, protocol: str = "", what: str = "epoch", seconds: float = 600) -> dict[str, Any]:
    """One measurement in a new process, with the most memory that it and its children held together."""
    command = [sys.executable, __file__, "--child", name, "--data", str(folder), "--protocol", protocol, "--what", what, "--seconds", str(seconds)]
    quiet = {"PYTHONWARNINGS": "ignore", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "hf")}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, env={**os.environ, **quiet}, start_new_session=True)
        most: dict[str, float] = {}
        while process.poll() is None:
            for key, value in memory(process.pid).items():
                most[key] = max(value, most.get(key, 0))
            time.sleep(0.25)
        try:
            os.killpg(process.pid, 9)  # whatever its workers are still doing
        except ProcessLookupError:
            pass
        out.seek(0)
        err.seek(0)
        lines = out.read().decode().strip().splitlines()
        if process.returncode or not lines:
            raise RuntimeError((err.read().decode().strip().splitlines() or ["no output"])[-1][:300])
    return {**json.loads(lines[-1]), **({f"{k}_mb": round(v) for k, v in most.items()} if what == "epoch" else {})}


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


def installed(loader: type[Loader]) -> bool:
    try:
        return bool(importlib.metadata.version(loader.package))
    except importlib.metadata.PackageNotFoundError:
        return False


def check(folder: Path, wanted: list[type[Loader]], protocols: tuple[str, ...]) -> dict[str, Any]:
    """Every loader gives every sample once, with the values that ours has. Says which do not."""
    found: dict[str, Any] = {}
    for protocol in protocols:
        names = {i["id"] for i in items(folder, protocol)}
        truth: dict[str, Any] = run("Ours", folder, protocol, "values")
        for loader in (each for each in wanted if protocol in each.protocols):
            try:
                run(loader.__name__, folder, protocol, "prepare")
                got = run(loader.__name__, folder, protocol, "values")
                loose = 2e-2 if "bfloat16" in loader.name else 1e-5
                same = all(_near(got[n], truth[n], loose) for n in names & set(got))
                state = "same" if same and set(got) == names == set(truth) else f"{len(names & set(got))} of {len(names)} samples{'' if same else ', values differ'}"
            except RuntimeError as error:
                state = f"failed: {error}"
            found[f"{loader.__name__} {protocol}"] = state
            print(f"check  {protocol:8} {loader.name:34} {state}", flush=True)
    return found


def _near(a: list[float], b: list[float], loose: float) -> bool:
    return len(a) == len(b) and all(abs(x - y) <= loose * max(1.0, abs(y)) for x, y in zip(a, b, strict=True))


def measure(folder: Path, wanted: list[type[Loader]], rounds: dict[str, int], seconds: float) -> list[dict[str, Any]]:
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for protocol, turns in rounds.items():
        for loader in wanted:
            if protocol in loader.protocols:
                run(loader.__name__, folder, protocol, "prepare")
        for turn in range(turns):
            for loader in wanted:
                if protocol not in loader.protocols:
                    continue
                try:
                    got = run(loader.__name__, folder, protocol, "epoch", seconds)
                except RuntimeError as error:
                    print(f"{protocol:8} {loader.name:34} failed: {error}", flush=True)
                    continue
                expected = len(items(folder, protocol))
                if got["whole"] and got["samples"] != expected:
                    raise SystemExit(f"{loader.name}: {got['samples']} of {expected} samples")
                rate = got["samples"] / got["seconds"]
                print(f"{protocol:8} {loader.name:34} {rate:8.1f} samples/s  {got['rss_mb']:6.0f} MB  round {turn + 1}", flush=True)
                known = best.get((protocol, loader.__name__))
                row = {"protocol": protocol, "loader": loader.__name__, "name": loader.name, "ours": loader.ours, "rate": rate, **got}
                row["rates"] = [*(known["rates"] if known else []), rate]
                best[protocol, loader.__name__] = row if known is None or rate > known["rate"] else {**known, "rates": row["rates"]}
    return list(best.values())


def growing(data: Path, counts: tuple[int, ...], shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    """Memory and time a quintuple over larger and larger cohorts, shuffled."""
    found = []
    for count in counts:
        folder = data / f"grown-{count}"
        knees.make(folder, count, shape, noise=False)
        for protocol in ("cropped", "full"):
            run("Ours", folder, protocol, "epoch", 20)
            got = run("Ours", folder, protocol, "epoch", 60 if protocol == "cropped" else 20)
            found.append({"volumes": count, "protocol": protocol, "ms": 1000 * got["seconds"] / got["samples"], **got})
            print(f"{count:4} volumes, {protocol:8} {found[-1]['ms']:.2f} ms a quintuple, {got['own_mb']} MB ({got['rss_mb']} with mapped files)", flush=True)
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
    parser.add_argument("--seconds", type=float, default=12, help="most that one measurement takes")
    parser.add_argument("--only", default="", help="loaders by name, comma-separated")
    parser.add_argument("--report", type=Path, help="only write chart and page from this JSON")
    for name in ("child", "protocol", "what"):
        parser.add_argument(f"--{name}", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args)
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
    known = [each for each in ((Ours, Upstream) if args.quick else (*OURS, *PEERS)) if installed(each)]
    wanted = [each for each in known if not args.only or each.__name__ in args.only.split(",")]
    knees.make(data / "small", 2 if args.quick else VOLUMES, SMALL)
    results: dict[str, Any] = {"versions": versions(), "batch": BATCH, "workers": WORKERS, "missing": [e.name for e in (*OURS, *PEERS) if not installed(e)]}
    results["checked"] = check(data / "small", wanted, PROTOCOLS)
    sound = [w for w in wanted if not any(k.split()[0] == w.__name__ and v != "same" for k, v in results["checked"].items())]
    turns = dict(zip(PROTOCOLS, (1, 1, 1) if args.quick else (int(n) for n in args.rounds.split(",")), strict=True))
    folder = data / "small"
    if not args.quick:
        folder = data / "large"
        knees.make(folder, VOLUMES, LARGE)
    results |= {"shape": SMALL if args.quick else LARGE, "volumes": 2 if args.quick else VOLUMES, "load_before": os.getloadavg()[0]}
    results["rows"] = measure(folder, sound, {p: n for p, n in turns.items() if n}, args.seconds)
    if not args.quick:
        results["limit"] = run("limit", folder)
        results["shuffling"] = run("shuffling", folder)
        results["growing"] = growing(data, GROWING, GROWN)
        results["grown_shape"] = GROWN
    results["load_after"] = os.getloadavg()[0]
    return results


if __name__ == "__main__":
    main()
