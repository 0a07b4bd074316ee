"""Parts that a config names by class: a `target` and the fields of that class's `Config`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import msgspec

from rolloutkit.config.suggest import nearest
from rolloutkit.config.validate import convert
from rolloutkit.errors import ConfigError


class Component(NamedTuple):
    """A class to make one part of, and its validated `Config`; None where it has none."""

    path: str  # the section that names it
    made_by: type[Any]
    config: msgspec.Struct | None

    def make(self) -> Any:
        """Make it. Raises ConfigError, also where the class itself refuses its configuration."""
        try:
            return self.made_by() if self.config is None else self.made_by(self.config)
        except ConfigError:
            raise
        except (
            Exception
        ) as error:  # user code may raise anything; here it refuses its configuration
            name = self.made_by.__name__
            raise ConfigError(f"{self.path}: {name} cannot be made: {_brief(error)}") from error


def component(path: str, section: Mapping[str, Any]) -> Component:
    """Import the target of section `path` and validate its other fields. Raises ConfigError."""
    fields = dict(section)
    target = fields.pop("target", None)
    if not isinstance(target, str):
        raise ConfigError(f"{path}.target: not a class: write module:Class, got {target!r}")
    made_by = _import(f"{path}.target", target)
    declared = getattr(made_by, "Config", None)
    if not (isinstance(declared, type) and issubclass(declared, msgspec.Struct)):
        if fields:
            names = ", ".join(fields)
            raise ConfigError(
                f"{path}: {target} declares no `Config`, so it takes no fields, got {names}"
            )
        return Component(path, made_by, None)
    return Component(path, made_by, convert(fields, declared, path))


def _import(path: str, target: str) -> type[Any]:
    module_name, _, class_name = target.partition(":")
    if not module_name or not class_name:
        raise ConfigError(f"{path}: not a class: write module:Class, got {target!r}")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing user code may raise anything
        remedy = (
            "is it installed, or in the current directory?"
            if isinstance(error, ImportError)
            else "mend it"
        )
        raise ConfigError(
            f"{path}: {target!r} cannot be imported: {_brief(error)}: {remedy}"
        ) from error
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        classes = [name for name, value in vars(module).items() if inspect.isclass(value)]
        hint = nearest(class_name, classes)
        raise ConfigError(f"{path}: module {module_name!r} has no class {class_name!r}{hint}")
    return cast("type[Any]", found)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
