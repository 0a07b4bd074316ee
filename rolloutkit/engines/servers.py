"""What the workers of one engine share: their addresses, the servers that were started, the model.

Owns the part of the configuration that `sglang` and `vllm` have in common and the rule that all
workers serve the same model. What is said to a server belongs to each engine.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec

from rolloutkit.engines.http import HttpClient, RetryBudget, read_nothing
from rolloutkit.engines.launch import LaunchConfig, LocalServers
from rolloutkit.errors import ConfigError, EngineError, WorkerLost
from rolloutkit.types import GenerateRequest, SampleId, SamplingParams, TokenPrompt

Count = Annotated[int, msgspec.Meta(ge=1)]

_NO_HEADERS: Mapping[str, str] = {}
_NOTHING: AbstractAsyncContextManager[object] = nullcontext()
NO_RETRIES = RetryBudget(max_tries=1, max_seconds=0.0)  # a worker's router tries another worker


PROBE = GenerateRequest(  # two tokens, to see what comes back
    sample_id=SampleId("probe", 0),
    attempt=0,
    chain_index=0,
    turn=0,
    prompt=TokenPrompt(array("i", (10, 11, 12))),  # ids that every vocabulary has
    sampling=SamplingParams(max_tokens=2, temperature=0.0),
    priority=1.0,
)


class ServersConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the servers are, or how to start them, and what to ask of them."""

    workers: tuple[str, ...] = ()  # URLs without a path; () = those of `launch`
    launch: LaunchConfig | None = None
    dp_ranks: Count = 1  # data-parallel ranks of each server, each of them a worker
    model: str = ""  # the name under which all must serve it; "" = any, the same on all
    api_key_env: str = ""  # name of the environment variable that holds the key; "" = no key
    max_connections: Count = 1024  # to each worker
    extra_body: dict[str, Any] = {}  # sent with every request


class Place(NamedTuple):
    """A worker's place among the servers; `rank` is None where a server is one worker."""

    server: int  # its number among the servers
    url: str
    rank: int | None

    @property
    def name(self) -> str:
        return self.url if self.rank is None else f"{self.url}#{self.rank}"

    @property
    def speaks_for_server(self) -> bool:
        """Whether it is the one worker of its server that starts, pauses and updates it."""
        return not self.rank


class Servers:
    """The servers of one engine, to be shared by its workers."""

    def __init__(self, config: ServersConfig, api_key: str = "") -> None:
        """Starts nothing. Raises ConfigError for a configuration that names no server, or both."""
        if bool(config.workers) == (config.launch is not None):
            raise ConfigError(
                "engine.workers: give the URLs of servers that run, like "
                "[http://127.0.0.1:30000], or engine.launch to start some, and not both"
            )
        for url in config.workers:
            if not url.startswith(("http://", "https://")):
                raise ConfigError(
                    f"engine.workers: expected a URL like http://HOST:PORT, got {url!r}"
                )
        if len(set(config.workers)) != len(config.workers):
            raise ConfigError(f"engine.workers: a URL is named twice: {', '.join(config.workers)}")
        self.config = config
        self._api_key = api_key
        self._launched = None if config.launch is None else LocalServers(config.launch)
        self._served: tuple[str, str] | None = None  # a worker's name, and its model

    @property
    def ready_seconds(self) -> float:
        """How long starting our own servers may take; 0 where there are none."""
        return 0.0 if self._launched is None else self._launched.ready_seconds

    def places(self) -> list[Place]:
        """One for each worker, in the order of the configuration."""
        urls = self.config.workers if self._launched is None else self._launched.urls
        ranks = [None] if self.config.dp_ranks == 1 else range(self.config.dp_ranks)
        return [
            Place(server, url.rstrip("/"), rank)
            for server, url in enumerate(urls)
            for rank in ranks
        ]

    def client(self, place: Place, headers: Mapping[str, str] = _NO_HEADERS) -> HttpClient:
        """A client of a worker's server, still to be entered. It sends `headers` and the key."""
        key = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        return HttpClient(
            place.url,
            max_connections=self.config.max_connections,
            retries=NO_RETRIES,
            rng=random.Random(place.server),
            headers={**key, **headers},
        )

    @asynccontextmanager
    async def attached(
        self,
        place: Place,
        client: HttpClient,
        examine: Callable[[], Awaitable[None]],
        *,
        kind: str,
        beside: AbstractAsyncContextManager[object] = _NOTHING,
    ) -> AsyncGenerator[None]:
        """Have the worker's server, started if it is ours, and its connection inside the block.

        `examine` is called when it is well; `beside` is entered once there is a connection, and
        left before that is closed. Raises ConfigError when it is no server of use, serves another
        model than the others, or does not start; one that does not answer may come later.
        """
        try:
            async with client, beside:
                if self._launched is not None:
                    await self._launched.ready(place.server, partial(_is_well, client))
                await _examined(examine, place, kind)
                yield
        finally:
            if self._launched is not None and place.speaks_for_server:
                await self._launched.stop(place.server)

    def agree(self, place: Place, models: list[str]) -> str:
        """The model that all workers serve, under its served name.

        Raises ConfigError when this worker does not serve it, or another than the others.
        """
        wanted = self.config.model
        if wanted and wanted not in models:
            raise ConfigError(
                f"engine.model: {place.name} serves {', '.join(models) or 'nothing'}, "
                f"expected {wanted}"
            )
        model = wanted or (models[0] if models else "")
        if self._served is None:
            self._served = (place.name, model)
        name, other = self._served
        if model != other:
            raise ConfigError(
                f"engine.workers: {place.name} serves {model!r}, but {name} serves {other!r}: "
                "all workers must serve one model"
            )
        return model


async def _examined(what: Callable[[], Awaitable[None]], place: Place, kind: str) -> None:
    """Raise ConfigError when a server answers, but not as such a server does."""
    try:
        await what()
    except WorkerLost:
        pass  # nobody is there now; the router probes it until somebody is
    except EngineError as error:
        raise ConfigError(f"engine.workers: {place.url} is no {kind} of use: {error}") from error


async def _is_well(client: HttpClient) -> bool:
    try:
        await client.get("/health", read_nothing)
    except EngineError:
        return False
    return True
