"""A real server is killed, or hangs, in the middle of a run over two: nothing is lost or left."""

import asyncio
import os
import signal
from contextlib import aclosing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rolloutkit.batch import Settings, rollout
from rolloutkit.clock import now
from rolloutkit.context import SampleContext
from rolloutkit.engines.sglang import SGLangConfig, SGLangEngine
from rolloutkit.routing import Router, RouterSettings
from rolloutkit.types import Message, SamplingParams, Status, Task
from tests.rendering import chatml
from tests.servers.places import launch
from tests.servers.test_sglang import num_alive

pytestmark = [pytest.mark.real_time, pytest.mark.integration_slow, pytest.mark.timeout(500)]

NUM_SAMPLES, NUM_TURNS = 6, 4


def server_processes(url: str) -> list[int]:
    """The server on that port with its children, but for its keeper, which leads their group."""
    port = f"--port {urlsplit(url).port}"
    groups: dict[int, list[int]] = {}
    keeper = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            group = os.getpgid(int(folder.name))
        except (OSError, ProcessLookupError):  # it has ended
            continue
        groups.setdefault(group, []).append(int(folder.name))
        if port in command:
            keeper = group
    return [pid for pid in groups[keeper] if pid != keeper]


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/exe").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hangs"])
async def test_the_others_go_on_when_one_server_is(number: signal.Signals) -> None:
    are_under_way = asyncio.Event()
    num_turns = 0

    async def program(sample: SampleContext) -> None:
        nonlocal num_turns
        message: Message = {"role": "user", "content": f"Tell me about number {sample.sample_id}."}
        for _ in range(NUM_TURNS):
            await sample.generate([message])
            message = {"role": "user", "content": "Go on."}
            num_turns += 1
            if num_turns == NUM_SAMPLES:
                are_under_way.set()

    workers = SGLangEngine(SGLangConfig(launch=launch("sglang", num_workers=2))).make_workers()
    victim, survivor = (worker.name for worker in workers)
    # Probes as on two busy cores, where a healthy server may take seconds to answer one.
    settings = RouterSettings(poll_seconds=1.0, probe_seconds=8.0, stall_seconds=60.0)

    async def disturb() -> list[int]:
        await are_under_way.wait()
        pids = server_processes(victim)
        for pid in pids:
            os.kill(pid, number)
        return pids

    async with Router(workers, settings) as router:
        disturbing = asyncio.create_task(disturb())
        async with aclosing(
            rollout(
                [Task(task_id=f"task-{index}") for index in range(NUM_SAMPLES)],
                engine=router,
                program=program,
                renderer=chatml(),
                settings=Settings(sampling=SamplingParams(max_tokens=32)),
            )
        ) as trajectories:
            done = [trajectory async for trajectory in trajectories]
        pids = await disturbing

        give_up_at = now() + 20.0
        while await asyncio.to_thread(num_alive, survivor):
            assert now() < give_up_at, "the survivor still generates"
            await asyncio.sleep(0.1)

    assert [one.status for one in done] == [Status.COMPLETED] * NUM_SAMPLES
    assert {one.sample_id.task_id for one in done} == {f"task-{i}" for i in range(NUM_SAMPLES)}
    assert all(one.num_turns == NUM_TURNS for one in done)
    assert {one.worker for one in done} == {survivor}
    assert len(pids) >= 3
    assert not any(map(is_alive, pids))
