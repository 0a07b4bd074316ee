"""Runs idempotent actions, and runs one again beside itself when it takes far longer than its kind.

An action reports no progress: its whole duration is one silence. That is no length bias, since
both runs of an idempotent action do the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rolloutkit.errors import ConfigError
from rolloutkit.protocols import ActionDemand, Stage
from rolloutkit.tail.hedging import Hedge, Hedging
from rolloutkit.tail.settings import HedgeSettings
from rolloutkit.tail.watched import Settled, Watched

T = TypeVar("T")


def refuse_stages(settings: HedgeSettings) -> None:
    """Raise ConfigError for stages declared idempotent: a session is used by one call at a time."""
    for kind in settings.idempotent:
        if kind.rpartition(".")[2] in set(Stage):
            raise ConfigError(
                f"tail.hedge.idempotent: {kind!r} is a stage of a session, which serves one call "
                "at a time: name kinds that a program calls act() with"
            )


class HedgedActions:
    """Decides which kinds may run twice, and when; slots are the caller's. `on_hedge` must not
    raise.
    """

    def __init__(self, hedging: Hedging, on_hedge: Callable[[Hedge], None]) -> None:
        self._hedging = hedging
        self._idempotent = frozenset(hedging.settings.idempotent)
        self._on_hedge = on_hedge

    def covers(self, kind: str, *, is_idempotent: bool) -> bool:
        """Whether an action of the kind may run twice at once, as the program or the settings
        say.
        """
        return is_idempotent or kind in self._idempotent

    async def run(
        self,
        demand: ActionDemand,
        attempt: int,
        first: Awaitable[T],
        again: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        """The value of `first`, or of `again()` when that ends sooner; the other is cancelled.

        `again` waits for a slot of its own. Cancelling cancels both.
        """

        def on_settled(settled: Settled) -> None:
            self._on_hedge(
                Hedge(
                    sample_id=demand.sample_id,
                    attempt=attempt,
                    turn=demand.num_turns,
                    kind=demand.kind,
                    stalled_seconds=settled.stalled_seconds,
                    seconds=settled.seconds,
                    outcome=settled.outcome,
                )
            )

        return await Watched(self._hedging.of(demand.kind), again, on_settled).run(first)
