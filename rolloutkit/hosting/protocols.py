"""Environments written with plain functions, and how to tell them from those of coroutines."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Protocol

from rolloutkit.types import Observation, Reply, SampleId, Score, Task


class BlockingSession(Protocol):
    """`EnvironmentSession` with plain methods, or with some; `close` must be idempotent."""

    def reset(self) -> Observation | Awaitable[Observation]: ...
    def step(self, reply: Reply) -> Observation | Awaitable[Observation]: ...
    def score(self) -> Score | float | Awaitable[Score | float | None] | None: ...
    def close(self) -> Awaitable[None] | None: ...


class BlockingEnvironment(Protocol):
    """A family of tasks with blocking sessions. To be hosted in processes it must be picklable."""

    @property
    def name(self) -> str: ...

    def open(self, task: Task, sample_id: SampleId, seed: int) -> BlockingSession:
        """Make a session object; cheap and without side effects: set-up belongs to `reset`."""
        ...


def is_blocking(session: object) -> bool:
    """Whether any of the session's methods is a plain function."""
    methods = (getattr(session, name) for name in ("reset", "step", "score", "close"))
    return not all(inspect.iscoroutinefunction(method) for method in methods)
