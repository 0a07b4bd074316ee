"""SGLang's API on the wire: what requests say, and how answers become completions.

Field names are those of sglang 0.5.23. Events of a stream repeat everything that came before,
unless the server was started with `--incremental-streaming-output`; both are read here. It knows
neither connections nor retries.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp
import msgspec

from rolloutkit.engines.http import refusal, sse_events
from rolloutkit.errors import EngineError, WorkerLost
from rolloutkit.protocols import OnProgress, WorkerLoad
from rolloutkit.types import Completion, FinishReason, GenerateRequest, TokenPrompt, VersionSpan

# A stream that repeats itself says at most so many things, or its bytes grow with the square of the
# completion's length.
_MAX_REPEATS = 16


class ServerInfo(msgspec.Struct, frozen=True):
    """What `GET /server_info` says that matters here."""

    served_model_name: str
    max_req_input_len: int
    max_running_requests: int | None = None
    dp_size: int = 1
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    enable_deterministic_inference: bool = False
    incremental_streaming_output: bool = False
    skip_tokenizer_init: bool = False
    grammar_backend: str | None = None

    @property
    def has_grammar(self) -> bool:
        return self.grammar_backend not in (None, "none")

    def priority(self, priority: float) -> int | None:
        """The priority of a request whose own is larger for the more urgent; None where it is of
        no use.
        """
        if not self.enable_priority_scheduling:
            return None
        return round(-priority if self.schedule_low_priority_values_first else priority)

    def stream_interval(self, interval: int, max_tokens: int) -> int:
        """Tokens between two events."""
        if self.incremental_streaming_output:
            return interval
        return max(interval, max_tokens // _MAX_REPEATS)


class _Loaded(msgspec.Struct, frozen=True):
    """One DP rank."""

    dp_rank: int | None = None
    num_running_reqs: int | None = None
    num_waiting_reqs: int | None = None
    max_total_num_tokens: int | None = None
    total_prefill_uncached_tokens: int = 0
    decode_moments: list[float] | None = None  # the sixth is the number of tokens decoded


class _Loads(msgspec.Struct, frozen=True):
    loads: list[_Loaded]


class _FinishReason(msgspec.Struct, frozen=True):
    type: str
    message: str = ""
    status_code: int | None = None


class _Version(msgspec.Struct, frozen=True):
    version: str
    start: int
    end: int


class _Meta(msgspec.Struct, frozen=True):
    finish_reason: _FinishReason | None = None
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[tuple[float, int, str | None]] | None = None
    weight_versions: list[_Version] | None = None
    queue_time: float | None = None  # these four need the server's --enable-metrics
    forward_entry_time: float | None = None
    prefill_finished_time: float | None = None
    request_finished_ts: float | None = None


class _Error(msgspec.Struct, frozen=True):
    message: str
    code: int = 500


class _Event(msgspec.Struct, frozen=True):
    """A part of a completion, everything so far, or an error."""

    output_ids: list[int] = []
    meta_info: _Meta = _Meta()
    error: _Error | None = None


class _Brief(msgspec.Struct, frozen=True):
    finish_reason: _FinishReason | None = None
    completion_tokens: int = 0


class _Glance(msgspec.Struct, frozen=True):
    """As much of an event as is needed when all of it will be repeated."""

    meta_info: _Brief = _Brief()
    error: _Error | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_glance = msgspec.json.Decoder(_Glance).decode
_decode_info = msgspec.json.Decoder(ServerInfo).decode
_decode_loads = msgspec.json.Decoder(_Loads).decode


def options(request: GenerateRequest, prompt: TokenPrompt, info: ServerInfo) -> dict[str, Any]:
    """The body of a `/generate` request, but for its ids, its name and its streaming."""
    sampling = request.sampling
    parameters: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
    }
    if prompt.stop_token_ids:
        parameters["stop_token_ids"] = prompt.stop_token_ids
    if sampling.seed is not None:
        parameters["sampling_seed"] = sampling.seed
    if request.json_schema is not None:
        parameters["json_schema"] = msgspec.json.encode(request.json_schema).decode()
    fields: dict[str, Any] = {
        "sampling_params": parameters,
        "return_logprob": sampling.logprobs,
        "routing_key": str(request.sample_id),
    }
    priority = info.priority(request.priority)
    if priority is not None:
        fields["priority"] = priority
    return fields


class AnswerReader:
    """Reads one streamed answer; each try starts from nothing."""

    def __init__(self, on_progress: OnProgress | None, *, is_incremental: bool) -> None:
        self._on_progress = on_progress
        self._is_incremental = is_incremental

    async def read(self, response: aiohttp.ClientResponse) -> Answer:
        """Raises RequestError or ContextFullError for what the server refuses in mid-stream."""
        answer = Answer()
        async for line in sse_events(response):
            if self._is_incremental:
                event = _decode_event(line)
                answer.add(event)
                count, error, reason = (
                    len(answer.token_ids),
                    event.error,
                    event.meta_info.finish_reason,
                )
            else:
                glance = _decode_glance(line)
                reason, error = glance.meta_info.finish_reason, glance.error
                count = glance.meta_info.completion_tokens
                if reason is not None:
                    answer.add(_decode_event(line))
            _check(str(response.url), error, reason)
            if self._on_progress is not None and count:
                self._on_progress(count)
        if answer.finish_reason is None:
            raise aiohttp.ClientPayloadError("the answer ended early")
        return answer


def _check(url: str, error: _Error | None, reason: _FinishReason | None) -> None:
    """Raise for an error event, and for a request that the server gave up rather than we."""
    if error is None and reason is not None and reason.type == "abort" and reason.status_code:
        error = _Error(reason.message, reason.status_code)
    if error is None:
        return
    if error.code in (502, 503):
        raise WorkerLost(f"{url} answered {error.code}: {error.message[:200]}")
    if error.code >= 500 or error.code == 429:
        raise EngineError(f"{url} answered {error.code}: {error.message[:200]}")
    raise refusal(url, error.code, error.message)


class Answer:
    """What one request brought."""

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.logprobs = array("f")
        self._meta = _Meta()

    @property
    def finish_reason(self) -> _FinishReason | None:
        return self._meta.finish_reason

    def add(self, event: _Event) -> None:
        """Append an event's tokens; its other figures are those so far."""
        self._meta = event.meta_info
        self.token_ids.extend(event.output_ids)
        entries = event.meta_info.output_token_logprobs or ()
        self.logprobs.extend(logprob for logprob, _, _ in entries)

    def completion(self, request: GenerateRequest) -> Completion:
        """The completion. Raises EngineError when ids or log-probs of its tokens are missing."""
        meta, count = self._meta, len(self.token_ids)
        if count != meta.completion_tokens:
            raise EngineError(
                f"the server gave the ids of {count} of {meta.completion_tokens} tokens"
            )
        wants_logprobs = request.sampling.logprobs
        if wants_logprobs and len(self.logprobs) != count:
            raise EngineError(f"the server gave {len(self.logprobs)} log-probs of {count} tokens")
        reason = self.finish_reason
        assert reason is not None
        return Completion(
            finish_reason=_FINISH_REASONS.get(reason.type, FinishReason.STOP),
            token_ids=self.token_ids,
            logprobs=self.logprobs if wants_logprobs else None,
            prompt_tokens=meta.prompt_tokens,
            cached_tokens=meta.cached_tokens,
            output_tokens=count,
            versions=_versions(meta.weight_versions or ()),
            constrained=request.json_schema is not None,
            queue_seconds=meta.queue_time,
            prefill_seconds=_between(meta.forward_entry_time, meta.prefill_finished_time),
            service_seconds=_between(meta.forward_entry_time, meta.request_finished_ts),
        )


_FINISH_REASONS = {"length": FinishReason.LENGTH, "abort": FinishReason.ABORT}  # others: stop


def version_number(text: str) -> int | None:
    """The policy version that a server's weight version names; None for one that is not ours."""
    return int(text) if text.isascii() and text.isdigit() else None


def _versions(spans: Sequence[_Version]) -> tuple[VersionSpan, ...]:
    """The spans by number, or () where nobody has numbered the weights."""
    numbers = [version_number(span.version) for span in spans]
    if all(number is None for number in numbers):
        return ()
    return tuple(
        VersionSpan(number or 0, span.start, span.end)
        for number, span in zip(numbers, spans, strict=True)
        if span.end > span.start
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else max(end - start, 0.0)


async def read_server_info(response: aiohttp.ClientResponse) -> ServerInfo:
    """Read the answer to `GET /server_info`."""
    return _decode_info(await response.read())


class LoadReader:
    """Reads the answer to `GET /v1/loads` for one DP rank, or for a server that is one worker.

    The server publishes it at each prefill, when it becomes idle and every 15 decode steps
    (`--load-snapshot-publish-interval`), so that it lags by that much and stands still in a pause.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank

    async def read(self, response: aiohttp.ClientResponse) -> WorkerLoad:
        loads = _decode_loads(await response.read()).loads
        if self._rank is not None:
            loads = [load for load in loads if load.dp_rank == self._rank]
        if not loads:
            raise EngineError(f"{response.url} says nothing of DP rank {self._rank or 0}")
        return WorkerLoad(
            num_running=_total(load.num_running_reqs for load in loads),
            num_waiting=_total(load.num_waiting_reqs for load in loads),
            num_generated=sum(_work(load) for load in loads),
            capacity_tokens=_total(load.max_total_num_tokens for load in loads),
        )


def _work(load: _Loaded) -> int:
    """Tokens prefilled and decoded: a long prefill is progress too."""
    moments = load.decode_moments
    decoded = moments[5] if moments is not None and len(moments) > 5 else 0.0
    return load.total_prefill_uncached_tokens + int(decoded)


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
