"""Servers: a real `transformers serve` with tiny models, and one that misbehaves in every way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from conftest import command
from hostile_server import SAID, Handler, hostile, mischief

from reasonknee.errors import DataError, UsageError
from reasonknee.models import Parameters, View
from reasonknee.models.command import Asking, ask_release
from reasonknee.models.journal import Journal
from reasonknee.models.ledger import Prices
from reasonknee.models.pictures import pictures
from reasonknee.models.plan import Choice, Plan, Row, read_rows
from reasonknee.models.run import run
from reasonknee.models.servers import Options, Servers, _retry_after
from reasonknee.release.reader import Release

KEY = "sk-0123456789-secret"
VIEW = View("even:2", 28, kind="images")


@pytest.fixture(scope="session")
def rows(release: Path) -> list[Row]:
    return read_rows(Release(release), "test")


def plan_of(release: Path, rows: list[Row], *urls: str, **options: Any) -> tuple[Plan, Servers]:
    engine = Servers(
        Options("m", urls, **{"wait": 0.001, "longest": 0.02, "timeout": 0.5, "tries": 60, **options})
    )
    return Plan(Release(release), rows, Choice(view=VIEW), engine.about, engine.sized, engine.fitted), engine


# --- a server that misbehaves -------------------------------------------------------------------------------


def test_a_hostile_server_by_the_hundred(
    release: Path, rows: list[Row], tmp_path: Path, record_property: Any
) -> None:
    with hostile(mischief(1)) as server:
        plan, engine = plan_of(release, rows[:120], server.url, concurrency=16)
        ledger = run(plan, engine, tmp_path, split="test")
        record_property("requests", len(server.seen))
        assert (ledger.answers, ledger.failures) == (120, {})
        assert len(server.seen) > 180
        assert server.busiest <= 16
    with Journal(tmp_path) as journal:
        assert Counter(e.reply.text for e in journal.answers.values() if e.reply) == {SAID: 120}
        assert len(journal.path.read_bytes().splitlines()) == 120


def test_what_never_heals_fails_and_is_asked_again_by_the_next_run(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    well: list[bool] = []

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        if well or "medial" not in body["messages"][1]["content"][-1]["text"][:900]:
            handler.answer()
        else:
            handler.refuse(500, "out of order")

    with hostile(behave) as server:
        plan, engine = plan_of(release, rows[:12], server.url, tries=2)
        first = run(plan, engine, tmp_path, split="test")
        assert set(first.failures) == {"N040"}
        well.append(True)
        asked = len(server.seen)
        again = run(plan, engine, tmp_path, split="test")
        assert again.answers == first.failures["N040"] == len(server.seen) - asked
        assert again.kept == first.answers


def test_questions_of_a_volume_go_to_one_server(release: Path, rows: list[Row], tmp_path: Path) -> None:
    def behave(handler: Handler, body: dict[str, Any]) -> None:
        handler.answer()

    with hostile(behave) as one, hostile(behave) as two:
        plan, engine = plan_of(release, rows, one.url, two.url)
        run(plan, engine, tmp_path, split="test")
    with Journal(tmp_path) as journal:
        of_volume: dict[str, set[str]] = {}
        for entry in journal.answers.values():
            of_volume.setdefault(entry.shown, set()).add(entry.server)
    assert all(len(servers) == 1 for servers in of_volume.values())
    volume, question = one.seen[0]["messages"][1]["content"][:2], one.seen[0]["messages"][1]["content"][-1]
    assert [part["type"] for part in volume] == ["image_url"] * 2
    assert question["type"] == "text"  # upstream's script for o1 puts it first, and forbids reasoning
    assert "response_format" not in one.seen[0]


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (401, f"Incorrect API key provided: {KEY}", "N042"),
        (403, "no access", "N042"),
        (404, "the model `m` does not exist", "N043"),
        (429, "insufficient_quota: pay first", "N050"),
    ],
)
def test_what_no_waiting_cures_ends_the_run_and_the_key_is_nowhere(
    release: Path,
    tmp_path: Path,
    status: int,
    message: str,
    code: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with hostile(lambda handler, body: handler.refuse(status, message)) as server:
        words = ("--model", "m", "--server", server.url, "--slices", "even:2", "--size", 28, "--limit", 3)
        for more in ((), ("--no-probe",)):
            assert command("ask", release, *words, *more, "--out", tmp_path / "run") == 3
        assert server.keys == {f"Bearer {KEY}"}
    told = capsys.readouterr()
    assert f"error {code}: " in told.err
    written = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert not any(KEY.encode() in text for text in [*written, told.out.encode(), told.err.encode()])


def test_a_server_that_says_the_key_back_does_not_get_it_into_a_file(
    release: Path, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        if "lateral" in body["messages"][1]["content"][-1]["text"]:
            handler.refuse(400, f"bad request with {KEY}")
        else:
            handler.answer(f"your key is {KEY}")

    with hostile(behave) as server:
        plan, engine = plan_of(release, rows[:10], server.url)
        ledger = run(plan, engine, tmp_path, split="test")
    assert ledger.failures["N046"]
    assert not any(KEY.encode() in p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


@pytest.mark.parametrize(
    ("behave", "finish", "code"),
    [
        (
            lambda h, b: h.refuse(400, "maximum context length is 10 tokens", "context_length_exceeded"),
            "",
            "N045",
        ),
        (lambda h, b: h.refuse(400, "invalid image: too large"), "", "N046"),
        (lambda h, b: h.refuse(422, "temperature is not supported"), "", "N046"),
        (lambda h, b: h.refuse(400, "the prompt was filtered", "content_filter"), "content_filter", ""),
        (lambda h, b: h.answer(None, "content_filter"), "content_filter", ""),
        (lambda h, b: h.answer('{"box": nu', "length"), "length", ""),
        (lambda h, b: h.refuse(429, "slow down"), "", "N044"),
        (lambda h, b: h.send(200, b"{}"), "", "N047"),
        (lambda h, b: time.sleep(0.5), "", "N041"),
        (lambda h, b: h.drip(), "", "N041"),
        (lambda h, b: h.reset(), "", "N040"),
    ],
)
def test_each_way_to_fail_is_told_apart(
    release: Path, rows: list[Row], tmp_path: Path, behave: Any, finish: str, code: str
) -> None:
    with hostile(behave) as server:
        plan, engine = plan_of(release, rows[:1], server.url, tries=2)
        ledger = run(plan, engine, tmp_path, split="test")
    assert dict(ledger.failures) == ({code: 1} if code else {})
    assert dict(ledger.finishes) == ({finish: 1} if finish else {})


def test_a_dead_server_is_one_line(release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    words = ("--model", "m", "--server", url, "--slices", "even:2", "--tries", 1, "--out", tmp_path / "run")
    assert command("ask", release, *words) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error N040: {url}: no connection")
    assert command("ask", release, *words, "--no-probe", "--limit", 40) == 3
    assert "stopped: N040: 20 failures in a row" in capsys.readouterr().out


def test_a_server_without_pictures_is_found_out_by_the_probe(release: Path, tmp_path: Path) -> None:
    def behave(handler: Handler, body: dict[str, Any]) -> None:
        if len(body["messages"][1]["content"]) > 1:
            handler.refuse(400, "this model takes no image")
        else:
            handler.answer("seven")

    with hostile(behave) as server:
        asking = Asking("m", (server.url,), limit=1)
        with pytest.raises(UsageError, match=r"^N052: .* takes no several images"):
            list(ask_release(str(release), tmp_path / "run", Choice(view=VIEW), asking))
        told = Servers(Options("m", (server.url,))).probe()[server.url]
    assert told == {
        "several images": False,
        "video": False,
        "json_schema": False,
        "seed": True,
        "logprobs": False,
    }


@pytest.mark.parametrize(
    ("said", "seconds"), [("2", 2), ("0.5", 0.5), ("soon", 0), ("", 0), ("-3", 0), ("nan", 0), ("1e9", 60)]
)
def test_retry_after(said: str, seconds: float) -> None:
    assert _retry_after({"retry-after": said} if said else {}) == seconds


def test_retry_after_as_a_date() -> None:
    assert 20 < _retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)}) <= 30
    assert _retry_after({"retry-after": formatdate(time.time() - 30, usegmt=True)}) == 0


def test_a_server_that_tells_no_tokens_does_not_let_money_run_out(
    release: Path, rows: list[Row], tmp_path: Path
) -> None:
    with hostile(lambda handler, body: handler.answer(usage=None)) as server:
        plan, engine = plan_of(release, rows[:40], server.url)
        ledger = run(plan, engine, tmp_path, split="test", prices=Prices(10, None, 10), max_cost=0.06)
    assert ledger.stopped.startswith("N036: ")
    assert 0 < ledger.cost <= 0.06
    assert ledger.answers == len(server.seen) == sum(ledger.notes.values())


def test_a_field_that_a_server_does_not_take_is_left_out(release: Path, tmp_path: Path) -> None:
    """o1 refuses any temperature: the paper's own model could not be asked otherwise."""

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        if "temperature" in body:
            handler.refuse(400, "Unsupported value: 'temperature' does not support 0 with this model")
        else:
            handler.answer()

    with hostile(behave) as server:
        words = ("--model", "o1", "--server", server.url, "--slices", "even:2", "--limit", 2, "--out")
        assert command("ask", release, *words, tmp_path / "refused") == 3
        more = ("--field", "temperature=null", "--field", 'reasoning_effort="low"', "--no-probe")
        assert command("ask", release, *words, tmp_path / "run", *more) == 0
        assert {body.get("reasoning_effort") for body in server.seen[-2:]} == {"low"}
    about = json.loads((tmp_path / "run" / "run.json").read_text())["model"]
    assert (about["temperature"], about["reasoning_effort"]) == (None, "low")
    assert command("ask", release, *words, tmp_path / "run", "--field", "temperature") == 2


def test_a_grammar_that_a_server_does_not_honour_is_refused(release: Path, tmp_path: Path) -> None:
    with hostile(lambda handler, body: handler.answer()) as server:
        choice = Choice(view=VIEW, parameters=Parameters(grammar=True))
        with pytest.raises(UsageError, match=r"^N052: .* honours no json_schema"):
            list(ask_release(str(release), tmp_path / "run", choice, Asking("m", (server.url,), limit=1)))


def test_money_is_not_overspent_by_many_at_once(release: Path, rows: list[Row], tmp_path: Path) -> None:
    with hostile(lambda handler, body: handler.answer()) as server:
        plan, engine = plan_of(release, rows, server.url, concurrency=16)
        ledger = run(plan, engine, tmp_path, split="test", prices=Prices(10, None, 10), max_cost=0.06)
        assert ledger.stopped.startswith("N036: ")
        assert 0 < ledger.cost <= 0.06
        assert ledger.answers == len(server.seen)


@pytest.mark.parametrize(
    "url", ["not an address", "host:8000/v1", f"http://me:{KEY}@host/v1", f"http://host/v1?key={KEY}"]
)
def test_an_address_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    """Addresses stand in the journal."""
    with pytest.raises(UsageError, match=r"^N059: ") as refused:
        Servers(Options("m", ("http://127.0.0.1:9/v1", url)))
    assert KEY not in str(refused.value)


def test_a_fault_of_the_thread_that_asks_is_told(
    release: Path, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, engine = plan_of(release, rows[:1], "http://127.0.0.1:9/v1")
    monkeypatch.setattr(engine, "body", lambda *_, **__: 1 / 0)
    with pytest.raises(DataError, match=r"^N048: ZeroDivisionError"):
        run(plan, engine, tmp_path, split="test")


def test_killed_while_requests_are_under_way(release: Path, rows: list[Row], tmp_path: Path) -> None:
    """SIGKILL from outside, at moments that nobody chose; what was written before is not asked again."""
    import signal

    program = "import sys; from reasonknee.__main__ import main; main()"
    with hostile(lambda handler, body: (time.sleep(0.02), handler.answer())[1]) as server:
        words = [
            "ask",
            str(release),
            "--model",
            "m",
            "--server",
            server.url,
            "--slices",
            "even:2",
            "--size",
            "28",
        ]
        words += ["--out", str(tmp_path / "run"), "--no-probe", "--concurrency", "4"]
        before = 0
        for _ in range(2):
            child = subprocess.Popen(
                [sys.executable, "-c", program, *words], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
            while len(server.seen) < before + 40 and child.poll() is None:
                time.sleep(0.01)
            child.send_signal(signal.SIGKILL)
            child.wait()
            before = len(server.seen)
        assert command(*words) == 0
        entries = [json.loads(line) for line in (tmp_path / "run/journal.jsonl").read_text().splitlines()]
        assert len({e["key"] for e in entries}) == len(entries) == len(rows)
        assert len(server.seen) - len(rows) <= 2 * (4 + 1)  # what was under way at a kill


# --- a real server ------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=["qwen2_5_vl", pytest.param("qwen3_vl", marks=pytest.mark.slow)])
def served(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str, str]]:
    """`transformers serve` with a tiny model; the checkpoint, its name there and the address."""
    folder = tmp_path_factory.mktemp("served")
    checkpoint = tiny_models.checkpoint(request.param, folder / "checkpoint")
    copy = tiny_models.for_serving(checkpoint, folder / "model")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_MODULES_CACHE": str(folder / "modules"),
    }
    options = [
        "--trust-remote-code",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ]
    code = "from transformers.cli.transformers import main; main()"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", code, "serve", str(copy), *options], env=env, stdout=log, stderr=log
        )
    try:
        for _ in range(900):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).read()
                break
            except OSError:
                assert server.poll() is None, (folder / "log").read_text()[-2000:]
                time.sleep(0.1)
        yield checkpoint, str(copy), f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def test_a_real_server_and_the_same_model_here_say_the_same_of_the_same_pixels(
    served: tuple[Path, str, str], release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Frames of a size that the server's own processor leaves as it is."""
    import torch

    torch.set_num_threads(1)
    checkpoint, name, url = served
    first = "qwen2_5" in (checkpoint / "config.json").read_text()
    side = 28 if first else 32
    shown = ("--slices", "even:3", "--size", 2 * side, "--multiple", side, "--kind", "images")
    more_words = () if first else ("instruction", "both")  # which differ from the others in words alone
    for setting in ("zero_shot", "region", "locate_grade", *more_words):
        theirs, ours = tmp_path / f"there-{setting}", tmp_path / f"here-{setting}"
        words = (*shown, "--max-tokens", 8, "--limit", 3, "--setting", setting)
        more = () if setting == "zero_shot" else ("--no-probe",)
        there = ("--model", name, "--server", url, *more, "--out", theirs)
        assert command("ask", release, *words, *there) == 0
        here = ("--model", checkpoint, "--dtype", "float32", "--positions", "after_grid", "--out", ours)
        assert command("ask", release, *words, *here) == 0
        said = [
            {
                (e["id"], e["step"]): (e["reply"]["text"].strip(), e["reply"]["finish"], e["crop"])
                for e in map(json.loads, (run / "journal.jsonl").open())
            }
            for run in (theirs, ours)
        ]
        assert said[0] == said[1]
        assert len(said[0]) == (6 if setting == "locate_grade" else 3)
        assert command("score", theirs / "predictions.jsonl", release, "--bootstrap", 5) == 0
    assert "several images yes, video no, json_schema no" in capsys.readouterr().out


def test_pictures_are_the_frames(release: Path, rows: list[Row], tmp_path: Path) -> None:
    import base64
    import io

    import numpy as np
    from PIL import Image

    plan, _ = plan_of(release, rows[:1], "http://127.0.0.1:9/v1")
    with Journal(tmp_path) as journal:
        (job,) = plan.jobs("answer", journal)
    assert job.showing is not None
    for part, frame in zip(pictures(job.showing), job.showing.images, strict=True):
        data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), frame)
    assert pictures(None) == []
