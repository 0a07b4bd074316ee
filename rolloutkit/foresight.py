"""What a run knows of its samples' lengths, and the orders that follow from it.

Made once per run. The run tells it of admissions, turns and endings; it keeps the estimator, the
guard and the orders it handed out in step. It waits for nothing and owns no waiter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from rolloutkit.actions import (
    ActionSettings,
    CaasOrder,
    FifoOrder,
    Guard,
    KeyedOrder,
    Rule,
    Verdict,
    caas_service_order,
    clairvoyant_order,
    oldest_order,
    remaining_order,
)
from rolloutkit.actions.keyed import Key, no_key, num_turns
from rolloutkit.admission import AdmissionLimits, DatasetOrder, PioneerOrder, RankedOrder
from rolloutkit.errors import ConfigError
from rolloutkit.estimate import (
    Accuracy,
    Calibration,
    History,
    ReferenceRates,
    SurvivalCurve,
    Turn,
    next_history,
)
from rolloutkit.protocols import ActionDemand, ActionOrder, AdmissionOrder, Demand
from rolloutkit.types import SampleId, Task

if TYPE_CHECKING:
    from rolloutkit.estimate.estimator import WorkEstimator


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What a run's orders came to, for its summary. None = not known."""

    order: str  # in force at the end
    reason: str
    recall: float | None  # what the history says of its estimates
    is_blind: bool  # there was an estimate, and it said nothing
    accuracy: Accuracy | None  # of the estimates that this run made
    queue_share: float | None  # of turn time, spent waiting
    binding_share: float | None  # of the time, in which actions of the busiest kind waited

    @property
    def sentence(self) -> str:
        """The reason and what was measured, for people."""
        parts = [self.reason]
        if self.is_blind:
            parts.append("the estimate had nothing to go by")
        elif self.accuracy is not None:
            explained = max(self.accuracy.explained, 0.0)  # below 0 the mean was the better guess
            parts.append(f"estimate explains {explained:.0%} of length variance")
        if self.binding_share is not None:
            parts.append(f"actions queued {self.binding_share:.0%} of the time")
        return "; ".join(parts)


class Foresight:
    """Tell it everything, in the order in which it happens; ask it for the run's orders first.

    `history` and `totals` (true work, which only a replay knows) are what it starts from;
    `workload` and `rates` are written into the next history. `on_verdict` hears the guard once at
    the start, and whenever it changes its mind. `is_asked` says that others want estimates too.
    Raises ConfigError for clairvoyance without totals.
    """

    def __init__(
        self,
        actions: ActionSettings,
        admission: AdmissionLimits,
        *,
        workload: str = "",
        rates: ReferenceRates = ReferenceRates(),  # noqa: B008 - it is frozen
        history: History | None = None,
        totals: Mapping[SampleId, float] | None = None,
        started_at: float = 0.0,
        on_verdict: Callable[[Verdict], None] | None = None,
        is_asked: bool = False,
    ) -> None:
        if totals is None:
            refuse_clairvoyance(actions, admission)
        self._actions = actions
        self._admission = admission
        self._workload = workload
        self._rates = rates
        self._history = history
        self._totals = totals or {}
        self._started_at = started_at
        self._on_verdict = on_verdict
        self._is_asked = is_asked
        self._living: dict[SampleId, _Living] = {}
        self._num_to_come: dict[str, int] = {}
        self._works: dict[SampleId, float] = {}  # of finished samples: the next history's
        self._guard = Guard(None if history is None else history.recall, actions.fifo_lane)
        self._verdict = self._guard.review(self._curve)
        self._estimator = self._make_estimator()
        self._calibration = Calibration()
        self._orders: list[KeyedOrder] = []  # by kind of action, those with keys
        self._pioneers: PioneerOrder | None = None

    # The orders.

    def action_order(self) -> ActionOrder:
        """The order of one kind of action."""
        match self._actions.order:
            case "fifo":
                return FifoOrder()
            case "caas":
                return CaasOrder()
            case "auto":
                order = KeyedOrder(self._key(), fifo_lane=self._verdict.fifo_lane)
            case "caas_service":
                order = caas_service_order()
            case "oldest":
                order = oldest_order()
            case "clairvoyant":
                order = clairvoyant_order(self._totals)
            case "remaining":
                order = remaining_order(self._remaining, self._actions.fifo_lane)
        self._orders.append(order)
        return order

    def admission_order(self) -> AdmissionOrder:
        """The order of admission."""
        match self._admission.order:
            case "longest_first":
                return self._longest_first()
            case "auto" if self._guard.trusts_estimate:
                return self._longest_first()
            case "pioneers":
                self._pioneers = PioneerOrder(self._expected_total)
                return self._pioneers
            case "clairvoyant":
                return RankedOrder(self._true_total)
            case "auto" | "dataset":
                return DatasetOrder()

    # What the run tells.

    def start(self) -> None:
        """The orders are in place."""
        if self._on_verdict is not None and self._actions.order == "auto":
            self._on_verdict(self._verdict)

    def admitted(self, sample_id: SampleId, task: Task) -> None:
        """A sample lives."""
        living = self._living[sample_id] = _Living()
        if self._estimator is not None:
            self._num_to_come.setdefault(task.task_id, task.num_samples)
            living.predicted_ln = self._estimator.mean_ln(task.task_id)
            self._estimator.admitted(sample_id)

    def restarted(self, sample_id: SampleId) -> None:
        """Another attempt of the sample begins; the work of the last one is lost."""
        self._living[sample_id].work = 0.0
        if self._estimator is not None:
            self._estimator.restarted(sample_id)
            self._rekey(sample_id)

    def turn_ended(self, sample_id: SampleId, turn: Turn) -> None:
        """A turn is over: about 10 us where something is estimated, else 1."""
        work = self._rates.work(turn)
        self._living[sample_id].work += work
        if self._estimator is not None:
            self._estimator.turn_ended(sample_id, work)
            self._rekey(sample_id)
        active = turn.action_seconds + turn.model_seconds
        if self._guard.turn_ended(turn.wait_seconds, active) and self._actions.order == "auto":
            self._review()

    def ended(self, sample_id: SampleId, *, is_finished: bool) -> None:
        """A sample is over; `is_finished` says that its work is its total."""
        living = self._living.pop(sample_id)
        if is_finished:
            self._works[sample_id] = living.work
        if self._estimator is not None:
            if is_finished and living.predicted_ln is not None:
                self._calibration.add(living.predicted_ln, living.work)
            self._learn(self._estimator, sample_id, is_finished=is_finished)

    # By which key somebody was chosen, for the record.

    def action_key(self, demand: ActionDemand) -> float | None:
        """The key of a demand that was just served; None where arrival decided."""
        order = self._verdict.rule if self._actions.order == "auto" else self._actions.order
        match order:
            case "caas":
                return demand.num_turns
            case "caas_service":
                return demand.service_seconds
            case "oldest":
                return -demand.admission_seq
            case "remaining":
                return self._remaining(demand.sample_id)
            case "clairvoyant":
                return self._totals.get(demand.sample_id, 0.0)
            case _:
                return None

    def admission_key(self, demand: Demand) -> float | None:
        """The same of a sample that was just admitted."""
        order = self._admission.order
        if order == "clairvoyant":
            return self._true_total(demand)
        is_expected = order != "dataset" and (order != "auto" or self._guard.trusts_estimate)
        return self._expected_total(demand.task.task_id) if is_expected else None

    # What routing asks; 0 where nothing is known.

    def expected_total(self, task_id: str) -> float:
        """Expected work of a sample of the task that has not begun."""
        return self._expected_total(task_id)

    def work_left(self, sample_id: SampleId) -> float:
        """Expected work that is left to a living sample."""
        return self._remaining(sample_id)

    # What became of it.

    def findings(self, now: float) -> Findings:
        """Which order was in force, and on what grounds."""
        elapsed = now - self._started_at
        queued = max((order.queued_seconds(now) for order in self._orders), default=None)
        is_auto = self._actions.order == "auto"
        return Findings(
            order=self._verdict.rule.value if is_auto else self._actions.order,
            reason=self._verdict.reason if is_auto else "as configured",
            recall=self._verdict.recall,
            is_blind=self._estimator is not None and not self._estimator.is_informed,
            accuracy=self._calibration.accuracy,
            queue_share=self._guard.queue_share,
            binding_share=queued / elapsed if queued is not None and elapsed > 0 else None,
        )

    def next_history(self) -> History | None:
        """What the next epoch may know; None when no epoch has finished a sample yet."""
        return next_history(self._history, self._workload, self._rates, self._works)

    # Inside.

    def _make_estimator(self) -> WorkEstimator | None:
        """None where nothing is ordered by an estimate."""
        uses = {self._actions.order, self._admission.order} & {
            "remaining",
            "longest_first",
            "pioneers",
        }
        if not uses and not self._is_asked and self._verdict.rule is not Rule.REMAINING:
            return None
        from rolloutkit.estimate.estimator import WorkEstimator

        history = self._history
        if history is None:
            return WorkEstimator()
        is_by_task = self._actions.prior == "history"
        return WorkEstimator(history.population, history.tasks if is_by_task else {})

    def _longest_first(self) -> RankedOrder:
        return RankedOrder(_task_key(self._expected_total))

    def _expected_total(self, task_id: str) -> float:
        return 0.0 if self._estimator is None else self._estimator.total(task_id)

    def _remaining(self, sample_id: SampleId) -> float:
        return 0.0 if self._estimator is None else self._estimator.remaining(sample_id)

    def _true_total(self, demand: Demand) -> float:
        return self._totals.get(demand.sample_id, 0.0)

    def _learn(self, estimator: WorkEstimator, sample_id: SampleId, *, is_finished: bool) -> None:
        """Let an ending change the estimates of others."""
        task_id = sample_id.task_id
        before = estimator.population
        for changed in estimator.ended(sample_id, is_finished=is_finished):
            for order in self._orders:
                order.rekey(changed)
        if self._pioneers is not None:
            if estimator.population == before:
                self._pioneers.rekey(task_id)
            else:
                self._pioneers.rekey_all()
        self._num_to_come[task_id] -= 1
        if not self._num_to_come[task_id]:
            del self._num_to_come[task_id]
            estimator.forget(task_id)

    def _rekey(self, sample_id: SampleId) -> None:
        for order in self._orders:
            order.rekey(sample_id)
        if self._pioneers is not None:
            self._pioneers.rekey(sample_id.task_id)

    def _review(self) -> None:
        verdict = self._guard.review(self._curve)
        before, self._verdict = self._verdict, verdict
        if verdict.rule is before.rule and verdict.fifo_lane == before.fifo_lane:
            return
        for order in self._orders:
            order.rank_by(self._key(), fifo_lane=verdict.fifo_lane)
        if self._on_verdict is not None:
            self._on_verdict(verdict)

    def _key(self) -> Key:
        match self._verdict.rule:
            case Rule.REMAINING:
                return self._remaining_key
            case Rule.CAAS:
                return num_turns
            case Rule.FIFO:
                return no_key

    def _remaining_key(self, demand: ActionDemand) -> float:
        return self._remaining(demand.sample_id)

    def _curve(self) -> SurvivalCurve | None:
        """How long samples go on, by this run and the last epoch."""
        past = () if self._history is None else self._history.quantiles
        finished = [*past, *self._works.values()]
        if not finished:
            return None
        return SurvivalCurve(finished, [living.work for living in self._living.values()])


def refuse_clairvoyance(actions: ActionSettings, admission: AdmissionLimits) -> None:
    """Raise ConfigError where an order needs what only a replay knows."""
    for name, order in (("actions", actions.order), ("admission", admission.order)):
        if order == "clairvoyant":
            raise ConfigError(
                f"{name}.order=clairvoyant needs true lengths, which only a replay knows: "
                "choose another order"
            )


class _Living:
    """A living sample's work so far, and what was predicted of its logarithm beforehand."""

    __slots__ = ("predicted_ln", "work")

    def __init__(self) -> None:
        self.work = 0.0
        self.predicted_ln: float | None = None


def _task_key(total_of: Callable[[str], float]) -> Callable[[Demand], float]:
    return lambda demand: total_of(demand.task.task_id)
