"""Where each sample's time went, and with it the samples for which everybody waited: the tail."""

from __future__ import annotations

from collections import deque

from rolloutkit.record.events import Action, ModelCall, SampleAdmitted, SampleEnded
from rolloutkit.report.summary import TailSample


class Tail:
    """Keeps an account of each living sample, and the accounts of those that ended last."""

    LENGTH = 5

    def __init__(self) -> None:
        self._alive: dict[str, _Account] = {}
        self._last: deque[TailSample] = deque(maxlen=self.LENGTH)

    def admit(self, event: SampleAdmitted) -> None:
        self._alive[event.sample_id] = _Account(event.wait_seconds)

    def add_call(self, call: ModelCall, recomputed_tokens: int | None) -> None:
        """Charge a model call; `recomputed_tokens` is None where the engine does not say."""
        account = self._alive.get(call.sample_id)
        if account is not None:
            account.generate_seconds += call.seconds
            account.parked_seconds += call.parked_seconds
            account.is_recompute_free = account.is_recompute_free and recomputed_tokens == 0

    def add_action(self, action: Action) -> None:
        """Charge an action; one that outlives its sample, as closing a session may, is nobody's."""
        account = self._alive.get(action.sample_id)
        if account is not None:
            account.act_seconds += action.seconds
            account.slot_wait_seconds += action.wait_seconds

    def end(self, event: SampleEnded) -> None:
        """Close the sample's account. Samples that never lived are in nobody's way and left out."""
        account = self._alive.pop(event.sample_id, None)
        if account is not None:
            self._last.append(account.close(event))

    def samples(self) -> tuple[TailSample, ...]:
        """The samples that ended last, the very last first."""
        return tuple(reversed(self._last))


class _Account:
    __slots__ = (
        "act_seconds",
        "admission_wait_seconds",
        "generate_seconds",
        "is_recompute_free",
        "parked_seconds",
        "slot_wait_seconds",
    )

    def __init__(self, admission_wait_seconds: float) -> None:
        self.admission_wait_seconds = admission_wait_seconds
        self.parked_seconds = 0.0
        self.generate_seconds = 0.0
        self.slot_wait_seconds = 0.0
        self.act_seconds = 0.0
        self.is_recompute_free = True

    def close(self, event: SampleEnded) -> TailSample:
        return TailSample(
            sample_id=event.sample_id,
            finished_at=event.t,
            generate_seconds=self.generate_seconds,
            act_seconds=self.act_seconds,
            slot_wait_seconds=self.slot_wait_seconds,
            admission_wait_seconds=self.admission_wait_seconds,
            parked_seconds=self.parked_seconds,
            recompute_seconds=0.0 if self.is_recompute_free else None,
        )
