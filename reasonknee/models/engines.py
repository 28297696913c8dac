"""Who is asked: an engine takes jobs and gives an outcome for each of their requests.

`InProcess` runs any model of this process that has the few methods of `Model`: `local.Checkpoint` for
Qwen2.5-VL and Qwen3-VL, `volumetric.Volumetric` for networks that take a volume as one tensor, or your own:

    reasonknee ask RELEASE --model weights/ --interface my_package:load --out RUN

where `load(name, options)` returns an object with these methods. `servers.Servers` asks over HTTP.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from reasonknee.errors import DataError, ReasonKneeError, UsageError, shown
from reasonknee.models.plan import Job, Request
from reasonknee.models.requests import Parameters, Reply
from reasonknee.models.views import Outline, Showing


@dataclass(frozen=True)
class Failure:
    """Why there is no answer. It is written down, and the request is made again by the next run."""

    code: str
    message: str


class Outcome(NamedTuple):
    request: Request
    result: Reply | Failure
    server: str = ""


MayAsk = Callable[[Request], bool]  # false when the money is spent


class Engine(Protocol):
    about: dict[str, Any]  # what makes the model this one: its name, revision, precision
    lanes: int  # how many requests are under way at once

    def sized(self, outline: Outline) -> Outline:
        """The outline with frames in the size in which the model sees them."""

    def fitted(self, showing: Showing) -> Showing:
        """The frames in that size."""

    def run(self, jobs: Iterator[Job], parameters: Parameters, may_ask: MayAsk) -> Iterator[Outcome]: ...


class Model(Protocol):
    """A model in this process. `replies` gives the answers to questions on one showing, in their order. With
    --grammar it also gets `questions`, the list of them."""

    about: dict[str, Any]

    def sized(self, outline: Outline) -> Outline: ...

    def fitted(self, showing: Showing) -> Showing: ...

    @property
    def replies(self) -> Callable[..., Iterator[Reply]]:
        """Of a showing or None, texts and parameters."""


class InProcess:
    """An engine around a model of this process."""

    lanes = 1

    def __init__(self, model: Model) -> None:
        self.model, self.about = model, model.about
        self.sized, self.fitted = model.sized, model.fitted

    def run(self, jobs: Iterator[Job], parameters: Parameters, may_ask: MayAsk) -> Iterator[Outcome]:
        for job in jobs:
            asked = [request for request in job.requests if may_ask(request)]
            if not asked:
                return
            done = 0
            try:
                texts = [r.text for r in asked]
                replies = self.model.replies(job.showing, texts, parameters, **_schemas(asked, parameters))
                for request, reply in zip(asked, replies, strict=False):
                    if not isinstance(reply, Reply):
                        raise TypeError(f"{type(reply).__name__} in place of a Reply")
                    yield Outcome(request, reply)
                    done += 1
                failure = Failure("N057", f"the model gave {done} answers to {len(asked)} questions")
            except DataError as error:  # of this showing, such as a context that is too long; others may fit
                failure = Failure(error.code, error.message)
            except ReasonKneeError:
                raise
            except Exception as error:  # a model of one's own, or no memory left
                failure = Failure("N057", f"the model raised {type(error).__name__}: {shown(error, 200)}")
            for request in asked[done:]:
                yield Outcome(request, failure)


def _schemas(asked: Sequence[Request], parameters: Parameters) -> dict[str, Any]:
    """What a model needs to know where answers must follow their schema."""
    grades = parameters.grammar and asked[0].step != "locate"
    return {"questions": [request.row.question for request in asked]} if grades else {}


def load_model(interface: str, name: str, options: dict[str, Any]) -> Model:
    """A model of one's own, by the function that makes it, written as module:function."""
    module, _, function = interface.partition(":")
    try:
        load = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            "N035", f"no {shown(interface)}: {shown(error)}", "module:function, on the path of Python"
        ) from None
    try:
        model = load(name, options)
    except ReasonKneeError:
        raise
    except Exception as error:
        told = f"{interface} raised {type(error).__name__}: {shown(error, 200)}"
        raise DataError("N038", told, "mend the function; see docs/asking.md") from None
    missing = [m for m in ("about", "sized", "fitted", "replies") if not hasattr(model, m)]
    if missing:
        raise UsageError(
            "N035", f"the model of {interface} has no {', '.join(missing)}", "see docs/asking.md"
        )
    made: Model = model
    return made
