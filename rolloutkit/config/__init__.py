"""Configuration: Hydra composes, msgspec validates, and nothing past here sees a DictConfig.

    load ──► RunConfig (frozen) ──make_parts──► Parts ──► batch.prepare

This package alone knows YAML, OmegaConf, environment variables and the shape of a config. Whatever
is wrong with a config raises ConfigError: one line with the key, the value and what would do.
"""

from rolloutkit.config.engines import make_engine
from rolloutkit.config.load import load, validate
from rolloutkit.config.parts import (
    Parts,
    hosted_environment,
    make_environment,
    make_history,
    make_parts,
    make_renderer,
    make_tasks,
)
from rolloutkit.config.schema import RunConfig

__all__ = [
    "Parts",
    "RunConfig",
    "hosted_environment",
    "load",
    "make_engine",
    "make_environment",
    "make_history",
    "make_parts",
    "make_renderer",
    "make_tasks",
    "validate",
]
