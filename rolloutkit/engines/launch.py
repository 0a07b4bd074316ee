"""Starts servers of our own on this machine, and stops them on every way out.

Owns processes, ports and logs; what makes a server well is the caller's to say. Each server has a
keeper (`engines/keeper.py`) that ends its process group when this process lets go of a pipe, by
closing it or by dying.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from rolloutkit.engines.keeper import GRACE_SECONDS
from rolloutkit.errors import ConfigError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5  # a server that starts takes 20 s and more, and cannot wake us
_TAIL_LINES = 12  # of a log, in an error message
_TAIL_BYTES = 4096


class LaunchConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which servers to start. `{port}` and `{worker}` (0, 1, ...) are filled in."""

    command: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    num_workers: Annotated[int, msgspec.Meta(ge=1)] = 1
    environment: dict[str, str] = {}  # beside this process's own, e.g. CUDA_VISIBLE_DEVICES
    ready_seconds: Annotated[float, msgspec.Meta(gt=0)] = 900.0  # to load a large model from disk
    log_dir: str = ""  # "" = a new folder among the system's temporary files


class LocalServers:
    """The servers of one `launch` section. They start together, when the first is waited for."""

    def __init__(self, config: LaunchConfig) -> None:
        """Choose the ports; starts nothing. Raises ConfigError for a command that is not there."""
        if shutil.which(config.command[0]) is None:
            raise ConfigError(
                f"engine.launch.command: no such program: {config.command[0]!r}: "
                "install it, or give its path"
            )
        self._config = config
        self._ports = _free_ports(config.num_workers)
        self._servers: list[_Server] = []
        self._starting = asyncio.Lock()  # workers are opened side by side

    @property
    def urls(self) -> tuple[str, ...]:
        """Where they will listen, on loopback."""
        return tuple(f"http://127.0.0.1:{port}" for port in self._ports)

    @property
    def ready_seconds(self) -> float:
        return self._config.ready_seconds

    async def ready(self, index: int, is_well: Callable[[], Awaitable[bool]]) -> None:
        """Start all that are not started yet and wait until one of them is well.

        Raises ConfigError, with the end of its log, when it ends first or takes longer than
        `ready_seconds`. Then, and when this is cancelled, none is left running.
        """
        try:
            async with self._starting:
                if not self._servers:
                    await self._start()
            await self._servers[index].ready(is_well, self._config.ready_seconds)
        except BaseException:
            for server in self._servers:
                server.let_go()
            raise

    async def stop(self, index: int) -> None:
        """End one of them, with all that it started. Idempotent; takes the keeper's grace time at
        most.
        """
        if self._servers:
            await self._servers[index].stop()

    async def _start(self) -> None:
        folder = self._log_folder()
        for worker, port in enumerate(self._ports):
            log = folder / f"worker-{worker}.log"
            self._servers.append(await _Server.start(self._config, worker, port, log))
        logger.info("%d servers start; their logs are in %s", len(self._ports), folder)

    def _log_folder(self) -> Path:
        folder = Path(self._config.log_dir or tempfile.mkdtemp(prefix="rolloutkit-servers-"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"engine.launch.log_dir: {folder}: {error.strerror}") from error
        return folder


class _Server:
    def __init__(self, worker: int, process: asyncio.subprocess.Process, log: Path) -> None:
        self._worker = worker
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, config: LaunchConfig, worker: int, port: int, log: Path) -> _Server:
        def filled(text: str) -> str:
            return text.replace("{port}", str(port)).replace("{worker}", str(worker))

        environment = {name: filled(value) for name, value in config.environment.items()}
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "rolloutkit.engines.keeper",
                *map(filled, config.command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        return cls(worker, process, log)

    async def ready(self, is_well: Callable[[], Awaitable[bool]], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not await is_well():
                    if self._process.returncode is not None:
                        raise ConfigError(f"engine.launch: {self._failure('ended')}")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            late = f"is not ready within engine.launch.ready_seconds of {seconds:g} s"
            raise ConfigError(f"engine.launch: {self._failure(late)}") from None

    def let_go(self) -> None:
        """Close the pipe: the keeper ends the server. Never waits."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def stop(self) -> None:
        self.let_go()
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * GRACE_SECONDS):
                await self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the keeper is stuck, or was killed
        await self._process.wait()

    def _failure(self, what: str) -> str:
        return f"server {self._worker} {what}; the end of {self._log}:\n{_tail(self._log)}"


def _tail(log: Path) -> str:
    text = log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    return "\n".join(f"  {line}" for line in text.splitlines()[-_TAIL_LINES:])


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
