"""Several runs side by side: their headline figures, with the change against the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from rolloutkit.report.durations import format_seconds
from rolloutkit.report.page import Page
from rolloutkit.report.summary import Summary

_UNKNOWN = "unknown"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One run's samples that had not ended, over time."""

    name: str
    seconds: float
    total: int
    num_left: list[int]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A table, a row per figure and a column per run, and a curve per run."""

    kind: str = "comparison"
    names: list[str]
    figures: dict[str, list[str]]
    lines: list[Line]


def compare(names: Sequence[str], pages: Sequence[Page]) -> Comparison:
    """Compare runs, each with its name."""
    return Comparison(
        names=list(names),
        figures=compare_figures([page.summary for page in pages]),
        lines=[_line(name, page) for name, page in zip(names, pages, strict=True)],
    )


def compare_figures(summaries: Sequence[Summary]) -> dict[str, list[str]]:
    """Headline figures in words, by name, one text per run."""
    return {
        name: [tell(summary, summaries[0]) for summary in summaries]
        for name, tell in _FIGURES.items()
    }


def _makespan(summary: Summary, first: Summary) -> str:
    text = format_seconds(summary.makespan_seconds)
    if summary is first or not summary.makespan_seconds or not first.makespan_seconds:
        return text
    return f"{text} ({summary.makespan_seconds / first.makespan_seconds - 1:+.1%})"


def _percent(share: float | None) -> str:
    return _UNKNOWN if share is None else f"{share:.0%}"


def _count(number: int | None) -> str:
    return _UNKNOWN if number is None else f"{number:,}"


_FIGURES: dict[str, Callable[[Summary, Summary], str]] = {
    "makespan": _makespan,
    "lower bound": lambda it, _: format_seconds(it.lower_bound_seconds),
    "gap": lambda it, _: _UNKNOWN if it.gap is None else f"{it.gap:.2f}",
    "bound by": lambda it, _: it.binding_resource or _UNKNOWN,
    "samples": lambda it, _: f"{it.num_samples:,}",
    "completed": lambda it, _: f"{it.num_completed:,}",
    "failed": lambda it, _: f"{it.num_failed:,}",
    "cancelled": lambda it, _: f"{it.num_cancelled:,}",
    "score": lambda it, _: "none" if it.score_mean is None else f"{it.score_mean:.3f}",
    "order": lambda it, _: it.order or _UNKNOWN,
    "environment busy": lambda it, _: _percent(it.environment_utilization),
    "engine busy": lambda it, _: _percent(it.engine_utilization),
    "slot wait, p90": lambda it, _: format_seconds(it.action_wait_seconds.p90),
    "turns": lambda it, _: f"{it.num_turns:,}",
    "output tokens": lambda it, _: _count(it.output_tokens),
    "recomputed tokens": lambda it, _: _count(it.recomputed_tokens),
}


def _line(name: str, page: Page) -> Line:
    total = page.gantt.num_samples
    return Line(
        name=name,
        seconds=page.seconds,
        total=total,
        num_left=[total - it for it in page.num_ended],
    )
