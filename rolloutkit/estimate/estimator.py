"""Expected remaining and total work of every sample, from its siblings, its task's past and itself.

`WorkEstimator` is a pure state machine that a run tells of turns and endings. A group's evidence is
kept as two arrays over the grid: what finished samples and earlier rollouts say, and the summed log
survival of those that run. An update touches one group: about 10 us, and one sample's estimate, or
those of its living siblings when it ends (policy.md, section 2.1: gp, and pgp with a history).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rolloutkit.estimate.calibration import ln_work
from rolloutkit.estimate.fit import fit_population
from rolloutkit.estimate.history import TaskHistory
from rolloutkit.estimate.lognormal import Array, Column, LogNormalGrid
from rolloutkit.estimate.work import Population
from rolloutkit.types import SampleId

FIRST_FIT = 8  # finished samples; the population is fitted again whenever they have doubled


class WorkEstimator:
    """What is known of the lengths of a run's samples; a task's samples form its group.

    Without a `population` one is fitted to this run, first after `FIRST_FIT` endings: until then
    there `is_informed` is False and every estimate is 0. `tasks` are earlier rollouts by task.
    """

    def __init__(
        self, population: Population | None = None, tasks: Mapping[str, TaskHistory] | None = None
    ) -> None:
        self._grid = None if population is None else LogNormalGrid(population)
        self._is_fitted_here = population is None
        self._tasks = tasks or {}
        self._groups: dict[str, _Group] = {}
        self._samples: dict[SampleId, _Sample] = {}
        self._finished: list[float] = []
        self._next_fit = FIRST_FIT

    @property
    def is_informed(self) -> bool:
        """Whether the estimates say anything."""
        return self._grid is not None

    @property
    def population(self) -> Population | None:
        """The spread of lengths that the estimates assume."""
        return None if self._grid is None else Population(self._grid.mu, self._grid.sigma)

    # What the run tells.

    def admitted(self, sample_id: SampleId) -> None:
        """The sample lives; it has done nothing yet."""
        group = self._group(sample_id.task_id)
        sample = self._samples[sample_id] = _Sample(group)
        group.live[sample_id] = sample
        if self._grid is not None:
            sample.start(self._grid)
            sample.expected = group.expected(sample.column)

    def turn_ended(self, sample_id: SampleId, work: float) -> None:
        """A turn of the sample took `work`; its estimate is refreshed, its siblings' are not."""
        sample = self._samples[sample_id]
        sample.work += work
        if self._grid is not None:
            sample.refresh(self._grid)

    def restarted(self, sample_id: SampleId) -> None:
        """The sample's attempt is thrown away and begins again."""
        sample = self._samples[sample_id]
        sample.work = 0.0
        if self._grid is not None:
            sample.refresh(self._grid)

    def ended(self, sample_id: SampleId, *, is_finished: bool = True) -> Iterable[SampleId]:
        """The sample is over: its total is known, or at least what it did if it broke off.

        Returns the samples whose estimates changed: its living siblings, or everybody when the
        population was fitted again, which costs O(n) and happens O(log n) times.
        """
        sample = self._samples.pop(sample_id)
        group = sample.group
        del group.live[sample_id]
        if not is_finished:
            group.broken_off.append(sample.work)
            return ()
        self._finished.append(sample.work)
        group.count(sample.work)
        if self._is_fitted_here and len(self._finished) >= self._next_fit:
            self._fit()
            return self._samples
        if self._grid is not None:
            group.settle(self._grid, sample)
        return group.live

    def forget(self, task_id: str) -> None:
        """No sample of the task will come any more."""
        self._groups.pop(task_id, None)

    # What the run asks.

    def remaining(self, sample_id: SampleId) -> float:
        """Expected work that is left to a sample, as of its last refresh; 0 unless it lives."""
        sample = self._samples.get(sample_id)
        return 0.0 if sample is None else sample.expected

    def total(self, task_id: str) -> float:
        """Expected total work of a sample of the task that has not begun."""
        if self._grid is None:
            return 0.0
        group = self._groups.get(task_id) or self._make_group(task_id)
        return group.expected(self._grid.column(0.0))

    def mean_ln(self, task_id: str) -> float | None:
        """Expected logarithm of such a sample's work."""
        if self._grid is None:
            return None
        return (self._groups.get(task_id) or self._make_group(task_id)).mean_of(self._grid.means)

    # Inside.

    def _group(self, task_id: str) -> _Group:
        group = self._groups.get(task_id)
        if group is None:
            group = self._groups[task_id] = self._make_group(task_id)
        return group

    def _make_group(self, task_id: str) -> _Group:
        group = _Group(self._tasks.get(task_id))
        if self._grid is not None:
            group.start(self._grid)
        return group

    def _fit(self) -> None:
        self._next_fit = 2 * len(self._finished)
        broken_off = (work for group in self._groups.values() for work in group.broken_off)
        running = (sample.work for sample in self._samples.values())
        population = fit_population(self._finished, [*running, *broken_off])
        if population is None:
            return
        self._grid = LogNormalGrid(population)
        for group in self._groups.values():
            group.start(self._grid)


class _Sample:
    """A living sample. `column` belongs to its work as of the last refresh."""

    __slots__ = ("column", "expected", "group", "work")

    column: Column

    def __init__(self, group: _Group) -> None:
        self.group = group
        self.work = 0.0
        self.expected = 0.0

    def start(self, grid: LogNormalGrid) -> None:
        """Enter the evidence of the group."""
        self.column = grid.column(self.work)
        self.group.log_running += self.column.log_survival

    def refresh(self, grid: LogNormalGrid) -> None:
        """Move on in the evidence of the group, and look again."""
        column = grid.column(self.work)
        if column is not self.column:
            running = self.group.log_running
            running -= self.column.log_survival
            running += column.log_survival
            self.column = column
        self.expected = self.group.expected(column)


class _Group:
    """A task's evidence: endings here and before, and those that run or broke off."""

    __slots__ = (
        "broken_off",
        "live",
        "log_finished",
        "log_running",
        "num_finished",
        "sum_ln",
    )

    log_finished: Array
    log_running: Array

    def __init__(self, past: TaskHistory | None) -> None:
        self.live: dict[SampleId, _Sample] = {}
        self.broken_off: list[float] = []
        self.num_finished = 0.0 if past is None else past.count
        self.sum_ln = 0.0 if past is None else past.count * past.mean_ln

    def start(self, grid: LogNormalGrid) -> None:
        """Weigh everything seen so far on a (new) grid."""
        self.log_running = np.zeros_like(grid.means)
        for work in self.broken_off:
            self.log_running += grid.column(work).log_survival
        for sample in self.live.values():
            sample.start(grid)
        self._weigh(grid)

    def count(self, work: float) -> None:
        """A sample's total is known."""
        self.num_finished += 1
        self.sum_ln += ln_work(work)

    def settle(self, grid: LogNormalGrid, sample: _Sample) -> None:
        """What was a lower bound of that total is one no more."""
        self.log_running -= sample.column.log_survival
        self._weigh(grid)

    def expected(self, column: Column) -> float:
        """Expected remaining work of a sample in the column's bin."""
        rest, norm = (column.moments @ self.posterior()).tolist()
        return rest / norm

    def mean_of(self, values: Array) -> float:
        """Posterior mean of a quantity that depends on the group's `mu`."""
        posterior = self.posterior()
        return float(posterior @ values / posterior.sum())

    def posterior(self) -> Array:
        """Weight of each mean, not normalised; the largest is 1."""
        log = self.log_finished + self.log_running
        log -= log[log.argmax()]
        return np.exp(log, out=log)

    def _weigh(self, grid: LogNormalGrid) -> None:
        """Enter the endings and estimate every living sample again."""
        self.log_finished = grid.log_prior + grid.log_likelihood(self.num_finished, self.sum_ln)
        posterior = self.posterior()
        for sample in self.live.values():
            rest, norm = (sample.column.moments @ posterior).tolist()
            sample.expected = rest / norm
