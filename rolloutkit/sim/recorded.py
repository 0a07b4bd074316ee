"""Replay of recorded lives: an environment, an agent program and an engine that repeat them.

Every operation takes its recorded service time and queues anew in the pools of this run. What
failed fails again in the same place and by the same kind. A model call that failed is a pause.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from rolloutkit.engines.slots import SlotTable
from rolloutkit.errors import (
    EngineError,
    EnvironmentFailed,
    LimitExceeded,
    ProgramError,
    RenderError,
    RequestError,
    RolloutError,
    ScoreFailed,
    SetUpFailed,
    StopSample,
)
from rolloutkit.protocols import Capabilities, OnProgress
from rolloutkit.record.lives import Act, Attempt, Call, Life
from rolloutkit.sim.faults import Faults, be_silent
from rolloutkit.sim.sizes import UNLIMITED, asked_for
from rolloutkit.sim.worker import Sizes
from rolloutkit.types import (
    Chain,
    Completion,
    FailureKind,
    FinishReason,
    GenerateRequest,
    Observation,
    Reply,
    SampleId,
    Score,
    StopReason,
    Task,
)

if TYPE_CHECKING:
    from rolloutkit.context import SampleContext


class LifeBatch:
    """Lives by sample, in dataset order; `live` is the agent program that repeats them.

    `faults` befall its actions; of each task the last `num_spare` samples are not asked for.
    """

    def __init__(
        self,
        lives: Mapping[SampleId, Life],
        *,
        faults: Faults | None = None,
        num_spare: int = 0,
    ) -> None:
        self._lives = dict(lives)
        self._faults = faults
        self._num_spare = num_spare

    def items(self) -> Iterable[tuple[SampleId, Life]]:
        """Samples and their lives, in dataset order."""
        return self._lives.items()

    def tasks(self) -> list[Task]:
        """The groups, in dataset order."""
        groups: dict[str, list[Life]] = {}
        for sample_id, life in self._lives.items():
            groups.setdefault(sample_id.task_id, []).append(life)
        return [
            Task(
                task_id=task_id,
                environment=next((life.environment for life in group if life.has_session), ""),
                num_samples=len(group) - self._num_spare,
            )
            for task_id, group in groups.items()
        ]

    def environments(self) -> list[RecordedEnvironment]:
        """The environments of lives that had sessions."""
        names = dict.fromkeys(life.environment for life in self._lives.values() if life.has_session)
        return [RecordedEnvironment(name, self._lives) for name in names]

    def call_of(self, request: GenerateRequest) -> Call:
        """What the request was in the recording."""
        attempt = _attempt_of(self._lives[request.sample_id], request.attempt)
        return attempt.calls[request.turn]

    def sizes_of(self, request: GenerateRequest) -> Sizes:
        """Its sizes, for an engine that asks."""
        call = self.call_of(request)
        return asked_for(request, call.context, call.new, call.output)

    async def live(self, sample: SampleContext) -> Score | None:
        """The agent program: the recorded life of a sample."""
        life = self._lives[sample.sample_id]
        attempt = _attempt_of(life, sample.attempt)
        if attempt.set_up is not None and sample.session is not None:
            await sample.reset(sample.session)
        chains: dict[int, Chain | None] = {0: None}
        for step in attempt.steps:
            if not isinstance(step, Call):
                await self._act(sample, step)
            elif step.error is not None:
                await asyncio.sleep(step.seconds or 0.0)
            else:
                if step.chain not in chains:
                    chains[step.chain] = sample.chain()
                await sample.generate(
                    chain=chains[step.chain], prompt_tokens=step.context, sampling=UNLIMITED
                )
        if attempt.failure not in (None, FailureKind.SCORE):
            raise _error(attempt.failure)
        if life.stop_reason not in (StopReason.DONE, StopReason.FAILED):
            raise StopSample(life.stop_reason)
        has_scored_itself = life.score is not None and attempt.scoring is None
        return Score(life.score) if has_scored_itself and life.score is not None else None

    async def _act(self, sample: SampleContext, acts: Sequence[Act]) -> None:
        """Actions side by side; one that fails is the program's to survive, as recorded."""
        if len(acts) == 1:
            with suppress(EnvironmentFailed):
                await sample.act(acts[0].kind, self._performance(sample, acts[0], 0))
            return
        jobs = [
            sample.spawn(sample.act(act.kind, self._performance(sample, act, index)))
            for index, act in enumerate(acts)
        ]
        for job in jobs:
            await job.outcome()

    def _performance(
        self, sample: SampleContext, act: Act, index: int
    ) -> Callable[[], Awaitable[None]]:
        """What is called to repeat an action; each time it is called a fault is drawn anew."""
        if self._faults is None:
            return partial(_perform, act)
        name = (
            f"{sample.sample_id}/{sample.attempt}/{sample.num_turns}/{sample.num_actions}/{index}"
        )
        issues = itertools.count()
        return partial(_perform_faulty, act, self._faults, name, issues)


class RecordedEnvironment:
    """Sessions whose stages take what they took in the recording."""

    def __init__(self, name: str, lives: Mapping[SampleId, Life]) -> None:
        self._name = name
        self._lives = lives
        self._num_opened: Counter[SampleId] = Counter()

    @property
    def name(self) -> str:
        return self._name

    def open(self, task: Task, sample_id: SampleId, seed: int) -> RecordedSession:
        """The session of the sample's next attempt."""
        del task, seed
        life = self._lives[sample_id]
        attempt = _attempt_of(life, self._num_opened[sample_id])
        self._num_opened[sample_id] += 1
        return RecordedSession(attempt, life.score)


class RecordedSession:
    """Repeats the stages of one attempt. Its steps are actions of the program."""

    def __init__(self, attempt: Attempt, score: float | None) -> None:
        self._attempt = attempt
        self._score = score

    async def reset(self) -> Observation:
        await _perform(self._attempt.set_up)
        return Observation()

    async def step(self, reply: Reply) -> Observation:
        raise NotImplementedError("a recorded session has no steps of its own")

    async def score(self) -> Score | None:
        await _perform(self._attempt.scoring)
        return None if self._score is None else Score(self._score)

    async def close(self) -> None:
        await _perform(self._attempt.closing)


class RecordedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many calls are served at once; more wait, first come first served."""

    parallelism: Annotated[int, msgspec.Meta(ge=1)] | None = None  # None: as recorded


class RecordedEngine:
    """Every call takes its recorded service time, whatever else runs."""

    Config = RecordedConfig

    def __init__(self, parallelism: int | None, batch: LifeBatch) -> None:
        self._batch = batch
        self._slots = None if parallelism is None else SlotTable(parallelism)
        self._capabilities = Capabilities(parallelism=parallelism)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Wait for a place, then for the recorded time. Cancelling gives the place back."""
        del on_progress
        call = self._batch.call_of(request)
        if call.seconds is None:
            raise RequestError("the duration of this call is not recorded")
        asked_at = started_at = asyncio.get_running_loop().time()
        if self._slots is None:
            await asyncio.sleep(call.seconds)
        else:
            async with self._slots.hold(request.sample_id):
                started_at = asyncio.get_running_loop().time()
                await asyncio.sleep(call.seconds)
        return Completion(
            finish_reason=FinishReason.STOP,
            prompt_tokens=call.context,
            output_tokens=call.output,
            queue_seconds=started_at - asked_at,
            service_seconds=call.seconds,
        )

    def finish(self, sample_id: SampleId) -> None:
        """Forget whose slot it was."""
        if self._slots is not None:
            self._slots.forget(sample_id)


def _attempt_of(life: Life, index: int) -> Attempt:
    """The recorded attempt of that index; beyond the last, the last again."""
    return life.attempts[min(index, len(life.attempts) - 1)]


async def _perform(act: Act | None) -> None:
    if act is None:
        return
    if act.seconds > 0:
        await asyncio.sleep(act.seconds)
    if not act.is_ok:
        raise RuntimeError("failed in the recording")


async def _perform_faulty(act: Act, faults: Faults, name: str, issues: Iterator[int]) -> None:
    stall = faults.of_action(f"{name}/{next(issues)}")
    await _perform(act)
    if stall is not None:
        await be_silent(stall)


_ERRORS: Mapping[FailureKind, type[RolloutError]] = {
    FailureKind.SET_UP: SetUpFailed,
    FailureKind.ENVIRONMENT: EnvironmentFailed,
    FailureKind.ENGINE: EngineError,
    FailureKind.REQUEST: RequestError,
    FailureKind.RENDER: RenderError,
    FailureKind.SCORE: ScoreFailed,
    FailureKind.PROGRAM: ProgramError,
}


def _error(kind: FailureKind | None) -> RolloutError:
    """What ended the attempt in the recording."""
    if kind is None or kind not in _ERRORS:  # a limit; which one the events do not say
        return LimitExceeded("recorded", 0.0)
    return _ERRORS[kind]("failed in the recording")
