"""Over-sampled groups: which samples are spare, and when a group has enough. Pure.

A group of n is started with n + k samples; when n have completed the others are closed. What is
kept are the fastest, and those tend to be short: the sample set is changed, not only its order.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence

import msgspec

from rolloutkit.protocols import TaskSource
from rolloutkit.types import Task


def with_spares(tasks: TaskSource, extra: int) -> TaskSource:
    """The tasks with `extra` samples more each; a sequence stays one."""
    if not extra:
        return tasks
    if isinstance(tasks, AsyncIterable):
        return _each_later(tasks, extra)
    if isinstance(tasks, Sequence):
        return [_with_spares(task, extra) for task in tasks]
    return _each(tasks, extra)


def _with_spares(task: Task, extra: int) -> Task:
    return msgspec.structs.replace(task, num_samples=task.num_samples + extra)


def _each(tasks: Iterable[Task], extra: int) -> Iterator[Task]:
    for task in tasks:
        yield _with_spares(task, extra)


async def _each_later(tasks: AsyncIterable[Task], extra: int) -> AsyncIterator[Task]:
    async for task in tasks:
        yield _with_spares(task, extra)


class GroupCloser:
    """Counts completed samples of groups with `extra` spare ones. Keeps a number for each task."""

    def __init__(self, extra: int) -> None:
        self._extra = extra
        self._num_wanted: dict[str, int] = {}  # that are still to complete

    def completed(self, task: Task) -> bool:
        """A sample of the task completed; whether its group has just become full."""
        left = self._num_wanted.get(task.task_id, task.num_samples - self._extra) - 1
        self._num_wanted[task.task_id] = left
        return left == 0

    def is_full(self, task: Task) -> bool:
        """Whether enough samples of the task have completed."""
        return self._num_wanted.get(task.task_id, 1) <= 0
