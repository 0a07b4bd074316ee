"""An engine without a model, for virtual time: lengths from a seed, durations from a cost model.

Owns a first-in-first-out queue of `parallelism` servers. It knows nothing of memory or batching;
the reference engine (`sim/reference.py`) does.
"""

from __future__ import annotations

import asyncio
import math
from array import array
from collections import deque
from typing import Annotated

import msgspec

from rolloutkit.clock import now
from rolloutkit.engines.lengths import KnownContexts, LengthDraw, said
from rolloutkit.errors import RequestError
from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.types import ChatPrompt, Completion, GenerateRequest, SampleId

Positive = Annotated[float, msgspec.Meta(gt=0)]


class SimulatedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cost model: log-normal lengths, and tokens per second of one request on one server."""

    seed: int = 0
    mean_tokens: Positive = 200.0
    sigma: Annotated[float, msgspec.Meta(ge=0)] = (
        0.8  # of the logarithm of the length; 0 = constant
    )
    prefill_tokens_per_second: Positive = 10_000.0
    decode_tokens_per_second: Positive = 50.0
    parallelism: Annotated[int, msgspec.Meta(ge=1)] = 64
    max_context: Annotated[int, msgspec.Meta(ge=1)] | None = None
    progress_seconds: Positive = 30.0  # between two calls of `on_progress`; each costs a timer
    token_id: Annotated[int, msgspec.Meta(ge=0)] = 100  # every sampled token


class SimulatedEngine:
    """The same seed, sample, chain and turn give the same length, whatever else runs."""

    def __init__(self, config: SimulatedConfig) -> None:
        self._config = config
        self._lengths = LengthDraw(
            seed=config.seed,
            mean_tokens=config.mean_tokens,
            sigma=config.sigma,
            max_context=config.max_context,
        )
        self._num_free = config.parallelism
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._contexts = KnownContexts()
        self._capabilities = Capabilities(
            token_ids=True,
            logprobs=True,
            progress=True,
            cached_tokens=True,
            max_context=config.max_context,
            parallelism=config.parallelism,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def num_running(self) -> int:
        """Requests that hold a server."""
        return self._config.parallelism - self._num_free

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait as long as the cost model says. Cancelling frees the server at once."""
        if isinstance(request.prompt, ChatPrompt):
            raise RequestError("the simulated engine takes token ids, not messages")
        prompt_tokens = len(request.prompt.token_ids)
        length = self._lengths.draw(request, prompt_tokens)
        num_tokens = length.num_tokens
        cached = self._contexts.cached_tokens(request, prompt_tokens)
        prefill = (prompt_tokens - cached) / self._config.prefill_tokens_per_second
        decode = num_tokens / self._config.decode_tokens_per_second
        asked_at = now()
        if self._num_free:
            self._num_free -= 1
        else:
            await self._wait()
        started_at = now()
        try:
            if on_progress is None:
                await asyncio.sleep(prefill + decode)
            else:
                await self._generate_watched(prefill, decode, num_tokens, on_progress)
        finally:
            self._release()
        self._contexts.remember(request, prompt_tokens + num_tokens)
        return Completion(
            finish_reason=length.finish_reason,
            token_ids=said(length, request.prompt, self._config.token_id),
            logprobs=array("f", (-1.0,)) * num_tokens,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached,
            output_tokens=num_tokens,
            queue_seconds=started_at - asked_at,
            prefill_seconds=prefill,
            service_seconds=prefill + decode,
        )

    def finish(self, sample_id: SampleId) -> None:
        """Drop the sample's cached context."""
        self._contexts.forget(sample_id)

    async def _generate_watched(
        self, prefill: float, decode: float, num_tokens: int, on_progress: OnProgress
    ) -> None:
        num_calls = max(1, math.ceil((prefill + decode) / self._config.progress_seconds))
        step = (prefill + decode) / num_calls
        for call in range(1, num_calls + 1):
            await asyncio.sleep(step)
            decoded = min(1.0, max(0.0, (call * step - prefill) / decode))
            on_progress(int(num_tokens * decoded))

    async def _wait(self) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():  # granted, and cancelled before waking
                self._release()
            raise

    def _release(self) -> None:
        while self._waiters:
            granted = self._waiters.popleft()
            if not granted.done():  # a cancelled waiter stays in the queue until its turn
                granted.set_result(None)
                return
        self._num_free += 1
