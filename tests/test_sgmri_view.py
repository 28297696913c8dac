"""The viewer on a release of SGMRI-VQA, as a client meets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import command, run
from test_viewer import Client, serve

from reasonknee.errors import UsageError
from reasonknee.sgmri.stream import questions
from reasonknee.sgmri.view import VERDICTS, started
from reasonknee.viewer.server import Server

SCRIPT = "<script>document.title='owned'</script>"


@pytest.fixture(scope="module")
def words(sgmri: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of a model that is right here and wrong there, misses some and says odd things."""
    lines = []
    for n, row in enumerate(questions(sgmri / "release", "qa", "test")):
        box = row["findings"][0]["boxes"][0] if row["findings"] and row["findings"][0]["boxes"] else None
        said = {"answer": row["answer"]["text"] if n % 2 else f"{SCRIPT} an unusual sheen"}
        if box and n % 3:
            place = [box["x0"], box["y0"], box["x1"] - box["x0"], box["y1"] - box["y0"]]
            said["bboxes"] = [{"frame": box["frame"] + row["first_frame"], "bbox": place}]
        if n % 7:
            lines.append(json.dumps({"id": row["id"], "response": json.dumps(said)}) + "\n")
    path = tmp_path_factory.mktemp("words") / "careless.jsonl"
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def server(sgmri: Path, words: Path) -> Iterator[Server]:
    made = serve(started(sgmri / "release", [words], port=0))
    yield made
    made.shutdown()
    made.server_close()


def test_columns_are_those_of_the_rows(server: Server) -> None:
    client = Client(server)
    index = client.get("index")
    columns = {
        name: np.frombuffer(client.get(f"column/{name}"), kind) for name, kind in index["columns"].items()
    }
    assert {len(column) for column in columns.values()} == {index["rows"]}
    for n in range(0, index["rows"], 17):
        row = client.get(f"row/{n}")
        assert client.get(f"find?id={row['id']}") == {"row": n}
        assert index["volumes"][columns["volume"][n]] == row["volume_id"]
        for name, names in (
            ("split", "splits"),
            ("anatomy", "anatomies"),
            ("level", "levels"),
            ("task", "tasks"),
        ):
            assert index[names][columns[name][n]] == row[name]


def test_frames_are_the_pixels_of_the_release(server: Server, sgmri: Path) -> None:
    client = Client(server)
    for config in ("volumes", "slices"):
        for row in [*questions(sgmri / "release", config, "test")][::11]:
            n = client.get(f"find?id={row['id']}")["row"]
            answer, body = client.ask("GET", f"/api/frames/{n}")
            *shape, start = map(int, answer.headers["X-Frames"].split(","))
            frames = np.frombuffer(body, np.uint8).reshape(shape)
            own = slice(row["start"] - start, row["start"] - start + len(row["image"]))
            assert np.array_equal(frames[own], row["image"])


def test_a_model_is_judged_as_score_judges_it(
    server: Server, sgmri: Path, words: Path, tmp_path: Path
) -> None:
    assert command("sgmri", "score", words, sgmri / "release", "--out", tmp_path / "scores") == 0
    scored = {row["id"]: row for row in pq.read_table(tmp_path / "scores/rows.parquet").to_pylist()}
    client, seen = Client(server), set()
    verdicts = np.frombuffer(client.get("column/verdict.0"), np.uint8)
    for id_, row in scored.items():
        n = client.get(f"find?id={id_}")["row"]
        (said,) = client.get(f"row/{n}")["models"]
        assert said["status"] == row["status"]
        verdict = VERDICTS[verdicts[n]]
        seen.add(verdict)
        if row["status"] == "missing":
            assert verdict == "no answer"
            continue
        for name, column in (("A", "a"), ("V", "v")):
            assert said["numbers"].get(name) == pytest.approx(row[column]) or row[column] is None
        if row["a"] is not None and row["status"] == "answered":
            assert (verdict == "right") == (row["a"] == 1)
    assert seen >= {"no answer", "right", "wrong", "unread"}


def test_words_are_found_where_they_stand(server: Server) -> None:
    client = Client(server)
    found = np.frombuffer(client.get("search?words=Unusual%20Sheen&model=0"), np.uint32)
    assert len(found)
    for n in found[::9]:
        row = client.get(f"row/{n}")
        assert "unusual sheen" in row["models"][0]["words"]
    assert not len(np.frombuffer(client.get("search?words=unusual%20sheen"), np.uint32))
    row = client.get("row/3")
    assert 3 in np.frombuffer(client.get(f"search?words={row['id']}"), np.uint32)


@pytest.mark.parametrize(
    "path",
    ["row/99999999", "row/-1", "frames/x", "column/verdict.1", "search?words=x&model=1", "find?id=none",
     "review.jsonl", "boxes/0", "mask/0", "../manifest.json"],
)  # fmt: skip
def test_what_does_not_exist_is_not_there(server: Server, path: str) -> None:
    assert Client(server).ask("GET", f"/api/{path}")[0].status == 404


def test_nothing_can_be_written(server: Server) -> None:
    assert Client(server).ask("POST", "/api/review", {"id": "x"})[0].status == 404


def test_a_release_without_pixels_says_so(sgmri: Path, tmp_path: Path) -> None:
    assert command("sgmri", "build", sgmri / "qa", tmp_path / "words") == 0
    server = serve(started(tmp_path / "words", port=0))
    client = Client(server)
    assert client.ask("GET", "/api/frames/0")[0].status == 204
    assert "no pixels" in client.get("index")["note"]
    assert any("no pixels" in line for line in server.viewer.opening)
    server.shutdown()
    server.server_close()


def test_what_is_for_knees_is_refused(sgmri: Path, words: Path) -> None:
    done = run("view", sgmri / "release", "--reader", "rm", "--no-browser")
    assert (done.returncode, "Z074" in done.stderr) == (2, True), done.stderr
    with pytest.raises(UsageError, match=r"^Z073: 3 models"):
        started(sgmri / "release", [words] * 3, port=0)
