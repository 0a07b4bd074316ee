"""From config files and overrides to plain values, by Hydra; its errors become one line each.

This module knows files, groups and interpolations and not what the values mean. An override of a
dotted key may add it (`limits.max_turns=5` works whether or not a file mentions it): the types that
the values are checked against know better than the files which keys exist.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from rolloutkit.config.suggest import nearest
from rolloutkit.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]
_SUFFIXES = (".yaml", ".yml")
_READS_ENVIRONMENT = re.compile(r"\$\{\s*oc\.env:")


class Composed(NamedTuple):
    """A composed configuration: `values` are plain, `text` is what `config.yaml` says.

    The text keeps `${oc.env:...}` for what was read from the environment: it may be secret.
    """

    values: dict[str, Any]
    text: str


def shipped_configs() -> Path:
    """The directory of our own configs: the checkout's where we run from one, else the wheel's."""
    checkout = _PACKAGE.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "configs").is_dir():
        return (
            checkout / "configs"
        )  # an editable install has a copy too, as old as the installation
    return _PACKAGE / "configs"


def compose(name: str, overrides: Sequence[str] = (), config_dir: Path | None = None) -> Composed:
    """Compose the config `name` (or the file of that path) with `overrides`.

    Files in `config_dir` come before ours of the same name. Raises ConfigError.
    """
    path = Path(name)
    if path.suffix in _SUFFIXES:
        config_dir, name = config_dir or path.parent, path.stem
    shipped = shipped_configs()
    first = shipped if config_dir is None else config_dir.absolute()
    if not first.is_dir():
        raise ConfigError(f"--config-dir: no such directory: {first}")
    given = [_may_add(override, (first, shipped)) for override in overrides]
    search = [] if first == shipped else [f"hydra.searchpath=[file://{shipped}]"]
    try:
        with initialize_config_dir(str(first), version_base=None):
            config = hydra_compose(name, overrides=[*search, *given])
    except MissingConfigException as error:
        raise ConfigError(_missing(error, name, (first, shipped))) from None
    except OverrideParseException as error:
        raise ConfigError(f"{error.override!r}: not an override: write key=value") from None
    except YAMLError as error:
        raise ConfigError(_broken_yaml(error)) from None
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(_one_line(error)) from None
    return plain(config)


def plain(config: DictConfig) -> Composed:
    """The values of a DictConfig. Raises ConfigError for an interpolation that leads nowhere."""
    try:
        resolved = OmegaConf.to_container(config, resolve=True)
        written = OmegaConf.to_container(config, resolve=False)
    except OmegaConfBaseException as error:
        key = error.full_key or "the config"
        raise ConfigError(f"{key}: {_one_line(error)}") from None
    assert isinstance(resolved, dict)
    values = _without_missing(cast("dict[str, Any]", resolved))
    shown = _without(set(_secrets(values, written)), values, written)
    if isinstance(shown.get("output"), dict):
        shown["output"]["dir"] = None  # it is where the text lies; a copied run goes elsewhere
    return Composed(values, OmegaConf.to_yaml(OmegaConf.create(shown)))


def _without_missing(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a file marks as to be given (`???`): the types know whether it must be."""
    return {
        key: _without_missing(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in values.items()
        if value != "???"
    }


def _secrets(resolved: Any, written: Any) -> Iterator[str]:
    """What was read from the environment, as text."""
    if isinstance(written, str):
        if _READS_ENVIRONMENT.search(written) and resolved not in (None, ""):
            yield str(resolved)
    else:
        for value, raw in _pairs(resolved, written):
            yield from _secrets(value, raw)


def _without(secrets: Collection[str], resolved: Any, written: Any) -> Any:
    """`resolved`, but as `written` wherever a secret came in by interpolation."""
    if isinstance(written, str):
        leaks = "${" in written and any(secret in str(resolved) for secret in secrets)
        return written if leaks else resolved
    shown = [_without(secrets, value, raw) for value, raw in _pairs(resolved, written)]
    if isinstance(resolved, dict):
        return dict(zip(cast("dict[str, Any]", resolved), shown, strict=True))
    return shown if isinstance(resolved, list) else resolved


def _pairs(resolved: Any, written: Any) -> Iterator[tuple[Any, Any]]:
    """Members of a mapping or a list, each with what was written for it."""
    if isinstance(resolved, dict):
        raw = cast("dict[str, Any]", written)
        yield from ((value, raw[key]) for key, value in cast("dict[str, Any]", resolved).items())
    elif isinstance(resolved, list):
        yield from zip(cast("list[Any]", resolved), cast("list[Any]", written), strict=True)


def _may_add(override: str, folders: Sequence[Path]) -> str:
    """The override as "set or add", where it names a key and does not choose a group's option."""
    key, is_assignment, _ = override.partition("=")
    is_plain = key[:1] not in ("+", "~", "") and not set(key) & set("@/ ")
    is_group = any((folder / key).is_dir() for folder in folders)
    if is_assignment and is_plain and not is_group and not key.startswith("hydra."):
        return f"++{override}"
    return override


def _missing(error: MissingConfigException, name: str, folders: Sequence[Path]) -> str:
    wanted = error.missing_cfg_file or name
    group, _, option = str(wanted).rpartition("/")
    if not group:
        known = sorted({found for folder in folders for found in _options(folder)})
        choices = f"choose from {', '.join(known)}{nearest(option, known)}"
        return f"--config: no config is called {option!r}: {choices}"
    known = sorted(
        set(error.options or ())
        | {found for folder in folders for found in _options(folder / group)}
    )
    return (
        f"{group}={option}: no such option: choose from {', '.join(known)}{nearest(option, known)}"
    )


def _options(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        yield from (path.stem for path in folder.iterdir() if path.suffix in _SUFFIXES)


def _broken_yaml(error: YAMLError) -> str:
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}:{mark.line + 1}: not valid YAML: {error.problem}"
    return f"not valid YAML: {_one_line(error)}"


def _one_line(error: object) -> str:
    return " ".join(line.strip() for line in str(error).splitlines() if line.strip())
