"""Every code that can be raised is raised by a test: those that no other file of tests is about are here, and the
first test finds the ones that stand nowhere."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT, command

from reasonknee.errors import ReasonKneeError

CODE = re.compile(r'"([A-Z][0-9]{3})"')


def refused(code: str, work: Callable[[], Any]) -> None:
    with pytest.raises(ReasonKneeError) as error:
        work()
    assert error.value.code == code
    assert error.value.hint


def values(path: Path) -> str:
    """The texts that a program of tests works with: neither its comments nor its descriptions."""
    tree = ast.parse(path.read_text())
    told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    constants = (n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in told)
    return " ".join(str(n.value) for n in constants if isinstance(n.value, str | bytes))


def test_every_code_is_expected_by_a_test() -> None:
    """By its text: which codes a run raised, part of a run, or a command in a process of its own, cannot say."""
    sources = [p for room in ("reasonknee", "schema", "validation") for p in (ROOT / room).rglob("*.py")]
    raised = {code for path in sources for code in CODE.findall(path.read_text())}
    tested = " ".join(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("*"))
    tested += " ".join(values(p) for p in (ROOT / "tests").rglob("*.py"))
    tested += " ".join(p.read_text() for p in (ROOT / "tests").rglob("*.json*"))
    assert sorted(code for code in raised if code not in tested) == []


# --- text and tables from elsewhere -------------------------------------------------------------------------


def test_tables(tmp_path: Path) -> None:
    from reasonknee.layout.strict_text import csv_rows

    (tmp_path / "a.csv").write_text("x;y\n1;2\n")
    refused("T003", lambda: list(csv_rows(tmp_path / "a.csv", [("x", "y")])))
    (tmp_path / "b.csv").write_bytes(b"x,y\n\xff,2\n")
    refused("T009", lambda: list(csv_rows(tmp_path / "b.csv", [("x", "y")])))


def test_json(tmp_path: Path) -> None:
    from reasonknee.layout.strict_text import MAX_LINE, json_items, parse_json

    refused("T005", lambda: parse_json(b" " * (MAX_LINE + 1), "here"))
    refused("T007", lambda: parse_json(b"[1]", "here"))
    (tmp_path / "a.json").write_bytes(b'[{"a": "\xff"}]')
    refused("T008", lambda: list(json_items(tmp_path / "a.json")))


def test_predictions_that_are_no_lines(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ({}, {"id": "x"}, {"id": "x", "response": 3}):
        (tmp_path / "p.jsonl").write_text(json.dumps(line) + "\n")
        assert command("score", tmp_path / "p.jsonl", release) == 3
        assert "error S010: " in capsys.readouterr().err


def test_questions_that_a_split_does_not_have(release: Path) -> None:
    from reasonknee.scoring.truth import read_truth

    truth = read_truth(release, "test")
    few = truth.part(questions=["acl"])
    refused("S016", lambda: few.part(questions=["pcl"]))


# --- sources ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (["construct"], "J000", 2),
        (["construct", "{new}"], "J000", 2),
        (["construct", "{cohort}", "--out", "{new}", "--splits", "{empty}"], "J007", 2),
        (["construct", "--upstream", "{empty}", "--out", "{new}"], "J030", 2),
        (["attach", "{annotations}", "--images", "{new}"], "J040", 2),
        (["attach", "{annotations}", "--images", "{images}", "--out", "{empty}"], "J042", 2),
        (["attach", "{annotations}", "--images", "{empty}"], "J101", 3),
        (["regions", "{cohort}", "{empty}", "--labels", "nnunet_knee"], "J050", 2),
        (["regions", "{empty}", "{new}", "--labels", "nnunet_knee"], "J051", 3),
        (["import-nnunet", "{empty}", "{empty}", "{cohort}", "{new}"], "J059", 2),
        (["build", "{cohort}", "{locked}"], "R002", 5),
    ],
)
def test_what_a_user_meets(
    words: list[str],
    code: str,
    exit_code: int,
    cohort: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from reasonknee.system.locks import Lock

    (tmp_path / "empty").mkdir()
    places = {name: tmp_path / name for name in ("new", "empty", "locked")}
    places |= {"cohort": cohort, "annotations": cohort / "annotations.jsonl", "images": cohort / "images"}
    with Lock(tmp_path / "locked.lock"):
        assert command(*(word.format(**places) for word in words)) == exit_code
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"error {code}: ")


def test_masks_and_predictions_that_cannot_be_used(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tissues").mkdir()
    mask = next((cohort / "masks").rglob("*.nii.gz"))
    broken = tmp_path / "tissues" / mask.relative_to(cohort / "masks")
    broken.parent.mkdir(parents=True)
    broken.write_bytes(mask.read_bytes()[:200])
    assert command("regions", tmp_path / "tissues", tmp_path / "out", "--labels", "nnunet_knee") == 3
    assert "error J052: " in capsys.readouterr().err
    assert command("export", "nnunet", cohort, tmp_path / "raw") == 0
    (dataset,) = (tmp_path / "raw").glob("Dataset*")
    (tmp_path / "none").mkdir()
    assert command("import-nnunet", tmp_path / "none", dataset, cohort, tmp_path / "masks") == 3
    assert "error J055: " in capsys.readouterr().err
    described = dataset / "dataset.json"
    labels = {"background": 0, "another_region": 1}
    described.write_text(json.dumps({**json.loads(described.read_text()), "labels": labels}))
    assert command("import-nnunet", tmp_path / "none", dataset, cohort, tmp_path / "masks") == 3
    assert "error J054: " in capsys.readouterr().err


def test_moaks_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reasonknee.construct import moaks_tables

    refused("J004", lambda: moaks_tables._side("1: Left"))
    monkeypatch.setitem(sys.modules, "pandas", None)
    refused("J005", lambda: list(moaks_tables._sas_rows(tmp_path / "a.sas7bdat")))


def test_an_image_of_another_visit(cohort: Path) -> None:
    from dataclasses import replace

    from reasonknee.cohort.annotations import scan_annotations
    from reasonknee.cohort.scans import scans_by_key
    from reasonknee.construct.attach import _agrees

    scans = scans_by_key(cohort / "images")
    annotation = next(a for _, a in scan_annotations(cohort / "annotations.jsonl"))
    (scan,) = scans[annotation.patient, annotation.study, annotation.series]
    visit = "12m" if scan.visit != "12m" else "24m"
    refused("J041", lambda: _agrees(replace(annotation, visit=visit), scan))


def test_a_folder_of_slices_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reasonknee.volumes import dicom

    refused("Y000", lambda: dicom._files(tmp_path / "none"))


def test_a_builder_without_a_cohort(tmp_path: Path) -> None:
    from reasonknee.builder import ReasonKnee

    builder = ReasonKnee(config_name="annotations", cache_dir=str(tmp_path))
    refused("C005", lambda: builder._split_generators(None))


# --- the machine --------------------------------------------------------------------------------------------


def test_a_file_that_waits_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    from reasonknee.system import limits

    monkeypatch.setattr(limits, "WAIT", 0.05)
    refused("V012", lambda: limits.limited(lambda: (os.read(os.pipe()[0], 1), "never")[1], 0.2))


def test_no_dask_and_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    from reasonknee.system.cluster import dask_executor
    from reasonknee.system.locks import Lock

    monkeypatch.setitem(sys.modules, "distributed", None)
    refused("R006", lambda: dask_executor("tcp://127.0.0.1:1").__enter__())

    def without_locks(*_: Any) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    refused("R009", lambda: Lock(tmp_path / "x.lock").__enter__())


def test_embeddings_that_were_made_oddly(tmp_path: Path) -> None:
    import h5py

    from reasonknee.volumes.embeddings import EmbeddingFile

    with h5py.File(tmp_path / "e.h5", "w") as file:
        file.create_dataset("x", data=np.ones((2, 3), np.float16)).attrs["grid"] = [0, -1]
    with EmbeddingFile(tmp_path / "e.h5") as opened:
        refused("E009", lambda: opened.read("x"))


# --- the stream and its batches -----------------------------------------------------------------------------


def test_positions(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reasonknee.stream import quintuples
    from reasonknee.stream.order import merged
    from reasonknee.stream.ranks import given_part, group_part

    refused("D003", lambda: merged([8, 0], 4))
    refused("D050", lambda: given_part(0, None, None))
    refused("D050", lambda: given_part(0, 2, "whole"))
    stream = quintuples(release, "annotations", "train", seed=0, batch_size=4)
    refused("D045", lambda: stream.load_state_dict({"_steps_since_snapshot": 3}))
    rows = iter(stream)
    for _ in range(4):
        next(rows)
    state = stream.state_dict()
    other = quintuples(release, "annotations", "train", seed=0, batch_size=4)
    other.load_state_dict(state)
    refused("D049", lambda: other.set_epoch(7))
    of_a_worker = quintuples(release, "annotations", "train", seed=0, batch_size=4)
    of_a_worker.load_state_dict({**state, "worker": 1, "workers": 2, "served": 0})
    refused("D041", lambda: next(iter(of_a_worker)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("D051", group_part)


def test_several_processes_and_no_word_on_ranks(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reasonknee.collate import loader
    from reasonknee.stream import ranks
    from reasonknee.stream.order import Part

    monkeypatch.setattr(ranks, "group_part", lambda: Part(0, 2))
    refused("D052", ranks.lone_part)
    monkeypatch.setattr("reasonknee.collate.loading.group_part", lambda: Part(0, 2))
    refused("G068", lambda: list(loader(({"id": str(i)} for i in range(4)), list, 2, workers=0)))


def test_accelerate_and_a_stream_that_both_share_out(release: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from accelerate.data_loader import IterableDatasetShard
    from torch.utils.data import DataLoader, IterableDataset

    from reasonknee.stream import Stream, quintuples

    IterableDataset.register(Stream)
    stream = quintuples(release, "annotations", "train", seed=0, batch_size=4, rank=0, world_size=2)
    shared = DataLoader(IterableDatasetShard(stream, 4, num_processes=2, process_index=0), batch_size=4)
    state = accelerate.state.GradientState()
    state._add_dataloader(shared)
    try:
        refused("D053", lambda: stream.set_epoch(1))
    finally:
        state._remove_dataloader(shared)


def test_rows_that_are_damaged(release: Path) -> None:
    from types import SimpleNamespace

    from reasonknee.boxes import Box
    from reasonknee.stream import sources
    from reasonknee.stream.entries import Entry
    from reasonknee.stream.served import Crops, Embedded, _same_shape
    from reasonknee.volumes import Grid, Volume, nifti_bytes

    stored = {"dtype": "float16", "tokens": 2, "width": 3}
    refused("D011", lambda: Embedded(stored, b"\0" * 11))
    affine = np.eye(4)[[2, 0, 1, 3]]  # x, y and z run along the second, third and first axis of the world
    volume = Volume(np.zeros((2, 3, 4), np.uint8), Grid((2, 3, 4), affine))
    refused("D012", lambda: _same_shape(volume, (2, 3, 5)))
    place = Box(0, 2, 0, 3, 0, 4).as_dict()
    refused("D010", lambda: Crops([None], [], [None]).of({"box": place}, 0))
    stored_twice = Crops([0, 0], [nifti_bytes(volume)], [place, Box(1, 3, 0, 3, 0, 4).as_dict()])
    stored_twice.of({"box": place}, 0)
    refused("D010", lambda: stored_twice.of({"box": place}, 1))
    columns, entry = SimpleNamespace(config="annotations", payload=None), Entry("x", ("acl",), ())
    refused("D023", lambda: sources.opened([], columns, entry, "here", None))  # type: ignore[arg-type]
    nothing = SimpleNamespace(stored=None, table=None)
    refused("D024", lambda: sources._payload(nothing, "volume", {"volume_id": "x"}, None))  # type: ignore[arg-type]


def test_samples_that_cannot_be_collated(release: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    assert torch
    from reasonknee.collate import Collator, bucket_by_shape, frames

    row = {"id": "x", "volume": None, "crop": None, "affine": None, "box": None, "side": "right"}
    refused("G017", lambda: frames(row, 4))
    refused("G062", lambda: list(bucket_by_shape([], 0)))
    refused("G063", lambda: list(bucket_by_shape([[1]], 1)))
    from reasonknee.stream import quintuples

    whole = dict(next(iter(quintuples(release, "embeddings", "train", seed=0, batch_size=1))))
    refused("G050", lambda: Collator()([whole | {"embedding": np.zeros(3, np.float16)}]))


def test_memory_and_damage(release: Path) -> None:
    from reasonknee.stream.parquet import damaged, failed

    assert failed("here", MemoryError()).code == "D034"
    assert damaged("here", ValueError("")).code == "D031"


def test_a_client_of_the_hub_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import huggingface_hub.utils

    from reasonknee.stream.hub import Repo

    monkeypatch.setattr(huggingface_hub, "utils", SimpleNamespace())
    refused("D035", lambda: Repo.received(None, "http://127.0.0.1", "x"))  # type: ignore[arg-type]


# --- what is not installed ----------------------------------------------------------------------------------


def test_what_is_not_installed(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from reasonknee.models import local, views
    from reasonknee.release import inspect

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused("L003", lambda: inspect.dark_figure(1, 1))
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused("N003", lambda: views.to_size(np.zeros((1, 4, 4), np.uint8), (8, 8)))
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused("N023", local._needed)
    from reasonknee.models import grammar, servers
    from reasonknee.phantom import series

    monkeypatch.setitem(sys.modules, "openai", None)
    refused("N049", lambda: servers.Servers(servers.Options("m", ("http://127.0.0.1:1/v1",))))
    monkeypatch.setitem(sys.modules, "xgrammar", None)
    refused("N054", lambda: grammar.Grammar(None, 1))
    monkeypatch.setitem(sys.modules, "pydicom.dataset", None)
    refused("F003", lambda: series.write_series(tmp_path / "s", None))  # type: ignore[arg-type]


def test_a_layout_that_no_download_has(tmp_path: Path) -> None:
    from reasonknee.phantom import write_cohort

    refused("F004", lambda: write_cohort(tmp_path / "c", 2, layout="drawer"))


def test_a_grammar_for_boxes_without_a_schema() -> None:
    from reasonknee.models.plan import Choice
    from reasonknee.models.requests import Parameters
    from reasonknee.models.views import View

    refused("N055", lambda: Choice(view=View(form="cuboid"), parameters=Parameters(grammar=True)))


def test_a_release_without_whole_volumes(
    cohort: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("build", cohort, tmp_path / "r", "--configs", "annotations") == 0
    assert command("look", tmp_path / "r", "--out", tmp_path / "x.png") == 2
    assert "error L002: " in capsys.readouterr().err


def test_versions_that_cannot_be_compared() -> None:
    from reasonknee.validation.diff import version_step

    refused("X003", lambda: version_step("one", "two"))
