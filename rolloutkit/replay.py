"""Replays a recording with the production scheduler: from its configuration to its figures.

    load_recording ──► make_replay (a batch) ──► opened_replay ──► Orchestrator

A `Replay` is plain data, so that it can be sent to another process.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rolloutkit import clock
from rolloutkit.admission import MemoryBudget
from rolloutkit.batch import Policies, opened, prepare, workload_of
from rolloutkit.config.replay import BatchOptions, ReplayConfig
from rolloutkit.errors import ConfigError
from rolloutkit.estimate import History, next_history, read_history
from rolloutkit.orchestrator import Orchestrator
from rolloutkit.protocols import Engine, Sink
from rolloutkit.record import Recorder
from rolloutkit.record.lives import Life, Recording, lives_of_chains, read_lives
from rolloutkit.record.numeric import first_line, read_numeric
from rolloutkit.report import RunStatistics, Summary
from rolloutkit.routing import Router, RouterSettings
from rolloutkit.sim.faults import Faults, FaultyEngine
from rolloutkit.sim.lives_bound import lives_bound
from rolloutkit.sim.recorded import LifeBatch, RecordedConfig, RecordedEngine
from rolloutkit.sim.reference import ReferenceConfig, ReferenceEngine
from rolloutkit.sim.sampling import draw_batch
from rolloutkit.sim.sglang import ServersEngine, ServerSettings, server_of
from rolloutkit.sim.sglang.speech import RecordedSpeaker
from rolloutkit.sim.uncontended import UncontendedConfig, UncontendedEngine
from rolloutkit.types import SampleId, Trajectory


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of recorded lives and how it is run."""

    config: ReplayConfig
    lives: dict[SampleId, Life]
    parallelism: int | None  # of the engine in the recording
    history: History | None
    num_left_out: int  # samples of the recording that did not end by themselves


def load_recording(path: Path, options: BatchOptions) -> Recording:
    """Read a trace of ours or a file of numbers. Blocks. Raises ConfigError."""
    try:
        first = msgspec.json.decode(first_line(path), type=_FirstLine)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} line 1: no trace: {error}: give a trace file") from None
    if first.messages is not None and first.turns is None:
        raise ConfigError(
            f"{path} line 1: holds messages, no durations: rolloutkit trace import makes a trace"
        )
    if first.turns is not None:
        return lives_of_chains(read_numeric(path, options.rule, options.fills))
    return read_lives(path, fill_tokens=options.fill_tokens)


class _FirstLine(msgspec.Struct):
    turns: object = None
    messages: object = None


def make_replay(config: ReplayConfig, recording: Recording) -> Replay:
    """Put a batch together, as recorded or drawn. Raises ConfigError."""
    options = config.batch
    chosen = [
        life
        for life in recording.lives
        if options.environment is None or life.environment == options.environment
    ]
    names = sorted({life.environment for life in recording.lives})
    if not chosen:
        raise ConfigError(
            f"batch.environment: {config.trace} knows {', '.join(map(repr, names))}, "
            f"got {options.environment!r}"
        )
    _refuse_unknown_durations(config, chosen)
    lives, earlier = _as_recorded(chosen), {}
    if options.num_groups is not None:
        if len({life.environment for life in chosen}) > 1:
            raise ConfigError(
                f"batch.environment: {config.trace} mixes {', '.join(map(repr, names))}, and a "
                "group must be of one: choose one"
            )
        lives, earlier = draw_batch(
            chosen,
            num_groups=options.num_groups,
            group_size=options.group_size,
            icc=options.icc,
            num_earlier=options.num_earlier,
            num_spare=config.tail.oversampling.extra,
            rates=config.history.rates,
            rng=random.Random(options.seed),
        )
    return Replay(
        config=config,
        lives=lives,
        parallelism=recording.parallelism,
        history=_history(config, lives, earlier),
        num_left_out=recording.num_left_out,
    )


def _as_recorded(lives: list[Life]) -> dict[SampleId, Life]:
    """The lives under their tasks, numbered anew: samples may be missing."""
    num_seen: Counter[str] = Counter()
    numbered: dict[SampleId, Life] = {}
    for life in lives:
        task_id = life.sample_id.task_id
        numbered[SampleId(task_id, num_seen[task_id])] = life
        num_seen[task_id] += 1
    return numbered


def _refuse_unknown_durations(config: ReplayConfig, lives: list[Life]) -> None:
    if not isinstance(config.engine, RecordedConfig):
        return
    for life in lives:
        if any(call.seconds is None for attempt in life.attempts for call in attempt.calls):
            raise ConfigError(
                f"engine=recorded: {config.trace} does not know how long the calls of "
                f"{life.sample_id} took: use engine=sim_reference or engine=uncontended"
            )


def _history(
    config: ReplayConfig, lives: dict[SampleId, Life], earlier: dict[SampleId, float]
) -> History | None:
    workload = workload_of(environment.name for environment in LifeBatch(lives).environments())
    options = config.history
    if options.path is not None:
        return read_history(Path(options.path), workload, options.rates)
    return next_history(None, workload, options.rates, earlier)


@asynccontextmanager
async def opened_replay(
    replay: Replay, batch: LifeBatch, sink: Sink, recorder: Recorder
) -> AsyncGenerator[Orchestrator]:
    """Put the run together inside a running loop, with its engine open; run it with
    `batch.tasks()`.
    """
    config = replay.config
    engine = _engine(replay, batch)
    rates = config.history.rates
    async with opened(engine, config.limits.admin):
        yield prepare(
            sink,
            engine=engine,
            environment=batch.environments(),
            program=batch.live,
            settings=config.settings(),
            recorder=recorder,
            num_samples=len(replay.lives),
            history=replay.history,
            totals={sample_id: life.work(rates) for sample_id, life in replay.lives.items()},
            policies=Policies(budget=_budget(config)),
        )


def summarize_replay(replay: Replay) -> Summary:
    """Run it and return its figures; nothing is written."""
    batch = batch_of(replay)
    statistics = RunStatistics()

    async def main() -> None:
        sink, recorder = _Nowhere(), Recorder([statistics])
        async with opened_replay(replay, batch, sink, recorder) as orchestrator:
            await orchestrator.run(batch.tasks())

    clock.run(main(), time=replay.config.run.time)
    return statistics.summary()


def bound_seconds(replay: Replay, summary: Summary) -> float | None:
    """The best lower bound that is known of the batch: what its run said, or a tighter one.

    None where samples are closed early: which work must be done is then the schedule's choice.
    """
    engine = replay.config.engine
    if replay.config.tail.oversampling.extra:
        return None
    bounds = [summary.lower_bound_seconds]
    if isinstance(engine, ReferenceConfig | UncontendedConfig):
        tight = lives_bound(replay.lives.values(), engine, replay.config.actions)
        bounds.append(None if tight is None else tight.seconds)
    return max((bound for bound in bounds if bound is not None), default=None)


class _Nowhere:
    """A sink for those who want figures only."""

    async def put(self, trajectory: Trajectory) -> None:
        del trajectory

    async def close(self) -> None:
        """There is nothing to write."""


def batch_of(replay: Replay) -> LifeBatch:
    """The lives as an agent program, an environment and tasks."""
    config = replay.config
    return LifeBatch(
        replay.lives,
        faults=_faults(config) if config.faults.has_actions else None,
        num_spare=config.tail.oversampling.extra,
    )


def _engine(replay: Replay, batch: LifeBatch) -> Engine:
    config = replay.config
    if not config.faults.has_calls:
        return _sound_engine(replay, batch)
    if config.router != RouterSettings():
        raise ConfigError(
            "faults.call_stalls and call_hangs befall calls behind the router's back: leave "
            "router.* at its defaults"
        )
    engine = (
        ReferenceEngine(config.engine, batch.sizes_of)
        if isinstance(config.engine, ReferenceConfig)
        else _sound_engine(replay, batch)
    )
    return FaultyEngine(engine, _faults(config), batch.sizes_of)


def _faults(config: ReplayConfig) -> Faults:
    return Faults(config.faults, config.batch.seed)


def _sound_engine(replay: Replay, batch: LifeBatch) -> Engine:
    match replay.config.engine:
        case RecordedConfig(parallelism=parallelism):
            return RecordedEngine(parallelism or replay.parallelism, batch)
        case ReferenceConfig() as config:
            workers = ReferenceEngine(config, batch.sizes_of).make_workers()
            return Router(workers, replay.config.router, seed=replay.config.run.seed)
        case ServerSettings() as config:
            speaker = RecordedSpeaker(batch.sizes_of, replay.config.batch.shared_tokens)
            return ServersEngine(server_of(config), config.num_workers, speaker, says_tokens=False)
        case config:
            return UncontendedEngine(config, batch.sizes_of)


def _budget(config: ReplayConfig) -> MemoryBudget | None:
    """The memory of a worker, where it is simulated and samples are to be parked."""
    if not config.parking:
        return None
    match config.engine:
        case ReferenceConfig() as engine:
            return MemoryBudget(
                capacity_bytes=engine.memory_bytes,
                bytes_per_token=engine.timing.kv_bytes_per_token,
                bytes_per_sample=2 * engine.timing.state_bytes,
            )
        case ServerSettings() as engine:
            server = server_of(engine)
            return MemoryBudget(
                capacity_bytes=int(server.memory_bytes),
                bytes_per_token=server.kv_bytes_per_token,
                bytes_per_sample=2 * server.state_bytes,
            )
        case _:
            return None
