"""A build may be killed, starved, raced or fed bad files; it ends with the same bytes or says why not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import needs, run
from test_release import digests

from reasonknee.cohort import Cohort
from reasonknee.errors import DataError, LockedError, StorageError, UsageError
from reasonknee.layout import read_manifest
from reasonknee.phantom.cohort import write_cohort
from reasonknee.release import Build, build, shards
from reasonknee.release import rows as materialise
from reasonknee.release.making import QUARANTINE
from reasonknee.system.files import sha256_of
from reasonknee.system.locks import Lock
from reasonknee.validation.run import validate

CONFIGS = ["cropped", "annotations"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "cohort"
    write_cohort(folder, patients=3, seed=1, shape=(16, 40, 40))
    return folder


@pytest.fixture(autouse=True)
def many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A volume a shard, so that even a small cohort has many."""
    monkeypatch.setattr(
        shards, "VOLUMES_PER_SHARD", {"annotations": 2, "cropped": 1, "full": 1, "embeddings": 1}
    )


@pytest.fixture
def clean(small: Path, tmp_path: Path) -> dict[str, str]:
    build(Cohort(small), tmp_path / "clean", CONFIGS)
    return digests(tmp_path / "clean")


def in_a_child(work: object, kill_at: int | None = None, watched: Path | None = None) -> tuple[int, int]:
    """Runs in a forked child that kills itself at the nth time it opens, renames or removes a file. Returns its status and how often it did."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        count = 0

        def at_each(event: str, args: tuple[object, ...]) -> None:
            nonlocal count
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir") and str(watched) in str(
                args[0]
            ):
                count += 1
                if count == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(at_each)
        try:
            work()  # type: ignore[operator]
            os.write(writing, str(count).encode())
            os._exit(0)
        except BaseException:
            os._exit(9)
    os.close(writing)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    return status, int(said or 0)


def nothing_half_written(folder: Path) -> None:
    """Every file under its final name is whole; what is not is under a temporary name."""
    for path in folder.rglob("*"):
        if path.suffix == ".parquet":
            pq.ParquetFile(path, page_checksum_verification=True).read()
        elif path.suffix == ".json":
            json.loads(path.read_text())


Counted = Callable[[str, object], None]


def test_killed_at_many_points(
    small: Path, clean: dict[str, str], tmp_path: Path, record_property: Counted
) -> None:
    out = tmp_path / "r"
    status, points = in_a_child(lambda: build(Cohort(small), tmp_path / "count", CONFIGS), watched=tmp_path)
    assert status == 0
    assert points > 60
    chosen = range(1, points + 1, max(1, points // int(os.environ.get("REASONKNEE_KILLS", "24"))))
    clean_shards = [name for name in clean if name.endswith(".parquet")]
    for point in chosen:
        shutil.rmtree(tmp_path / "r.records", ignore_errors=True)  # what a kill after the last rename leaves
        status, _ = in_a_child(lambda: build(Cohort(small), out, CONFIGS), kill_at=point, watched=tmp_path)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        partial = tmp_path / "r.partial"
        nothing_half_written(partial)
        if out.exists():  # killed after the last rename
            assert digests(out) == clean
        else:
            kept = {
                p: p.stat().st_mtime_ns
                for p in partial.rglob("*.parquet")
                if finished_shard(tmp_path / "r.records", p)
            }
            if point > points - 10:
                assert len(kept) == len(clean_shards), "a kill during the finish loses finished work"
            build(Cohort(small), out, CONFIGS)
            assert {p: (out / p.relative_to(partial)).stat().st_mtime_ns for p in kept} == kept, (
                "finished work was done again"
            )
        assert digests(out) == clean
        shutil.rmtree(out)
    record_property("file operations at which it was killed", f"{len(chosen)} of {points}")


def finished_shard(records: Path, path: Path) -> bool:
    done = [json.loads(r.read_text()) for r in records.glob("*.json")]
    return any(f"{path.parent.name}/{path.name}" == s["path"] for r in done for s in r["shards"])


def test_killed_in_the_middle_of_work(
    small: Path, clean: dict[str, str], tmp_path: Path, record_property: Counted
) -> None:
    """Between file operations, while it encodes and writes: after more and more processor time, until a run ends
    before its time is up. The kernel counts what the child itself has had, so a busy machine changes nothing."""

    def building(out: Path, seconds: float) -> tuple[bool, float]:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends it, as SIGKILL would
            signal.setitimer(signal.ITIMER_PROF, seconds)
            with contextlib.suppress(BaseException):
                build(Cohort(small), out, CONFIGS)
            os._exit(0)
        _, status, usage = os.wait4(child, 0)
        return os.WIFSIGNALED(status), usage.ru_utime + usage.ru_stime

    killed, whole = building(tmp_path / "whole", 3600)
    assert not killed
    hits = 0
    while hits < 40:
        out = tmp_path / f"r{hits}"
        if not building(out, whole * (hits + 1) / 12)[0]:
            break
        hits += 1
        nothing_half_written(tmp_path / f"{out.name}.partial")
        if not out.exists():
            build(Cohort(small), out, CONFIGS)
        assert digests(out) == clean
    assert hits >= 3
    record_property("moments at which it was killed", hits)


def test_killed_again_and_again(
    small: Path, clean: dict[str, str], tmp_path: Path, record_property: Counted
) -> None:
    """Each run gets a little further, however often it is killed."""
    out, kills = tmp_path / "r", 0
    while not out.exists():
        status, _ = in_a_child(
            lambda: build(Cohort(small), out, CONFIGS), kill_at=20 + 10 * kills, watched=tmp_path
        )
        kills += os.WIFSIGNALED(status)
        assert kills < 40
    assert kills >= 2
    assert digests(out) == clean
    record_property("kills of one build", kills)


@pytest.fixture
def spoiled(small: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """The first, the middle and the last image of the cohort, damaged in three ways."""
    folder = tmp_path / "spoiled"
    shutil.copytree(small, folder)
    entries = Cohort(folder).entries()
    images = Cohort(folder).images(entries)
    names = []
    for place, entry in enumerate((entries[0], entries[len(entries) // 2], entries[-1])):
        path = images[entry.volume_id]
        data = bytearray(path.read_bytes())
        if place == 0:
            data = data[:-9]
        elif place == 1:
            data[len(data) // 2] ^= 0xFF
        else:
            data = bytearray(b"not a volume")
        path.write_bytes(data)
        names.append(entry.volume_id)
    return folder, sorted(names)


def test_bad_volumes_are_quarantined(spoiled: tuple[Path, list[str]], small: Path, tmp_path: Path) -> None:
    cohort, names = spoiled
    out = tmp_path / "r"
    with pytest.raises(DataError, match=r"R005: 3 of [0-9]+ volumes cannot be used") as caught:
        build(Cohort(cohort), out, CONFIGS)
    assert "--max-bad 3" in caught.value.hint
    assert not out.exists()
    told = json.loads((tmp_path / "r.partial" / QUARANTINE).read_text())
    assert [b["volume_id"] for b in told] == names
    assert {b["code"] for b in told} == {"V001", "V006"}
    made = Build(Cohort(cohort), out, CONFIGS, max_bad=3).run()
    assert sorted(made.quarantined) == names
    assert not (out / QUARANTINE).exists(), "the manifest names them; reasons may hold file names"
    assert not validate(str(out)).count("error"), "shards are numbered without gaps"
    for config in CONFIGS:
        held = {
            v
            for s in made.of(config)
            for v in pq.read_table(out / s.path, columns=["volume_id"])["volume_id"].to_pylist()
        }
        assert held == {e.volume_id for e in Cohort(small).entries()} - set(names), (
            "every config leaves the same volumes out"
        )


@pytest.fixture
def unreadable(small: Path, tmp_path: Path) -> tuple[Path, list[Path]]:
    """Every image a regular file that gives an error at its first byte, for root, too."""
    folder = tmp_path / "unreadable"
    shutil.copytree(small, folder)
    images = sorted((folder / "images").rglob("*.nii.gz"))
    for path in images:
        path.rename(path.with_suffix(".kept"))
        path.symlink_to("/proc/self/mem")
    return folder, images


def test_what_cannot_be_read_is_a_bad_volume_until_it_can(
    unreadable: tuple[Path, list[Path]], clean: dict[str, str], tmp_path: Path
) -> None:
    cohort, images = unreadable
    out = tmp_path / "r"
    with pytest.raises(
        StorageError, match=rf"R005: {len(images)} of {len(images)} .* V000: .*quarantine.json; mend them\)$"
    ):
        Build(Cohort(cohort), out, CONFIGS, max_bad=len(images)).run()
    for path in images[1:]:
        path.with_suffix(".kept").rename(path)
    with pytest.raises(DataError, match=r"R005: 1 of .* V000: .*--max-bad 1"):
        build(Cohort(cohort), out, CONFIGS)
    made = Build(Cohort(cohort), tmp_path / "without", CONFIGS, max_bad=1).run()
    assert list(made.quarantined.values()) == ["V000"]
    images[0].with_suffix(".kept").rename(images[0])
    build(Cohort(cohort), out, CONFIGS)
    assert digests(out) == clean


def test_a_file_that_is_as_it_was_is_read_again_if_it_could_not_be(
    small: Path, clean: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions and disks change without a trace in size or time; a failure in the middle of a file counts like one at its start."""
    first, real = Cohort(small).entries()[0], materialise.read_volume

    def fails(path: Path) -> object:
        if path == Cohort(small).images([first])[first.volume_id]:
            raise OSError(5, "Input/output error")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(materialise, "read_volume", fails)
        with pytest.raises(DataError, match=r"V000: .*: cannot be read: Input/output error"):
            build(Cohort(small), tmp_path / "r", CONFIGS)
    build(Cohort(small), tmp_path / "r", CONFIGS)
    assert digests(tmp_path / "r") == clean


def test_volumes_without_an_image_of_their_own_are_bad_ones(small: Path, tmp_path: Path) -> None:
    cohort, out = tmp_path / "some", tmp_path / "r"
    shutil.copytree(small, cohort)
    entries = Cohort(cohort).entries()
    gone, twice = (Cohort(cohort).images(entries)[e.volume_id] for e in entries[:2])
    gone.rename(tmp_path / "kept.nii.gz")
    shutil.copy(twice, twice.with_name(twice.name.removesuffix(".gz")))
    for max_bad in (0, 1):
        with pytest.raises(DataError, match=rf"K004: 1 of .* {entries[0].volume_id} .*--max-bad 2"):
            Build(Cohort(cohort), out, CONFIGS, max_bad=max_bad).run()
    assert not (tmp_path / "r.partial").exists(), "told before any work"
    assert Build(Cohort(cohort), out, CONFIGS, max_bad=2).run_part(1, 1)
    (tmp_path / "kept.nii.gz").rename(gone)
    with pytest.raises(DataError, match=r"K005.*--max-bad 1"):
        Build(Cohort(cohort), out, CONFIGS).run()
    made = Build(Cohort(cohort), out, CONFIGS, max_bad=1).run()
    assert made.quarantined == {entries[1].volume_id: "K004"}
    assert {
        v
        for s in made.of("cropped")
        for v in pq.read_table(out / s.path, columns=["volume_id"])["volume_id"].to_pylist()
    } == {e.volume_id for e in entries if e is not entries[1]}


def test_mending_a_volume_redoes_its_group_alone(
    spoiled: tuple[Path, list[str]], small: Path, clean: dict[str, str], tmp_path: Path
) -> None:
    cohort, names = spoiled
    out = tmp_path / "r"
    with pytest.raises(DataError, match="R005"):
        build(Cohort(cohort), out, CONFIGS)
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r.partial" / "cropped").glob("*.parquet")}
    for path in (small / "images").rglob("*.nii.gz"):
        target = cohort / path.relative_to(small)
        if target.read_bytes() != path.read_bytes():
            shutil.copy(path, target)
    build(Cohort(cohort), out, CONFIGS)
    assert digests(out) == clean
    after = {p.name: p.stat().st_mtime_ns for p in (out / "cropped").glob("*.parquet")}
    assert sum(after[n] != before.get(n) for n in after) == len(names)


def test_exit_codes_of_the_command(spoiled: tuple[Path, list[str]], tmp_path: Path) -> None:
    cohort, names = spoiled
    done = run("build", cohort, tmp_path / "r", "--configs", "cropped")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1
    done = run("build", cohort, tmp_path / "r", "--configs", "cropped", "--max-bad", "3")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in names)


def test_two_builders_race(small: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "reasonknee", "build", str(small), str(tmp_path / "r")]
    racers = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    said = [racer.communicate(timeout=120)[1] for racer in racers]
    codes = sorted(racer.returncode for racer in racers)
    assert codes[0] == 0, said
    assert set(codes[1:]) <= {0, 5}, (
        said
    )  # refused while the first was at work, or told that the release is there by now
    made = read_manifest(tmp_path / "r")
    assert all(sha256_of(tmp_path / "r" / s.path) == s.sha256 for s in made.shards)


def test_a_second_build_hears_whose_the_first_is(small: Path, tmp_path: Path) -> None:
    with Lock(tmp_path / "r.lock"), pytest.raises(LockedError, match=rf"@.*process {os.getpid()}"):
        build(Cohort(small), tmp_path / "r", CONFIGS)
    with Lock(tmp_path / "r.lock", shared=True), pytest.raises(LockedError):
        build(Cohort(small), tmp_path / "r", CONFIGS)
    assert not (tmp_path / "r.partial").exists()


def test_array_jobs(small: Path, clean: dict[str, str], tmp_path: Path) -> None:
    """Parts in any order, one of them twice; the last call does what is left and finishes."""
    out = tmp_path / "r"
    counts = [Build(Cohort(small), out, CONFIGS).run_part(part, 4) for part in (3, 1, 2, 2)]
    assert not out.exists()
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "r.partial" / "cropped").glob("*.parquet")}
    assert sum(counts[:3]) == len(before)
    build(Cohort(small), out, CONFIGS)
    assert digests(out) == clean
    assert {
        p.name: p.stat().st_mtime_ns for p in (out / "cropped").glob("*.parquet") if p.name in before
    } == before
    with pytest.raises(UsageError, match="R003"):
        Build(Cohort(small), tmp_path / "s", CONFIGS).run_part(5, 4)


def test_any_number_of_workers(small: Path, clean: dict[str, str], tmp_path: Path) -> None:
    for workers in (2, 4):
        build(Cohort(small), tmp_path / f"w{workers}", CONFIGS, workers=workers)
        assert digests(tmp_path / f"w{workers}") == clean


def test_workers_end_with_their_parent(small: Path, tmp_path: Path) -> None:
    """A build of two processes, killed: no worker is left that could write into the next one."""
    code = "from pathlib import Path\nimport sys\nfrom reasonknee.cohort.folder import Cohort\nfrom reasonknee.release import shards\nshards.VOLUMES_PER_SHARD['cropped'] = 1\nfrom reasonknee.release.make import build\nif __name__ == '__main__':\n    build(Cohort(sys.argv[1]), Path(sys.argv[2]), ['cropped'], workers=2)\n"
    (tmp_path / "job.py").write_text(code)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "job.py"), str(small), str(tmp_path / "r")])
    mark = str(tmp_path / "job.py")
    try:
        deadline = time.monotonic() + 60
        while len(processes_of(parent.pid)) < 2 and parent.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = processes_of(parent.pid)
        assert workers, mark
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]


def processes_of(parent: int) -> list[int]:
    """Its spawned workers, by the kernel's own list."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    found = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_dask_cluster_with_a_worker_that_dies(small: Path, clean: dict[str, str], tmp_path: Path) -> None:
    """A real scheduler and two workers over TCP; one is killed when the first groups are done."""
    distributed = pytest.importorskip("distributed")
    from reasonknee.system.cluster import dask_executor

    preload = "from reasonknee.release import shards\nshards.VOLUMES_PER_SHARD = {'annotations': 2, 'cropped': 1, 'full': 1, 'embeddings': 1}\n"
    (tmp_path / "preload.py").write_text(preload)
    cluster = distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        protocol="tcp://",
        host="127.0.0.1",
        dashboard_address=None,
        preload=str(tmp_path / "preload.py"),
    )
    killed: list[int] = []

    def progress(what: str, done: int, of: int) -> None:
        if what == "writing cropped" and 1 <= done < of and not killed:
            victim = next(iter(cluster.workers.values()))
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

    with cluster, dask_executor(cluster.scheduler_address) as executor:
        Build(Cohort(small), tmp_path / "r", CONFIGS, progress=progress).run(executor)
    assert killed
    assert digests(tmp_path / "r") == clean


def test_no_scheduler_there() -> None:
    needs("distributed")
    from reasonknee.system.cluster import dask_executor

    with (
        pytest.raises(StorageError, match=r"R007.*tcp://127.0.0.1:1"),
        dask_executor("tcp://127.0.0.1:1", timeout="1s"),
    ):
        pass
