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
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, urlsplit

from reasonknee.errors import ReasonKneeError, shown
from reasonknee.layout.strict_text import parse_json
from reasonknee.report.links import PORT
from reasonknee.viewer.replies import Reply, Viewer

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


def static_files(page: str) -> dict[str, tuple[str, bytes]]:
    """Address -> type and bytes, read once: no path of a request reaches the disk. `page` is the first."""
    table = {}
    for file in files("reasonknee.viewer").joinpath("static").iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind:
            table[f"/{file.name}"] = (f"{kind}; charset=utf-8", file.read_bytes())
    table["/"] = table[f"/{page}"]
    return table


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, viewer: Viewer, host: str = "127.0.0.1", port: int = PORT) -> None:
        self.viewer, self.static = viewer, static_files(viewer.page)
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
            self._told(lambda: self._give(self.server.viewer.get(url.path[5:], asked)))
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
            path = urlsplit(self.path).path
            self._told(lambda: self._give(self.server.viewer.post(path, parse_json(body, "the request"))))

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

    def _give(self, reply: Reply | None) -> None:
        if reply is None:
            self._refuse(404, "nothing here")
        elif reply.body is None:
            self._answer(204)
        else:
            self._answer(200, reply.body, reply.kind, reply.more)

    def _json(self, value: Any, code: int) -> None:
        self._answer(code, json.dumps(value).encode(), "application/json")

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
