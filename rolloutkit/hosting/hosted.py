"""The choice of where a blocking session runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, cast

from rolloutkit.clock import is_virtual
from rolloutkit.errors import ConfigError
from rolloutkit.hosting.process import ProcessSession
from rolloutkit.hosting.protocols import BlockingEnvironment, BlockingSession, is_blocking
from rolloutkit.hosting.thread import ThreadSession
from rolloutkit.jobs import blocking
from rolloutkit.protocols import Environment, EnvironmentSession
from rolloutkit.types import SampleId, Task

T = TypeVar("T")

Where: TypeAlias = Literal["auto", "loop", "thread", "process"]


def hosted(environment: Environment | BlockingEnvironment, where: Where = "auto") -> Environment:
    """An ordinary environment around one that may block.

    `auto` leaves sessions of coroutines alone and runs all others in threads. `loop` calls plain
    methods on the event loop: right for code that takes well under a millisecond. `thread` suits
    code that waits for something outside, `process` code that computes or may hang; there the
    environment and all that passes through its sessions must be picklable. In virtual time threads
    run inline, in no time, and `process` raises ConfigError when a session is opened.
    """
    return _Hosted(environment, where)


class _Hosted:
    def __init__(self, environment: Environment | BlockingEnvironment, where: Where) -> None:
        self._environment: Any = environment
        self._where = where

    @property
    def name(self) -> str:
        return self._environment.name

    def open(self, task: Task, sample_id: SampleId, seed: int) -> EnvironmentSession:
        if self._where == "process":
            if is_virtual():
                raise ConfigError("where=process needs time=real: in virtual time use where=thread")
            return ProcessSession(self._environment, task, sample_id, seed)
        session: EnvironmentSession | BlockingSession
        session = self._environment.open(task, sample_id, seed)
        if self._where == "auto" and not is_blocking(session):
            return cast("EnvironmentSession", session)
        return ThreadSession(session, sample_id, _inline if self._where == "loop" else blocking)


async def _inline(call: Callable[..., T], *arguments: Any) -> T:
    return call(*arguments)
