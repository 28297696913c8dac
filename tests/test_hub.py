"""The loopback Hub is right: what the libraries read from it and write to it, and what goes over the wire."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub import Hub

REPO = "rajpurkarlab/3DReasonKnee"
ROWS, SIZE = 24, 100_000
SHARD = f"/datasets/{REPO}/resolve/main/data/cropped-00000.parquet"
README = """---
configs:
- config_name: cropped
  data_files:
  - split: train
    path: data/cropped-*.parquet
dataset_info:
- config_name: cropped
  features:
  - name: id
    dtype: string
  - name: volume
    dtype: binary
---
# A tiny release
"""


def volume(row: int) -> bytes:
    return np.random.default_rng(row).bytes(SIZE)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    (folder / "README.md").write_text(README)
    (folder / "empty").touch()
    (folder.parent / "secret").write_text("not in the repo")
    (folder / "data").mkdir()
    for shard, rows in enumerate(np.array_split(np.arange(ROWS), 2)):
        table = pa.table({"id": [f"row-{row}" for row in rows], "volume": [volume(row) for row in rows]})
        pq.write_table(
            table,
            folder / f"data/cropped-{shard:05d}.parquet",
            row_group_size=3,
            compression="none",
            use_dictionary=False,
        )
    return folder


@pytest.fixture
def hub(release: Path) -> Iterator[Hub]:
    with Hub({REPO: release}) as hub:
        yield hub


def run(hub: Hub, home: Path, script: str, *args: str | Path) -> object:
    home.mkdir()
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(
        command,
        env=hub.env(home) | {"USE_TORCH": "0"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def fetch(
    hub: Hub, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    request = urllib.request.Request(hub.endpoint + path, method=method, headers=headers)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=10
        ) as response:
            return response.status, response.headers, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


# After streaming, an ordinary exit now and then aborts ("terminate called without an active exception") with every row right: hence os._exit.
LOAD = """
import hashlib, json, os
from datasets import load_dataset
out = {}
for streaming in (False, True):
    rows = load_dataset("rajpurkarlab/3DReasonKnee", "cropped", split="train", streaming=streaming)
    out[str(streaming)] = [[row["id"], hashlib.sha256(row["volume"]).hexdigest()] for row in rows]
print(json.dumps(out), flush=True)
os._exit(0)
"""


def test_load_dataset_maps_and_streams_the_rows(hub: Hub, tmp_path: Path) -> None:
    rows = [[f"row-{row}", hashlib.sha256(volume(row)).hexdigest()] for row in range(ROWS)]
    assert run(hub, tmp_path / "home", LOAD) == {"False": rows, "True": rows}
    shards = [request for request in hub.log if ".parquet" in request.path and request.method == "GET"]
    assert {request.status for request in shards if request.range} == {206}
    assert {request.status for request in shards if not request.range} == {200}
    assert hub.sent(".parquet") >= 2 * ROWS * SIZE
    script = [request.status for request in hub.log if request.path.endswith("/3DReasonKnee.py")]
    assert script
    assert set(script) == {404}


UPLOAD = """
import json, sys
from pathlib import Path
from huggingface_hub import HfApi, snapshot_download
source, target = map(Path, sys.argv[1:])
api, repo = HfApi(), dict(repo_id="someone/new", repo_type="dataset")
def files(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in Path(root).rglob("*") if p.is_file() and ".cache" not in p.parts}
def error(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except Exception as e:
        return type(e).__name__
url = api.create_repo(**repo, private=True)
again = error(api.create_repo, **repo)
first = api.upload_folder(folder_path=source, **repo)
same = api.upload_file(path_or_fileobj=source / "README.md", path_in_repo="README.md", **repo)
back = files(snapshot_download(**repo, local_dir=target / "main")) == files(source)
pull = api.upload_file(path_or_fileobj=b"# New", path_in_repo="docs/new.md", create_pr=True, **repo)
api.delete_file("empty", revision=pull.pr_revision, **repo)
main, pr = (sorted(api.list_repo_files(revision=revision, **repo)) for revision in (None, pull.pr_revision))
new = Path(api.hf_hub_download(filename="docs/new.md", revision=pull.pr_revision, **repo)).read_text()
info, paths = api.dataset_info("someone/new", files_metadata=True), api.get_paths_info(paths=["data", "README.md", "no"], expand=True, **repo)
print(json.dumps(dict(
    url=str(url), again=again, same=same.oid == first.oid == info.sha, back=back, pr=[pull.pr_num, pull.pr_revision], main=main, files=pr, new=new,
    private=info.private, paths=[[type(p).__name__, p.path] for p in paths], top=sorted(p.path for p in api.list_repo_tree(**repo)),
    below=sorted(p.path for p in api.list_repo_tree(path_in_repo="data", recursive=True, expand=True, **repo)),
    visitor=error(api.dataset_info, "someone/new", token=False), write=error(api.upload_file, path_or_fileobj=b"", path_in_repo="x", **repo, token=False),
    missing=error(api.hf_hub_download, filename="no", **repo), nowhere=error(api.dataset_info, "someone/else"),
)))
"""


def test_upload_folder_round_trips_and_a_pull_request_is_apart(
    hub: Hub, release: Path, tmp_path: Path
) -> None:
    shards = ["data/cropped-00000.parquet", "data/cropped-00001.parquet"]
    assert run(hub, tmp_path / "home", UPLOAD, release, tmp_path) == {
        "url": f"{hub.endpoint}/datasets/someone/new",
        "again": "HfHubHTTPError",
        "same": True,
        "back": True,
        "pr": [1, "refs/pr/1"],
        "main": ["README.md", *shards, "empty"],
        "files": ["README.md", *shards, "docs/new.md"],
        "new": "# New",
        "private": True,
        "paths": [["RepoFolder", "data"], ["RepoFile", "README.md"]],
        "top": ["README.md", "data", "empty"],
        "below": shards,
        "visitor": "RepositoryNotFoundError",
        "write": "RepositoryNotFoundError",
        "missing": "RemoteEntryNotFoundError",
        "nowhere": "RepositoryNotFoundError",
    }
    assert hub.repos["someone/new"].private
    assert set(hub.repos["someone/new"].files("refs/pr/1")[1]) == {"README.md", *shards, "docs/new.md"}


def test_head_names_the_content_and_the_commit(hub: Hub, release: Path) -> None:
    content = (release / "data/cropped-00000.parquet").read_bytes()
    status, headers, body = fetch(hub, SHARD, "HEAD")
    assert (status, body, headers["Content-Length"], headers["Accept-Ranges"]) == (
        200,
        b"",
        str(len(content)),
        "bytes",
    )
    assert headers["ETag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert headers["X-Repo-Commit"] == json.loads(fetch(hub, f"/api/datasets/{REPO}")[2])["sha"]
    assert fetch(hub, SHARD.replace("main", headers["X-Repo-Commit"]))[2] == content


@pytest.mark.parametrize(
    ("wanted", "part"),
    [
        ("0-0", slice(0, 1)),
        ("1000-70999", slice(1000, 71000)),
        ("1000-", slice(1000, None)),
        ("-8", slice(-8, None)),
        ("9-99999999", slice(9, None)),
    ],
)
def test_a_range_is_exact(hub: Hub, release: Path, wanted: str, part: slice) -> None:
    content = (release / "data/cropped-00000.parquet").read_bytes()
    status, headers, body = fetch(hub, SHARD, Range=f"bytes={wanted}")
    start, stop, _ = part.indices(len(content))
    assert (status, headers["Content-Range"], headers["Content-Length"]) == (
        206,
        f"bytes {start}-{stop - 1}/{len(content)}",
        str(len(body)),
    )
    assert body == content[part]
    assert [(r.range, r.status, r.sent) for r in hub.log] == [(f"bytes={wanted}", 206, len(body))]


def test_a_range_beyond_the_end_is_refused(hub: Hub, release: Path) -> None:
    size = (release / "data/cropped-00000.parquet").stat().st_size
    status, headers, _ = fetch(hub, SHARD, Range=f"bytes={size}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{size}")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        (f"/datasets/{REPO}/resolve/main/3DReasonKnee.py", "EntryNotFound"),
        (f"/datasets/{REPO}/resolve/main/../secret", "EntryNotFound"),
        (f"/datasets/{REPO}/resolve/main/..%2Fsecret", "EntryNotFound"),
        (f"/datasets/{REPO}/resolve/main/data%2F..%2F..%2Fsecret", "EntryNotFound"),
        (f"/datasets/{REPO}/resolve/main//etc/passwd", "EntryNotFound"),
        (f"/api/datasets/{REPO}/tree/main/..", "EntryNotFound"),
        (f"/api/datasets/{REPO}/revision/v9", "RevisionNotFound"),
        ("/api/datasets/rajpurkarlab/other", "RepoNotFound"),
        ("/datasets/rajpurkarlab/other/resolve/main/README.md", "RepoNotFound"),
    ],
)
def test_what_is_not_there_is_404(hub: Hub, path: str, code: str) -> None:
    status, headers, _ = fetch(hub, path)
    assert (status, headers["X-Error-Code"]) == (404, code)


def test_private_and_gated_repos_ask_for_the_token(hub: Hub) -> None:
    hub.repos[REPO].gated = "manual"
    assert json.loads(fetch(hub, f"/api/datasets/{REPO}")[2])["gated"] == "manual"
    for headers, expected in (({}, 401), ({"Authorization": "Bearer hf_other"}, 403)):
        status, answer, _ = fetch(hub, SHARD, **headers)
        assert (status, answer["X-Error-Code"]) == (expected, "GatedRepo")
    assert fetch(hub, SHARD, Authorization=f"Bearer {hub.token}")[0] == 200
    hub.repos[REPO].private = True
    assert fetch(hub, f"/api/datasets/{REPO}")[1]["X-Error-Code"] == "RepoNotFound"
    assert fetch(hub, f"/api/datasets/{REPO}", Authorization=f"Bearer {hub.token}")[0] == 200


def test_faults_come_in_the_order_asked_for(hub: Hub, release: Path) -> None:
    content = (release / "data/cropped-00000.parquet").read_bytes()
    hub.faults = ["500", "429", "reset", "short"]
    assert (
        fetch(hub, f"/datasets/{REPO}/resolve/main/README.md")[0] == fetch(hub, SHARD, "HEAD")[0] == 200
    )  # neither counts
    assert fetch(hub, SHARD)[0] == 500
    status, headers, _ = fetch(hub, SHARD)
    assert (status, headers["Retry-After"]) == (429, "0")
    with pytest.raises((ConnectionResetError, urllib.error.URLError)):
        fetch(hub, SHARD)
    with pytest.raises(http.client.IncompleteRead) as short:
        fetch(hub, SHARD, Range="bytes=10-109")
    assert short.value.partial == content[10:60]
    assert fetch(hub, SHARD)[2] == content
    assert [request.status for request in hub.log[2:]] == [500, 429, 0, 206, 200]
    hub.faults = lambda n: "500" if n == 1 else None
    assert [fetch(hub, SHARD)[0] for _ in range(3)] == [200, 500, 200]
