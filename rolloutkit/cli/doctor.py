"""`rolloutkit doctor`: would this configuration run here?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from rolloutkit import clock
from rolloutkit.batch import opened
from rolloutkit.cli.arguments import add_config_arguments, load_config
from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.config import Parts, RunConfig
from rolloutkit.doctor import Check, Verdict, examine, examine_engine
from rolloutkit.errors import ConfigError

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the checks as JSON and nothing else"
    )


def main(arguments: argparse.Namespace) -> int:
    """Run every check and show what was found. Raises ConfigError for a config that is wrong."""
    config = load_config(arguments)
    checks, parts = examine(config, Path(config.output.dir or "runs"))
    if parts is not None:
        checks = checks + clock.run(_engine_checks(config, parts), time=config.run.time)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(checks)).decode() + "\n")
    else:
        _show(checks)
    is_fine = all(check.verdict is not Verdict.FAIL for check in checks)
    return ExitCode.OK if is_fine else ExitCode.BAD_INPUT


async def _engine_checks(config: RunConfig, parts: Parts) -> list[Check]:
    try:
        async with opened(parts.engine, config.limits.admin):
            return examine_engine(config, parts)
    except ConfigError as error:
        return [Check("engine", Verdict.FAIL, str(error))]


def _show(checks: list[Check]) -> None:
    console = Console(highlight=False)
    width = max(len(check.name) for check in checks)
    for check in checks:
        verdict = Text(f"{check.verdict:5}", style=_STYLES[check.verdict])
        console.print(verdict + f" {check.name:{width}}  {check.message}", soft_wrap=True)
