"""Plays BFCL sessions with replies that a test writes."""

from rolloutkit.types import (
    AssistantMessage,
    Completion,
    FinishReason,
    Observation,
    Reply,
    SampleId,
    Task,
    ToolCall,
)
from rolloutkit_bfcl import BfclConfig, BfclEnvironment, BfclSession
from rolloutkit_bfcl.checker import ground_truth_calls
from rolloutkit_bfcl.dataset import Entry
from rolloutkit_bfcl.toolbox import open_toolboxes

Turns = list[list[tuple[ToolCall, ...]]]


def calling(*calls: ToolCall) -> Reply:
    return Reply(Completion(finish_reason=FinishReason.STOP), AssistantMessage(tool_calls=calls))


def saying(content: str = "Done.", *, malformed: tuple[str, ...] = ()) -> Reply:
    message = AssistantMessage(content=content, malformed_calls=malformed)
    return Reply(Completion(finish_reason=FinishReason.STOP), message)


def open_session(entry_id: str, **config: object) -> BfclSession:
    environment = BfclEnvironment(BfclConfig(**config))  # type: ignore[reportArgumentType] # by name
    return environment.open(Task(task_id=entry_id), SampleId(entry_id, 0), seed=0)


def ground_truth(entry: Entry) -> Turns:
    """The ground truth, all calls of a user turn in one step."""
    (toolbox,) = open_toolboxes(entry)
    turns = [tuple(ground_truth_calls(toolbox, written)) for written in entry.ground_truth]
    return [[calls] if calls else [] for calls in turns]


async def play(session: BfclSession, turns: Turns) -> Observation:
    """Reset, then play every user turn and end it with words."""
    observation = await session.reset()
    for turn in turns:
        for calls in turn:
            observation = await session.step(calling(*calls))
        observation = await session.step(saying())
    return observation
