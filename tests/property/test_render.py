"""Random conversations: chains only grow, say what the template says, and text stays text."""

import json
from pathlib import Path
from typing import NamedTuple

import jinja2
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rolloutkit.errors import ConfigError
from rolloutkit.render.calls import call_schema
from rolloutkit.render.chatml import TEMPLATE
from rolloutkit.render.gguf_metadata import read_metadata
from rolloutkit.types import AssistantMessage, Chain, Message, ToolCall, ToolSpec
from tests.rendering import LOOK_UP, chatml, family, said, smollm2_tokenizer, started

template = jinja2.Template(TEMPLATE, keep_trailing_newline=True)

pieces = st.sampled_from(
    [
        "<|im_end|>",
        "<|im_start|>system\n",
        "<|endoftext|>",
        "<tool_call>",
        "</tool_call>",
        "\n\n",
        " ",
        "{",
        "7",
    ]
)
# SmolLM2's vocabulary lacks the bytes of the others.
characters = st.characters(
    max_codepoint=0x3FFFF, exclude_characters="\x04\x06\x13\x14\x16\x1d", exclude_categories=["Cs"]
)
texts = st.lists(pieces | st.text(characters, max_size=12), max_size=5).map("".join)
prompts = st.lists(
    st.builds(
        lambda role, text: Message(role=role, content=text),
        st.sampled_from(["user", "tool", "system"]),
        texts,
    ),
    min_size=1,
    max_size=3,
)


class PlayedTurn(NamedTuple):
    spoken: str
    is_finished: bool
    observed: list[Message]


turns = st.lists(st.builds(PlayedTurn, texts, st.booleans(), prompts), max_size=4)


def said_literally(text: str, *, stop: bool):
    with smollm2_tokenizer().literal():
        return said(chatml(), text, stop=stop)


def played(first: list[Message], rest: list[PlayedTurn]) -> Chain:
    """The chain of a whole conversation; each step may only append."""
    chain = started(chatml(), first)
    for turn in rest:
        chain.append_completion(said_literally(turn.spoken, stop=turn.is_finished))
        before = chain.token_ids[:]
        chain.append_context(chatml().extend(chain, turn.observed, ()))
        assert chain.token_ids[: len(before)] == before
    return chain


@given(prompts, turns)
def test_chain_decodes_to_the_text_of_the_models_template(
    first: list[Message], rest: list[PlayedTurn]
):
    chain = played(first, rest)

    messages = list(first)
    for turn in rest:
        messages += [{"role": "assistant", "content": turn.spoken}, *turn.observed]
    expected = template.render(messages=messages, add_generation_prompt=True)
    assert smollm2_tokenizer().decode(chain.token_ids) == expected


@given(prompts, turns)
def test_control_tokens_open_and_close_each_message_once(
    first: list[Message], rest: list[PlayedTurn]
):
    chain = played(first, rest)

    num_messages = len(first) + sum(1 + len(turn.observed) for turn in rest)
    num_messages += first[0]["role"] != "system"
    controls = [i for i in chain.token_ids if i in smollm2_tokenizer().control_tokens.values()]
    assert controls == [1, 2] * num_messages + [1]


@given(prompts)
def test_full_renders_of_growing_conversations_only_grow(messages: list[Message]):
    shorter = chatml().render(messages[:1], (), add_generation_prompt=False)
    longer = chatml().render(messages, (), add_generation_prompt=False)

    assert longer[: len(shorter)] == shorter


@given(
    st.sampled_from(["chatml", "qwen3", "llama-3"]),
    st.lists(
        st.integers(0, 50_000) | st.sampled_from([1, 2, 49_152, 49_153, 49_154, 49_155]),
        max_size=30,
    ),
)
def test_parse_reads_any_tokens(name: str, token_ids: list[int]):
    renderer = chatml() if name == "chatml" else family(name)

    assert isinstance(renderer.parse(token_ids, [LOOK_UP]), AssistantMessage)


calls_and_debris = st.lists(
    st.sampled_from(
        [
            '{"name": "a", "arguments": {}}',
            "<tool_call>",
            "</tool_call>",
            "[",
            "]",
            ",",
            '{"name"',
            '{"answer": "',
            "}",
        ]
    )
    | st.text(max_size=4),
    max_size=8,
).map("".join)


@given(st.sampled_from(["chatml", "qwen3", "llama-3"]), calls_and_debris)
@example("chatml", "[" * 50_000)
@example("chatml", "<tool_call>" + '{"a":' * 50_000)
def test_parse_reads_any_text(name: str, text: str):
    renderer = chatml() if name == "chatml" else family(name)

    message = renderer.parse(said(renderer, text).token_ids, [LOOK_UP])

    assert isinstance(message, AssistantMessage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=6), json_values, max_size=3)


@given(st.text(characters, min_size=1, max_size=8), arguments, st.sampled_from([None, 1]))
def test_constrained_call_comes_back_as_it_was(
    name: str, given_arguments: dict[str, object], indent: int | None
):
    text = json.dumps({"name": name, "arguments": given_arguments}, indent=indent)

    message = chatml().parse(said(chatml(), text).token_ids, ())

    assert message == AssistantMessage(tool_calls=(ToolCall(name, given_arguments),))


keywords = st.sampled_from(
    ["type", "properties", "items", "enum", "anyOf", "required", "const", "x"]
)
schemas = st.recursive(
    json_values | st.sampled_from(["dict", "float", "any", "string", "tuple"]),
    lambda inner: st.dictionaries(keywords, inner, max_size=4) | st.lists(inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(keywords, schemas, max_size=4))
def test_any_parameters_give_a_closed_schema(parameters: dict[str, object]):
    tool = ToolSpec(name="t", description="", parameters=parameters)

    schema = call_schema([tool], max_string_length=None)

    assert schema == call_schema([tool], max_string_length=None)
    assert all(branch["additionalProperties"] is False for branch in schema["anyOf"])  # type: ignore[attr-defined]


@given(st.binary(max_size=64) | st.binary(max_size=64).map(lambda tail: b"GGUF\x03\0\0\0" + tail))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_metadata_or_a_config_error(tmp_path: Path, content: bytes):
    path = tmp_path / "any.gguf"
    path.write_bytes(content)

    try:
        metadata = read_metadata(path)
    except ConfigError:
        return
    assert isinstance(metadata, dict)
