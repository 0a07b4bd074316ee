"""The history file: what earlier epochs of a workload say of its tasks' lengths.

A run reads one (`history.path`) and writes the next beside its output. A task's record loses half
of its weight when the task is seen again, so that it follows a policy that changes. The file is
small JSON: about 60 bytes a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.estimate.calibration import Recall, group_lns, ln_work, tail_recall
from rolloutkit.estimate.work import MIN_SIGMA, Population, ReferenceRates
from rolloutkit.types import SampleId

HISTORY_VERSION = 1
DECAY = 0.5  # of the weight of earlier epochs
MAX_COUNT = 16.0  # rollouts a task's record counts for: two epochs of a group of 8
NUM_QUANTILES = 64  # of the last epoch's lengths: the Kaplan-Meier curve before anything ends
NUM_RECALLS = 3  # epochs whose tail recall is pooled; more while they hold too few samples
MIN_RECALL_SAMPLES = 300  # policy.md, section 6
MAX_RECALLS = 32


class TaskHistory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Earlier rollouts of one task: mean logarithm of their work, and how many they count for."""

    mean_ln: float
    count: float


class History(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that is kept between epochs; `workload` and `rates` say what it is good for."""

    version: int = HISTORY_VERSION
    workload: str
    rates: ReferenceRates
    num_epochs: int
    num_works: float  # rollouts that `mu` and `sigma` count for
    mu: float
    sigma: float
    quantiles: tuple[float, ...]  # of the last epoch's work, in seconds
    recalls: tuple[Recall, ...]  # the last epoch's last
    tasks: dict[str, TaskHistory]

    @property
    def population(self) -> Population:
        """The spread of lengths over all tasks."""
        return Population(self.mu, self.sigma)

    @property
    def recall(self) -> float | None:
        """Pooled tail recall; None while it rests on too few samples."""
        if sum(one.num_samples for one in self.recalls) < MIN_RECALL_SAMPLES:
            return None
        return sum(one.num_foreseen for one in self.recalls) / sum(
            one.num_tail for one in self.recalls
        )


def next_history(
    before: History | None,
    workload: str,
    rates: ReferenceRates,
    works: Mapping[SampleId, float],
) -> History | None:
    """The history after an epoch whose finished samples took `works`; None when there is none.

    The tail recall of the epoch is that of `before`'s predictions, where it knew at least half of
    the tasks, and else that of siblings for each other.
    """
    if not works:
        return before
    population, num_works = _pool(before, [ln_work(work) for work in works.values()])
    return History(
        workload=workload,
        rates=rates,
        num_epochs=1 if before is None else before.num_epochs + 1,
        num_works=num_works,
        mu=population.mu,
        sigma=population.sigma,
        quantiles=_quantiles(works.values()),
        recalls=_recalls(before, works),
        tasks=_tasks(before, works),
    )


def read_history(path: Path, workload: str, rates: ReferenceRates) -> History:
    """Read the history of this workload. Raises ConfigError, one line, for anything else."""
    try:
        history = msgspec.json.decode(path.read_bytes(), type=History)
    except OSError as error:
        raise ConfigError(
            f"history.path: cannot read {path}: {error.strerror}; leave it out for a first run"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"history.path: {path} is no history file: {error}") from None
    if history.version != HISTORY_VERSION:
        raise ConfigError(
            f"history.path: {path} has version {history.version}, expected {HISTORY_VERSION}: "
            "start a new history"
        )
    if history.workload != workload:
        raise ConfigError(
            f"history.path: {path} is of workload {history.workload!r}, this run is "
            f"{workload!r}: give the history of this workload, or none"
        )
    if history.rates != rates:
        raise ConfigError(
            f"history.path: {path} counts work at other history.rates: use its own, or none"
        )
    return history


def write_history(path: Path, history: History) -> None:
    """Write the file. Raises OSError."""
    path.write_bytes(msgspec.json.encode(history, order="sorted") + b"\n")


def _quantiles(works: Iterable[float]) -> tuple[float, ...]:
    """Evenly spaced ones, or all works where there are few."""
    ordered = sorted(works)
    count = min(NUM_QUANTILES, len(ordered))
    return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count))


def _pool(before: History | None, lns: Sequence[float]) -> tuple[Population, float]:
    count = float(len(lns))
    mean = sum(lns) / count
    variance = sum((ln - mean) ** 2 for ln in lns) / count
    if before is not None:
        weight = DECAY * before.num_works
        total = weight + count
        between = (before.mu - mean) ** 2 * weight * count / total**2
        variance = (weight * before.sigma**2 + count * variance) / total + between
        mean = (weight * before.mu + count * mean) / total
        count = total
    return Population(mean, max(math.sqrt(variance), MIN_SIGMA)), count


def _tasks(before: History | None, works: Mapping[SampleId, float]) -> dict[str, TaskHistory]:
    tasks = {} if before is None else dict(before.tasks)
    for task_id, lns in group_lns(works).items():
        mean_ln, count = sum(lns) / len(lns), float(len(lns))
        past = tasks.get(task_id)
        if past is not None:
            weight = DECAY * past.count
            mean_ln = (weight * past.mean_ln + count * mean_ln) / (weight + count)
            count += weight
        tasks[task_id] = TaskHistory(mean_ln=mean_ln, count=min(count, MAX_COUNT))
    return tasks


def _recalls(before: History | None, works: Mapping[SampleId, float]) -> tuple[Recall, ...]:
    past = () if before is None else before.recalls
    recall = None
    if before is not None:
        known = {sample_id.task_id for sample_id in works} & before.tasks.keys()
        if 2 * len(known) >= len({sample_id.task_id for sample_id in works}):
            recall = tail_recall(works, {name: before.tasks[name].mean_ln for name in known})
    recall = recall or tail_recall(works)
    recalls = past if recall is None else (*past, recall)
    while len(recalls) > NUM_RECALLS and (
        sum(one.num_samples for one in recalls[1:]) >= MIN_RECALL_SAMPLES
        or len(recalls) > MAX_RECALLS
    ):
        recalls = recalls[1:]
    return recalls
