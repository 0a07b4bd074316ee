"""SGLang servers in their own language: token ids in, sampled ids with log-probs out.

A worker is a server, or one data-parallel rank of it. Owns its connection, what it found out about
it, and the requests that have to be aborted there. With a temperature other than 1 the log-probs
are those of the tempered distribution, from which it samples. docs/engines.md has the blind spots.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from rolloutkit.engines.encoding import ChainEncodings
from rolloutkit.engines.http import HttpClient, read_nothing
from rolloutkit.engines.servers import PROBE, Count, Place, Servers, ServersConfig
from rolloutkit.engines.sglang_wire import (
    AnswerReader,
    LoadReader,
    ServerInfo,
    options,
    read_server_info,
)
from rolloutkit.errors import ConfigError, ContextFullError, EngineError, RequestError
from rolloutkit.jobs import background
from rolloutkit.protocols import Capabilities, OnProgress, PauseMode, WeightUpdate, WorkerLoad
from rolloutkit.types import (
    ChatPrompt,
    Completion,
    GenerateRequest,
    SampleId,
    TokenPrompt,
)


class SGLangConfig(ServersConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which servers, and how closely to follow what they generate."""

    stream_interval: Count = 32  # tokens between two reports of progress


class SGLangEngine:
    """The workers of a configuration, to be put behind a router; one may serve alone."""

    def __init__(self, config: SGLangConfig, api_key: str = "") -> None:
        self._config = config
        self._servers = Servers(config, api_key)

    @property
    def start_seconds(self) -> float:
        """How long starting servers of our own may take; 0 where there are none."""
        return self._servers.ready_seconds

    def make_workers(self) -> Sequence[SGLangWorker]:
        """One for each server, or for each DP rank of it, in the order of the configuration."""
        return [
            SGLangWorker(self._servers, place, self._config.stream_interval)
            for place in self._servers.places()
        ]


class SGLangWorker:
    """One worker. Use it as an async context manager; it retries nothing."""

    def __init__(self, servers: Servers, place: Place, stream_interval: int = 32) -> None:
        self._servers = servers
        self._place = place
        self._stream_interval = stream_interval
        self._client = servers.client(place)
        self._encodings = ChainEncodings()
        self._aborts = _Aborts(self._client)
        self._info: ServerInfo | None = None
        self._run = secrets.token_hex(4)  # other runs may use the same server
        self._numbers = itertools.count()

    @property
    def name(self) -> str:
        """The server's URL, with `#RANK` where it has several."""
        return self._place.name

    @property
    def start_seconds(self) -> float:
        return self._servers.ready_seconds

    @property
    def capabilities(self) -> Capabilities:
        """What it can do; what is not known before it answers is not claimed."""
        info = self._info
        if info is None:
            return Capabilities(token_ids=True, logprobs=True, progress=True, cached_tokens=True)
        return Capabilities(
            token_ids=True,
            logprobs=True,
            grammar=info.has_grammar,
            priority=info.enable_priority_scheduling,
            progress=True,
            cached_tokens=True,
            seeds=info.enable_deterministic_inference,
            max_context=info.max_req_input_len,
            parallelism=info.max_running_requests,
        )

    async def __aenter__(self) -> Self:
        """Start the server if it is ours, and find out what it can do if it answers. See
        `Servers.attached`.
        """
        self._attached = self._servers.attached(
            self._place, self._client, self._examine, kind="SGLang server", beside=self._aborts
        )
        await self._attached.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._attached.__aexit__(kind, error, trace)

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """See `Worker.generate`. Whatever ends it early aborts the request on the server too."""
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            raise RequestError("sglang takes token ids, not messages: set renderer.tokenizer")
        info = self._info or _UNKNOWN
        # The number comes first: the server aborts every request whose name starts with the one
        # that it is told (Scheduler.abort_request).
        name = f"{self._run}-{next(self._numbers)}/{request.request_id}"
        reader = AnswerReader(on_progress, is_incremental=info.incremental_streaming_output)
        body = self._body(request, prompt, name, info)
        try:
            answer = await self._client.post("/generate", body, reader.read)
        except (RequestError, ContextFullError):
            raise  # the server has ended it
        except BaseException:
            self._aborts.send(name)
            raise
        return answer.value.completion(request)

    def finish(self, sample_id: SampleId) -> None:
        """Forget the sample's encoded chains."""
        self._encodings.drop(sample_id)

    async def probe(self) -> WorkerLoad:
        """Its load. Raises EngineError when it does not answer, or turns out to be of no use."""
        if self._info is None:
            try:
                await self._examine()
            except ConfigError as error:
                raise EngineError(str(error)) from error
        return (await self._client.get("/v1/loads", LoadReader(self._place.rank).read)).value

    async def pause(self, mode: PauseMode) -> None:
        """See `EngineControl.pause`. Calls that are to hold are retracted, so that weights may be
        changed and the cache emptied.
        """
        await self._control(
            "/pause_generation", mode="abort" if mode is PauseMode.ABORT else "retract"
        )

    async def resume(self) -> None:
        """See `EngineControl.resume`."""
        await self._control("/continue_generation")

    async def update_weights(self, update: WeightUpdate) -> None:
        """See `EngineControl.update_weights`; the path is read by the server. It empties its cache
        of prefixes.
        """
        version = str(update.version)
        if update.path is None:
            await self._control(
                "/update_weight_version", new_version=version, abort_all_requests=False
            )
        else:
            await self._control(
                "/update_weights_from_disk", model_path=update.path, weight_version=version
            )

    async def flush_cache(self) -> None:
        """Forget all prefixes. Raises RequestError while requests run there."""
        await self._control("/flush_cache")

    async def _control(self, path: str, **fields: Any) -> None:
        if self._place.speaks_for_server:
            await self._client.post(path, msgspec.json.encode(fields), read_nothing)

    def _body(
        self, request: GenerateRequest, prompt: TokenPrompt, name: str, info: ServerInfo
    ) -> bytes:
        fields = options(request, prompt, info) | self._servers.config.extra_body
        fields["rid"] = name
        fields["stream"] = True
        fields["sampling_params"]["stream_interval"] = info.stream_interval(
            self._stream_interval, request.sampling.max_tokens
        )
        if self._place.rank is not None:
            fields["routed_dp_rank"] = self._place.rank
        ids = self._encodings.ids(request, prompt.token_ids)
        return b"".join((b'{"input_ids":[', ids, b"],", msgspec.json.encode(fields)[1:]))

    async def _examine(self) -> None:
        """Ask what it is, and for two tokens. Raises ConfigError, EngineError."""
        info = (await self._client.get("/server_info", read_server_info)).value
        self._servers.agree(self._place, [info.served_model_name])
        if (self._place.rank or 0) >= info.dp_size:
            raise ConfigError(
                f"engine.dp_ranks: {self._place.url} has {info.dp_size}, "
                f"got {self._servers.config.dp_ranks}"
            )
        self._info = info
        try:
            await self.generate(PROBE)
        except BaseException:
            self._info = None
            raise
        finally:
            self.finish(PROBE.sample_id)


class _Aborts:
    """Tells the server which requests to give up, beside everything else.

    A closed connection is not enough: the server looks for one every few seconds only, 3.2 s after
    it was closed in a try of ours, and generates until then.
    """

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._names: asyncio.Queue[str] = asyncio.Queue()  # bounded by the calls in flight
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(background(self._work(), name="aborts"))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Send what is left, for two seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self._names.join()
        await self._stack.aclose()

    def send(self, name: str) -> None:
        """Have a request given up soon. Never waits; one that has ended is no error."""
        self._names.put_nowait(name)

    async def _work(self) -> None:
        while True:
            name = await self._names.get()
            try:
                body = msgspec.json.encode({"rid": name})
                await self._client.post("/abort_request", body, read_nothing)
            except EngineError:
                pass  # a server that is gone has aborted everything
            finally:
                self._names.task_done()


_UNKNOWN = ServerInfo("", 0)
