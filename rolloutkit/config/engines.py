"""Which engine a config asks for: one of ours by `kind`, or a user's class by `target`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rolloutkit.config.components import Component, component
from rolloutkit.config.suggest import nearest
from rolloutkit.config.validate import convert
from rolloutkit.errors import ConfigError
from rolloutkit.protocols import Engine, HasWorkers
from rolloutkit.routing import Router, RouterSettings

_OURS = {  # kind: its module, and what its classes are called
    "llamacpp": ("engines.llamacpp", "LlamaCpp"),
    "openai": ("engines.openai", "OpenAI"),
    "sglang": ("engines.sglang", "SGLang"),
    "sim_reference": ("sim.speaking", "Speaking"),
    "sim_sglang": ("sim.sglang.speaking", "Sglang"),
    "simulated": ("engines.simulated", "Simulated"),
    "vllm": ("engines.vllm", "VLLM"),
}
REAL_ENGINES = frozenset(
    {"llamacpp", "openai", "sglang", "vllm"}
)  # they need sockets, which virtual time refuses


def engine_component(section: Mapping[str, Any]) -> Component:
    """The engine that the section names, with its validated config. Raises ConfigError."""
    if "target" in section:
        return component("engine", section)
    fields = dict(section)
    kind = str(fields.pop("kind", ""))
    if kind not in _OURS:
        hint = nearest(kind, _OURS)
        raise ConfigError(f"engine.kind: expected one of {', '.join(_OURS)}, got {kind!r}{hint}")
    path, name = _OURS[kind]
    module = importlib.import_module(f"rolloutkit.{path}")
    config = convert(fields, getattr(module, f"{name}Config"), "engine")
    return Component("engine", getattr(module, f"{name}Engine"), config)


def make_engine(
    choice: Component, router: RouterSettings, *, has_tokenizer: bool, seed: int
) -> Engine:
    """The engine, still to be opened; its workers, where it has several, behind a router.

    Reads the API key from the environment variable of that name.

    Without a tokenizer of ours an OpenAI server is spoken to in messages unless the config insists.
    """
    from rolloutkit.engines.openai import Api, OpenAIConfig, OpenAIEngine
    from rolloutkit.engines.servers import ServersConfig

    config = choice.config
    if isinstance(config, OpenAIConfig):
        if config.needs_logprobs and not has_tokenizer:
            raise ConfigError(
                "engine.needs_logprobs: messages bring no log-probs, got true: "
                "set renderer.tokenizer"
            )
        if config.api is Api.AUTO and not has_tokenizer:
            config = msgspec.structs.replace(config, api=Api.CHAT)
        return OpenAIEngine(config, _api_key(config.api_key_env))
    if isinstance(config, ServersConfig):
        return routed(choice.made_by(config, _api_key(config.api_key_env)), router, seed)
    return routed(choice.make(), router, seed)


def routed(engine: Engine, settings: RouterSettings, seed: int) -> Engine:
    """The engine's workers behind a router, where it comes as workers; else as it is."""
    if isinstance(engine, HasWorkers):
        return Router(engine.make_workers(), settings, seed=seed)
    return engine


def tokenizer_path(choice: Component) -> Path | None:
    """The checked file with the tokenizer of the engine's own model, if it has one. Blocks.

    A simulated engine borrows the bundled model's, where that is installed.
    """
    from rolloutkit.assets import bundled_model, checked_model
    from rolloutkit.engines.llamacpp import LlamaCppConfig
    from rolloutkit.engines.simulated import SimulatedConfig
    from rolloutkit.sim.sglang.speaking import SglangConfig
    from rolloutkit.sim.speaking import SpeakingConfig

    match choice.config:
        case LlamaCppConfig(model=str(model), sha256=str(sha256)) if model:
            return checked_model(Path(model), sha256).path
        case LlamaCppConfig():
            return bundled_model().path
        case SimulatedConfig() | SpeakingConfig() | SglangConfig():
            try:
                return bundled_model().path
            except ConfigError:
                return None
        case _:
            return None


def _api_key(variable: str) -> str:
    if not variable:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise ConfigError(
            f"engine.api_key_env: the environment variable {variable!r} is not set: export it"
        )
    return key
