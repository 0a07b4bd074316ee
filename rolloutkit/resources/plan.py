"""How to split a worker's memory and how many samples to keep alive on it, and why.

The split equalises how long states and how long keys and values survive, so that no byte of one
pool waits for the other. The reference concurrency is the smallest that reaches nearly the best
throughput of the steady state: more would only move towards the cliff.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.resources.hardware import Gpu
from rolloutkit.resources.model_spec import Deployment, ModelSpec
from rolloutkit.resources.pools import decode_graph_batch, default_fraction, pool_bytes
from rolloutkit.resources.steady import USABLE, Memory, Point, Rules, Worker
from rolloutkit.resources.timing import StepTime, step_time
from rolloutkit.resources.workload import Workload

NEARLY_BEST = 0.97  # of the best throughput: what the reference must reach
BELOW_BEST = 0.95  # of the best concurrency: what it must not exceed, for where the curve is steep
COLLAPSED = 0.8  # of the best throughput: what lies beyond the cliff
MAX_SAMPLES = 100_000
CURVE_POINTS = 48
GRID_POINTS = 28
EDGES = (0.98, 0.9, 0.75, 0.5, 0.25, 0.1, 0.02)  # hit rates
MAX_PEAKS = 3  # of the throughput over the concurrency, that are looked at closely


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is made for."""

    model: ModelSpec
    gpu: Gpu
    deployment: Deployment = Deployment()
    rules: Rules = Rules()
    num_workers: int = 1  # replicas; each attention group of one counts as a worker of its own
    memory_bytes: float | None = None  # of both pools on a GPU; None: what the engine would take
    memory_fraction: float | None = None  # None: the engine's default
    slots: int | None = None  # take this split instead of the best
    ratio: float | None = None  # or this: bytes of states / bytes of keys and values
    step: StepTime | None = None  # None: by the formulas


class Split(NamedTuple):
    """The pools of a worker, per GPU."""

    slots: int  # states; 0 for models without
    kv_tokens: int
    ratio: float  # bytes of states over bytes of keys and values
    max_running: int  # requests

    @property
    def has_states(self) -> bool:
        return self.slots > 0


class Plan(NamedTuple):
    """The answer, per worker; `total` is for all of them."""

    split: Split
    pool_bytes: float  # per GPU, states, keys and values together
    memory_fraction: float | None  # None: the pools were given in bytes
    num_fit: int  # samples whose caches all fit
    best: Point
    reference: Point
    num_reference: int
    num_collapse: int | None  # None: no cliff within four times the best
    utilization: float  # at the reference, of what the GPU would do without limit of memory
    utilization_fit: float  # the same with `num_fit`
    num_workers: int
    worker: Worker

    @property
    def total(self) -> int:
        """Samples to keep alive on all workers together."""
        return self.num_reference * self.num_workers

    @property
    def margin(self) -> float | None:
        """How much further the collapse is: its concurrency over the reference."""
        return None if self.num_collapse is None else self.num_collapse / self.num_reference

    def curve(self) -> tuple[Point, ...]:
        """Steady states over the concurrency, up to beyond the collapse."""
        most = max(8.0, 1.6 * max(self.best.num_samples, self.num_collapse or 0))
        steps = range(1, CURVE_POINTS + 1)
        numbers = sorted({max(1, round(most * step / CURVE_POINTS)) for step in steps})
        return tuple(map(self.worker.at, numbers))


def plan(question: Question, workload: Workload) -> Plan:
    """The best split and concurrency. Raises ConfigError where the model does not fit."""
    model, deployment, gpu = question.model, question.deployment, question.gpu
    step = question.step or step_time(model, deployment, gpu)
    fraction, free = _pools(question)
    memory = Memory(
        free,
        model.kv_bytes_per_token(deployment),
        model.state_bytes_per_sequence(deployment),
        model.window_bytes_per_sequence(deployment),
    )
    rules = question.rules
    worker = Worker(step, memory, workload, rules)
    _check_room(worker, question)
    if memory.state_bytes:
        slots = _given_slots(question, memory)
        if slots is None:
            slots = _best_slots(worker)
        worker = Worker(step, memory._replace(slots=slots), workload, rules)
    best = _best(worker)
    num_fit = _num_fit(worker)
    reference = _reference(worker, best)
    collapse = _collapse(worker, best)
    peak = worker.peak_rate()
    return Plan(
        split=_split(worker),
        pool_bytes=free,
        memory_fraction=fraction,
        num_fit=num_fit,
        best=best,
        reference=reference,
        num_reference=int(reference.num_samples),
        num_collapse=collapse,
        utilization=reference.turns_per_second / peak,
        utilization_fit=worker.at(num_fit).turns_per_second / peak,
        num_workers=question.num_workers * deployment.attention_dp,
        worker=worker,
    )


def _pools(question: Question) -> tuple[float | None, float]:
    if question.memory_bytes is not None:
        if question.memory_fraction is not None:
            raise ConfigError(
                "memory_gb and memory_fraction both say how large the pools are: leave one out"
            )
        return None, question.memory_bytes
    rules, gpu = question.rules, question.gpu
    fraction = question.memory_fraction
    if fraction is None:
        batch = decode_graph_batch(gpu, question.deployment.tp)
        fraction = default_fraction(gpu, question.deployment, rules.chunk_tokens, batch)
    return fraction, pool_bytes(question.model, question.deployment, gpu, fraction)


def _given_slots(question: Question, memory: Memory) -> int | None:
    """The states that the caller asks for. Raises ConfigError."""
    if question.slots is not None and question.ratio is not None:
        raise ConfigError(
            f"slots={question.slots} and ratio={question.ratio:g} both set the split: leave one out"
        )
    if question.ratio is not None:
        budget = memory.pool_bytes * question.ratio / (1 + question.ratio)
        return max(1, int(budget / memory.state_bytes) - 1)
    if question.slots is None:
        return None
    if (question.slots + 1) * memory.state_bytes >= memory.pool_bytes:
        most = int(memory.pool_bytes / memory.state_bytes) - 1
        raise ConfigError(
            f"slots: {question.slots} states of {memory.state_bytes / 1e6:.1f} MB leave nothing of "
            f"{memory.pool_bytes / 1e9:.1f} GB: use fewer than {most}"
        )
    return question.slots


def _check_room(worker: Worker, question: Question) -> None:
    """One sample at its longest must fit, or nothing ever runs."""
    memory = worker.memory
    tokens = worker.workload.final_context + worker.rules.page_tokens
    need = memory.kv_bytes_per_token * tokens + memory.window_bytes
    need += worker.rules.slots_required * memory.state_bytes
    if need > memory.pool_bytes * USABLE:
        raise ConfigError(
            f"gpu: {question.gpu.name} keeps {memory.pool_bytes / 1e9:.1f} GB for caches, and one "
            f"sample of {worker.workload.final_context:,.0f} tokens needs {need / 1e9:.1f} GB: use "
            "more GPUs (tp), a smaller kv_dtype, or shorter contexts"
        )


def _best_slots(worker: Worker) -> int:
    """States that survive as long as keys and values do, where throughput is best."""
    memory, rules = worker.memory, worker.rules
    if not memory.kv_bytes_per_token:
        return int(memory.pool_bytes / memory.state_bytes) - 1
    best = _best(worker)
    slots = worker.slots_for(best)
    # What is left over where everything fits is shared out as it is used.
    used = slots * memory.state_bytes + memory.kv_bytes_per_token * (
        best.num_running * worker.reserved_tokens
        + (best.num_samples - best.num_running) * worker.idle_tokens
    )
    if used < USABLE * memory.pool_bytes:
        slots *= USABLE * memory.pool_bytes / used
    tokens = worker.workload.final_context + rules.page_tokens  # the longest must still fit
    rest = memory.pool_bytes - memory.kv_bytes_per_token * tokens / USABLE
    largest = rest / memory.state_bytes - 2
    return max(rules.slots_required, int(min(slots, largest)))


def _split(worker: Worker) -> Split:
    memory = worker.memory
    slots = memory.slots or 0
    tokens = memory.kv_tokens
    tokens = 0 if math.isinf(tokens) else int(tokens) // worker.rules.page_tokens
    tokens *= worker.rules.page_tokens
    kv_bytes = tokens * memory.kv_bytes_per_token
    ratio = (slots + 1) * memory.state_bytes / kv_bytes if slots and kv_bytes else 0.0
    return Split(slots, tokens, ratio, int(worker.max_running))


def _best(worker: Worker) -> Point:
    """The concurrency of the highest throughput; of equal ones the smallest."""
    points = {num: worker.at(num) for num in (*_grid(worker), *_edges(worker))}
    for _ in range(2):  # between the neighbours of each peak, to half a percent
        for low, high in _around_peaks(points):
            for step in range(1, 12):
                num = round(low + (high - low) * step / 12)
                if num not in points:
                    points[num] = worker.at(num)
    return max(points.values(), key=lambda point: (_rounded(point), -point.num_samples))


def _edges(worker: Worker) -> list[int]:
    """The last concurrencies before hits get rarer: throughput tends to peak just there."""
    return [_last(lambda num, hits=hits: worker.at(num).hit_rate >= hits) for hits in EDGES]


def _around_peaks(points: dict[int, Point]) -> list[tuple[int, int]]:
    """The neighbours of the best peaks: where little is ever hit there are several."""
    numbers = sorted(points)
    rates = [points[num].turns_per_second for num in numbers]
    last = len(numbers) - 1
    peaks = [
        place
        for place, rate in enumerate(rates)
        if rate >= rates[max(0, place - 1)] and rate >= rates[min(last, place + 1)]
    ]
    best = sorted(peaks, key=lambda place: -rates[place])[:MAX_PEAKS]
    return [(numbers[max(0, place - 1)], numbers[min(last, place + 1)]) for place in best]


def _rounded(point: Point) -> float:
    """Throughput to three digits: less is not worth a sample."""
    rate = point.turns_per_second
    return round(rate, 3 - math.ceil(math.log10(rate)))


def _grid(worker: Worker) -> list[int]:
    """Concurrencies up to where the engine is full and everything beyond it only waits."""
    pause = worker.workload.pauses.mean * worker.resumed_share
    most = worker.max_running * 2 + worker.peak_rate() * pause
    most = min(MAX_SAMPLES, max(8.0, most, 4 * _num_fit(worker)))
    numbers = {round(most ** (step / GRID_POINTS)) for step in range(GRID_POINTS + 1)}
    return sorted(numbers)


def _num_fit(worker: Worker) -> int:
    """The most samples whose caches all fit, states and tokens each in their pool."""
    return _last(lambda num: _fits(worker, num))


def _fits(worker: Worker, num_samples: int) -> bool:
    memory, rules = worker.memory, worker.rules
    running = worker.num_running(num_samples)
    idle = num_samples - running
    tokens = running * worker.running_tokens + idle * worker.idle_tokens
    tokens += worker.spread_tokens(num_samples)
    states = running * rules.slots_pinned + idle
    if memory.slots is not None:
        return states <= memory.slots and tokens <= USABLE * memory.kv_tokens
    need = tokens * memory.kv_bytes_per_token + states * memory.state_bytes
    return need <= USABLE * memory.pool_bytes


def _reference(worker: Worker, best: Point) -> Point:
    """The smallest concurrency that is nearly as good, with some distance to the cliff."""
    goal = NEARLY_BEST * best.turns_per_second
    most = max(1, int(best.num_samples * BELOW_BEST))
    enough = 1 + _last(lambda num: num < most and worker.at(num).turns_per_second < goal, least=0)
    return worker.at(min(enough, most))


def _collapse(worker: Worker, best: Point) -> int | None:
    """The first concurrency beyond the best whose throughput has fallen to `COLLAPSED`."""
    floor = COLLAPSED * best.turns_per_second
    first = int(best.num_samples)
    most = max(4 * first, first + 8)
    if worker.at(most).turns_per_second >= floor:
        return None
    low, high = first, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if worker.at(middle).turns_per_second >= floor else (low, middle)
    return high


def _last(holds: Callable[[int], bool], least: int = 1) -> int:
    """The last number from which on it does not hold; it holds below."""
    high = max(1, least)
    while high < MAX_SAMPLES and holds(high):
        high *= 2
    low = least
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
