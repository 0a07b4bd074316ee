"""An engine whose turns end at a cap: against the output that runs away and keeps a batch waiting.

The cap is fixed, or follows the outputs of the run. A turn that it cuts off says so
(`FinishReason.CAPPED`), since it is not what the model would have said.
"""

from __future__ import annotations

import math

import msgspec

from rolloutkit.protocols import Capabilities, Engine, OnProgress
from rolloutkit.tail.bounds import AdaptiveBound
from rolloutkit.tail.settings import OutputCapSettings
from rolloutkit.types import Completion, FinishReason, GenerateRequest, SampleId


class OutputCap:
    """How many tokens a turn may have, from those that turns had. Pure."""

    def __init__(self, settings: OutputCapSettings) -> None:
        self._fixed = math.inf if settings.tokens is None else settings.tokens
        self._bound = None
        if settings.adaptive:
            self._bound = AdaptiveBound(
                quantile=settings.quantile,
                factor=settings.factor,
                floor=settings.floor_tokens,
                until_known=math.inf,
            )

    def tokens(self) -> int | None:
        """The cap; None while there is none."""
        cap = self._fixed if self._bound is None else min(self._fixed, self._bound.value())
        return None if cap == math.inf else int(cap)

    def observe(self, num_tokens: int, *, is_cut: bool) -> None:
        """A turn had so many tokens; `is_cut` says that the cap ended it."""
        if self._bound is not None:
            self._bound.observe(num_tokens, was_cut=is_cut)


class CappedEngine:
    """Wraps an engine; everything but `max_tokens` and the finish reason passes through."""

    def __init__(self, engine: Engine, cap: OutputCap) -> None:
        self._engine = engine
        self._cap = cap

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """See `Engine.generate`."""
        cap, sampling = self._cap.tokens(), request.sampling
        is_binding = cap is not None and cap < sampling.max_tokens
        if cap is not None and is_binding:
            capped = msgspec.structs.replace(sampling, max_tokens=cap)
            request = msgspec.structs.replace(request, sampling=capped)
        completion = await self._engine.generate(request, on_progress)
        is_cut = completion.finish_reason is FinishReason.LENGTH
        if completion.num_tokens is not None:
            self._cap.observe(completion.num_tokens, is_cut=is_cut and is_binding)
        if is_cut and is_binding:
            return msgspec.structs.replace(completion, finish_reason=FinishReason.CAPPED)
        return completion

    def finish(self, sample_id: SampleId) -> None:
        self._engine.finish(sample_id)
