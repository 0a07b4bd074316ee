"""What a configuration is made of once it is put together: everything that `batch.prepare` asks for."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, cast

from rolloutkit.config.engines import make_engine, tokenizer_path
from rolloutkit.config.schema import RunConfig
from rolloutkit.config.tasks import tasks_of
from rolloutkit.errors import ConfigError
from rolloutkit.hosting import hosted
from rolloutkit.protocols import Engine, Environment
from rolloutkit.render import TokenRenderer, Tokenizer, make_renderer
from rolloutkit.types import Task

_NO_RENDERER = "none"  # for environments that speak in token ids


class Parts(NamedTuple):
    """The parts of a run. The engine is still to be entered, on the loop that will use it."""

    engine: AbstractAsyncContextManager[Engine]
    environment: Environment
    tasks: list[Task]
    renderer: TokenRenderer | None


def make_parts(config: RunConfig) -> Parts:
    """Make the parts of a run. Blocks. Raises ConfigError for what cannot be made."""
    own = config.environment.make()
    tasks = tasks_of(own, config.tasks.file, config.tasks.num_samples)
    renderer = _renderer(config)
    engine = make_engine(config.engine, has_tokenizer=renderer is not None)
    return Parts(engine, _environment(config, own), tasks, renderer)


def _environment(config: RunConfig, own: Any) -> Environment:
    for name in ("name", "open"):
        if not hasattr(own, name):
            raise ConfigError(f"environment.target: {type(own).__name__} is no Environment: it lacks {name!r}")
    environment = cast("Environment", own)
    return environment if config.where == "auto" else hosted(environment, config.where)


def _renderer(config: RunConfig) -> TokenRenderer | None:
    """The renderer, where there is a tokenizer to render with."""
    options = config.renderer
    if options.name == _NO_RENDERER:
        return None
    path = Path(options.tokenizer) if options.tokenizer is not None else tokenizer_path(config.engine)
    if path is None:
        return None
    if not path.exists():
        key = "renderer.tokenizer" if options.tokenizer is not None else "engine.model"
        raise ConfigError(f"{key}: no such file: {path}")
    return make_renderer(
        options.name,
        Tokenizer.load(path, name=options.model),
        options.options,
        max_string_length=options.max_string_length,
    )
