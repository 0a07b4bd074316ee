"""An environment that follows a script: chosen durations, observations, crashes and hangs.

A script is given, or drawn from small distributions by (seed, sample), so that the same sample
behaves the same in every run and under every policy. A step costs about what `asyncio.sleep` costs:
observations are made once per length and shared, and must not be changed.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from array import array
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, TypeAlias

import msgspec

from rolloutkit.errors import EnvironmentFailed
from rolloutkit.types import Message, Observation, Reply, SampleId, Score, Task

_NUM_TOKEN_IDS = 1_000  # scripted token ids are 1 to this: any vocabulary has them
_MAX_LENGTHS = 4_096  # observations kept: distinct lengths, most of them a few KiB

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Fault(StrEnum):
    """How a call goes wrong after it took its time."""

    CRASH = "crash"  # it raises
    HANG = "hang"  # it never comes back
    BLOCK = "block"  # it blocks the event loop for that time, and then succeeds


class Act(msgspec.Struct, frozen=True):
    """What one call of a session does."""

    seconds: float = 0.0
    fault: Fault | None = None


class Turn(msgspec.Struct, frozen=True):
    """What one step does, and what it shows."""

    observation: Observation
    act: Act = Act()


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One sample's life. The last turn's observation must be `done`."""

    prompt: Observation
    turns: tuple[Turn, ...]
    set_up: Act = Act()
    scoring: Act = Act()
    closing: Act = Act()
    score: float | None = 1.0


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A log-normal distribution by its mean; `sigma` 0 always gives the mean."""

    mean: Annotated[float, msgspec.Meta(ge=0)]
    sigma: Annotated[float, msgspec.Meta(ge=0)] = 0.0

    def draw(self, rng: random.Random) -> float:
        """One value; nothing is drawn from `rng` when there is no spread."""
        if self.sigma == 0:
            return self.mean
        return self.mean * math.exp(rng.gauss(-self.sigma * self.sigma / 2, self.sigma))


class FaultRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chance of each fault, per call."""

    crash: Share = 0.0
    hang: Share = 0.0
    block: Share = 0.0

    def draw(self, rng: random.Random) -> Fault | None:
        """A fault or none; nothing is drawn from `rng` when there is no chance of any."""
        if self.crash == self.hang == self.block == 0:
            return None
        chances = (self.crash, self.hang, self.block)
        left = rng.random()
        for fault, chance in zip(Fault, chances, strict=True):
            left -= chance
            if left < 0:
                return fault
        return None


class ScriptedConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What scripts are drawn from: times in seconds, lengths in tokens (in words with `text`)."""

    num_tasks: Annotated[int, msgspec.Meta(ge=1)] = 4
    num_samples: Annotated[int, msgspec.Meta(ge=1)] = 1  # of each task
    num_turns: Spread = Spread(8, 0.5)
    step_seconds: Spread = Spread(1.0, 1.0)
    set_up_seconds: Spread = Spread(1.0)
    score_seconds: Spread = Spread(0.1)
    close_seconds: Spread = Spread(0.1)
    prompt_tokens: Spread = Spread(200)
    observation_tokens: Spread = Spread(100, 0.5)
    set_up_faults: FaultRates = FaultRates()
    step_faults: FaultRates = FaultRates()
    score_faults: FaultRates = FaultRates()
    close_faults: FaultRates = FaultRates()
    text: bool = False  # show messages, for engines with a chat template, instead of token ids
    seed: int = 0


ScriptOf: TypeAlias = Callable[[Task, SampleId], Script]
"""Gives a sample its script."""


class ScriptedEnvironment:
    """Samples that follow scripts drawn from `config`, or those of `script_of`."""

    Config = ScriptedConfig

    def __init__(
        self,
        config: ScriptedConfig = ScriptedConfig(),  # noqa: B008 - it is frozen
        *,
        script_of: ScriptOf | None = None,
    ) -> None:
        self._config = config
        self._script_of = script_of or self._draw

    @property
    def name(self) -> str:
        return "scripted"

    def tasks(self) -> list[Task]:
        """Tasks `task-0` to `task-N`."""
        config = self._config
        return [
            Task(task_id=f"task-{i}", num_samples=config.num_samples)
            for i in range(config.num_tasks)
        ]

    def open(self, task: Task, sample_id: SampleId, seed: int) -> ScriptedSession:
        """A session; `config.seed` decides what it does, so that a retry meets the same fate."""
        del seed
        return ScriptedSession(self._script_of, task, sample_id)

    def _draw(self, task: Task, sample_id: SampleId) -> Script:
        del task
        config = self._config
        rng = random.Random(f"{config.seed}/{sample_id}")
        num_turns = max(1, round(config.num_turns.draw(rng)))

        def act(seconds: Spread, faults: FaultRates) -> Act:
            return Act(seconds.draw(rng), faults.draw(rng))

        def shown(length: Spread, *, done: bool = False) -> Observation:
            return show(max(1, round(length.draw(rng))), text=config.text, done=done)

        return Script(
            prompt=shown(config.prompt_tokens),
            turns=tuple(
                Turn(
                    shown(config.observation_tokens, done=left == 1),
                    act(config.step_seconds, config.step_faults),
                )
                for left in range(num_turns, 0, -1)
            ),
            set_up=act(config.set_up_seconds, config.set_up_faults),
            scoring=act(config.score_seconds, config.score_faults),
            closing=act(config.close_seconds, config.close_faults),
            score=rng.random(),
        )


class ScriptedSession:
    """Follows one script, drawn in `reset`: a session that has not begun is small."""

    __slots__ = ("_sample_id", "_script", "_script_of", "_task", "_turns")

    def __init__(self, script_of: ScriptOf, task: Task, sample_id: SampleId) -> None:
        self._script_of = script_of
        self._task = task
        self._sample_id = sample_id
        self._script: Script | None = None
        self._turns: Iterator[Turn] = iter(())

    async def reset(self) -> Observation:
        script = self._script = self._script_of(self._task, self._sample_id)
        await _perform(script.set_up)
        self._turns = iter(script.turns)
        return script.prompt

    async def step(self, reply: Reply) -> Observation:
        """The next turn, whatever the reply says."""
        del reply
        turn = next(self._turns, None)
        if turn is None:
            raise EnvironmentFailed(f"the script of {self._sample_id} is over")
        act = turn.act
        if act.fault is None and act.seconds > 0:
            await asyncio.sleep(act.seconds)
        else:
            await _perform(act)
        return turn.observation

    async def score(self) -> Score | None:
        assert self._script is not None, "only a session that was set up is scored"
        await _perform(self._script.scoring)
        return None if self._script.score is None else Score(self._script.score)

    async def close(self) -> None:
        self._turns = iter(())
        script, self._script = self._script, None
        if script is not None:
            await _perform(script.closing)


@lru_cache(maxsize=_MAX_LENGTHS)
def show(length: int, *, text: bool = False, done: bool = False) -> Observation:
    """An observation of `length` token ids, or words. Shared: do not change it."""
    if text:
        return Observation(messages=(Message(role="user", content="word " * length),), done=done)
    token_ids = array("i", (1 + i % _NUM_TOKEN_IDS for i in range(length)))
    return Observation(token_ids=token_ids, done=done)


async def _perform(act: Act) -> None:
    if act.fault is Fault.BLOCK:
        time.sleep(act.seconds)  # noqa: ASYNC251, TID251 - blocking the loop is what it is for
        return
    if act.seconds > 0:
        await asyncio.sleep(act.seconds)
    if act.fault is Fault.CRASH:
        raise RuntimeError("the script says crash")
    if act.fault is Fault.HANG:
        await asyncio.get_running_loop().create_future()
