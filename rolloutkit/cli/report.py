"""`rolloutkit report DIR`: a finished run's figures, computed from its trace."""

from __future__ import annotations

import argparse
from pathlib import Path

from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.cli.summary import print_json, print_text
from rolloutkit.report import report_directory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON and nothing else"
    )


def main(arguments: argparse.Namespace) -> int:
    """Show the figures. Raises ConfigError when the directory holds no run."""
    summary = report_directory(arguments.dir)
    if arguments.json:
        print_json(summary)
    else:
        print_text(summary)
    return ExitCode.OK
