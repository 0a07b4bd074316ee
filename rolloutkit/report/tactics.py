"""What the tactics against a batch's tail did: hedges, capped turns, samples closed early."""

from __future__ import annotations

from rolloutkit.record.events import CallHedged, ModelCall, RunStarted, SampleEnded
from rolloutkit.report.summary import HedgeFigures, OversamplingFigures
from rolloutkit.types import CancelReason, FinishReason, Status

_MODEL_CALL = "model_call"
_REISSUE = "reissue"


class Tactics:
    """Folds their events."""

    def __init__(self) -> None:
        self._num_model_calls = 0
        self._num_actions = 0
        self._num_won = 0
        self._lost_tokens = 0
        self._prompt_tokens = 0
        self._kept = _Turns()
        self._closed = _Turns()
        self.num_capped_turns = 0

    def add_hedge(self, hedge: CallHedged) -> None:
        if hedge.kind == _MODEL_CALL:
            self._num_model_calls += 1
        else:
            self._num_actions += 1
        self._num_won += hedge.outcome == _REISSUE
        self._lost_tokens += hedge.lost_tokens
        self._prompt_tokens += hedge.prompt_tokens or 0

    def add_call(self, call: ModelCall) -> None:
        self.num_capped_turns += call.finish_reason is FinishReason.CAPPED

    def add_end(self, event: SampleEnded) -> None:
        if event.cancel_reason is CancelReason.GROUP_FULL:
            self._closed.add(event)
        elif event.status is Status.COMPLETED:
            self._kept.add(event)

    @property
    def hedges(self) -> HedgeFigures:
        return HedgeFigures(
            num_model_calls=self._num_model_calls,
            num_actions=self._num_actions,
            num_won=self._num_won,
            lost_tokens=self._lost_tokens,
            prompt_tokens=self._prompt_tokens,
        )

    def oversampling(self, started: RunStarted) -> OversamplingFigures | None:
        """None where no group had spare samples."""
        if not started.oversampled:
            return None
        return OversamplingFigures(
            extra=started.oversampled,
            num_closed=self._closed.count,
            mean_turns_kept=self._kept.mean,
            mean_turns_closed=self._closed.mean,
        )


class _Turns:
    """How many turns some samples had."""

    def __init__(self) -> None:
        self.count = 0
        self._num_turns = 0

    def add(self, event: SampleEnded) -> None:
        self.count += 1
        self._num_turns += event.num_turns

    @property
    def mean(self) -> float | None:
        return self._num_turns / self.count if self.count else None
