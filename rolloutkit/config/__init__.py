"""Configuration: Hydra composes, msgspec validates, and nothing past here sees a DictConfig.

    load ──► RunConfig (frozen) ──make_parts──► Parts ──► batch.prepare

This package alone knows YAML, OmegaConf, environment variables and the shape of a config. Everything that
is wrong with a config raises ConfigError: one line with the key, the value and what would do.
"""

from rolloutkit.config.load import load, validate
from rolloutkit.config.parts import Parts, make_parts
from rolloutkit.config.schema import RunConfig

__all__ = ["Parts", "RunConfig", "load", "make_parts", "validate"]
