"""From a config's name, or from what `@hydra.main` composed, to a RunConfig."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rolloutkit.actions import refuse_needs
from rolloutkit.admission import refuse_unplanned
from rolloutkit.config.components import component
from rolloutkit.config.engines import REAL_ENGINES, engine_component
from rolloutkit.config.schema import Hosting, RunConfig, Sections
from rolloutkit.config.suggest import nearest
from rolloutkit.config.validate import convert
from rolloutkit.errors import ConfigError
from rolloutkit.tail import refuse_stages

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from rolloutkit.config.compose import Composed


def load(name: str, overrides: Sequence[str] = (), config_dir: Path | None = None) -> RunConfig:
    """Compose the config `name` with Hydra overrides and validate it.

    Files in `config_dir` come before ours of the same name. Raises ConfigError.
    """
    from rolloutkit.config.compose import compose

    return _validated(compose(name, overrides, config_dir))


def validate(composed: DictConfig) -> RunConfig:
    """Validate what `@hydra.main` composed. Raises ConfigError."""
    from rolloutkit.config.compose import plain

    return _validated(plain(composed))


def _validated(composed: Composed) -> RunConfig:
    values = dict(composed.values)
    for name in values:
        if name not in _SECTIONS:
            raise ConfigError(f"{name}: unknown key{nearest(name, _SECTIONS) or _CHOICE}")
    engine, environment = _section(values, "engine"), _section(values, "environment")
    hosting = convert({"where": environment.pop("where", "auto")}, Hosting, "environment")
    sections = convert(values, Sections)
    if sections.run.time == "virtual" and engine.get("kind") in REAL_ENGINES:
        raise ConfigError("run.time: only simulated engines run in virtual time, got 'virtual'")
    refuse_stages(sections.tail.hedge)
    refuse_unplanned(sections.admission)
    refuse_needs(sections.actions)
    return RunConfig(
        engine=engine_component(engine),
        environment=component("environment", environment),
        where=hosting.where,
        text=composed.text,
        **msgspec.structs.asdict(sections),
    )


_SECTIONS = ("engine", "environment", *Sections.__struct_fields__)
_CHOICE = f": choose from {', '.join(_SECTIONS)}"


def _section(values: dict[str, Any], name: str) -> dict[str, Any]:
    section = values.pop(name, None)
    if not isinstance(section, dict):
        raise ConfigError(
            f"{name}: not chosen: add {name}=NAME, or a section with a `target`, got {section!r}"
        )
    return dict(cast("dict[str, Any]", section))
