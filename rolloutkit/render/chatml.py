"""ChatML for SmolLM2, as a renderer of the `renderers` library, which has none of its own.

Plain messages come out as the chat template in SmolLM2's GGUF file writes them. That template has
no branch for tools: they are described in the system message and called in `<tool_call>` tags, the
format of SmolLM2's own function-calling examples (model card of SmolLM2-1.7B-Instruct). Tool
results keep the role `tool`: the 135M model did no better with a user's (5 probes, greedy).
Importing this module imports `renderers`, which takes half a second.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, cast

from renderers import (
    BaseRendererConfig,
    ParsedResponse,
    ParsedToolCall,
    RenderedTokens,
    ToolCallParseStatus,
    extract_message_tool_names,
    reject_assistant_in_extension,
    trim_to_turn_close,
)

from rolloutkit.render.calls import decode_json

if TYPE_CHECKING:
    from renderers import Message, Tokenizer, ToolSpec

_DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\n" + _DEFAULT_SYSTEM + "<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat template that this renderer reproduces, as SmolLM2's files carry it."""

_TOOLS = """\
You have access to the following tools:
<tools>{tools}</tools>

To use tools, reply with nothing but their calls, in this format:
<tool_call>[
{{"name": "tool_name", "arguments": {{"argument": "value"}}}}
]</tool_call>"""

_CALL_BLOCK = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)


class ChatMLRendererConfig(BaseRendererConfig):
    """Options of `ChatMLRenderer`."""

    name: Literal["chatml"] = "chatml"
    default_system: str = _DEFAULT_SYSTEM  # when the first message is not the system's

    _template_fields = frozenset({"default_system"})


class ChatMLRenderer:
    """Implements `renderers.Renderer`. Full renders of a growing conversation only grow, too."""

    config_class = ChatMLRendererConfig

    def __init__(self, tokenizer: Tokenizer, config: ChatMLRendererConfig | None = None) -> None:
        self.config = config or ChatMLRendererConfig()
        self._tokenizer = tokenizer
        self._start: int = tokenizer.convert_tokens_to_ids("<|im_start|>")
        self._end: int = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._stop_ids = [self._end, tokenizer.convert_tokens_to_ids("<|endoftext|>")]
        if None in (self._start, *self._stop_ids):
            raise ValueError(
                f"the vocabulary of {tokenizer.name_or_path!r} lacks <|im_start|>, <|im_end|> or "
                "<|endoftext|>"
            )
        self._newline = self._encode("\n")
        self._generation_prompt = [self._start, *self._encode("assistant\n")]

    @property
    def is_prefix_stable(self) -> bool:
        return True

    def get_stop_token_ids(self) -> list[int]:
        return list(self._stop_ids)

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        if not messages:
            raise ValueError("there are no messages to render")
        rendered = _described(messages)
        rest = enumerate(messages)
        has_system = messages[0]["role"] == "system"
        system = _text(next(rest)[1]) if has_system else self.config.default_system
        if tools:
            system = f"{system}\n\n{_TOOLS.format(tools=json.dumps(tools, ensure_ascii=False))}"
        self._append_message(rendered, "system", system, 0 if has_system else -1)
        for index, message in rest:
            self._append_message(rendered, message["role"], _text(message), index)
        if add_generation_prompt:
            _append(rendered, self._generation_prompt, -1)
        return rendered

    def render_ids(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        return self.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt
        ).token_ids

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,  # noqa: ARG002 - the first system message describes them
    ) -> RenderedTokens | None:
        if (
            not previous_prompt_ids
            or not new_messages
            or reject_assistant_in_extension(new_messages)
        ):
            return None
        previous = trim_to_turn_close(
            previous_prompt_ids,
            previous_completion_ids,
            {self._end},  # a turn that the model ended with <|endoftext|> is closed in addition
            synthesize_close=self._end,
        )
        assert previous is not None  # without a close there is the synthesised one
        rendered = _described(new_messages)
        _append(rendered, previous, -1)
        _append(rendered, self._newline, -1)
        for index, message in enumerate(new_messages):
            self._append_message(rendered, message["role"], _text(message), index)
        _append(rendered, self._generation_prompt, -1)
        return rendered

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[ToolSpec] | None = None,  # noqa: ARG002 - JSON says what is a string
        prompt_ids: list[int] | None = None,  # noqa: ARG002 - nothing is prefilled
    ) -> ParsedResponse:
        end = next(
            (i for i, token in enumerate(token_ids) if token in self._stop_ids), len(token_ids)
        )
        text = self._tokenizer.decode(token_ids[:end], skip_special_tokens=False)
        calls = [call for block in _CALL_BLOCK.finditer(text) for call in _parse_block(block)]
        return ParsedResponse(content=_CALL_BLOCK.sub("", text).strip(), tool_calls=calls)

    def _append_message(self, rendered: RenderedTokens, role: str, text: str, index: int) -> None:
        if role == "assistant":
            # In two passes, as when the model sampled the text after the prompt.
            _append(rendered, self._generation_prompt, index)
            _append(rendered, [*self._encode(text), self._end], index, is_sampled=True)
        else:
            _append(rendered, [self._start, *self._encode(f"{role}\n{text}"), self._end], index)
        _append(rendered, self._newline, index)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False) if text else []


def _described(messages: list[Message]) -> RenderedTokens:
    return RenderedTokens(
        message_roles=[message["role"] for message in messages],
        message_tool_names=extract_message_tool_names(messages),
    )


def _append(
    rendered: RenderedTokens, token_ids: list[int], index: int, *, is_sampled: bool = False
) -> None:
    rendered.token_ids.extend(token_ids)
    rendered.message_indices.extend([index] * len(token_ids))
    rendered.sampled_mask.extend([is_sampled] * len(token_ids))


def _text(message: Message) -> str:
    content = message["content"] or ""
    if not isinstance(content, str):
        raise TypeError(f"ChatML takes text only, got content of type {type(content).__name__}")
    calls = message.get("tool_calls") or []
    if not calls:
        return content
    listed = ",\n".join(_call_text(call.get("function", {})) for call in calls)
    return f"{content}<tool_call>[\n{listed}\n]</tool_call>"


def _call_text(function: Any) -> str:
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {arguments}}}'


def _parse_block(block: re.Match[str]) -> list[ParsedToolCall]:
    raw = block[1].strip()
    if not block[2]:
        return [ParsedToolCall(raw=raw, status=ToolCallParseStatus.UNCLOSED_BLOCK)]
    value = decode_json(raw)
    if not isinstance(value, list):
        return [_parse_call(raw, value)]
    items = cast("list[object]", value)
    return [_parse_call(json.dumps(item, ensure_ascii=False), item) for item in items]


def _parse_call(raw: str, value: object) -> ParsedToolCall:
    if value is None:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.INVALID_JSON)
    if not isinstance(value, dict):
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
    call = cast("dict[str, Any]", value)
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name:
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MISSING_NAME)
    if not isinstance(arguments, dict):
        return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MALFORMED_STRUCTURE)
    return ParsedToolCall(raw=raw, name=name, arguments=cast("dict[str, Any]", arguments))
