"""What simulated requests say, as token ids: the same seed, the same tokens, whatever else runs.

Prefixes are found by their ids, so that different samples must say different things, and the same
sample the same things again. A stream is an endless string of ids; position p of stream k is a hash
of both.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple, Protocol

import numpy as np

from rolloutkit.engines.lengths import LengthDraw
from rolloutkit.errors import RequestError
from rolloutkit.sim.sglang.node import TOKEN_BYTES
from rolloutkit.sim.worker import Sizes
from rolloutkit.types import FinishReason, GenerateRequest, SampleId, TokenPrompt

FIRST_ID = 1_000  # beyond the special tokens of common vocabularies
NUM_IDS = 4_096
_MIX = np.uint64(0x9E3779B97F4A7C15)  # SplitMix64 (Steele, Lea, Flood 2014), as are those below
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Speech(NamedTuple):
    """A request in full: ids of prompt and completion as int32 bytes."""

    tokens: bytes
    num_prompt: int
    num_known: int  # of the prompt, what an earlier call of the chain had
    finish_reason: FinishReason

    @property
    def num_output(self) -> int:
        """Tokens of the completion."""
        return len(self.tokens) // TOKEN_BYTES - self.num_prompt

    @property
    def output(self) -> bytes:
        """Ids of the completion."""
        return self.tokens[self.num_prompt * TOKEN_BYTES :]


class Speaker(Protocol):
    """Knows what each request says."""

    def speak(self, request: GenerateRequest) -> Speech:
        """Called once a request, in the order in which they come."""
        ...

    def forget(self, sample_id: SampleId) -> None:
        """The sample is over."""
        ...


def stream_key(*parts: object) -> int:
    """The key of a stream that belongs to these parts."""
    text = "/".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def stream(key: int, start: int, count: int) -> bytes:
    """`count` ids of a stream from position `start` on."""
    values = np.arange(start, start + count, dtype=np.uint64) * _MIX + np.uint64(key)
    values ^= values >> np.uint64(30)
    values *= _MULTIPLIERS[0]
    values ^= values >> np.uint64(27)
    values *= _MULTIPLIERS[1]
    values ^= values >> np.uint64(31)
    return (values % np.uint64(NUM_IDS) + np.uint64(FIRST_ID)).astype(np.int32).tobytes()


class DrawnSpeaker:
    """Prompts are given; completions have drawn lengths. For samples that speak in token ids.

    Greedy completions are the same for everybody, sampled ones follow `sampling.seed`.
    """

    def __init__(self, lengths: LengthDraw, seed: int) -> None:
        self._lengths = lengths
        self._seed = seed
        self._known: dict[SampleId, tuple[tuple[int, int], int]] = {}

    def speak(self, request: GenerateRequest) -> Speech:
        """Raises RequestError for messages, ContextFullError where nothing more can be said."""
        if not isinstance(request.prompt, TokenPrompt):
            raise RequestError("a simulated SGLang takes token ids, not messages")
        num_prompt = len(request.prompt.token_ids)
        length = self._lengths.draw(request, num_prompt)
        output = stream(self._key(request), num_prompt, length.num_tokens)
        if length.finish_reason is FinishReason.STOP and request.prompt.stop_token_ids:
            stop = np.int32(request.prompt.stop_token_ids[0]).tobytes()
            output = output[:-TOKEN_BYTES] + stop
        chain = (request.attempt, request.chain_index)
        known = self._known.get(request.sample_id)
        num_known = min(known[1], num_prompt) if known and known[0] == chain else 0
        self._known[request.sample_id] = (chain, num_prompt + length.num_tokens)
        tokens = request.prompt.token_ids.tobytes() + output
        return Speech(tokens, num_prompt, num_known, length.finish_reason)

    def forget(self, sample_id: SampleId) -> None:
        """See `Speaker`."""
        self._known.pop(sample_id, None)

    def _key(self, request: GenerateRequest) -> int:
        sampling = request.sampling
        if sampling.temperature == 0:
            return stream_key(self._seed)
        if sampling.seed is not None:
            return stream_key(self._seed, sampling.seed)
        return stream_key(self._seed, request.request_id)


class RecordedSpeaker:
    """Calls have recorded sizes: a prompt keeps what is not new of the call before it.

    Contexts need not grow: what was rewritten is new. The first `shared_tokens` of the first prompt
    are the same for all samples of a task.
    """

    def __init__(self, sizes_of: Callable[[GenerateRequest], Sizes], shared_tokens: int) -> None:
        self._sizes_of = sizes_of
        self._shared_tokens = shared_tokens
        self._last: dict[SampleId, dict[tuple[int, int], bytes]] = {}

    def speak(self, request: GenerateRequest) -> Speech:
        """See `Speaker`."""
        sizes = self._sizes_of(request)
        chains = self._last.setdefault(request.sample_id, {})
        chain = (request.attempt, request.chain_index)
        last = chains.get(chain)
        if last is None:
            shared = min(self._shared_tokens, sizes.context)
            kept = stream(stream_key(request.sample_id.task_id), 0, shared)
        else:
            kept = last[: (sizes.context - sizes.new) * TOKEN_BYTES]
        num_kept = len(kept) // TOKEN_BYTES
        fresh = stream(
            stream_key(request.request_id),
            num_kept,
            max(0, sizes.context - num_kept) + sizes.output,
        )
        tokens = chains[chain] = kept + fresh
        return Speech(tokens, sizes.context, sizes.context - sizes.new, FinishReason.STOP)

    def forget(self, sample_id: SampleId) -> None:
        """See `Speaker`."""
        self._last.pop(sample_id, None)
