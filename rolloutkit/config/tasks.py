"""The tasks of a run: the environment's own, or a file's. Blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.types import Task


class _TaskLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Task as a user writes it: a misspelt key must not pass."""

    task_id: str
    environment: str = ""
    payload: dict[str, object] = {}
    num_samples: int = 1


@runtime_checkable
class OffersTasks(Protocol):
    """An environment that brings its own tasks."""

    def tasks(self) -> Sequence[Task]: ...


def tasks_of(environment: object, file: str | None, num_samples: int | None) -> list[Task]:
    """The tasks, at least one, with unique ids. Raises ConfigError."""
    if file is not None:
        tasks = read_tasks(Path(file))
    elif isinstance(environment, OffersTasks):
        tasks = list(environment.tasks())
    else:
        name = type(environment).__name__
        raise ConfigError(f"tasks.file: not set, and {name} has no tasks(): name a file of tasks")
    if not tasks:
        raise ConfigError(f"{file or 'environment'}: holds no task: give at least one")
    _refuse_doubles(tasks)
    if num_samples is not None:
        tasks = [msgspec.structs.replace(task, num_samples=num_samples) for task in tasks]
    return tasks


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a JSONL file; blank lines are skipped. Raises ConfigError with file and line."""
    first_line: dict[str, int] = {}
    tasks: list[Task] = []
    for number, line in _lines(path):
        task = _task_of(line, f"{path}:{number}")
        if task.task_id in first_line:
            raise ConfigError(
                f"{path}:{number}: task_id {task.task_id!r} is that of line "
                f"{first_line[task.task_id]} too: ids must be unique"
            )
        first_line[task.task_id] = number
        tasks.append(task)
    return tasks


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"tasks.file: cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _task_of(line: bytes, where: str) -> Task:
    try:
        read = msgspec.json.decode(line, type=_TaskLine)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason = str(error).replace(" - at `$.", " at `").replace(" - at `$`", "")
        raise ConfigError(f"{where}: not a task: {reason}") from None
    if read.num_samples < 1:
        raise ConfigError(f"{where}: num_samples: expected at least 1, got {read.num_samples}")
    return Task(
        task_id=read.task_id,
        environment=read.environment,
        payload=read.payload,
        num_samples=read.num_samples,
    )


def _refuse_doubles(tasks: Sequence[Task]) -> None:
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            raise ConfigError(
                f"environment: two tasks have the id {task.task_id!r}: ids must be unique"
            )
        seen.add(task.task_id)
