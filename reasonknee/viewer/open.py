"""Opens the viewer on a release or a cohort, and the browser on it."""

from __future__ import annotations

import errno
import os
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from reasonknee.errors import StorageError, UsageError, reason
from reasonknee.report.links import PORT
from reasonknee.viewer import replies
from reasonknee.viewer.models import Model
from reasonknee.viewer.review import Review
from reasonknee.viewer.rows import Viewer
from reasonknee.viewer.server import Server, loopback
from reasonknee.viewer.source import open_source

MOST_MODELS = 2  # side by side


def started(
    place: str | Path,
    predictions: Sequence[Path] = (),
    scores: Sequence[Path] = (),
    *,
    convention: str = "canonical",
    review: Path | None = None,
    reader: str = "",
    host: str = "127.0.0.1",
    port: int | None = None,
) -> Server:
    """A server that has its port and has not begun to answer.

    `scores` are folders that `score --out` wrote; the k-th of them is about the k-th predictions.
    """
    count = max(len(predictions), len(scores))
    if count > MOST_MODELS:
        raise UsageError("H020", f"{count} models", f"at most {MOST_MODELS} fit side by side")
    source = open_source(place)
    named = review or Path(f"{Path(place).resolve().name}.review.jsonl")
    kept = Review(named, reader or os.environ.get("USER", "reader"), source.path)
    models = [
        Model.of_scores(scores[k], source.truth, predictions[k] if k < len(predictions) else None)
        if k < len(scores)
        else Model.of_predictions(predictions[k], source.truth, convention)
        for k in range(count)
    ]
    return serving(Viewer(source, models, kept), host, port)


def serving(viewer: replies.Viewer, host: str, port: int | None) -> Server:
    """A server at the usual port, or where that is taken and none was asked for, at a free one."""
    try:
        return Server(viewer, host, PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return Server(viewer, host, 0)
        raise StorageError(
            "H021",
            f"port {PORT if port is None else port} of {host}: {reason(error)}",
            "choose another --port",
        ) from None


def view(server: Server, browser: bool, tell: Callable[[str], object]) -> None:
    """Serves rows until Ctrl-C; `tell` gets the lines that a user reads, the address among them."""
    server.tell = tell
    if not loopback(server.host):
        tell(f"warning: others can reach {server.host}:{server.port}, and what it sends is not encrypted")
    what, *more = server.viewer.opening
    for line in (what, f"open {server.address}", *more, "Ctrl-C ends"):
        tell(line)
    if browser:
        webbrowser.open(server.address)
    try:
        server.serve_forever()
    finally:
        server.server_close()
