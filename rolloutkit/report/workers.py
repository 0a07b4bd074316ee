"""Folds the events of a run into what each worker did."""

from __future__ import annotations

from rolloutkit.record.events import ModelCall, WorkerChanged
from rolloutkit.report.summary import WorkerFigures


class WorkerCounts:
    """O(1) an event; holds one entry for each living sample and each worker."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._homes: dict[str, str] = {}  # of the living samples' last calls
        self.num_moves = 0

    def add_call(self, event: ModelCall) -> None:
        """A model call ended."""
        if event.worker is None:
            return
        counts = self._of(event.worker)
        counts.num_calls += 1
        if event.finish_reason is not None:
            counts.add_tokens(event)
        before = self._homes.get(event.sample_id)
        self._homes[event.sample_id] = event.worker
        if before is not None and before != event.worker:
            counts.num_arrivals += 1
            self.num_moves += 1

    def add_change(self, event: WorkerChanged) -> None:
        """A worker came or went."""
        self._of(event.worker).num_ejections += event.change == "ejected"

    def end_sample(self, sample_id: str) -> None:
        """The sample has no home any more."""
        self._homes.pop(sample_id, None)

    def figures(self) -> tuple[WorkerFigures, ...]:
        """By name."""
        return tuple(
            WorkerFigures(
                worker=name,
                num_calls=counts.num_calls,
                output_tokens=counts.output_tokens,
                cached_share=counts.cached_share,
                num_arrivals=counts.num_arrivals,
                num_ejections=counts.num_ejections,
            )
            for name, counts in sorted(self._counts.items())
        )

    def _of(self, worker: str) -> _Counts:
        return self._counts.setdefault(worker, _Counts())


class _Counts:
    def __init__(self) -> None:
        self.num_calls = self.num_arrivals = self.num_ejections = 0
        self.output_tokens: int | None = 0
        self._prompt_tokens = 0
        self._cached_tokens: int | None = 0

    @property
    def cached_share(self) -> float | None:
        if self._cached_tokens is None or not self._prompt_tokens:
            return None
        return self._cached_tokens / self._prompt_tokens

    def add_tokens(self, event: ModelCall) -> None:
        """Of a total in which a call did not report its part nothing is known."""
        self._prompt_tokens += event.context_tokens
        self._cached_tokens = _plus(self._cached_tokens, event.cached_tokens)
        self.output_tokens = _plus(self.output_tokens, event.output_tokens)


def _plus(total: int | None, part: int | None) -> int | None:
    return None if total is None or part is None else total + part
