"""Shows a run while it goes on: a table on a terminal, a line now and then elsewhere, or nothing.

A view is entered around the run, on its loop, and wakes itself up by a timer. It writes to stderr
only, since stdout belongs to the result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rolloutkit.live.state import Snapshot
from rolloutkit.routing import WorkerView
from rolloutkit.types import Status

Look = Callable[[], Snapshot]

_REFRESH_SECONDS = 0.25
_LINE_SECONDS = 10.0  # between lines when nothing ends
_BUSY_LINE_SECONDS = 2.0  # between lines when samples end
_MAX_DOWN = 4  # workers that are named
_EMPTY = Context()  # a timer needs no variables


class TableView:
    """Redraws a table of bounded height four times a second."""

    def __init__(self, look: Look, console: Console, title: str) -> None:
        self._look = look
        self._title = title
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._timer = _Timer(_REFRESH_SECONDS, self._draw)

    def __enter__(self) -> Self:
        self._live.start()
        self._draw()
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.stop()
        self._live.stop()

    def say(self, message: str) -> None:
        """Print a line above the table."""
        self._live.console.print(message, highlight=False)

    def _draw(self) -> None:
        self._live.update(table(self._look(), self._title), refresh=True)


class LineView:
    """Prints one line when samples have ended, and every ten seconds in any case."""

    def __init__(self, look: Look, console: Console) -> None:
        self._look = look
        self._console = console
        self._timer = _Timer(_BUSY_LINE_SECONDS, self._tick)
        self._num_ended = 0
        self._next_at = 0.0

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.stop()

    def say(self, message: str) -> None:
        """Print a line."""
        self._console.print(message, highlight=False, soft_wrap=True)

    def _tick(self) -> None:
        snapshot = self._look()
        if snapshot.num_ended != self._num_ended or snapshot.elapsed_seconds >= self._next_at:
            self._num_ended = snapshot.num_ended
            self._next_at = snapshot.elapsed_seconds + _LINE_SECONDS
            self.say(line(snapshot))


class QuietView:
    """Shows no progress; what must be said is still said."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, message: str) -> None:
        """Print a line."""
        self._console.print(message, highlight=False, soft_wrap=True)


class _Timer:
    """Calls back every `seconds` of the loop's time, until it is stopped."""

    def __init__(self, seconds: float, call: Callable[[], None]) -> None:
        self._seconds = seconds
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_later(self._seconds, self._tick, context=_EMPTY)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        self.start()
        self._call()


def line(snapshot: Snapshot) -> str:
    """The state of a run in one line."""
    total = "" if snapshot.num_samples is None else f"/{snapshot.num_samples}"
    parts = [
        f"{_clock(snapshot.elapsed_seconds)} {snapshot.num_ended}{total} ended",
        f"{snapshot.ended[Status.FAILED]} failed",
        f"{snapshot.num_queued} queued",
        f"{snapshot.num_alive} alive ({_activities(snapshot)})",
        f"{snapshot.tokens_per_second:.0f} tokens/s{_hedges(snapshot)}",
        _left(snapshot),
    ]
    if snapshot.workers:
        parts.append(_workers(snapshot.workers))
    if snapshot.oldest:
        oldest = snapshot.oldest[0]
        parts.append(
            f"oldest {oldest.sample_id} {oldest.activity} for {_clock(oldest.activity_seconds)}"
        )
    return ", ".join(parts)


def table(snapshot: Snapshot, title: str) -> RenderableType:
    """The state of a run in at most eleven lines."""
    done = Table.grid(padding=(0, 2))
    total = snapshot.num_samples or max(snapshot.num_ended + snapshot.num_alive, 1)
    failed, cancelled = snapshot.ended[Status.FAILED], snapshot.ended[Status.CANCELLED]
    done.add_row(
        ProgressBar(total=total, completed=snapshot.num_ended, width=30),
        Text(f"{snapshot.num_ended}/{total} ended", style="bold"),
        Text(f"{failed} failed", style="red" if failed else "dim"),
        Text(f"{cancelled} cancelled", style="" if cancelled else "dim"),
    )
    parts: list[RenderableType] = [
        Text(f"{title}  {_clock(snapshot.elapsed_seconds)}, {_left(snapshot)}", style="bold"),
        done,
        Text(
            f"{snapshot.num_queued} queued, {snapshot.num_alive} alive: {_activities(snapshot)}; "
            f"{snapshot.tokens_per_second:.0f} tokens/s{_hedges(snapshot)}"
        ),
    ]
    if snapshot.workers:
        parts.append(Text(_workers(snapshot.workers)))
    if snapshot.oldest:
        parts.append(_oldest(snapshot))
    return Group(*parts)


def _oldest(snapshot: Snapshot) -> Table:
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    rows.add_column("oldest samples", no_wrap=True, max_width=40)
    rows.add_column("age", justify="right", no_wrap=True)
    rows.add_column("turns", justify="right", no_wrap=True)
    rows.add_column("activity", no_wrap=True, max_width=30)
    rows.add_column("for", justify="right", no_wrap=True)
    for sample in snapshot.oldest:
        rows.add_row(
            Text(sample.sample_id),
            _clock(sample.age_seconds),
            str(sample.num_turns),
            Text(sample.activity),
            _clock(sample.activity_seconds),
        )
    return rows


def _activities(snapshot: Snapshot) -> str:
    return (
        ", ".join(f"{count} {name}" for name, count in snapshot.activities.items() if count)
        or "none"
    )


def _hedges(snapshot: Snapshot) -> str:
    return f", {snapshot.num_hedges} hedged" if snapshot.num_hedges else ""


def _workers(workers: Sequence[WorkerView]) -> str:
    """How evenly the samples are spread, and which workers are missing."""
    up = [worker for worker in workers if worker.is_up]
    text = f"workers {len(up)}/{len(workers)} up"
    if up:
        residents = [worker.num_residents for worker in up]
        calls = [worker.num_calls for worker in up]
        text += (
            f", samples {min(residents)}-{max(residents)} and calls {min(calls)}-{max(calls)} each"
        )
    down = [worker.name for worker in workers if not worker.is_up]
    return f"{text}; down: {', '.join(down[:_MAX_DOWN])}" if down else text


def _left(snapshot: Snapshot) -> str:
    if snapshot.seconds_left is None:
        return "time left unknown"
    return f"about {_clock(snapshot.seconds_left)} left"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
