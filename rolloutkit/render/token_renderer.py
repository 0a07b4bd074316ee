"""Messages to token ids and back, append-only, over any renderer of the `renderers` library.

`TokenRenderer` implements `protocols.Renderer`. What a model sampled is never rendered again, and
what environments or users write never becomes a control token.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from rolloutkit.errors import RenderError, boundary
from rolloutkit.render.calls import (
    MAX_STRING_LENGTH,
    call_schema,
    decode_json,
    parse_constrained,
)
from rolloutkit.types import AssistantMessage, Chain, Message, ToolCall, ToolSpec

if TYPE_CHECKING:
    import renderers

    from rolloutkit.render.tokenizer import Tokenizer


class TokenRenderer:
    """Drives one `renderers` renderer over growing chains.

    `max_string_length` bounds each string of a constrained completion, in characters, so that a
    small model does not run on; None leaves them unbounded.
    """

    def __init__(
        self,
        renderer: renderers.Renderer,
        tokenizer: Tokenizer,
        *,
        max_string_length: int | None = MAX_STRING_LENGTH,
    ) -> None:
        self._renderer = renderer
        self._max_string_length = max_string_length
        self.tokenizer = tokenizer
        self.stop_token_ids = tuple(renderer.get_stop_token_ids())
        self.is_prefix_stable = renderer.is_prefix_stable
        self._generation_prompt = self._find_generation_prompt()

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Token ids of a new conversation, up to where the model is to speak.

        Raises RenderError when the renderer cannot express the messages.
        """
        return self.render(messages, tools, add_generation_prompt=True)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, add_generation_prompt: bool
    ) -> list[int]:
        """Token ids of a whole conversation, as the model's chat template has it."""
        with self._rendering(messages, tools):
            return self._renderer.render_ids(
                _foreign_messages(messages),
                tools=_foreign_tools(tools),
                add_generation_prompt=add_generation_prompt,
            )

    def extend(
        self, chain: Chain, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> list[int]:
        """Token ids to append to `chain`, which ends in a completion, for the model to speak next.

        Reads the last completion and the context before it, nothing older, and first closes the
        completion if it was cut off. `tools` only tell how to read that completion: the messages
        describe tools that are new. Raises RenderError when the renderer cannot go on from here.
        """
        turn = _last_turn(chain)
        with self._rendering(messages, tools):
            bridged = self._renderer.bridge_to_next_turn(
                turn.context,
                turn.completion,
                _foreign_messages(messages),
                tools=_foreign_tools(tools),
            )
        if bridged is None:
            roles = ", ".join(message["role"] for message in messages) or "none"
            raise RenderError(
                f"{type(self._renderer).__name__} cannot append messages (roles: {roles}) to a "
                "finished turn without rendering it again; for a model that thinks, set the "
                "renderer's option thinking_retention=all, else choose another renderer"
            )
        size = len(turn.context) + len(turn.completion)
        if bridged.token_ids[:size] != turn.context + turn.completion:
            raise RenderError(
                f"{type(self._renderer).__name__} would change tokens of the last turn, which must "
                f"end at its first stop token: let the engine stop at {self.stop_token_ids}"
            )
        return bridged.token_ids[size:]

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> AssistantMessage:
        """What a completion says; reasoning is left out. Never raises on what a model may write."""
        ids = list(token_ids)
        end = next((i for i, token in enumerate(ids) if token in self.stop_token_ids), len(ids))
        text = self.tokenizer.decode(ids[:end])
        message = parse_constrained(text)
        if message is not None:
            return message
        try:
            parsed = self._renderer.parse_response(
                ids, tools=_foreign_tools(tools), prompt_ids=self._generation_prompt
            )
        except Exception:  # noqa: BLE001 - a foreign parser may break on anything: then all is content
            return AssistantMessage(content=text)
        return _assistant_message(parsed)

    def call_schema(self, tools: Sequence[ToolSpec]) -> dict[str, object]:
        """JSON schema of a completion that `parse` reads: one call of one tool, or an answer."""
        return call_schema(tools, max_string_length=self._max_string_length)

    @contextmanager
    def _rendering(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Generator[None]:
        """Guard a call of the library: errors become ours, and only it writes control tokens."""
        with boundary(RenderError):
            written = msgspec.json.encode([messages, tools]).decode()
            if not self.tokenizer.names_control_token(written):
                yield
            else:
                with self.tokenizer.literal():
                    yield

    def _find_generation_prompt(self) -> list[int] | None:
        """The tokens before a completion; None where they are no plain addition to the messages.

        Parsers need them to tell whether the template has opened the reasoning already.
        """
        probe: list[Message] = [{"role": "user", "content": "."}]
        shorter = self.render(probe, (), add_generation_prompt=False)
        longer = self.render(probe, (), add_generation_prompt=True)
        return longer[len(shorter) :] if longer[: len(shorter)] == shorter else None


class _Turn(NamedTuple):
    context: list[int]
    completion: list[int]


def _last_turn(chain: Chain) -> _Turn:
    """The last completion, which may be empty, and the run of context before it."""
    end = len(chain)
    if end == 0:
        raise RenderError("an empty chain cannot be extended: append the tokens of start() first")
    middle = _run_start(chain.sampled_mask, end) if chain.sampled_mask[-1] else end
    begin = _run_start(chain.sampled_mask, middle) if middle else 0
    return _Turn(chain.token_ids[begin:middle].tolist(), chain.token_ids[middle:].tolist())


def _run_start(mask: array[int], end: int) -> int:
    """Where the run of equal values that ends before `end` starts; O(length of the run)."""
    other = b"\x00" if mask[end - 1] else b"\x01"
    size = 256  # a typical turn; the window doubles until it holds the run
    while end > 0:
        begin = max(0, end - size)
        found = mask[begin:end].tobytes().rfind(other)
        if found >= 0:
            return begin + found + 1
        end, size = begin, 2 * size
    return 0


def _assistant_message(parsed: renderers.ParsedResponse) -> AssistantMessage:
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for attempt in parsed.tool_calls:
        arguments = attempt.arguments
        if isinstance(arguments, str):
            arguments = decode_json(arguments)
        if attempt.status == "ok" and attempt.name and isinstance(arguments, dict):
            calls.append(
                ToolCall(attempt.name, cast("dict[str, Any]", arguments), attempt.id or "")
            )
        else:
            malformed.append(attempt.raw)
    return AssistantMessage(parsed.content, tuple(calls), tuple(malformed))


def _foreign_messages(messages: Sequence[Message]) -> list[renderers.Message]:
    return cast("list[renderers.Message]", list(messages))


def _foreign_tools(tools: Sequence[ToolSpec]) -> list[renderers.ToolSpec] | None:
    return cast("list[renderers.ToolSpec]", list(tools)) if tools else None
