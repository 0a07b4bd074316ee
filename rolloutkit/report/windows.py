"""Folds the changes of `admission.control=adaptive` into what became of each worker's window."""

from __future__ import annotations

from rolloutkit.record.events import WindowChanged
from rolloutkit.report.summary import WindowFigures


class Windows:
    """O(1) an event; one entry for each worker whose window changed."""

    def __init__(self) -> None:
        self._last: dict[str | None, WindowChanged] = {}
        self._num_cuts: dict[str | None, int] = {}

    def add(self, event: WindowChanged) -> None:
        """A window changed."""
        self._last[event.worker] = event
        if event.cause != "room":
            self._num_cuts[event.worker] = self._num_cuts.get(event.worker, 0) + 1

    def figures(self) -> tuple[WindowFigures, ...]:
        """By the worker's name."""
        return tuple(
            WindowFigures(
                worker=worker,
                window=event.window,
                num_cuts=self._num_cuts.get(worker, 0),
                last_cause=event.cause,
            )
            for worker, event in sorted(self._last.items(), key=lambda item: item[0] or "")
        )
