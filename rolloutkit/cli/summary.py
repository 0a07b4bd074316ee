"""Figures of runs on stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolloutkit.errors import RunFailed
from rolloutkit.report import Summary
from rolloutkit.report.comparison import compare_figures
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


def print_summaries(names: Sequence[str], summaries: Sequence[Summary]) -> None:
    """The summaries of several runs as one JSON object, by name."""
    by_name = dict(zip(names, summaries, strict=True))
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(by_name)).decode() + "\n")


def print_comparison(names: Sequence[str], summaries: Sequence[Summary]) -> None:
    """Headline figures of several runs side by side."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("")
    for name in names:
        table.add_column(Text(name), overflow="fold")
    for figure, texts in compare_figures(summaries).items():
        table.add_row(Text(figure, style="bold"), *map(Text, texts))
    Console(highlight=False).print(table)


def require_success(summary: Summary, max_failed: float) -> None:
    """Raise RunFailed when the run ended early or more than the share `max_failed` failed."""
    if summary.num_failed > max_failed * summary.num_samples:
        raise RunFailed(
            f"{summary.num_failed} of {summary.num_samples} samples failed, more than "
            f"run.max_failed of {max_failed:g} allows: see trajectories.jsonl for why"
        )
    if summary.ended_early is not None:
        raise RunFailed(f"the run ended early: {summary.ended_early}")
