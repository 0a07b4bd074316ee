"""The choice of where a blocking session runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, cast

from rolloutkit.clock import is_virtual
from rolloutkit.errors import ConfigError
from rolloutkit.hosting.process import ProcessSession
from rolloutkit.hosting.protocols import BlockingEnvironment, is_blocking
from rolloutkit.hosting.thread import ThreadSession
from rolloutkit.jobs import blocking
from rolloutkit.protocols import Environment, EnvironmentSession
from rolloutkit.types import SampleId, Task

T = TypeVar("T")

Where: TypeAlias = Literal["auto", "loop", "thread", "process"]


def hosted(environment: BlockingEnvironment, where: Where = "auto") -> Environment:
    """An ordinary environment around one that may block.

    `auto` awaits coroutines as they are and runs plain methods in threads. `loop` calls those on
    the event loop: right for code that takes well under a millisecond. `thread` suits code that
    waits for something outside, `process` code that computes or may hang; there all methods must be
    plain, and the environment and whatever passes through its sessions picklable. In virtual time
    threads run inline, in no time, and `process` raises ConfigError when a session is opened.
    """
    return _Hosted(environment, where)


class _Hosted:
    def __init__(self, environment: BlockingEnvironment, where: Where) -> None:
        self._environment = environment
        self._where = where

    @property
    def name(self) -> str:
        return self._environment.name

    def open(self, task: Task, sample_id: SampleId, seed: int) -> EnvironmentSession:
        if self._where == "process":
            if is_virtual():
                raise ConfigError("where=process needs time=real: in virtual time use where=thread")
            return ProcessSession(self._environment, task, sample_id, seed)
        session = self._environment.open(task, sample_id, seed)
        if self._where == "auto" and not is_blocking(session):
            return cast("EnvironmentSession", session)
        return ThreadSession(session, sample_id, _inline if self._where == "loop" else blocking)


async def _inline(call: Callable[..., T], *arguments: Any) -> T:
    return call(*arguments)
