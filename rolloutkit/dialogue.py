"""What was said in one attempt: its chains, the messages beside them, and the tools on offer.

Turns observations into context and completions into replies. Token-exact where the engine speaks
token ids; otherwise the messages are all there is. Waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rolloutkit.errors import (
    ConfigError,
    EngineError,
    EnvironmentFailed,
    ProgramError,
    RenderError,
    StopSample,
    boundary,
)
from rolloutkit.services import Services
from rolloutkit.types import (
    AssistantMessage,
    Chain,
    ChatPrompt,
    Completion,
    FinishReason,
    Message,
    Reply,
    StopReason,
    TokenPrompt,
    ToolCall,
    ToolSpec,
)

_SAYS_NOTHING = AssistantMessage()


class Dialogue:
    """Counts are sums over the turns so far; None once an engine did not report one."""

    __slots__ = (
        "_in_flight",
        "_messages",
        "_num_known",
        "_services",
        "cached_tokens",
        "chains",
        "num_capped_turns",
        "num_turns",
        "output_tokens",
        "prompt_tokens",
        "tools",
        "tools_in_messages",
    )

    def __init__(self, services: Services) -> None:
        self._services = services
        self._messages: list[list[Message]] = [[]]  # per chain
        self._num_known = [0]  # per chain: tokens that the engine has seen
        self._in_flight: set[int] = set()  # chains with a request under way
        self.chains = [Chain()]
        self.tools: tuple[ToolSpec, ...] = ()
        self.tools_in_messages = False
        self.num_turns = 0
        self.num_capped_turns = 0
        self.output_tokens = 0
        self.prompt_tokens: int | None = 0
        self.cached_tokens: int | None = 0

    @property
    def messages(self) -> Sequence[Message]:
        """The main chain's conversation, where messages are kept."""
        return self._messages[0]

    def open_chain(self, parent: Chain | None) -> Chain:
        """Another chain, empty or with `parent`'s tokens and messages."""
        index = len(self.chains)
        chain = Chain(index) if parent is None else parent.fork(index)
        self.chains.append(chain)
        self._messages.append([] if parent is None else list(self._messages[parent.index]))
        self._num_known.append(0)
        return chain

    def append_context(
        self, chain: Chain, messages: Sequence[Message], token_ids: Sequence[int]
    ) -> None:
        """Append what the environment shows: messages rendered, token ids as they are."""
        services = self._services
        if messages and (services.keep_messages or not services.capabilities.token_ids):
            self._messages[chain.index].extend(messages)
        if not services.capabilities.token_ids:
            return
        if messages:
            chain.append_context(self._render(chain, messages))
        if len(token_ids):
            with boundary(EnvironmentFailed):
                chain.append_context(token_ids)

    def append_completion(self, chain: Chain, completion: Completion) -> Reply:
        """Append what the model said, and say what it means."""
        services = self._services
        renderer = services.renderer
        message = completion.message
        if services.capabilities.token_ids:
            with boundary(EngineError):
                chain.append_completion(completion)
            self._num_known[chain.index] = len(chain)
            if message is None and renderer is not None:
                with boundary(RenderError):
                    message = renderer.parse(completion.token_ids, self.tools)
        elif completion.prompt_tokens is not None:
            known = completion.prompt_tokens + (completion.output_tokens or 0)
            self._num_known[chain.index] = known
        if message is not None:
            message = with_call_ids(message, self.num_turns)
            if services.keep_messages or not services.capabilities.token_ids:
                self._messages[chain.index].append(as_message(message))
        self.num_turns += 1
        if completion.finish_reason is FinishReason.CAPPED:
            self.num_capped_turns += 1
        self.output_tokens += completion.num_tokens or 0
        self.prompt_tokens = _add(self.prompt_tokens, completion.prompt_tokens)
        self.cached_tokens = _add(self.cached_tokens, completion.cached_tokens)
        return Reply(completion, message or _SAYS_NOTHING)

    def prompt(self, chain: Chain) -> TokenPrompt | ChatPrompt:
        """What the engine is to continue."""
        renderer = self._services.renderer
        if self._services.capabilities.token_ids:
            return TokenPrompt(chain.token_ids, renderer.stop_token_ids if renderer else ())
        return ChatPrompt(self._messages[chain.index], self.tools)

    def call_schema(self) -> dict[str, Any] | None:
        """The schema that constrains the next completion, if calls are constrained."""
        services = self._services
        if services.constrain_calls and self.tools and services.renderer is not None:
            with boundary(RenderError):
                return services.renderer.call_schema(self.tools)
        return None

    def begin_turn(self, chain: Chain) -> None:
        """A request for this chain goes out; raises ProgramError while another is under way."""
        if chain.index in self._in_flight:
            raise ProgramError(f"chain {chain.index} has a request in flight: await it first")
        self._in_flight.add(chain.index)

    def end_turn(self, chain: Chain) -> None:
        self._in_flight.discard(chain.index)

    def room(self, chain: Chain, max_tokens: int) -> int:
        """How many tokens the next completion may have; StopSample when there is no room."""
        capabilities, limits = self._services.capabilities, self._services.limits
        if capabilities.token_ids and capabilities.max_context is not None:
            max_tokens = min(max_tokens, capabilities.max_context - len(chain))
            if max_tokens < 1:
                raise StopSample(StopReason.CONTEXT_FULL)
        if limits.output_tokens is not None:
            max_tokens = min(max_tokens, limits.output_tokens - self.output_tokens)
            if max_tokens < 1:
                raise StopSample(StopReason.TOKEN_BUDGET)
        return max_tokens

    def num_known(self, chain: Chain) -> int:
        """Tokens of the chain that the engine has seen, as far as it says."""
        return self._num_known[chain.index]

    def num_new(self, chain: Chain, context_tokens: int) -> int:
        """Of `context_tokens` of a prompt, those that the engine has not seen, as far as known."""
        num_known = self._num_known[chain.index]
        was_compacted = num_known > context_tokens
        return context_tokens if was_compacted else context_tokens - num_known

    def _render(self, chain: Chain, messages: Sequence[Message]) -> Sequence[int]:
        renderer = self._services.renderer
        if renderer is None:
            raise ConfigError(
                "observations hold messages, but the run has no renderer: give renderer=..."
            )
        tools = () if self.tools_in_messages else self.tools
        with boundary(RenderError):
            if len(chain):
                return renderer.extend(chain, messages, tools)
            return renderer.start(messages, tools)


def _add(total: int | None, value: int | None) -> int | None:
    return None if total is None or value is None else total + value


def with_call_ids(message: AssistantMessage, turn: int) -> AssistantMessage:
    """The same message, its calls named `call_{turn}_{index}` where the model did not name them."""
    if all(call.call_id for call in message.tool_calls):
        return message
    calls = tuple(
        ToolCall(call.name, call.arguments, call.call_id or f"call_{turn}_{index}")
        for index, call in enumerate(message.tool_calls)
    )
    return AssistantMessage(message.content, calls, message.malformed_calls)


def as_message(message: AssistantMessage) -> Message:
    """The OpenAI-style form of what the model said."""
    spoken: Message = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        spoken["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": msgspec.json.encode(call.arguments).decode(),
                },
            }
            for call in message.tool_calls
        ]
    return spoken
