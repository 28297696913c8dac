"""The viewer as a client meets it: who gets in, what is sent, and what a review leaves behind."""

from __future__ import annotations

import hashlib
import http.client
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from conftest import command, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_scoring import spoiled, written

from reasonknee.boxes import Box
from reasonknee.cohort.review import checked_entry, corrected, read_review, standing
from reasonknee.errors import DataError, ReasonKneeError, StorageError, UsageError
from reasonknee.layout import read_manifest
from reasonknee.questions import QUESTIONS
from reasonknee.scoring.truth import read_truth
from reasonknee.viewer.open import started
from reasonknee.viewer.server import MAX_BODY, Server

SCRIPT = "<script>document.title='owned'</script>"


class Client:
    """A browser without a face: it keeps its cookie, and says where it comes from only if told."""

    def __init__(self, server: Server, enter: bool = True) -> None:
        self.server, self.cookie = server, ""
        if enter:
            answer, _ = self.ask("GET", server.address.split(str(server.port))[1])
            assert answer.status == 303
            self.cookie = answer.headers["Set-Cookie"].split(";")[0]

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[http.client.HTTPResponse, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        sent = {"Cookie": self.cookie, **{name.replace("_", "-"): value for name, value in headers.items()}}
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        if isinstance(body, dict):
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, data, {k: v for k, v in sent.items() if v})
        answer = connection.getresponse()
        return answer, answer.read()

    def get(self, path: str) -> Any:
        answer, body = self.ask("GET", f"/api/{path}")
        assert answer.status == 200, body
        return json.loads(body) if answer.headers["Content-Type"] == "application/json" else body

    def row_of(self, id_: str) -> int:
        return self.server.viewer.source.truth.rows[id_]


def serve(server: Server) -> Server:
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return server


@pytest.fixture
def model(release: Path, tmp_path: Path) -> Path:
    lines = spoiled(read_truth(release, "test"), 5)
    lines[3]["response"] = f"{SCRIPT} an unusual sheen. " + lines[3]["response"]
    return written(tmp_path, lines, "careless")


@pytest.fixture
def server(release: Path, model: Path, tmp_path: Path) -> Iterator[Server]:
    made = serve(started(release, [model], review=tmp_path / "review.jsonl", reader="rm", port=0))
    yield made
    made.shutdown()
    made.server_close()


# --- who gets in ----------------------------------------------------------------------------------------------


def test_the_door_opens_once_and_the_cookie_keeps_it_open(server: Server) -> None:
    told: list[str] = []
    server.tell = told.append
    first = server.address.split(str(server.port))[1]
    client = Client(server)
    assert client.get("index")["rows"] == len(server.viewer.source.truth)
    stranger = Client(server, enter=False)
    answer, _ = stranger.ask("GET", first)
    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers
    assert told, "a used address was tried: its owner gets a new one"
    assert told[0].endswith(server.address)
    assert stranger.ask("GET", "/api/index")[0].status == 403
    stranger.cookie = f"{server.cookie}=guessed"
    assert stranger.ask("GET", "/api/index")[0].status == 403
    stranger.cookie = f'{server.cookie}="\\x"; =; {server.cookie}'
    assert stranger.ask("GET", "/api/index")[0].status == 403
    assert stranger.ask("GET", "/?token=%C3%A9")[0].status == 403


def test_the_cookie_is_for_this_site_alone_and_for_no_script(server: Server) -> None:
    answer, _ = Client(server, enter=False).ask("GET", server.address.split(str(server.port))[1])
    assert answer.status == 303
    assert answer.headers["Location"] == "/"
    flags = {part.strip() for part in answer.headers["Set-Cookie"].split(";")[1:]}
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= flags


def test_another_host_or_page_is_refused(server: Server) -> None:
    client = Client(server)
    for host in (
        "evil.example",
        f"evil.example:{server.port}",
        "127.0.0.1",
        "127.0.0.1:1",
        f"127.0.0.2:{server.port}",
        f"0.0.0.0:{server.port}",
    ):
        assert client.ask("GET", "/api/index", Host=host)[0].status == 421, host
        assert client.ask("GET", "/", Host=host)[0].status == 421, host
    for origin in (
        "http://evil.example",
        "null",
        f"http://127.0.0.1:{server.port + 1}",
        f"https://127.0.0.1:{server.port}",
    ):
        assert client.ask("GET", "/api/index", Origin=origin)[0].status == 403, origin
        assert client.ask("POST", "/api/undo", {}, Origin=origin)[0].status == 403, origin
    for site in ("cross-site", "same-site", "odd"):
        assert client.ask("GET", "/api/index", Sec_Fetch_Site=site)[0].status == 403, site
        assert client.ask("POST", "/api/undo", {}, Sec_Fetch_Site=site)[0].status == 403, site
        assert (
            client.ask("GET", "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="script")[
                0
            ].status
            == 403
        )
        assert (
            client.ask(
                "GET", "/api/index", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="document"
            )[0].status
            == 403
        )
        assert (
            client.ask("GET", "/", Sec_Fetch_Site=site, Sec_Fetch_Mode="navigate", Sec_Fetch_Dest="iframe")[
                0
            ].status
            == 403
        )
    own = f"http://127.0.0.1:{server.port}"
    assert client.ask("GET", "/api/index", Origin=own, Sec_Fetch_Site="same-origin")[0].status == 200
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert client.ask("GET", "/", **followed)[0].status == 200, (
        "a link of a report leads to the page, which holds no data"
    )


def test_every_answer_says_what_a_page_may_do(server: Server) -> None:
    client = Client(server)
    for method, path in (
        ("GET", "/"),
        ("GET", "/main.js"),
        ("GET", "/api/index"),
        ("GET", "/api/row/0"),
        ("GET", "/nothing"),
        ("GET", "/api/review.jsonl"),
        ("HEAD", "/"),
        ("POST", "/api/nothing"),
    ):
        answer, _ = client.ask(method, path, {} if method == "POST" else None)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert "Python" not in answer.headers["Server"]


@pytest.mark.parametrize(
    "path",
    ["/../pyproject.toml", "/..%2f..%2fetc/passwd", "//etc/passwd", "/static/main.js", "/server.py", "/%2e%2e/server.py",
     "/api/column/../../x", "/api/column/ids", "/api/row/-1", "/api/row/99999999", "/api/row/1e3", "/api/row/%D9%A3", "/api/voxels/",
     "/api/voxels/../x", "/api/search?model=0", "/api/search?model=7&words=x", "/api/boxes/x", "/main.js/"],
)  # fmt: skip
def test_nothing_but_the_table_and_numbers_is_served(server: Server, path: str) -> None:
    answer, body = Client(server).ask("GET", path)
    assert answer.status == 404, body


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40),
    method=st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE"]),
)
def test_no_address_breaks_the_server(server: Server, path: str, method: str) -> None:
    client = Client(server, enter=False)
    client.cookie = f"{server.cookie}={server.secret}"
    answer, _ = client.ask(method, "/api/" + path, b"{}" if method == "POST" else None)
    assert answer.status in (200, 204, 400, 403, 404, 409, 415, 501)
    assert (
        answer.status != 200
        or path.split("?")[0].split("#")[0] in ("index", "review.jsonl", "predictions.jsonl", "")
        or path[:3] in ("row", "col", "vox", "mas", "box")
    )


def test_what_is_sent_to_it_is_bounded(server: Server) -> None:
    client = Client(server)
    json_ = {"Content_Type": "application/json"}
    assert client.ask("POST", "/api/review", b"x" * (MAX_BODY + 1), **json_)[0].status == 413
    assert client.ask("POST", "/api/review", b"{}", Content_Type="text/plain")[0].status == 415
    assert client.ask("POST", "/api/review", b"{}", **json_, Content_Length="-1")[0].status == 413
    for body in (b"not json", b"[]", b'{"id": 1}', b'{"id": "1000003-00m-left-acl", "id": "x"}', b"\xff"):
        answer, said = client.ask("POST", "/api/review", body, **json_)
        assert answer.status == 409, body
        assert "Traceback" not in said.decode()
    assert not server.viewer.review.path.exists()


def test_only_this_machine_is_served_unless_asked_by_name(release: Path, tmp_path: Path) -> None:
    served = started(release, review=tmp_path / "r.jsonl", port=0)
    assert served.server_address[0] == "127.0.0.1"
    served.server_close()
    everyone = serve(started(release, review=tmp_path / "r.jsonl", port=0, host="0.0.0.0"))
    client = Client(everyone)
    assert client.ask("GET", "/api/index", Host=f"192.0.2.7:{everyone.port}")[0].status == 200, "by number"
    assert client.ask("GET", "/api/index", Host=f"evil.example:{everyone.port}")[0].status == 421, (
        "by a name that was bent"
    )
    everyone.shutdown()
    everyone.server_close()


def test_the_command_prints_its_address_and_warns(release: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    arguments = [
        "view",
        release,
        "--no-browser",
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--review",
        tmp_path / "r.jsonl",
    ]
    child = subprocess.Popen(
        [sys.executable, "-u", "-m", "reasonknee", *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    said = [child.stdout.readline() for _ in range(4)]
    child.send_signal(2)
    assert child.wait(20) == 130
    assert said[0].startswith("warning: others can reach")
    assert "rows" in said[1]
    assert "?token=" in said[2]


def test_refusals(release: Path, model: Path, tmp_path: Path) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    for code, kind, arguments in (
        ("H010", UsageError, {"review": release / "here.jsonl"}),
        ("H011", UsageError, {"reader": "a\nb"}),
        ("H020", UsageError, {"predictions": [model] * 3}),
        ("H021", StorageError, {"port": taken.getsockname()[1]}),
    ):
        with pytest.raises(kind, match=code):
            started(release, **{"review": tmp_path / "r.jsonl", "port": 0, **arguments})  # type: ignore[arg-type]
    taken.close()
    manifest = json.loads((release / "manifest.json").read_text())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "manifest.json").write_text(json.dumps({**manifest, "shards": []}))
    with pytest.raises(DataError, match="H001"):
        started(tmp_path / "empty", review=tmp_path / "r.jsonl", port=0)
    assert command("view", tmp_path / "nowhere", "--no-browser") == 2


# --- what is sent ---------------------------------------------------------------------------------------------


def test_rows_and_columns_are_those_of_the_release(server: Server, release: Path) -> None:
    client, index = Client(server), Client(server).get("index")
    columns = {
        name: np.frombuffer(client.get(f"column/{name}"), dtype) for name, dtype in index["columns"].items()
    }
    ids = [
        f"{index['volumes'][v]}-{index['questions'][q]['id']}"
        for v, q in zip(columns["volume"], columns["question"], strict=True)
    ]
    truth = read_truth(release, "test")
    ours = [i for i, split in enumerate(columns["split"]) if index["splits"][split] == "test"]
    assert [ids[i] for i in ours] == truth.ids
    assert (columns["grade"][ours] == truth.grades.max(1)).all()
    assert set(columns["verdict.0"][ours].tolist()) >= {1, 2, 3}
    assert (columns["verdict.0"][[i for i in range(len(ids)) if i not in set(ours)]] == 0).all()
    n = ours[7]
    row = client.get(f"row/{n}")
    assert row["id"] == ids[n]
    assert row["question"]["instruction"]
    assert row["reasoning"]
    assert row["models"][0]["words"]
    assert row["models"][0]["right"].keys() == row["grades"].keys()
    boxed = next(i for i in ours if server.viewer.source.truth.has_box[i])
    box, crop = (Box.from_dict(client.get(f"row/{boxed}")[name]) for name in ("box", "crop"))
    assert box.inside(crop)
    assert crop != box, "the release has a margin, and it can be seen"


def test_voxels_are_those_of_the_row(server: Server) -> None:
    client, viewer = Client(server), server.viewer
    answer, body = client.ask("GET", "/api/voxels/3")
    about = json.loads(answer.headers["X-Volume"])
    shown = viewer.source.voxels(3)
    assert shown
    assert (np.frombuffer(body, about["dtype"]).reshape(about["shape"]) == shown.volume.array).all()
    assert about["origin"] == [0, 0, 0]
    assert about["percentiles"]["0"] <= about["percentiles"]["50"] <= about["percentiles"]["100"]
    assert np.allclose(about["affine"], shown.volume.grid.affine[:3])


def test_scores_are_shown_as_they_were_judged(
    server: Server, release: Path, model: Path, tmp_path: Path
) -> None:
    """The same columns and the same card, whether the predictions are judged here or were by `score --out`."""
    assert (
        command("score", model, release, "--out", tmp_path / "out", "--bootstrap", "0", "--model", "named")
        == 0
    )
    made = serve(started(release, [model], [tmp_path / "out"], review=tmp_path / "r.jsonl", port=0))
    scored, judged = Client(made), Client(server)
    assert scored.get("index")["models"] == ["named"]
    for name in ("verdict", "status", "iou", "badness"):
        assert scored.get(f"column/{name}.0") == judged.get(f"column/{name}.0")
    for n in np.flatnonzero(made.viewer.columns["verdict.0"])[::23]:
        one, other = (client.get(f"row/{n}")["models"][0] for client in (scored, judged))
        assert {**one, "name": ""} == {**other, "name": ""}
    model.write_text("\n" + model.read_text())
    assert "has changed" in scored.get(f"row/{n}")["models"][0]["words"]
    made.shutdown()
    made.server_close()
    alone = started(release, [], [tmp_path / "out"], review=tmp_path / "r.jsonl", port=0)
    assert "--predictions" in alone.viewer.row(int(n), False)["models"][0]["words"]
    assert not len(alone.viewer.models[0].saying("a"))
    alone.server_close()
    with pytest.raises(DataError, match="S014"):
        started(release, [], [tmp_path], review=tmp_path / "r.jsonl", port=0)


def test_a_run_says_how_it_asked_and_is_called_after_its_folder(
    release: Path, model: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tiny" / "predictions.jsonl"
    path.parent.mkdir()
    shutil.copy(model, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    stamp = {"kind": "reasonknee.run", "predictions": digest, "setting": "zero_shot"}
    path.with_name("predictions.stamp.json").write_text(json.dumps(stamp))
    server = started(release, [path, model], review=tmp_path / "r.jsonl", port=0)
    n = int(np.flatnonzero(server.viewer.columns["verdict.0"])[0])
    said = [(m["name"], m["setting"]) for m in server.viewer.row(n, False)["models"]]
    assert said == [("tiny", "zero_shot"), ("careless", "")]
    server.server_close()


def test_words_of_the_model_are_found(server: Server) -> None:
    client = Client(server)
    found = np.frombuffer(client.get("search?model=0&words=UNUSUAL%20sheen"), np.uint32)
    assert len(found) == 1
    assert SCRIPT in client.get(f"row/{found[0]}")["models"][0]["words"]
    assert len(np.frombuffer(client.get("search?model=0&words=nobody%20says%20so"), np.uint32)) == 0
    quoted = np.frombuffer(client.get("search?model=0&words=%22grades%22"), np.uint32)
    assert len(quoted) > 10, "words that JSON writes in another way"


def only(release: Path, folder: Path, config: str) -> Path:
    manifest = json.loads((release / "manifest.json").read_text())
    folder.mkdir()
    (folder / config).symlink_to(release / config)
    kept = [s for s in manifest["shards"] if s["config"] == config]
    (folder / "manifest.json").write_text(json.dumps({**manifest, "shards": kept}))
    return folder


@pytest.mark.parametrize("config", ["cropped", "annotations", "full", "embeddings"])
def test_a_release_of_any_config(release: Path, tmp_path: Path, config: str) -> None:
    made = serve(started(only(release, tmp_path / "r", config), review=tmp_path / "r.jsonl", port=0))
    client = Client(made)
    source = made.viewer.source
    n = next(i for i, has in enumerate(source.truth.has_box) if has)
    answer, _ = client.ask("GET", f"/api/voxels/{n}")
    row = client.get(f"row/{n}")
    assert row["id"] == source.truth.ids[n]
    if config in ("cropped", "full"):
        about = json.loads(answer.headers["X-Volume"])
        corner = [row["crop"][a] for a in ("z0", "y0", "x0")] if config == "cropped" else [0, 0, 0]
        assert about["origin"] == corner
        boxes = client.ask("GET", f"/api/boxes/{n}")
        assert boxes[0].status == 200
        (tmp_path / "boxes.nii.gz").write_bytes(boxes[1])
        labels = nibabel.load(tmp_path / "boxes.nii.gz")
        assert labels.shape == tuple(row["shape"][a] for a in "xyz")
        whole = nibabel.Nifti1Image.from_bytes(next(pages(release, row["volume_id"])))
        assert np.allclose(labels.affine, whole.affine, atol=1e-4), "also where only a crop is known"
    else:
        assert answer.status == 204
        assert "no voxels" in client.get("index")["note"]
        refused, told = client.ask("GET", f"/api/boxes/{n}")
        assert refused.status == 409
        assert b"H004" in told
    made.shutdown()
    made.server_close()


def pages(release: Path, volume: str) -> Iterator[bytes]:
    from reasonknee.release.reader import Release

    for row in Release(release).rows([volume], "full"):
        yield row["volume"]["bytes"]


def test_a_release_on_the_hub(release: Path, tmp_path: Path) -> None:
    """By the name of its repo: texts at once, of the voxels those of the row that is opened. A full release is
    hundreds of gigabytes."""
    from hub import Hub

    hollow = tmp_path / "hollow"
    shutil.copytree(release, hollow, ignore=shutil.ignore_patterns("full"))
    script = f"""
import json
from pathlib import Path
from reasonknee.errors import StorageError
from reasonknee.viewer.open import started
review = Path({str(tmp_path / "r.jsonl")!r})
viewer = started("rajpurkarlab/3DReasonKnee", review=review, port=0).viewer
print(json.dumps([viewer.source.name, len(viewer.source.truth), viewer.row(3, False)["id"], list(viewer.voxels(3).volume.array.shape)]))
try:
    started("rajpurkarlab/hollow", review=review, port=0).viewer.voxels(3)
except StorageError as error:
    print(error.code)
"""
    with Hub({"rajpurkarlab/3DReasonKnee": release, "rajpurkarlab/hollow": hollow}) as hub:
        done = run("-c", script, env=hub.env(tmp_path / "home"))
        sent = {config: hub.sent(f"/{config}/") for config in ("full", "cropped")}
    assert done.returncode == 0, done.stderr[-2000:]
    stored = {config: sum(s.bytes for s in read_manifest(release).of(config)) for config in sent}
    assert 0 < sent["full"] < stored["full"] / 3, "one volume"
    assert 0 < sent["cropped"] < stored["cropped"] / 3, "where its crop lies"
    told, code = done.stdout.splitlines()
    assert code == "M003"
    name, rows, id_, shape = json.loads(told)
    here = started(release, review=tmp_path / "r.jsonl", port=0)
    truth = here.viewer.source.truth
    assert name.startswith("3DReasonKnee ")
    assert (rows, id_, shape) == (len(truth), truth.ids[3], truth.shape[3].tolist())
    here.server_close()


def test_a_disk_that_fails_is_told(cohort: Path, tmp_path: Path) -> None:
    copy = tmp_path / "cohort"
    shutil.copytree(cohort, copy)
    made = serve(started(copy, review=tmp_path / "r.jsonl", port=0))
    client = Client(made)
    (copy / "annotations.jsonl").unlink()
    answer, said = client.ask("GET", "/api/row/0")
    assert answer.status == 500
    assert "H006" in json.loads(said)["error"]
    made.shutdown()
    made.server_close()


def test_a_cohort_with_its_masks(cohort: Path, tmp_path: Path) -> None:
    made = serve(started(cohort, review=tmp_path / "r.jsonl", port=0))
    client, truth = Client(made), made.viewer.source.truth
    n = truth.rows[next(i for i in truth.ids if i.endswith("-acl"))]
    row, (answer, body) = client.get(f"row/{n}"), client.ask("GET", f"/api/mask/{n}")
    about = json.loads(answer.headers["X-Volume"])
    labels = np.frombuffer(body, about["dtype"]).reshape(about["shape"])
    box = Box.from_dict(row["box"])
    inside = np.unique(labels[box.slices])
    boxes = [Box.from_mask(labels == label) for label in inside if label]
    assert box in boxes, "the box is that of one of the labels"
    assert client.ask("GET", f"/api/voxels/{n}")[0].status == 200
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    ("what", "code"),
    [("shape", "V007"), ("huge", "V002"), ("moved", "H002"), ("gone", "H003")],
)
def test_a_volume_that_lies_is_refused(release: Path, tmp_path: Path, what: str, code: str) -> None:
    """Bytes of a row are a file from elsewhere: the header claims what is not there, or too much."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "r"
    shutil.copytree(release, folder)
    path = sorted((folder / "full").glob("test-*.parquet"))[0]
    table = pq.read_table(path)
    rows = table.to_pylist()
    data = bytearray(rows[0]["volume"]["bytes"])
    if what == "shape":
        data[42:44] = (60).to_bytes(2, "little")
    elif what == "huge":
        data[42:48] = (4000).to_bytes(2, "little") * 3
    elif what == "moved":
        data[42:44], data[46:48] = data[46:48], data[42:44]
        if data[42:44] == data[46:48]:
            pytest.skip("the volume is a cube")
    rows[0]["volume"]["bytes"] = bytes(data)
    if what == "gone":
        rows[0]["quintuples"] = rows[0]["quintuples"][1:]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    made = serve(started(folder, review=tmp_path / "r.jsonl", port=0))
    client = Client(made)
    n = min(made.viewer.source.truth.rows[q["id"]] for q in table.to_pylist()[0]["quintuples"])
    answer, said = client.ask("GET", f"/api/voxels/{n}")
    assert answer.status == 409
    assert code in json.loads(said)["error"]
    assert client.ask("GET", "/api/index")[0].status == 200, "the others can still be looked at"
    made.shutdown()
    made.server_close()


# --- review ---------------------------------------------------------------------------------------------------


def sent(client: Client, **said: Any) -> dict[str, Any]:
    answer, body = client.ask("POST", "/api/review", said)
    assert answer.status == 200, body
    entry: dict[str, Any] = json.loads(body)
    return entry


def test_flags_are_lines_and_can_be_taken_back(server: Server) -> None:
    client, id_ = Client(server), server.viewer.source.truth.ids[4]
    sent(client, id=id_, kind="flag", flag="image_bad", note="moved\nduring the scan")
    kept = sent(client, id=id_, kind="flag", flag="box_misplaced")
    sent(client, id=id_, kind="flag", flag="grade_doubtful")
    undone = json.loads(client.ask("POST", "/api/undo", {})[1])["undone"]
    assert undone["flag"] == "grade_doubtful"
    assert [e["flag"] for e in client.get(f"row/{4}")["review"]] == ["image_bad", "box_misplaced"]
    lines = [json.loads(line) for line in server.viewer.review.path.read_text().splitlines()]
    assert len(lines) == 4, "nothing is ever removed"
    assert {line["reader"] for line in lines} == {"rm"}
    exported = [json.loads(line) for line in client.get("review.jsonl").splitlines()]
    assert kept in exported
    assert len(exported) == 2
    assert [e.flag for e in standing(read_review(server.viewer.review.path))] == [
        "image_bad",
        "box_misplaced",
    ]
    for _ in range(3):
        last = json.loads(client.ask("POST", "/api/undo", {})[1])["undone"]
    assert last is None


def test_a_review_goes_on_where_it_was_cut(server: Server, release: Path, tmp_path: Path) -> None:
    client, id_ = Client(server), server.viewer.source.truth.ids[4]
    sent(client, id=id_, kind="flag", flag="image_bad")
    path = server.viewer.review.path
    path.write_bytes(path.read_bytes()[:-1])  # the last byte did not reach the disk
    sent(client, id=id_, kind="flag", flag="box_misplaced")
    again = started(release, review=path, reader="other", port=0)
    assert [e.flag for e in again.viewer.review.entries] == ["image_bad", "box_misplaced"]
    assert again.viewer.review.undo() is None, "one takes back one's own entries alone"
    again.server_close()


def test_what_cannot_be_saved_is_told(server: Server, tmp_path: Path) -> None:
    client, id_ = Client(server), server.viewer.source.truth.ids[4]
    server.viewer.review.path = tmp_path / "file" / "review.jsonl"
    (tmp_path / "file").write_text("in the way")
    answer, said = client.ask("POST", "/api/review", {"id": id_, "kind": "flag", "flag": "image_bad"})
    assert answer.status == 409
    assert "H013" in json.loads(said)["error"]
    assert not server.viewer.review.entries


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"kind": "flag", "flag": "ugly"}, "A010"),
        ({"kind": "flag", "flag": "note"}, "A010"),
        ({"kind": "correction"}, "A010"),
        ({"kind": "correction", "grades": {"complete_tear": 9}}, "A010"),
        ({"kind": "correction", "grades": {"size": 1}}, "A010"),
        ({"kind": "correction", "box": {"z0": 1}}, "A010"),
        ({"kind": "correction", "box": dict(zip(("z0", "z1", "y0", "y1", "x0", "x1"), (5, 2, 0, 1, 0, 1), strict=True))}, "A010"),
        ({"kind": "correction", "box": dict(zip(("z0", "z1", "y0", "y1", "x0", "x1"), (0, 999, 0, 1, 0, 1), strict=True))}, "H012"),
        ({"kind": "reading", "grades": {"complete_tear": 1}}, "A010"),
        ({"kind": "undo"}, "A010"),
        ({"kind": "flag", "flag": "note", "note": "x" * 3000}, "A010"),
        ({"kind": "flag", "flag": "image_bad", "id": "nobody"}, "H005"),
    ],
)  # fmt: skip
def test_an_entry_that_says_nothing_or_nonsense(server: Server, said: dict[str, Any], code: str) -> None:
    client = Client(server)
    id_ = next(i for i in server.viewer.source.truth.ids if i.endswith("-acl"))
    answer, body = client.ask("POST", "/api/review", {"id": id_, **said})
    assert answer.status == 409
    assert code in json.loads(body)["error"]


def test_a_blind_reading_sees_nothing_first_and_is_a_prediction(
    server: Server, release: Path, tmp_path: Path
) -> None:
    client = Client(server)
    truth = read_truth(release, "test")
    seen = server.viewer.source.truth.rows[truth.ids[0]]
    client.get(f"row/{seen}")
    for id_ in truth.ids[:6]:
        n = server.viewer.source.truth.rows[id_]
        hidden = client.get(f"row/{n}?blind=1")
        assert not {"grades", "box", "reasoning", "models", "crop"} & set(hidden)
        grades = {a.id: 0 for a in QUESTIONS[id_.rpartition("-")[2]].attributes}
        entry = sent(client, id=id_, kind="reading", grades=grades, note="looks normal")
        assert entry.get("blind", False) is (n != seen), "the answer of the first row was already shown"
    lines = [json.loads(line) for line in client.get("predictions.jsonl").splitlines()]
    assert [line["id"] for line in lines] == truth.ids[1:6]
    path = tmp_path / "reader.jsonl"
    path.write_bytes(client.get("predictions.jsonl"))
    done = run("score", path, release, "--bootstrap", "0")
    assert done.returncode == 0, done.stderr
    assert "5 parsed" in done.stdout


def test_corrections_change_grades_and_boxes_and_nothing_else(cohort: Path, tmp_path: Path) -> None:
    from reasonknee.cohort import Cohort

    copy = tmp_path / "cohort"
    shutil.copytree(cohort, copy)
    assert command("construct", copy, "--force") == 0
    entries = Cohort(copy).entries()
    before = {e.volume_id: Cohort(copy).annotation(e) for e in entries}
    volume = next(v for v, a in before.items() if "acl" in a.grades and a.boxes["acl"])
    old = before[volume]
    box = old.boxes["acl"]
    assert box
    moved = Box(box.z0, box.z1, box.y0, box.y1, box.x0, box.x1 - 1)
    turned = 1 - old.grades["acl"]["complete_tear"]
    review = tmp_path / "review.jsonl"
    about = {"reader": "rm", "at": "2026-05-04T09:30:00+00:00"}
    lines = [
        {"entry": "a" * 16, "id": f"{volume}-acl", "kind": "correction", "grades": {"complete_tear": turned}, **about},
        {"entry": "b" * 16, "id": f"{volume}-acl", "kind": "correction", "box": moved.as_dict(), **about},
        {"entry": "c" * 16, "id": f"{volume}-acl", "kind": "correction", "grades": {"repair": 1 - old.grades["acl"]["repair"]}, **about},
        {"entry": "d" * 16, "id": f"{volume}-acl", "kind": "undo", "undoes": "c" * 16, **about},
        {"entry": "e" * 16, "id": f"{volume}-pcl", "kind": "flag", "flag": "grade_doubtful", **about},
        {"entry": "f" * 16, "id": f"{volume}-acl", "kind": "reading", "blind": True, "grades": {a.id: 1 for a in QUESTIONS["acl"].attributes}, **about},
        {"entry": "0" * 16, "id": "9999999-00m-left-acl", "kind": "correction", "grades": {"repair": 1}, **about},
    ]  # fmt: skip
    review.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("construct", copy, "--force", "--corrections", review)
    assert done.returncode == 0, done.stderr
    assert "2 corrections" in done.stdout
    assert "1 names a row that is not here" in done.stdout
    after = {e.volume_id: Cohort(copy).annotation(e) for e in Cohort(copy).entries()}
    new = after.pop(volume)
    before.pop(volume)
    assert after == before
    assert new.grades["acl"] == {**old.grades["acl"], "complete_tear": turned}
    assert new.boxes == {**old.boxes, "acl": moved}
    assert {q: g for q, g in new.grades.items() if q != "acl"} == {
        q: g for q, g in old.grades.items() if q != "acl"
    }
    report = json.loads((copy / "construct.report.json").read_text())["corrections"]
    assert report["applied"][0] == {
        "id": f"{volume}-acl", "by": "rm", "at": about["at"], "from_to": {"complete_tear": [1 - turned, turned]},
    }  # fmt: skip
    assert report["unused"] == ["9999999-00m-left-acl"]
    lines[1]["box"] = {**moved.as_dict(), "x1": 4000}
    review.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = run("construct", copy, "--force", "--corrections", review)
    assert refused.returncode == 3
    assert "A011" in refused.stderr


@given(
    kinds=st.lists(st.tuples(st.sampled_from(["flag", "undo"]), st.integers(0, 11)), max_size=12),
)
def test_what_stands_is_what_was_not_undone(kinds: list[tuple[str, int]]) -> None:
    about = {"id": "1000001-00m-left-acl", "reader": "rm", "at": "2026-05-04T09:30:00+00:00"}
    lines = [
        {"entry": f"{i:08x}", "kind": kind, **about, **({"flag": "image_bad"} if kind == "flag" else {"undoes": f"{of:08x}"})}
        for i, (kind, of) in enumerate(kinds)
    ]  # fmt: skip
    entries = [checked_entry(line, "here") for line in lines]
    assert [e.as_dict() for e in entries] == lines
    undone = {of for kind, of in kinds if kind == "undo"}
    assert [e.entry for e in standing(entries)] == [
        f"{i:08x}" for i, (kind, _) in enumerate(kinds) if kind == "flag" and i not in undone
    ]
    assert corrected([], entries) == ([], {"applied": [], "unused": []})


def test_a_damaged_review_is_refused_with_its_line(tmp_path: Path, release: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"entry": "aaaaaaaa"}\n')
    with pytest.raises(DataError, match=r"A010.*r\.jsonl:1"):
        started(release, review=tmp_path / "r.jsonl", port=0)
    with pytest.raises(ReasonKneeError):
        read_review(tmp_path / "nowhere.jsonl")
