"""A loader in a process of its own, from outside: asked for its form, its values or an epoch, with the
most memory that it held meanwhile."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from loaders_child import LOADERS, MARK, Running, descendants

_CHILD = Path(__file__).with_name("loaders_child.py")
_QUIET = {"PYTHONWARNINGS": "ignore", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}


class Process:
    """Ends with its `with` block, workers included.

    `env` is that of a server for loaders that need one; the others are offline.
    """

    def __init__(
        self, name: str, folder: Path, protocols: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> None:
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder.parent / "hf")}
        command = [sys.executable, str(_CHILD), name, str(folder), ",".join(protocols)]
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        pipe = subprocess.PIPE
        env = {**(env or offline), **_QUIET}
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env=env, start_new_session=True
        )
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def ask(self, protocol: str, what: str) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # it has died: `result` says of what
            print(json.dumps({"protocol": protocol, "what": what}), file=self.process.stdin, flush=True)
        return self.result(watch=what == "epoch")

    def result(self, watch: bool = False) -> dict[str, Any]:
        most = {"rss": 0.0, "own": 0.0}
        while True:
            try:
                answer = self.answers.get(timeout=0.25 if watch else None)
            except queue.Empty:
                most = {key: max(value, most[key]) for key, value in memory(self.process.pid).items()}
                continue
            if answer is None:
                self.errors.seek(0)
                return {
                    "error": (self.errors.read().decode().strip().splitlines() or ["no output"])[-1][:200]
                }
            found = json.loads(answer)
            return {**found, **{f"{key}_mb": round(value) for key, value in most.items()}} if watch else found

    def _listen(self) -> None:
        """Answers, among whatever a peer prints, which may not end its line; None when there are no more."""
        for line in self.process.stdout:  # type: ignore[union-attr]
            _, mark, answer = line.partition(MARK)
            if mark:
                self.answers.put(answer)
        self.answers.put(None)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # and its workers
        self.process.wait()
        self.errors.close()


class Here:
    """The same in this process, for a quick look."""

    def __init__(self, name: str, folder: Path, protocols: tuple[str, ...] = ()) -> None:
        self.running = {protocol: Running(LOADERS[name](folder, protocol)) for protocol in protocols}

    def ask(self, protocol: str, what: str) -> dict[str, Any]:
        return {
            **self.running[protocol].answer(what),
            **({"rss_mb": 0, "own_mb": 0} if what == "epoch" else {}),
        }

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def memory(pid: int) -> dict[str, float]:
    """Megabytes of a process and its children, shared pages counted once: all, and without pages of
    mapped files, which the system can drop."""
    total = {"rss": 0.0, "own": 0.0}
    for each in descendants(pid):
        try:
            lines = dict(
                line.split(":") for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()[1:]
            )
        except (OSError, ValueError):
            continue  # it has just ended
        kilobytes = {name: int(lines.get(name, "0 kB").split()[0]) for name in ("Pss", "Pss_File")}
        total["rss"] += kilobytes["Pss"] / 1024
        total["own"] += (kilobytes["Pss"] - kilobytes["Pss_File"]) / 1024
    return total
