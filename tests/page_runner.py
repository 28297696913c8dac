"""Runs a page as a reader does: its blocks in order, each as it stands, in the folder where this is started.

    python tests/page_runner.py PAGE [--installed]

Shell blocks share nothing but the folder, Python blocks share their names. A `text` block is what the block before it
has to print: each of its lines has to be there, in that order, `...` standing for anything. Lines that set up an
environment are passed over, because whoever starts this has done so; `--installed` passes over `pip install`, too.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SET_UP = ("make demo", "make test", "python3 -m venv", ". ", "cd demo", "git clone")


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    text: str
    line: int


def blocks(page: str) -> Iterator[Block]:
    for m in re.finditer(r"^```(\w+)\n(.*?)^```$", page, flags=re.M | re.S):
        yield Block(m[1], m[2], page[: m.start()].count("\n") + 2)


def commands(text: str, installed: bool) -> str:
    """A shell block without what is there already."""
    passed_over = (*SET_UP, "pip install") if installed else SET_UP
    return "".join(line for line in text.splitlines(True) if not line.startswith(passed_over))


def shell(text: str) -> str:
    """What it prints; a line that fails ends the page, but for what says so with `|| true` or in a comment."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT
    )
    sys.stdout.write(done.stdout)
    if done.returncode:
        raise SystemExit(f"exit {done.returncode}: {text}")
    return done.stdout


def server(text: str) -> str:
    """A server is started, its page opened, and Ctrl-C ends it."""
    env = {**os.environ, "BROWSER": "true", "PYTHONUNBUFFERED": "1"}
    started = subprocess.Popen(
        ["bash", "-c", "exec " + text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
    )
    said = ""
    while "Ctrl-C ends" not in said and (line := started.stdout.readline()):
        said += line
    if (address := re.search(r"http://\S+", said)) is None:
        raise SystemExit(f"no address: {text}{said}")
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    page = opener.open(address[0], timeout=60).read().decode()
    started.send_signal(signal.SIGINT)
    rest, _ = started.communicate(timeout=60)
    if "<canvas" not in page or started.returncode not in (0, 130):
        raise SystemExit(f"exit {started.returncode}: {text}{said}{rest}")
    sys.stdout.write(said + rest)
    return said + rest


def python(block: Block, page: Path, names: dict[str, Any]) -> str:
    out = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
    with contextlib.redirect_stdout(out):
        exec(code, names)
    sys.stdout.write(out.getvalue())
    return out.getvalue()


def lacks(wanted: str, said: str) -> str | None:
    """The first line of `wanted` that was not said, if any."""
    for line in filter(str.strip, wanted.splitlines()):
        pattern = r"[^\n]*?".join(re.escape(" ".join(part.split())) for part in line.split("..."))
        met = re.search(pattern, "\n".join(" ".join(one.split()) for one in said.splitlines()))
        if met is None:
            return line
        said = "\n".join(" ".join(one.split()) for one in said.splitlines())[met.end() :]
    return None


def read(page: Path, installed: bool) -> int:
    """Runs the page, and says how many blocks there were."""
    names: dict[str, Any] = {"__name__": "__page__"}
    said, count = "", 0
    for block in blocks(page.read_text(encoding="utf-8")):
        began = time.monotonic()
        if block.kind == "bash":
            text = commands(block.text, installed)
            said = server(text) if text.startswith("reasonknee view") else shell(text)
        elif block.kind == "python":
            said = python(block, page, names)
        elif block.kind == "text":
            if missing := lacks(block.text, said):
                raise SystemExit(f"{page}:{block.line}: not printed: {missing}")
            continue
        else:
            continue
        count += 1
        print(f"--- {page.name}:{block.line} {block.kind}, {time.monotonic() - began:.1f} s", file=sys.stderr)
    return count


if __name__ == "__main__":
    print("blocks:", read(Path(sys.argv[1]), "--installed" in sys.argv[2:]))
    sys.stdout.flush()
    os._exit(0)  # datasets' streaming threads sometimes abort at exit
