"""Runs one server and ends it when whoever asked for it is gone.

`python -m rolloutkit.engines.keeper COMMAND...` leads a process group in which the server and all
that it starts live. Its standard input is a pipe that the run holds: however the run ends, also by
SIGKILL, the pipe closes, and the group is ended, politely first. It imports the standard library
only, and writes what it has to say into the server's log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType

GRACE_SECONDS = 10.0  # between SIGTERM and SIGKILL: servers finish what they are writing


def main(command: list[str]) -> None:
    """Run `command` until it ends or the pipe does, then end its group, this process included."""
    # A handler, and not SIG_IGN, which the server would inherit.
    signal.signal(signal.SIGTERM, _ignore)
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        sys.exit(f"rolloutkit: {command[0]} cannot be started: {error.strerror}")
    pipe = threading.Thread(target=_follow, args=(server,), daemon=True)  # noqa: TID251 - no event loop in here
    pipe.start()
    status = server.wait()
    sys.stderr.write(f"rolloutkit: the server ended, exit status {status}\n")
    sys.stderr.flush()
    os.killpg(0, signal.SIGKILL)


def _follow(server: subprocess.Popen[bytes]) -> None:
    """Wait until the pipe is closed, and end the server."""
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(GRACE_SECONDS)
        return  # the main thread ends the rest of the group
    os.killpg(0, signal.SIGKILL)


def _ignore(number: int, frame: FrameType | None) -> None:
    del number, frame


if __name__ == "__main__":
    main(sys.argv[1:])
