"""A server on 127.0.0.1 that speaks OpenAI's way and misbehaves as told: real sockets, no pretence."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SAID = 'I look.\n{"box": null, "grades": {}}'
Behave = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hostile

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with self.server.lock:
            self.server.seen.append(body)
            self.server.keys.add(self.headers.get("authorization", ""))
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        try:
            self.server.behave(self, body)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with self.server.lock:
                self.server.busy -= 1

    def send(self, status: int, content: bytes, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def answer(self, text: str | None = SAID, finish: str = "stop", **fields: Any) -> None:
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        said = {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [choice],
            "usage": usage,
        }
        self.send(200, json.dumps({**said, **fields}).encode())

    def refuse(self, status: int, message: str, code: str = "", **headers: str) -> None:
        self.send(status, json.dumps({"error": {"message": message, "code": code}}).encode(), **headers)

    def drip(self) -> None:
        """An answer that comes byte by byte, for as long as anyone listens."""
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "100000")
        self.end_headers()
        for _ in range(200):
            self.wfile.write(b" ")
            time.sleep(0.05)

    def reset(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *_: object) -> None:
        pass


class Hostile(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, behave: Behave) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behave, self.lock = behave, threading.Lock()
        self.seen: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.busy = self.busiest = 0

    def handle_error(self, *_: object) -> None:
        pass

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextmanager
def hostile(behave: Behave) -> Iterator[Hostile]:
    server = Hostile(behave)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def mischief(seed: int) -> Behave:
    """Most answers go wrong, in one of many ways; each request is answered well at last."""
    draw, lock = random.Random(seed), threading.Lock()

    def behave(handler: Handler, body: dict[str, Any]) -> None:
        with lock:
            way = draw.randrange(22)
        words = SAID.encode()
        if way == 0:
            handler.refuse(500, "out of order")
        elif way == 1:
            handler.refuse(429, "slow down", retry_after="0.01")
        elif way == 2:
            handler.reset()
        elif way == 3:
            time.sleep(0.6)
            handler.answer()
        elif way == 4:
            handler.send(200, b'{"id": "1", "choices": [{"mess')
        elif way == 5:
            handler.send(200, b"<html>welcome</html>", "text/html")
        elif way == 6:
            handler.send(200, b"{}")
        elif way == 7:
            handler.send(200, json.dumps({"choices": []}).encode())
        elif way == 8:
            handler.answer(None)
        elif way == 9:
            handler.refuse(503, "later", retry_after="soon")
        elif way == 10:
            handler.send_response(200)
            handler.send_header("content-type", "application/json")
            handler.send_header("content-length", "100000")
            handler.end_headers()
            handler.wfile.write(words)
            handler.reset()
        else:
            handler.answer()

    return behave
