"""Plain data that every part of rolloutkit speaks: tasks, chains, completions, trajectories.

This module owns the shapes and their invariants and nothing that waits. Records are frozen Structs;
`Chain` is the one mutable type, and only the coroutine that owns its sample may touch it. Records
that are made each turn cannot be part of a reference cycle and say `gc=False`: with 50,000 samples
alive the garbage collector costs more than the scheduler (tests/benchmarks/bench_virtual_turns.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, NotRequired, TypedDict

import msgspec


class SampleId(NamedTuple):
    """One attempt at a task; printed as `task_id#sample_index`."""

    task_id: str
    sample_index: int

    def __str__(self) -> str:
        return f"{self.task_id}#{self.sample_index}"


class Status(StrEnum):
    """The terminal state of a sample: exactly one, emitted once."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StopReason(StrEnum):
    """Why a sample stopped; the first five belong to completed samples."""

    DONE = "done"  # the environment or the program ended it
    MAX_TURNS = "max_turns"
    CONTEXT_FULL = "context_full"  # the next prompt would not fit the engine
    TOKEN_BUDGET = "token_budget"  # limits.output_tokens is used up
    STEP_LIMIT = "step_limit"  # the environment's own rule ended it
    FAILED = "failed"  # see Trajectory.failure
    CANCELLED = "cancelled"  # see Trajectory.cancel_reason


class FailureKind(StrEnum):
    """The boundary at which a sample failed; retry rules and reports go by it."""

    SET_UP = "set_up"  # the session could not be prepared
    ENVIRONMENT = "environment"  # a step raised
    ENGINE = "engine"  # the engine is unreachable or broke, after its own retries
    REQUEST = "request"  # the engine refused the request: the same one will fail again
    RENDER = "render"  # messages could not become tokens
    SCORE = "score"
    PROGRAM = "program"  # the agent program raised
    LIMIT = "limit"  # a named limit ran out


class CancelReason(StrEnum):
    """Why a sample was cancelled from outside."""

    INTERRUPTED = "interrupted"  # Ctrl-C, or the caller cancelled the run
    NOT_STARTED = "not_started"  # the run ended before it was admitted
    CIRCUIT_OPEN = "circuit_open"  # everything failed, so the run gave up
    DEADLINE = "deadline"  # limits.run ran out
    RUN_BROKE = "run_broke"  # an error that is not this sample's ended the run
    GROUP_FULL = "group_full"  # over-sampled: enough samples of its group were faster


class FinishReason(StrEnum):
    """Why one completion ended."""

    STOP = "stop"
    LENGTH = "length"
    CAPPED = "capped"  # tail.output_cap cut it off, below sampling.max_tokens
    ABORT = "abort"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong with a sample, as data."""

    kind: FailureKind
    message: str
    limit: str | None = None  # the limit's name when kind is `limit`
    attempt: int = 0
    detail: str | None = None  # the innermost frames of the traceback, for people


class ToolFunction(TypedDict):
    """The function part of an OpenAI-style tool call; `arguments` is JSON text."""

    name: str
    arguments: str


class MessageToolCall(TypedDict):
    """An OpenAI-style tool call inside a message."""

    id: str
    type: str
    function: ToolFunction


class Message(TypedDict):
    """One OpenAI-style chat message."""

    role: str
    content: str
    tool_calls: NotRequired[list[MessageToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class ToolSpec(TypedDict):
    """One tool on offer; `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """One call that a model asked for, with decoded arguments."""

    name: str
    arguments: dict[str, Any]
    call_id: str = ""


class AssistantMessage(msgspec.Struct, frozen=True, gc=False):
    """What a completion says once parsed: free text, calls, and call attempts that did not
    parse.
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    malformed_calls: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One problem; `num_samples` attempts at it form a group. `payload` is the environment's
    own.
    """

    task_id: str
    environment: str = ""  # name of the environment; "" when the run has only one
    payload: Mapping[str, Any] = {}
    num_samples: int = 1


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the environment shows next.

    `messages` are appended to the chain; an environment that already has tokens gives `token_ids`
    instead. `tools`, where given, replace the tools on offer from here on; `tools_in_messages` says
    that the messages describe them already, so that the renderer must not.
    """

    messages: tuple[Message, ...] = ()
    token_ids: Sequence[int] = ()
    done: bool = False
    stop_reason: StopReason = StopReason.DONE  # read when `done`
    reward: float = 0.0
    tools: tuple[ToolSpec, ...] | None = None
    tools_in_messages: bool = False


class Score(msgspec.Struct, frozen=True):
    """The value of a finished sample and what it was made of."""

    value: float
    details: Mapping[str, Any] = {}


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False
):
    """How to sample. The defaults are neutral: log-probs are those of the model's own
    distribution.
    """

    max_tokens: int = 1024
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 = off
    min_p: float = 0.0
    seed: int | None = None  # per request; the sample derives one when the run has a seed
    logprobs: bool = True


class TokenPrompt(msgspec.Struct, frozen=True, gc=False):
    """A chain as token ids. The array is the chain's own: engines read it and never keep it."""

    token_ids: array[int]
    stop_token_ids: tuple[int, ...] = ()


class ChatPrompt(msgspec.Struct, frozen=True):
    """A conversation as messages, for engines that do not take token ids."""

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One turn's generation. `(sample_id, attempt, chain_index)` names the prefix-cache entry."""

    sample_id: SampleId
    attempt: int
    chain_index: int
    turn: int
    prompt: TokenPrompt | ChatPrompt
    sampling: SamplingParams
    worker: str | None = None  # the placement that the sample's permit names
    reissue: int = 0  # above 0: issued again, beside the first, whose cache entry is in use
    continued: int = 0  # tokens at the prompt's end that this turn has sampled already
    priority: float = 0.0  # larger runs first, where the engine can
    avoid_worker: str | None = None  # where an earlier issue of this call is stuck: a router's hint
    json_schema: dict[str, Any] | None = None  # constrain the completion; needs `grammar`

    @property
    def request_id(self) -> str:
        """Unique within a run, stable between runs."""
        name = f"{self.sample_id}/{self.attempt}/{self.chain_index}/{self.turn}"
        return f"{name}/{self.reissue}" if self.reissue else name


class VersionSpan(NamedTuple):
    """Tokens `start` (inclusive) to `end` (exclusive) of a completion were sampled by `version`."""

    version: int
    start: int
    end: int


class Completion(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an engine generated; after an abort, what it had generated so far.

    `token_ids` and `logprobs` have one entry per sampled token, in order, stop token included where
    the engine returns it. Numbers that the engine does not report are None, never 0.
    """

    finish_reason: FinishReason
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] | None = None
    message: AssistantMessage | None = (
        None  # set by text engines; token engines leave it to the renderer
    )
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None  # len(token_ids) when there are ids
    versions: tuple[VersionSpan, ...] = ()  # () = version 0 throughout
    constrained: bool = (
        False  # sampled under a grammar: its log-probs are not those it was drawn from
    )
    worker: str | None = None
    queue_seconds: float | None = None  # waiting inside the engine
    prefill_seconds: float | None = None  # of service_seconds, what the prompt took
    service_seconds: float | None = None  # prefill and decode, without the engine's queue
    num_retries: int = 0

    @property
    def num_tokens(self) -> int | None:
        """Tokens sampled; None when the engine gave neither ids nor a count."""
        return len(self.token_ids) or self.output_tokens


class Reply(msgspec.Struct, frozen=True, gc=False):
    """A completion together with what it says; environments step on it."""

    completion: Completion
    message: AssistantMessage


class Chain:
    """One append-only token sequence: one prefix-cache entry, one training row.

    Four parallel arrays of length T, 13 bytes a token: `token_ids` int32, `logprobs` float32 (0
    where `sampled_mask` is 0), `sampled_mask` int8 (1 = the model sampled it), `policy_versions`
    int32 (-1 for context). Only its sample's coroutine appends; nothing is ever changed or removed.
    """

    __slots__ = (
        "has_logprobs",
        "index",
        "is_trainable",
        "logprobs",
        "parent",
        "policy_versions",
        "sampled_mask",
        "token_ids",
    )

    def __init__(self, index: int = 0, parent: int | None = None) -> None:
        self.index = index
        self.parent = parent
        self.token_ids: array[int] = array("i")
        self.logprobs: array[float] = array("f")
        self.sampled_mask: array[int] = array("b")
        self.policy_versions: array[int] = array("i")
        self.is_trainable = (
            True  # False once a completion was constrained or came without log-probs
        )
        self.has_logprobs = True

    def __len__(self) -> int:
        return len(self.token_ids)

    def append_context(self, token_ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample. Ids that are no int32 leave it unchanged."""
        ids = _ids(token_ids)
        count = len(ids)
        self.token_ids.extend(ids)
        self.logprobs.frombytes(bytes(4 * count))
        self.sampled_mask.frombytes(bytes(count))
        self.policy_versions.frombytes(b"\xff" * (4 * count))  # int32 -1 in two's complement

    def append_completion(self, completion: Completion) -> None:
        """Append sampled tokens with their log-probs and policy versions.

        Raises ValueError or TypeError, and appends nothing, when the parts do not fit together.
        """
        ids = _ids(completion.token_ids)
        count = len(ids)
        logprobs = array(
            "f", bytes(4 * count) if completion.logprobs is None else completion.logprobs
        )
        if len(logprobs) != count:
            raise ValueError(f"{count} token ids came with {len(logprobs)} log-probs")
        versions = array("i", bytes(4 * count))  # version 0 throughout
        if completion.versions:
            versions = array("i")
            for span in completion.versions:
                versions.extend([span.version] * (span.end - span.start))
            if len(versions) != count:
                raise ValueError(f"version spans {completion.versions} do not cover {count} tokens")
        self.token_ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.sampled_mask.frombytes(b"\x01" * count)
        self.policy_versions.extend(versions)
        if completion.logprobs is None and count:
            self.has_logprobs = False
        if completion.constrained or not self.has_logprobs:
            self.is_trainable = False

    def fork(self, index: int) -> Chain:
        """A new chain that starts with this one's tokens, as context."""
        child = Chain(index, parent=self.index)
        child.append_context(self.token_ids)
        return child

    def nbytes(self) -> int:
        """Bytes the four arrays hold, spare capacity not counted."""
        return 13 * len(self.token_ids)


def _ids(token_ids: Sequence[int]) -> array[int]:
    if isinstance(token_ids, array) and token_ids.typecode == "i":
        return token_ids
    return array("i", token_ids)


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a sample's time went, in seconds of the loop's clock; waits are apart from service."""

    arrived_at: float = 0.0
    admitted_at: float | None = None
    finished_at: float = 0.0
    admission_wait_seconds: float = 0.0
    parked_seconds: float = 0.0
    generate_seconds: float = 0.0
    act_seconds: float = 0.0
    slot_wait_seconds: float = 0.0
    set_up_seconds: float = 0.0
    score_seconds: float = 0.0


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """A finished sample. Its chains are frozen by convention: nobody appends any more."""

    sample_id: SampleId
    environment: str
    status: Status
    stop_reason: StopReason
    failure: Failure | None = None
    cancel_reason: CancelReason | None = None
    score: float | None = None
    score_details: Mapping[str, Any] = {}
    reward: float = 0.0  # sum of the observations' rewards
    num_turns: int = 0
    num_actions: int = 0
    attempt: int = 0  # index of the attempt that produced it
    prompt_tokens: int | None = None  # sums over the turns of the last attempt
    cached_tokens: int | None = None
    output_tokens: int = 0
    num_capped_turns: int = 0  # cut off by tail.output_cap: not what the model would have said
    chains: tuple[Chain, ...] = ()
    messages: tuple[Message, ...] = ()
    token_exact: bool = False  # False = text only; trainers refuse it
    worker: str | None = None
    timings: Timings = Timings()
