"""One example as a page: every token that the model sees, and which of them it is taught."""

from __future__ import annotations

import html
from pathlib import Path

from reasonknee.models.examples import IGNORED
from reasonknee.models.job import Job
from reasonknee.models.local import Local
from reasonknee.models.training_rows import Examples, Recipe, training_rows
from reasonknee.system.files import write_text

_STYLE = """body{font:15px/1.6 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1.5rem}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;padding:1rem}mark{background:#ffe08a}"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_example(job: Job, recipe: Recipe, out: Path) -> Path:
    """The first example of a run.

    What is taught stands on a yellow ground; runs of vision tokens are counted.
    """
    local = Local.load(job.model, adapter=job.adapter, dtype=job.dtype, device=job.device)
    rows = training_rows(job.release, recipe, job.embeddings is None)
    made = Examples(local, recipe, {}, job.embeddings)([next(iter(rows))])
    ids, labels = made["input_ids"][0].tolist(), made["labels"][0].tolist()
    parts, start = [], made["prefix"]
    parts.append(
        f"<h2>Shared prefix, {made['prefix']:,} tokens</h2>{_shown(local, ids[:start], labels[:start])}"
    )
    for number, length in enumerate(made["lengths"], start=1):
        own = slice(start, start + length)
        parts.append(f"<h2>Question {number}, {length:,} tokens</h2>{_shown(local, ids[own], labels[own])}")
        start += length
    taught = sum(label != IGNORED for label in labels)
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>One example</title><style>{_STYLE}</style><h1>One example</h1>"
        f"<p>{len(ids):,} tokens, of which {taught:,} are taught: those on a yellow "
        f"ground.</p>{''.join(parts)}</html>"
    )
    write_text(out, text)
    return out


def _shown(local: Local, ids: list[int], labels: list[int]) -> str:
    """Tokens as text, runs of the same kind together."""
    kinds = local.kinds(ids).tolist()
    pieces, i = [], 0
    while i < len(ids):
        kind, is_taught = kinds[i], labels[i] != IGNORED
        end = next(
            (j for j in range(i, len(ids)) if kinds[j] != kind or (labels[j] != IGNORED) != is_taught),
            len(ids),
        )
        words = f"[{end - i:,} vision tokens]" if kind else html.escape(local.tokenizer.decode(ids[i:end]))
        pieces.append(f"<mark>{words}</mark>" if is_taught else words)
        i = end
    return f"<pre>{''.join(pieces)}</pre>"
