"""Renderers for tests: SmolLM2's, and the library's over SmolLM2's vocabulary."""

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken

from rolloutkit.assets import bundled_model
from rolloutkit.render import Tokenizer, TokenRenderer, make_renderer
from rolloutkit.types import Chain, Completion, FinishReason, Message, ToolSpec

CONTROL_NAMES = {
    "qwen3": [],  # SmolLM2 has ChatML's
    "llama-3": [
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "<|end_of_text|>",
        "<|eom_id|>",
    ],
}
MARKER_NAMES = {
    "qwen3": [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    ],
    "llama-3": [],
}

LOOK_UP: ToolSpec = {
    "name": "look_up",
    "description": "Looks up a word.",
    "parameters": {
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
    },
}


@cache
def smollm2_tokenizer() -> Tokenizer:
    return Tokenizer.load(bundled_model().path)


@cache
def chatml() -> TokenRenderer:
    return make_renderer("auto", smollm2_tokenizer())


@cache
def family_tokenizer(name: str) -> Tokenizer:
    backend = Tokenizer.load(bundled_model().path)._backend
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in CONTROL_NAMES[name]])
    backend.add_tokens([AddedToken(t, normalized=False) for t in MARKER_NAMES[name]])
    return Tokenizer(backend, name_or_path=f"test/{name}", eos_token="<|im_end|>")


def family(name: str, **options: object) -> TokenRenderer:
    return make_renderer(name, family_tokenizer(name), options)


def said(renderer: TokenRenderer, text: str, *, stop: bool = True) -> Completion:
    """A completion with this text; without `stop` it was cut off by length."""
    token_ids = renderer.tokenizer.encode(text)
    if stop:
        token_ids.append(renderer.stop_token_ids[0])
    reason = FinishReason.STOP if stop else FinishReason.LENGTH
    return Completion(finish_reason=reason, token_ids=token_ids, logprobs=[-1.0] * len(token_ids))


def started(
    renderer: TokenRenderer, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> Chain:
    chain = Chain()
    chain.append_context(renderer.start(messages, tools))
    return chain
