"""Small engines and environments whose every delay and fault a test chooses."""

import asyncio
from array import array
from collections import Counter
from dataclasses import dataclass, field

from rolloutkit.errors import EngineError, RequestError
from rolloutkit.protocols import Capabilities
from rolloutkit.types import Completion, FinishReason, Observation, SampleId, Score

PROMPT = array("i", range(5))
SPOKEN = array("i", [7, 8, 2])
LOGPROBS = array("f", [-0.5, -1.0, -0.25])


def completion(request, **changes):
    """What a well-behaved engine answers."""
    fields = {
        "finish_reason": FinishReason.STOP,
        "token_ids": SPOKEN,
        "logprobs": LOGPROBS,
        "prompt_tokens": len(request.prompt.token_ids),
        "cached_tokens": 0,
    }
    return Completion(**{**fields, **changes})


@dataclass
class FakeEngine:
    """Answers after `seconds`; `faults` says which call (sample, turn) hangs, breaks or is
    refused.
    """

    seconds: float = 1.0
    faults: dict[tuple[SampleId, int], str] = field(default_factory=dict)
    max_context: int | None = None
    num_running: int = 0
    finished: Counter = field(default_factory=Counter)

    @property
    def capabilities(self):
        return Capabilities(token_ids=True, logprobs=True, max_context=self.max_context)

    async def generate(self, request, on_progress=None):
        self.num_running += 1
        try:
            await asyncio.sleep(self.seconds)
            fault = self.faults.get((request.sample_id, request.turn))
            if fault == "hang":
                await asyncio.get_running_loop().create_future()
            if fault == "break":
                raise EngineError("the worker died")
            if fault == "refuse":
                raise RequestError("no such model")
            return completion(request)
        finally:
            self.num_running -= 1

    def finish(self, sample_id):
        self.finished[sample_id] += 1


@dataclass
class Plan:
    """What one sample's session does: `faults` by stage (`set_up`, `step`, `score`, `close`)."""

    num_turns: int = 1
    seconds: float = 1.0
    faults: dict[str, str] = field(default_factory=dict)
    heals: bool = False  # the faults are gone at the second attempt


class FakeEnvironment:
    """Sessions that follow a plan each, and a record of which were opened and closed."""

    def __init__(self, plans, name="fake"):
        self.name = name
        self.plans = plans
        self.opened = Counter()
        self.closed = Counter()
        self.attempts = Counter()
        self.sessions = []

    def open(self, task, sample_id, seed):
        self.attempts[sample_id] += 1
        session = FakeSession(self, sample_id, self.plans[sample_id], self.attempts[sample_id])
        self.sessions.append(session)
        return session


class FakeSession:
    def __init__(self, environment, sample_id, plan, attempt):
        self.environment = environment
        self.sample_id = sample_id
        self.plan = plan
        self.attempt = attempt
        self.num_steps = 0
        self.is_busy = False
        self.num_closes = 0

    async def do(self, stage):
        assert not self.is_busy, "one call at a time"
        assert not self.num_closes, "nothing after close"
        self.is_busy = True
        try:
            await asyncio.sleep(self.plan.seconds)
            fault = None if self.plan.heals and self.attempt > 1 else self.plan.faults.get(stage)
            if fault == "hang":
                await asyncio.get_running_loop().create_future()
            if fault == "crash":
                raise OSError(f"{stage} broke")
        finally:
            self.is_busy = False

    async def reset(self):
        self.environment.opened[self.sample_id] += 1
        await self.do("set_up")
        return Observation(token_ids=PROMPT)

    async def step(self, reply):
        await self.do("step")
        self.num_steps += 1
        return Observation(token_ids=PROMPT, done=self.num_steps >= self.plan.num_turns, reward=0.5)

    async def score(self):
        await self.do("score")
        return Score(1.0)

    async def close(self):
        self.environment.closed[self.sample_id] += 1
        try:
            await self.do("close")
        finally:
            self.num_closes += 1
