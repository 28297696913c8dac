"""Servers that speak OpenAI's way: vLLM, SGLang, llama.cpp, `transformers serve`, OpenAI, Azure.

All questions of a volume go to one server, the first of them alone, so that its prefix is computed once
there. What can be cured by waiting is tried again, after as long as the server says or twice as long each
time; what cannot is told apart: a key or a model that is refused ends the run, a context that is too long or
a picture that is refused is a failure of its request. The key comes from the environment, and no text that is
written or shown holds it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from zlib import crc32

import numpy as np

from reasonknee.errors import DataError, ReasonKneeError, UsageError, shown
from reasonknee.models.engines import Failure, MayAsk, Outcome
from reasonknee.models.pictures import answer_format, image, pictures, video
from reasonknee.models.plan import Job, Request
from reasonknee.models.requests import Parameters, Reply
from reasonknee.models.views import Outline, Showing
from reasonknee.questions.prompts import SYSTEM

_LONGEST_WAIT = 60.0
_ADDRESS = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[^\s?#@]*)?")
_END = object()


@dataclass(frozen=True)
class Options:
    model: str
    urls: tuple[str, ...]
    key_name: str = "OPENAI_API_KEY"  # of the environment
    concurrency: int = 8  # requests at once, at each server
    timeout: float = 600.0
    tries: int = 6
    wait: float = 1.0  # seconds before the second try, where the server names none
    longest: float = 60.0  # seconds before any try
    schema: bool = False  # ask for the answer's JSON schema, where the server honours it
    extra: dict[str, Any] = field(default_factory=dict)  # more fields of a request; None leaves one out

    @property
    def key(self) -> str:
        return os.environ.get(self.key_name, "") or "none"  # local servers want none, the client wants one


class _Fatal(Exception):  # noqa: N818 - it carries an error of ours through asyncio
    def __init__(self, error: ReasonKneeError) -> None:
        super().__init__(str(error))
        self.error = error


class Servers:
    """An engine that asks one or several servers of the same model."""

    system = SYSTEM  # who the model is told to be

    def __init__(self, options: Options) -> None:
        try:
            import openai  # noqa: F401
        except ImportError:
            raise UsageError(
                "N049", "servers need the openai client", "pip install 'reasonknee[models]'"
            ) from None
        wrong = next((url for url in options.urls if url and not _ADDRESS.fullmatch(url)), None)
        if wrong is not None:  # not told: it may hold a password, and addresses stand in the journal
            raise UsageError(
                "N059",
                f"--server number {options.urls.index(wrong) + 1} is no plain address",
                "http://host:8000/v1, without user, password or query; the key comes from --key-name",
            )
        self.options = options
        self.about: dict[str, Any] = {"model": options.model, "server": True, **options.extra}
        self.lanes = options.concurrency * len(options.urls)

    def sized(self, outline: Outline) -> Outline:
        return outline  # the frames are sent as the view has them; a server may resize them by its own rule

    def fitted(self, showing: Showing) -> Showing:
        return showing

    def clean(self, text: object) -> str:
        """Text from elsewhere without the key, should it hold it."""
        key = self.options.key
        return str(text).replace(key, "[key]") if len(key) > 4 else str(text)

    # --- a run ----------------------------------------------------------------------------------------------

    def run(self, jobs: Iterator[Job], parameters: Parameters, may_ask: MayAsk) -> Iterator[Outcome]:
        """Outcomes as they come. Requests run in a thread of their own; volumes are read in this one."""
        outcomes: queue.Queue[Any] = queue.Queue()
        line = _Line(jobs, len(self.options.urls), 2)
        worker = threading.Thread(
            target=self._thread, args=(line, parameters, may_ask, outcomes), name="asking", daemon=True
        )
        worker.start()
        try:
            while True:
                line.fill()  # reads a volume where a server waits for one
                try:
                    outcome = outcomes.get(timeout=0.05 if line.wanted() else 1.0)
                except queue.Empty:
                    continue
                if outcome is _END:
                    return
                if isinstance(outcome, BaseException):
                    raise outcome
                yield outcome
        finally:
            line.close()
            worker.join(timeout=5)

    def _thread(
        self, line: _Line, parameters: Parameters, may_ask: MayAsk, outcomes: queue.Queue[Any]
    ) -> None:
        try:
            asyncio.run(self._all(line, parameters, may_ask, outcomes))
            outcomes.put(_END)
        except _Fatal as fatal:
            outcomes.put(fatal.error)
        except Exception as error:  # whatever it is, the run must hear of it, and without the key
            outcomes.put(DataError("N048", f"{type(error).__name__}: {self.clean(error)[:200]}"))

    async def _all(self, line: _Line, p: Parameters, may_ask: MayAsk, outcomes: queue.Queue[Any]) -> None:
        async def server(number: int) -> None:
            async with self._client(self.options.urls[number]) as client:
                room = asyncio.Semaphore(self.options.concurrency)

                async def one(request: Request, content: list[dict[str, Any]]) -> bool:
                    async with room:
                        if line.closed or not may_ask(request):
                            return False
                        result = await self._asked(client, content, request, p)
                    outcomes.put(Outcome(request, result, self.options.urls[number]))
                    return True

                async def lane() -> None:
                    while (job := await line.take(number)) is not None:
                        content = pictures(job.showing)
                        first, *rest = job.requests
                        if not await one(first, content):
                            line.close()
                            return
                        await asyncio.gather(*(one(request, content) for request in rest))

                await asyncio.gather(*(lane() for _ in range(max(1, self.options.concurrency // 2))))

        await asyncio.gather(*(server(i) for i in range(len(self.options.urls))))

    def _client(self, url: str) -> Any:
        import openai

        o = self.options
        return openai.AsyncOpenAI(base_url=url, api_key=o.key, max_retries=0, timeout=o.timeout)

    # --- a request ------------------------------------------------------------------------------------------

    def body(self, content: list[dict[str, Any]], text: str, p: Parameters, **more: Any) -> dict[str, Any]:
        """The request: the volume first, then the question."""
        fields = {
            "model": self.options.model,
            "messages": [
                {"role": "system", "content": self.system},
                {"role": "user", "content": [*content, {"type": "text", "text": text}]},
            ],
            "max_completion_tokens": p.max_tokens,
            "temperature": p.temperature,
            "seed": p.seed,
            **more,
            **self.options.extra,
        }
        return {name: value for name, value in fields.items() if value is not None}

    async def _sent(self, client: Any, body: dict[str, Any]) -> Any:
        """The client's own timeout is that of a silence; an answer that drips would never end."""
        named = {name: body[name] for name in ("model", "messages")}
        more = {name: value for name, value in body.items() if name not in named}
        asked = client.chat.completions.create(**named, extra_body=more)
        return await asyncio.wait_for(asked, self.options.timeout)

    async def _asked(
        self, client: Any, content: list[dict[str, Any]], request: Request, p: Parameters
    ) -> Reply | Failure:
        more: dict[str, Any] = {}
        if self.options.schema and request.step != "locate":
            more["response_format"] = answer_format(request)
        body = self.body(content, request.text, p, **more)
        failure = Failure("N048", "never asked")
        for attempt in range(self.options.tries):
            start = time.monotonic()
            result, wait = await self._once(client, body)
            if isinstance(result, Reply):
                return Reply(**{**vars(result), "seconds": time.monotonic() - start})
            failure = result
            if wait is None:
                return failure
            if attempt + 1 < self.options.tries:
                doubled = self.options.wait * 2**attempt * (0.75 + random.random() / 2)
                await asyncio.sleep(min(self.options.longest, wait or doubled))
        return failure

    async def _once(self, client: Any, body: dict[str, Any]) -> tuple[Reply | Failure, float | None]:
        """One try: a reply, or a failure and how long to wait before another; None where that is no cure."""
        import openai

        try:
            completion = await self._sent(client, body)
        except (openai.APITimeoutError, asyncio.TimeoutError):
            return Failure("N041", f"no answer in {self.options.timeout:g} s"), 0.0
        except openai.APIConnectionError as error:
            return Failure("N040", self.clean(f"no connection: {error.__cause__ or error}")), 0.0
        except openai.APIStatusError as error:
            return self._refused(error)
        except (openai.OpenAIError, ValueError, TypeError, AttributeError) as error:
            return Failure(
                "N047", self.clean(f"no answer of this kind: {type(error).__name__}: {error}")
            ), 0.0
        try:
            return self._reply(completion), None
        except (AttributeError, IndexError, TypeError, KeyError):
            return Failure("N047", f"no answer of this kind: {self.clean(completion)[:80]}"), 0.0

    def _reply(self, completion: Any) -> Reply:
        choice, usage = completion.choices[0], completion.usage
        text = choice.message.content
        finish = choice.finish_reason or "stop"
        if text is None and finish != "content_filter" and not getattr(choice.message, "refusal", None):
            raise TypeError("an answer without words")
        details = getattr(usage, "prompt_tokens_details", None)
        numbers = [
            getattr(usage, "prompt_tokens", 0),
            getattr(details, "cached_tokens", 0),
            getattr(usage, "completion_tokens", 0),
        ]
        counts = [n if isinstance(n, int) and n >= 0 else 0 for n in numbers]
        words = text if text is not None else getattr(choice.message, "refusal", None) or ""
        if not isinstance(words, str):
            raise TypeError("words that are none")
        return Reply(self.clean(words), str(finish)[:40], counts[0], min(counts[1], counts[0]), counts[2])

    def _refused(self, error: Any) -> tuple[Reply | Failure, float | None]:
        """What a status code means, and whether waiting helps."""
        status, said = error.status_code, self.clean(error.message)[:300]
        lower = f"{said} {getattr(error, 'code', '')}".lower()
        if status in (401, 403):
            name = self.options.key_name
            raise _Fatal(
                DataError("N042", f"the key is refused: {shown(said, 200)}", f"set {name} in the environment")
            )
        if status == 404:
            raise _Fatal(
                DataError(
                    "N043",
                    f"no model {self.options.model} there: {shown(said, 200)}",
                    "check --model and --server",
                )
            )
        if status in (408, 409, 425, 429) or status >= 500:
            if "insufficient_quota" in lower:
                hint = "pay in, then run the same command: it asks what is left"
                raise _Fatal(DataError("N050", f"the account has no money left: {shown(said, 200)}", hint))
            code = "N044" if status == 429 else "N040"
            return Failure(code, f"status {status}: {said}"), _retry_after(error.response.headers)
        if "content_filter" in lower or "content management" in lower or "safety" in lower:
            return Reply("", "content_filter"), None
        if (
            "context" in lower
            or "too long" in lower
            or ("maximum" in lower and "token" in lower)
            or status == 413
        ):
            return Failure("N045", f"the context is too long: {said}"), None
        kind = "the server refuses a picture" if "image" in lower else "the server refuses the request"
        return Failure("N046", f"{kind} (status {status}): {said}"), None

    # --- a probe --------------------------------------------------------------------------------------------

    def probe(self) -> dict[str, dict[str, bool]]:
        """What each server honours of what a request may hold: by small requests, since servers ignore in
        silence what they do not know. A server that cannot be asked at all is an error."""
        try:
            return {url: asyncio.run(self._probed(url)) for url in self.options.urls}
        except _Fatal as fatal:
            raise fatal.error from None

    async def _probed(self, url: str) -> dict[str, bool]:
        p = Parameters(max_tokens=16)
        still = np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))
        wanted = {"type": "object", "properties": {"grade": {"enum": [7]}}, "required": ["grade"]}
        schema = {"name": "grade", "schema": {**wanted, "additionalProperties": False}, "strict": True}
        async with self._client(url) as client:

            async def said(content: list[dict[str, Any]], **more: Any) -> Any:
                body = self.body(content, "What is this? Answer in one word.", p, **more)
                for attempt in range(self.options.tries):
                    try:
                        return await self._sent(client, body)
                    except Exception as error:
                        result, wait = await self._told(error)
                        if wait is None or attempt + 1 == self.options.tries:
                            return result
                        await asyncio.sleep(min(self.options.longest, wait or self.options.wait * 2**attempt))
                return None

            plain = await said([])
            if isinstance(plain, Failure):
                hint = "is the server up?"
                if plain.code == "N046":
                    hint = "a field that it does not take is left out by --field, as --field temperature=null"
                raise _Fatal(DataError(plain.code, f"{url}: {shown(plain.message, 200)}", hint))
            drawn = [await said([], temperature=1.0, seed=5, max_completion_tokens=8) for _ in range(2)]
            held = await said([], response_format={"type": "json_schema", "json_schema": schema})
            logged = await said([], logprobs=True)
            return {
                "several images": _answered(await said([image(still), image(still)])),
                "video": _answered(await said([video([still] * 4)])),
                "json_schema": _words(held).strip().replace(" ", "") == '{"grade":7}',
                "seed": _answered(drawn[0]) and _words(drawn[0]) == _words(drawn[1]),
                "logprobs": bool(getattr(getattr(_choice(logged), "logprobs", None), "content", None)),
            }

    async def _told(self, error: Exception) -> tuple[Failure, float | None]:
        import openai

        if isinstance(error, openai.APIStatusError):
            result, wait = self._refused(error)
            return (result if isinstance(result, Failure) else Failure("N046", "refused")), wait
        if isinstance(error, asyncio.TimeoutError):
            return Failure("N041", f"no answer in {self.options.timeout:g} s"), 0.0
        if isinstance(error, openai.APIConnectionError):
            return Failure("N040", self.clean(f"no connection: {error.__cause__ or error}")), 0.0
        return Failure("N047", self.clean(f"{type(error).__name__}: {error}")), None


class _Line:
    """Jobs on their way to servers, a few for each. Filled by the thread of the run, which reads the volumes,
    and emptied by that of the requests."""

    def __init__(self, jobs: Iterator[Job], servers: int, ahead: int) -> None:
        self.jobs, self.ahead = jobs, ahead
        self.waiting: list[list[Job]] = [[] for _ in range(servers)]
        self.lock = threading.Lock()
        self.ended = self.closed = False

    def wanted(self) -> bool:
        return not self.ended and min(map(len, self.waiting)) < self.ahead

    def fill(self) -> None:
        while self.wanted() and sum(map(len, self.waiting)) < self.ahead * len(self.waiting) * 2:
            job = next(self.jobs, None)
            if job is None or self.closed:
                self.ended = True
                return
            with self.lock:
                self.waiting[crc32(job.volume.encode()) % len(self.waiting)].append(job)

    async def take(self, server: int) -> Job | None:
        while not self.closed:
            with self.lock:
                if self.waiting[server]:
                    return self.waiting[server].pop(0)
            if self.ended:
                return None
            await asyncio.sleep(0.005)
        return None

    def close(self) -> None:
        self.closed = True


def _retry_after(headers: Any) -> float:
    """Seconds that the server asks for; 0 where it names none that can be read."""
    said = str(headers.get("retry-after", ""))
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), _LONGEST_WAIT) if seconds == seconds else 0.0


def _choice(completion: Any) -> Any:
    choices = getattr(completion, "choices", None)
    return choices[0] if choices else None


def _words(completion: Any) -> str:
    return str(getattr(getattr(_choice(completion), "message", None), "content", "") or "")


def _answered(completion: Any) -> bool:
    return _choice(completion) is not None
