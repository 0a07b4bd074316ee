"""What integrations implement and what the core asks of its policies.

Everything here is a Protocol, as small as the caller needs; nothing here waits. Shells
(AdmissionQueue, ActionScheduler, Orchestrator) own futures and cancellation; policies are pure and
take `now`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Container, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import msgspec

from rolloutkit.types import (
    AssistantMessage,
    Chain,
    Completion,
    GenerateRequest,
    Message,
    Observation,
    Reply,
    SampleId,
    Score,
    Task,
    ToolSpec,
    Trajectory,
)

if TYPE_CHECKING:
    from rolloutkit.sample import SampleContext

TaskSource: TypeAlias = AsyncIterable[Task] | Iterable[Task]

OnProgress: TypeAlias = Callable[[int], None]
"""Called with the number of tokens so far whenever an engine hears that generation advanced."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine can do; the contract suite asserts each claim."""

    token_ids: bool = False  # takes token ids and returns those it sampled
    logprobs: bool = False  # returns the log-prob of each sampled token
    grammar: bool = False  # honours GenerateRequest.json_schema
    priority: bool = False  # honours GenerateRequest.priority
    progress: bool = False  # calls on_progress while it generates
    cached_tokens: bool = False  # reports prefix hits
    seeds: bool = True  # the same sampling.seed gives the same completion
    max_context: int | None = None  # prompt plus completion, in tokens
    parallelism: int | None = None  # requests generated at once; None = unknown


class Engine(Protocol):
    """Something that generates. Routers, recorders and simulators are engines too.

    Sample ids name prefix-cache entries: what runs on one engine at once must have different ones.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """Generate one completion.

        Cancelling aborts the request on the server. Raises EngineError (unreachable or broken,
        after the engine's own retries), RequestError (refused) or ContextFullError. Network retries
        live in here and nowhere else.
        """
        ...

    def finish(self, sample_id: SampleId) -> None:
        """The sample is over: release what is kept for it. Idempotent, never waits, never
        raises.
        """
        ...


@runtime_checkable
class CanContinue(Protocol):
    """An engine that goes on from what a call that is under way has said so far.

    It honours `GenerateRequest.continued`: so many tokens at the prompt's end belong to the turn.
    """

    def received(self, request: GenerateRequest) -> Completion | None:
        """What has been received of the call: ids and log-probs, or their number. None = nothing
        is known of it.
        """
        ...


@runtime_checkable
class HasModelFile(Protocol):
    """An engine that can name the file of its model, from which a renderer can be made."""

    @property
    def model_file(self) -> Path: ...


@runtime_checkable
class StartsServers(Protocol):
    """An engine that may start servers of its own when it is opened."""

    @property
    def start_seconds(self) -> float:
        """How long that may take at most, by its own limit; 0 where it starts none."""
        ...


class WorkerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says of itself. What it does not say is None, never 0."""

    num_running: int | None = None  # requests that it generates
    num_waiting: int | None = None  # requests in its own queue
    num_generated: int | None = None  # tokens since it started: a counter that shows that it works
    capacity_tokens: int | None = None  # of its cache
    policy_version: int | None = None


class Worker(Engine, Protocol):
    """An engine replica with a cache of its own. It retries nothing: its router does.

    `generate` raises WorkerLost where the worker is gone (connection refused or reset, 502, 503)
    and EngineError where it answered and failed. A worker may be an async context manager; entering
    it must not fail because the server does not answer yet.
    """

    @property
    def name(self) -> str:
        """Unique in a run, like the server's URL."""
        ...

    async def probe(self) -> WorkerLoad:
        """Health and load in one question; the caller bounds it. Raises EngineError when it is not
        well.
        """
        ...


@runtime_checkable
class HasWorkers(Protocol):
    """An engine that comes as several workers, to be put behind a router."""

    def make_workers(self) -> Sequence[Worker]: ...


class PauseMode(StrEnum):
    """What becomes of the calls that run when new weights come."""

    FINISH = "finish"  # they end by themselves first
    ABORT = "abort"  # they end now, and go on from their tokens under the new weights
    HOLD = "hold"  # they stand still in the server and go on where they were


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Weights to serve from now on. `path` is None where they reach the server another way."""

    version: int
    path: str | None = None


@runtime_checkable
class EngineControl(Protocol):
    """An engine whose weights can be changed between, or in the middle of, its calls."""

    async def pause(self, mode: PauseMode) -> None:
        """Generate nothing until `resume`. Under ABORT running calls return what they have, with
        `FinishReason.ABORT`; under HOLD they stand still. Raises EngineError.
        """
        ...

    async def resume(self) -> None:
        """Generate again. Idempotent. Raises EngineError."""
        ...

    async def update_weights(self, update: WeightUpdate) -> None:
        """Load other weights while paused; what was cached is worth nothing afterwards. Raises
        EngineError.
        """
        ...


class EnvironmentSession(Protocol):
    """One sample's open environment. Single use, driven by one coroutine at a time."""

    async def reset(self) -> Observation:
        """Prepare the environment (the set-up stage) and return the first observation."""
        ...

    async def step(self, reply: Reply) -> Observation:
        """Carry out what the reply asks for. Raising fails the sample; a tool's own error is an
        observation.
        """
        ...

    async def score(self) -> Score | float | None:
        """Value of what was done; None = this environment does not score. Called once, after the
        last step.
        """
        ...

    async def close(self) -> None:
        """Release everything. Always called once, also after a cancelled or failed `reset`."""
        ...


class Environment(Protocol):
    """A family of tasks."""

    @property
    def name(self) -> str: ...

    def open(self, task: Task, sample_id: SampleId, seed: int) -> EnvironmentSession:
        """Make a session object; cheap and without side effects, since set-up belongs to
        `reset`.
        """
        ...


class Renderer(Protocol):
    """Messages to token ids and back, append-only: what was sampled is never rendered again."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...

    def start(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Sequence[int]:
        """Token ids of a new conversation, up to where the model is to speak. `tools` are
        rendered.
        """
        ...

    def extend(
        self, chain: Chain, messages: Sequence[Message], tools: Sequence[ToolSpec]
    ) -> Sequence[int]:
        """Token ids to append to `chain`, which ends in a completion, so that the model speaks
        next.

        Closes the completion first if it was cut off. Costs O(new tokens).
        """
        ...

    def parse(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> AssistantMessage:
        """What a completion says. Never raises on what a model may write."""
        ...

    def call_schema(self, tools: Sequence[ToolSpec]) -> dict[str, object]:
        """JSON schema of a completion that `parse` reads: one call of one tool, or an answer."""
        ...


AgentProgram: TypeAlias = "Callable[[SampleContext], Awaitable[Score | float | None]]"
"""A custom agent: generates and acts through its context and may return a score."""


class Sink(Protocol):
    """Where trajectories go. `put` may wait: that is back-pressure, and stops admission."""

    async def put(self, trajectory: Trajectory) -> None: ...

    async def close(self) -> None:
        """Write out everything. Called once, after the last `put`, on every way a run can end."""
        ...


class Demand(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """A sample that asks to be admitted. `seq` is its place in the source; equal only to itself."""

    sample_id: SampleId
    task: Task
    environment: str
    seq: int
    arrived_at: float


class AdmissionOrder(Protocol):
    """Which sample lives next. Pure and incremental: O(log n) a call."""

    def push(self, demand: Demand, now: float) -> None: ...
    def discard(self, demand: Demand) -> None: ...
    def pop(self, environments: Container[str], now: float) -> Demand | None:
        """Remove and return the next demand whose environment is among those that have room."""
        ...

    def __len__(self) -> int: ...


class Placement(Protocol):
    """On which worker an admitted sample lives, and when it moves. Pure.

    The one place where that is decided: admission asks at the permit and before each turn, and
    whoever sends the turn goes by the answer.
    """

    def place(self, demand: Demand) -> str:
        """The home of a sample that begins to live."""
        ...

    def next_turn(self, demand: Demand, context_tokens: int) -> str:
        """Its home from its next turn on, whose prompt will be so long."""
        ...

    def park(self, demand: Demand, *, is_parked: bool) -> None:
        """The sample waits for memory, or does so no more."""
        ...

    def adopt(self, demand: Demand, worker: str) -> bool:
        """The worker has room for a sample that is parked elsewhere: whether it moves there."""
        ...

    def leave(self, demand: Demand) -> None:
        """The sample is over."""
        ...

    def home(self, demand: Demand) -> str | None:
        """Where a sample that lives belongs now; workers that end lose theirs."""
        ...

    def workers(self) -> Sequence[str]:
        """Those that are up."""
        ...

    def memory_share(self, worker: str) -> float:
        """Its memory as a share of what it had at the start."""
        ...

    def watch(self, on_change: Callable[[], None]) -> None:
        """Call back whenever workers came, went, or have other memory than before."""
        ...


@runtime_checkable
class HasPlacement(Protocol):
    """An engine of several workers that says where samples live."""

    @property
    def placement(self) -> Placement: ...


class Stage(StrEnum):
    """The stages of a session that need an action slot; each is a kind of its own."""

    SET_UP = "set_up"
    STEP = "step"
    SCORE = "score"
    CLOSE = "close"


class ActionDemand(msgspec.Struct, frozen=True, kw_only=True, eq=False, gc=False):
    """An action that asks for a slot of its kind. Equal only to itself."""

    kind: str
    sample_id: SampleId
    seq: int  # order of arrival, over all kinds
    num_turns: int  # finished turns of the sample
    service_seconds: float  # what its actions took so far
    admission_seq: int


Priority: TypeAlias = Callable[[ActionDemand], float]
"""How urgent a model call is, larger first: what an order's key is for actions that queue here."""


class ActionOrder(Protocol):
    """Which of the actions that ask for the same runs next. Pure; O(log n) a call."""

    def push(self, demand: ActionDemand, now: float) -> None: ...
    def discard(self, demand: ActionDemand) -> None: ...
    def pop(self, now: float) -> ActionDemand | None: ...
    def first(self, now: float) -> ActionDemand | None:
        """The one that `pop` would return; it stays."""
        ...

    def __len__(self) -> int: ...
