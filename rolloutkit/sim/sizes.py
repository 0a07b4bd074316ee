"""How large a recorded call is when a request asks for less than the recording had."""

from __future__ import annotations

from rolloutkit.sim.worker import Sizes
from rolloutkit.types import GenerateRequest, SamplingParams

UNLIMITED = SamplingParams(max_tokens=2**31 - 1)
"""How a recorded call is sampled: outputs were cut when they were recorded, if at all."""


def asked_for(request: GenerateRequest, context: int, new: int, output: int) -> Sizes:
    """The sizes, cut off at `max_tokens`, and without what a continued turn has said already."""
    continued, max_tokens = request.continued, request.sampling.max_tokens
    left = max(1, output - continued)
    return Sizes(context + continued, new + continued, min(left, max_tokens), left > max_tokens)
