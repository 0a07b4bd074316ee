"""What every environment must do: the checks, and what a check needs to know about an environment.

An environment of your own passes by being a `Subject` in a test like `test_environments.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from rolloutkit.errors import EnvironmentFailed, SetUpFailed, boundary, failure_of
from rolloutkit.jobs import JobGroup
from rolloutkit.protocols import Environment, EnvironmentSession
from rolloutkit.types import (
    AssistantMessage,
    Completion,
    FailureKind,
    FinishReason,
    Observation,
    Reply,
    SampleId,
    Score,
    Task,
)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An environment and tasks that bring it into the situations of the contract."""

    environment: Environment
    task: Task  # can be played
    broken_task: Task  # its set-up raises
    slow_task: Task  # its set-up and its steps can be cancelled while they wait, or never wait
    reply: Reply  # a step that changes the session's state
    num_open: Callable[[], int]  # sessions that still hold something


def saying(content: str, *, message: AssistantMessage | None = None) -> Reply:
    completion = Completion(finish_reason=FinishReason.STOP)
    return Reply(completion, message or AssistantMessage(content=content))


def open_session(subject: Subject, task: Task, sample_index: int = 0) -> EnvironmentSession:
    return subject.environment.open(task, SampleId(task.task_id, sample_index), seed=0)


async def the_first_observation_shows_something(subject: Subject) -> None:
    session = open_session(subject, subject.task)

    observation = await session.reset()
    await session.close()

    assert bool(observation.messages) != bool(len(observation.token_ids))
    assert not observation.done


async def an_episode_ends_and_has_a_score(subject: Subject) -> None:
    session = open_session(subject, subject.task)

    observation = await session.reset()
    for _ in range(100):
        if observation.done:
            break
        observation = await session.step(saying("Done."))
    score = await session.score()
    await session.close()

    assert observation.done
    assert score is None or isinstance(score, Score)


async def a_step_after_close_fails(subject: Subject) -> None:
    session = open_session(subject, subject.task)
    await session.reset()
    await session.close()

    with pytest.raises(EnvironmentFailed):
        await session.step(subject.reply)


async def closing_twice_is_closing_once(subject: Subject) -> None:
    session = open_session(subject, subject.task)
    await session.reset()

    await session.close()
    await session.close()


async def closing_before_set_up_does_nothing(subject: Subject) -> None:
    await open_session(subject, subject.task).close()


async def opening_has_no_side_effects(subject: Subject) -> None:
    for sample_index in range(100):
        open_session(subject, subject.broken_task, sample_index)


async def a_failed_set_up_is_classified_and_can_be_closed(subject: Subject) -> None:
    session = open_session(subject, subject.broken_task)

    with pytest.raises(SetUpFailed) as raised, boundary(SetUpFailed):
        await session.reset()
    await session.close()

    failure = failure_of(raised.value)
    assert failure.kind is FailureKind.SET_UP
    assert failure.message


async def a_cancelled_set_up_can_be_closed(subject: Subject) -> None:
    session = open_session(subject, subject.slow_task)

    await _cancel(session.reset)
    await session.close()

    assert subject.num_open() == 0


async def a_cancelled_step_can_be_closed(subject: Subject) -> None:
    session = open_session(subject, subject.task)
    await session.reset()

    await _cancel(lambda: session.step(subject.reply))
    await session.close()

    assert subject.num_open() == 0


async def samples_of_one_task_share_no_state(subject: Subject) -> None:
    first, second, alone = (open_session(subject, subject.task, index) for index in range(3))
    await alone.reset()
    expected = await alone.step(subject.reply)

    await first.reset()
    await first.step(subject.reply)
    await second.reset()
    observation = await second.step(subject.reply)

    assert _shown(observation) == _shown(expected)
    for session in (first, second, alone):
        await session.close()
    assert subject.num_open() == 0


CHECKS: tuple[Callable[[Subject], Awaitable[None]], ...] = (
    the_first_observation_shows_something,
    an_episode_ends_and_has_a_score,
    a_step_after_close_fails,
    closing_twice_is_closing_once,
    closing_before_set_up_does_nothing,
    opening_has_no_side_effects,
    a_failed_set_up_is_classified_and_can_be_closed,
    a_cancelled_set_up_can_be_closed,
    a_cancelled_step_can_be_closed,
    samples_of_one_task_share_no_state,
)


async def _cancel(call: Callable[[], Coroutine[Any, Any, Observation]]) -> None:
    """Start the call, cancel it at its first wait, and see it end."""
    async with JobGroup() as group:
        job = group.spawn(call(), name="to be cancelled")
        await asyncio.sleep(0)
        job.cancel()
        await job.outcome()


def _shown(observation: Observation) -> tuple[object, ...]:
    return (observation.messages, list(observation.token_ids), observation.done)
