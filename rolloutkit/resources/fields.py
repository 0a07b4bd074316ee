"""Reads a model's configuration, and names everything that it lacks in one message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from rolloutkit.errors import ConfigError

_WRAPPERS = ("text_config", "llm_config", "language_config")


class Fields:
    """The fields of a text model; those of the wrapper of a multimodal one stand behind them."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        inner = next((config[key] for key in _WRAPPERS if isinstance(config.get(key), dict)), None)
        self._values = {**config, **cast("dict[str, Any]", inner)} if inner else dict(config)
        self.name = name

    @property
    def model_type(self) -> str:
        return str(self._values.get("model_type", ""))

    def require(self, *names: str) -> None:
        """Raise ConfigError that lists what is missing; `a|b` is satisfied by either."""
        missing = [name for name in names if not any(map(self.has, name.split("|")))]
        if missing:
            raise ConfigError(
                f"model: {self.name}: architecture {self.model_type or 'without model_type'!r} "
                f"lacks {', '.join(one.replace('|', ' or ') for one in missing)}: add them, or "
                "give a rolloutkit.resources.ModelSpec by hand"
            )

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def get(self, *names: str) -> Any:
        """The first of the fields that has a value, else None."""
        return next((self._values[name] for name in names if self.has(name)), None)

    def number(self, *names: str, default: int | None = None) -> int:
        """The first of the fields, as a whole number. Raises ConfigError."""
        if default is None:
            self.require("|".join(names))
        found = self.get(*names)
        value = default if found is None else found
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(
                f"model: {self.name}: {names[0]} must be a whole number of at least 0, "
                f"got {value!r}: correct the configuration"
            )
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of whole numbers. Raises ConfigError."""
        self.require(name)
        return [self._whole(name, one) for one in self._list(name)]

    def words(self, name: str) -> list[str]:
        """A list of words. Raises ConfigError."""
        self.require(name)
        return [str(one) for one in self._list(name)]

    def section(self, name: str) -> Fields:
        """The fields of a section; of an absent one, none."""
        value = self._values.get(name)
        return Fields(cast("dict[str, Any]", value) if isinstance(value, dict) else {}, self.name)

    def _list(self, name: str) -> list[Any]:
        value = self._values[name]
        if not isinstance(value, list):
            raise ConfigError(
                f"model: {self.name}: {name} must be a list, got {value!r}: correct it"
            )
        return cast("list[Any]", value)

    def _whole(self, name: str, value: object) -> int:
        if not isinstance(value, int):
            raise ConfigError(
                f"model: {self.name}: {name} must hold whole numbers, got {value!r}: correct it"
            )
        return value
