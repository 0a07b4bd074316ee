"""The two ways in: `rollout` streams trajectories as they end, `run` returns them all.

Both put the same parts together (`prepare`), check what can be checked before anything starts, and
leave engine and environments as they found them: whoever opened an engine closes it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import queue
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from rolloutkit import clock
from rolloutkit.actions import (
    ActionScheduler,
    ActionSettings,
    PoolLimits,
    Verdict,
    refuse_needs,
)
from rolloutkit.admission import (
    AdmissionLimits,
    AdmissionQueue,
    Decision,
    MemoryBudget,
    refuse_unplanned,
)
from rolloutkit.errors import ConfigError, EngineError, boundary
from rolloutkit.estimate import History, ReferenceRates
from rolloutkit.foresight import Foresight
from rolloutkit.gate import Gate
from rolloutkit.hosting import hosted
from rolloutkit.jobs import DaemonThreads, background
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.orchestrator import Orchestrator
from rolloutkit.pacing import Pacer
from rolloutkit.protocols import (
    AgentProgram,
    Capabilities,
    Engine,
    Environment,
    HasModelFile,
    HasPlacement,
    Placement,
    Priority,
    Renderer,
    Sink,
    Stage,
    StartsServers,
    TaskSource,
)
from rolloutkit.record.events import (
    CallHedged,
    OrderChosen,
    PoolOpened,
    RunStarted,
    WindowChanged,
    WorkerChanged,
)
from rolloutkit.record.recorder import Recorder
from rolloutkit.routing import Router, WorkerChange
from rolloutkit.services import Services, stage_kind
from rolloutkit.sinks import CollectSink, StreamSink, TeeSink
from rolloutkit.tail import (
    CappedEngine,
    Hedge,
    HedgedActions,
    HedgedEngine,
    Hedging,
    OutputCap,
    TailSettings,
    refuse_stages,
)
from rolloutkit.types import SampleId, SamplingParams, Task, Trajectory

T = TypeVar("T")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a run can be told besides its engine, environments and tasks."""

    admission: AdmissionLimits = AdmissionLimits()
    actions: ActionSettings = ActionSettings()
    limits: Limits = Limits()
    retry: RetryPolicy = RetryPolicy()
    sampling: SamplingParams = SamplingParams()
    seed: int = 0
    # Sample tool calls under a JSON schema, "auto" where the engine can; such chains cannot train.
    constrain_calls: bool | Literal["auto"] = False
    keep_messages: bool = True  # beside the tokens
    record_responses: bool = False  # what environments answered, in the trace
    rates: ReferenceRates = ReferenceRates()  # of the unit in which lengths are counted
    tail: TailSettings = TailSettings()
    breaker_failures: int = 10  # so many failures and nothing else: the run stops


class Policies(msgspec.Struct, frozen=True, kw_only=True):
    """What decides beside the orders that the settings name."""

    priority: Priority | None = None  # of model calls
    placement: Placement | None = None  # None: the engine's own, where it has several workers
    budget: MemoryBudget | None = None  # of each worker; samples are parked when it overflows


def prepare(
    sink: Sink,
    *,
    engine: Engine,
    environment: Environment | Sequence[Environment] = (),
    program: AgentProgram | None = None,
    renderer: Renderer | None = None,
    settings: Settings | None = None,
    recorder: Recorder | None = None,
    num_samples: int | None = None,
    history: History | None = None,
    totals: Mapping[SampleId, float] | None = None,
    policies: Policies = Policies(),  # noqa: B008 - it is frozen
) -> Orchestrator:
    """Put a run together inside a running loop. Raises ConfigError for parts that do not fit.

    `history` is what earlier epochs say of the tasks' lengths; `totals` are true ones, in reference
    work, for clairvoyant orders.
    Plain functions of an environment run in threads. Without a renderer that of the engine's own
    model is used, where the engine can name its file.
    """
    settings = settings or Settings()
    environments = _environments(environment)
    if not environments and program is None:
        raise ConfigError("give an environment, a program, or both")
    _check_names(settings, environments)
    refuse_stages(settings.tail.hedge)
    refuse_unplanned(settings.admission)
    refuse_needs(settings.actions)
    time = clock.timer()
    started_at = time()
    started = _run_started(engine, environments, settings, num_samples)

    def on_pool(kind: str, limits: PoolLimits) -> None:
        if recorder is not None and limits.slots is not None and kind not in started.slots:
            recorder.emit(PoolOpened(t=time() - started_at, kind=kind, slots=limits.slots))

    on_hedge = partial(_record_hedge, recorder, time, started_at)
    hedging = Hedging(settings.tail.hedge)
    foresight = Foresight(
        settings.actions,
        settings.admission,
        workload=workload_of(environments),
        rates=settings.rates,
        history=history,
        totals=totals,
        started_at=started_at,
        on_verdict=partial(_record_verdict, recorder, time, started_at),
        is_asked=isinstance(engine, Router) and engine.fleet.wants_forecast,
    )
    placement = _placement(engine) if policies.placement is None else policies.placement
    admission = AdmissionQueue(
        settings.admission,
        foresight.admission_order(),
        placement=placement,
        budget=policies.budget,
    )

    def on_window(worker: str | None, decision: Decision) -> None:
        if recorder is not None:
            recorder.emit(
                WindowChanged(
                    t=time() - started_at,
                    worker=worker,
                    window=decision.window,
                    cause=decision.cause.value,
                    waste=decision.waste,
                )
            )

    if isinstance(engine, Router):
        engine.fleet.forecast = foresight
        engine.on_worker_change = partial(_record_worker, recorder, time, started_at)
    services = Services(
        engine=_with_tactics(engine, settings.tail, hedging, on_hedge),
        capabilities=engine.capabilities,
        renderer=_renderer(engine, renderer),
        environments=environments,
        program=program,
        actions=ActionScheduler(
            settings.actions.limits_of,
            foresight.action_order,
            on_pool,
            pools=settings.actions.pools,
            rank=foresight.action_key,
        ),
        foresight=foresight,
        pacer=_pacer(settings.admission, admission, placement, started_at, on_window),
        limits=settings.limits,
        retry=settings.retry,
        sampling=settings.sampling,
        recorder=recorder,
        time=time,
        started_at=started_at,
        seed=settings.seed,
        gate=Gate(),
        constrain_calls=_constrains(settings, engine.capabilities),
        priority=policies.priority,
        hedged_actions=HedgedActions(hedging, on_hedge) if settings.tail.hedge.actions else None,
        keep_messages=settings.keep_messages,
        record_responses=settings.record_responses,
    )
    if recorder is not None:
        recorder.emit(started)
    foresight.start()
    return Orchestrator(
        services,
        admission,
        sink,
        lookahead=settings.admission.lookahead,
        breaker_failures=settings.breaker_failures,
        num_spare=settings.tail.oversampling.extra,
    )


async def rollout(
    tasks: TaskSource,
    *,
    engine: Engine,
    environment: Environment | Sequence[Environment] = (),
    program: AgentProgram | None = None,
    renderer: Renderer | None = None,
    settings: Settings | None = None,
    recorder: Recorder | None = None,
    history: History | None = None,
) -> AsyncGenerator[Trajectory]:
    """Run a batch and yield each trajectory as its sample ends; every sample comes exactly once.

    A consumer that is slow holds admission back. `aclose()` cancels the samples that live, closes
    their sessions, and then returns. `break` does the same, but in the background, as for every
    async generator: use `contextlib.aclosing` to have it done when the block is left.
    """
    sink = StreamSink()
    orchestrator = prepare(
        sink,
        engine=engine,
        environment=environment,
        program=program,
        renderer=renderer,
        settings=settings,
        recorder=recorder,
        num_samples=count_samples(tasks, settings),
        history=history,
    )
    async with background(orchestrator.run(tasks), name="rollout") as job:
        try:
            async for trajectory in sink:
                yield trajectory
        finally:
            sink.abandon()
        (await job.outcome()).unwrap()


def run(
    tasks: Iterable[Task],
    *,
    engine: Engine,
    environment: Environment | Sequence[Environment] = (),
    program: AgentProgram | None = None,
    renderer: Renderer | None = None,
    settings: Settings | None = None,
    recorder: Recorder | None = None,
    sink: Sink | None = None,
    history: History | None = None,
    keep_history: Callable[[History | None], None] | None = None,
    time: clock.TimeMode = "real",
) -> list[Trajectory]:
    """Run a batch and return its trajectories in the order of the tasks, one per sample.

    Each goes to `sink` too, as it ends. `history` is what earlier epochs say of the tasks' lengths,
    and `keep_history` is called with that for the next. Works inside a notebook: where a loop runs
    already, the batch runs in a thread with a loop of its own. An engine that is an async context
    manager is entered for the run.
    """
    tasks = list(tasks)

    async def main() -> list[Trajectory]:
        collected = CollectSink()
        async with opened(engine, (settings or Settings()).limits.admin):
            orchestrator = prepare(
                collected if sink is None else TeeSink(sink, collected),
                engine=engine,
                environment=environment,
                program=program,
                renderer=renderer,
                settings=settings,
                recorder=recorder,
                num_samples=count_samples(tasks, settings),
                history=history,
            )
            await orchestrator.run(tasks)
            if keep_history is not None:
                keep_history(orchestrator.next_history())
        num_spare = 0 if settings is None else settings.tail.oversampling.extra
        return collected.in_order(
            SampleId(task.task_id, index)
            for task in tasks
            for index in range(task.num_samples + num_spare)
        )

    return run_anywhere(main, time=time)


def run_anywhere(main: Callable[[], Coroutine[Any, Any, T]], *, time: clock.TimeMode = "real") -> T:
    """Run a program on a loop of its own, in a thread where a loop runs already (a notebook).

    Interrupting the caller cancels the program and waits for its end.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return clock.run(main(), time=time)
    started: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    async def cancellable() -> T:
        loop, job = asyncio.get_running_loop(), asyncio.current_task()
        assert job is not None
        started.put(lambda: loop.call_soon_threadsafe(job.cancel))
        return await main()

    future = DaemonThreads().submit(lambda: clock.run(cancellable(), time=time))
    cancel = started.get()
    try:
        return future.result()
    except KeyboardInterrupt:
        if not future.done():
            cancel()
            concurrent.futures.wait([future])
        raise


def count_samples(tasks: TaskSource, settings: Settings | None = None) -> int | None:
    """How many samples a source holds, spare ones included; None for a stream."""
    if not isinstance(tasks, Sequence):
        return None
    num_spare = 0 if settings is None else settings.tail.oversampling.extra
    return sum(task.num_samples + num_spare for task in tasks)


def _environments(environment: Environment | Sequence[Environment]) -> dict[str, Environment]:
    given = environment if isinstance(environment, Sequence) else (environment,)
    environments: dict[str, Environment] = {}
    for one in given:
        if one.name in environments:
            raise ConfigError(f"two environments are called {one.name!r}: names must be unique")
        environments[one.name] = hosted(one)
    return environments


def _renderer(engine: Engine, given: Renderer | None) -> Renderer | None:
    """The renderer of a token engine, checked to be append-only; None where messages are sent."""
    from rolloutkit.render import Tokenizer, TokenRenderer, check_append_only, make_renderer

    if not engine.capabilities.token_ids:
        return None
    if given is None and isinstance(engine, HasModelFile):
        given = make_renderer("auto", Tokenizer.load(engine.model_file))
    if isinstance(given, TokenRenderer):
        check_append_only(given)
    return given


def _with_tactics(
    engine: Engine, tail: TailSettings, hedging: Hedging, on_hedge: Callable[[Hedge], None]
) -> Engine:
    """The engine, wrapped by the tactics that are on."""
    if tail.hedge.model_calls:
        engine = HedgedEngine(engine, hedging, on_hedge)
    if tail.output_cap.is_on:
        engine = CappedEngine(engine, OutputCap(tail.output_cap))
    return engine


def _placement(engine: Engine) -> Placement | None:
    return engine.placement if isinstance(engine, HasPlacement) else None


def _pacer(
    limits: AdmissionLimits,
    queue: AdmissionQueue,
    placement: Placement | None,
    now: float,
    on_change: Callable[[str | None, Decision], None],
) -> Pacer | None:
    """Hold the queue to the reference concurrency, and follow it online where that is asked for."""
    if limits.control == "fixed" or limits.reference is None:
        return None
    workers = [None] if placement is None else list(placement.workers())
    if limits.control == "reference":
        queue.max_samples = min(limits.max_samples, limits.reference * len(workers))
        return None
    return Pacer(
        queue,
        workers,
        reference=limits.reference,
        expected_hits=limits.expected_hits,
        most=limits.max_samples,
        now=now,
        on_change=on_change,
    )


def _constrains(settings: Settings, capabilities: Capabilities) -> bool:
    if settings.constrain_calls == "auto":
        return capabilities.grammar
    if settings.constrain_calls and not capabilities.grammar:
        raise ConfigError(
            "constrain_calls needs an engine that honours JSON schemas; this one does not"
        )
    return settings.constrain_calls


def _check_names(settings: Settings, environments: Mapping[str, Environment]) -> None:
    """Refuse limits for environments that the run does not have: they would limit nothing."""
    known = ", ".join(sorted(environments)) or "none"
    for name in settings.admission.max_sessions:
        if name not in environments:
            raise ConfigError(
                f"admission.max_sessions: no environment is called {name!r}; this run has: {known}"
            )
    for kind in settings.actions.kinds:
        name, dot, stage = kind.rpartition(".")
        if dot and (name not in environments or stage not in set(Stage)):
            raise ConfigError(
                f"actions.kinds: {kind!r} is no stage of an environment: write NAME.STAGE, NAME "
                f"one of {known}, STAGE one of {', '.join(Stage)}"
            )


def workload_of(environments: Iterable[str]) -> str:
    """What a history is a history of: the run's environments."""
    return "+".join(sorted(environments)) or "program"


def _record_verdict(
    recorder: Recorder | None, time: Callable[[], float], started_at: float, verdict: Verdict
) -> None:
    if recorder is not None:
        recorder.emit(
            OrderChosen(
                t=time() - started_at,
                order=verdict.rule.value,
                fifo_lane=verdict.fifo_lane,
                reason=verdict.reason,
                tail_recall=verdict.recall,
                residual_grows=verdict.residual_grows,
                queue_share=verdict.queue_share,
            )
        )


def _record_hedge(
    recorder: Recorder | None, time: Callable[[], float], started_at: float, hedge: Hedge
) -> None:
    if recorder is not None:
        recorder.emit(
            CallHedged(
                t=time() - started_at,
                sample_id=str(hedge.sample_id),
                attempt=hedge.attempt,
                chain=hedge.chain,
                turn=hedge.turn,
                kind=hedge.kind,
                stalled_seconds=hedge.stalled_seconds,
                seconds=hedge.seconds,
                outcome=hedge.outcome.value,
                received_tokens=hedge.received_tokens,
                prompt_tokens=hedge.prompt_tokens,
                lost_tokens=hedge.lost_tokens,
            )
        )


def _record_worker(
    recorder: Recorder | None,
    time: Callable[[], float],
    started_at: float,
    worker: str,
    change: WorkerChange,
    reason: str,
) -> None:
    if recorder is not None:
        recorder.emit(
            WorkerChanged(t=time() - started_at, worker=worker, change=change, reason=reason)
        )


def _run_started(
    engine: Engine,
    environments: Mapping[str, Environment],
    settings: Settings,
    num_samples: int | None,
) -> RunStarted:
    kinds = [stage_kind(name, stage) for name in environments for stage in Stage]
    slots = {kind: settings.actions.limits_of(kind).slots for kind in kinds}
    return RunStarted(
        t=0.0,
        time="virtual" if clock.is_virtual() else "real",
        seed=settings.seed,
        num_samples=num_samples,
        max_samples=settings.admission.max_samples,
        slots={kind: count for kind, count in slots.items() if count is not None},
        pools=dict(settings.actions.pools),
        parallelism=engine.capabilities.parallelism,
        order=settings.actions.order,
        admission_order=settings.admission.order,
        service_times="uncontended" if clock.is_virtual() else "observed",
        oversampled=settings.tail.oversampling.extra,
    )


@asynccontextmanager
async def opened(engine: Engine, seconds: float) -> AsyncGenerator[None]:
    """Enter an engine that is an async context manager within `seconds`; others are open already.

    Starting servers of its own is bounded by the engine. Raises ConfigError when it cannot be
    opened: it has not begun to work.
    """
    if isinstance(engine, StartsServers):
        seconds += engine.start_seconds
    async with AsyncExitStack() as stack:
        if isinstance(engine, AbstractAsyncContextManager):
            try:
                async with asyncio.timeout(seconds):
                    with boundary(EngineError):
                        await stack.enter_async_context(engine)
            except TimeoutError:
                raise ConfigError(
                    f"engine: no answer within limits.admin of {seconds:g} s: look at its log"
                ) from None
            except EngineError as error:
                raise ConfigError(f"engine: {error}") from None
        yield
