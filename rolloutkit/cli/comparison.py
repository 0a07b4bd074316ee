"""What a comparison of replays looks like: a table on the terminal, and files."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from rolloutkit.cli.forest import forest_plot
from rolloutkit.compare import Comparison, Estimate, Variant
from rolloutkit.errors import ConfigError

JSON_NAME = "compare.json"
TABLE_NAME = "compare.md"
PLOT_NAME = "compare.svg"
_COLUMNS = ("", "makespan, s", "change", "makespan / bound", "failed samples")


def encode_comparison(comparison: Comparison) -> bytes:
    """The text of `compare.json`; equal comparisons give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(comparison, order="deterministic")) + b"\n"


def print_comparison(comparison: Comparison) -> None:
    """The table, as wide as the terminal."""
    table = Table()
    for index, column in enumerate(_COLUMNS):
        table.add_column(column, justify="right" if index else "left", no_wrap=index == 0)
    for variant in comparison.variants:
        table.add_row(*_cells(variant))
    console = Console(highlight=False)
    console.print(_title(comparison), soft_wrap=True)
    console.print(table)


def write_comparison(directory: Path, comparison: Comparison) -> None:
    """Write `compare.json`, `compare.md` and `compare.svg` into a directory. Raises ConfigError."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_cells, comparison.variants)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / JSON_NAME).write_bytes(encode_comparison(comparison))
        (directory / TABLE_NAME).write_text(f"{_title(comparison)}\n\n" + "\n".join(lines) + "\n")
        (directory / PLOT_NAME).write_text(forest_plot(comparison))
    except OSError as error:
        raise ConfigError(f"output.dir: cannot write {directory}: {error.strerror}") from None


def _title(comparison: Comparison) -> str:
    seeds = comparison.seeds
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return f"{comparison.trace}, {which}; means with {comparison.confidence:.0%} intervals"


def _cells(variant: Variant) -> tuple[str, ...]:
    return (
        variant.name,
        _shown(variant.makespan_seconds, ".0f"),
        "-" if variant.change_percent is None else _shown(variant.change_percent, "+.1f", " %"),
        "unknown" if variant.gap is None else _shown(variant.gap, ".2f"),
        str(variant.num_failed),
    )


def _shown(estimate: Estimate, form: str, unit: str = "") -> str:
    if estimate.plus_minus is None:
        return f"{estimate.mean:{form}}{unit}"
    return f"{estimate.mean:{form}} ± {estimate.plus_minus:{form.lstrip('+')}}{unit}"
