"""An engine's one HTTP client: bounded connections, retries in one layer, errors with a kind.

Owns the session, the retry budget, the reading of event streams and the mapping of answers to our
errors. What a request says and how an answer is read belongs to each engine. There is no total
time-out: the sample's watchdog bounds the wait, and cancelling closes the connection, by which
servers know an abort.
"""

from __future__ import annotations

import asyncio
import email.utils
import io
import random
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Generic, NamedTuple, Self, TypeAlias, TypeVar

import aiohttp
import msgspec

from rolloutkit.clock import now
from rolloutkit.errors import (
    ContextFullError,
    EngineError,
    RequestError,
    RolloutError,
    WorkerLost,
)

T = TypeVar("T")
Read: TypeAlias = Callable[[aiohttp.ClientResponse], Awaitable[T]]
"""Reads the body of an answer. What it raises of aiohttp's counts as a lost connection."""

_CONNECT_SECONDS = 10.0  # a handshake that takes longer has failed; three SYNs fit
_FIRST_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.5, 30.0
_TRANSIENT = frozenset({429, 500, 502, 503, 504})
_GONE = frozenset({502, 503})  # what proxies and servers that shut down answer
_CONTEXT_FULL = re.compile(
    # llama.cpp; OpenAI and vLLM; vLLM; SGLang
    r"exceed_context_size|context.length|max(imum)?.model.len|context size|longer than the model",
    re.IGNORECASE,
)
_LARGE_BODY = 2**20  # aiohttp warns about larger byte strings and wants them as a file


class RetryBudget(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long one request is tried again."""

    max_tries: int
    max_seconds: float


class Served(NamedTuple, Generic[T]):
    """What a request brought, and how many tries before it failed."""

    value: T
    num_retries: int


class _Failure(NamedTuple):
    error: RolloutError
    cause: Exception | None = None
    is_transient: bool = False
    retry_after: float = 0.0
    is_stale: bool = False  # the server had closed a kept-alive connection: no reason to wait


class HttpClient:
    """Requests to one server. Use it as an async context manager; its session lives inside."""

    def __init__(
        self,
        base_url: str,
        *,
        max_connections: int,
        retries: RetryBudget,
        rng: random.Random,
        headers: Mapping[str, str] | None = None,
        keep_alive: bool = True,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._max_connections = max_connections
        self._retries = retries
        self._rng = rng
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._keep_alive = keep_alive
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._max_connections, force_close=not self._keep_alive
            ),
            # No bound on waiting for a free connection: that wait is a queue like any other.
            timeout=aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def get(self, path: str, read: Read[T], retries: RetryBudget | None = None) -> Served[T]:
        """GET `path`; see `post`."""
        return await self._request("GET", path, b"", read, retries or self._retries)

    async def post(
        self, path: str, body: bytes, read: Read[T], retries: RetryBudget | None = None
    ) -> Served[T]:
        """POST a JSON body and read the answer with `read`, which may run once per try.

        Lost connections, answers cut short and the statuses 429, 500, 502, 503 and 504 are tried
        again within the budget, after what `Retry-After` asks or a jittered exponential back-off.
        A kept-alive connection that the server had closed is replaced once, without a wait and
        whatever the budget. Raises WorkerLost or EngineError when the budget is used up,
        RequestError or ContextFullError when refused.
        """
        return await self._request("POST", path, body, read, retries or self._retries)

    async def _request(
        self,
        method: str,
        path: str,
        body: bytes,
        read: Read[T],
        retries: RetryBudget,
    ) -> Served[T]:
        url = self._base_url + path
        give_up_at = now() + retries.max_seconds
        num_retries = 0
        while True:
            outcome = await self._try(method, url, body, read)
            if not isinstance(outcome, _Failure):
                return Served(outcome, num_retries)
            if not (outcome.is_stale and num_retries == 0):
                wait = max(outcome.retry_after, self._backoff(num_retries))
                is_last = num_retries + 1 >= retries.max_tries or now() + wait > give_up_at
                if is_last or not outcome.is_transient:
                    raise outcome.error from outcome.cause
                await asyncio.sleep(wait)
            num_retries += 1

    async def _try(
        self,
        method: str,
        url: str,
        body: bytes,
        read: Read[T],
    ) -> T | _Failure:
        assert self._session is not None, "the engine is used outside its `async with`"
        content = body if len(body) <= _LARGE_BODY else io.BytesIO(body)
        try:
            response = await self._session.request(method, url, data=content)
            try:
                outcome = (
                    await read(response) if response.status == 200 else await _failure_of(response)
                )
            except BaseException:
                response.close()
                raise
            response.release()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            message = f"{url}: {reason}: is the server running, and its URL right?"
            return _Failure(
                WorkerLost(message), error, is_transient=True, is_stale=_is_stale(error)
            )
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _Failure(EngineError(f"{url}: the answer makes no sense: {error}"), error)
        return outcome

    def _backoff(self, num_retries: int) -> float:
        """Full jitter (AWS Architecture Blog, "Exponential Backoff And Jitter"), at least half."""
        ceiling = min(_FIRST_BACKOFF_SECONDS * 2**num_retries, _MAX_BACKOFF_SECONDS)
        return ceiling * (0.5 + 0.5 * self._rng.random())


async def sse_events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The `data` of each server-sent event, without `[DONE]`; lines may have any length."""
    rest = b""
    async for block in response.content.iter_any():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                event = line[5:].strip()
                if event != b"[DONE]":  # the end of the body follows: read up to it to keep alive
                    yield event
            elif line.startswith(b"error:"):  # llama.cpp's own spelling
                raise EngineError(f"{response.url}: {line[6:206].decode(errors='replace').strip()}")


async def read_nothing(response: aiohttp.ClientResponse) -> None:
    """Read an answer whose status says all."""
    await response.read()


def refusal(url: str, status: int, text: str) -> EngineError:
    """The error for an answer that will not change: ContextFullError or RequestError."""
    if status in (400, 413, 422) and _CONTEXT_FULL.search(text):
        return ContextFullError(f"{url}: {text[:200]}")
    remedy = {
        401: ": check engine.api_key_env",
        403: ": check engine.api_key_env",
        404: ": check the URL and engine.model",
    }.get(status, "")
    return RequestError(f"{url} answered {status}: {text[:200]}{remedy}")


def _is_stale(error: Exception) -> bool:
    lost = isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
    return lost and not isinstance(error, aiohttp.ClientConnectorError)


async def _failure_of(response: aiohttp.ClientResponse) -> _Failure:
    text = (await response.read()).decode(errors="replace")
    url, status = str(response.url), response.status
    if status in _TRANSIENT:
        kind = WorkerLost if status in _GONE else EngineError
        error = kind(f"{url} answered {status}: {text[:200]}: see the server's log")
        retry_after = retry_after_seconds(response.headers.get("Retry-After"))
        return _Failure(error, is_transient=True, retry_after=retry_after)
    return _Failure(refusal(url, status, text))


def retry_after_seconds(value: str | None) -> float:
    """Seconds that a `Retry-After` header asks for: a number or an HTTP date; 0 if neither."""
    if not value:
        return 0.0
    try:
        return max(float(value), 0.0)
    except ValueError:
        pass
    try:
        due = email.utils.parsedate_to_datetime(value).timestamp()
    except ValueError:
        return 0.0
    return max(due - time.time(), 0.0)  # noqa: TID251 - a date on the wall, not a duration
