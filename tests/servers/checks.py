"""What SGLang and vLLM are both asked beyond the contract; they run 16 calls at once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import msgspec
import pytest

from rolloutkit.batch import Settings, rollout
from rolloutkit.clock import now
from rolloutkit.context import SampleContext
from rolloutkit.protocols import Capabilities, Engine, OnProgress
from rolloutkit.types import (
    Completion,
    GenerateRequest,
    Message,
    SampleId,
    SamplingParams,
    Task,
)
from tests.contract.engine_suite import Subject, request_for, until_idle
from tests.contract.smollm2 import GREETING
from tests.rendering import chatml

Score = Callable[[list[int]], Awaitable[list[float]]]

NUM_PLACES = 16


async def until_alive(subject: Subject, count: int) -> None:
    """Wait until the server knows of so many calls."""
    give_up_at = now() + 60.0
    while await subject.num_running() < count:
        assert now() < give_up_at, f"the server never had {count} calls"
        await asyncio.sleep(0.02)


async def one_that_runs(subject: Subject, **sampling: float) -> asyncio.Task[Completion]:
    """A call that has brought its first token."""
    is_started = asyncio.Event()
    request = request_for(subject, ids=(*GREETING, 300), temperature=1.0, **sampling)
    prompt = msgspec.structs.replace(request.prompt, stop_token_ids=())
    request = msgspec.structs.replace(request, prompt=prompt)
    job = asyncio.create_task(subject.engine.generate(request, lambda _: is_started.set()))
    await is_started.wait()
    return job


async def cancelled_calls_are_aborted(subject: Subject) -> None:
    """A storm: all are cancelled, four of which the server had not begun."""
    jobs = [
        asyncio.create_task(
            subject.engine.generate(request_for(subject, index, max_tokens=400, temperature=1.0))
        )
        for index in range(NUM_PLACES + 4)
    ]
    await until_alive(subject, len(jobs))

    for job in jobs:
        job.cancel()

    for job in jobs:
        with pytest.raises(asyncio.CancelledError):
            await job
    await until_idle(subject)


async def the_more_urgent_call_runs_first(subject: Subject) -> None:
    """With all places taken, the last to come is the first to be served."""
    ends: list[str] = []

    async def call(name: str, index: int, priority: float, max_tokens: int) -> None:
        request = request_for(subject, index, max_tokens=max_tokens)
        await subject.engine.generate(msgspec.structs.replace(request, priority=priority))
        ends.append(name)

    jobs = [
        asyncio.create_task(call("holder", index, 3.0, 40 + index)) for index in range(NUM_PLACES)
    ]
    await until_alive(subject, NUM_PLACES)
    for name, priority in (("low", 1.0), ("high", 2.0)):
        jobs.append(asyncio.create_task(call(name, 30 + len(jobs), priority, 1)))
        await until_alive(subject, len(jobs))

    await asyncio.gather(*jobs)

    assert ends.index("high") < ends.index("low")


class Watched:
    """An engine that keeps what each call sent and brought."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.calls: list[tuple[list[int], Completion]] = []

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        sent = list(request.prompt.token_ids)
        completion = await self._engine.generate(request, on_progress)
        self.calls.append((sent, completion))
        return completion

    def finish(self, sample_id: SampleId) -> None:
        self._engine.finish(sample_id)


NUM_TURNS = 8


async def converse(sample: SampleContext) -> None:
    """Eight turns, all but the first upon the result of a tool."""
    message: Message = {"role": "user", "content": "Count the files, one folder after the other."}
    for turn in range(NUM_TURNS):
        await sample.generate([message])
        listing = " ".join(f"note_{turn}_{index}.txt" for index in range(6))
        message = {"role": "tool", "content": f"folder {turn}: {listing}"}


async def tokens_stay_what_they_are(subject: Subject, score: Score) -> None:
    """What was sent, recorded and returned is the same, and scores as it was sampled.

    `score` gives the log-prob of each token of a text but the first, from one call.
    """
    engine = Watched(subject.engine)
    settings = Settings(sampling=SamplingParams(max_tokens=24), seed=11)
    tasks = [Task(task_id="files")]
    async with aclosing(
        rollout(tasks, engine=engine, program=converse, renderer=chatml(), settings=settings)
    ) as trajectories:
        (trajectory,) = [one async for one in trajectories]

    (chain,) = trajectory.chains
    ids, sampled = list(chain.token_ids), list(chain.sampled_mask)
    assert trajectory.num_turns == len(engine.calls) == NUM_TURNS
    known = 0  # of the chain, that was sent or returned
    for sent, completion in engine.calls:
        assert ids[: len(sent)] == sent
        assert completion.prompt_tokens == len(sent)
        assert 0 not in sampled[len(sent) : len(sent) + len(completion.token_ids)]
        assert 1 not in sampled[known : len(sent)]
        known = len(sent) + len(completion.token_ids)
        assert ids[len(sent) : known] == list(completion.token_ids)
    assert known == len(ids)
    scored = await score(ids)
    assert len(scored) == len(ids) - 1
    errors = [
        abs(scored[index - 1] - chain.logprobs[index])
        for index in range(len(ids))
        if sampled[index]
    ]
    assert len(errors) == trajectory.output_tokens
    assert max(errors) < 1e-3


async def resumed_turns_hit_their_prefix(subject: Subject) -> None:
    """At least 98 % of what the cache can hold of the turn before, which lacks its last token."""
    engine = Watched(subject.engine)
    settings = Settings(sampling=SamplingParams(max_tokens=24), seed=12)
    tasks = [Task(task_id="hits", num_samples=2)]
    async with aclosing(
        rollout(tasks, engine=engine, program=converse, renderer=chatml(), settings=settings)
    ) as trajectories:
        assert [one.num_turns async for one in trajectories] == [NUM_TURNS, NUM_TURNS]

    hits = cacheable = 0
    for sent, completion in engine.calls:
        before = [
            len(text) + len(one.token_ids)
            for text, one in engine.calls
            if len(text) < len(sent)
            and sent[: len(text) + len(one.token_ids)] == text + list(one.token_ids)
        ]
        if before:
            longest = max(before) - 1
            cacheable += longest - longest % subject.cache_block
            hits += completion.cached_tokens
    assert cacheable > 2_000
    assert hits >= 0.98 * cacheable
