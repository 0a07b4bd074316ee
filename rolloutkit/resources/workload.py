"""What the samples of a batch ask of a worker: sizes of turns, pauses between them, contexts.

Contexts are weighted by time, since long pauses at long contexts fill a cache: while running by the
tokens generated there, while idle by the seconds spent there. `WorkloadMeter` takes samples one by
one and forgets old ones; `declared` makes a workload of plain numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from rolloutkit.errors import ConfigError

NUM_POINTS = 256  # of a declared distribution
MAX_PAUSES = 8_192  # kept of measured ones, the latest

Shape: TypeAlias = Literal["fixed", "exponential", "lognormal"]


class TurnSizes(NamedTuple):
    """One turn: tokens of the whole prompt, of its new part and of the output, and the pause."""

    context: int
    new: int
    output: int
    act_seconds: float  # until the next turn; of the last turn it does not matter


class Pauses:
    """The distribution of act times, as points of equal weight. O(log n) a question."""

    def __init__(self, seconds: Iterable[float]) -> None:
        self._points = sorted(seconds) or [0.0]
        self._sums = list(accumulate(self._points, initial=0.0))

    @classmethod
    def of(cls, mean: float, shape: Shape, variation: float = 1.0) -> Pauses:
        """A distribution by mean and, for `lognormal`, standard deviation over mean."""
        if shape == "fixed" or mean == 0:
            return cls([mean])
        shares = [(index + 0.5) / NUM_POINTS for index in range(NUM_POINTS)]
        if shape == "exponential":
            points = [-math.log(1 - share) for share in shares]
        else:
            sigma = math.sqrt(math.log(1 + variation**2))
            points = [math.exp(sigma * NormalDist().inv_cdf(share)) for share in shares]
        scale = mean * NUM_POINTS / sum(points)
        return cls(scale * point for point in points)

    @property
    def mean(self) -> float:
        return self._sums[-1] / len(self._points)

    @property
    def longest(self) -> float:
        return self._points[-1]

    def share_within(self, seconds: float) -> float:
        """Of pauses that are at most so long."""
        return bisect_right(self._points, seconds) / len(self._points)

    def mean_within(self, seconds: float) -> float:
        """The mean of what lies within so many seconds of each pause."""
        if seconds <= 0:
            return 0.0
        shorter = bisect_right(self._points, seconds)
        rest = len(self._points) - shorter
        return (self._sums[shorter] + rest * seconds) / len(self._points)

    def quantile(self, share: float) -> float:
        """The pause that so large a share does not exceed."""
        index = math.ceil(share * len(self._points)) - 1
        return self._points[min(max(index, 0), len(self._points) - 1)]


class Workload(NamedTuple):
    """Means over the samples of a batch, in tokens and seconds."""

    turns: float  # of a sample
    new_tokens: float  # of a turn's prompt, first prompts included
    output_tokens: float  # of a turn
    pauses: Pauses
    resume_context: float  # tokens of the prompt of a turn that is not the first
    running_context: float
    idle_context: float
    final_context: float
    context_deviation: float = 0.0  # of one sample's idle context, over time and samples
    group_size: float = 1.0
    shared_prefix: float = 0.0  # tokens that the samples of a group have in common
    num_samples: int = 0  # that were seen; 0: declared

    @property
    def private_idle(self) -> float:
        """Idle context of which no other sample of the group keeps a copy."""
        return max(0.0, self.idle_context - self.saved_by_group)

    @property
    def private_running(self) -> float:
        """The same while it runs."""
        return max(0.0, self.running_context - self.saved_by_group)

    @property
    def saved_by_group(self) -> float:
        """Tokens of a sample that its group keeps once for all."""
        return self.shared_prefix * (1 - 1 / max(1.0, self.group_size))


class Declared(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload in plain numbers: a first prompt, then turns that each add the same."""

    turns: Annotated[int, msgspec.Meta(ge=1)] = 1
    first_prompt: Annotated[int, msgspec.Meta(ge=1)] = 2_000
    new_tokens: Annotated[int, msgspec.Meta(ge=1)] = 500  # of a later turn
    output_tokens: Annotated[int, msgspec.Meta(ge=1)] = 500
    act_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    act_shape: Shape = "exponential"
    act_variation: Annotated[float, msgspec.Meta(gt=0)] = 1.0  # of lognormal: deviation / mean


def declared(numbers: Declared, *, group_size: float = 1, shared_prefix: float = 0) -> Workload:
    """The workload that the numbers describe."""
    meter = WorkloadMeter()
    turns: list[TurnSizes] = []
    context = 0
    for index in range(numbers.turns):
        new = numbers.new_tokens if index else numbers.first_prompt
        context += new
        turns.append(TurnSizes(context, new, numbers.output_tokens, numbers.act_seconds))
        context += numbers.output_tokens
    meter.add(turns)
    pauses = Pauses.of(
        numbers.act_seconds if numbers.turns > 1 else 0.0, numbers.act_shape, numbers.act_variation
    )
    return meter.workload(group_size=group_size, shared_prefix=shared_prefix)._replace(
        pauses=pauses, num_samples=0
    )


class WorkloadMeter:
    """Statistics of samples as they end. O(turns) a sample.

    With `memory`, a sample counts half after so many others; all sums carry the same weights.
    """

    def __init__(self, memory: float | None = None) -> None:
        self._keep = 1.0 if memory is None else 0.5 ** (1 / memory)
        self._sums = _Sums()
        self._pauses: deque[float] = deque(maxlen=MAX_PAUSES)
        self._num_samples = 0

    def add(self, turns: Sequence[TurnSizes]) -> None:
        """A sample that ended, its turns in order. Without turns it says nothing."""
        if not turns:
            return
        seen = _Sums.of(turns)
        self._sums = _Sums(
            *(self._keep * old + new for old, new in zip(self._sums, seen, strict=True))
        )
        self._pauses.extend(turn.act_seconds for turn in turns[:-1])
        self._num_samples += 1

    def workload(self, *, group_size: float = 1, shared_prefix: float = 0) -> Workload:
        """What was seen so far. Raises ConfigError before the first sample."""
        sums = self._sums
        if not self._num_samples:
            raise ConfigError("workload: no sample with a turn was seen: give numbers or a trace")
        running = sums.running_context / sums.output
        end = sums.final_context / sums.samples
        idle, square = running, running**2
        if sums.act_seconds > 0:
            idle = sums.idle_context / sums.act_seconds
            square = sums.idle_square / sums.act_seconds
        return Workload(
            turns=sums.turns / sums.samples,
            new_tokens=sums.new / sums.turns,
            output_tokens=sums.output / sums.turns,
            pauses=Pauses(self._pauses),
            resume_context=sums.resumed_context / sums.resumed if sums.resumed else end,
            running_context=running,
            idle_context=idle,
            final_context=end,
            context_deviation=math.sqrt(max(0.0, square - idle**2)),
            group_size=group_size,
            shared_prefix=shared_prefix,
            num_samples=self._num_samples,
        )


class _Sums(NamedTuple):
    samples: float = 0.0
    turns: float = 0.0
    new: float = 0.0
    output: float = 0.0
    resumed: float = 0.0
    resumed_context: float = 0.0
    running_context: float = 0.0  # times output tokens
    act_seconds: float = 0.0
    idle_context: float = 0.0  # times seconds
    idle_square: float = 0.0
    final_context: float = 0.0

    @classmethod
    def of(cls, turns: Sequence[TurnSizes]) -> _Sums:
        paused = turns[:-1]
        ends = [turn.context + turn.output for turn in turns]
        return cls(
            samples=1.0,
            turns=float(len(turns)),
            new=float(sum(turn.new for turn in turns)),
            output=float(sum(turn.output for turn in turns)),
            resumed=float(len(turns) - 1),
            resumed_context=float(sum(turn.context for turn in turns[1:])),
            running_context=sum(turn.output * (turn.context + turn.output / 2) for turn in turns),
            act_seconds=sum(turn.act_seconds for turn in paused),
            idle_context=sum(
                turn.act_seconds * end for turn, end in zip(paused, ends, strict=False)
            ),
            idle_square=sum(
                turn.act_seconds * end**2 for turn, end in zip(paused, ends, strict=False)
            ),
            final_context=float(ends[-1]),
        )
