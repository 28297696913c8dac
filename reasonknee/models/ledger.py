"""What a run takes: tokens, money and time, before it, while it runs and after it."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from reasonknee.models.engines import Failure, Outcome
from reasonknee.models.plan import Request
from reasonknee.models.requests import Reply
from reasonknee.models.views import Outline

_CHARACTERS = 3.5  # of a token, about, in English with numbers
_PATCH = 28  # pixels a side of a vision token, about; Qwen's


@dataclass(frozen=True)
class Prices:
    """Dollars for a million tokens."""

    prompt: float = 0.0
    cached: float | None = (
        None  # of a prompt's tokens that were not computed again; None for as much as others
    )
    completion: float = 0.0

    def of(self, reply: Reply) -> float:
        fresh = reply.prompt_tokens - reply.cached_tokens
        cached = self.prompt if self.cached is None else self.cached
        spent = fresh * self.prompt + reply.cached_tokens * cached + reply.completion_tokens * self.completion
        return spent / 1e6

    def most(self, request: Request, max_tokens: int) -> float:
        """The most that a request can cost, as far as its prompt can be guessed."""
        return (prompt_tokens(request) * 1.5 * self.prompt + max_tokens * self.completion) / 1e6


def prompt_tokens(request: Request) -> int:
    return round(len(request.text) / _CHARACTERS) + vision_tokens(request.outline)


def vision_tokens(outline: Outline | None) -> int:
    """About as many as a model of Qwen's kind makes of the frames; others bill by tiles of their own."""
    if outline is None:
        return 0
    height, width = outline.frame
    each = max(1, round(height / _PATCH)) * max(1, round(width / _PATCH))
    frames = len(outline.slices) + outline.others
    own = each * (-(-frames // 2) if outline.view.kind == "video" else frames)
    return own + vision_tokens(outline.region)


@dataclass
class Ledger:
    """Counts while a run goes on, and the line that shows it."""

    prices: Prices
    max_cost: float | None
    max_tokens: int
    total: int  # requests of the whole run
    kept: int = 0  # answers that were there before
    answers: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    finishes: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    parsed: int = 0
    graded: int = 0  # answers that should grade
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    cost: float = 0.0  # of this run
    before: float = 0.0  # of earlier ones in the same journal
    stopped: str = ""  # why before its end
    _held: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _start: float = field(default_factory=time.monotonic)

    def may_ask(self, request: Request) -> bool:
        """Whether the money lasts for one more; the most that it can cost is set aside until then."""
        if self.max_cost is None:
            return True
        most = self.prices.most(request, self.max_tokens)
        with self._lock:
            if self.before + self.cost + sum(self._held.values()) + most > self.max_cost:
                self.stopped = f"N036: the next request could pass --max-cost {self.max_cost:g}"
                return False
            self._held[request.key] = most
        return True

    def count(self, outcome: Outcome, parsed: bool | None) -> float:
        """Books an outcome; what it cost. `parsed` is None where nothing is to be graded."""
        request, result, _ = outcome
        with self._lock:  # the thread that sends requests asks for leave meanwhile
            held = self._held.pop(request.key, 0.0)
        self.notes.update(request.notes)
        if isinstance(result, Failure):
            self.failures[result.code] += 1
            return 0.0
        cost = self.prices.of(result)
        if result.text and not result.prompt_tokens + result.completion_tokens and self.prices != Prices():
            cost = held or self.prices.most(request, self.max_tokens)
            self.notes["an answer came without its tokens: the most that it can cost is booked"] += 1
        self.answers += 1
        self.cost += cost
        self.finishes[result.finish] += 1
        self.prompt += result.prompt_tokens
        self.cached += result.cached_tokens
        self.completion += result.completion_tokens
        if parsed is not None:
            self.graded += 1
            self.parsed += parsed
        return cost

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def line(self) -> str:
        done = self.answers + sum(self.failures.values())
        rate = done / max(self.seconds, 1e-9)
        left = max(0, self.total - self.kept - done)
        parts = [
            f"{self.kept + done:,} of {self.total:,}",
            f"{rate:.2g}/s",
            f"{sum(self.failures.values())} failed",
            f"{self.parsed / self.graded:.0%} parsed" if self.graded else "",
            f"${self.before + self.cost:.2f}" if self.prices != Prices() else "",
            f"{duration(left / rate)} left" if done and left else "",
        ]
        return ", ".join(p for p in parts if p)

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": self.total,
            "kept": self.kept,
            "answers": self.answers,
            "failures": dict(sorted(self.failures.items())),
            "finishes": dict(sorted(self.finishes.items())),
            "notes": dict(sorted(self.notes.items())),
            "parsed": self.parsed,
            "graded": self.graded,
            "prompt_tokens": self.prompt,
            "cached_tokens": self.cached,
            "completion_tokens": self.completion,
            "cost": round(self.cost, 6),
            "cost_before": round(self.before, 6),
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped,
        }


class Progress:
    """A line on standard error that is written over, or one every minute where nobody watches."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self._last = ledger, 0.0

    def __call__(self, last: bool = False) -> None:
        now, watched = time.monotonic(), sys.stderr.isatty()
        if not last and now - self._last < (0.2 if watched else 60):
            return
        if self._last or watched or last:
            start, end = ("\r\033[K", "\n" if last else "") if watched else ("", "\n")
            print(f"{start}asking: {self.ledger.line()}", end=end, file=sys.stderr, flush=True)
        self._last = now


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
