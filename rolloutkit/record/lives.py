"""Recorded lives: what each sample of a trace asked for, in order, without the queueing it met.

Folds the events of `trace.jsonl.gz` into calls, actions and stages. Durations are rounded to the
nanosecond: differences of a run's clock carry its rounding, which must not untie what was tied.
What a trace does not know stays None and is filled only by the rule that the caller names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rolloutkit.errors import ConfigError
from rolloutkit.estimate import ReferenceRates, Turn
from rolloutkit.protocols import Stage
from rolloutkit.record.chains import RecordedChain
from rolloutkit.record.events import (
    Action,
    ActionOutcome,
    AttemptStarted,
    Event,
    ModelCall,
    RunEnded,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
)
from rolloutkit.record.trace import read_trace
from rolloutkit.types import FailureKind, SampleId, Status, StopReason

TOOL = "tool"
"""The kind of action of a tool call whose recording names no pool."""

_DIGITS = 9  # of a second
_OVERLAP_SECONDS = 1e-6  # less is the rounding of a clock, not one action beside another


class Call(NamedTuple):
    """A model call; `seconds` is its service time, None where nobody knows it."""

    context: int  # tokens of the whole prompt
    new: int  # of those, not seen before
    output: int
    seconds: float | None = None
    chain: int = 0
    error: FailureKind | None = None


class Act(NamedTuple):
    """An action or a stage of a session, in seconds of service."""

    kind: str
    seconds: float
    is_ok: bool = True


Step: TypeAlias = Call | tuple[Act, ...]
"""A model call, or the actions that ran side by side."""


class Attempt(NamedTuple):
    """One attempt at a sample, from its set-up to its closing; None = there was no such stage."""

    steps: tuple[Step, ...]
    set_up: Act | None = None
    scoring: Act | None = None
    closing: Act | None = None
    failure: FailureKind | None = None

    @property
    def calls(self) -> list[Call]:
        """The model calls that were answered."""
        return [step for step in self.steps if isinstance(step, Call) and step.error is None]

    @property
    def acts(self) -> list[Act]:
        """The actions, stages left out."""
        return [act for step in self.steps if not isinstance(step, Call) for act in step]


class Life(NamedTuple):
    """One sample that ended by itself."""

    sample_id: SampleId
    environment: str
    attempts: tuple[Attempt, ...]
    stop_reason: StopReason = StopReason.DONE
    score: float | None = None

    @property
    def has_session(self) -> bool:
        """Whether it had an environment with stages."""
        return any(one.set_up or one.scoring or one.closing for one in self.attempts)

    def work(self, rates: ReferenceRates) -> float:
        """Reference work of the last attempt, in seconds."""
        last = self.attempts[-1]
        return rates.work(
            Turn(
                action_seconds=sum(act.seconds for act in last.acts),
                output_tokens=sum(call.output for call in last.calls),
                new_tokens=sum(call.new for call in last.calls),
            )
        )


class Recording(NamedTuple):
    """The lives of a trace in the order of admission, and what its run was like."""

    lives: tuple[Life, ...]
    parallelism: int | None = None  # requests that its engine served at once
    num_left_out: int = 0  # samples that were cancelled, or cut off with the trace
    is_complete: bool = True


def lives_of_chains(chains: Sequence[RecordedChain]) -> Recording:
    """Chains as lives without sessions, each a task of its own."""
    return Recording(tuple(map(_life_of_chain, chains)))


def _life_of_chain(chain: RecordedChain) -> Life:
    steps: list[Step] = []
    for turn in chain.turns:
        steps.append(Call(turn.context, turn.new, turn.output))
        if turn.tool_seconds:
            steps.append((Act(TOOL, turn.tool_seconds),))
    return Life(SampleId(chain.trace_id, 0), "", (Attempt(tuple(steps)),))


def read_lives(
    path: Path, *, fill_tokens: int | None = None, fill_option: str = "batch.fill_tokens"
) -> Recording:
    """The lives of a recorded run. `fill_tokens` stands in for output tokens that are not known.

    Raises ConfigError with the line at fault, and `fill_option` as the remedy.
    """
    reader = _Reader(path, fill_tokens, fill_option)
    for number, event in enumerate(read_trace(path), start=1):
        reader.read(event, number)
    return reader.recording()


class _Timed(NamedTuple):
    asked_at: float
    ended_at: float
    step: Call | Act


class _OpenAttempt:
    """What is read of an attempt."""

    def __init__(self) -> None:
        self.timed: list[_Timed] = []
        self.stages: dict[str, Act] = {}


class _OpenLife:
    """What is read of a sample."""

    def __init__(self, admitted: SampleAdmitted) -> None:
        self.admitted = admitted
        self.attempts: dict[int, _OpenAttempt] = {}
        self.ended: SampleEnded | None = None

    def attempt(self, index: int) -> _OpenAttempt:
        return self.attempts.setdefault(index, _OpenAttempt())

    def close(self) -> Life | None:
        """The life, if it ended by itself."""
        ended = self.ended
        if ended is None or ended.status is Status.CANCELLED or not self.attempts:
            return None
        read = [self.attempts[index] for index in sorted(self.attempts)]
        attempts = [_attempt(one, _failure(one)) for one in read[:-1]]
        attempts.append(_attempt(read[-1], ended.failure))
        stop_reason = ended.stop_reason if ended.status is Status.COMPLETED else StopReason.FAILED
        sample_id = _sample_id(ended.sample_id)
        return Life(sample_id, ended.environment, tuple(attempts), stop_reason, ended.score)


_SIGNED = frozenset({"key", "score"})  # numbers that may well be negative


class _Reader:
    """Takes events in order; keeps 100 to 200 bytes for each."""

    def __init__(self, path: Path, fill_tokens: int | None, fill_option: str) -> None:
        self._path = path
        self._fill_option = fill_option
        self._fill_tokens = fill_tokens
        self._lives: dict[str, _OpenLife] = {}
        self._environments: dict[str, str] = {}  # by task
        self._started = RunStarted(t=0.0)
        self._num_unstarted = 0
        self._is_complete = False

    def read(self, event: Event, number: int) -> None:
        """Take the event of that line."""
        self._refuse_negative(event, number)
        if isinstance(event, ModelCall):
            if not event.cancelled:
                self._add_call(event, number)
        elif isinstance(event, Action):
            if event.outcome is not ActionOutcome.CANCELLED:
                self._add_action(event, number)
        else:
            self._read_state(event, number)

    def _read_state(self, event: Event, number: int) -> None:
        match event:
            case RunStarted():
                self._started = event
            case SampleAdmitted():
                self._admit(event, number)
            case AttemptStarted():
                self._life(event.sample_id, number).attempt(event.attempt)
            case SampleEnded() if event.admitted:
                self._life(event.sample_id, number).ended = event
            case SampleEnded():
                self._num_unstarted += 1
            case RunEnded():
                self._is_complete = True
            case _:
                pass

    def recording(self) -> Recording:
        """What was read. Raises ConfigError when no sample ended by itself."""
        by_admission = sorted(self._lives.values(), key=lambda one: one.admitted.seq)
        lives = [life for one in by_admission if (life := one.close()) is not None]
        if not lives:
            raise ConfigError(f"{self._path} holds no sample that ended by itself: record a run")
        num_left_out = len(by_admission) - len(lives) + self._num_unstarted
        return Recording(tuple(lives), self._started.parallelism, num_left_out, self._is_complete)

    def _admit(self, event: SampleAdmitted, number: int) -> None:
        task_id = _sample_id(event.sample_id).task_id
        environment = self._environments.setdefault(task_id, event.environment)
        if environment != event.environment:
            raise self._wrong(
                number,
                f"task {task_id!r} mixes environments {environment!r} and {event.environment!r}: "
                "a group must be of one",
            )
        self._lives[event.sample_id] = _OpenLife(event)

    def _add_call(self, call: ModelCall, number: int) -> None:
        output, context = call.output_tokens, call.context_tokens
        if call.error is None and output is None:
            if self._fill_tokens is None:
                raise self._wrong(
                    number,
                    f"output_tokens is not recorded: give {self._fill_option}=N to assume N",
                )
            output = self._fill_tokens
        # A context that shrank counts as new as a whole; what was cached was not.
        new = min(call.new_tokens, context - (call.cached_tokens or 0))
        step = Call(
            context=max(1, context),
            new=max(1, new),
            output=max(1, output or 0),
            seconds=self._service_seconds(call),
            chain=call.chain,
            error=call.error,
        )
        attempt = self._life(call.sample_id, number).attempt(call.attempt)
        attempt.timed.append(_Timed(call.t - call.seconds - call.parked_seconds, call.t, step))

    def _service_seconds(self, call: ModelCall) -> float | None:
        """What the call took without queueing; None where its trace only lays it out by a rule.

        What a real engine says of its own work leaves out 5 % of what its calls take (BFCL on
        llama.cpp), so that the wall clock goes first there.
        """
        is_real = self._started.service_times == OBSERVED
        if call.service_seconds is not None and not is_real:
            return _rounded(call.service_seconds)
        if call.queue_seconds is not None:
            return _rounded(max(0.0, call.seconds - call.queue_seconds))
        if call.service_seconds is not None:
            return _rounded(call.service_seconds)
        return None if self._started.service_times == DERIVED else _rounded(call.seconds)

    def _add_action(self, action: Action, number: int) -> None:
        attempt = self._life(action.sample_id, number).attempt(action.attempt)
        act = Act(action.kind, _rounded(action.seconds), action.outcome is ActionOutcome.OK)
        stage = action.kind.rpartition(".")[2]
        if stage in _STAGES_APART:
            attempt.stages[stage] = act
        else:
            asked_at = action.t - action.seconds - action.wait_seconds
            attempt.timed.append(_Timed(asked_at, action.t, act))

    def _life(self, sample_id: str, number: int) -> _OpenLife:
        life = self._lives.get(sample_id)
        if life is None:
            raise self._wrong(number, f"sample {sample_id!r} was not admitted before: restore it")
        return life

    def _refuse_negative(self, event: Event, number: int) -> None:
        for name in event.__struct_fields__:
            value = getattr(event, name)
            if name not in _SIGNED and isinstance(value, int | float) and value < 0:
                raise self._wrong(
                    number, f"{name} is negative: {value}: correct the line or leave it out"
                )

    def _wrong(self, number: int, what: str) -> ConfigError:
        return ConfigError(f"{self._path} line {number}: {what}")


OBSERVED = "observed"
"""`RunStarted.service_times` of a real run."""

DERIVED = "derived"
"""`RunStarted.service_times` of an import: model calls take what the reference rates say."""

_STAGES_APART = frozenset({Stage.SET_UP.value, Stage.SCORE.value, Stage.CLOSE.value})


def _attempt(read: _OpenAttempt, failure: FailureKind | None) -> Attempt:
    stages = read.stages
    return Attempt(
        steps=tuple(_steps(read.timed)),
        set_up=stages.get(Stage.SET_UP),
        scoring=stages.get(Stage.SCORE),
        closing=stages.get(Stage.CLOSE),
        failure=failure,
    )


def _steps(timed: list[_Timed]) -> Iterator[Step]:
    """The operations in the order in which they were asked for; actions that overlap are one."""
    beside: list[Act] = []
    ends_at = 0.0
    for one in sorted(timed, key=lambda one: one.asked_at):
        if isinstance(one.step, Call):
            if beside:
                yield tuple(beside)
                beside = []
            yield one.step
            continue
        if beside and one.asked_at >= ends_at - _OVERLAP_SECONDS:
            yield tuple(beside)
            beside = []
        ends_at = max(ends_at, one.ended_at) if beside else one.ended_at
        beside.append(one.step)
    if beside:
        yield tuple(beside)


def _failure(read: _OpenAttempt) -> FailureKind:
    """Why an attempt that was tried again had failed."""
    set_up = read.stages.get(Stage.SET_UP)
    if set_up is not None and not set_up.is_ok:
        return FailureKind.SET_UP
    errors = [one.step.error for one in read.timed if isinstance(one.step, Call)]
    return (errors[-1] if errors else None) or FailureKind.ENVIRONMENT


def _sample_id(text: str) -> SampleId:
    task_id, _, index = text.rpartition("#")
    return SampleId(task_id, int(index)) if index.isdigit() else SampleId(text, 0)


def _rounded(seconds: float) -> float:
    return round(seconds, _DIGITS)
