"""`rolloutkit trace info|scrub|import`: look at a recording, share it, bring one in."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.config.validate import convert
from rolloutkit.errors import ConfigError
from rolloutkit.estimate import ReferenceRates
from rolloutkit.record import TraceWriter, read_trace
from rolloutkit.record.events import Event
from rolloutkit.record.imports import Format, ImportOptions, events_of, read_foreign
from rolloutkit.record.overview import Overview, overview_of
from rolloutkit.record.scrub import Scrubber

_PATHS = {"info": ("FILE",), "scrub": ("IN", "OUT"), "import": ("IN", "OUT")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=tuple(_PATHS), help="info FILE | scrub | import IN OUT")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--json", action="store_true", help="info: print JSON and nothing else")
    parser.add_argument(
        "--keep-responses", action="store_true", help="scrub: keep what environments answered"
    )
    parser.add_argument(
        "--from", dest="source", choices=tuple(Format), help="import: where it comes from"
    )
    parser.add_argument("--fill-tokens", metavar="N", help="import: for unknown token counts")
    parser.add_argument("--fill-seconds", metavar="S", help="import: for unknown tool times")
    parser.add_argument(
        "--chars-per-token", metavar="X", help="import: count tokens of texts by their length"
    )


def main(arguments: argparse.Namespace) -> int:
    """Do it. Raises ConfigError, and then nothing is written."""
    paths: list[Path] = arguments.paths
    match arguments.action, paths:
        case "info", [path]:
            _show(overview_of(path), as_json=arguments.json)
        case "scrub", [source, target]:
            _scrub(source, target, keeps_responses=arguments.keep_responses)
        case "import", [source, target]:
            _import(source, target, arguments)
        case action, _:
            wanted = " ".join(_PATHS[action])
            raise ConfigError(f"trace {action}: expected {wanted}, got {' '.join(map(str, paths))}")
    return ExitCode.OK


def _scrub(source: Path, target: Path, *, keeps_responses: bool) -> None:
    scrubber = Scrubber(keeps_responses=keeps_responses)
    num_events = _write(target, list(scrubber.events(read_trace(source))))
    sys.stdout.write(
        f"{num_events} events written to {target}, {scrubber.num_replaced} private texts replaced; "
        "look at it before you share it\n"
    )


def _import(source: Path, target: Path, arguments: argparse.Namespace) -> None:
    if arguments.source is None:
        raise ConfigError(f"trace import: not set: --from, one of {', '.join(Format)}")
    fills = {
        "tokens": _number("--fill-tokens", arguments.fill_tokens),
        "seconds": _number("--fill-seconds", arguments.fill_seconds),
    }
    chars = _number("--chars-per-token", arguments.chars_per_token)
    options = convert({"fills": fills, "chars_per_token": chars}, ImportOptions, "trace import")
    samples = read_foreign(source, Format(arguments.source), options)
    _write(target, list(events_of(samples, ReferenceRates())))
    sys.stdout.write(
        f"{len(samples)} samples written to {target}; replay: rolloutkit replay trace={target}\n"
    )


def _number(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(f"{option}: expected a number, got {text!r}") from None
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{option}: expected a number of at least 0, got {text!r}")
    return value


def _write(path: Path, events: Iterable[Event]) -> int:
    num_events = 0
    with TraceWriter(path) as writer:
        for event in events:
            writer(event)
            num_events += 1
    return num_events


def _show(overview: Overview, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(overview)).decode() + "\n")
        return
    state = "complete" if overview.is_complete else "cut off: its run was killed"
    outcomes = ", ".join(f"{count} {name}" for name, count in overview.outcomes.items())
    environments = ", ".join(f"{name} {count}" for name, count in overview.environments.items())
    slots = ", ".join(f"{kind} {count}" for kind, count in overview.slots.items())
    capacities = (overview.max_samples, overview.parallelism)
    alive, parallelism = ("unknown" if one is None else str(one) for one in capacities)
    lines = [
        f"schema {overview.schema_version}, {state}, {overview.num_events} events",
        f"{overview.num_tasks} tasks, {overview.num_samples} samples: {outcomes or 'none ended'}",
        f"environments: {environments or 'none'}",
        f"{overview.time} time, order {overview.order}, service times {overview.service_times}",
        f"alive {alive}, engine parallelism {parallelism}, slots: {slots or 'unknown'}",
    ]
    sys.stdout.write("\n".join(lines) + "\n\n")
    table = Table("", *("known", "unknown", "p50", "p90", "p99", "max"))
    for name, spread in overview.spreads.items():
        marks = (spread.p50, spread.p90, spread.p99, spread.max)
        shown = ("-" if mark is None else f"{mark:,.6g}" for mark in marks)
        table.add_row(name, str(spread.count), str(spread.num_unknown), *shown)
    Console(highlight=False).print(table)
