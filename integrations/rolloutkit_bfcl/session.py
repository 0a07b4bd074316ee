"""One BFCL multi-turn episode.

Follows the official handlers (`BaseHandler.inference_multi_turn_FC` and `_prompting` in the wheel):
within a user turn the model calls tools until a reply contains no readable call, then the next user
turn begins; too many steps in one turn end the episode.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rolloutkit.errors import EnvironmentFailed, SetUpFailed
from rolloutkit.types import (
    Message,
    Observation,
    Reply,
    Score,
    StopReason,
    ToolCall,
    ToolSpec,
)
from rolloutkit_bfcl.calls import parse_calls
from rolloutkit_bfcl.checker import Verdict, check
from rolloutkit_bfcl.config import BfclConfig
from rolloutkit_bfcl.dataset import Entry, find_entry
from rolloutkit_bfcl.documents import ToolDocuments, describe, tool_specs
from rolloutkit_bfcl.toolbox import Toolbox, open_toolboxes

_MORE_TOOLS = "I have updated some more functions you can choose from. What about now?"  # official
_COMPACT_PROMPT = """You complete the user's requests by calling functions. The functions are:
{functions}

To call functions, reply with nothing but their calls, in this format:
<tool_call>[
{"name": "function_name", "arguments": {"argument": "value"}}
]</tool_call>
Their results follow. When a request is done, say so without a call."""


class BfclSession:
    """One episode. It ends after the last user turn, or with too many steps in one turn."""

    def __init__(self, entry_id: str, config: BfclConfig) -> None:
        self._entry_id = entry_id
        self._config = config
        self._entry: Entry | None = None
        self._toolbox: Toolbox | None = None
        self._turns: list[list[tuple[ToolCall, ...]]] = []  # executed calls, per user turn and step
        self._is_done = False

    async def reset(self) -> Observation:
        """Load the scenario and ask the first question."""
        self._entry = find_entry(self._entry_id)
        if self._entry is None:
            raise SetUpFailed(f"BFCL has no task {self._entry_id!r}")
        (self._toolbox,) = open_toolboxes(self._entry)
        first = self._next_turn(self._entry)
        return msgspec.structs.replace(
            first,
            messages=self._system_messages(first.tools or ()) + first.messages,
            tools_in_messages=self._is_compact,
        )

    async def step(self, reply: Reply) -> Observation:
        """Execute the reply's calls; without one, go on to the next user turn."""
        if self._entry is None or self._toolbox is None or self._is_done:
            raise EnvironmentFailed(f"the session of BFCL task {self._entry_id} is closed or over")
        message = reply.message
        calls = message.tool_calls or _written_calls(message.content)
        if message.malformed_calls or not calls:  # officially, one unreadable call spoils the reply
            return self._next_turn(self._entry)
        results = [self._toolbox.call(call) for call in calls]
        self._turns[-1].append(calls)
        self._is_done = len(self._turns[-1]) >= self._config.max_steps_per_turn
        show = _tool_messages if message.tool_calls else _user_message
        return Observation(
            messages=show(calls, results), done=self._is_done, stop_reason=StopReason.STEP_LIMIT
        )

    async def score(self) -> Score:
        """The official verdict, 1.0 or 0.0. An episode that was cut short is officially wrong."""
        if self._entry is None:
            raise EnvironmentFailed(f"BFCL task {self._entry_id} was never started")
        if self._is_done:
            verdict = check(self._entry, self._turns)
        else:
            verdict = Verdict("multi_turn:inference_error", "the episode was cut short")
        return Score(
            float(verdict.is_valid),
            {
                "error_type": verdict.error_type,
                "error_message": verdict.error_message,
                "user_turns": len(self._turns),
                "steps": sum(map(len, self._turns)),
                "calls": sum(len(calls) for turn in self._turns for calls in turn),
            },
        )

    async def close(self) -> None:
        self._toolbox = None

    @property
    def _is_compact(self) -> bool:
        return self._config.tool_documents == ToolDocuments.COMPACT

    def _next_turn(self, entry: Entry) -> Observation:
        turn = len(self._turns)
        if turn == len(entry.question):
            self._is_done = True
            return Observation(done=True)
        self._turns.append([])
        added = _tools_from(entry, turn, only_new=True) if turn else ()
        if added:
            content = f"{describe(added, self._config.tool_documents)}\n{_MORE_TOOLS}"
            return Observation(
                messages=(Message(role="user", content=content),),
                tools=_tools_from(entry, turn),
                tools_in_messages=True,
            )
        return Observation(
            messages=entry.question[turn], tools=None if turn else _tools_from(entry, 0)
        )

    def _system_messages(self, tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
        prompt = self._config.system_prompt or (_COMPACT_PROMPT if self._is_compact else None)
        if prompt is None:  # officially, models that take tools get no system message
            return ()
        content = prompt.replace("{functions}", describe(tools, ToolDocuments.COMPACT))
        return (Message(role="system", content=content),)


def _tools_from(entry: Entry, turn: int, *, only_new: bool = False) -> tuple[ToolSpec, ...]:
    """The tools on offer in a user turn, late ones last, or those that the turn adds."""
    since = {name: int(at) for at, names in entry.missed_function.items() for name in names}
    tools = [tool for class_name in entry.involved_classes for tool in tool_specs(class_name)]
    tools.sort(key=lambda tool: since.get(tool["name"], 0))
    turns = (turn,) if only_new else range(turn + 1)
    return tuple(tool for tool in tools if since.get(tool["name"], 0) in turns)


def _written_calls(text: str) -> tuple[ToolCall, ...]:
    """Calls written as text. Positional arguments are dropped, as the official handler does."""
    return tuple(ToolCall(call.name, call.named) for call in parse_calls(text) or ())


def _tool_messages(calls: Sequence[ToolCall], results: Sequence[str]) -> tuple[Message, ...]:
    return tuple(
        Message(role="tool", content=result, tool_call_id=call.call_id, name=call.name)
        for call, result in zip(calls, results, strict=True)
    )


def _user_message(calls: Sequence[ToolCall], results: Sequence[str]) -> tuple[Message, ...]:
    """Results of calls that were written as text, in the official form."""
    shown = [
        {"role": "tool", "name": _render(call), "content": result}
        for call, result in zip(calls, results, strict=True)
    ]
    return (Message(role="user", content=repr(shown)),)


def _render(call: ToolCall) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"{call.name}({arguments})"
