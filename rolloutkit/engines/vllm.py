"""vLLM servers: the completions API in token ids, and what vLLM has beside it.

A worker is a server, or one data-parallel rank of it. Owns its connection and what it found out
about it; the wire format is `openai_wire`'s. Log-probs are the model's own, before temperature.
Behaviour is that of vllm 0.32; docs/engines.md says how to start it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from rolloutkit.engines.encoding import ChainEncodings
from rolloutkit.engines.http import Read, read_nothing
from rolloutkit.engines.openai_wire import Answer, AnswerReader, completion_fields, read_models
from rolloutkit.engines.prometheus import read_samples
from rolloutkit.engines.servers import PROBE, Place, Servers, ServersConfig
from rolloutkit.errors import ConfigError, EngineError, RequestError
from rolloutkit.protocols import Capabilities, OnProgress, PauseMode, WeightUpdate, WorkerLoad
from rolloutkit.types import (
    ChatPrompt,
    Completion,
    GenerateRequest,
    SampleId,
)

if TYPE_CHECKING:
    import aiohttp


class VLLMConfig(ServersConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which servers."""


class VLLMEngine:
    """The workers of a configuration, to be put behind a router; one may serve alone."""

    def __init__(self, config: VLLMConfig, api_key: str = "") -> None:
        self._servers = Servers(config, api_key)

    @property
    def start_seconds(self) -> float:
        """How long starting servers of our own may take; 0 where there are none."""
        return self._servers.ready_seconds

    def make_workers(self) -> Sequence[VLLMWorker]:
        """One for each server, or for each DP rank of it, in the order of the configuration."""
        return [VLLMWorker(self._servers, place) for place in self._servers.places()]


class VLLMWorker:
    """One worker. Use it as an async context manager; it retries nothing.

    Closing the connection is what aborts a request: the server notices within a step.
    """

    def __init__(self, servers: Servers, place: Place) -> None:
        self._servers = servers
        self._place = place
        headers = {} if place.rank is None else {"X-data-parallel-rank": str(place.rank)}
        self._client = servers.client(place, headers)
        self._encodings = ChainEncodings()
        self._model = servers.config.model
        self._capabilities = Capabilities(token_ids=True, logprobs=True, progress=True)
        self._is_known = False

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
        return self._capabilities

    async def __aenter__(self) -> Self:
        """Start the server if it is ours, and find out what it can do if it answers. See
        `Servers.attached`.
        """
        self._attached = self._servers.attached(
            self._place, self._client, self._examine, kind="vLLM server"
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
        """See `Worker.generate`."""
        has_priority = self._capabilities.priority
        answer = await self._ask(request, on_progress, has_priority=has_priority)
        return answer.completion(request, num_retries=0)

    def finish(self, sample_id: SampleId) -> None:
        """Forget the sample's encoded chains."""
        self._encodings.drop(sample_id)

    async def probe(self) -> WorkerLoad:
        """Its load. Raises EngineError when it does not answer, or turns out to be of no use."""
        if not self._is_known:
            try:
                await self._examine()
            except ConfigError as error:
                raise EngineError(str(error)) from error
        return (await self._client.get("/metrics", _LoadReader(self._place.rank).read)).value

    async def pause(self, mode: PauseMode) -> None:
        """See `EngineControl.pause`. Servers without VLLM_SERVER_DEV_MODE=1 refuse all of these."""
        kept = "abort" if mode is PauseMode.ABORT else "keep"
        await self._control(f"/pause?mode={kept}")

    async def resume(self) -> None:
        """See `EngineControl.resume`."""
        await self._control("/resume")

    async def update_weights(self, update: WeightUpdate) -> None:
        """See `EngineControl.update_weights`; the path is read by the server."""
        if update.path is not None:
            arguments = {"weights_path": update.path}
            await self._control("/collective_rpc", method="reload_weights", kwargs=arguments)
            await self.flush_cache()
        await self._control("/update_weight_version", new_version=str(update.version))

    async def flush_cache(self) -> None:
        """Forget all prefixes, also those of calls that are held: they are read again."""
        await self._control("/reset_prefix_cache?reset_running_requests=true", _require_success)

    async def _control(
        self, path: str, read: Read[None] = read_nothing, /, **fields: object
    ) -> None:
        if not self._place.speaks_for_server:
            return
        try:
            await self._client.post(path, msgspec.json.encode(fields), read)
        except RequestError as error:
            raise RequestError(f"{error}; it has that with VLLM_SERVER_DEV_MODE=1") from error

    async def _ask(
        self, request: GenerateRequest, on_progress: OnProgress | None, *, has_priority: bool
    ) -> Answer:
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            raise RequestError("vllm takes token ids, not messages: set renderer.tokenizer")
        fields: dict[str, Any] = {
            "model": self._model,
            "stream": True,
            "stream_options": {"include_usage": True},
            **completion_fields(request, prompt),
        }
        if has_priority:
            fields["priority"] = round(-request.priority)  # the smallest first
        fields |= self._servers.config.extra_body
        ids = self._encodings.ids(request, prompt.token_ids)
        body = b"".join((b'{"prompt":[', ids, b"],", msgspec.json.encode(fields)[1:]))
        reader = AnswerReader(on_progress)
        return (await self._client.post("/v1/completions", body, reader.read)).value

    async def _examine(self) -> None:
        """Ask what it serves, and for two tokens. Raises ConfigError, EngineError."""
        models = (await self._client.get("/v1/models", read_models)).value
        self._model = self._servers.agree(self._place, [model.id for model in models])
        answer, has_priority = await self._try_out()
        if not answer.token_ids or not answer.logprobs:
            raise ConfigError(
                f"engine.workers: {self._place.url} gives no ids or log-probs of sampled tokens: "
                "vLLM does from 0.10 on"
            )
        listed = next(model for model in models if model.id == self._model)
        self._capabilities = Capabilities(
            token_ids=True,
            logprobs=True,
            grammar=True,
            priority=has_priority,
            progress=True,
            cached_tokens=answer.cached_tokens is not None,
            max_context=listed.max_context,
        )
        self._is_known = True

    async def _try_out(self) -> _Trial:
        """Ask with a priority first: servers without `--scheduling-policy priority` refuse it."""
        try:
            return _Trial(await self._ask(PROBE, None, has_priority=True), has_priority=True)
        except RequestError:
            return _Trial(await self._ask(PROBE, None, has_priority=False), has_priority=False)
        finally:
            self.finish(PROBE.sample_id)


class _Trial(NamedTuple):
    answer: Answer
    has_priority: bool


class _LoadReader:
    """Reads `/metrics` for one DP rank, or for a server that is one worker."""

    def __init__(self, rank: int | None) -> None:
        self._rank = rank

    async def read(self, response: aiohttp.ClientResponse) -> WorkerLoad:
        found: dict[str, int] = {}
        for sample in read_samples((await response.read()).decode(), _NAMES):
            if self._rank is not None and sample.labels.get("engine") != str(self._rank):
                continue
            value = sample.value
            if sample.name == _CACHE:
                size = sample.labels.get("kv_cache_size_tokens", "")
                if not size.isdigit():
                    continue
                value = float(size)
            found[sample.name] = found.get(sample.name, 0) + int(value)
        prompt, generated = found.get(_PROMPT), found.get(_GENERATED)
        return WorkerLoad(
            num_running=found.get(_RUNNING),
            num_waiting=found.get(_WAITING),
            num_generated=None if generated is None else generated + (prompt or 0),
            capacity_tokens=found.get(_CACHE),
        )


_RUNNING, _WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
_PROMPT, _GENERATED = "vllm:prompt_tokens_total", "vllm:generation_tokens_total"
_CACHE = "vllm:cache_config_info"
_NAMES = frozenset({_RUNNING, _WAITING, _PROMPT, _GENERATED, _CACHE})


class _Success(msgspec.Struct, frozen=True):
    success: bool


_decode_success = msgspec.json.Decoder(_Success).decode


async def _require_success(response: aiohttp.ClientResponse) -> None:
    if not _decode_success(await response.read()).success:
        raise EngineError(f"{response.url}: the cache is held by calls that run")
