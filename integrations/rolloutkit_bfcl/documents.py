"""Tool documents as a model gets to see them: in full, or as signatures of one line each."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from enum import StrEnum
from functools import cache
from typing import Any

from rolloutkit.types import ToolSpec
from rolloutkit_bfcl.dataset import load_documents

# Added officially: by the loader; by `convert_to_tool` where tools have no field for a response.
_HINT = " Note that the provided function is in Python 3 syntax."
_RESPONSE = " The response field has the following schema: "


class ToolDocuments(StrEnum):
    """How much a model reads about its tools."""

    FULL = "full"  # the official documents
    COMPACT = "compact"  # one line a function, for small contexts


@cache
def tool_specs(class_name: str) -> tuple[ToolSpec, ...]:
    """The official documents of one class with JSON-schema types."""
    return tuple(
        ToolSpec(
            name=document.name,
            description=f"{document.description}{_HINT}{_RESPONSE}{json.dumps(document.response)}",
            parameters=_object_schema(document.parameters),
        )
        for document in load_documents(class_name)
    )


def describe(tools: Sequence[ToolSpec], how: ToolDocuments) -> str:
    """The tools as text for a message, one a line."""
    if how == ToolDocuments.FULL:
        return "\n".join(json.dumps(tool) for tool in tools)
    return "\n".join(_signature(tool) for tool in tools)


def _signature(tool: ToolSpec) -> str:
    required = tool["parameters"].get("required", [])
    arguments = [
        name + ("" if name in required else "?") + ("" if kind == "string" else f": {kind}")
        for name, kind in _types(tool["parameters"])
    ]
    description = tool["description"].partition(_HINT)[0].partition("Tool description: ")[2]
    return f"{tool['name']}({', '.join(arguments)}): {description.partition('. ')[0].rstrip('.')}"


def _types(parameters: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, schema["type"]) for name, schema in parameters["properties"].items()]


def _object_schema(parameters: dict[str, Any]) -> dict[str, Any]:
    schema = copy.deepcopy(parameters)
    schema["type"] = "object"
    _convert(schema["properties"])
    return schema


def _convert(properties: dict[str, Any]) -> None:
    """Give types their names in JSON schema, as the official `convert_to_tool` does."""
    from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI

    for schema in properties.values():
        if schema.get("type") == "float" and "description" in schema:
            schema["format"] = "float"
            schema["description"] += " This is a float type value."
        schema["type"] = GORILLA_TO_OPENAPI.get(schema.get("type"), "string")
        if "properties" in schema:
            _convert(schema["properties"])
        elif "items" in schema:
            _convert({"items": schema["items"]})
