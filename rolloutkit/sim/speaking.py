"""The reference engine for samples that speak in tokens: recorded sizes are replaced by drawn ones.

Any environment can so run on simulated workers (`engine=sim_reference`). What the tokens say is
nothing; how many there are follows from the seed.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec

from rolloutkit.engines.lengths import KnownContexts, LengthDraw, said
from rolloutkit.errors import RequestError
from rolloutkit.protocols import Capabilities, OnProgress, WorkerLoad
from rolloutkit.sim.reference import Model, ReferenceConfig, ReferenceEngine
from rolloutkit.sim.station import Station
from rolloutkit.sim.worker import Sizes
from rolloutkit.types import Completion, GenerateRequest, SampleId, TokenPrompt


class SpeakingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which model on how many workers, and how long its completions are."""

    model: Model = "qwen3-32b"
    num_workers: Annotated[int, msgspec.Meta(ge=1)] = 1
    memory_scale: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of a worker's cache memory
    max_running: Annotated[int, msgspec.Meta(ge=1)] = 256  # requests of one worker
    progress_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None  # None = no reports
    seed: int = 0
    mean_tokens: Annotated[float, msgspec.Meta(gt=0)] = 200.0  # of a completion
    sigma: Annotated[float, msgspec.Meta(ge=0)] = 0.8  # of the logarithm of the length
    max_context: Annotated[int, msgspec.Meta(ge=1)] = 131_072
    token_id: Annotated[int, msgspec.Meta(ge=0)] = 100  # every sampled token


class SpeakingEngine:
    """A `ReferenceEngine` that takes token ids, counts them, and answers with token ids."""

    Config = SpeakingConfig

    def __init__(self, config: SpeakingConfig) -> None:
        reference = ReferenceConfig(
            model=config.model,
            num_workers=config.num_workers,
            memory_scale=config.memory_scale,
            max_running=config.max_running,
            progress_seconds=config.progress_seconds,
        )
        self._token_id = config.token_id
        self._lengths = LengthDraw(
            seed=config.seed,
            mean_tokens=config.mean_tokens,
            sigma=config.sigma,
            max_context=config.max_context,
        )
        self._contexts = KnownContexts()
        self._engine = ReferenceEngine(reference, self._sizes_of)
        self._capabilities = Capabilities(
            token_ids=True,
            logprobs=True,
            cached_tokens=True,
            priority=True,
            progress=config.progress_seconds is not None,
            max_context=config.max_context,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def make_workers(self) -> Sequence[SpeakingWorker]:
        """The workers, for a router."""
        return [SpeakingWorker(self, station) for station in self._engine.make_workers()]

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return sum(worker.num_running for worker in self._engine.workers)

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait for the worker. Cancelling frees its memory at once."""
        return await self.speak(self._engine.generate, request, on_progress)

    async def speak(
        self,
        generate: Callable[[GenerateRequest, OnProgress | None], Awaitable[Completion]],
        request: GenerateRequest,
        on_progress: OnProgress | None,
    ) -> Completion:
        """The completion of a worker, with token ids in it."""
        prompt = _tokens_of(request)
        if on_progress is not None:
            on_progress(0)
        completion = await generate(request, on_progress)
        context = len(prompt.token_ids)
        length = self._lengths.draw(request, context)
        self._contexts.remember(request, context + length.num_tokens)
        if on_progress is not None:
            on_progress(length.num_tokens)
        return msgspec.structs.replace(
            completion,
            finish_reason=length.finish_reason,
            token_ids=said(length, prompt, self._token_id),
            logprobs=array("f", (-1.0,)) * length.num_tokens,
        )

    def finish(self, sample_id: SampleId) -> None:
        """Drop what is kept of the sample."""
        self._contexts.forget(sample_id)
        self._engine.finish(sample_id)

    def _sizes_of(self, request: GenerateRequest) -> Sizes:
        context = len(_tokens_of(request).token_ids)
        new = context - self._contexts.cached_tokens(request, context)
        return Sizes(context, max(1, new), self._lengths.draw(request, context).num_tokens)


class SpeakingWorker:
    """One worker of a `SpeakingEngine`; `station` is there to have faults."""

    def __init__(self, engine: SpeakingEngine, station: Station) -> None:
        self._engine = engine
        self.station = station

    @property
    def name(self) -> str:
        return self.station.name

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait for the worker. Cancelling frees its memory at once."""
        return await self._engine.speak(self.station.generate, request, on_progress)

    def finish(self, sample_id: SampleId) -> None:
        """Drop what is kept of the sample."""
        self._engine.finish(sample_id)

    async def probe(self) -> WorkerLoad:
        """The station's load."""
        return await self.station.probe()


def _tokens_of(request: GenerateRequest) -> TokenPrompt:
    if isinstance(request.prompt, TokenPrompt):
        return request.prompt
    raise RequestError("the reference engine takes token ids, not messages")
