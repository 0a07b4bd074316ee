"""What the command's exit status says, and the one line that an error becomes."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from enum import IntEnum

from rolloutkit.errors import ConfigError, RolloutError


class ExitCode(IntEnum):
    """A contract with scripts: no code changes its meaning."""

    OK = 0  # every sample ended, and few enough failed
    FAILED = 1  # too many failed, or the run broke
    BAD_INPUT = 2  # arguments or config; said in one line, and nothing was started
    INTERRUPTED = 130  # by a signal; everything up to it is written


def explain(error: RolloutError) -> ExitCode:
    """Write the error as one line to stderr; the exit code that goes with it."""
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
    return ExitCode.BAD_INPUT if isinstance(error, ConfigError) else ExitCode.FAILED


@contextmanager
def explained() -> Generator[None]:
    """Around a program of one's own: an error becomes one line and the process's exit."""
    try:
        yield
    except RolloutError as error:
        sys.exit(explain(error))
