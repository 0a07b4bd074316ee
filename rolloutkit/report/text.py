"""The end of a run in words: what came out, how long it took and had to, and who was last."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rolloutkit.report.durations import format_seconds
from rolloutkit.report.summary import (
    HedgeFigures,
    OversamplingFigures,
    Summary,
    TailSample,
    WaitSeconds,
    WindowFigures,
)

_UNKNOWN = "unknown"


def render_summary(summary: Summary, *, note: str = "") -> RenderableType:
    """The report as a rich renderable; `note` says what to make of the score."""
    figures = Table.grid(padding=(0, 2))
    figures.add_column(style="bold", no_wrap=True)
    figures.add_column(overflow="fold")
    for name, text in _figures(summary, note):
        figures.add_row(name, Text(text))
    parts: list[RenderableType] = [Text(_headline(summary), style="bold"), Text(), figures]
    if summary.tail:
        parts += [Text(), Text("The last samples, and where their time went", style="bold")]
        parts.append(_Tail(summary.tail))
    return Group(*parts)


def summary_text(
    summary: Summary, *, note: str = "", width: int = 100, has_colours: bool = False
) -> str:
    """The report as text of at most `width` columns."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=has_colours,
        color_system="standard" if has_colours else None,
        highlight=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(render_summary(summary, note=note))
    return "".join(line.rstrip() + "\n" for line in capture.get().splitlines())


def _headline(summary: Summary) -> str:
    num_ended = summary.num_completed + summary.num_failed + summary.num_cancelled
    parts = [
        f"{summary.num_completed} completed",
        f"{summary.num_failed} failed",
        f"{summary.num_cancelled} cancelled",
    ]
    if num_ended < summary.num_samples:
        parts.append(f"{summary.num_samples - num_ended} did not end")
    return f"{summary.num_samples} samples: {', '.join(parts)}"


def _figures(summary: Summary, note: str) -> Iterator[tuple[str, str]]:
    yield "makespan", format_seconds(summary.makespan_seconds)
    yield "lower bound", _bound(summary)
    yield "gap", _UNKNOWN if summary.gap is None else f"{summary.gap:.2f} (makespan / lower bound)"
    yield "turns", f"{summary.num_turns:,}"
    yield "tokens", _tokens(summary)
    score = "none" if summary.score_mean is None else f"{summary.score_mean:.3f} mean"
    yield "score", f"{score}; {note}" if note else score
    yield "busy", _busy(summary)
    yield from _placing(summary)
    if summary.action_wait_seconds.max is not None:
        yield "slot waits", _waits(summary.action_wait_seconds)
    if summary.order_reason is not None:
        yield "order", f"{summary.order}: {summary.order_reason}"
    yield from _tactics(summary)
    for name, counts in (
        ("stopped by", summary.stop_reasons),
        ("failures", summary.failure_kinds),
        ("cancelled", summary.cancel_reasons),
    ):
        if counts:
            yield name, _counts(counts)
    if summary.ended_early is not None:
        yield "ended early", summary.ended_early
    if not summary.trace_complete:
        yield "trace", "incomplete: the figures cover what was recorded"


def _placing(summary: Summary) -> Iterator[tuple[str, str]]:
    if len(summary.workers) > 1:
        yield "workers", _workers(summary)
    if summary.windows:
        yield "concurrency", _windows(summary.windows)


def _tactics(summary: Summary) -> Iterator[tuple[str, str]]:
    hedges, spare = summary.hedges, summary.oversampling
    if hedges.num_model_calls or hedges.num_actions:
        yield "hedges", _hedges(hedges)
    if summary.num_capped_turns:
        yield "capped", f"{summary.num_capped_turns:,} turns cut off by tail.output_cap"
    if spare is not None:
        yield "over-sampled", _bias(spare)


def _hedges(hedges: HedgeFigures) -> str:
    return (
        f"{hedges.num_model_calls:,} model calls and {hedges.num_actions:,} actions issued again, "
        f"{hedges.num_won:,} won; cost {hedges.lost_tokens:,} output and "
        f"{hedges.prompt_tokens:,} prompt tokens"
    )


def _bias(spare: OversamplingFigures) -> str:
    text = (
        f"{spare.extra} more samples of each task, {spare.num_closed:,} closed early: the "
        "kept ones are biased towards short samples"
    )
    if spare.mean_turns_kept is None or spare.mean_turns_closed is None:
        return text
    return (
        f"{text} ({spare.mean_turns_kept:.1f} turns in the mean; the closed ones had had "
        f"{spare.mean_turns_closed:.1f} by then)"
    )


def _bound(summary: Summary) -> str:
    text = format_seconds(summary.lower_bound_seconds)
    if summary.binding_resource is not None:
        text += f", set by {summary.binding_resource}"
    if summary.bound_kind == "observed":
        text += " (from observed service times)"
    return text


def _tokens(summary: Summary) -> str:
    cached = _UNKNOWN
    if summary.cached_tokens is not None and summary.prompt_tokens:
        cached = f"{summary.cached_tokens / summary.prompt_tokens:.0%}"
    return (
        f"prompt {_count(summary.prompt_tokens)} (cached {cached}, recomputed "
        f"{_count(summary.recomputed_tokens)}), output {_count(summary.output_tokens)}"
    )


def _busy(summary: Summary) -> str:
    environment, engine = summary.environment_utilization, summary.engine_utilization
    return f"environment {_percent(environment)}, engine {_percent(engine)}"


def _workers(summary: Summary) -> str:
    """The spread of their loads, and what happened to them."""
    calls = [one.num_calls for one in summary.workers]
    parts = [f"{len(calls)}, {min(calls):,} to {max(calls):,} calls each"]
    parts.append(f"{summary.num_moves:,} samples moved")
    ejected = {one.worker: one.num_ejections for one in summary.workers if one.num_ejections}
    if ejected:
        parts.append(f"ejected: {_counts(ejected)}")
    return ", ".join(parts)


def _windows(windows: Sequence[WindowFigures]) -> str:
    """Where the windows ended, and how often something was computed twice too much."""
    ends = [one.window for one in windows]
    num_cuts = sum(one.num_cuts for one in windows)
    spread = f"{min(ends)}" if min(ends) == max(ends) else f"{min(ends)} to {max(ends)}"
    return f"at the end {spread} samples active on a worker, cut {num_cuts} times"


def _waits(waits: WaitSeconds) -> str:
    p50, p90, p99, longest = map(format_seconds, (waits.p50, waits.p90, waits.p99, waits.max))
    return f"p50 {p50}, p90 {p90}, p99 {p99}, longest {longest}"


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.0%}"


def _counts(counts: Mapping[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} {number}" for name, number in ordered)


class _Tail:
    """A table where it fits, and a paragraph per sample where it does not."""

    def __init__(self, tail: Sequence[TailSample]) -> None:
        rows = [_times(sample) for sample in tail]
        told = [name for name in rows[0] if name in _ALWAYS_TOLD or any(row[name] for row in rows)]
        self._names = [sample.sample_id for sample in tail]
        self._rows = [{name: format_seconds(row[name]) for name in told} for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
        table.add_column("sample", no_wrap=True)
        for name in self._rows[0]:
            table.add_column(name, justify="right", no_wrap=True)
        for sample_id, row in zip(self._names, self._rows, strict=True):
            table.add_row(Text(sample_id), *row.values())
        unbounded = options.update(max_width=1_000)
        if console.measure(table, options=unbounded).maximum <= options.max_width:
            yield table
            return
        for sample_id, row in zip(self._names, self._rows, strict=True):
            yield Text(sample_id, overflow="fold")
            yield Padding(
                Text(", ".join(f"{name} {text}" for name, text in row.items())), (0, 0, 0, 2)
            )


_ALWAYS_TOLD = ("ended at", "generate", "act", "slot wait", "admission wait")


def _times(sample: TailSample) -> dict[str, float | None]:
    return {
        "ended at": sample.finished_at,
        "generate": sample.generate_seconds,
        "act": sample.act_seconds,
        "slot wait": sample.slot_wait_seconds,
        "admission wait": sample.admission_wait_seconds,
        "parked": sample.parked_seconds,
        "recompute": sample.recompute_seconds,
    }
