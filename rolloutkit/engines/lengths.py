"""What engines without a model say: drawn lengths, and what they remember of contexts."""

from __future__ import annotations

import math
from array import array
from hashlib import blake2b
from statistics import NormalDist
from typing import NamedTuple

from rolloutkit.errors import ContextFullError
from rolloutkit.types import FinishReason, GenerateRequest, SampleId, TokenPrompt


class Length(NamedTuple):
    """Tokens of a completion, and why it ends there."""

    num_tokens: int
    finish_reason: FinishReason


class LengthDraw:
    """Log-normal lengths; the same seed, sample, chain and turn always give the same."""

    def __init__(
        self, *, seed: int, mean_tokens: float, sigma: float, max_context: int | None
    ) -> None:
        # The mean of a log-normal is exp(mu + sigma^2 / 2).
        self._mu = math.log(mean_tokens) - sigma**2 / 2
        self._sigma = sigma
        self._prefix = f"{seed}/"
        self._max_context = max_context

    def draw(self, request: GenerateRequest, prompt_tokens: int) -> Length:
        """The length of a request's completion. Raises ContextFullError where none has room."""
        key = f"{self._prefix}{request.sample_id}/{request.chain_index}/{request.turn}"
        draw = int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "little")
        normal = _NORMAL.inv_cdf((draw + 0.5) / 2**32)
        wanted = max(1, round(math.exp(self._mu + self._sigma * normal)))
        room = request.sampling.max_tokens
        if self._max_context is not None:
            room = min(room, self._max_context - prompt_tokens)
            if room < 1:
                raise ContextFullError(
                    f"{prompt_tokens} prompt tokens fill the context of {self._max_context}"
                )
        if wanted <= room:
            return Length(wanted, FinishReason.STOP)
        return Length(room, FinishReason.LENGTH)


_NORMAL = NormalDist()


def said(length: Length, prompt: TokenPrompt, token_id: int) -> array[int]:
    """A completion of that length: one token over and over, ended by a stop token if it stops."""
    token_ids = array("i", (token_id,)) * length.num_tokens
    if length.finish_reason is FinishReason.STOP and prompt.stop_token_ids:
        token_ids[-1] = prompt.stop_token_ids[0]
    return token_ids


class KnownContexts:
    """How long each sample's last context was; a sample has one chain in mind at a time."""

    def __init__(self) -> None:
        self._known: dict[SampleId, tuple[tuple[int, int], int]] = {}

    def cached_tokens(self, request: GenerateRequest, prompt_tokens: int) -> int:
        """Tokens of the prompt that an earlier call of the chain had."""
        known = self._known.get(request.sample_id)
        if known is None or known[0] != (request.attempt, request.chain_index):
            return 0
        return min(known[1], prompt_tokens)

    def remember(self, request: GenerateRequest, num_tokens: int) -> None:
        """The request's chain ended so long."""
        self._known[request.sample_id] = ((request.attempt, request.chain_index), num_tokens)

    def forget(self, sample_id: SampleId) -> None:
        self._known.pop(sample_id, None)
