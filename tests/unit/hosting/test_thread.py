import asyncio
import threading
import time
from pathlib import Path

import pytest

from rolloutkit.errors import EnvironmentFailed
from rolloutkit.hosting.thread import ThreadSession
from rolloutkit.jobs import JobGroup
from rolloutkit.types import (
    AssistantMessage,
    Completion,
    FinishReason,
    Reply,
    SampleId,
    Task,
)
from tests.unit.hosting.blocking_sessions import BlockingEnvironment, Marks

pytestmark = pytest.mark.real_time

SAMPLE = SampleId("t", 0)
REPLY = Reply(Completion(finish_reason=FinishReason.STOP), AssistantMessage())


def _open(marks: Path, **payload: object) -> ThreadSession:
    session = BlockingEnvironment(marks).open(Task(task_id="t", payload=payload), SAMPLE, 0)
    return ThreadSession(session, SAMPLE)


async def test_a_blocking_call_leaves_the_loop_free(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", step=0.2)
    observation = await session.reset()
    assert observation.messages[0]["content"] != f"thread {threading.get_ident()}"
    num_ticks = 0

    async with JobGroup() as group:
        job = group.spawn(session.step(REPLY), name="step")
        while not job.is_done:
            await asyncio.sleep(0.01)
            num_ticks += 1

    assert num_ticks > 2


async def test_a_session_with_an_abandoned_call_can_only_be_closed(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", step=0.2)
    await session.reset()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await session.step(REPLY)

    with pytest.raises(EnvironmentFailed, match="a call was abandoned"):
        await session.step(REPLY)
    await session.close()

    assert Marks(tmp_path / "marks").seen()[1:] == ["reset", "close"]


async def test_close_waits_for_an_abandoned_call_that_is_about_to_end(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", reset=0.2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await session.reset()

    await session.close()

    assert Marks(tmp_path / "marks").seen()[1:] == ["reset", "close"]


async def test_what_a_late_set_up_opened_is_closed_after_it(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    session = _open(marks.path, reset=1.3)  # longer than close waits
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await session.reset()

    await session.close()
    assert marks.seen()[1:] == ["close"]

    deadline = time.monotonic() + 5
    while len(marks.seen()) < 4:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    assert marks.seen()[1:] == ["close", "reset", "close"]


async def test_a_cancelled_close_still_closes(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    session = _open(marks.path, close=0.2)
    await session.reset()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await session.close()
    await session.close()  # idempotent

    assert marks.seen()[1:] == ["reset", "close"]
