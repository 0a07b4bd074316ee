"""What a configuration says of simulated servers: a model on GPUs, and how the server is started.

From the model's bytes and the GPU's memory follow the pools, from both the step times
(`resources`). The flags are those of the real servers; docs/simulation.md explains them.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.resources import (
    Deployment,
    ModelSpec,
    load_gpu,
    load_model,
    step_time,
    vllm_block_tokens,
)
from rolloutkit.resources.model_spec import Dtype
from rolloutkit.resources.pools import decode_graph_batch, default_fraction, pool_bytes
from rolloutkit.sim.sglang.batches import StepTimer
from rolloutkit.sim.sglang.rules import VLLM, Retraction, StateRules, WorkerRules

Count = Annotated[int, msgspec.Meta(ge=1)]
Positive = Annotated[float, msgspec.Meta(gt=0)]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One server, started several times over. None leaves a choice to the server's own rule."""

    server: Literal["sglang", "vllm"] = "sglang"
    model: str = "qwen3-32b"  # a bundled name, or the path of a config.json
    gpu: str = "H200"
    tp: Count = 2
    num_workers: Count = 1
    weights: Dtype | None = None  # None: as the model's configuration says
    memory_bytes: Positive | None = None  # of KV and states, on each GPU; None: what is left
    mem_fraction_static: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None  # with weights
    mamba_full_memory_ratio: Positive = 0.9
    max_mamba_cache_size: Count | None = None  # slots; None: by the ratio
    max_total_tokens: Count | None = None  # of KV; None: what the states leave
    mamba_track_interval: Count = 256
    mamba_max_states_per_path: Count | None = None  # None: any number
    mamba_ssm_dtype: Literal["float32", "bfloat16", "float16"] | None = None  # None: the model's
    page_size: Count | None = None  # None: 1; vLLM: its block
    chunked_prefill_size: Count = 8_192
    max_prefill_tokens: Count = 16_384
    max_running_requests: Count = 256
    max_context: Count = 131_072
    overlap_schedule: bool = True
    priority_scheduling: bool = True
    preemption_threshold: Positive | None = None  # of priorities; None: nothing is preempted
    retraction_policy: Literal["length", "priority"] = "length"
    schedule_conservativeness: Positive = 1.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a configuration, worked out."""

    rules: WorkerRules
    timer: StepTimer
    kv_bytes_per_token: int  # on each GPU, as is what follows
    state_bytes: int
    memory_bytes: float


def server_of(settings: ServerSettings) -> Server:
    """Work the settings out. Blocks. Raises ConfigError for what cannot be started."""
    spec = load_model(settings.model)
    deployment = Deployment(
        tp=settings.tp, state_dtype=settings.mamba_ssm_dtype, weight_dtype=settings.weights
    )
    gpu = load_gpu(settings.gpu)
    timer = step_time(spec, deployment, gpu)
    memory = settings.memory_bytes
    if memory is None:
        fraction = settings.mem_fraction_static
        if fraction is None:
            batch = decode_graph_batch(gpu, settings.tp)
            fraction = default_fraction(gpu, deployment, settings.chunked_prefill_size, batch)
        memory = pool_bytes(spec, deployment, gpu, fraction)
    token = spec.kv_bytes_per_token(deployment)
    if not token:
        raise ConfigError(f"engine.model: {spec.name} keeps no KV cache, which is not simulated")
    state = spec.state_bytes_per_sequence(deployment)
    make = _vllm_rules if settings.server == "vllm" else _sglang_rules
    rules = make(settings, spec, deployment, memory)
    if rules.kv_tokens < 2 * rules.page_tokens + rules.chunked_prefill_tokens:
        raise ConfigError(
            f"engine.memory_bytes: {memory:.3g} hold states and {rules.kv_tokens} tokens of KV, "
            f"less than a prefill of {rules.chunked_prefill_tokens}: give more memory, or set "
            "engine.chunked_prefill_size"
        )
    return Server(
        rules=rules,
        timer=timer,
        kv_bytes_per_token=token,
        state_bytes=state,
        memory_bytes=memory,
    )


def _sglang_rules(
    settings: ServerSettings, spec: ModelSpec, deployment: Deployment, memory: float
) -> WorkerRules:
    """SGLang splits the memory in two for good (`kv_cache_configurator.py`)."""
    page = settings.page_size or 1
    states = None
    max_running = settings.max_running_requests
    state = spec.state_bytes_per_sequence(deployment)
    if state:
        share = settings.mamba_full_memory_ratio / (1 + settings.mamba_full_memory_ratio)
        slots = settings.max_mamba_cache_size or int(memory * share / state) - 1  # one pads
        memory -= (slots + 1) * state
        num_tracking = 2 if settings.overlap_schedule else 1
        max_running = min(max_running, slots // (3 + num_tracking))
        if max_running < 1:
            raise ConfigError(
                f"engine.max_mamba_cache_size: {slots} slots are too few for one running request, "
                f"which needs {3 + num_tracking}: give more memory or more of it to states"
            )
        states = StateRules(
            slots=slots,
            chunk_tokens=spec.state_grid,
            track_tokens=settings.mamba_track_interval,
            num_tracking=num_tracking,
            max_per_path=settings.mamba_max_states_per_path,
        )
    tokens = max(1, int(memory / spec.kv_bytes_per_token(deployment)))
    ratio = min(0.7 * settings.schedule_conservativeness, 1.0)
    return WorkerRules(
        kv_tokens=settings.max_total_tokens or tokens,
        page_tokens=page,
        states=states,
        max_running=max_running,
        overlap=settings.overlap_schedule,
        first_new_token_ratio=ratio,
        least_new_token_ratio=0.14 * ratio,
        retraction=Retraction(settings.retraction_policy),
        **_common(settings),
    )


def _vllm_rules(
    settings: ServerSettings, spec: ModelSpec, deployment: Deployment, memory: float
) -> WorkerRules:
    """One pool of blocks, as vLLM has it; a state takes one in each group of recurrent layers."""
    block = settings.page_size or vllm_block_tokens(spec, deployment)
    tokens = settings.max_total_tokens or int(memory / spec.kv_bytes_per_token(deployment))
    states = None
    if spec.has_state:
        recurrent = sum(layer.recurrence is not None for layer in spec.layers)
        attending = sum(layer.attention is not None for layer in spec.layers)
        unit = block * math.ceil(recurrent / attending)
        states = StateRules(
            unit_tokens=unit,
            chunk_tokens=block,
            track_tokens=None,
            num_tracking=1,
            stops_at_branches=True,
            leaves_last=True,
        )
    return WorkerRules(
        kv_tokens=max(1, (tokens // block - 1) * block),  # its first block stays empty
        page_tokens=block,
        states=states,
        max_running=settings.max_running_requests,
        **_common(settings),
        **VLLM,
    )


def _common(settings: ServerSettings) -> dict[str, Any]:
    return {
        "max_context": settings.max_context,
        "chunked_prefill_tokens": settings.chunked_prefill_size,
        "max_prefill_tokens": settings.max_prefill_tokens,
        "by_priority": settings.priority_scheduling,
        "preemption_threshold": settings.preemption_threshold,
    }
