"""A run's figures on stdout."""

from __future__ import annotations

import sys

from rich.console import Console

from rolloutkit.report import Summary
from rolloutkit.report.outputs import encode_summary
from rolloutkit.report.text import summary_text


def print_json(summary: Summary) -> None:
    """The text of `summary.json` and nothing else."""
    sys.stdout.write(encode_summary(summary).decode())


def print_text(summary: Summary, *, note: str = "") -> None:
    """The report in words, as wide as the terminal; `note` says what to make of the score."""
    console = Console()
    text = summary_text(
        summary, note=note, width=console.width, has_colours=console.color_system is not None
    )
    sys.stdout.write(text)
