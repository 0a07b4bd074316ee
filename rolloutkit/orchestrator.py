"""Runs a batch: takes tasks from a source, starts samples as they are admitted, emits what ends.

Owns the run's only job group and the promise that every sample taken from the source is emitted
exactly once, whatever happens. Back-pressure runs from the sink to the source: while `max_unsent`
trajectories wait for the sink nothing is admitted. It decides no order: admission and actions do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any

from rolloutkit.admission import AdmissionQueue, Permit
from rolloutkit.clock import Watchdog
from rolloutkit.closer import Closer
from rolloutkit.context import Ending
from rolloutkit.errors import ConfigError, EngineError, RunFailed
from rolloutkit.estimate import History
from rolloutkit.jobs import Job, JobGroup, Outcome
from rolloutkit.lag import LoopLagMonitor
from rolloutkit.protocols import (
    Demand,
    EngineControl,
    PauseMode,
    Sink,
    TaskSource,
    WeightUpdate,
)
from rolloutkit.record.events import RunEnded, SampleAdmitted, SampleEnded, WeightsUpdated
from rolloutkit.routing import Router, WorkerView
from rolloutkit.sample import Life, run_sample
from rolloutkit.services import Services
from rolloutkit.tail import GroupCloser, with_spares
from rolloutkit.types import CancelReason, SampleId, Status, StopReason, Task, Timings, Trajectory

logger = logging.getLogger(__name__)


class Orchestrator:
    """One run. Make one, call `run` once; `drain` and `cancel` may be called from callbacks
    meanwhile.
    """

    def __init__(
        self,
        services: Services,
        admission: AdmissionQueue,
        sink: Sink,
        *,
        lookahead: int = 16_384,
        max_unsent: int = 64,
        breaker_failures: int = 10,
        num_spare: int = 0,
    ) -> None:
        self._services = services
        self._admission = admission
        self._sink = sink
        self._lookahead = lookahead
        self._max_unsent = max_unsent
        self._breaker_failures = breaker_failures
        self._num_spare = num_spare
        self._groups = GroupCloser(num_spare) if num_spare else None
        self._waiting: dict[SampleId, Demand] = {}  # taken from the source and not admitted
        self._lives: dict[SampleId, Life] = {}
        self._sample_jobs: dict[SampleId, Job[None]] = {}
        self._seen: set[SampleId] = set()
        self._outbox: deque[Trajectory] = deque()
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._settled = asyncio.Event()
        self._num_unsent = 0
        self._num_closing = 0
        self._source_is_read = False
        self._reading: Task | None = None
        self._is_draining = False
        self._sink_is_broken = False
        self._cancel_reason = CancelReason.INTERRUPTED
        self._error: Exception | None = None
        self._end_reason = "finished"
        self._most_turns_failed = 0
        self._updating = asyncio.Lock()
        self.counts: dict[Status, int] = dict.fromkeys(Status, 0)

    @property
    def alive(self) -> Mapping[SampleId, Life]:
        """The samples that live now, in the order in which they were admitted."""
        return self._lives

    @property
    def num_queued(self) -> int:
        """Samples taken from the source that wait to be admitted."""
        return len(self._admission)

    def next_history(self) -> History | None:
        """What the next epoch of this workload may know of its tasks' lengths; None when no sample
        has finished yet, here or before.
        """
        return self._services.foresight.next_history()

    @property
    def workers(self) -> Sequence[WorkerView]:
        """The engine's workers as they are; empty where it has none of its own."""
        engine = self._services.engine
        return engine.views() if isinstance(engine, Router) else ()

    async def update_policy(self, update: WeightUpdate, mode: PauseMode = PauseMode.FINISH) -> None:
        """Serve other weights, during a run: no call is sent until every worker has them.

        What becomes of the calls under way `mode` says. Waiting is charged to `limits.pause`, which
        bounds the whole as well, and to no other limit. A second update waits for the first. Raises
        ConfigError for an engine whose weights cannot be changed, EngineError when no worker takes
        them; either way, and when cancelled, calls are sent again.
        """
        services = self._services
        engine, gate = services.engine, services.gate
        if not isinstance(engine, EngineControl):
            raise ConfigError(
                f"{type(engine).__name__} cannot change its weights: use engine=sglang or vllm"
            )
        async with self._updating:
            started = self._t()
            gate.close()
            try:
                async with asyncio.timeout(services.limits.pause):
                    await self._renew(engine, update, mode)
            except TimeoutError:
                raise EngineError(
                    f"weights of version {update.version} were not loaded within limits.pause of "
                    f"{services.limits.pause:g} s"
                ) from None
            finally:
                gate.open()
            services.record(
                WeightsUpdated(
                    t=self._t(),
                    version=update.version,
                    mode=mode,
                    seconds=self._t() - started,
                )
            )

    async def _renew(self, engine: EngineControl, update: WeightUpdate, mode: PauseMode) -> None:
        """Pause, load, resume. When that breaks off the engine resumes in the background."""
        gate = self._services.gate
        if mode is PauseMode.FINISH:
            await gate.drained()
        else:
            gate.hold()
        try:
            await engine.pause(mode)
            await engine.update_weights(update)
        except BaseException:
            self._jobs.spawn(engine.resume(), name="resume the engine")
            raise
        await engine.resume()

    async def run(self, tasks: TaskSource) -> None:
        """Run every task of the source and return when every sample was emitted and every session
        closed.

        Cancelling stops admission, cancels the samples, closes their sessions within their limits,
        emits everything, and then raises; cancelling once more abandons that too. Raises RunFailed
        when the run could not go on (sink broke, circuit breaker), ConfigError for tasks that
        cannot be run.
        """
        services = self._services
        if self._num_spare:
            logger.warning(_OVERSAMPLED, self._num_spare)
            tasks = with_spares(tasks, self._num_spare)
        cpu_started = time.thread_time()
        try:
            self._check(tasks)
        except ConfigError:
            await self._close_sink()
            raise
        async with LoopLagMonitor() as monitor:
            cancelled = await self._run_to_the_end(tasks)
        if services.recorder is not None:
            lag = monitor.snapshot()
            found = services.foresight.findings(services.time())
            services.recorder.emit(
                RunEnded(
                    t=self._t(),
                    reason=self._end_reason,
                    order=found.order,
                    order_reason=found.sentence,
                    tail_recall=found.recall,
                    explained_variance=found.accuracy and found.accuracy.explained,
                    queue_share=found.queue_share,
                    binding_share=found.binding_share,
                    scheduler_cpu_seconds=time.thread_time() - cpu_started,
                    lag_p99_seconds=lag.p99_seconds,
                    lag_max_seconds=lag.max_seconds,
                )
            )
        await self._close_sink()
        if cancelled is not None:
            raise cancelled
        if self._error is not None:
            raise self._error

    async def _run_to_the_end(self, tasks: TaskSource) -> asyncio.CancelledError | None:
        """All between the first task and the last closed session; the cancellation, if one came."""
        self._tasks = tasks
        cancelled: asyncio.CancelledError | None = None
        async with JobGroup() as jobs:
            self._jobs = jobs
            self._closer = Closer(jobs)
            self._reader = self._start(self._read(tasks), "read tasks")
            self._admitter = self._start(self._admit(), "admit")
            self._start(self._send(), "send").on_end(self._on_sender_end)
            self._deadline = asyncio.get_running_loop().call_later(
                self._services.limits.run, self.cancel, CancelReason.DEADLINE
            )
            try:
                await self._settled.wait()
            except asyncio.CancelledError as error:
                cancelled = error
                self.cancel(CancelReason.INTERRUPTED)
                # Bounded: samples are cancelled, and cancelled again; sends and closes have limits.
                await self._settled.wait()
            finally:
                self._deadline.cancel()
        return cancelled

    async def _close_sink(self) -> None:
        try:
            async with asyncio.timeout(self._services.limits.close):
                await self._sink.close()
        except Exception as error:  # noqa: BLE001 - any sink error is the run's, unless one came before
            self._error = self._error or RunFailed(f"the sink could not be closed: {error}")

    def drain(self, reason: str = "interrupted") -> None:
        """Admit nothing more, let the living finish, and emit what waits as not started."""
        if self._is_draining:
            return
        self._is_draining = True
        self._end_reason = reason
        self._reader.cancel()
        self._admitter.cancel()
        waiting, self._waiting = self._waiting, {}
        for demand in waiting.values():
            self._emit_not_started(demand)
        for demand in waiting.values():
            self._admission.discard(demand)
        if self._reading is not None:  # some of its samples were taken, so it was given
            self._take_unstarted(self._reading)
        if isinstance(self._tasks, Sequence):  # given as a whole, read or not
            for task in self._tasks:
                self._take_unstarted(task)
        self._check_settled()

    def cancel(self, reason: CancelReason) -> None:
        """Drain, and cancel the living samples; they are emitted as cancelled for `reason`."""
        self.drain(reason.value)
        self._end_reason = reason.value
        self._cancel_reason = reason
        self._cancel_samples()

    def _cancel_samples(self) -> None:
        """Cancel what lives, again and again: a program may swallow a cancellation."""
        for job in list(self._sample_jobs.values()):
            job.cancel()
        if self._sample_jobs:
            self._deadline.cancel()
            self._deadline = asyncio.get_running_loop().call_later(
                self._services.limits.close, self._cancel_samples
            )

    # The source.

    def _check(self, tasks: TaskSource) -> None:
        """Refuse tasks that were given as a whole before anything starts."""
        if isinstance(tasks, Sequence):
            seen: set[str] = set()
            for task in tasks:
                self._environment_of(task)
                if task.task_id in seen:
                    raise ConfigError(_given_twice(SampleId(task.task_id, 0)))
                seen.add(task.task_id)

    async def _read(self, tasks: TaskSource) -> None:
        """Fill the admission queue up to the lookahead; a slow source keeps nobody else waiting."""
        async for task in _iterate(tasks):
            self._environment_of(task)
            self._reading = task
            for sample_index in range(task.num_samples):
                while len(self._admission) >= self._lookahead:
                    self._room.clear()
                    await self._room.wait()
                sample_id = SampleId(task.task_id, sample_index)
                if sample_id in self._seen:
                    raise ConfigError(_given_twice(sample_id))
                demand = self._take(task, sample_id)
                if self._groups is not None and self._groups.is_full(task):
                    self._emit(self._without_result(demand, CancelReason.GROUP_FULL))
                    continue
                self._waiting[sample_id] = demand
                self._admission.push(demand)
            self._reading = None
        self._source_is_read = True
        self._check_settled()

    def _take(self, task: Task, sample_id: SampleId) -> Demand:
        """From here on the sample must be emitted."""
        environment = self._environment_of(task)
        self._seen.add(sample_id)
        self._num_unsent += 1
        return Demand(
            sample_id=sample_id,
            task=task,
            environment=environment,
            seq=len(self._seen),
            arrived_at=self._services.time(),
        )

    def _take_unstarted(self, task: Task) -> None:
        for sample_index in range(task.num_samples):
            sample_id = SampleId(task.task_id, sample_index)
            if sample_id not in self._seen:
                self._emit_not_started(self._take(task, sample_id))

    def _environment_of(self, task: Task) -> str:
        environments = self._services.environments
        if task.environment in environments:
            return task.environment
        if not task.environment and len(environments) == 1:
            return next(iter(environments))
        if not environments and self._services.program is not None:
            return task.environment or "program"
        known = ", ".join(sorted(environments)) or "none"
        raise ConfigError(
            f"task {task.task_id} asks for environment {task.environment!r}; this run has: {known}"
        )

    # Samples.

    async def _admit(self) -> None:
        while True:
            while len(self._outbox) >= self._max_unsent:
                self._changed.clear()
                await self._changed.wait()
            self._start_sample(await self._admission.next())
            if len(self._admission) < self._lookahead:
                self._room.set()

    def _start_sample(self, permit: Permit) -> None:
        sample_id = permit.demand.sample_id
        del self._waiting[sample_id]
        life = self._lives[sample_id] = Life(permit)
        services = self._services
        services.foresight.admitted(sample_id, permit.demand.task)
        if services.recorder is not None:
            services.recorder.emit(
                SampleAdmitted(
                    t=self._t(),
                    sample_id=str(sample_id),
                    environment=permit.demand.environment,
                    seq=permit.seq,
                    wait_seconds=permit.admitted_at - permit.demand.arrived_at,
                    worker=permit.worker,
                    key=services.foresight.admission_key(permit.demand),
                )
            )
        job = self._jobs.spawn(run_sample(life, services, self._closer), name=str(sample_id))
        self._sample_jobs[sample_id] = job
        job.on_end(lambda outcome: self._on_sample_end(life, outcome))

    def _on_sample_end(self, life: Life, outcome: Outcome[None]) -> None:
        """Take over what the sample left: once, also when it was cancelled unstarted."""
        permit = life.permit
        sample_id = permit.demand.sample_id
        del self._lives[sample_id], self._sample_jobs[sample_id]
        if isinstance(outcome.error, Exception):
            self._break(outcome.error)
        if life.closed_for is not None:  # also one that ended by itself in the same instant
            life.ending = None
        is_finished = life.ending is not None and life.ending.status is Status.COMPLETED
        try:
            permit.release()
            self._services.foresight.ended(sample_id, is_finished=is_finished)
            self._services.engine.finish(sample_id)
            trajectory = self._trajectory(life)
        except Exception as error:  # noqa: BLE001 - whatever fails here must not lose the sample
            self._break(error)
            trajectory = self._without_result(permit.demand, CancelReason.RUN_BROKE)
        self._emit(trajectory)
        if self._groups is not None and is_finished and self._groups.completed(permit.demand.task):
            self._close_group(permit.demand.task)
        closing = None if life.context is None else self._closer.hand_over(life.context)
        if closing is None:
            permit.release_session()
        else:
            self._num_closing += 1
            closing.on_end(lambda _: self._on_closed(permit))

    def _trajectory(self, life: Life) -> Trajectory:
        if life.context is None:
            reason = life.closed_for or CancelReason.NOT_STARTED
            return self._without_result(life.permit.demand, reason)
        if life.ending is not None:
            return life.context.trajectory(life.ending)
        reason = life.closed_for or self._cancel_reason
        return life.context.trajectory(
            Ending(Status.CANCELLED, StopReason.CANCELLED, cancel_reason=reason)
        )

    # Over-sampled groups.

    def _close_group(self, task: Task) -> None:
        """Enough samples of the task have completed: the others end as `group_full`."""
        sample_ids = [SampleId(task.task_id, index) for index in range(task.num_samples)]
        for sample_id in sample_ids:
            if (demand := self._waiting.pop(sample_id, None)) is not None:
                self._admission.discard(demand)
                self._emit(self._without_result(demand, CancelReason.GROUP_FULL))
            if (life := self._lives.get(sample_id)) is not None:
                life.closed_for = CancelReason.GROUP_FULL
        self._cancel_closed(sample_ids)
        self._room.set()

    def _cancel_closed(self, sample_ids: Sequence[SampleId]) -> None:
        """Cancel those that live, again and again, as `_cancel_samples`."""
        living = [sample_id for sample_id in sample_ids if sample_id in self._sample_jobs]
        for sample_id in living:
            self._sample_jobs[sample_id].cancel()
        if living:
            asyncio.get_running_loop().call_later(
                self._services.limits.close, self._cancel_closed, living
            )

    def _on_closed(self, permit: Permit) -> None:
        permit.release_session()
        self._num_closing -= 1
        self._check_settled()

    # Sending.

    def _emit_not_started(self, demand: Demand) -> None:
        self._emit(self._without_result(demand, CancelReason.NOT_STARTED))

    def _without_result(self, demand: Demand, reason: CancelReason) -> Trajectory:
        now = self._services.time()
        since = self._services.started_at
        return Trajectory(
            sample_id=demand.sample_id,
            environment=demand.environment,
            status=Status.CANCELLED,
            stop_reason=StopReason.CANCELLED,
            cancel_reason=reason,
            token_exact=self._services.capabilities.token_ids,
            timings=Timings(
                arrived_at=demand.arrived_at - since,
                finished_at=now - since,
                admission_wait_seconds=now - demand.arrived_at,
            ),
        )

    def _emit(self, trajectory: Trajectory) -> None:
        """Count, record and queue a terminal sample; never waits."""
        self.counts[trajectory.status] += 1
        if self._services.recorder is not None:
            self._services.recorder.emit(_ended_event(trajectory, self._t()))
        self._outbox.append(trajectory)
        self._changed.set()
        self._watch_failures(trajectory)

    def _watch_failures(self, trajectory: Trajectory) -> None:
        """The circuit breaker: when everything fails, stop and say why.

        Everything fails when `breaker_failures` samples have failed, at least as many as are still
        alive, none has completed, and no living one has come further than those that failed.
        """
        failure = trajectory.failure
        if failure is None or self.counts[Status.COMPLETED] or self._is_draining:
            return
        self._most_turns_failed = max(self._most_turns_failed, trajectory.num_turns)
        num_failed = self.counts[Status.FAILED]
        if num_failed < max(self._breaker_failures, len(self._lives)) or self._is_someone_further():
            return
        self._error = RunFailed(
            f"all of the first {num_failed} samples failed, so the run stopped; "
            f"the last one by {failure.kind.value}: {failure.message}"
        )
        self.cancel(CancelReason.CIRCUIT_OPEN)

    def _is_someone_further(self) -> bool:
        """Linear in the living samples, and asked only until the first one completes."""
        contexts = (life.context for life in self._lives.values())
        return any(one and one.num_turns > self._most_turns_failed for one in contexts)

    async def _send(self) -> None:
        """Hand trajectories to the sink one by one, in the order in which they ended."""
        watchdog = Watchdog()
        while not self._check_settled():
            while self._outbox:
                await self._put(self._outbox[0], watchdog)
                self._outbox.popleft()
                self._num_unsent -= 1
                self._changed.set()
            if not self._check_settled():
                self._changed.clear()
                await self._changed.wait()
        watchdog.close()

    async def _put(self, trajectory: Trajectory, watchdog: Watchdog) -> None:
        if self._sink_is_broken:
            return
        try:
            with watchdog.limit("queue", self._services.limits.queue):
                await self._sink.put(trajectory)
        except Exception as error:  # noqa: BLE001 - any sink error ends the run, with its text
            self._sink_is_broken = True
            self._break(RunFailed(f"the sink did not take {trajectory.sample_id}: {error}"))

    def _check_settled(self) -> bool:
        is_over = (self._source_is_read or self._is_draining) and self._num_unsent == 0
        if is_over and not self._lives and not self._num_closing:
            self._admitter.cancel()
            self._settled.set()
            self._changed.set()
        return self._settled.is_set()

    # Breaking.

    def _start(self, main: Coroutine[Any, Any, None], name: str) -> Job[None]:
        job = self._jobs.spawn(main, name=name)
        job.on_end(self._on_job_end)
        return job

    def _on_job_end(self, outcome: Outcome[None]) -> None:
        if isinstance(outcome.error, Exception):
            self._break(outcome.error)

    def _on_sender_end(self, outcome: Outcome[None]) -> None:
        """Cancelled from outside, as by a loop that is closed: nothing can be sent any more."""
        if isinstance(outcome.error, asyncio.CancelledError):
            self._settled.set()

    def _break(self, error: Exception) -> None:
        """The run itself cannot go on: keep the first error and wind down."""
        if self._error is None:
            self._error = error
            self.cancel(CancelReason.RUN_BROKE)

    def _t(self) -> float:
        return self._services.time() - self._services.started_at


_OVERSAMPLED = (
    "tail.oversampling.extra=%d: each task keeps its fastest samples, which are short ones more "
    "often than not; do not train or evaluate on them as if they were a fair draw"
)


def _given_twice(sample_id: SampleId) -> str:
    return f"sample {sample_id} was given twice: task ids must be unique in a run"


async def _iterate(tasks: TaskSource) -> AsyncIterator[Task]:
    if isinstance(tasks, AsyncIterable):
        async for task in tasks:
            yield task
    else:
        for task in tasks:
            yield task


def _ended_event(trajectory: Trajectory, t: float) -> SampleEnded:
    failure = trajectory.failure
    return SampleEnded(
        t=t,
        sample_id=str(trajectory.sample_id),
        environment=trajectory.environment,
        status=trajectory.status,
        stop_reason=trajectory.stop_reason,
        failure=None if failure is None else failure.kind,
        failure_message=None if failure is None else failure.message,
        cancel_reason=trajectory.cancel_reason,
        score=trajectory.score,
        num_turns=trajectory.num_turns,
        attempt=trajectory.attempt,
        output_tokens=trajectory.output_tokens,
        admitted=trajectory.timings.admitted_at is not None,
    )
