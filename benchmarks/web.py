"""A server on the loopback, in a process of its own, for the loaders that read over HTTP: the Hub of the
tests, but files go out by `sendfile`.

It serves the release and the tar files of WebDataset as dataset repos, counts the bytes it sends, and slows
down to a given rate on request: a loopback moves bytes for next to nothing, a network does not.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from hub import Handler, Hub

RELEASE = "bench/release"
_PIECE = 1 << 18  # bytes sent between two looks at the clock


def repo_of(form: Path) -> str:
    return f"bench/{form.name}"


class Pace:
    """Lets through so many bytes a second, over all connections."""

    def __init__(self) -> None:
        self.rate, self.free, self.lock = 0.0, 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        if self.rate:
            with self.lock:
                self.free = max(self.free, time.monotonic()) + size / self.rate
                pause = self.free - time.monotonic()
            if pause > 0:
                time.sleep(pause)


class _Fast(Handler):
    pace = Pace()

    def send(self, file: Path, start: int, stop: int) -> None:
        with file.open("rb") as stream:
            while start < stop:
                size = min(_PIECE if self.pace.rate else 64 * _PIECE, stop - start)
                self.pace.wait(size)
                sent = self.connection.sendfile(stream, start, size)
                self.request_log.sent += sent
                start += sent

    def route(self, parts: list[str], query: dict[str, str]) -> None:
        match parts:
            case ["sent"]:
                self.answer(200, self.hub.sent("/resolve/"))
            case ["repos"]:
                self.answer(200, list(self.hub.repos))
            case ["rate", megabytes]:
                self.pace.rate = float(megabytes) * 1e6
                self.answer(200, self.pace.rate)
            case _:
                super().route(parts, query)


class Web:
    """The server, from outside: `env` is the environment of a process that knows this server only."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, __file__, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.env: dict[str, str] = json.loads(self.process.stdout.readline())  # type: ignore[union-attr]
        self.endpoint = self.env["HF_ENDPOINT"]

    def __enter__(self) -> Web:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()

    def _ask(self, path: str) -> Any:
        with urlopen(f"{self.endpoint}/{path}") as answer:
            return json.load(answer)

    def sent(self) -> int:
        """Bytes of files sent so far."""
        return int(self._ask("sent"))

    def throttle(self, megabytes: int | None) -> None:
        """So many a second from now on; None: as many as it can."""
        self._ask(f"rate/{megabytes or 0}")

    def warm(self) -> None:
        """Has every file hashed, which its ETag needs: not a cost of the first to ask."""
        for name in self._ask("repos"):
            self._ask(f"api/datasets/{name}")

    def megabytes_a_second(self, path: str, connections: int = 2) -> float:
        """How fast plain sockets get a file, for comparison: far above what a loader takes, or the server
        would be what is measured."""
        total: list[int] = []
        readers = [
            threading.Thread(target=lambda: total.append(_drained(f"{self.endpoint}/{path}")))
            for _ in range(connections)
        ]
        start = time.perf_counter()
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        return sum(total) / (time.perf_counter() - start) / 1e6


def _drained(url: str) -> int:
    place, buffer, got = urlsplit(url), bytearray(1 << 20), 0
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(
            f"GET {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nConnection: close\r\n\r\n".encode()
        )
        while size := connection.recv_into(buffer):
            got += size
    return got


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="what knees.make wrote")
    folder = parser.parse_args().folder
    forms = [
        folder / "forms" / f"{loader}-{what}"
        for loader in ("WebData", "WebDataZst")
        for what in ("crops", "volumes")
    ]
    with Hub({RELEASE: folder / "release", **{repo_of(form): form for form in forms}}, _Fast) as hub:
        print(json.dumps(hub.env(folder.parent / "hf")), flush=True)
        with suppress(KeyboardInterrupt):
            sys.stdin.read()  # until the other side closes it


if __name__ == "__main__":
    main()
