"""`rolloutkit report DIR ...`: figures of finished runs, computed from their traces.

Of one run everything is shown, of several the headline figures side by side.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.cli.summary import print_comparison, print_json, print_summaries, print_text
from rolloutkit.errors import ConfigError
from rolloutkit.report import Summary, report_directory, write_page_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dirs", nargs="+", type=Path, metavar="DIR", help="output directory of a run"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write the report, or the comparison, as a page"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print the summary as JSON and nothing else; of several runs, one by directory",
    )


def main(arguments: argparse.Namespace) -> int:
    """Show the figures. Raises ConfigError when there is no run, or no place for the page."""
    directories: Sequence[Path] = arguments.dirs
    if arguments.html is not None and not arguments.html.parent.is_dir():
        raise ConfigError(f"--html: no directory {arguments.html.parent}: create it first")
    summaries = [report_directory(directory) for directory in directories]
    if arguments.html is not None:
        write_page_file(directories, summaries, arguments.html)
    if len(summaries) == 1:
        (print_json if arguments.json else print_text)(summaries[0])
    else:
        _show_all([str(it) for it in directories], summaries, is_json=arguments.json)
    return ExitCode.OK


def _show_all(names: Sequence[str], summaries: Sequence[Summary], *, is_json: bool) -> None:
    if is_json:
        print_summaries(names, summaries)
    else:
        print_comparison(names, summaries)
