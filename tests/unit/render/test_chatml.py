from typing import cast

import jinja2
import pytest
import renderers

from rolloutkit.errors import ConfigError
from rolloutkit.render import Tokenizer, make_renderer
from rolloutkit.render.chatml import TEMPLATE, ChatMLRenderer
from rolloutkit.types import AssistantMessage, Message, ToolCall
from tests.rendering import LOOK_UP, chatml, family_tokenizer, smollm2_tokenizer

SYSTEM: Message = {"role": "system", "content": "Be brief."}
USER: Message = {"role": "user", "content": "What is a sonnet?"}
ANSWER: Message = {"role": "assistant", "content": "A poem of 14 lines."}
RESULT: Message = {"role": "tool", "content": "14 lines"}


def by_template(messages: list[Message], *, add_generation_prompt: bool) -> str:
    template = smollm2_tokenizer().chat_template
    assert template is not None
    return jinja2.Template(template, keep_trailing_newline=True).render(
        messages=messages, add_generation_prompt=add_generation_prompt
    )


def test_model_file_carries_the_template_that_is_reproduced():
    assert smollm2_tokenizer().chat_template == TEMPLATE


def test_renderer_implements_the_librarys_protocol():
    assert isinstance(ChatMLRenderer(smollm2_tokenizer()), renderers.Renderer)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    "messages",
    [[USER], [SYSTEM, USER], [SYSTEM, USER, ANSWER, USER], [USER, ANSWER, RESULT, SYSTEM]],
)
def test_plain_messages_render_as_the_models_own_template(
    messages: list[Message], add_generation_prompt: bool
):
    text = by_template(messages, add_generation_prompt=add_generation_prompt)

    token_ids = chatml().render(messages, (), add_generation_prompt=add_generation_prompt)

    assert token_ids == smollm2_tokenizer().encode(text)


def test_default_system_message_can_be_replaced():
    renderer = make_renderer("chatml", smollm2_tokenizer(), {"default_system": "Sing."})

    text = renderer.tokenizer.decode(renderer.start([USER], ()))

    assert text.startswith("<|im_start|>system\nSing.<|im_end|>\n<|im_start|>user\n")


def test_tools_are_described_after_the_system_message():
    text = smollm2_tokenizer().decode(chatml().start([SYSTEM, USER], [LOOK_UP]))

    system, _, rest = text.partition("<|im_end|>")
    assert system.startswith("<|im_start|>system\nBe brief.\n\nYou have access to the following")
    assert '<tools>[{"name": "look_up"' in system
    assert rest.startswith("\n<|im_start|>user\n")


def test_past_calls_are_written_as_the_model_writes_them():
    call: Message = {
        "role": "assistant",
        "content": "Let me see. ",
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "look_up", "arguments": '{"word": "ode"}'},
            },
        ],
    }

    token_ids = chatml().render([USER, call], (), add_generation_prompt=False)

    text = smollm2_tokenizer().decode(token_ids).partition("<|im_start|>assistant\n")[2]
    assert text == (
        'Let me see. <tool_call>[\n{"name": "look_up", "arguments": {"word": "ode"}}\n'
        "]</tool_call><|im_end|>\n"
    )
    assert chatml().parse(smollm2_tokenizer().encode(text), ()) == AssistantMessage(
        "Let me see.", (ToolCall("look_up", {"word": "ode"}),)
    )


def test_arguments_may_be_an_object():
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "a", "arguments": {"x": 1}}}],
    }
    messages = cast("list[renderers.Message]", [USER, call])

    token_ids = ChatMLRenderer(smollm2_tokenizer()).render_ids(messages)

    assert '{"name": "a", "arguments": {"x": 1}}' in smollm2_tokenizer().decode(token_ids)


def test_attribution_names_each_tokens_message_and_what_would_be_sampled():
    messages = cast("list[renderers.Message]", [SYSTEM, USER, ANSWER])

    rendered = ChatMLRenderer(smollm2_tokenizer()).render(messages, add_generation_prompt=True)

    assert len(rendered.token_ids) == len(rendered.message_indices) == len(rendered.sampled_mask)
    assert sorted(set(rendered.message_indices)) == [-1, 0, 1, 2]
    sampled = [
        i
        for i, is_sampled in zip(rendered.token_ids, rendered.sampled_mask, strict=True)
        if is_sampled
    ]
    assert smollm2_tokenizer().decode(sampled) == "A poem of 14 lines.<|im_end|>"
    assert rendered.message_roles == ["system", "user", "assistant"]


def test_vocabulary_without_chatml_tokens_is_refused():
    backend = family_tokenizer("llama-3")._backend
    strange = type(backend).from_str(backend.to_str().replace("<|im_start|>", "<|other|>"))

    with pytest.raises(ConfigError, match=r"lacks <\|im_start\|>"):
        make_renderer("chatml", Tokenizer(strange, name_or_path="strange"))
