"""Tool calls as JSON: the schema that constrains a completion, and its reading.

A constrained completion is one JSON object: `{"name": ..., "arguments": {...}}` calls a tool,
`{"answer": ...}` speaks. How unconstrained models call tools is the renderers' business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from rolloutkit.types import AssistantMessage, ToolCall, ToolSpec

Schema: TypeAlias = dict[str, Any]

# Understood by llguidance, which xllamacpp constrains with, and a comment to others. Without it
# SmolLM2 spends 2.4 times the tokens, on white space (18 BFCL tools, 3 prompts, greedy).
_COMPACT: Schema = {"x-guidance": {"whitespace_flexible": False}}

_TYPES = {  # the names that tool documents use, to those of JSON Schema
    "array": "array", "list": "array", "set": "array", "tuple": "array",
    "bool": "boolean", "boolean": "boolean",
    "dict": "object", "map": "object", "object": "object",
    "double": "number", "float": "number", "number": "number",
    "int": "integer", "integer": "integer", "long": "integer",
    "none": "null", "null": "null",
    "str": "string", "string": "string",
}  # fmt: skip

# Small models run on inside strings; 99 % of BFCL's multi-turn ones have at most 105 characters.
MAX_STRING_LENGTH = 256
_MAX_INTEGER = 2**53 - 1  # what JSON carries exactly; unbounded, SmolLM2 writes digits for ever

_OPENING = re.compile(r'\{\s*"(name|answer)"\s*:')


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any]


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    answer: str


def decode_json(text: str) -> Any:
    """The value of a JSON text; None when it is not JSON, or null."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None


def parse_constrained(text: str) -> AssistantMessage | None:
    """Read a completion that follows `call_schema`, cut off or not; None for any other text."""
    stripped = text.strip()
    opening = _OPENING.match(stripped)
    if opening is None:
        return None
    try:
        value = msgspec.json.decode(stripped, type=_Call if opening[1] == "name" else _Answer)
    except msgspec.ValidationError:
        return None  # some other JSON
    except (msgspec.DecodeError, RecursionError):
        return AssistantMessage(malformed_calls=(stripped,)) if opening[1] == "name" else None
    if isinstance(value, _Call):
        return AssistantMessage(tool_calls=(ToolCall(value.name, value.arguments),))
    return AssistantMessage(content=value.answer)


def call_schema(tools: Sequence[ToolSpec], *, max_string_length: int | None) -> dict[str, object]:
    """JSON schema of one call of one of the tools, in their order, or else an answer."""
    branches = [
        _object({"name": {"const": tool["name"]}, "arguments": _arguments(tool, max_string_length)})
        for tool in tools
    ]
    branches.append(_object({"answer": _string(max_string_length)}))
    return {"anyOf": branches, **_COMPACT}


def _arguments(tool: ToolSpec, max_string_length: int | None) -> Schema:
    return _strict_object({"properties": {}, **tool["parameters"]}, max_string_length)


def _strict(schema: object, max_string_length: int | None) -> Schema:
    """The part of a schema that every grammar engine knows; what that cannot say is left open."""
    declared: Schema = cast("Schema", schema) if isinstance(schema, dict) else {}
    if "const" in declared:
        return {"const": declared["const"]}
    if values := _listed(declared, "enum"):
        return {"enum": values}
    branches = (
        _listed(declared, "anyOf")
        or _listed(declared, "oneOf")
        or [{**declared, "type": name} for name in _listed(declared, "type")]
    )
    if branches:
        return {"anyOf": [_strict(branch, max_string_length) for branch in branches]}
    return _strict_type(declared, max_string_length)


def _strict_type(schema: Schema, max_string_length: int | None) -> Schema:
    match _TYPES.get(str(schema.get("type") or "").lower()):
        case None:
            return {}
        case "object":
            return _strict_object(schema, max_string_length)
        case "array":
            return {"type": "array", "items": _strict(schema.get("items"), max_string_length)}
        case "string":
            return _string(max_string_length)
        case "integer":
            return {"type": "integer", "minimum": -_MAX_INTEGER, "maximum": _MAX_INTEGER}
        case name:
            return {"type": name}


def _strict_object(schema: Schema, max_string_length: int | None) -> Schema:
    if not isinstance(schema.get("properties"), dict):
        return {"type": "object"}
    properties: Schema = schema["properties"]
    strict = {name: _strict(value, max_string_length) for name, value in properties.items()}
    required = _listed(schema, "required")
    return _object(strict, [name for name in strict if name in required])


def _listed(schema: Schema, key: str) -> list[Any]:
    value = schema.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []


def _object(properties: Mapping[str, Schema], required: Sequence[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }


def _string(max_length: int | None) -> Schema:
    return {"type": "string"} if max_length is None else {"type": "string", "maxLength": max_length}
