"""Function calls written as text, such as `[cd(folder='a'), ls()]`: parsed, never evaluated."""

from __future__ import annotations

import ast
import warnings
from typing import Any, NamedTuple


class WrittenCall(NamedTuple):
    """One call as written; arguments are literals."""

    name: str
    positional: tuple[Any, ...]
    named: dict[str, Any]


def parse_calls(text: str) -> tuple[WrittenCall, ...] | None:
    """The calls that the whole text consists of, or None when it is anything else.

    Accepts what the official prompting handler accepts (brackets optional, back quotes around them,
    bare names read as strings) except nested calls and arithmetic: no ground truth has any.
    """
    text = text.strip("`\n ")
    text = text if text.startswith("[") else f"[{text}"
    text = text if text.endswith("]") else f"{text}]"
    try:
        with warnings.catch_warnings(action="ignore"):  # such as those about escapes in a string
            body = ast.parse(text, mode="eval").body
        return tuple(_call(node) for node in _elements(body))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None  # what odd text makes ast, and unhashable keys a dict, raise


def _elements(node: ast.expr) -> list[ast.expr]:
    if not isinstance(node, ast.List):
        raise ValueError("not a list")
    return node.elts


def _call(node: ast.expr) -> WrittenCall:
    if not isinstance(node, ast.Call) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("not a plain call")
    return WrittenCall(
        name=_dotted_name(node.func),
        positional=tuple(_literal(argument) for argument in node.args),
        named={str(keyword.arg): _literal(keyword.value) for keyword in node.keywords},
    )


def _dotted_name(node: ast.expr) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, name):
            return f"{_dotted_name(value)}.{name}"
        case _:
            raise ValueError("not a name")


def _literal(node: ast.expr | None) -> Any:
    match node:
        case ast.Constant(str() | int() | float() | None as value):
            return value
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.List(elements):
            return [_literal(element) for element in elements]
        case ast.Tuple(elements):
            return tuple(_literal(element) for element in elements)
        case ast.Dict(keys, values):
            pairs = zip(keys, values, strict=True)
            return {_literal(key): _literal(value) for key, value in pairs}
        case ast.Name(name):
            return name
        case _:
            raise ValueError("not a literal")
