"""The viewer's server: Python's own, on this machine alone.

Whoever can reach the port is not yet the user: a browser shows pages of others beside ours, and a machine has
other users. So requests must name our host and come from our page, and the first one brings a token that is
good once and becomes a cookie that no script can read. Files are a fixed table; rows are numbers.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
import secrets
import socket
import threading
from collections.abc import Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from reasonknee.errors import ReasonKneeError, shown
from reasonknee.layout.strict_text import parse_json
from reasonknee.report.links import PORT
from reasonknee.viewer.rows import Viewer, percentiles, sendable
from reasonknee.viewer.source import Shown

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MAX_BODY = 10_000  # bytes of what a page may send
_NUMBER = re.compile(r"[0-9]{1,9}")


def static_files() -> dict[str, tuple[str, bytes]]:
    """Address -> type and bytes, read once: no path of a request ever reaches the disk."""
    table = {}
    for file in files("reasonknee.viewer").joinpath("static").iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind:
            table[f"/{file.name}"] = (f"{kind}; charset=utf-8", file.read_bytes())
    table["/"] = table["/index.html"]
    return table


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, viewer: Viewer, host: str = "127.0.0.1", port: int = PORT) -> None:
        self.viewer, self.static = viewer, static_files()
        self.token, self.secret = secrets.token_urlsafe(24), secrets.token_urlsafe(32)
        self.used: set[str] = set()
        self.lock = threading.Lock()
        self.tell: Callable[[str], object] = lambda line: None
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)
        self.host, self.port = host, int(self.server_address[1])
        self.cookie = f"reasonknee_{self.port}"
        self.hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if not loopback(host):
            self.hosts |= {f"{name}:{self.port}" for name in (host, socket.gethostname(), socket.getfqdn())}

    @property
    def address(self) -> str:
        name = "127.0.0.1" if loopback(self.host) or self.host in ("0.0.0.0", "::") else self.host
        return f"http://{name}:{self.port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is nobody's business."""

    def knows(self, host: str) -> bool:
        """A name that could lead here. A server for other machines is asked for by number, too: only names
        can be bent to another address."""
        return host in self.hosts or (not loopback(self.host) and _is_number(host, self.port))

    def spend(self, token: str) -> bool:
        """Whether the token opens the door; it does so once."""
        with self.lock:
            if hmac.compare_digest(token.encode(), self.token.encode()):
                self.used.add(self.token)
                self.token = secrets.token_urlsafe(24)
                return True
            if token in self.used:
                self.tell(f"that address was used before; here is a new one: {self.address}")
            return False


def loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_number(host: str, port: int) -> bool:
    name, _, number = host.rpartition(":")
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return number == str(port)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "reasonknee", ""
    timeout = 60
    server: Server

    def log_message(self, *args: Any) -> None:
        """Silent: a request is no news."""

    # --- who asks

    def do_GET(self) -> None:
        if not self._expected():
            return
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        if "token" in asked:
            if self._known() or self.server.spend(asked["token"][0]):
                value = f"{self.server.cookie}={self.server.secret}; HttpOnly; SameSite=Strict; Path=/"
                self._answer(303, more={"Location": "/", "Set-Cookie": value})
            else:
                self._refuse(403, "open the address that `reasonknee view` printed last")
        elif url.path in self.server.static:  # the page itself holds nothing of the release
            kind, body = self.server.static[url.path]
            self._answer(200, body, kind)
        elif url.path.startswith("/api/") and self._may_call():
            self._told(lambda: self._get(url.path[5:], asked))
        elif not url.path.startswith("/api/"):
            self._refuse(404, "nothing here")

    do_HEAD = do_GET  # noqa: N815 - the name that the library calls

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not self._expected() or not self._may_call():
            self.close_connection = True
        elif self.headers.get("Content-Type") != "application/json":
            self._refuse(415, "JSON is wanted")
        elif not _NUMBER.fullmatch(length) or not 0 < int(length) <= MAX_BODY:
            self._refuse(413, f"1 to {MAX_BODY} bytes are wanted")
        else:
            body = self.rfile.read(int(length))
            self._told(lambda: self._post(urlsplit(self.path).path, body))

    def _expected(self) -> bool:
        """Our host by name; a page of ours, or a link that someone followed to our page."""
        if not self.server.knows(self.headers.get("Host", "")):
            self._refuse(421, "this is not the host that you asked for")
            return False
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        followed = self.headers.get("Sec-Fetch-Mode") == "navigate" and self.command == "GET"
        foreign = site not in ("none", "same-origin") and not (
            followed and self.headers.get("Sec-Fetch-Dest") == "document" and urlsplit(self.path).path == "/"
        )
        if foreign or origin not in (None, f"http://{self.headers['Host']}"):
            self._refuse(403, "this comes from another page")
            return False
        return True

    def _known(self) -> bool:
        try:
            cookies = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return False
        morsel = cookies.get(self.server.cookie)
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), self.server.secret.encode())

    def _may_call(self) -> bool:
        if not self._known():
            self._refuse(403, "open the address that `reasonknee view` printed")
            return False
        return True

    # --- what is answered

    def _told(self, work: Callable[[], None]) -> None:
        """Runs the work; what went wrong is one line for the page, never a traceback."""
        try:
            work()
        except ReasonKneeError as error:
            self._json({"error": shown(str(error), 400)}, 409)
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            self._json({"error": shown(f"H006: {error.strerror}: reading failed", 400)}, 500)

    def _get(self, path: str, asked: dict[str, list[str]]) -> None:
        viewer = self.server.viewer
        what, _, rest = path.partition("/")
        row = int(rest) if _NUMBER.fullmatch(rest) and int(rest) < len(viewer.source.truth) else None
        if path == "index":
            self._json(viewer.index())
        elif what == "column" and rest in viewer.columns:
            self._binary(np.ascontiguousarray(viewer.columns[rest]))
        elif what == "row" and row is not None:
            self._json(viewer.row(row, "blind" in asked))
        elif what == "voxels" and row is not None:
            self._voxels(viewer.voxels(row))
        elif what == "mask" and row is not None:
            self._voxels(viewer.source.mask(row))
        elif what == "boxes" and row is not None:
            name = f"{viewer.source.truth.ids[row].rpartition('-')[0]}-boxes.nii.gz"
            self._download(name, [viewer.labels(row)], "application/gzip")
        elif path == "search" and _NUMBER.fullmatch(asked.get("model", [""])[0]):
            model = int(asked["model"][0])
            words = asked.get("words", [""])[0][:200]
            if model < len(viewer.models) and words:
                self._binary(viewer.models[model].saying(words))
            else:
                self._refuse(404, "no such model, or no words")
        elif path in ("review.jsonl", "predictions.jsonl"):
            lines = viewer.review.export() if path == "review.jsonl" else viewer.review.predictions()
            self._download(path, (line.encode() for line in lines), "application/x-ndjson")
        else:
            self._refuse(404, "nothing here")

    def _post(self, path: str, body: bytes) -> None:
        viewer = self.server.viewer
        said = parse_json(body, "the request")
        if path == "/api/review":
            self._json(viewer.add(said))
        elif path == "/api/undo":
            undone = viewer.review.undo()
            self._json({"undone": undone.as_dict() if undone else None})
        else:
            self._refuse(404, "nothing here")

    def _voxels(self, found: Shown | None) -> None:
        if found is None:
            self._answer(204)
            return
        array = sendable(found.volume.array)
        about = {
            "shape": array.shape,
            "dtype": array.dtype.name,
            "origin": found.origin,
            "percentiles": percentiles(array),
            "affine": found.volume.grid.affine[
                :3
            ].tolist(),  # of (x, y, z) from the first voxel here, to RAS mm
        }
        self._binary(array, {"X-Volume": json.dumps(about)})

    def _binary(self, array: np.ndarray, more: dict[str, str] | None = None) -> None:
        self._answer(200, array.reshape(-1).view(np.uint8).data if array.size else b"", more=more)

    def _json(self, value: Any, code: int = 200) -> None:
        self._answer(code, json.dumps(value).encode(), "application/json")

    def _download(self, name: str, parts: Iterable[bytes], kind: str) -> None:
        more = {"Content-Disposition": f'attachment; filename="{name}"'}
        self._answer(200, b"".join(parts), kind, more)

    def _refuse(self, code: int, why: str) -> None:
        self.close_connection = True  # what else it sent is not read
        self._answer(code, why.encode() + b"\n", "text/plain; charset=utf-8")

    def _answer(
        self,
        code: int,
        body: bytes | memoryview = b"",
        kind: str = "application/octet-stream",
        more: dict[str, str] | None = None,
    ) -> None:
        self.send_response(code)
        length = {} if code == 204 else {"Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in {**HEADERS, **length, **(more or {})}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
