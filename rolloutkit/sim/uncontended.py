"""An engine that serves everybody at once at fixed speeds: only actions are left to queue for."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.sim.reference import SizesOf
from rolloutkit.types import Completion, FinishReason, GenerateRequest, SampleId


class UncontendedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speeds of one call; those of the policy study by default."""

    prefill_tokens_per_second: Annotated[float, msgspec.Meta(gt=0)] = 8_000.0
    decode_tokens_per_second: Annotated[float, msgspec.Meta(gt=0)] = 60.0


class UncontendedEngine:
    """Every call takes as long as it takes alone, and nothing is ever forgotten."""

    Config = UncontendedConfig

    def __init__(self, config: UncontendedConfig, sizes_of: SizesOf) -> None:
        self._config = config
        self._sizes_of = sizes_of
        self._capabilities = Capabilities(cached_tokens=True)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        del on_progress
        sizes = self._sizes_of(request)
        prefill = sizes.new / self._config.prefill_tokens_per_second
        seconds = prefill + sizes.output / self._config.decode_tokens_per_second
        await asyncio.sleep(seconds)
        return Completion(
            finish_reason=FinishReason.LENGTH if sizes.is_cut else FinishReason.STOP,
            prompt_tokens=sizes.context,
            cached_tokens=sizes.context - sizes.new,
            output_tokens=sizes.output,
            queue_seconds=0.0,
            prefill_seconds=prefill,
            service_seconds=seconds,
        )

    def finish(self, sample_id: SampleId) -> None:
        """Nothing is kept."""
