from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rolloutkit.hosting import Where, hosted
from rolloutkit.sim import Act, Fault, Script, ScriptedEnvironment, Turn, show
from rolloutkit.types import AssistantMessage, SampleId, Task, ToolCall
from rolloutkit_bfcl import BfclEnvironment
from tests.contract.environment_suite import CHECKS, Subject, saying
from tests.unit.hosting.blocking_sessions import BlockingEnvironment, Marks

Make = Callable[[Path], Subject]
Check = Callable[[Subject], Awaitable[None]]


def scripted(path: Path) -> Subject:
    turns = (Turn(show(3), Act(1.0)), Turn(show(4, done=True), Act(1.0)))
    set_up = {"broken": Act(fault=Fault.CRASH), "slow": Act(60.0)}

    def script_of(task: Task, sample_id: SampleId) -> Script:
        return Script(prompt=show(5), turns=turns, set_up=set_up.get(task.task_id, Act(1.0)))

    return Subject(
        environment=ScriptedEnvironment(script_of=script_of),
        task=Task(task_id="good"),
        broken_task=Task(task_id="broken"),
        slow_task=Task(task_id="slow"),
        reply=saying("go on"),
        num_open=lambda: 0,
    )


def bfcl(path: Path) -> Subject:
    change = ToolCall("mkdir", {"dir_name": "new"})
    look = ToolCall("ls", {})
    return Subject(
        environment=BfclEnvironment(),
        task=Task(task_id="multi_turn_base_1"),
        broken_task=Task(task_id="multi_turn_base_1000"),
        slow_task=Task(task_id="multi_turn_base_1"),
        reply=saying("", message=AssistantMessage(tool_calls=(look, change, look))),
        num_open=lambda: 0,
    )


def blocking(path: Path, where: Where) -> Subject:
    marks = Marks(path / "marks")

    def num_open() -> int:
        seen = marks.seen()
        return sum(mark.startswith("pid:") for mark in seen) - seen.count("close")

    return Subject(
        environment=hosted(BlockingEnvironment(marks.path), where),
        task=Task(task_id="good", payload={"step": 0.05}),
        broken_task=Task(task_id="broken", payload={"reset": "crash"}),
        slow_task=Task(task_id="slow", payload={"reset": 0.3}),
        reply=saying("go on"),
        num_open=num_open,
    )


def in_threads(path: Path) -> Subject:
    return blocking(path, "thread")


def in_processes(path: Path) -> Subject:
    return blocking(path, "process")


each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@each_check
@pytest.mark.parametrize("make", [scripted, bfcl])
async def test_environments_keep_the_contract_in_virtual_time(
    make: Make, check: Check, tmp_path: Path
) -> None:
    await check(make(tmp_path))


@pytest.mark.real_time
@each_check
@pytest.mark.parametrize("make", [bfcl, in_threads, in_processes])
async def test_environments_keep_the_contract_in_real_time(
    make: Make, check: Check, tmp_path: Path
) -> None:
    await check(make(tmp_path))
