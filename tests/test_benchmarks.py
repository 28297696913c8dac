"""The benchmarks run on small knees: loaders lose and change nothing, the build is measured, and the pages are those of the results."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow.parquet as pq
import pytest
from conftest import needs

from reasonknee.questions.regions import LABELS

needs("torch")
FOLDER = Path(__file__).parent.parent / "benchmarks"
sys.path.append(str(FOLDER))

import loaders  # noqa: E402
import loaders_limit  # noqa: E402
from build_report import page_text  # noqa: E402
from loaders_report import judged_by, table, targets, write_report  # noqa: E402
from pages import END, begin  # noqa: E402
from protocols import LOCAL  # noqa: E402
from web import RELEASE, Web  # noqa: E402

Results = dict[str, Any]


def measured(out: Path, *options: str) -> None:
    """The benchmark of loaders in this process, on small knees that stand beside what it writes."""
    words = ["loaders.py", "--quick", "--data", str(out.parent / "data"), "--out", str(out), *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        loaders.main()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """Loaders of local files; those that stream run in processes of their own, and are slow."""
    out = tmp_path_factory.mktemp("bench") / "loaders.json"
    measured(out, "--only", "Ours,Upstream")
    return out, json.loads(out.read_text())


@pytest.fixture(scope="module")
def complete(results: tuple[Path, Results]) -> Results:
    """The quick results with made-up numbers for the parts that a quick run leaves out: ours twice as fast as the best peer in everything."""
    found = copy.deepcopy(results[1])
    ours = ("Ours", "OursCached", "OursHalf", "OursByVolumeHalf")
    rates = {"rate": 20.0, "cpu_rate": 10.0, "own_mb": 1, "moved_mb": 5, "run": 0}
    found["rows"] = [
        {"protocol": p, "loader": name, "name": name, "ours": True, **rates} for p in LOCAL for name in ours
    ]
    found["rows"] += [
        {"protocol": p, "loader": "Upstream", "name": "upstream's way", "ours": False, **rates, "rate": 10.0}
        for p in LOCAL
    ]
    for protocol in ("streamed", "throttled"):
        found["rows"] += [
            {"protocol": protocol, "loader": "OursStreamed", "name": "ours", "ours": True, **rates}
        ]
        found["rows"] += [
            {
                "protocol": protocol,
                "loader": "HubStreamed",
                "name": "datasets",
                "ours": False,
                **rates,
                "rate": 10.0,
            }
        ]
    found["limit"] = {
        p: {"fresh": {"clock": 25.0, "processor": 50.0}, "kept": {"clock": 30.0, "processor": 60.0}}
        for p in LOCAL
    }
    found["shuffling"] = {"plain": 1.0, "shuffled": 1.01, "cost": 0.01}
    sizes = [(n, p) for n in loaders.GROWING for p in ("cropped", "full")]
    found["growing"] = [
        {"volumes": n, "protocol": p, "ms": 1.0, "clock_ms": 1.0, "own_mb": 100, "rss_mb": 200}
        for n, p in sizes
    ]
    found["grown_shape"], found["runs"][0]["load_before"] = [80, 192, 192], 0.3
    return found


def test_every_sample_is_counted_and_the_same_in_all_loaders(results: tuple[Path, Results]) -> None:
    _, found = results
    assert len(found["checked"]) == 6
    assert set(found["checked"].values()) == {"same"}
    counts = {(row["protocol"], row["loader"]): row["samples"] for row in found["rows"]}
    assert counts == local_counts()


@pytest.mark.slow
def test_every_sample_is_counted_where_loaders_stream_too(tmp_path: Path) -> None:
    out = tmp_path / "loaders.json"
    words = ["--quick", "--data", tmp_path / "data", "--out", out]
    ran = subprocess.run([sys.executable, FOLDER / "loaders.py", *words], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(out.read_text())
    assert len(found["checked"]) == 10
    assert set(found["checked"].values()) == {"same"}
    counts = {(row["protocol"], row["loader"]): row["samples"] for row in found["rows"]}
    assert counts == {**local_counts(), ("streamed", "OursStreamed"): 2, ("streamed", "HubStreamed"): 2}
    assert all((row["moved_mb"] > 0) == (row["protocol"] == "streamed") for row in found["rows"])


def local_counts() -> dict[tuple[str, str], int]:
    ours, part = (
        {"cropped": 2 * 62, "full": 2 * 62, "once": 2},
        {"cropped": 32, "full": 32, "once": 2},
    )  # upstream's way is timed on a part
    return {
        (protocol, name): n for name, of in (("Ours", ours), ("Upstream", part)) for protocol, n in of.items()
    }


def test_a_chart_and_a_table_come_out(
    results: tuple[Path, Results], complete: Results, tmp_path: Path
) -> None:
    page, out = tmp_path / "page.md", tmp_path / "loaders.json"
    for found in (results[1], complete):
        page.write_text(f"# Title\n{begin('loaders.py')}\nstale numbers\n{END}\nafter\n")
        write_report(found, out, page)
        text = page.read_text()
        assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert text.startswith("# Title\n")
        assert text.endswith("\nafter\n")
        assert "stale numbers" not in text
        assert "upstream's way" in text
    assert "Over HTTP" in text


def test_a_lost_or_changed_sample_is_told() -> None:
    truth = {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    assert loaders._compared(dict(truth), truth, {"a", "b"}, False) == "same"
    assert loaders._compared({"a": [1.0, 2.0]}, truth, {"a", "b"}, False) == "1 of 2 samples"
    assert loaders._compared({**truth, "b": [3.0, 4.1]}, truth, {"a", "b"}, False) == "values differ"


def test_targets_are_judged_by_the_clock_on_a_quiet_machine_only(complete: Results) -> None:
    busy = copy.deepcopy(complete)
    busy["runs"].append({**busy["runs"][0], "load_before": 3.0})
    assert (judged_by(complete), judged_by(busy)) == ("clock", "processor")
    quiet, loaded = ({t.text: (t.measured, t.met) for t in targets(found)} for found in (complete, busy))
    assert len(quiet) == len(loaded) == 18
    over_peer = "each volume once, over HTTP: over the best peer (datasets)"
    assert (quiet[over_peer], loaded[over_peer]) == (("2.00x", True), ("1.00x", True))
    slow = "each volume once, over HTTP at 200 MB/s: over the best peer (datasets)"
    assert quiet[slow] == loaded[slow] == ("2.00x", True)  # waiting costs no processor time
    assert quiet["`cropped`: over upstream's way"] == ("2.00x", False)
    share = "each volume once: share of the limit, kept pages"
    assert (quiet[share], loaded[share]) == (("67%", True), ("17%", False))
    assert "by the clock, then by processor time" in table(complete)
    assert "Put together from 2 runs" in table(busy)


def test_what_was_lost_with_the_loader_of_rings_is_judged_and_its_own_run_says_so(complete: Results) -> None:
    peer = {"protocol": "cropped", "loader": "MonaiCache", "name": "MONAI CacheDataset", "ours": False}
    numbers = {"rate": 5.0, "cpu_rate": 5.0, "own_mb": 1, "moved_mb": 5, "run": 0}
    with_peer = {**complete, "rows": [*complete["rows"], {**peer, **numbers}]}
    lost = [t for t in targets(with_peer) if "at most a tenth is lost" in t.text]
    assert [(t.wanted, t.measured, t.met) for t in lost] == [("at least 3.6x", "4.00x", True)]
    ring = {**peer, **numbers, "loader": "OursRing", "ours": True}
    old = {**complete, "rows": [*with_peer["rows"], ring]}
    assert not [t for t in targets(old) if "at most a tenth is lost" in t.text]
    assert "which is gone" in table(old)
    assert "which is gone" not in table(with_peer)


def test_a_part_of_a_run_replaces_what_it_measured_again(
    complete: Results,
    results: tuple[Path, Results],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "data").symlink_to(results[0].parent / "data")
    out = tmp_path / "loaders.json"
    out.write_text(json.dumps(complete))
    with pytest.raises(SystemExit, match="2"):
        measured(out, "--parts", "once", "--only", "Ours")
    assert "--merge" in capsys.readouterr().err
    assert json.loads(out.read_text()) == complete
    measured(out, "--parts", "once", "--only", "Ours", "--merge")
    merged = json.loads(out.read_text())
    keys = [(row["protocol"], row["loader"]) for row in merged["rows"]]
    assert sorted(keys) == sorted((row["protocol"], row["loader"]) for row in complete["rows"])
    assert {(row["protocol"], row["loader"]) for row in merged["rows"] if row["run"] == 1} == {
        ("once", "Ours")
    }
    assert (len(merged["runs"]), merged["limit"]) == (2, complete["limit"])


def test_runs_that_do_not_go_together_are_not_merged(complete: Results) -> None:
    with pytest.raises(SystemExit, match="shape was"):
        loaders.merged(complete, {**complete, "shape": [1, 2, 3]})
    failed = loaders.merged(complete, {**complete, "rows": [], "failed": {"Upstream once": "no memory"}})
    assert ("once", "Upstream") not in {(row["protocol"], row["loader"]) for row in failed["rows"]}
    assert "Upstream once (no memory)" in table(failed)


def test_the_limit_finds_a_volume_in_any_number_of_row_groups(
    results: tuple[Path, Results], tmp_path: Path
) -> None:
    release = results[0].parent / "data" / "small" / "release"
    stored = sorted((release / "cropped").glob("*.parquet"))
    (tmp_path / "cropped").mkdir()
    for path in stored:  # row groups of a few rows, none of two volumes
        tables = [
            part
            for volume in volumes_of(pq.read_table(path))
            for part in (volume.slice(0, 20), volume.slice(20))
        ]
        with pq.ParquetWriter(tmp_path / "cropped" / path.name, tables[0].schema) as writer:
            for part in tables:
                writer.write_table(part)
    found = [loaders_limit.row_groups(folder, "cropped") for folder in (release, tmp_path)]
    assert list(found[0]) == list(found[1])
    for name in found[0]:
        whole, parts = (loaders_limit._voxels(groups[name]) for groups in found)
        assert len(found[1][name]) == 2
        crops = [[(arrays[i][0].tobytes(), arrays[i][1]) for i in index] for arrays, index in (whole, parts)]
        assert crops[0] == crops[1]
        assert len(crops[0]) == 62


def volumes_of(rows: Any) -> list[Any]:
    names = rows.column("volume_id").to_pylist()
    return [rows.slice(names.index(name), names.count(name)) for name in dict.fromkeys(names)]


def test_the_server_counts_what_it_sends_and_keeps_to_a_rate(results: tuple[Path, Results]) -> None:
    folder = results[0].parent / "data" / "small"
    file = max((folder / "release").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    url = f"datasets/{RELEASE}/resolve/main/{file.relative_to(folder / 'release')}"
    with Web(folder) as web:
        web.warm()
        before = web.sent()
        with urlopen(f"{web.endpoint}/{url}") as answer:
            assert answer.read() == file.read_bytes()
        assert web.sent() - before == file.stat().st_size
        web.throttle(1)
        start = time.perf_counter()
        with urlopen(f"{web.endpoint}/{url}") as answer:
            answer.read()
        # at least, never at most: a busy machine cannot make it fail
        assert time.perf_counter() - start > 0.9 * file.stat().st_size / 1e6


@pytest.mark.slow
def test_the_build_is_measured_against_its_limit_and_over_sizes(tmp_path: Path) -> None:
    out, page = tmp_path / "build.json", tmp_path / "scale.md"
    page.write_text(f"{begin('build.py')}\n{END}\n")
    command = [
        sys.executable,
        str(FOLDER / "build.py"),
        "--shape",
        "16,40,40",
        "--volumes",
        "2,4",
        "--rounds",
        "1",
        "--out",
        str(out),
        "--page",
        str(page),
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(out.read_text())
    assert found["mask"]["labels"] == len(LABELS)
    voxels_mb = 16 * 40 * 40 * 2 / 1e6
    for size, volumes in zip(found["sizes"], (2, 4), strict=True):
        assert size["volumes"] == volumes
        assert size["limit"]["read_mb"] == pytest.approx(volumes * voxels_mb)
        assert size["limit"]["zstd_mb"] > volumes * voxels_mb, "each volume once, and its crops"
        assert size["limit"]["zstd_mb"] < 3 * volumes * voxels_mb, "a crop that questions share counts once"
        assert all(taken["cpu_seconds"] > 0 < taken["rss_mb"] for taken in size["workers"].values())
    assert page_text(found) in page.read_text()
    assert "4 over 2" in page.read_text()


@pytest.mark.parametrize(
    ("name", "text", "page"), [("loaders", table, "benchmarks.md"), ("build", page_text, "scale.md")]
)
def test_the_page_is_that_of_the_results(name: str, text: Callable[[Results], str], page: str) -> None:
    docs = FOLDER.parent / "docs"
    assert text(json.loads((docs / "bench" / f"{name}.json").read_text())) in (docs / page).read_text()
