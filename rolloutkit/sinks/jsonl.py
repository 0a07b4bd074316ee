"""Trajectories as JSON lines: appended as samples end, synced in batches, read back whole.

A line is handed to the operating system before `put` waits for anything, so that a killed process
loses none; a crash of the machine loses at most one batch. Lines are never changed, files never
overwritten.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from rolloutkit.errors import ConfigError, RunFailed
from rolloutkit.jobs import blocking
from rolloutkit.sinks.lines import decode_line, encode_line
from rolloutkit.types import Trajectory

logger = logging.getLogger(__name__)


class JsonlSink:
    """Appends one line per trajectory to a new file, or to an existing one with `append=True`.

    `put` waits only where it completes a batch of `sync_lines` lines or `sync_bytes` bytes: for the
    disk, in a thread. A write that fails raises RunFailed and leaves whole lines behind.
    """

    def __init__(
        self, path: Path, *, append: bool = False, sync_lines: int = 64, sync_bytes: int = 8 << 20
    ) -> None:
        self._path = path
        self._sync_lines = sync_lines
        self._sync_bytes = sync_bytes
        self._unsynced_lines = 0
        self._unsynced_bytes = 0
        try:
            self._size = _mend_end(path) if append else 0
            path.touch(exist_ok=append)
            self._file = path.open("ab", buffering=0)
        except FileExistsError:
            raise ConfigError(
                f"{path} exists already: resume that run or choose another output.dir"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}: {error.strerror}; choose another output.dir"
            ) from error

    async def put(self, trajectory: Trajectory) -> None:
        """Append the trajectory's line; cancelling the wait for the disk does not undo it."""
        if self._file.closed:
            raise RuntimeError(f"put after close: {self._path} is complete")
        self._write(encode_line(trajectory) + b"\n")
        if self._unsynced_lines >= self._sync_lines or self._unsynced_bytes >= self._sync_bytes:
            self._unsynced_lines = self._unsynced_bytes = 0
            await self._in_thread(self._sync)

    async def close(self) -> None:
        """Sync and close the file. Idempotent."""
        if not self._file.closed:
            await self._in_thread(self._sync_and_close)

    def _write(self, line: bytes) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            with suppress(OSError):  # readers leave a cut last line out, should it stay
                self._file.truncate(self._size)
            raise self._failed(error) from error
        self._size += len(line)
        self._unsynced_lines += 1
        self._unsynced_bytes += len(line)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        try:
            await blocking(call)
        except OSError as error:
            raise self._failed(error) from error

    def _sync(self) -> None:
        os.fsync(self._file.fileno())

    def _sync_and_close(self) -> None:
        with self._file:
            self._sync()

    def _failed(self, error: OSError) -> RunFailed:
        return RunFailed(
            f"cannot write {self._path}: {error.strerror}; its whole lines are kept: "
            "make room and resume, or choose another output.dir"
        )


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Yield the trajectories of a file in the order in which they ended.

    The last line may be cut off where a run was killed: it is left out with a warning. Any other
    broken line raises ConfigError with its number.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    logger.warning("%s line %d is cut off and left out", path, number)
                    return
                try:
                    yield decode_line(line)
                except ValueError as error:
                    raise ConfigError(
                        f"{path} line {number} is not a trajectory: {error}"
                    ) from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _mend_end(path: Path) -> int:
    """Drop a last line that a killed run left without its end; returns the size that stays."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        keep = _end_of_last_line(file.fileno(), size)
        if keep < size:
            logger.warning(
                "%s ends in a line that was cut off: its %d bytes are dropped", path, size - keep
            )
            file.truncate(keep)
    return keep


def _end_of_last_line(descriptor: int, size: int) -> int:
    chunk_bytes = 1 << 16
    while size > 0:
        start = max(0, size - chunk_bytes)
        end = os.pread(descriptor, size - start, start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        size = start
    return 0
