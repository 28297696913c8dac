"""A small Hugging Face Hub on the loopback, for tests: folders served, and uploaded to, as dataset repos over the real protocol.

    with Hub({"rajpurkarlab/3DReasonKnee": folder}) as hub:
        subprocess.run([sys.executable, "-c", script], env=hub.env(tmp_path / "home"), check=True)
        assert hub.sent(".parquet") < 1_000_000

A repo is a table of paths to files on disk per revision, so a path that is not in the table does not exist: nothing else is ever opened.
Every file counts as LFS, hence its ETag is its SHA-256. Reading is open to all; writing, and a private or gated repo, needs `hub.token`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

BLOCK = 1 << 16
DATE = "2025-01-01T00:00:00.000Z"
Files = dict[str, Path]
# "500", "429", "reset" (no answer at all), "short" (half of the promised body), "drip" (a byte now and then) or
# "whole" (the file, whatever part of it was asked for)
Fault = str | None


class Refusal(Exception):  # noqa: N818
    def __init__(self, status: int, message: str, code: str = "", **headers: str) -> None:
        super().__init__(message)
        self.status, self.headers = (
            status,
            {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {}),
        )
        self.headers |= {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass
class Request:
    method: str
    path: str
    range: str | None = None  # the Range header as it came
    status: int = 0  # 0: the connection was reset
    sent: int = 0  # bytes of body handed to the socket; a client that hangs up may have read less


@cache
def _sha256(file: Path, _size: int, _mtime: int) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def sha256(file: Path) -> str:
    stat = file.stat()
    return _sha256(file, stat.st_size, stat.st_mtime_ns)


@dataclass
class Repo:
    folder: Path | None = None  # main, as it is on disk at each request, until the first commit to main
    private: bool = False
    gated: bool | str = False  # False, "auto" or "manual"
    heads: dict[str, Files] = field(default_factory=dict)  # main, refs/pr/1, ... and any name a test adds
    commits: dict[str, Files] = field(default_factory=dict)

    def files(self, revision: str = "main") -> tuple[str, Files]:
        """The commit and the files of a branch, a pull request or a commit."""
        if revision in self.commits:
            return revision, self.commits[revision]
        if revision in self.heads:
            files = self.heads[revision]
        elif revision == "main" and self.folder is not None:
            files = {
                file.relative_to(self.folder).as_posix(): file
                for file in sorted(self.folder.rglob("*"))
                if file.is_file()
            }
        else:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        commit = hashlib.sha1(
            json.dumps([[path, sha256(file)] for path, file in sorted(files.items())]).encode()
        ).hexdigest()
        return commit, self.commits.setdefault(commit, files)


class Hub:
    token = "hf_loopback"

    def __init__(
        self, folders: Mapping[str, Path | str] | None = None, handler: type[Handler] | None = None
    ) -> None:
        self.repos = {name: Repo(Path(folder).absolute()) for name, folder in (folders or {}).items()}
        self.log: list[Request] = []
        self.lock = threading.Lock()
        self.faults = None
        self._objects = tempfile.TemporaryDirectory(prefix="hub-")
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Handler", (handler or Handler,), {"hub": self})
        )
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._objects.cleanup()

    @property
    def faults(self) -> Callable[[int], Fault] | Iterable[Fault] | None:
        """What goes wrong with the n-th GET of a file other than README.md, n = 0, 1, ... since this was last set: a list or f(n)."""
        return self._faults

    @faults.setter
    def faults(self, faults: Callable[[int], Fault] | Iterable[Fault] | None) -> None:
        self._faults = faults if callable(faults) else list(faults or ())
        self._data_requests = 0

    def next_fault(self) -> Fault:
        with self.lock:
            n, self._data_requests = self._data_requests, self._data_requests + 1
        if callable(self._faults):
            return self._faults(n)
        return self._faults[n] if n < len(self._faults) else None

    def sent(self, text: str = "") -> int:
        """Bytes of body sent for paths that contain the text."""
        return sum(request.sent for request in self.log if text in request.path)

    def object(self, oid: str) -> Path:
        if not re.fullmatch(r"[0-9a-f]{64}", oid):
            raise Refusal(400, f"not a sha256: {oid}")
        return Path(self._objects.name) / oid

    def store(self, content: bytes) -> Path:
        file = self.object(hashlib.sha256(content).hexdigest())
        file.write_bytes(content)
        return file

    def env(self, home: Path | str, token: str | None = token) -> dict[str, str]:
        """The whole environment of a subprocess that knows this hub only: as its owner, or with `token=None` as a visitor."""
        ours = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HOME": str(home),
            "HF_TOKEN": token or "",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        ours |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"), "0")
        ours |= {
            f"HF_HUB_DISABLE_{what}": "1"
            for what in ("XET", "TELEMETRY", "PROGRESS_BARS", "UPDATE_CHECK", "SYMLINKS_WARNING")
        }
        ours |= {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_UPDATE_DOWNLOAD_COUNTS": "0"}
        return {
            name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))
        } | ours


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each small answer waits 40 ms for an acknowledgement
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with suppress(ConnectionError):  # the client hung up
            super().handle()

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.request_log = Request(self.command, self.path, self.headers.get("Range"))
        try:
            self.body = b"".join(self.blocks())
            query = {name: values[-1] for name, values in parse_qs(url.query).items()}
            self.route([unquote(part) for part in url.path.split("/")[1:]], query)
        except Refusal as refusal:
            self.answer(refusal.status, {"error": str(refusal)}, refusal.headers)

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def blocks(self) -> Iterable[bytes]:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
            return
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers, then an empty line
            pass

    def route(self, parts: list[str], query: dict[str, str]) -> None:
        match self.command, parts:
            case "GET" | "HEAD", ["datasets", owner, name, "resolve", revision, *path]:
                self.resolve(self.repo(owner, name, data=True), revision, "/".join(path))
            case "GET", ["api", "datasets", owner, name] | ["api", "datasets", owner, name, "revision", _]:
                self.info(f"{owner}/{name}", self.repo(owner, name), parts[5] if parts[5:] else "main")
            case "GET", ["api", "datasets", owner, name, "tree", revision, *path]:
                self.tree(self.repo(owner, name), revision, "/".join(path), query)
            case "POST", ["api", "datasets", owner, name, "paths-info", revision]:
                form = (
                    json.loads(self.body)
                    if "json" in self.headers.get("Content-Type", "")
                    else parse_qs(self.body.decode())
                )
                entries = self.entries(
                    self.repo(owner, name), revision, form.get("expand") in (True, ["true"], ["True"])
                )
                self.answer(200, [entries[path] for path in form["paths"] if path in entries])
            case "POST", ["api", "repos", "create"]:
                self.create(json.loads(self.body))
            case "POST", ["api", "validate-yaml"]:
                self.answer(200, {"errors": [], "warnings": []})
            case "POST", ["api", "datasets", owner, name, "preupload", revision]:
                known = self.entries(self.repo(owner, name, write=True), revision)
                wanted = [
                    {"path": file["path"], "uploadMode": "lfs", "shouldIgnore": False}
                    for file in json.loads(self.body)["files"]
                ]
                self.answer(
                    200,
                    {
                        "files": [
                            file | {"oid": known.get(file["path"], {}).get("lfs", {}).get("oid")}
                            for file in wanted
                        ]
                    },
                )
            case "POST", ["datasets", owner, name, "info", "lfs", "objects", "batch"]:
                self.repo(owner, name.removesuffix(".git"), write=True)
                objects = json.loads(self.body)[
                    "objects"
                ]  # each an oid and a size; without an action it is here already
                for new in (item for item in objects if not self.hub.object(item["oid"]).exists()):
                    new["actions"] = {"upload": {"href": f"{self.hub.endpoint}/objects/{new['oid']}"}}
                self.answer(200, {"transfer": "basic", "objects": objects})
            case "PUT", ["objects", oid]:  # no token here, as with a presigned URL
                if hashlib.sha256(self.body).hexdigest() != oid:
                    raise Refusal(400, "the content does not have this sha256")
                self.hub.store(self.body)
                self.answer(200, {})
            case "POST", ["api", "datasets", owner, name, "commit", revision]:
                self.commit(
                    f"{owner}/{name}",
                    self.repo(owner, name, write=True),
                    revision,
                    query.get("create_pr") == "1",
                )
            case _:
                raise Refusal(404, f"no such page: {self.command} {self.path}")

    def repo(self, owner: str, name: str, *, data: bool = False, write: bool = False) -> Repo:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        ours, repo = token == self.hub.token, self.hub.repos.get(f"{owner}/{name}")
        if repo is None or (repo.private and not ours):
            raise Refusal(401 if repo and not token else 404, "Repository not found", "RepoNotFound")
        if data and repo.gated and not ours:
            raise Refusal(
                403 if token else 401, f"Access to dataset {owner}/{name} is restricted", "GatedRepo"
            )
        if write and not ours:
            raise Refusal(403 if token else 401, "You need a token that may write to this repo")
        return repo

    def answer(self, status: int, content: Any, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.head(status, len(body), {"Content-Type": "application/json"} | dict(headers or {}))
        self.write(body)

    def head(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.request_log.status = status
        self.hub.log.append(self.request_log)
        self.send_response(status)
        for name, value in ({"Content-Length": str(length)} | dict(headers)).items():
            self.send_header(name, value)
        self.end_headers()

    def write(self, block: bytes) -> None:
        if self.command != "HEAD":
            self.request_log.sent += len(
                block
            )  # first, so that the count is right once the client has the last byte
            self.wfile.write(block)

    def resolve(self, repo: Repo, revision: str, path: str) -> None:
        commit, files = repo.files(revision)
        if path not in files:
            raise Refusal(404, "Entry not found", "EntryNotFound", X_Repo_Commit=commit)
        file, data = files[path], self.command == "GET"
        size = file.stat().st_size
        headers = {
            "ETag": f'"{sha256(file)}"',
            "X-Repo-Commit": commit,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        status, start, stop = 200, 0, size
        if data and (wanted := re.fullmatch(r"bytes=(?:(\d+)-(\d*)|-(\d+))", self.headers.get("Range", ""))):
            first, last, suffix = wanted.groups()
            start = int(first) if first else max(size - int(suffix), 0)
            stop = min(int(last) + 1, size) if last else size
            if start >= stop:
                raise Refusal(416, "Range not satisfiable", Content_Range=f"bytes */{size}")
            status, headers["Content-Range"] = 206, f"bytes {start}-{stop - 1}/{size}"
        fault = self.hub.next_fault() if data and path != "README.md" else None
        if fault in ("500", "429"):
            raise Refusal(
                int(fault), "as the test wants it", **({"Retry_After": "0"} if fault == "429" else {})
            )
        if fault == "reset":
            self.hub.log.append(self.request_log)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()  # with a reset, for want of a linger
            raise ConnectionResetError
        if fault == "whole":
            status, start, stop = 200, 0, size
            headers.pop("Content-Range", None)
        self.head(status, stop - start, headers)
        if fault == "short":
            stop, self.close_connection = start + (stop - start) // 2, True
        if fault == "drip":
            self.drip(stop - start)
        elif data:
            self.send(file, start, stop)

    def drip(self, count: int) -> None:
        """Until the client hangs up: a byte every twentieth of a second."""
        for _ in range(count):
            self.write(b"P")
            threading.Event().wait(0.05)  # not time.sleep, which tests of the client's patience do away with

    def send(self, file: Path, start: int, stop: int) -> None:
        with file.open("rb") as stream:
            stream.seek(start)
            while block := stream.read(min(BLOCK, stop - start)):
                self.write(block)
                start += len(block)

    def info(self, name: str, repo: Repo, revision: str) -> None:
        commit, files = repo.files(revision)
        siblings = [{"rfilename": path, "size": file.stat().st_size} for path, file in files.items()]
        flags = {
            "private": repo.private,
            "gated": repo.gated,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
        }
        dates = {"createdAt": DATE, "lastModified": DATE}
        self.answer(
            200,
            {"_id": name, "id": name, "author": name.split("/")[0], "sha": commit, "siblings": siblings}
            | flags
            | dates,
        )

    def entries(self, repo: Repo, revision: str, expand: bool = False) -> dict[str, dict[str, Any]]:
        """Every file and folder of a revision as the tree lists them."""
        commit, files = repo.files(revision)
        more: dict[str, Any] = (
            {"lastCommit": {"id": commit, "title": "as it is", "date": DATE}} if expand else {}
        )
        entries: dict[str, dict[str, Any]] = {}
        for path, file in files.items():
            for folder in list(Path(path).parents)[-2::-1]:
                entries[folder.as_posix()] = {
                    "type": "directory",
                    "oid": commit,
                    "size": 0,
                    "path": folder.as_posix(),
                } | more
            lfs = {"oid": sha256(file), "size": file.stat().st_size, "pointerSize": 130}
            entries[path] = {
                "type": "file",
                "oid": sha256(file)[:40],
                "size": lfs["size"],
                "path": path,
                "lfs": lfs,
            } | more
        return entries

    def tree(self, repo: Repo, revision: str, folder: str, query: dict[str, str]) -> None:
        recursive, expand = (query.get(name, "").lower() in ("true", "1") for name in ("recursive", "expand"))
        entries = self.entries(repo, revision, expand)
        if folder and entries.get(folder, {}).get("type") != "directory":
            raise Refusal(404, f"{folder} does not exist on {revision}", "EntryNotFound")
        below = f"{folder}/" if folder else ""
        self.answer(
            200,
            [
                entry
                for path, entry in entries.items()
                if path.startswith(below) and (recursive or "/" not in path[len(below) :])
            ],
        )

    def create(self, wanted: dict[str, Any]) -> None:
        name = f"{wanted.get('organization') or 'owner'}/{wanted['name']}"
        if self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            raise Refusal(401, "You need a token that may create a repo")
        if wanted.get("type") != "dataset":
            raise Refusal(400, "dataset repos only")
        private = bool(wanted.get("private")) or wanted.get("visibility") == "private"
        with self.hub.lock:
            exists = name in self.hub.repos
            self.hub.repos.setdefault(name, Repo(private=private, heads={"main": {}}))
        url = {"name": name, "url": f"{self.hub.endpoint}/datasets/{name}"}
        self.answer(
            409 if exists else 200,
            url | ({"error": "You already created this dataset repo"} if exists else {}),
        )

    def commit(self, name: str, repo: Repo, revision: str, create_pr: bool) -> None:
        lines = [json.loads(line) for line in self.body.splitlines() if line.strip()]
        commit, files = repo.files(revision)
        files = dict(files)
        for key, value in ((line["key"], line["value"]) for line in lines):
            path = value.get("path", "").rstrip("/")
            if key == "header":
                if value.get("parentCommit", commit) != commit:
                    raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            elif any(part in ("", ".", "..", ".git") for part in path.split("/")):
                raise Refusal(400, f"not a path in a repo: {path!r}")
            elif key == "file":
                files[path] = self.hub.store(base64.b64decode(value["content"]))
            elif key == "lfsFile":
                files[path] = self.hub.object(value["oid"])
                if not files[path].exists():
                    raise Refusal(400, f"{path} was never uploaded")
            else:  # deletedFile, deletedFolder
                gone = [
                    known
                    for known in files
                    if known == path or (key == "deletedFolder" and known.startswith(f"{path}/"))
                ]
                if not gone:
                    raise Refusal(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
                files = {known: file for known, file in files.items() if known not in gone}
        with self.hub.lock:
            number = sum(head.startswith("refs/pr/") for head in repo.heads) + 1
            target = f"refs/pr/{number}" if create_pr else revision
            repo.heads[target] = files
        page, oid = f"{self.hub.endpoint}/datasets/{name}", repo.files(target)[0]
        pull = {"pullRequestUrl": f"{page}/discussions/{number}"} if create_pr else {}
        self.answer(200, {"success": True, "commitUrl": f"{page}/commit/{oid}", "commitOid": oid} | pull)
