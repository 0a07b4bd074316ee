"""`rolloutkit report DIR`: a finished run's figures, computed from its trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.report import report_directory
from rolloutkit.report.outputs import encode_summary
from rolloutkit.report.text import render_summary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON and nothing else")


def main(arguments: argparse.Namespace) -> int:
    """Show the figures. Raises ConfigError when the directory holds no run."""
    summary = report_directory(arguments.dir)
    if arguments.json:
        sys.stdout.write(encode_summary(summary).decode())
    else:
        Console(highlight=False).print(render_summary(summary))
    return ExitCode.OK
