# The library has annotations but no py.typed, and leaves one parameter of create_renderer open.
# Everything else comes from its own source.
from collections.abc import Mapping
from typing import Any

from renderers.base import Message as Message
from renderers.base import ParsedResponse as ParsedResponse
from renderers.base import ParsedToolCall as ParsedToolCall
from renderers.base import RenderedTokens as RenderedTokens
from renderers.base import Renderer as Renderer
from renderers.base import Tokenizer as Tokenizer
from renderers.base import ToolCallParseStatus as ToolCallParseStatus
from renderers.base import ToolSpec as ToolSpec
from renderers.base import extract_message_tool_names as extract_message_tool_names
from renderers.base import reject_assistant_in_extension as reject_assistant_in_extension
from renderers.base import trim_to_turn_close as trim_to_turn_close
from renderers.configs import BaseRendererConfig as BaseRendererConfig
from renderers.configs import CustomRendererConfig as CustomRendererConfig
from renderers.configs import config_from_name as config_from_name

def create_renderer(
    tokenizer: Tokenizer,
    config: BaseRendererConfig | None = None,
    *,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Renderer: ...
