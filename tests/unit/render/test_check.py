import pytest
from renderers import Message, RenderedTokens

from rolloutkit.errors import ConfigError
from rolloutkit.render import TokenRenderer, check_append_only
from rolloutkit.render.chatml import ChatMLRenderer
from tests.rendering import chatml, family, smollm2_tokenizer


@pytest.mark.parametrize(
    "make",
    [
        chatml,
        lambda: family("qwen3", thinking_retention="all"),
        lambda: family("qwen3", enable_thinking=False),
        lambda: family("llama-3"),
    ],
)
def test_append_only_renderers_pass(make):
    check_append_only(make())


def test_family_that_renders_finished_turns_again_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"grow by a user message.*thinking_retention=all"):
        check_append_only(family("qwen3"))


class CountingRenderer(ChatMLRenderer):
    """Its template starts with the number of messages."""

    def render(self, messages, *, tools=None, add_generation_prompt=False) -> RenderedTokens:
        count: Message = {"role": "system", "content": f"{len(messages)} messages"}
        return super().render(
            [count, *messages], tools=tools, add_generation_prompt=add_generation_prompt
        )


class ForgetfulRenderer(ChatMLRenderer):
    """Appends to a chain otherwise than to a conversation."""

    def bridge_to_next_turn(self, *args, **kwargs) -> RenderedTokens | None:
        bridged = super().bridge_to_next_turn(*args, **kwargs)
        assert bridged is not None
        bridged.token_ids.pop()
        return bridged


class TrustingRenderer(ChatMLRenderer):
    """Encodes control tokens by hand, wherever it finds them."""

    def _encode(self, text: str) -> list[int]:
        before, name, after = text.partition("<|im_end|>")
        if not name:
            return super()._encode(text)
        return [*super()._encode(before), self._end, *super()._encode(after)]


def check(renderer: ChatMLRenderer) -> None:
    check_append_only(TokenRenderer(renderer, smollm2_tokenizer()))


def test_template_that_rewrites_its_start_is_refused_and_shown():
    with pytest.raises(ConfigError, match=r"with 4 messages instead of 2 token 3 turns from '2"):
        check(CountingRenderer(smollm2_tokenizer()))


def test_chain_that_differs_from_the_full_render_is_refused_and_shown():
    with pytest.raises(ConfigError, match=r"after 4 messages token \d+ is '' in the grown chain"):
        check(ForgetfulRenderer(smollm2_tokenizer()))


def test_renderer_that_lets_messages_forge_turns_is_refused():
    with pytest.raises(ConfigError, match=r"control token <\|im_end\|>"):
        check(TrustingRenderer(smollm2_tokenizer()))
