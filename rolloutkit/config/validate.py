"""From plain values to frozen Structs; errors name the key, the value and what would do."""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from rolloutkit.config.suggest import nearest
from rolloutkit.errors import ConfigError

T = TypeVar("T")

_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def convert(values: object, kind: type[T], path: str = "") -> T:
    """Make a `kind` of `values`; `path` is the key under which they stand in the config.

    Raises ConfigError, one line.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), values, kind, path)) from None


def _explain(message: str, values: object, kind: type, prefix: str) -> str:
    match = _MESSAGE.fullmatch(message)
    assert match is not None
    what, steps = match["what"], _STEP.findall(match["path"] or "")
    path = [name or index.replace("...", "*") for name, index in steps]  # * = some key
    where = _join(prefix, *path)
    if unknown := re.fullmatch(r"Object contains unknown field `(.+)`", what):
        known = _fields_at(inspect.type_info(kind), path)
        hint = nearest(unknown[1], known) or (f": choose from {', '.join(known)}" if known else "")
        return f"{_join(where, unknown[1])}: unknown key{hint}"
    if missing := re.fullmatch(r"Object missing required field `(.+)`", what):
        return f"{_join(where, missing[1])}: not set: give it a value"
    found = _value_at(values, path)
    what = re.sub(r", got `\w+`$", "", what)
    if what.startswith("Invalid enum value"):
        what = f"expected one of {_choices_at(inspect.type_info(kind), path)}"
    return f"{where}: {what[0].lower()}{what[1:]}{'' if found is _UNKNOWN else f', got {found!r}'}"


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


class _Unknown:
    pass


_UNKNOWN = _Unknown()


def _value_at(values: object, path: list[str]) -> object:
    for step in path:
        if isinstance(values, dict) and step in values:
            values = cast("dict[str, Any]", values)[step]
        elif isinstance(values, list) and step.isdigit():
            values = cast("list[Any]", values)[int(step)]
        else:
            return _UNKNOWN
    return values


def _type_at(kind: inspect.Type, path: list[str]) -> inspect.Type | None:
    """The innermost type that `path` leads to; of a union the member that goes on."""
    if isinstance(kind, inspect.Metadata):
        return _type_at(kind.type, path)
    if isinstance(kind, inspect.UnionType):
        found = (_type_at(member, path) for member in kind.types)
        return next(
            (one for one in found if one is not None and not isinstance(one, inspect.NoneType)),
            None,
        )
    if not path:
        return kind
    step, *rest = path
    match kind:
        case inspect.StructType():
            return next(
                (_type_at(field.type, rest) for field in kind.fields if field.encode_name == step),
                None,
            )
        case inspect.DictType():
            return _type_at(kind.value_type, rest)
        case inspect.ListType() | inspect.VarTupleType():
            return _type_at(kind.item_type, rest)
        case _:
            return None


def _fields_at(kind: inspect.Type, path: list[str]) -> list[str]:
    found = _type_at(kind, path)
    return (
        [field.encode_name for field in found.fields]
        if isinstance(found, inspect.StructType)
        else []
    )


def _choices_at(kind: inspect.Type, path: list[str]) -> str:
    match _type_at(kind, path):
        case inspect.EnumType(cls=cls):
            return ", ".join(str(member.value) for member in cls)
        case inspect.LiteralType(values=values):
            return ", ".join(map(str, values))
        case _:
            return "its kind's values"
