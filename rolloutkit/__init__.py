"""rolloutkit runs batches of LLM agent tasks with minimal makespan and loses nothing on the way.

The names below are the public interface; everything else may change. Heavy parts are imported when
they are first used, so that `import rolloutkit` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolloutkit.batch import Settings, rollout, run
    from rolloutkit.clock import now
    from rolloutkit.context import SampleContext
    from rolloutkit.errors import ConfigError, RolloutError, RunFailed
    from rolloutkit.limits import Limits
    from rolloutkit.types import (
        Message,
        Observation,
        Reply,
        SamplingParams,
        Score,
        Task,
        Trajectory,
    )

_HOME = {
    "ConfigError": "errors",
    "Limits": "limits",
    "Message": "types",
    "Observation": "types",
    "Reply": "types",
    "RolloutError": "errors",
    "RunFailed": "errors",
    "SampleContext": "context",
    "SamplingParams": "types",
    "Score": "types",
    "Settings": "batch",
    "Task": "types",
    "Trajectory": "types",
    "now": "clock",
    "rollout": "batch",
    "run": "batch",
}

__all__ = [
    "ConfigError",
    "Limits",
    "Message",
    "Observation",
    "Reply",
    "RolloutError",
    "RunFailed",
    "SampleContext",
    "SamplingParams",
    "Score",
    "Settings",
    "Task",
    "Trajectory",
    "now",
    "rollout",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rolloutkit' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rolloutkit.{_HOME[name]}"), name)
