"""The recipes of docs/recipes.md, run as a user would: every framework, several of them with two real processes, stopped in mid-epoch and resumed; each row comes once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, needs
from warm import Warm, free_port

needs("torch")
EXAMPLES = ROOT / "examples"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]


def started(command: list[Any], **env: str) -> str:
    ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(c) for c in command],
        env={**os.environ, **ours, **env},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def seen(out: Path) -> dict[int, list[Counter[str]]]:
    """What each process saw, epoch by epoch."""
    by_epoch: dict[int, list[Counter[str]]] = {}
    for file in sorted(out.glob("seen-*.txt")):
        own: dict[int, Counter[str]] = {}
        for line in file.read_text().splitlines():
            epoch, *names = line.split()
            own.setdefault(int(epoch), Counter()).update(names)
        for epoch, names in own.items():
            by_epoch.setdefault(epoch, []).append(names)
    return by_epoch


def check(out: Path, release: Path, ranks: int) -> None:
    sys.path.insert(0, str(EXAMPLES))
    from knee_net import BATCH, EPOCHS, rows

    every = {row["id"] for row in rows(str(release))}
    by_epoch = seen(out)
    assert sorted(by_epoch) == list(range(EPOCHS))
    orders = []
    for shares in by_epoch.values():
        assert len(shares) == ranks
        together = sum(shares, Counter())
        assert set(together.values()) == {1}  # nothing twice, on one rank or on two
        assert set(together) <= every
        assert len(every) - len(together) < BATCH * ranks  # what even="drop" leaves out
        orders.append([frozenset(s) for s in shares])
    assert len({sum(s.values()) for shares in by_epoch.values() for s in shares}) == 1
    if ranks > 1:
        assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("program", "package", "ranks"),
    [
        ("ddp.py", "torch.distributed", 2),
        ("with_accelerate.py", "accelerate", 2),
        ("with_trainer.py", "transformers.trainer", 1),
        ("with_lightning.py", "lightning", 1),
        pytest.param("with_lightning.py", "lightning", 2, marks=pytest.mark.slow),
        pytest.param("with_trainer.py", "transformers.trainer", 2, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_stopped_and_resumed_sees_each_row_once(
    release: Path, tmp_path: Path, warm: Warm, program: str, package: str, ranks: int
) -> None:
    needs(package.split(".")[0])
    own = [ranks] if "lightning" in program else []  # which starts its processes itself
    out = tmp_path / "runs" / "first"  # which nobody has made, as a new user's is not there yet
    for stop in ([2], []):  # in the middle of the first epoch, and from there to the end
        words = (EXAMPLES / program, release, out, *own, *stop)
        told = warm.run(*words, needs=(package,), ranks=0 if ranks == 1 or own else ranks)
    assert re.search(r"rank 0: \d+ steps", told)
    check(out, release, ranks)


# --- ranks ------------------------------------------------------------------------------------------------------------------------

RANKS = """
import json, pickle, sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
import reasonknee as rk
from reasonknee.errors import ReasonKneeError

release, out = sys.argv[1:]
def ids(rows): return [row["id"] for row in rows]
def stream(**options):
    return rk.quintuples(release, "annotations", "train", questions=["acl", "pcl"], columns=["region"], seed=1, **options)
def tried(make):
    try:
        return [i for batch in make() for i in batch]
    except (ReasonKneeError, RuntimeError) as error:
        return str(error)[-400:]

told = {}
try:
    len(rk.loader(stream(), ids, 3))
except ReasonKneeError as error:
    told["before the group"] = error.code
sent = pickle.dumps((rk.loader(stream(), ids, 3), stream(ranks="group")))  # as to ranks that are spawned
dist.init_process_group("gloo")
rank = dist.get_rank()
told |= {
    "loader": tried(lambda: rk.loader(stream(), ids, 3)),
    "loader, sent": tried(lambda: pickle.loads(sent)[0]),
    "stream, sent": tried(lambda: [ids(pickle.loads(sent)[1])]),
    "loader, to workers": tried(lambda: rk.loader(pickle.loads(pickle.dumps(rk.loader(stream(), ids, 3))).source, ids, 3)),
    "loader, whole": tried(lambda: rk.loader(stream(ranks="whole"), ids, 3)),
    "loader of a list": tried(lambda: rk.loader(list(stream(ranks="whole")), ids, 3)),
    "loader of rows one by one": tried(lambda: rk.loader(iter([]), ids, 3)),
    "stream": tried(lambda: [ids(stream())]),
    "stream, group": tried(lambda: [ids(stream(ranks="group"))]),
    "torch": tried(lambda: DataLoader(stream(batch_size=3), 3, collate_fn=ids)),
    "torch, workers": tried(lambda: DataLoader(stream(batch_size=3), 3, collate_fn=ids, num_workers=1)),
    "torch, group": tried(lambda: DataLoader(stream(batch_size=3, ranks="group"), 3, collate_fn=ids, num_workers=1)),
}
try:
    from accelerate import Accelerator, DataLoaderConfiguration
except ImportError:
    pass
else:
    for dispatch in (True, False):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch, even_batches=False))
        def prepared(**options):
            return accelerator.prepare(DataLoader(stream(batch_size=3, **options), 3, collate_fn=lambda rows: torch.tensor([hash(r["id"]) % 10**6 for r in rows]) if dispatch else ids(rows)))
        def listed(loader):
            return [x.tolist() if dispatch else x for x in loader]
        name = f"accelerate, dispatch={dispatch}"
        told[f"{name}, group"] = tried(lambda: listed(prepared(ranks="group")))
        told[f"{name}, whole"] = tried(lambda: listed(prepared(ranks="whole")))
        own = rk.loader(stream(), ids, 3)
        told[f"{name}, prepared loader"] = accelerator.prepare(own) is own
json.dump(told, open(f"{out}/{rank}.json", "w"))
dist.barrier()
dist.destroy_process_group()
from knee_net import leave
leave()
"""


@pytest.fixture(scope="module")
def two_ranks(release: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("ranks")
    (out / "ranks.py").write_text(RANKS)
    started([*TORCHRUN, free_port(), out / "ranks.py", release, out], PYTHONHASHSEED="0")
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def every(release: Path) -> list[str]:
    import reasonknee as rk

    return sorted(
        row["id"] for row in rk.quintuples(release, "annotations", "train", questions=["acl", "pcl"])
    )


@pytest.mark.parametrize(
    "how",
    [
        "loader",
        "loader, sent",
        "loader, to workers",
        "loader of a list",
        "stream, group",
        "stream, sent",
        "torch, group",
    ],
)
def test_two_processes_share_without_overlap(
    two_ranks: list[dict[str, Any]], every: list[str], how: str
) -> None:
    shares = [told[how] for told in two_ranks]
    assert sorted(shares[0] + shares[1]) == every
    assert min(map(len, shares)) > 0


def test_what_is_asked_for_whole_is_whole(two_ranks: list[dict[str, Any]], every: list[str]) -> None:
    assert [sorted(told["loader, whole"]) for told in two_ranks] == [every, every]


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("stream", "D052"),
        ("torch", "D052"),
        ("torch, workers", "D052"),
        ("loader of rows one by one", "G068"),
        ("before the group", "D051"),
    ],
)
def test_nobody_guesses_who_reads_what(two_ranks: list[dict[str, Any]], how: str, code: str) -> None:
    for told in two_ranks:
        assert code in told[how]
        if code == "D052":
            assert 'ranks="group"' in told[how]
            assert 'ranks="whole"' in told[how]


@pytest.mark.parametrize("dispatch", [True, False])
def test_accelerate_leaves_the_loader_alone_and_shares_a_stream_once(
    two_ranks: list[dict[str, Any]], every: list[str], dispatch: bool
) -> None:
    needs("accelerate")
    name = f"accelerate, dispatch={dispatch}"
    assert all(told[f"{name}, prepared loader"] for told in two_ranks)
    assert any("D053" in told[f"{name}, group"] for told in two_ranks)
    shares = [told[f"{name}, whole"] for told in two_ranks]
    if not dispatch:
        assert set(shares[0]) | set(shares[1]) == set(every)
        assert len(shares[0]) + len(shares[1]) <= len(every) + 6  # accelerate fills its last round up
    else:
        assert len(shares[0]) + len(shares[1]) >= len(every)


# --- in one process ---------------------------------------------------------------------------------------------------------------


def test_fine_tuning_by_sft(release: Path, tmp_path: Path, warm: Warm) -> None:
    needs("trl")
    told = warm.run(EXAMPLES / "with_sft.py", release, tmp_path, needs=("transformers.trainer", "trl"))
    assert len(re.findall(r"\d+\.\d+", told.split("losses")[1])) == 3


def test_dataloaders_of_others(release: Path, warm: Warm) -> None:
    needs("torchdata")
    told = warm.run(EXAMPLES / "dataloaders.py", release)
    assert "stateful: the same batches" in told
    assert "in stored order" in told
    often, drawn = (
        [int(n) for n in line.split(":")[1].split()]
        for line in told.splitlines()
        if line.startswith("grades")
    )
    assert max(drawn) / min(drawn) < max(often) / min(often)


def test_volumes_and_visits(release: Path, warm: Warm) -> None:
    told = warm.run(EXAMPLES / "volumes.py", release)
    assert "halved (2, 1, 8, 24, 24)" in told
    assert re.search(r"visits (\S+)-00m-(\w+) \1-\d+m-\2", told)


def test_augmentation_by_monai_and_torchio(release: Path, warm: Warm) -> None:
    needs("monai")
    needs("torchio")
    told = warm.run(EXAMPLES / "augment.py", release)
    assert told.count("boxes inside") == 2


def test_the_code_in_the_document_runs(release: Path, tmp_path: Path, warm: Warm) -> None:
    (tmp_path / "release").symlink_to(release)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "recipes.md").read_text(), flags=re.S)
    assert blocks
    (tmp_path / "document.py").write_text("\n".join(blocks))
    warm.run(tmp_path / "document.py", folder=tmp_path)


def test_the_notebook_runs_and_shows_little(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    needs("ipykernel")
    book = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)
    monkeypatch.setenv("RELEASE", str(release))
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    row, volume, batch, stream = (
        out["data"]
        for cell in book.cells
        if cell.cell_type == "code"
        for out in cell.outputs
        if "data" in out
    )
    for shown in (row, volume, batch, stream):
        assert len(shown["text/plain"]) < 4000
        assert len(shown.get("text/html", "")) < 20_000
    for shown in (row, volume):
        assert "data:image/png;base64," in shown["text/html"]
    assert re.search(r"quintuples +69 of them", volume["text/plain"])
    assert batch["text/plain"].startswith("Batch of 4 on ")
    assert stream["text/plain"].startswith("Stream of ")
