import pickle
import threading
from pathlib import Path

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.hosting import hosted, is_blocking
from rolloutkit.sim import ScriptedEnvironment
from rolloutkit.types import (
    AssistantMessage,
    Completion,
    FinishReason,
    Observation,
    Reply,
    SampleId,
    Score,
    Task,
)
from tests.unit.hosting.blocking_sessions import BlockingEnvironment

TASK = Task(task_id="t")
SAMPLE = SampleId("t", 0)
REPLY = Reply(Completion(finish_reason=FinishReason.STOP), AssistantMessage())


class MixedSession:
    """Coroutines and plain functions side by side, as people write them."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    async def reset(self) -> Observation:
        self.threads.append(threading.get_ident())
        return Observation()

    def step(self, reply: Reply) -> Observation:
        self.threads.append(threading.get_ident())
        return Observation(done=True)

    async def score(self) -> Score | None:
        return None

    async def close(self) -> None:
        self.threads.append(threading.get_ident())


class MixedEnvironment:
    name = "mixed"

    def __init__(self) -> None:
        self.session = MixedSession()

    def open(self, task: Task, sample_id: SampleId, seed: int) -> MixedSession:
        return self.session


def test_plain_methods_are_recognised(tmp_path: Path) -> None:
    environments = (BlockingEnvironment(tmp_path), MixedEnvironment(), ScriptedEnvironment())

    found = [is_blocking(environment.open(TASK, SAMPLE, 0)) for environment in environments]

    assert found == [True, True, False]


async def test_sessions_of_coroutines_are_left_alone() -> None:
    inner = ScriptedEnvironment()
    environment = hosted(inner)

    session = environment.open(TASK, SAMPLE, 0)

    assert environment.name == "scripted"
    assert type(session) is type(inner.open(TASK, SAMPLE, 0))


async def test_blocking_code_runs_inline_in_virtual_time(tmp_path: Path) -> None:
    session = hosted(BlockingEnvironment(tmp_path / "marks")).open(TASK, SAMPLE, 0)

    observation = await session.reset()

    assert observation.messages[0]["content"] == f"thread {threading.get_ident()}"


async def test_processes_are_refused_in_virtual_time(tmp_path: Path) -> None:
    environment = hosted(BlockingEnvironment(tmp_path), where="process")

    with pytest.raises(ConfigError, match="where=process needs time=real"):
        environment.open(TASK, SAMPLE, 0)


@pytest.mark.real_time
async def test_only_plain_methods_leave_the_loop() -> None:
    environment = MixedEnvironment()
    session = hosted(environment).open(TASK, SAMPLE, 0)

    await session.reset()
    await session.step(REPLY)
    await session.close()

    on_loop = [thread == threading.get_ident() for thread in environment.session.threads]
    assert on_loop == [True, False, True]


@pytest.mark.real_time
async def test_where_loop_calls_plain_methods_on_the_loop(tmp_path: Path) -> None:
    session = hosted(BlockingEnvironment(tmp_path / "marks"), where="loop").open(TASK, SAMPLE, 0)

    observation = await session.reset()

    assert observation.messages[0]["content"] == f"thread {threading.get_ident()}"


def test_a_blocking_environment_of_the_tests_is_picklable(tmp_path: Path) -> None:
    assert pickle.loads(pickle.dumps(BlockingEnvironment(tmp_path))).name == "blocking"
