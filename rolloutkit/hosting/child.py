"""What runs inside a session's process: one blocking session, served over a pipe."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from rolloutkit.errors import RolloutError
from rolloutkit.hosting.protocols import BlockingEnvironment, BlockingSession
from rolloutkit.types import SampleId, Task


class RemoteError(Exception):
    """Something raised in a session's process; the traceback of the child is in its notes."""


def serve(
    connection: Connection[Any, Any],
    environment: BlockingEnvironment,
    task: Task,
    sample_id: SampleId,
    seed: int,
) -> None:
    """Answer calls until `close`, SIGTERM or the parent's end; always close the session."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_follow_parent, daemon=True).start()  # noqa: TID251 - no event loop in here
    session: BlockingSession | None = None
    method = ""
    try:
        while method != "close":
            method, arguments = connection.recv()
            if session is None:
                session = environment.open(task, sample_id, seed)
            _answer(connection, getattr(session, method), arguments)
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    finally:
        if session is not None and method != "close":
            session.close()


def _answer(
    connection: Connection[Any, Any], method: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    try:
        if inspect.iscoroutinefunction(method):
            raise TypeError(f"{method.__name__} must be a plain method with where=process")
        connection.send((method(*arguments), None))
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the parent's boundary classifies it
        connection.send((None, _portable(error)))


def _portable(error: Exception) -> Exception:
    if isinstance(error, RolloutError):  # has its kind, and is picklable
        return error
    remote = RemoteError(f"{type(error).__name__}: {error}")
    remote.add_note("".join(traceback.format_tb(error.__traceback__)[-3:]))
    return remote


def _leave(signal_number: int, frame: object) -> None:
    del signal_number, frame
    sys.exit()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)
