"""The parts that a configuration describes: everything that `batch.prepare` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rolloutkit import render
from rolloutkit.assets import bundled_model
from rolloutkit.batch import workload_of
from rolloutkit.config.engines import make_engine, tokenizer_path
from rolloutkit.config.schema import RunConfig
from rolloutkit.config.tasks import tasks_of
from rolloutkit.errors import ConfigError
from rolloutkit.estimate import History, read_history
from rolloutkit.hosting import hosted
from rolloutkit.protocols import Engine, Environment
from rolloutkit.render import Tokenizer, TokenRenderer
from rolloutkit.types import Task

_NO_RENDERER = "none"  # for environments that speak in token ids


class Parts(NamedTuple):
    """The parts of a run. The engine is still to be opened, on the loop that uses it."""

    engine: Engine
    environment: Environment
    tasks: list[Task]
    renderer: TokenRenderer | None
    history: History | None = None


def make_environment(config: RunConfig) -> Environment:
    """The environment as its class makes it. Raises ConfigError."""
    environment = config.environment.make()
    for name in ("name", "open"):
        if not hasattr(environment, name):
            kind = type(environment).__name__
            raise ConfigError(f"environment.target: {kind} is no Environment: it lacks {name!r}")
    return environment


def make_tasks(config: RunConfig, environment: Environment) -> list[Task]:
    """The tasks, each of them the environment's. Blocks. Raises ConfigError."""
    tasks = tasks_of(environment, config.tasks.file, config.tasks.num_samples)
    for task in tasks:
        if task.environment not in ("", environment.name):
            raise ConfigError(
                f"task {task.task_id!r}: environment: expected {environment.name!r}, "
                f"got {task.environment!r}"
            )
    return tasks


def make_history(config: RunConfig, environment: Environment) -> History | None:
    """What the history file says. Blocks. Raises ConfigError for that of another workload."""
    options = config.history
    if options.path is None:
        return None
    return read_history(Path(options.path), workload_of([environment.name]), options.rates)


def hosted_environment(config: RunConfig, environment: Environment) -> Environment:
    """The environment with its blocking code where the config says; `auto` is left to `prepare`."""
    return environment if config.where == "auto" else hosted(environment, config.where)


def make_parts(config: RunConfig) -> Parts:
    """Make the parts of a run. Blocks. Raises ConfigError for what cannot be made."""
    environment = make_environment(config)
    tasks = make_tasks(config, environment)
    renderer = make_renderer(config)
    engine = make_engine(
        config.engine, config.router, has_tokenizer=renderer is not None, seed=config.run.seed
    )
    history = make_history(config, environment)
    return Parts(engine, hosted_environment(config, environment), tasks, renderer, history)


def make_renderer(config: RunConfig) -> TokenRenderer | None:
    """The renderer, where there is a tokenizer to render with. Blocks. Raises ConfigError."""
    options = config.renderer
    if options.name == _NO_RENDERER:
        return None
    match options.tokenizer:
        case None:
            path = tokenizer_path(config.engine)
        case "bundled":
            path = bundled_model().path
        case name:
            path = Path(name)
    if path is None:
        return None
    if not path.exists():
        key = "renderer.tokenizer" if options.tokenizer is not None else "engine.model"
        raise ConfigError(f"{key}: no such file: {path}")
    return render.make_renderer(
        options.name,
        Tokenizer.load(path, name=options.model),
        options.options,
        max_string_length=options.max_string_length,
    )
