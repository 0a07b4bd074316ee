"""The embedded default engine: llama.cpp's server inside this process, on a CPU, without torch.

Owns the server (xllamacpp), its model file, its slots and the wire format of its `/completion`
endpoint. Token ids go in and come out, each sampled token with its log-prob under the model's own
distribution, the end-of-sequence token included. A constrained completion's log-probs are of that
same, unmasked, distribution, which is not the one it was drawn from.
"""

from __future__ import annotations

import random
from array import array
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import aiohttp
import msgspec

from rolloutkit.assets import (
    ModelFile,
    Quantization,
    bundled_model,
    bundled_path,
    checked_model,
    default_cache_dir,
    prepared_model,
)
from rolloutkit.clock import now
from rolloutkit.engines.encoding import ChainEncodings
from rolloutkit.engines.http import HttpClient, RetryBudget, refusal, sse_events
from rolloutkit.engines.slots import SlotTable
from rolloutkit.engines.timings import Timings
from rolloutkit.errors import ConfigError, EngineError, RequestError
from rolloutkit.jobs import blocking
from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.types import (
    ChatPrompt,
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    SamplingParams,
)

if TYPE_CHECKING:
    import xllamacpp

Count = Annotated[int, msgspec.Meta(ge=1)]

# A closed connection is noticed between two batches, and a batch keeps the other slots waiting. 128
# prefills as fast as 2048 (213 against 209 tokens/s, SmolLM2 Q8_0, one thread, 2 vCPU EPYC Zen 3).
_BATCH_TOKENS = 128
# On loopback the only transient failure is a connection that broke; more tries would hide a dead
# server.
_RETRIES = RetryBudget(max_tries=3, max_seconds=30.0)


class LlamaCppConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to serve and how large. The defaults suit the bundled model on a laptop."""

    model: str = ""  # path of a GGUF file; "" = the bundled SmolLM2-135M-Instruct
    sha256: str = ""  # of that file; "" = not checked
    quantization: Quantization = Quantization.AUTO
    cache_dir: str = ""  # of prepared models; "" = the user's cache folder
    num_slots: Count = 4  # requests generated at once
    context_tokens: Count = 4096  # per slot
    # Two threads lose all their speed when another process wants the core on which one of them
    # spins: 59 instead of 213 tokens/s of prefill, 1 instead of 35 of decoding (same machine, load
    # 2).
    threads: Count = 1
    prompt_cache_mib: Annotated[int, msgspec.Meta(ge=0)] = (
        2048  # RAM for prefixes that lost their slot
    )
    seed: int = 0  # of the jitter between retries; sampling is seeded by each request


class LlamaCppEngine:
    """Serves from `async with`. Requests beyond the slots wait here, first come first served."""

    def __init__(self, config: LlamaCppConfig = LlamaCppConfig()) -> None:  # noqa: B008 - frozen
        self._config = config
        self._slots = SlotTable(config.num_slots)
        self._encodings = ChainEncodings()
        self._readers: dict[str, _Reader] = {}  # of the calls under way
        self._server: xllamacpp.Server | None = None
        self._client: HttpClient | None = None
        self._capabilities = Capabilities(
            token_ids=True,
            logprobs=True,
            grammar=True,
            progress=True,
            cached_tokens=True,
            max_context=config.context_tokens,
            parallelism=config.num_slots,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def base_url(self) -> str:
        """Where the server listens, on loopback; other clients may use it too."""
        assert self._server is not None, "the engine is used outside its `async with`"
        return self._server.listening_address

    @property
    def model_file(self) -> Path:
        """The model as it was given; its content is checked when the server starts."""
        return Path(self._config.model) if self._config.model else bundled_path()

    async def __aenter__(self) -> Self:
        """Prepare the model where needed, and start the server. Raises ConfigError."""
        self._server = await blocking(start_server, self._config, 0)
        self._client = await HttpClient(
            self.base_url,
            max_connections=self._config.num_slots + 1,  # and one to administrate
            retries=_RETRIES,
            rng=random.Random(self._config.seed),
            keep_alive=False,  # the server closes the connection after each stream
        ).__aenter__()
        try:
            await self._read_context()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(kind, error, trace)
        # Its destructor stops it and holds the interpreter lock, for 30 s if a stream were still
        # open.
        self._server = None

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """See `Engine.generate`. Always streams: else the server overlooks a closed connection."""
        if isinstance(request.prompt, ChatPrompt):
            raise RequestError("llamacpp takes token ids, not messages")
        _check_schema(request.json_schema)
        assert self._client is not None, "the engine is used outside its `async with`"
        asked_at = now()
        async with self._slots.hold(request.sample_id) as slot:
            started_at = now()
            reader = _Reader(request.prompt.stop_token_ids, on_progress)
            body = self._body(request, request.prompt.token_ids, slot)
            self._readers[request.request_id] = reader
            try:
                answer = await self._client.post("/completion", body, reader.read)
            finally:
                del self._readers[request.request_id]
        stream = answer.value
        if request.json_schema is not None:
            stream.drop_foreign_end(request.prompt.stop_token_ids)
        return Completion(
            finish_reason=stream.finish_reason,
            token_ids=stream.token_ids,
            logprobs=stream.logprobs if request.sampling.logprobs else None,
            prompt_tokens=len(request.prompt.token_ids),
            cached_tokens=stream.timings.cache_n,
            output_tokens=len(stream.token_ids),
            constrained=request.json_schema is not None,
            queue_seconds=started_at - asked_at,
            prefill_seconds=stream.timings.prefill_seconds,
            service_seconds=stream.timings.service_seconds,
            num_retries=answer.num_retries,
        )

    def received(self, request: GenerateRequest) -> Completion | None:
        """What a call under way has generated so far."""
        reader = self._readers.get(request.request_id)
        if reader is None:
            return None
        return Completion(
            finish_reason=FinishReason.ABORT,
            token_ids=reader.token_ids[:],
            logprobs=reader.logprobs[:] if request.sampling.logprobs else None,
        )

    def finish(self, sample_id: SampleId) -> None:
        """Forget the sample's encoded chains and give its slot to the next stranger."""
        self._encodings.drop(sample_id)
        self._slots.forget(sample_id)

    def _body(self, request: GenerateRequest, token_ids: array[int], slot: int) -> bytes:
        options = _OPTIONS | _sampling_fields(request.sampling) | {"id_slot": slot}
        if request.json_schema is not None:
            options["json_schema"] = request.json_schema
        ids = self._encodings.ids(request, token_ids)
        return b"".join((b'{"prompt":[', ids, b"],", msgspec.json.encode(options)[1:]))

    async def _read_context(self) -> None:
        """Ask what a slot really holds: the server lowers a context that the model lacks."""
        assert self._client is not None
        answer = await self._client.get("/slots", _read_slots)
        self._capabilities = msgspec.structs.replace(
            self._capabilities, max_context=min(slot.n_ctx for slot in answer.value)
        )


def start_server(config: LlamaCppConfig, port: int) -> xllamacpp.Server:
    """Start a server in this process; it ends with the object. Blocks for about a second, or while
    the model is prepared. Port 0 takes a free one. Raises ConfigError.
    """
    try:
        import xllamacpp
    except ImportError as error:
        raise ConfigError(
            "engine llamacpp needs xllamacpp: pip install 'rolloutkit-rl[local]'"
        ) from error
    params = xllamacpp.CommonParams()
    params.model.path = str(served_model(config).path)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = config.threads
    settings = {
        "port": port,
        "n_parallel": config.num_slots,
        "n_ctx": config.num_slots * config.context_tokens,
        "n_batch": _BATCH_TOKENS,
        "n_ubatch": _BATCH_TOKENS,
        "n_threads_http": 2 * config.num_slots + 2,  # a stream holds one of them
        "cache_ram_mib": config.prompt_cache_mib,
        "sse_ping_interval": 1,  # seconds; a closed connection shows when it is written to
        "endpoint_metrics": True,
        "ui": False,
        "verbosity": -1,
    }
    for name, value in settings.items():
        setattr(params, name, value)
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise ConfigError(
            f"engine.model: llama.cpp cannot serve {params.model.path}: {error}"
        ) from error


def _given_model(config: LlamaCppConfig) -> ModelFile:
    return checked_model(Path(config.model), config.sha256) if config.model else bundled_model()


def served_model(config: LlamaCppConfig) -> ModelFile:
    """The prepared copy of the configured model. Blocks; raises ConfigError."""
    source = _given_model(config)
    quantization = config.quantization
    if quantization is Quantization.AUTO:
        quantization = Quantization.AS_IS if config.model else Quantization.Q8_0
    cache_dir = Path(config.cache_dir) if config.cache_dir else default_cache_dir()
    return prepared_model(source, quantization, cache_dir)


_OPTIONS: dict[str, Any] = {
    "stream": True,
    "return_progress": True,
    "return_tokens": True,
    "cache_prompt": True,
    "n_probs": 1,  # brings the sampled token's log-prob, whatever its rank
    "post_sampling_probs": False,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "samplers": ["top_k", "top_p", "min_p", "temperature"],
    "response_fields": ["stop_type", "tokens_predicted", "timings"],  # of the last event
}


def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    """All are explicit: the server's own defaults (top_k 40, top_p 0.95, min_p 0.05) distort."""
    fields: dict[str, Any] = {
        "n_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed % 2**32
    return fields


def _check_schema(schema: dict[str, Any] | None) -> None:
    """Literals must be ASCII: a character that has no token of its own could never be sampled."""
    if schema is not None and not msgspec.json.encode(schema).isascii():
        raise RequestError("llamacpp constrains to schemas of ASCII characters only")


class _Probability(msgspec.Struct, frozen=True):
    id: int
    logprob: float


class _Event(msgspec.Struct, frozen=True):
    """A token, a step of the prefill (its `tokens` mean nothing), or the end (with `stop_type`)."""

    completion_probabilities: list[_Probability] = []
    tokens_predicted: int = 0
    timings: Timings = Timings()
    stop_type: str = ""
    error: dict[str, Any] | None = None


class _Slot(msgspec.Struct, frozen=True):
    n_ctx: int


class _Stream(NamedTuple):
    token_ids: array[int]
    logprobs: array[float]
    finish_reason: FinishReason
    timings: Timings

    def drop_foreign_end(self, stop_token_ids: tuple[int, ...]) -> None:
        """Drop an end token that is not the chat's: a grammar's end admits any, likely or not."""
        is_ended = self.finish_reason is FinishReason.STOP
        if is_ended and stop_token_ids and self.token_ids[-1] not in stop_token_ids:
            del self.token_ids[-1], self.logprobs[-1]


class _Reader:
    """Reads the stream of one completion; each try starts from nothing."""

    def __init__(self, stop_token_ids: tuple[int, ...], on_progress: OnProgress | None) -> None:
        self._stop_token_ids = stop_token_ids
        self._on_progress = on_progress
        self.token_ids = array("i")
        self.logprobs = array("f")

    async def read(self, response: aiohttp.ClientResponse) -> _Stream:
        token_ids, logprobs = self.token_ids, self.logprobs = array("i"), array("f")
        is_stopped = False
        async for line in sse_events(response):
            event = _decode_event(line)
            if event.error is not None:
                raise _error_of(str(response.url), event.error)
            if event.stop_type:
                return _finished(token_ids, logprobs, event)
            if is_stopped:  # by a token at which this model's own vocabulary does not stop
                return _Stream(token_ids, logprobs, FinishReason.STOP, Timings())
            for token in event.completion_probabilities:
                token_ids.append(token.id)
                logprobs.append(token.logprob)
                is_stopped = token.id in self._stop_token_ids
            if self._on_progress is not None:
                self._on_progress(len(token_ids))
        raise aiohttp.ClientPayloadError("the stream ended early")


def _finished(token_ids: array[int], logprobs: array[float], final: _Event) -> _Stream:
    if final.tokens_predicted != len(token_ids):
        raise EngineError(
            f"llama.cpp reported {len(token_ids)} of {final.tokens_predicted} sampled tokens, as "
            "its text ended inside a character"
        )
    is_cut = final.stop_type == "limit"
    return _Stream(
        token_ids, logprobs, FinishReason.LENGTH if is_cut else FinishReason.STOP, final.timings
    )


def _error_of(url: str, error: dict[str, Any]) -> EngineError:
    status, message = int(error.get("code", 500)), str(error.get("message", error))
    if status < 500:
        return refusal(url, status, f"{error.get('type', '')} {message}")
    return EngineError(f"{url} answered {status}: {message[:200]}")


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_slots = msgspec.json.Decoder(list[_Slot]).decode


async def _read_slots(response: aiohttp.ClientResponse) -> list[_Slot]:
    return _decode_slots(await response.read())
