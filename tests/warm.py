"""Programs that start warm: a process imports what is heavy once, and each program runs in a fork of it.

A program has a `__main__`, arguments, an environment and an end of its own, as one that a user starts; only the seconds
that torch, transformers and Lightning take to be imported are spent once. Several ranks get the words of torchrun.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

SECONDS = 1800  # a program that hangs is ended
HERE = Path(__file__).parent


def free_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


class Warm:
    """The process that has imported, from here."""

    def __init__(self, home: Path) -> None:
        kept = {
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(home),
            "CUDA_VISIBLE_DEVICES": "",
        }
        paths = os.pathsep.join(map(str, (HERE, HERE.parent / "examples")))
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, **kept, "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.log = home / "log"

    def run(
        self,
        program: Path,
        *args: Any,
        needs: tuple[str, ...] = ("torch",),
        ranks: int = 0,
        folder: Path | None = None,
    ) -> str:
        """What a program, or the first rank of several, says; it must end well."""
        asked = {
            "program": str(program),
            "args": [str(a) for a in args],
            "needs": needs,
            "log": str(self.log),
            "folder": str(folder or Path.cwd()),
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps({**asked, "ranks": ranks}), file=self.process.stdin, flush=True)
        codes = json.loads(self.process.stdout.readline())
        said = [Path(f"{self.log}-{rank}").read_text() for rank in range(len(codes))]
        assert not any(codes), "\n".join(text[-3000:] for text in said)
        return said[0]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def ended(asked: dict[str, Any], rank: int, port: str) -> int:
    """In the fork: the program, and its exit code."""
    with open(f"{asked['log']}-{rank}", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    signal.alarm(SECONDS)
    os.chdir(asked["folder"])
    if ranks := asked["ranks"]:
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update(
            {k: str(v) for k, v in group.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        )
    sys.argv = [asked["program"], *asked["args"]]
    sys.path.insert(0, str(Path(asked["program"]).parent))
    try:
        runpy.run_path(asked["program"], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


def serve() -> None:
    for line in sys.stdin:
        asked, port = json.loads(line), free_port()
        for name in asked["needs"]:
            importlib.import_module(name)
        started = []
        for rank in range(asked["ranks"] or 1):
            pid = os.fork()
            if not pid:
                os._exit(ended(asked, rank, port))
            started.append(pid)
        print(json.dumps([os.waitpid(pid, 0)[1] for pid in started]), flush=True)


if __name__ == "__main__":
    serve()
