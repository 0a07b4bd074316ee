"""An engine that issues a silent call again beside itself, and keeps the first to show life.

Which of the two is kept is decided by the next token, never by the end: who finishes first on fresh
samples is who says less, and such samples must not train a model. Where the engine can go on from
what it has said (`CanContinue`), the re-issue does: its prompt is the chain and the tokens
received, under a seed of its own, so that the completion is one draw from the model. Elsewhere it
starts anew with the same seed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.protocols import CanContinue, Capabilities, Engine, OnProgress
from rolloutkit.tail.hedging import Hedge, HedgeOutcome, Hedging, Stalls
from rolloutkit.tail.watched import Settled, Watched
from rolloutkit.types import (
    ChatPrompt,
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    TokenPrompt,
    VersionSpan,
)

MODEL_CALL = "model_call"
"""The kind of a hedged model call."""

NEEDS_PROGRESS = (
    "tail.hedge.model_calls: this engine reports no progress, so that a long answer would pass for "
    "a stall: use one that does (llamacpp, a streaming server, simulated, sim_reference with "
    "engine.progress_seconds), or turn it off"
)

_SEED_STEP = 0x9E3779B1  # the 32-bit golden ratio: spreads consecutive positions over the seeds


class HedgedEngine:
    """Wraps an engine that reports progress. A turn still gets exactly one completion; `on_hedge`
    hears of each re-issue when it is settled, and must not raise.

    Needs a run, in whose job group the re-issue runs. Raises ConfigError for an engine without
    progress: a long answer would pass for a stall.
    """

    def __init__(self, engine: Engine, hedging: Hedging, on_hedge: Callable[[Hedge], None]) -> None:
        if not engine.capabilities.progress:
            raise ConfigError(NEEDS_PROGRESS)
        self._engine = engine
        self._stalls = hedging.of(MODEL_CALL)
        self._on_hedge = on_hedge

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """See `Engine.generate`. Progress is told of whichever call is ahead."""
        return await _Call(self._engine, self._stalls, request, on_progress, self._on_hedge).run()

    def finish(self, sample_id: SampleId) -> None:
        self._engine.finish(sample_id)


class _Call:
    """One model call and its re-issues."""

    __slots__ = (
        "_engine",
        "_num_reissues",
        "_num_said_again",
        "_on_hedge",
        "_on_progress",
        "_prompt_tokens",
        "_received",
        "_request",
        "_watched",
    )

    def __init__(
        self,
        engine: Engine,
        stalls: Stalls,
        request: GenerateRequest,
        on_progress: OnProgress | None,
        on_hedge: Callable[[Hedge], None],
    ) -> None:
        self._engine = engine
        self._request = request
        self._on_progress = on_progress
        self._on_hedge = on_hedge
        self._watched: Watched[Completion] = Watched(stalls, self._reissue, self._on_settled)
        self._num_reissues = 0
        self._received = _NOTHING  # what the last re-issue goes on from
        self._num_said_again = 0  # tokens that it has been heard to generate
        self._prompt_tokens: int | None = None  # that it reads

    async def run(self) -> Completion:
        return await self._watched.run(self._engine.generate(self._request, self._heard_first))

    def _heard_first(self, num_tokens: int) -> None:
        if self._watched.heard_first(num_tokens) and self._on_progress is not None:
            self._on_progress(num_tokens)

    async def _reissue(self) -> Completion:
        number = self._num_reissues = self._num_reissues + 1
        received = self._received = self._received_so_far()
        num_received = received.num_tokens or 0
        self._num_said_again = 0
        request = _again(self._request, number, received)
        prompt = request.prompt
        self._prompt_tokens = len(prompt.token_ids) if isinstance(prompt, TokenPrompt) else None
        if _is_whole(self._request, received):  # only its end was not heard of
            return _whole(self._request, received)

        def heard(num_tokens: int) -> None:
            if number != self._num_reissues or num_tokens <= self._num_said_again:
                return
            self._num_said_again = num_tokens
            self._watched.heard_reissue()
            if self._on_progress is not None:
                self._on_progress(num_received + num_tokens)

        return _joined(received, await self._engine.generate(request, heard))

    def _received_so_far(self) -> Completion:
        """What a re-issue may go on from. A grammar cannot be entered in its midst."""
        if self._request.json_schema is not None or not isinstance(self._engine, CanContinue):
            return _NOTHING
        return self._engine.received(self._request) or _NOTHING

    def _on_settled(self, settled: Settled) -> None:
        request = self._request
        is_second = settled.outcome is HedgeOutcome.REISSUE
        num_received = self._received.num_tokens or 0
        lost = self._watched.num_tokens - num_received if is_second else self._num_said_again
        self._on_hedge(
            Hedge(
                sample_id=request.sample_id,
                attempt=request.attempt,
                turn=request.turn,
                chain=request.chain_index,
                kind=MODEL_CALL,
                stalled_seconds=settled.stalled_seconds,
                seconds=settled.seconds,
                outcome=settled.outcome,
                received_tokens=num_received,
                prompt_tokens=self._prompt_tokens,
                lost_tokens=max(0, lost),
            )
        )


_NOTHING = Completion(finish_reason=FinishReason.ABORT)


def _again(request: GenerateRequest, number: int, received: Completion) -> GenerateRequest:
    """The same request once more: from the start with the same seed, or from what was received.

    A continuation draws under a seed of its own: the old one would repeat the random numbers that
    the received tokens were drawn with.
    """
    count = received.num_tokens or 0
    prompt, sampling = request.prompt, request.sampling
    if count:
        if isinstance(prompt, TokenPrompt):
            token_ids = prompt.token_ids + array("i", received.token_ids)
            prompt = TokenPrompt(token_ids, prompt.stop_token_ids)
        seed = sampling.seed
        sampling = msgspec.structs.replace(
            sampling,
            max_tokens=max(1, sampling.max_tokens - count),
            seed=None if seed is None else (seed + _SEED_STEP * count) & 0x7FFFFFFF,
        )
    return msgspec.structs.replace(
        request,
        prompt=prompt,
        sampling=sampling,
        reissue=number,
        continued=count,
        avoid_worker=request.worker,
    )


def _is_whole(request: GenerateRequest, received: Completion) -> bool:
    """Whether everything was received but the news that it is the end."""
    return _has_stopped(request, received) or (
        (received.num_tokens or 0) >= request.sampling.max_tokens
    )


def _has_stopped(request: GenerateRequest, received: Completion) -> bool:
    if isinstance(request.prompt, ChatPrompt) or not len(received.token_ids):
        return False
    return received.token_ids[-1] in request.prompt.stop_token_ids


def _whole(request: GenerateRequest, received: Completion) -> Completion:
    has_stopped = _has_stopped(request, received)
    return msgspec.structs.replace(
        received, finish_reason=FinishReason.STOP if has_stopped else FinishReason.LENGTH
    )


def _joined(received: Completion, rest: Completion) -> Completion:
    """One completion of both parts; its times are those of the second alone."""
    count = received.num_tokens or 0
    if not count:
        return rest
    prompt_tokens = None if rest.prompt_tokens is None else rest.prompt_tokens - count
    cached = rest.cached_tokens
    if cached is not None and prompt_tokens is not None:
        cached = min(cached, prompt_tokens)
    return msgspec.structs.replace(
        rest,
        token_ids=array("i", received.token_ids) + array("i", rest.token_ids),
        logprobs=_joined_logprobs(received, rest),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        output_tokens=None if rest.num_tokens is None else count + rest.num_tokens,
        versions=_joined_versions(received, rest, count),
    )


def _joined_logprobs(received: Completion, rest: Completion) -> array[float] | None:
    if received.logprobs is None or rest.logprobs is None:
        return None
    return array("f", received.logprobs) + array("f", rest.logprobs)


def _joined_versions(received: Completion, rest: Completion, count: int) -> tuple[VersionSpan, ...]:
    if not received.versions and not rest.versions:
        return ()
    first = received.versions or (VersionSpan(0, 0, count),)
    second = rest.versions or (VersionSpan(0, 0, rest.num_tokens or 0),)
    shifted = (VersionSpan(one.version, one.start + count, one.end + count) for one in second)
    return (*first, *shifted)
