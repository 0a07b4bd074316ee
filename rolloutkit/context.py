"""What one attempt at a sample can do: generate, act, open chains, spawn children.

A `SampleContext` holds the attempt's chains and counters and bounds every wait. When the attempt is
over it refuses to go on, so that nothing of an abandoned attempt can land. It decides nothing about
the sample's life: that is `sample.py`.
"""

from __future__ import annotations

import inspect
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, TypeVar

from rolloutkit.actions import Slot
from rolloutkit.admission import Permit
from rolloutkit.bounds import Bounds
from rolloutkit.clock import Watchdog
from rolloutkit.dialogue import Dialogue
from rolloutkit.errors import (
    AttemptEnded,
    ContextFullError,
    EngineError,
    EnvironmentFailed,
    LimitExceeded,
    RolloutError,
    ScoreFailed,
    SetUpFailed,
    StopSample,
    boundary,
    failure_of,
)
from rolloutkit.estimate import Turn
from rolloutkit.jobs import Job, blocking, spawn
from rolloutkit.pacing import Call, Pacer
from rolloutkit.protocols import ActionDemand, EnvironmentSession, Stage
from rolloutkit.record.events import (
    Action,
    ActionOutcome,
    AttemptStarted,
    ModelCall,
    SampleParked,
    SampleResumed,
)
from rolloutkit.services import Services, stage_kind
from rolloutkit.tail import HedgedActions
from rolloutkit.types import (
    CancelReason,
    Chain,
    Completion,
    Failure,
    FinishReason,
    GenerateRequest,
    Message,
    Observation,
    Reply,
    SampleId,
    SamplingParams,
    Score,
    Status,
    StopReason,
    Task,
    Timings,
    ToolSpec,
    Trajectory,
)

T = TypeVar("T")

MODEL_CALL = "model_call"
"""The kind under which a model call's priority is asked for."""

logger = logging.getLogger(__name__)

_TURN_SEED_STEP = 0x9E3779B1  # the 32-bit golden ratio: spreads consecutive turns over the seeds


class Ending(NamedTuple):
    """How an attempt ended, before it is scored."""

    status: Status
    stop_reason: StopReason
    failure: Failure | None = None
    cancel_reason: CancelReason | None = None
    score: Score | None = None  # set by a program that scores itself


class _Sort(NamedTuple):
    """What sort of action it is: its limit, what its errors are, the counter it adds to, and what
    makes its value of what the call returned.
    """

    limit: str
    error: type[RolloutError]
    adds_to: str
    is_in_turn: bool = False
    value_of: Callable[[Any], Any] | None = None


def _observation(value: object) -> Observation:
    if not isinstance(value, Observation):
        raise TypeError(f"expected an Observation, got {value!r}")
    return value


def as_score(value: object) -> Score | None:
    """A score, or a plain number as one. Raises TypeError for anything else."""
    match value:
        case None:
            return None
        case Score(value=int() | float()):
            return value
        case int() | float():
            return Score(float(value))
        case _:
            raise TypeError(f"expected a Score, a number or None, got {value!r}")


_SET_UP = _Sort("set_up", SetUpFailed, "set_up_seconds", value_of=_observation)
_ACTION = _Sort("action", EnvironmentFailed, "act_seconds", is_in_turn=True)
_STEP = _ACTION._replace(value_of=_observation)
_SCORING = _Sort("scoring", ScoreFailed, "score_seconds", value_of=as_score)
_CLOSING = _Sort("close", EnvironmentFailed, "close_seconds")


class SampleContext:
    """One attempt at a sample, driven by one coroutine. Programs use `generate`, `act`, `chain`."""

    __slots__ = (
        "_bounds",
        "_called_at",
        "_is_over",
        "_jobs",
        "_new_tokens",
        "_permit",
        "_services",
        "_told",
        "_uncounted_seconds",
        "act_seconds",
        "activity",
        "activity_since",
        "attempt",
        "close_seconds",
        "dialogue",
        "generate_seconds",
        "num_actions",
        "parked_seconds",
        "reward",
        "score_seconds",
        "seed",
        "session",
        "set_up_seconds",
        "slot_wait_seconds",
        "worker",
    )

    def __init__(
        self, services: Services, permit: Permit, attempt: int, watchdog: Watchdog
    ) -> None:
        self._services = services
        self._permit = permit
        self._bounds = Bounds(services.limits, watchdog, services.time)
        self.dialogue = Dialogue(services)
        self._called_at: float | None = None  # the last model call, where that is asked for
        self._is_over = False
        self._jobs: list[Job[Any]] = []
        self._new_tokens = 0
        self._uncounted_seconds = 0.0
        self._told = Turn()
        self.attempt = attempt
        self.seed = zlib.crc32(f"{services.seed}/{permit.demand.sample_id}/{attempt}".encode())
        self.session: EnvironmentSession | None = None
        self.activity = "starting"
        self.activity_since = services.time()
        self.num_actions = 0
        self.reward = 0.0
        self.generate_seconds = 0.0
        self.act_seconds = 0.0
        self.slot_wait_seconds = 0.0
        self.set_up_seconds = 0.0
        self.score_seconds = 0.0
        self.close_seconds = 0.0
        self.parked_seconds = 0.0
        self.worker = permit.worker

    @property
    def sample_id(self) -> SampleId:
        return self._permit.demand.sample_id

    @property
    def task(self) -> Task:
        return self._permit.demand.task

    @property
    def environment(self) -> str:
        """Name of the sample's environment."""
        return self._permit.demand.environment

    @property
    def num_turns(self) -> int:
        """Finished completions."""
        return self.dialogue.num_turns

    @property
    def messages(self) -> Sequence[Message]:
        """The main chain's conversation so far, where messages are kept."""
        return self.dialogue.messages

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools on offer."""
        return self.dialogue.tools

    def chain(self, parent: Chain | None = None) -> Chain:
        """Open another chain (sub-agent, compacted context), empty or with `parent`'s tokens."""
        return self.dialogue.open_chain(parent)

    def spawn(self, main: Awaitable[T], *, name: str = "child") -> Job[T]:
        """Start a child of this sample; its outcome is a value, and it ends with the attempt."""
        self._require_going()
        job = spawn(_await(main), name=f"{self.sample_id}/{name}")
        self._jobs.append(job)
        return job

    async def generate(
        self,
        messages: Sequence[Message] = (),
        *,
        token_ids: Sequence[int] = (),
        chain: Chain | None = None,
        tools: tuple[ToolSpec, ...] | None = None,
        tools_in_messages: bool = False,
        sampling: SamplingParams | None = None,
        json_schema: dict[str, Any] | None = None,
        prompt_tokens: int | None = None,
    ) -> Reply:
        """Append `messages` (or `token_ids`) to a chain and let the model speak.

        `tools`, where given, are on offer from here on; `tools_in_messages` says that the messages
        describe them. `prompt_tokens` is the length of the whole prompt, where the caller knows it
        and the engine takes no token ids. One request in flight per chain: a second raises
        ProgramError. Waits for memory first when the sample is parked. Raises StopSample when
        turns, tokens or context are used up, EngineError, RenderError, or LimitExceeded. What was
        to be appended stays when the call fails: to try again, call without it. Cancelling aborts
        the request on the server; no completion is appended then.
        """
        self._require_going()
        dialogue = self.dialogue
        if dialogue.num_turns:
            self._end_turn()
        chain = dialogue.chains[0] if chain is None else chain
        if tools is not None:
            dialogue.tools, dialogue.tools_in_messages = tools, tools_in_messages
        if dialogue.num_turns >= self._services.limits.max_turns:
            raise StopSample(StopReason.MAX_TURNS)
        dialogue.begin_turn(chain)
        try:
            dialogue.append_context(chain, messages, token_ids)
            if chain.index == 0:  # the others of a sample come and go within its turns
                self._permit.grow(len(chain) or prompt_tokens or dialogue.num_known(chain))
            parked_seconds = await self._resume() if self._permit.is_parked else 0.0
            if self._services.gate.is_closed:
                await self._wait_for_weights()
            request = self._request(chain, sampling, json_schema)
            completion = await self._call_engine(request, chain, parked_seconds)
            self._require_going()
            reply = dialogue.append_completion(chain, completion)
        finally:
            dialogue.end_turn(chain)
        self.worker = completion.worker or self.worker
        self._begin("between turns", self._services.time())
        return reply

    async def act(
        self,
        kind: str,
        call: Callable[[], Awaitable[T] | T],
        *,
        timeout: float | None = None,
        idempotent: bool = False,
        needs: Mapping[str, int] | None = None,
    ) -> T:
        """Run one action when the scheduler grants a slot of its kind, and return its value.

        `needs` are places in pools of `actions.pools` (`{"cpu": 2}`), taken together with the slot;
        they go before those of the kind. An action inside another, as when its call calls `act`,
        uses what the outer one holds, and may ask for other pools only in one order everywhere.

        `timeout` (default `limits.action`) counts from the grant. A plain function is run in a
        thread. `idempotent` says that the call may be made twice, also at once: where
        `tail.hedge.actions` is on, one that takes far longer than its kind is made again in a slot
        of its own, and the first to end counts. Raises EnvironmentFailed when the call raises,
        LimitExceeded when it overruns, ProgramError for needs that can never be met or that could
        deadlock; cancelling cancels the call.
        """
        self._require_going()
        run = call if inspect.iscoroutinefunction(call) else partial(_off_the_loop, call)
        hedged, inside = self._services.hedged_actions, _holding.get()
        if hedged is not None and hedged.covers(kind, is_idempotent=idempotent):
            run = partial(self._hedged, hedged, kind, run, needs, inside)
        return await self._act(kind, run, _ACTION, timeout, needs, inside)

    # The environment's stages; the built-in loop and the closer use them.

    async def reset(self, session: EnvironmentSession) -> Observation:
        """Set the session up, in a slot of its set-up stage; it is closed whatever happens."""
        self._require_going()
        self.session = session
        observation = await self._act(self._kind(Stage.SET_UP), session.reset, _SET_UP)
        self.reward += observation.reward
        return observation

    async def step(self, session: EnvironmentSession, reply: Reply) -> Observation:
        """Let the session carry out a reply, in a slot of its step stage."""
        self._require_going()
        observation = await self._act(self._kind(Stage.STEP), partial(session.step, reply), _STEP)
        self.reward += observation.reward
        return observation

    async def score(self, session: EnvironmentSession) -> Score | None:
        """Score what was done, in a slot of the score stage."""
        return as_score(await self._act(self._kind(Stage.SCORE), session.score, _SCORING))

    async def close(self, session: EnvironmentSession) -> None:
        """Close the session, in a slot of the close stage."""
        await self._act(self._kind(Stage.CLOSE), session.close, _CLOSING)

    # The ends of an attempt.

    def announce(self) -> None:
        """Tell the recorder and the estimates that the attempt starts."""
        if self.attempt:
            self._services.foresight.restarted(self.sample_id)
        self._services.record(
            AttemptStarted(
                t=self._services.elapsed(), sample_id=str(self.sample_id), attempt=self.attempt
            )
        )

    def bounded(self) -> AbstractContextManager[None]:
        """Bounds the attempt inside the block by `limits.sample`."""
        return self._bounds.attempt()

    def end(self) -> None:
        """The attempt is over: refuse to go on, cancel its children. Idempotent, never waits."""
        if not self._is_over:
            self._end_turn()
        self._is_over = True
        for job in self._jobs:
            job.cancel()

    async def settle(self) -> None:
        """Wait until the cancelled children have let go, for `limits.close` at most."""
        try:
            with self._bounds.watchdog().limit("close", self._services.limits.close):
                for job in self._jobs:
                    await job.outcome()
        except LimitExceeded:
            logger.warning("children of %s do not end when cancelled", self.sample_id)

    def adopt(self, watchdog: Watchdog) -> None:
        """Let the calling coroutine drive what is left of the sample."""
        self._bounds.adopt(watchdog)

    def trajectory(self, ending: Ending) -> Trajectory:
        """The finished sample."""
        services, permit, dialogue = self._services, self._permit, self.dialogue
        arrived_at, admitted_at = permit.demand.arrived_at, permit.admitted_at
        exact = services.capabilities.token_ids
        return Trajectory(
            sample_id=self.sample_id,
            environment=self.environment,
            status=ending.status,
            stop_reason=ending.stop_reason,
            failure=ending.failure,
            cancel_reason=ending.cancel_reason,
            score=None if ending.score is None else ending.score.value,
            score_details={} if ending.score is None else ending.score.details,
            reward=self.reward,
            num_turns=dialogue.num_turns,
            num_actions=self.num_actions,
            attempt=self.attempt,
            prompt_tokens=dialogue.prompt_tokens,
            cached_tokens=dialogue.cached_tokens,
            output_tokens=dialogue.output_tokens,
            num_capped_turns=dialogue.num_capped_turns,
            chains=tuple(dialogue.chains) if exact else (),
            messages=tuple(dialogue.messages),
            token_exact=exact,
            worker=self.worker,
            timings=Timings(
                arrived_at=arrived_at - services.started_at,
                admitted_at=admitted_at - services.started_at,
                finished_at=services.elapsed(),
                admission_wait_seconds=admitted_at - arrived_at,
                parked_seconds=self.parked_seconds,
                generate_seconds=self.generate_seconds,
                act_seconds=self.act_seconds,
                slot_wait_seconds=self.slot_wait_seconds,
                set_up_seconds=self.set_up_seconds,
                score_seconds=self.score_seconds,
            ),
        )

    def _end_turn(self) -> None:
        """Report what was done since the last report as one turn."""
        so_far = Turn(
            self.act_seconds,
            self.generate_seconds,
            self.slot_wait_seconds + self.parked_seconds,
            self.dialogue.output_tokens,
            self._new_tokens,
            self._uncounted_seconds,
        )
        self._services.foresight.turn_ended(self.sample_id, so_far.since(self._told))
        self._told = so_far

    # Generating.

    async def _resume(self) -> float:
        """Wait until the parked sample has memory again; seconds waited."""
        services = self._services
        started = services.time()
        self._begin("parked", started)
        services.record(SampleParked(t=services.elapsed(), sample_id=str(self.sample_id)))
        bounds = self._bounds
        bounds.begin_wait()
        try:
            with bounds.watchdog().limit("pause", services.limits.pause):
                await self._permit.resume()
        finally:
            bounds.end_wait()
            self.parked_seconds += services.time() - started
        parked = services.time() - started
        services.record(
            SampleResumed(
                t=services.elapsed(), sample_id=str(self.sample_id), parked_seconds=parked
            )
        )
        return parked

    async def _wait_for_weights(self) -> None:
        """Wait at the gate, which is charged to `limits.pause` only."""
        self._begin("waiting for weights", self._services.time())
        bounds = self._bounds
        bounds.begin_wait()
        try:
            with bounds.watchdog().limit("pause", self._services.limits.pause):
                await self._services.gate.passed()
        finally:
            bounds.end_wait()

    def _request(
        self, chain: Chain, sampling: SamplingParams | None, json_schema: dict[str, Any] | None
    ) -> GenerateRequest:
        dialogue = self.dialogue
        base = self._services.sampling if sampling is None else sampling
        turn = dialogue.num_turns
        seed = base.seed
        if seed is None:
            seed = (self.seed + _TURN_SEED_STEP * turn) & 0x7FFFFFFF
        return GenerateRequest(
            sample_id=self.sample_id,
            attempt=self.attempt,
            chain_index=chain.index,
            turn=turn,
            prompt=dialogue.prompt(chain),
            sampling=SamplingParams(
                max_tokens=dialogue.room(chain, base.max_tokens),
                temperature=base.temperature,
                top_p=base.top_p,
                top_k=base.top_k,
                min_p=base.min_p,
                seed=seed,
                logprobs=base.logprobs,
            ),
            worker=self._permit.worker,
            priority=self._priority(),
            json_schema=dialogue.call_schema() if json_schema is None else json_schema,
        )

    def _priority(self) -> float:
        priority = self._services.priority
        return 0.0 if priority is None else priority(self._demand(MODEL_CALL))

    async def _call_engine(
        self, request: GenerateRequest, chain: Chain, parked_seconds: float
    ) -> Completion:
        services, bounds = self._services, self._bounds
        limits = services.limits
        watchdog = bounds.watchdog()
        bounds.start_turn(watchdog)
        on_progress = _Progress(watchdog, limits.model_progress)
        completion: Completion | None = None
        failure: RolloutError | None = None
        started = services.time()
        self._begin("generating", started)
        bounds.begin_work()
        call = bounds.call(watchdog)
        services.gate.enter(call)
        try:
            limit = bounds.within_turn("model_call", limits.model_call, watchdog)
            with limit, boundary(EngineError):
                completion = await services.engine.generate(request, on_progress)
            prompt_tokens = len(chain) or completion.prompt_tokens or 0
            new_tokens = self.dialogue.num_new(chain, prompt_tokens)
            self._new_tokens += new_tokens
            if services.pacer is not None:
                self._pace(services.pacer, prompt_tokens - new_tokens, completion, started)
            if completion.num_tokens is None:
                self._uncounted_seconds += services.time() - started
            return completion
        except ContextFullError:
            raise StopSample(StopReason.CONTEXT_FULL) from None
        except RolloutError as error:
            failure = error
            raise
        finally:
            services.gate.leave(call)
            bounds.end_work()
            seconds = services.time() - started
            self.generate_seconds += seconds
            if services.recorder is not None:
                self._record_call(chain, seconds, parked_seconds, completion, failure)

    def _pace(self, pacer: Pacer, known: int, completion: Completion, started: float) -> None:
        before, self._called_at = self._called_at, started
        cycle = None if before is None else started - before
        call = Call(known, completion.cached_tokens, cycle)
        pacer.called(self._permit.worker, call, self._services.time())

    def _record_call(
        self,
        chain: Chain,
        seconds: float,
        parked_seconds: float,
        completion: Completion | None,
        failure: RolloutError | None,
    ) -> None:
        done = completion or _NOT_DONE
        context_tokens = len(chain) or done.prompt_tokens or 0
        self._services.record(
            ModelCall(
                t=self._services.elapsed(),
                sample_id=str(self.sample_id),
                attempt=self.attempt,
                chain=chain.index,
                turn=self.num_turns,
                worker=done.worker or self.worker,
                parked_seconds=parked_seconds,
                seconds=seconds,
                queue_seconds=done.queue_seconds,
                service_seconds=done.service_seconds,
                prefill_seconds=done.prefill_seconds,
                context_tokens=context_tokens,
                new_tokens=self.dialogue.num_new(chain, context_tokens),
                cached_tokens=done.cached_tokens,
                output_tokens=None if completion is None else completion.num_tokens,
                finish_reason=None if completion is None else completion.finish_reason,
                num_retries=done.num_retries,
                error=None if failure is None else failure_of(failure).kind,
                cancelled=completion is None and failure is None,
            )
        )

    # Acting.

    async def _act(
        self,
        kind: str,
        call: Callable[[], Awaitable[T]],
        sort: _Sort,
        timeout: float | None = None,
        needs: Mapping[str, int] | None = None,
        inside: Slot | None = None,
    ) -> T:
        """Wait for a slot, run, give the slot back, and write down what it took."""
        services, bounds = self._services, self._bounds
        limit_name, error, adds_to, is_in_turn, value_of = sort
        watchdog = bounds.watchdog()
        demand = self._demand(kind)
        slot, waited = services.actions.acquire_now(demand, needs, inside), 0.0
        if slot is None:
            slot, waited = await self._acquire(demand, watchdog, needs, inside)
        token = _holding.set(slot) if sort is _ACTION else None
        started = services.time()
        self._begin(kind, started)
        limit: float = getattr(services.limits, limit_name) if timeout is None else timeout
        outcome, value = ActionOutcome.CANCELLED, None
        bounds.begin_work()
        try:
            bound = (
                bounds.within_turn(limit_name, limit, watchdog)
                if is_in_turn
                else watchdog.limit(limit_name, limit)
            )
            with bound, boundary(error):
                value = await call()
                if value_of is not None:
                    value = value_of(value)
            outcome = ActionOutcome.OK
            return value
        except RolloutError as problem:
            overran = isinstance(problem, LimitExceeded)
            outcome = ActionOutcome.LIMIT if overran else ActionOutcome.ERROR
            raise
        finally:
            if token is not None:
                _holding.reset(token)
            slot.release()
            bounds.end_work()
            seconds = services.time() - started
            setattr(self, adds_to, getattr(self, adds_to) + seconds)
            self.num_actions += is_in_turn
            if services.recorder is not None:
                self._record_action(demand, waited, seconds, outcome, value, slot)

    async def _hedged(
        self,
        hedged: HedgedActions,
        kind: str,
        call: Callable[[], Awaitable[T]],
        needs: Mapping[str, int] | None,
        inside: Slot | None,
    ) -> T:
        """Make the call; when it stalls, again beside itself with places of its own, or with those
        of the action that both are inside. The first never waits for those of the second.
        """

        async def again() -> T:
            async with await self._services.actions.acquire(self._demand(kind), needs, inside):
                return await call()

        return await hedged.run(self._demand(kind), self.attempt, call(), again)

    async def _acquire(
        self,
        demand: ActionDemand,
        watchdog: Watchdog,
        needs: Mapping[str, int] | None,
        inside: Slot | None,
    ) -> tuple[Slot, float]:
        """Wait for a slot; it, and the seconds waited. A wait that ends without one is written down
        as an action of no time.
        """
        services, bounds = self._services, self._bounds
        asked = services.time()
        self._begin(f"waiting for {demand.kind}", asked)
        waited, outcome = 0.0, ActionOutcome.CANCELLED
        bounds.begin_wait()
        try:
            with watchdog.limit("queue", services.limits.queue):
                slot = await services.actions.acquire(demand, needs, inside)
            outcome = ActionOutcome.OK
        except LimitExceeded:
            outcome = ActionOutcome.LIMIT
            raise
        finally:
            bounds.end_wait()
            waited = services.time() - asked
            self.slot_wait_seconds += waited
            if outcome is not ActionOutcome.OK:
                self._record_action(demand, waited, 0.0, outcome, None)
        return slot, waited

    def _record_action(
        self,
        demand: ActionDemand,
        wait: float,
        seconds: float,
        outcome: ActionOutcome,
        value: object,
        slot: Slot | None = None,
    ) -> None:
        responses: tuple[Message, ...] = ()
        if self._services.record_responses and isinstance(value, Observation):
            responses = value.messages
        self._services.record(
            Action(
                t=self._services.elapsed(),
                sample_id=str(self.sample_id),
                attempt=self.attempt,
                turn=self.num_turns,
                kind=demand.kind,
                wait_seconds=wait,
                key=self._services.foresight.action_key(demand) if wait > 0 else None,
                seconds=seconds,
                outcome=outcome,
                responses=responses,
                slots=0 if slot is None else slot.num_slots,
                needs={} if slot is None else slot.needs,
            )
        )

    def _demand(self, kind: str) -> ActionDemand:
        return ActionDemand(
            kind=kind,
            sample_id=self.sample_id,
            seq=self._services.actions.next_seq(),
            num_turns=self.num_turns,
            service_seconds=self.act_seconds,
            admission_seq=self._permit.seq,
        )

    def _kind(self, stage: Stage) -> str:
        return stage_kind(self.environment, stage)

    def _begin(self, activity: str, now: float) -> None:
        self.activity = activity
        self.activity_since = now

    def _require_going(self) -> None:
        if self._is_over:
            raise AttemptEnded(f"attempt {self.attempt} of {self.sample_id} is over")


# The slot of the action whose call runs here; what it starts is inside it.
_holding: ContextVar[Slot | None] = ContextVar("rolloutkit_slot", default=None)

_NOT_DONE = Completion(finish_reason=FinishReason.ABORT)  # stands in for one that did not come


class _Progress:
    """Moves a call's deadline when there is a new token; from the first one on, since before that
    the call may wait in the engine's own queue.
    """

    __slots__ = ("_num_tokens", "_seconds", "_watchdog")

    def __init__(self, watchdog: Watchdog, seconds: float) -> None:
        self._watchdog = watchdog
        self._seconds = seconds
        self._num_tokens = 0

    def __call__(self, num_tokens: int) -> None:
        if num_tokens > self._num_tokens:
            self._num_tokens = num_tokens
            self._watchdog.progress("model_progress", self._seconds)


async def _off_the_loop(call: Callable[[], Awaitable[T] | T]) -> T:
    value = await blocking(call)
    if inspect.isawaitable(value):
        return await value
    return value


async def _await(main: Awaitable[T]) -> T:
    return await main
