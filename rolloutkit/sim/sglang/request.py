"""One request on its way through a simulated server."""

from __future__ import annotations

from enum import StrEnum

from rolloutkit.sim.sglang.node import TOKEN_BYTES, Node


class Ending(StrEnum):
    """Why a request is over."""

    DONE = "done"  # it said all that it had to say
    ABORTED = "aborted"
    OUT_OF_MEMORY = "out_of_memory"  # alone on the worker, and still it did not fit


class Request:
    """What it asks for, what it holds, and how far it is. Only the worker changes it.

    `tokens` are the ids of prompt and output, int32 bytes: what a request will say is known before.
    It holds the KV of `num_protected` to `num_kv` tokens, and the tree that of what comes before.
    """

    __slots__ = (
        "branch_at",
        "decoded_since",
        "ending",
        "ends_by_length",
        "is_aborted",
        "join_order",
        "max_new",
        "node",
        "num_cached",
        "num_generated",
        "num_kv",
        "num_output",
        "num_prefix",
        "num_prompt",
        "num_protected",
        "num_retractions",
        "num_slots",
        "priority",
        "queue_order",
        "started_at",
        "state_at",
        "tokens",
        "version_marks",
    )

    def __init__(
        self,
        tokens: bytes,
        num_prompt: int,
        *,
        max_new: int = 0,
        priority: float = 0.0,
        ends_by_length: bool = False,
    ) -> None:
        self.tokens = tokens
        self.num_prompt = num_prompt
        self.num_output = len(tokens) // TOKEN_BYTES - num_prompt
        self.max_new = max(max_new, self.num_output)  # tokens that the server must expect
        self.priority = priority
        self.ends_by_length = ends_by_length  # which the server sees coming
        self.ending: Ending | None = None
        self.is_aborted = False  # it ends with its next token
        self.num_cached: int | None = None  # of the prompt, when it first started
        self.num_generated = 0
        self.num_retractions = 0
        self.started_at: float | None = None  # None: it has not run yet
        self.version_marks: list[tuple[int, int]] = []  # (version, first token that it sampled)
        self.queue_order = 0
        self.let_go()

    def let_go(self) -> None:
        """Forget what it held: it is over, or starts anew."""
        self.node: Node | None = None  # where its path in the tree ends
        self.num_slots = 0  # of states: the active one, and those to track it
        self.num_prefix = 0  # tokens whose KV is there before its next prefill
        self.num_protected = 0  # of those, held by the tree
        self.num_kv = 0  # tokens whose KV is there
        self.branch_at: int | None = None  # a state is wanted there
        self.state_at: int | None = None  # depth of the state that it can hand over
        self.join_order = 0  # among those that decode
        self.decoded_since = 0  # the decode step after which it joined them

    @property
    def num_fill(self) -> int:
        """Tokens to prefill: the prompt, and after a retraction what was said."""
        return self.num_prompt + self.num_generated
