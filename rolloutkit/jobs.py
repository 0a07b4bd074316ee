"""The only file that starts coroutines and threads.

Owns the one TaskGroup of a run and the two ways to fan out: `spawn` (a child whose outcome comes
back as a value) and `blocking` (code that blocks, in a thread). Everything else waits with plain
awaits. Threads are daemons: a call that hangs for ever is abandoned when its waiter gives up and
does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar, Token
from functools import partial
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar, TypeVarTuple, cast

from rolloutkit.clock import is_virtual
from rolloutkit.errors import StopSample

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Outcome(NamedTuple, Generic[T]):
    """How a spawned child ended: `value`, or the `error` it raised (CancelledError when
    cancelled).
    """

    value: T | None
    error: BaseException | None

    def unwrap(self) -> T:
        """The value; raises the child's error instead when it has one."""
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


class Job(Generic[T]):
    """A child started with `spawn`. It never raises into its group; ask for its outcome."""

    def __init__(self, task: asyncio.Task[Outcome[T]]) -> None:
        self._task = task

    @property
    def is_done(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        """Ask the child to stop; its outcome then holds a CancelledError."""
        self._task.cancel()

    def on_end(self, call: Callable[[Outcome[T]], None]) -> None:
        """Call back with the outcome once the child has ended, also when it was cancelled
        unstarted.
        """
        self._task.add_done_callback(lambda task: call(_result_of(task)))

    async def outcome(self) -> Outcome[T]:
        """Wait for the child's end. Cancelling this wait does not cancel the child."""
        if not self._task.done():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            wake = _Waker(waiter)
            self._task.add_done_callback(wake)
            try:
                await waiter
            finally:
                self._task.remove_done_callback(wake)
        return _result_of(self._task)


def _result_of(task: asyncio.Task[Outcome[T]]) -> Outcome[T]:
    if task.cancelled():  # before its first step
        return Outcome(None, asyncio.CancelledError())
    return task.result()


class _Waker:
    def __init__(self, waiter: asyncio.Future[None]) -> None:
        self._waiter = waiter

    def __call__(self, _: object) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)


class GroupEnded(RuntimeError):
    """The group is being torn down and starts nothing more."""


class JobGroup:
    """The one TaskGroup of a run. Leaving it waits for every job; a job that fails ends nobody
    else.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._threads = DaemonThreads()
        self._token: Token[JobGroup | None] | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._token = _current_group.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._group.__aexit__(kind, error, trace)
        finally:
            if self._token is not None:
                _current_group.reset(self._token)
            self._threads.shutdown(wait=False)

    def spawn(self, main: Coroutine[Any, Any, T], *, name: str) -> Job[T]:
        """Start a child whose outcome is a value; it can fail without ending anything."""
        outcome = _outcome_of(main)
        try:
            task = self._group.create_task(outcome, name=name)
        except RuntimeError as error:
            outcome.close()
            main.close()
            raise GroupEnded(f"{name} was not started") from error
        task.add_done_callback(lambda _: main.close())  # of use when it was cancelled unstarted
        return Job(task)

    @property
    def threads(self) -> DaemonThreads:
        return self._threads


async def _outcome_of(main: Coroutine[Any, Any, T]) -> Outcome[T]:
    try:
        return Outcome(await main, None)
    except asyncio.CancelledError as error:
        return Outcome(None, error)
    except (Exception, StopSample) as error:  # noqa: BLE001 - the outcome carries what it raised
        return Outcome(None, error)


_current_group: ContextVar[JobGroup | None] = ContextVar("rolloutkit_job_group", default=None)


def spawn(main: Coroutine[Any, Any, T], *, name: str) -> Job[T]:
    """Start a child in the run's group; its outcome comes back as a value.

    The caller must await or cancel it before it ends itself. Outside a run this raises
    RuntimeError.
    """
    group = _current_group.get()
    if group is None:
        main.close()
        raise RuntimeError("spawn needs a run: call it from a program, an engine or an environment")
    return group.spawn(main, name=name)


@asynccontextmanager
async def background(main: Coroutine[Any, Any, T], *, name: str) -> AsyncGenerator[Job[T]]:
    """Run `main` beside the block. Leaving the block cancels it, if it still runs, and waits for
    its end.
    """
    job = Job(asyncio.create_task(_outcome_of(main), name=name))
    try:
        yield job
    finally:
        job.cancel()
        await job.outcome()


async def blocking(call: Callable[[*Ts], T], *args: *Ts) -> T:
    """Run code that blocks in a daemon thread and wait for its value.

    On cancellation the wait ends at once; the thread runs on and its late result is dropped. In
    virtual time the call runs inline and takes no time.
    """
    loop = asyncio.get_running_loop()
    if is_virtual():
        return await loop.run_in_executor(None, call, *args)
    group = _current_group.get()
    threads = group.threads if group is not None else DaemonThreads()
    return await loop.run_in_executor(threads, call, *args)


class DaemonThreads(concurrent.futures.Executor):
    """Threads made on demand and reused; unlike the standard pool they never block the exit."""

    IDLE_SECONDS = (
        10.0  # an idle thread ends after this; long enough to bridge the gaps inside a turn
    )

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], Callable[[], None]] | None]
        self._calls = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._num_idle = 0

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def call() -> Callable[[], None]:
            """Run it, and return what tells the waiter."""
            if not future.set_running_or_notify_cancel():
                return _nothing
            try:
                value = fn(*args, **kwargs)
            except SystemExit as error:  # would end the loop that waits for it
                left = RuntimeError(f"the call left by sys.exit({error})")
                return partial(future.set_exception, left)
            except BaseException as error:  # noqa: BLE001 - a future carries whatever the call raised
                return partial(future.set_exception, error)
            return partial(future.set_result, value)

        with self._lock:
            reuse = self._num_idle > 0
            if reuse:
                self._num_idle -= 1
        self._calls.put(call)
        if not reuse:
            threading.Thread(target=self._work, name="rolloutkit-blocking", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's signature
        """Let idle threads end. Running calls are never waited for, whatever `wait` says."""
        del wait, cancel_futures
        with self._lock:
            count, self._num_idle = self._num_idle, 0
        for _ in range(count):
            self._calls.put(None)

    def _work(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=self.IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if self._num_idle > 0:
                        self._num_idle -= 1
                        return
                continue  # a submitter has just counted on this thread
            if call is None:
                return
            tell = call()
            with self._lock:
                self._num_idle += 1  # before its waiter may ask for a thread again
            tell()


def _nothing() -> None:
    """Nobody waits any more."""
