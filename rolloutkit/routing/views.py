"""What a router says of its workers, to people and to the trace."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple


class WorkerChange(StrEnum):
    """What happened to a worker."""

    EJECTED = "ejected"
    READMITTED = "readmitted"
    JOINED = "joined"
    LEFT = "left"


class WorkerView(NamedTuple):
    """One worker at one moment."""

    name: str
    is_up: bool
    num_residents: int
    num_calls: int
    active_tokens: int  # of context of the residents that are not parked
    slowness: float  # measured; 1 = like the others
    num_ejections: int


OnWorkerChange = Callable[[str, WorkerChange, str], None]
"""Called with a worker's name, what happened to it, and why."""
