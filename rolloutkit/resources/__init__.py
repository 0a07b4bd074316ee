"""From a model, a GPU and a workload to memory, step times and concurrency. Pure."""

from rolloutkit.resources.hardware import Gpu, load_gpu
from rolloutkit.resources.model_spec import (
    Deployment,
    ModelSpec,
    bundled_models,
    load_model,
    vllm_block_tokens,
)
from rolloutkit.resources.timing import StepTime, attended_pairs, step_time

__all__ = [
    "Deployment",
    "Gpu",
    "ModelSpec",
    "StepTime",
    "attended_pairs",
    "bundled_models",
    "load_gpu",
    "load_model",
    "step_time",
    "vllm_block_tokens",
]
