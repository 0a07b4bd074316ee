"""`rolloutkit explain DIR SAMPLE`: why a sample waited, wait by wait, from the run's trace."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rolloutkit.cli.exit_codes import ExitCode
from rolloutkit.errors import ConfigError
from rolloutkit.record.trace import read_trace
from rolloutkit.report.outputs import TRACE_NAME
from rolloutkit.report.text import format_seconds
from rolloutkit.report.waits import ADMISSION, MEMORY, Explanation, Served, Stall, Wait, explain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", type=Path, metavar="DIR", help="output directory of a run")
    parser.add_argument("sample", metavar="SAMPLE", help="such as task-3#0")
    parser.add_argument("--json", action="store_true", help="print it as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Show the waits. Raises ConfigError where there is no run, or no such sample."""
    trace = arguments.dir / TRACE_NAME
    if not trace.exists():
        raise ConfigError(
            f"{arguments.dir} holds no {TRACE_NAME}: give the output directory of a run"
        )
    explanation = explain(lambda: read_trace(trace), arguments.sample)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(explanation)).decode() + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(explanation))
    return ExitCode.OK


def _lines(explanation: Explanation) -> Iterator[str]:
    total = sum(wait.seconds for wait in explanation.waits)
    ended = (
        "" if explanation.finished_at is None else f" at {format_seconds(explanation.finished_at)}"
    )
    yield (
        f"{explanation.sample_id}: {explanation.status}{ended}; waited {format_seconds(total)} "
        f"in {len(explanation.waits)} waits"
    )
    for wait in explanation.waits:
        yield ""
        yield (
            f"{format_seconds(wait.asked_at):>12}  {_what(wait)}: "
            f"waited {format_seconds(wait.seconds)}"
        )
        for line in _reasons(wait):
            yield f"{'':12}  {line}"
    for stall in explanation.stalls:
        yield ""
        yield from _stall_lines(stall)


def _stall_lines(stall: Stall) -> Iterator[str]:
    yield (
        f"{format_seconds(stall.hedged_at):>12}  {stall.what} after {stall.turn} turns: hedged, "
        f"since it had made no progress for {format_seconds(stall.stalled_seconds)}"
    )
    went_on = f", from {stall.received_tokens:,} tokens received" if stall.received_tokens else ""
    yield (
        f"{'':12}  issued again{went_on}; {_KEPT[stall.outcome]} after "
        f"{format_seconds(stall.seconds)}"
    )


_KEPT = {
    "first": "the first was kept",
    "reissue": "the re-issue was kept",
    "neither": "neither came to an end",
}


def _what(wait: Wait) -> str:
    return wait.what if wait.turn is None else f"{wait.what} after {wait.turn} turns"


def _reasons(wait: Wait) -> Iterator[str]:
    if wait.capacity is not None:
        unit = "samples may live" if wait.what in (ADMISSION, MEMORY) else "slots"
        held = f", {wait.num_holding} of them in use until its turn" if wait.num_holding else ""
        yield f"capacity: {wait.capacity} {unit}{held}"
    if wait.needs:
        needs = ", ".join(f"{pool} {places}" for pool, places in wait.needs.items())
        yield f"together with: {needs}"
    key = "" if wait.key is None else f"; its key {wait.key:.4g}"
    yield f"order: {wait.order}{key}"
    if wait.num_served:
        more = wait.num_served - len(wait.served)
        names = ", ".join(map(_name, wait.served)) + (f" and {more} more" if more else "")
        yield f"before it: {names}"


def _name(served: Served) -> str:
    return served.sample_id if served.key is None else f"{served.sample_id} ({served.key:.4g})"
