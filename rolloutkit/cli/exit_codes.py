"""What the command's exit status says."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """A contract with scripts: see DESIGN, "Contracts that tools rely on"."""

    OK = 0  # every sample ended, and few enough failed
    FAILED = 1  # too many failed, or the run broke
    BAD_INPUT = 2  # arguments or config; said in one line, and nothing was started
    INTERRUPTED = 130  # by a signal; everything up to it is written
