"""Replay of recorded chains by the production scheduler: tasks, an agent program, and call sizes.

Each sample lives a chain of the batch: its model calls have the recorded sizes, its tool calls the
recorded durations, each in a slot of kind `tool`. A turn without a tool call goes on to the next at
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rolloutkit.record.chains import RecordedChain
from rolloutkit.sim.sizes import UNLIMITED, asked_for
from rolloutkit.sim.worker import Sizes
from rolloutkit.types import GenerateRequest, SampleId, Task

if TYPE_CHECKING:
    from rolloutkit.context import SampleContext

TOOL = "tool"
"""The kind of action of a replayed tool call."""


class Batch:
    """Recorded chains in dataset order, `group_size` of them to a task."""

    def __init__(self, chains: Sequence[RecordedChain], group_size: int = 8) -> None:
        self._chains = {
            SampleId(f"group-{index // group_size}", index % group_size): chain
            for index, chain in enumerate(chains)
        }

    def __getitem__(self, sample_id: SampleId) -> RecordedChain:
        return self._chains[sample_id]

    def items(self) -> Iterable[tuple[SampleId, RecordedChain]]:
        """Samples and their chains, in dataset order."""
        return self._chains.items()

    def tasks(self) -> list[Task]:
        """The groups, in dataset order."""
        sizes: dict[str, int] = {}
        for sample_id in self._chains:
            sizes[sample_id.task_id] = sizes.get(sample_id.task_id, 0) + 1
        return [Task(task_id=task_id, num_samples=size) for task_id, size in sizes.items()]

    def sizes_of(self, request: GenerateRequest) -> Sizes:
        """What the request's turn was in the recording, for an engine that asks."""
        turn = self._chains[request.sample_id].turns[request.turn]
        return asked_for(request, turn.context, turn.new, turn.output)

    async def live(self, sample: SampleContext) -> None:
        """The agent program: the recorded life of a sample."""
        for turn in self._chains[sample.sample_id].turns:
            await sample.generate(prompt_tokens=turn.context, sampling=UNLIMITED)
            if turn.tool_seconds:
                await sample.act(TOOL, partial(asyncio.sleep, turn.tool_seconds))
