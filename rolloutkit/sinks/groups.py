"""Collects the samples of each task and hands them on together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from rolloutkit.types import CancelReason, Trajectory


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The trajectories of one task, by sample index; incomplete where the run ended too soon.

    Samples that over-sampling closed are not among them: they count as ended, and that is all.
    """

    task_id: str
    trajectories: tuple[Trajectory, ...]
    is_complete: bool


class GroupSink:
    """Hands each task's group to `deliver` once all its samples ended; at close, what is left.

    `group_size` says how many samples a task has, spare ones included. `put` waits for `deliver`:
    that is back-pressure. When a delivery is cancelled or raises, its group is kept and delivered
    by the next put of one of its samples, or at close; so `deliver` must take a group as a whole or
    not at all.
    """

    def __init__(
        self, deliver: Callable[[Group], Awaitable[None]], group_size: Callable[[str], int]
    ) -> None:
        self._deliver = deliver
        self._group_size = group_size
        self._groups: dict[str, dict[int, Trajectory]] = {}
        self._is_closed = False

    async def put(self, trajectory: Trajectory) -> None:
        """Add the trajectory to its group, and deliver the group when this completes it."""
        if self._is_closed:
            raise RuntimeError("put after close: the groups are delivered")
        task_id, sample_index = trajectory.sample_id
        group = self._groups.setdefault(task_id, {})
        group[sample_index] = trajectory
        if len(group) >= self._group_size(task_id):
            await self._hand_over(task_id)

    async def close(self) -> None:
        """Deliver the groups that are left, oldest first."""
        self._is_closed = True
        while self._groups:
            await self._hand_over(next(iter(self._groups)))

    async def _hand_over(self, task_id: str) -> None:
        group = self._groups.pop(task_id)
        try:
            await self._deliver(
                Group(
                    task_id=task_id,
                    trajectories=tuple(
                        group[index] for index in sorted(group) if not _is_spare(group[index])
                    ),
                    is_complete=len(group) >= self._group_size(task_id),
                )
            )
        except BaseException:  # cancellation too: nobody has taken the group
            self._groups[task_id] = group | self._groups.get(task_id, {})
            raise


def _is_spare(trajectory: Trajectory) -> bool:
    return trajectory.cancel_reason is CancelReason.GROUP_FULL
