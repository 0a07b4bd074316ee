"""Environments with plain methods that misbehave on request. Picklable, for processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from rolloutkit.errors import ScoreFailed
from rolloutkit.types import Message, Observation, Reply, SampleId, Score, Task


class Marks:
    """Leaves a line in a file for each thing that happens, since a process shares nothing else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def leave(self, mark: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{mark}\n")

    def seen(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []


class BlockingEnvironment:
    """Its task's payload says what `reset` and `step` do: a number sleeps, a word misbehaves."""

    name = "blocking"

    def __init__(self, marks: Path) -> None:
        self._marks = Marks(marks)

    def open(self, task: Task, sample_id: SampleId, seed: int) -> "BlockingSession":
        return BlockingSession(task, self._marks)


class BlockingSession:
    def __init__(self, task: Task, marks: Marks) -> None:
        self._payload = task.payload
        self._marks = marks
        self._num_steps = 0

    def reset(self) -> Observation:
        self._marks.leave(f"pid:{os.getpid()}")
        self._misbehave(self._payload.get("reset"))
        self._marks.leave("reset")
        return _show(f"thread {threading.get_ident()}")

    def step(self, reply: Reply) -> Observation:
        self._misbehave(self._payload.get("step"))
        self._num_steps += 1
        return _show(f"step {self._num_steps}", done=self._num_steps == 2)

    def score(self) -> Score | None:
        self._misbehave(self._payload.get("score"))
        return Score(float(self._num_steps))

    def close(self) -> None:
        self._marks.leave("close")
        self._misbehave(self._payload.get("close"))

    def _misbehave(self, how: object) -> None:
        match how:
            case None:
                pass
            case "crash":
                raise ValueError("out of paper")
            case "fail":
                raise ScoreFailed("no judge")
            case "exit":
                os._exit(3)
            case "deaf":  # hangs and does not hear SIGTERM, like code that never returns to Python
                signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
                time.sleep(60)
            case "child":  # leaves a process behind
                child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
                self._marks.leave(f"pid:{child.pid}")
            case _:
                time.sleep(float(str(how)))


class CoroutineEnvironment(BlockingEnvironment):
    """Sets its sessions up with a coroutine."""

    def __init__(self) -> None:
        super().__init__(Path(os.devnull))

    def open(self, task: Task, sample_id: SampleId, seed: int) -> "CoroutineSession":
        return CoroutineSession(task, Marks(Path(os.devnull)))


class CoroutineSession(BlockingSession):
    async def reset(self) -> Observation:  # type: ignore[reportIncompatibleMethodOverride] # that is it
        return _show("")


def _show(text: str, *, done: bool = False) -> Observation:
    return Observation(messages=(Message(role="user", content=text),), done=done)
