"""Time: the event loop is the clock, and a program runs in real or in virtual time unchanged.

Owns `now`, `run`, the virtual loop and the watchdog that bounds waits. In virtual time a sleep
costs nothing, real sockets are refused, executor jobs run inline, and a state in which nothing can
happen any more raises `DeadlockError` naming who waits. Virtual timers of equal time fire together,
in the order in which they were armed, so that runs repeat; real time promises no order, and code
must not rely on one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import heapq
import math
import selectors
import time as time_module
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from contextvars import Context
from types import FrameType
from typing import Any, Literal, TypeVar, TypeVarTuple

from rolloutkit.errors import DeadlockError, LimitExceeded

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TimeMode = Literal["real", "virtual"]


def now() -> float:
    """Seconds of the running loop's clock; only differences mean anything in real time."""
    return timer()()


def timer() -> Callable[[], float]:
    """What `now` calls in the running loop, for those who ask often.

    In real time it is the monotonic clock that both loops are built on, and not `loop.time`: uvloop
    counts whole milliseconds, and many an action takes less.
    """
    loop = asyncio.get_running_loop()
    return loop.time if isinstance(loop, VirtualTimeLoop) else time_module.monotonic


def run(main: Coroutine[Any, Any, T], *, time: TimeMode = "real") -> T:
    """Run a program to its end on a fresh loop and return its value.

    Real time uses uvloop where it is installed. Call it outside a running loop only.
    """
    factory = VirtualTimeLoop if time == "virtual" else _real_loop_factory()
    with _rare_collections(), asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


def is_virtual() -> bool:
    """Whether the running loop simulates time."""
    return isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


@contextmanager
def _rare_collections() -> Generator[None]:
    """Collect cyclic garbage less often while a program runs.

    Samples are long-lived and many; at CPython's default thresholds the collector walks them so
    often that 50,000 samples run at half the speed of 10,000
    (tests/benchmarks/bench_virtual_turns.py). A process that has thresholds of its own keeps them.
    """
    before = gc.get_threshold()
    if before[0] == 0 or before[0] > _CPYTHON_GEN0_MAX:
        yield
        return
    gc.set_threshold(*_RARE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


_CPYTHON_GEN0_MAX = 2_000  # default: 700 up to 3.12, 2,000 from 3.13
_RARE_THRESHOLDS = (50_000, 50, 100)


def _real_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # no uvloop on Windows
        return asyncio.new_event_loop
    return uvloop.new_event_loop


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time is simulated: sleeping costs no wall time.

    It keeps its timers itself, since asyncio's heap is not stable. Recorded durations collide so
    often that the makespan of a replay depends on the order of equal times by several percent
    (tests/benchmarks/policy): that order has to be one that can be stated.
    """

    _ready: deque[asyncio.Handle]  # asyncio's own
    _stopping: bool

    def __init__(self) -> None:
        self._timers = _Timers()
        super().__init__(_NoSelector())

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._timers.now

    def _run_once(self) -> None:
        """One turn of the loop: what is ready, and behind it the timers whose time has come.

        Overrides asyncio's own (called by `run_forever`, the same in 3.11 to 3.14), which would
        poll a selector in between, at half of the loop's cost. An asyncio that turns otherwise ends
        in `_NoSelector.select`.
        """
        ready = self._ready
        if not ready and not self._stopping and not self._timers.jump():
            raise DeadlockError(_describe_waiters(self))
        self._timers.fire(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:  # noqa: SLF001 - twice as fast as `cancelled()`
                handle._run()  # noqa: SLF001 - as BaseEventLoop does

    @property
    def num_timers(self) -> int:
        """Timers that are armed."""
        return self._timers.num_armed()

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call back at a time; a time that has passed means now."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timers.add(timer)
        return timer

    def run_in_executor(
        self,
        executor: concurrent.futures.Executor | None,
        func: Callable[[*Ts], T],
        *args: *Ts,
    ) -> asyncio.Future[T]:
        """Call `func` now, in no virtual time, and return its outcome as a finished future."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exception:  # noqa: BLE001 - an executor reports whatever the job raised
            future.set_exception(exception)
        return future


class _Timers:
    """The armed timers by time, then by age. Cancelled ones leave when they come first, or when the
    heap has doubled.
    """

    _MIN_SWEEP = 256  # timers that are not worth counting the cancelled ones

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._num_added = 0
        self._sweep_at = self._MIN_SWEEP

    def add(self, timer: asyncio.TimerHandle) -> None:
        self._num_added += 1
        heapq.heappush(self._heap, (timer.when(), self._num_added, timer))
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if not entry[2].cancelled()]
            heapq.heapify(self._heap)
            self._sweep_at = max(self._MIN_SWEEP, 2 * len(self._heap))

    def fire(self, ready: deque[asyncio.Handle]) -> None:
        """Append the timers whose time has come, in the order of their times and then of their
        ages. The loop skips those that are cancelled by then.
        """
        heap = self._heap
        while heap and heap[0][0] <= self.now:
            ready.append(heapq.heappop(heap)[2])

    def jump(self) -> bool:
        """Make it the time of the next timer; False if nothing is armed."""
        while self._heap and self._heap[0][2].cancelled():
            heapq.heappop(self._heap)
        if not self._heap:
            return False
        self.now = max(self.now, self._heap[0][0])
        return True

    def num_armed(self) -> int:
        return sum(not timer.cancelled() for _, _, timer in self._heap)


class _NoSelector(selectors.BaseSelector):
    """Takes the loop's own wake-up pipe and refuses everything else; nothing is ever polled."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        raise NotImplementedError("the virtual loop turns without polling: see its _run_once")

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._keys:  # the first is the loop's own wake-up pipe
            raise RuntimeError(
                "virtual time cannot wait for real sockets or pipes: use time='real'"
            )
        key = selectors.SelectorKey(fileobj, _fd_of(fileobj), events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(_fd_of(fileobj))

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


def _fd_of(fileobj: Any) -> int:
    return fileobj if isinstance(fileobj, int) else fileobj.fileno()


def _describe_waiters(loop: asyncio.AbstractEventLoop) -> str:
    """One line per waiting coroutine: its name and the innermost line at which it waits."""
    lines = ["every coroutine waits and no timer is armed:"]
    for job in sorted(asyncio.all_tasks(loop), key=lambda job: job.get_name()):
        frame = _innermost_frame(job.get_coro())
        where = (
            f"{frame.f_code.co_qualname} ({frame.f_code.co_filename}:{frame.f_lineno})"
            if frame
            else "?"
        )
        lines.append(f"  {job.get_name()} waits in {where}")
    return "\n".join(lines)


def _innermost_frame(awaitable: Any) -> FrameType | None:
    frame: FrameType | None = None
    while awaitable is not None:
        frame = (
            getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None) or frame
        )
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
    return frame


class Watchdog:
    """Bounds the waits of one coroutine, one at a time, with a single lazily moved timer.

    `asyncio.timeout` arms and cancels a heap entry per wait (about 15 us each, "style study"
    section 2.5); a sample waits twice a turn, so the watchdog leaves its timer armed and only moves
    the deadline. A timer that fires early re-arms itself. Use it as

        with watchdog.limit("action", 60.0):
            await something()

    which raises `LimitExceeded` when the wait overruns. Code inside that swallows the cancellation
    is cancelled again until it leaves the block. Cancellation from elsewhere in the same tick wins.
    Limits do not nest. `close()` must be called when the coroutine is done, unless the watchdog was
    made with `lazy=False`: then each block drops its own timer.
    """

    __slots__ = (
        "_armed_for",
        "_cancels",
        "_deadline",
        "_expiring",
        "_handle",
        "_hard",
        "_hard_limit",
        "_is_lazy",
        "_job",
        "_left",
        "_loop",
        "_num_fired",
    )

    def __init__(self, *, lazy: bool = True) -> None:
        self._is_lazy = lazy
        job = asyncio.current_task()
        assert job is not None
        self._job: asyncio.Task[Any] = job
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = math.inf
        self._deadline = math.inf
        self._hard = math.inf  # inf = no block is entered
        self._left = math.inf
        self._hard_limit = self._expiring = ("", math.inf)
        self._num_fired = 0  # cancellations sent in this block
        self._cancels = 0

    @property
    def is_busy(self) -> bool:
        """Whether it bounds a wait at the moment."""
        return self._hard != math.inf

    def limit(self, name: str, seconds: float, stated: float | None = None) -> Watchdog:
        """Bound the wait inside the following `with` block by `seconds`.

        An overrun is reported as `name` of `stated` seconds: the configured limit, where `seconds`
        is what was left of it.
        """
        assert not self.is_busy, "limits do not nest"
        self._hard_limit = self._expiring = (name, seconds if stated is None else stated)
        self._hard = self._loop.time() + seconds
        return self

    def pause(self) -> None:
        """Stop counting inside a block; `resume` goes on with what was left."""
        if self._num_fired:
            return
        self._left = self._hard - self._loop.time()
        self._deadline = math.inf

    def resume(self) -> None:
        """Go on counting after `pause`."""
        if self._num_fired:
            return
        self._hard = self._loop.time() + self._left
        self._move(self._hard)

    def progress(self, name: str, seconds: float) -> None:
        """Move the deadline to `seconds` from now, reported as `name`, never past the hard limit.

        Outside a block, where a call that is over reports late, and while paused it does nothing.
        """
        if not self.is_busy or self._deadline == math.inf:
            return
        deadline = self._loop.time() + seconds
        if deadline < self._hard:
            self._expiring = (name, seconds)
            self._move(deadline)
        else:
            self._expiring = self._hard_limit
            self._move(self._hard)

    def __enter__(self) -> None:
        self._cancels = self._job.cancelling()
        self._num_fired = 0
        self._move(self._hard)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._deadline = self._hard = math.inf
        if not self._is_lazy:
            self.close()
        if not self._num_fired:
            return
        num_left = self._job.cancelling()
        for _cancellation in range(self._num_fired):
            num_left = self._job.uncancel()
        self._num_fired = 0
        if num_left <= self._cancels and kind in (None, asyncio.CancelledError):
            raise LimitExceeded(*self._expiring)

    def close(self) -> None:
        """Drop the timer. Idempotent."""
        self._deadline = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle, self._armed_for = None, math.inf

    def _move(self, deadline: float) -> None:
        self._deadline = deadline
        if deadline == math.inf:
            return
        if self._armed_for <= deadline:
            return
        if self._handle is not None:
            self._handle.cancel()
        self._armed_for = deadline
        self._handle = self._loop.call_at(deadline, self._on_timer, context=_EMPTY)

    def _on_timer(self) -> None:
        self._handle, self._armed_for = None, math.inf
        if self._deadline == math.inf:
            return
        if self._deadline <= self._loop.time():
            self._num_fired += 1
            self._job.cancel()
            self._move(self._loop.time() + _PERSISTENCE_SECONDS)
        else:
            self._move(self._deadline)


# Between two cancellations of code that does not let go: time to clean up.
_PERSISTENCE_SECONDS = 30.0
_EMPTY = Context()  # a timer needs no variables; copying the caller's costs memory per sample
