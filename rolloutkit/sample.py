"""The life of one sample, from its permit to its last turn and its score: the only turn loop.

`run_sample` turns every error into data and is cancelled without waiting for anything; what it
leaves open (a session, a trajectory to emit) its `Life` shows to the closer. Nothing else writes a
sample's fate.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from rolloutkit.admission import Permit
from rolloutkit.clock import Watchdog
from rolloutkit.closer import Closer
from rolloutkit.context import Ending, SampleContext, as_score
from rolloutkit.errors import (
    ConfigError,
    ProgramError,
    RolloutError,
    RunFailed,
    SetUpFailed,
    StopSample,
    boundary,
    failure_of,
)
from rolloutkit.protocols import EnvironmentSession
from rolloutkit.services import Services
from rolloutkit.types import CancelReason, Status, StopReason


@dataclass(slots=True, eq=False)
class Life:
    """What is known of a living sample: its permit, its current attempt, and how it ended once it
    has.
    """

    permit: Permit
    context: SampleContext | None = None
    ending: Ending | None = None
    closed_for: CancelReason | None = None  # why it alone was cancelled


async def run_sample(life: Life, services: Services, closer: Closer) -> None:
    """Live: attempt, try again where the retry policy says so, give the memory back, score.

    Sets `life.ending` unless it is cancelled; the one who started it reads it and hands over the
    session.
    """
    watchdog = Watchdog()
    attempt = 0
    try:
        while True:
            context = life.context = SampleContext(services, life.permit, attempt, watchdog)
            context.announce()
            ending = await _attempt(context, services)
            await context.settle()
            failure = ending.failure
            if failure is None or not services.retry.wants(failure.kind, attempt):
                break
            await closer.close(context)
            services.engine.finish(context.sample_id)  # the next attempt has another prefix
            await asyncio.sleep(services.retry.delay_seconds * 2**attempt)
            attempt += 1
        life.permit.release()
        services.engine.finish(context.sample_id)
        life.ending = await _score(context, ending)
    finally:
        watchdog.close()


async def _attempt(context: SampleContext, services: Services) -> Ending:
    """One attempt. Failures are data; cancellation and a wrongly configured run are raised."""
    try:
        with context.bounded():
            return await _play(context, services)
    except StopSample as stop:
        return Ending(Status.COMPLETED, stop.reason)
    except (ConfigError, RunFailed):
        raise
    except RolloutError as error:
        return Ending(Status.FAILED, StopReason.FAILED, failure_of(error, attempt=context.attempt))
    finally:
        context.end()


async def _play(context: SampleContext, services: Services) -> Ending:
    session: EnvironmentSession | None = None
    environment = services.environments.get(context.environment)
    if environment is not None:
        with boundary(SetUpFailed):
            session = environment.open(context.task, context.sample_id, context.seed)
    if services.program is not None:
        context.session = session
        with boundary(ProgramError):
            score = as_score(await services.program(context))
        return Ending(Status.COMPLETED, StopReason.DONE, score=score)
    assert session is not None, "the orchestrator refuses tasks of unknown environments"
    observation = await context.reset(session)
    while not observation.done:
        reply = await context.generate(
            observation.messages,
            token_ids=observation.token_ids,
            tools=observation.tools,
            tools_in_messages=observation.tools_in_messages,
        )
        observation = await context.step(session, reply)
    return Ending(Status.COMPLETED, observation.stop_reason)


async def _score(context: SampleContext, ending: Ending) -> Ending:
    """Score a completed sample that has not scored itself; a scorer that fails fails the sample."""
    if ending.status is not Status.COMPLETED or ending.score is not None or context.session is None:
        return ending
    try:
        return ending._replace(score=await context.score(context.session))
    except RolloutError as error:
        return Ending(Status.FAILED, StopReason.FAILED, failure_of(error, attempt=context.attempt))
