"""Servers that we start: ready or refused, and gone on every way out."""

import asyncio
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from rolloutkit.clock import now
from rolloutkit.engines.launch import LaunchConfig, LocalServers
from rolloutkit.errors import ConfigError
from rolloutkit.jobs import blocking

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.timeout(60)]

# A server tells its own process id and that of a child, and answers once it listens.
SERVER = """
import http.server, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(f"{os.getpid()} {child.pid} {os.environ.get('WORKER')}".encode())
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def launch(*command: str, **fields: object) -> LaunchConfig:
    return LaunchConfig(command=command or (sys.executable, "-c", SERVER, "{port}"), **fields)


async def answer(url: str) -> str:
    def ask() -> str:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read().decode()

    return await blocking(ask)


async def is_well(url: str) -> bool:
    try:
        await answer(url)
    except OSError:
        return False
    return True


async def pids_of(url: str) -> list[int]:
    return [int(pid) for pid in (await answer(url)).split()[:2]]


async def until_well(*urls: str) -> None:
    give_up_at = now() + 30.0
    while not all([await is_well(url) for url in urls]):
        assert now() < give_up_at, "the servers do not start"
        await asyncio.sleep(0.05)


async def until_gone(pids: list[int]) -> None:
    give_up_at = now() + 30.0
    while any(is_alive(pid) for pid in pids):
        assert now() < give_up_at, "processes are left"
        await asyncio.sleep(0.05)


def list_of_children() -> list[str]:
    """Processes that this one started and that have not ended."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def is_alive(pid: int) -> bool:
    """Whether it runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_servers_start_together_and_are_stopped_with_their_children(tmp_path: Path) -> None:
    config = launch(
        num_workers=2, log_dir=str(tmp_path / "logs"), environment={"WORKER": "w{worker}"}
    )
    servers = LocalServers(config)
    first, second = servers.urls
    await asyncio.gather(
        servers.ready(0, lambda: is_well(first)), servers.ready(1, lambda: is_well(second))
    )
    assert (await answer(second)).endswith(" w1")
    assert len(list_of_children()) == 2
    pids = await pids_of(first) + await pids_of(second)

    await servers.stop(0)
    await servers.stop(1)
    await servers.stop(1)

    await until_gone(pids)
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == [
        "worker-0.log",
        "worker-1.log",
    ]


async def test_one_that_ends_early_is_refused_with_the_end_of_its_log(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('no such model: nope')")
    servers = LocalServers(launch(*command, log_dir=str(tmp_path)))

    with pytest.raises(ConfigError) as caught:
        await servers.ready(0, lambda: is_well(servers.urls[0]))

    message = str(caught.value)
    assert f"server 0 ended; the end of {tmp_path / 'worker-0.log'}:" in message
    assert "no such model: nope" in message
    assert "exit status 1" in message


async def test_one_that_is_not_ready_in_time_is_refused_and_all_are_ended(tmp_path: Path) -> None:
    servers = LocalServers(launch(num_workers=2, ready_seconds=8.0, log_dir=str(tmp_path)))
    first, second = servers.urls
    job = asyncio.create_task(servers.ready(1, never))
    await until_well(first, second)
    pids = await pids_of(first) + await pids_of(second)

    with pytest.raises(ConfigError, match=r"within engine\.launch\.ready_seconds of 8 s"):
        await job

    await until_gone(pids)


async def never() -> bool:
    return False


async def test_cancelling_the_wait_ends_them() -> None:
    servers = LocalServers(launch())
    job = asyncio.create_task(servers.ready(0, never))
    await until_well(servers.urls[0])
    pids = await pids_of(servers.urls[0])

    job.cancel()

    with pytest.raises(asyncio.CancelledError):
        await job
    await until_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_they_end_with_the_process_that_started_them(number: signal.Signals) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, SERVER, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    pids = await pids_of((await owner.stdout.readline()).decode().strip())

    owner.send_signal(number)

    await owner.wait()
    await until_gone(pids)


OWNER = """
import asyncio, sys, urllib.request
from rolloutkit.engines.launch import LaunchConfig, LocalServers
async def main():
    servers = LocalServers(LaunchConfig(command=(sys.executable, "-c", sys.argv[1], "{port}")))
    async def is_well():
        try:
            urllib.request.urlopen(servers.urls[0], timeout=10).close()
        except OSError:
            return False
        return True
    await servers.ready(0, is_well)
    print(servers.urls[0], flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_a_keeper_that_was_killed_leaves_nothing_behind() -> None:
    servers = LocalServers(launch())
    await servers.ready(0, lambda: is_well(servers.urls[0]))
    pids = await pids_of(servers.urls[0])
    keeper = os.getpgid(pids[0])

    os.kill(keeper, signal.SIGKILL)
    await servers.stop(0)

    await until_gone(pids)


def test_a_program_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine.launch.command: no such program: 'sglang-no'"):
        LocalServers(launch("sglang-no", "serve"))
