"""How long the steps of a worker take: decode of a batch, prefill of a chunk.

A decode step reads weights, caches and states at the rates that kernels reach, and never takes less
than its launches; a prefill chunk multiplies. Formulas and constants: docs/resources.md, "Step
times"; they follow kernel tables measured on H100 and H200 (aiconfigurator-core 0.12, SGLang 0.5.14
and 0.5.16) and are within about 15 % of the whole-step figures there, up to 30 % for prefill of
mixtures of experts. `calibrated` puts what an engine reports in their place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.resources.hardware import Gpu
from rolloutkit.resources.layers import Layer
from rolloutkit.resources.model_spec import Deployment, ModelSpec

# Shares of the peak that kernels reach (tables named above, H200).
WEIGHT_READ = 0.81  # GEMM 8192 squared, one row
CACHE_READ = 0.86  # saturated attention decode
STATE_READ = 0.73  # KDA and Gated DeltaNet decode: 3.4 to 3.9 of 4.8 TB/s
DENSE_FLOPS = 0.70  # between 0.68 (256 rows) and 0.79 (4,096 rows)
DENSE_FP8_FLOPS = 0.55  # 0.54 to 0.69
EXPERT_FLOPS = 0.25  # grouped GEMM; from whole-step figures of Qwen3.5-35B-A3B
ATTENTION_FLOPS = 0.58  # FlashAttention 3 prefill
LAYER_SECONDS = 80e-6  # launches and latency of a layer's decode: 60 to 85 us
CHUNK_LAYER_SECONDS = 0.15e-3  # the same of a prefill chunk
REDUCE_SECONDS = 5e-6  # latency of an all-reduce over two GPUs
LINK_RATE = 0.65  # of the link's peak, all-reduce of large tensors
SCAN_SECONDS = 0.026e-6  # of linear attention, a token and layer: KDA prefill at 12, 24, 96 heads
SCAN_HEAD_SECONDS = 0.0037e-6  # and for each head on the GPU


class StepTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker: a tensor-parallel group that moves in lock-step. Bytes are per GPU.

    Times in seconds. `context_tokens` counts those of all running requests together.
    """

    floor_seconds: float  # of a decode step
    weight_seconds: float  # to read the weights that every token reads
    expert_seconds: float = 0.0  # to read all routed experts
    expert_share: float = 0.0  # of them that one token chooses
    ranks: int = 1  # attention groups whose tokens share a step's experts
    kv_bytes_per_token: float
    cache_bytes_per_second: float
    state_seconds: float = 0.0  # to read and write one state
    reduce_seconds: float = 0.0  # of all layers' all-reduces, latency
    reduce_token_seconds: float = 0.0  # and for each token
    chunk_seconds: float  # launches of a prefill chunk
    token_seconds: float  # products, a token of a chunk
    scan_seconds: float = 0.0  # linear attention, a token of a chunk
    pair_seconds: float  # attention, a pair of query and key
    decode_scale: float = 1.0  # measured / predicted
    prefill_scale: float = 1.0

    def weights_read_seconds(self, num_tokens: float) -> float:
        """To read the weights for a step of so many tokens; they share the experts they choose."""
        covered = 1.0 - (1.0 - self.expert_share) ** (num_tokens * self.ranks)
        return self.weight_seconds + self.expert_seconds * covered

    def decode(self, num_running: float, context_tokens: float) -> float:
        """One decode step of so many requests."""
        roof = (
            self.weights_read_seconds(num_running)
            + self.kv_bytes_per_token * context_tokens / self.cache_bytes_per_second
            + num_running * self.state_seconds
            + self.reduce_seconds
            + num_running * self.reduce_token_seconds
        )
        return self.decode_scale * math.hypot(self.floor_seconds, roof)

    def prefill(self, num_tokens: float, attended: float) -> float:
        """One chunk; `attended` is the sum of `attended_pairs` over its requests."""
        products = max(self.token_seconds * num_tokens, self.weights_read_seconds(num_tokens))
        others = (self.scan_seconds + self.reduce_token_seconds) * num_tokens
        return self.prefill_scale * (
            self.chunk_seconds
            + products
            + others
            + self.reduce_seconds
            + self.pair_seconds * attended
        )

    def prefill_prompt(self, new_tokens: float, context_tokens: float, chunk: int) -> float:
        """The new tokens of a prompt that ends at `context_tokens`, chunk by chunk, alone."""
        seconds, done = 0.0, context_tokens - new_tokens
        while context_tokens - done > 1e-9:
            size = min(chunk, context_tokens - done)
            done += size
            seconds += self.prefill(size, attended_pairs(size, done))
        return seconds

    def prefill_share(self, new_tokens: float, context_tokens: float, chunk: int) -> float:
        """The same where other prompts fill the chunk up: its fixed costs are shared."""
        pairs = attended_pairs(new_tokens, context_tokens)
        per_token = self.prefill(chunk, 0.0) / chunk
        return new_tokens * per_token + self.prefill_scale * self.pair_seconds * pairs


def attended_pairs(num_tokens: float, context_tokens: float) -> float:
    """Pairs of query and key in a chunk that ends at `context_tokens`: attention's triangle."""
    return num_tokens * (context_tokens - num_tokens / 2)


def step_time(spec: ModelSpec, deployment: Deployment, gpu: Gpu) -> StepTime:
    """The step times of one worker by the formulas. Raises ConfigError where it cannot be split."""
    spec.check(deployment)
    tp, attention_tp = deployment.tp, deployment.attention_tp
    shared_size, expert_size = spec.weight_sizes(deployment)
    reads = gpu.bytes_per_second * WEIGHT_READ
    mixers = sum(
        part.num_parameters
        for layer in spec.layers
        for part in (layer.attention, layer.recurrence)
        if part is not None
    )
    dense = mixers / attention_tp + (spec.num_shared_parameters - mixers) / tp
    experts = spec.num_routed / tp
    share = spec.experts_per_token / spec.num_experts if spec.num_experts else 0.0
    reduces = 2 * len(spec.layers) if tp > 1 else 0
    link = gpu.link_bytes_per_second * LINK_RATE
    ring = 2 * (tp - 1) / tp * spec.hidden_size * 2.0 / link  # bf16 activations
    dense_flops = _flops(gpu, shared_size)
    expert_flops = (gpu.fp8_flops if expert_size <= 1 and gpu.fp8_flops else gpu.flops) * (
        EXPERT_FLOPS
    )
    return StepTime(
        floor_seconds=len(spec.layers) * LAYER_SECONDS,
        weight_seconds=dense * shared_size / reads,
        expert_seconds=experts * expert_size / reads,
        expert_share=share,
        ranks=deployment.attention_dp,
        kv_bytes_per_token=spec.kv_bytes_per_token(deployment),
        cache_bytes_per_second=gpu.bytes_per_second * CACHE_READ,
        state_seconds=2
        * spec.state_bytes_per_sequence(deployment)
        / (gpu.bytes_per_second * STATE_READ)
        + spec.window_bytes_per_sequence(deployment) / (gpu.bytes_per_second * CACHE_READ),
        reduce_seconds=reduces * REDUCE_SECONDS * math.log2(tp) if tp > 1 else 0.0,
        reduce_token_seconds=reduces * ring,
        chunk_seconds=len(spec.layers) * CHUNK_LAYER_SECONDS,
        token_seconds=2 * dense / dense_flops + 2 * share * experts / expert_flops,
        scan_seconds=sum(_scan_seconds(layer, attention_tp) for layer in spec.layers),
        pair_seconds=sum(
            layer.attention.flops_per_pair(attention_tp)
            for layer in spec.layers
            if layer.attention is not None and layer.attention.window is None
        )
        / (gpu.flops * ATTENTION_FLOPS),
    )


def _flops(gpu: Gpu, size: float) -> float:
    if size <= 1 and gpu.fp8_flops is not None:
        return gpu.fp8_flops * DENSE_FP8_FLOPS
    return gpu.flops * DENSE_FLOPS


def _scan_seconds(layer: Layer, tp: int) -> float:
    if layer.recurrence is None:
        return 0.0
    return SCAN_SECONDS + SCAN_HEAD_SECONDS * layer.recurrence.num_heads / tp


class DecodeMoments(NamedTuple):
    """SGLang's `decode_moments` of `/v1/loads`: sums over decode steps of b requests and t us."""

    steps: float
    requests: float  # sum of b
    micros: float  # sum of t
    requests_squared: float
    requests_micros: float
    generated: float = 0.0


class Line(NamedTuple):
    """Seconds of a decode step: `base + per_request * b`."""

    base: float
    per_request: float


def fit_line(moments: DecodeMoments) -> Line | None:
    """Least squares over the steps; None where they do not tell two numbers apart."""
    n, b, t, bb, bt, _ = moments
    spread = n * bb - b * b
    if n < 2 or spread <= 1e-9 * n * bb:
        return None
    slope = (n * bt - b * t) / spread
    return Line((t - slope * b) / n * 1e-6, slope * 1e-6)


def calibrated(
    step: StepTime,
    *,
    decode: DecodeMoments | None = None,
    context_tokens: float = 0.0,
    prefill_tokens: float = 0.0,
    prefill_seconds: float = 0.0,
    chunk: int = 8_192,
) -> StepTime:
    """The step times scaled to what the engine reports; what it does not report stays.

    `context_tokens` is the mean context of a running request; `prefill_seconds` the time spent on
    `prefill_tokens` (SGLang: `total_prefill_busy_us`, `total_prefill_uncached_tokens`).
    Raises ConfigError for reports that cannot be.
    """
    changes: dict[str, float] = {}
    if decode is not None and decode.steps > 0:
        mean = decode.requests / decode.steps
        if mean <= 0 or decode.micros <= 0:
            raise ConfigError(
                f"decode moments: {tuple(decode)} hold no request or no time: give later ones"
            )
        plain = msgspec.structs.replace(step, decode_scale=1.0)
        predicted = plain.decode(mean, mean * context_tokens)
        changes["decode_scale"] = decode.micros * 1e-6 / decode.steps / predicted
    if prefill_tokens > 0 and prefill_seconds > 0:
        plain = msgspec.structs.replace(step, prefill_scale=1.0)
        predicted = plain.prefill_share(prefill_tokens, prefill_tokens, chunk)
        if context_tokens:
            pairs = prefill_tokens * context_tokens
            predicted = prefill_tokens * plain.prefill(chunk, 0.0) / chunk
            predicted += plain.pair_seconds * pairs
        changes["prefill_scale"] = prefill_seconds / predicted
    return msgspec.structs.replace(step, **changes)
