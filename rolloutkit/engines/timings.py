"""What llama.cpp says of the time that one completion took, in its own and in OpenAI's format."""

from __future__ import annotations

import msgspec


class Timings(msgspec.Struct, frozen=True):
    """Waiting for a slot is not part of it. None = not reported."""

    cache_n: int | None = None  # prompt tokens that were in the cache
    prompt_ms: float | None = None
    predicted_ms: float | None = None

    @property
    def prefill_seconds(self) -> float | None:
        return None if self.prompt_ms is None else self.prompt_ms / 1000

    @property
    def service_seconds(self) -> float | None:
        if self.prompt_ms is None or self.predicted_ms is None:
            return None
        return (self.prompt_ms + self.predicted_ms) / 1000
