import pytest

from rolloutkit.render.calls import call_schema, decode_json, parse_constrained
from rolloutkit.types import AssistantMessage, ToolCall, ToolSpec


def arguments_schema(parameters: dict[str, object], max_string_length: int | None = None):
    tool = ToolSpec(name="t", description="", parameters=parameters)
    schema = call_schema([tool], max_string_length=max_string_length)
    return schema["anyOf"][0]["properties"]["arguments"]  # type: ignore[index]


def property_schema(schema: object):
    return arguments_schema({"type": "object", "properties": {"p": schema}})["properties"]["p"]


def test_schema_has_a_branch_per_tool_and_the_answer_last():
    tools = [ToolSpec(name=name, description="", parameters={}) for name in ("b", "a")]

    schema = call_schema(tools, max_string_length=9)

    names = [branch["properties"].get("name") for branch in schema["anyOf"]]  # type: ignore[attr-defined]
    assert names == [{"const": "b"}, {"const": "a"}, None]
    assert schema["anyOf"][-1] == {  # type: ignore[index]
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 9}},
        "required": ["answer"],
        "additionalProperties": False,
    }


def test_schema_without_tools_only_answers():
    assert len(call_schema([], max_string_length=None)["anyOf"]) == 1  # type: ignore[arg-type]


def test_arguments_are_closed_and_keep_what_is_required():
    schema = arguments_schema(
        {
            "type": "dict",
            "properties": {"a": {"type": "string", "default": "x"}, "b": {"type": "float"}},
            "required": ["a", "typo"],
        },
        max_string_length=5,
    )

    assert schema == {
        "type": "object",
        "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "number"}},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_tool_without_parameters_takes_none():
    assert arguments_schema({}) == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"type": "tuple", "items": {"type": "Float"}}, ("array", {"type": "number"})),
        ({"type": "list"}, ("array", {})),
        ({"type": "array", "items": [{"type": "string"}]}, ("array", {})),
    ],
)
def test_sequences_become_arrays(declared: object, expected: tuple[str, object]):
    schema = property_schema(declared)

    assert (schema["type"], schema["items"]) == expected


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ({"type": "dict"}, {"type": "object"}),
        ({"type": "any"}, {}),
        ({}, {}),
        ("nonsense", {}),
        ({"type": "string", "enum": ["a", "b"]}, {"enum": ["a", "b"]}),
        ({"const": None}, {"const": None}),
        ({"type": "int"}, {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1}),
        ({"oneOf": [{"type": "double"}, {"type": "null"}]}, ["number", "null"]),
        ({"anyOf": [{"type": "bool"}]}, ["boolean"]),
        ({"type": ["string", "null"]}, ["string", "null"]),
        ({"type": "string", "pattern": "^a*$", "format": "uri"}, {"type": "string"}),
    ],
)
def test_other_types_are_normalised(declared: object, expected: object):
    schema = property_schema(declared)

    if isinstance(expected, list):
        expected = {"anyOf": [{"type": name} for name in expected]}
    assert schema == expected


def test_nested_objects_are_closed_too():
    schema = property_schema({"type": "dict", "properties": {"q": {"type": "str"}}})

    assert schema["additionalProperties"] is False
    assert schema["properties"] == {"q": {"type": "string"}}


@pytest.mark.parametrize(
    "text",
    ['{"name":"f","arguments":{"a":1}}', ' {\n "name": "f",\n "arguments": {"a": 1}\n}\n'],
)
def test_call_is_read_whatever_its_white_space(text: str):
    assert parse_constrained(text) == AssistantMessage(tool_calls=(ToolCall("f", {"a": 1}),))


def test_answer_is_content():
    assert parse_constrained('{"answer": "4 \\u00b7 2"}') == AssistantMessage(content="4 · 2")


@pytest.mark.parametrize(
    "text", ['{"name": "f", "arguments": {"a": "cut o', '{"name": "f", "arguments": {}} and more']
)
def test_call_that_is_not_json_is_malformed(text: str):
    assert parse_constrained(text) == AssistantMessage(malformed_calls=(text,))


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        "",
        "[]",
        '{"name": "f", "parameters": {}}',
        '{"name": "f", "arguments": "a"}',
        '{"name": 1, "arguments": {}}',
        '{"answer": "a", "more": 1}',
        '{"answer": "cut o',
    ],
)
def test_other_text_is_left_to_the_renderer(text: str):
    assert parse_constrained(text) is None


def test_deep_nesting_is_not_json():
    assert decode_json("[" * 100_000) is None
    assert parse_constrained('{"answer": ' + "[" * 100_000) is None
