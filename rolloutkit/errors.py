"""Everything rolloutkit raises, and the one place where foreign errors get a kind.

    RolloutError
    ├── ConfigError          the user's input is wrong: one line, exit code 2, nothing was started
    ├── EngineError          an engine is unreachable or broke, after its own retries
    │   ├── WorkerLost       a worker is gone: refused, reset, shut down; others may be there
    │   ├── RequestError     an engine refused the request; the same one will fail again
    │   └── ContextFullError prompt and completion do not fit the engine's context
    ├── RenderError          messages could not become tokens, or tokens a message
    ├── EnvironmentFailed    a session's step, score or close raised
    │   └── SetUpFailed      a session could not be prepared
    ├── ScoreFailed          a session could not be scored
    ├── ProgramError         an agent program raised
    ├── LimitExceeded        a named limit ran out
    ├── AttemptEnded         an abandoned attempt tried to go on
    ├── RunFailed            the run as a whole could not go on (sink, circuit breaker, engine gone)
    └── DeadlockError        virtual time cannot advance and coroutines still wait
    StopSample               turns, tokens or context are used up: an ending, not an error

Extension code raises what it likes; `boundary()` classifies it once. Errors stay picklable.
"""

from __future__ import annotations

import asyncio
import traceback

from rolloutkit.types import Failure, FailureKind, StopReason


class RolloutError(Exception):
    """Base of everything that rolloutkit raises on purpose."""


class ConfigError(RolloutError):
    """The user's input is wrong; the message names the value and the remedy."""


class EngineError(RolloutError):
    """An engine is unreachable or broke, after its own retries."""


class WorkerLost(EngineError):
    """A worker is gone; what it was asked for may be asked of another."""


class RequestError(EngineError):
    """An engine refused the request; sending it again will not help."""


class ContextFullError(EngineError):
    """Prompt and completion do not fit the engine's context."""


class RenderError(RolloutError):
    """Messages could not become tokens, or tokens a message."""


class EnvironmentFailed(RolloutError):
    """A session's step or close raised."""


class SetUpFailed(EnvironmentFailed):
    """A session could not be prepared."""


class ScoreFailed(RolloutError):
    """A session could not be scored."""


class ProgramError(RolloutError):
    """An agent program raised."""


class LimitExceeded(RolloutError):
    """A named limit ran out."""

    def __init__(self, limit: str, seconds: float) -> None:
        super().__init__(limit, seconds)
        self.limit = limit
        self.seconds = seconds

    def __str__(self) -> str:
        return f"limits.{self.limit} of {self.seconds:g} s ran out"


class AttemptEnded(RolloutError):
    """An attempt that is over tried to generate or act."""


class StopSample(BaseException):
    """Turns, tokens or context are used up; raised by `generate`, and programs let it pass.

    Not an `Exception`: a program that catches those and tries again would never end.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason = reason


class RunFailed(RolloutError):
    """The run as a whole could not go on; results so far are written."""


class DeadlockError(RolloutError):
    """Virtual time cannot advance: every coroutine waits and no timer is armed."""


_KINDS: tuple[tuple[type[RolloutError], FailureKind], ...] = (  # most specific first
    (SetUpFailed, FailureKind.SET_UP),
    (EnvironmentFailed, FailureKind.ENVIRONMENT),
    (RequestError, FailureKind.REQUEST),
    (EngineError, FailureKind.ENGINE),
    (RenderError, FailureKind.RENDER),
    (ScoreFailed, FailureKind.SCORE),
    (LimitExceeded, FailureKind.LIMIT),
)


class boundary:  # noqa: N801 - reads as a word in `with boundary(...)`, like contextlib.suppress
    """Turn what extension code raises into `error`; our own errors and cancellation pass.

    That includes SystemExit, and a CancelledError that it raised itself while nobody cancelled it.
    """

    __slots__ = ("_error",)

    def __init__(self, error: type[RolloutError]) -> None:
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exception: BaseException | None, trace: object) -> None:
        if exception is None or isinstance(exception, RolloutError):
            return
        if isinstance(exception, Exception | SystemExit) or _is_home_made(exception):
            raise self._error(f"{type(exception).__name__}: {exception}") from exception


def _is_home_made(exception: BaseException) -> bool:
    """Whether it is a cancellation that nobody asked for."""
    if not isinstance(exception, asyncio.CancelledError):
        return False
    job = asyncio.current_task()
    return job is not None and job.cancelling() == 0


def failure_of(error: RolloutError, *, attempt: int = 0) -> Failure:
    """The data form of an error; anything without a kind of its own is the program's."""
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), FailureKind.PROGRAM)
    cause = error.__cause__
    return Failure(
        kind=kind,
        message=str(error),
        limit=error.limit if isinstance(error, LimitExceeded) else None,
        attempt=attempt,
        detail=None if cause is None else _detail(cause),
    )


def _detail(cause: BaseException) -> str:
    """The innermost frames, and the notes: a traceback from another process comes as one."""
    frames = traceback.format_tb(cause.__traceback__)[-3:]
    return "".join([*frames, *getattr(cause, "__notes__", ())])
