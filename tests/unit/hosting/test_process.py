import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from rolloutkit.errors import EnvironmentFailed, ScoreFailed, SetUpFailed, boundary, failure_of
from rolloutkit.hosting import RemoteError, hosted
from rolloutkit.protocols import EnvironmentSession
from rolloutkit.types import (
    AssistantMessage,
    Completion,
    FailureKind,
    FinishReason,
    Reply,
    SampleId,
    Score,
    Task,
)
from tests.unit.hosting.blocking_sessions import BlockingEnvironment, CoroutineEnvironment, Marks

pytestmark = pytest.mark.real_time

SAMPLE = SampleId("t", 0)
REPLY = Reply(Completion(finish_reason=FinishReason.STOP), AssistantMessage())


def _open(marks: Path, **payload: object) -> EnvironmentSession:
    environment = hosted(BlockingEnvironment(marks), where="process")
    return environment.open(Task(task_id="t", payload=payload), SAMPLE, 0)


def _pids(marks: Path) -> list[int]:
    return [int(mark[4:]) for mark in Marks(marks).seen() if mark.startswith("pid:")]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


async def _until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 5
    while any(_is_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, pids
        await asyncio.sleep(0.02)


async def test_a_session_lives_in_a_process_of_its_own(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks")

    await session.reset()
    observations = [await session.step(REPLY), await session.step(REPLY)]
    score = await session.score()
    await session.close()

    assert [observation.done for observation in observations] == [False, True]
    assert score == Score(2.0)
    (pid,) = _pids(tmp_path / "marks")
    assert pid != os.getpid()
    assert Marks(tmp_path / "marks").seen()[1:] == ["reset", "close"]
    await _until_gone([pid])


async def test_an_error_comes_back_with_its_traceback(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", reset="crash")

    with pytest.raises(SetUpFailed) as raised, boundary(SetUpFailed):
        await session.reset()
    await session.close()

    failure = failure_of(raised.value)
    assert failure.kind is FailureKind.SET_UP
    assert failure.message == "RemoteError: ValueError: out of paper"
    assert failure.detail is not None
    assert 'raise ValueError("out of paper")' in failure.detail


async def test_our_own_errors_keep_their_kind(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", score="fail")
    await session.reset()

    with pytest.raises(ScoreFailed, match="no judge"):
        await session.score()
    await session.close()


async def test_a_process_that_dies_fails_the_call(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", step="exit")
    await session.reset()

    with pytest.raises(RemoteError, match="ended with exit code 3"):
        await session.step(REPLY)
    await session.close()


async def test_coroutines_are_refused_by_name(tmp_path: Path) -> None:
    environment = hosted(CoroutineEnvironment(), where="process")
    session = environment.open(Task(task_id="t"), SAMPLE, 0)

    with pytest.raises(RemoteError, match="reset must be a plain method with where=process"):
        await session.reset()
    await session.close()


async def test_an_abandoned_call_is_interrupted_and_the_session_closed(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", step=60)
    await session.reset()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await session.step(REPLY)

    with pytest.raises(EnvironmentFailed, match="a call was abandoned"):
        await session.step(REPLY)
    await session.close()

    assert Marks(tmp_path / "marks").seen()[1:] == ["reset", "close"]
    await _until_gone(_pids(tmp_path / "marks"))


async def test_a_set_up_cancelled_while_its_process_starts_leaves_none(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", reset=60)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await session.reset()

    await session.close()

    await _until_gone(_pids(tmp_path / "marks"))


async def test_a_process_that_does_not_listen_is_killed_when_close_runs_out(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", step="deaf")
    await session.reset()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await session.step(REPLY)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await session.close()

    await _until_gone(_pids(tmp_path / "marks"))


async def test_what_a_session_started_ends_with_it(tmp_path: Path) -> None:
    session = _open(tmp_path / "marks", step="child")
    await session.reset()
    await session.step(REPLY)

    await session.close()

    pids = _pids(tmp_path / "marks")
    assert len(pids) == 2
    await _until_gone(pids)


PARENT = """
import asyncio, sys
from pathlib import Path
from rolloutkit import clock
from tests.unit.hosting.test_process import REPLY, _open

async def main():
    session = _open(Path(sys.argv[1]), step=60)
    await session.reset()
    print("ready", flush=True)
    await session.step(REPLY)

if __name__ == "__main__":
    clock.run(main())
"""


async def test_no_process_outlives_a_parent_that_was_killed(tmp_path: Path) -> None:
    script, marks = tmp_path / "parent.py", tmp_path / "marks"
    script.write_text(PARENT)
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        marks,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=asyncio.subprocess.PIPE,
    )
    assert parent.stdout is not None
    assert await parent.stdout.readline() == b"ready\n"

    parent.kill()
    await parent.wait()

    await _until_gone(_pids(marks))
