"""How long a model works and how much memory it needs: the cost model of the reference engine.

Pure functions of batch and context sizes. The formulas and the constants of the two models are
those of the policy study ("Acceptance scenarios"); they hold for one worker of two GPUs.
"""

from __future__ import annotations

import math

import msgspec

WEIGHTS_BYTES_PER_SECOND = 3.9e12  # of the 4.8e12 that the GPU states, what decode reaches
CONTEXT_BYTES_PER_SECOND = 4.13e12  # attention over both GPUs' shares of the cache
STATE_BYTES_PER_SECOND = 3.5e12
MAX_EXPERT_TOKENS = 4_096  # from here on a prefill chunk reads every weight anyway


class ModelTiming(msgspec.Struct, frozen=True, kw_only=True):
    """One model on one worker. Bytes of weights are per GPU, bytes of memory per worker."""

    kv_bytes_per_token: int
    state_bytes: int = 0  # recurrent state of one sequence
    running_states: int = 0  # states that a running request holds
    memory_bytes: int
    decode_floor_seconds: float  # launches and latency: what an empty step takes
    communication_seconds: float
    dense_bytes: float  # weights that every token reads
    expert_bytes: float = 0.0  # weights of which a token reads `expert_share`
    expert_share: float = 0.0
    prefill_floor_seconds: float  # of a chunk
    prefill_seconds_per_token: float  # compute, hidden behind reading the weights
    prefill_overhead_per_token: float  # what is not hidden
    attention_seconds: float  # per token of a chunk and token of its context
    miss_tokens: int = 0  # recomputed on a prefix hit: states are kept at coarse steps only
    slowness: float = 1.0  # of this worker, as a factor on all its times

    def weights_bytes(self, num_tokens: int) -> float:
        """Bytes that a step of so many tokens reads; tokens share the experts that they choose."""
        read = 1.0 - (1.0 - self.expert_share) ** num_tokens
        return self.dense_bytes + self.expert_bytes * read

    def decode_seconds(self, num_running: int, context_tokens: float) -> float:
        """One decode step of a batch with so many tokens of context in all."""
        roof = (
            self.weights_bytes(num_running) / WEIGHTS_BYTES_PER_SECOND
            + self.kv_bytes_per_token * context_tokens / CONTEXT_BYTES_PER_SECOND
            + 2 * num_running * self.state_bytes / STATE_BYTES_PER_SECOND
            + self.communication_seconds
        )
        return self.slowness * math.hypot(self.decode_floor_seconds, roof)

    def prefill_seconds(self, num_tokens: int, attended: float) -> float:
        """One chunk; `attended` is the sum of `attended_tokens` over its requests."""
        weights = self.weights_bytes(min(num_tokens, MAX_EXPERT_TOKENS)) / WEIGHTS_BYTES_PER_SECOND
        return self.slowness * (
            self.prefill_floor_seconds
            + max(self.prefill_seconds_per_token * num_tokens, weights)
            + self.prefill_overhead_per_token * num_tokens
            + self.attention_seconds * attended
        )

    def prefill_alone_seconds(self, num_new: int, context_tokens: int) -> float:
        """Prefill of a prompt's new tokens in one go, with nothing else to do."""
        return self.prefill_seconds(num_new, attended_tokens(num_new, context_tokens))

    def decode_alone_seconds(self, context_tokens: int, num_tokens: int) -> float:
        """Decoding a whole output, as the only one."""
        return num_tokens * self.decode_seconds(1, context_tokens + num_tokens / 2)

    def running_bytes(self, num_tokens: int) -> int:
        """What a request reserves that will end with so many tokens of context."""
        return self.kv_bytes_per_token * num_tokens + self.running_states * self.state_bytes

    def idle_bytes(self, num_tokens: int) -> int:
        """What the session of a sample between two requests keeps."""
        return self.kv_bytes_per_token * num_tokens + self.state_bytes


def attended_tokens(num_tokens: int, context_tokens: int) -> float:
    """Pairs of tokens in a chunk that ends at `context_tokens`, by attention's triangle."""
    return num_tokens * (context_tokens - num_tokens / 2)


LING_3_FLASH = ModelTiming(  # FP8, tensor parallel 2
    kv_bytes_per_token=8_064,
    state_bytes=round(36.2 * 2**20),
    running_states=4,
    memory_bytes=55_000_000_000,
    decode_floor_seconds=2.9e-3,
    communication_seconds=0.8e-3,
    dense_bytes=0.75e9,
    expert_bytes=61e9,
    expert_share=8 / 256,
    prefill_floor_seconds=12e-3,
    prefill_seconds_per_token=8.5e-6,
    prefill_overhead_per_token=5.2e-6,
    attention_seconds=7 * 4 * 16 * 160 / 574e12,
    miss_tokens=128,
)

QWEN3_32B = ModelTiming(  # bf16, tensor parallel 2
    kv_bytes_per_token=131_072,
    memory_bytes=88_000_000_000,
    decode_floor_seconds=4.5e-3,
    communication_seconds=0.6e-3,
    dense_bytes=32.8e9,
    prefill_floor_seconds=6e-3,
    prefill_seconds_per_token=50e-6,
    prefill_overhead_per_token=3e-6,
    attention_seconds=64 * 4 * 32 * 128 / 574e12,
)

MODELS = {"ling-3.0-flash": LING_3_FLASH, "qwen3-32b": QWEN3_32B}
