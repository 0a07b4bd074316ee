"""The arguments that verbs share."""

from __future__ import annotations

import argparse
from pathlib import Path

from rolloutkit.config import RunConfig, load

DEFAULT_CONFIG = "quickstart"


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """`--config`, `--config-dir` and the overrides."""
    parser.add_argument(
        "--config",
        default=DEFAULT_CONFIG,
        metavar="NAME",
        help="a shipped config's name, or a YAML file",
    )
    parser.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="a directory of your own configs and groups"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="settings, such as engine=openai limits.max_turns=20 (see configs/base.yaml)",
    )


def load_config(arguments: argparse.Namespace) -> RunConfig:
    """The configuration that the arguments ask for. Raises ConfigError."""
    return load(arguments.config, arguments.overrides, arguments.config_dir)
