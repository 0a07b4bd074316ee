"""What a user may say about routing."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class RouterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How samples are spread over workers, and when a worker counts as lost."""

    policy: Literal["round_robin", "sticky", "sticky_least_loaded", "sticky_least_work", "cost"] = (
        "sticky_least_loaded"
    )
    poll_seconds: Seconds = 5.0  # between two probes of a worker
    probe_seconds: Seconds = 5.0  # a probe that takes longer has failed
    stall_seconds: Seconds = 120.0  # without a token while calls run: the worker is ejected
    max_failures: Count = 3  # failed calls or probes in a row: the worker is ejected
    max_tries: Count = 4  # of one turn, on workers that broke; then its sample fails
    gone_seconds: Seconds = 600.0  # with no worker left: the run ends
