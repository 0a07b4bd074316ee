"""How much GPU memory is left for keys, values and states: SGLang's default split, or vLLM's.

Formulas: SGLang 0.5.23, `arg_groups/memory_hook.py` and `kv_cache_configurator.py`.
"""

from __future__ import annotations

from rolloutkit.errors import ConfigError
from rolloutkit.resources.hardware import Gpu
from rolloutkit.resources.model_spec import Deployment, ModelSpec

CONTEXT_BYTES = 0.6e9  # of the CUDA context and its libraries, taken before anything else
_MIB = 2**20
_LARGE_GPU_BYTES = 60 * 2**30
_LARGE_RESERVE_MIB = 10 * 1024


def default_fraction(gpu: Gpu, deployment: Deployment, chunk_tokens: int, max_batch: int) -> float:
    """SGLang's `mem_fraction_static`: what activations and graphs leave, rounded to thousandths."""
    gpus = deployment.tp * deployment.pp
    reserved = 512 + 1.5 * max(chunk_tokens, 2_048) + gpus / 8 * 1_024 + 2 * max_batch
    if deployment.attention_dp > 1:
        reserved += 3 * max_batch * deployment.attention_dp
    if gpu.memory_bytes > _LARGE_GPU_BYTES:
        reserved = max(reserved, _LARGE_RESERVE_MIB)
    return round(max(0.0, 1 - reserved * _MIB / gpu.memory_bytes), 3)


def decode_graph_batch(gpu: Gpu, tp: int) -> int:
    """The largest batch that SGLang captures by default."""
    return 512 if tp >= 4 or gpu.memory_bytes > 160 * 2**30 else 256


def pool_bytes(spec: ModelSpec, deployment: Deployment, gpu: Gpu, fraction: float) -> float:
    """Bytes per GPU for both pools. Raises ConfigError when the weights leave nothing."""
    weights = spec.weight_bytes(deployment)
    free = (gpu.memory_bytes - CONTEXT_BYTES) * fraction - weights
    if free > 0:
        return free
    fitting = (gpu.memory_bytes - CONTEXT_BYTES) * fraction
    enough = next(
        (tp for tp in (2, 4, 8, 16, 32) if weights * deployment.tp / tp < 0.9 * fitting), 64
    )
    raise ConfigError(
        f"gpu: {gpu.name} has {gpu.memory_bytes / 1e9:.0f} GB, of which {fitting / 1e9:.0f} GB may "
        f"be used, and {spec.name} at tp={deployment.tp} needs {weights / 1e9:.0f} GB of weights "
        f"on each GPU: use tp={enough} or more, or smaller weights (weights=fp8)"
    )
