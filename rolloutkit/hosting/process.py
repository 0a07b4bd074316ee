"""A session in a child process of its own, which can be killed.

The child leads a process group, so that what it started goes with it. An abandoned call is
interrupted by SIGTERM, upon which the child closes its session and ends; what is left after a grace
time is killed. The child also ends when its parent is gone.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from rolloutkit.errors import EnvironmentFailed
from rolloutkit.hosting.child import RemoteError, serve
from rolloutkit.hosting.protocols import BlockingEnvironment
from rolloutkit.jobs import blocking
from rolloutkit.types import Observation, Reply, SampleId, Score, Task

_GRACE_SECONDS = 5.0  # for the child to close its session and end; far below `limits.close`


class ProcessSession:
    """One call at a time, waited for in a thread. The child's errors come back as `RemoteError`."""

    def __init__(
        self, environment: BlockingEnvironment, task: Task, sample_id: SampleId, seed: int
    ) -> None:
        self._sample_id = sample_id
        self._child = _Child(environment, task, sample_id, seed)
        self._is_abandoned = False
        self._is_closed = False

    async def reset(self) -> Observation:
        return await self._call("reset")

    async def step(self, reply: Reply) -> Observation:
        return await self._call("step", reply)

    async def score(self) -> Score | float | None:
        return await self._call("score")

    async def close(self) -> None:
        """Close the session and end its process; cancelling kills it. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await blocking(self._child.close)
        except asyncio.CancelledError:
            self._child.kill()
            raise

    async def _call(self, method: str, *arguments: object) -> Any:
        if self._is_closed:
            raise EnvironmentFailed(f"the session of {self._sample_id} is closed")
        if self._is_abandoned:
            raise EnvironmentFailed(f"the session of {self._sample_id} broke: a call was abandoned")
        try:
            return await blocking(self._child.call, method, arguments)
        except asyncio.CancelledError:
            self._is_abandoned = True
            self._child.interrupt()
            raise


class _Child:
    """The process, seen by its parent. `call` and `close` wait; `interrupt` and `kill` do not."""

    def __init__(self, *opening: Any) -> None:
        self._opening = opening  # what `open` is called with, after the environment itself
        self._starting = threading.Lock()
        self._process: SpawnProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._is_unwanted = False

    def call(self, method: str, arguments: tuple[object, ...]) -> Any:
        connection = self._started()
        connection.send((method, arguments))
        return self._answer(connection)

    def interrupt(self) -> None:
        """Ask the child to give up what it does, to close its session and to end."""
        self._is_unwanted = True  # in case it is just being started
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """End the child and all that it started."""
        process = self._process
        self._is_unwanted = True
        if process is None or process.pid is None:
            return
        with suppress(ProcessLookupError):  # it has ended, or has not yet made its group
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()

    def close(self) -> None:
        with self._starting:
            process, connection = self._process, self._connection
        if process is None or connection is None:
            return
        try:
            if not self._is_unwanted:
                self._ask_to_close(connection)
        finally:
            wait([process.sentinel], _GRACE_SECONDS)
            self.kill()  # also what a child that ended has left behind in its group
            process.join()
            connection.close()

    def _ask_to_close(self, connection: Connection[Any, Any]) -> None:
        with suppress(BrokenPipeError):  # it died
            connection.send(("close", ()))
            if connection.poll(_GRACE_SECONDS):
                self._answer(connection)

    def _started(self) -> Connection[Any, Any]:
        with self._starting:
            if self._is_unwanted:
                raise RemoteError("the call was abandoned before its process started")
            if self._connection is None:
                context = multiprocessing.get_context("spawn")
                connection, far_end = context.Pipe()
                process = context.Process(target=serve, args=(far_end, *self._opening), daemon=True)
                process.start()
                far_end.close()  # the child holds the only one left: its death ends our waits
                self._process, self._connection = process, connection
        if self._is_unwanted:
            self.interrupt()
        return self._connection

    def _answer(self, connection: Connection[Any, Any]) -> Any:
        try:
            value, error = connection.recv()
        except (EOFError, ConnectionResetError):
            assert self._process is not None
            self._process.join()
            message = f"the session's process ended with exit code {self._process.exitcode}"
            raise RemoteError(message) from None
        if error is not None:
            raise error
        return value
