"""How a simulated server is set up: its pools and the rules of its scheduler.

The defaults are SGLang 0.5.23's on a large GPU (`server_args.py`, `environ.py`). `VLLM` is what
differs in vLLM 0.33, `StateRules` what a hybrid model adds.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Any

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(ge=0)]


class Retraction(StrEnum):
    """Whose KV goes first when decoding has no room left."""

    LENGTH = "length"  # the shortest output, then the longest prompt
    PRIORITY = "priority"  # the least urgent, then as above
    YOUNGEST = "youngest"  # the last that started; it goes on first (vLLM)


class StateRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Recurrent states of a hybrid model: how many there are, and where they are kept."""

    slots: Annotated[int, msgspec.Meta(ge=0)] = 0  # of a pool of their own
    unit_tokens: int = 0  # or one memory for both, in which a slot is so many KV tokens
    chunk_tokens: Count = 64  # of the model's kernels; states exist at their ends only
    track_tokens: Count | None = 256  # while decoding, a state is kept every so many tokens
    stops_at_branches: bool = False  # a state where paths part is kept beside the prompt's own
    leaves_last: bool = False  # no state at the last token of a prompt, which is computed anyway
    num_tracking: Annotated[int, msgspec.Meta(ge=0)] = 2  # slots beside the active one (ping-pong)
    max_per_path: Annotated[int, msgspec.Meta(ge=1)] | None = None


class WorkerRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker. Lengths are in tokens; `kv_tokens` is what the KV pool holds."""

    kv_tokens: Count
    page_tokens: Count = 1
    states: StateRules | None = None
    max_running: Count = 256
    max_context: Count = 131_072  # prompt and output of one request
    chunked_prefill_tokens: Count = 8_192  # of one batch
    max_prefill_tokens: Count = 16_384  # of one batch
    is_mixed: bool = False  # running requests decode along with a prefill
    overlap: bool = True  # the next batch is scheduled before the last one's result is known
    clip_new_tokens: Annotated[int, msgspec.Meta(ge=0)] = 4_096  # at most so much is reserved
    first_new_token_ratio: Amount = 0.7  # of what a running request may still say, reserved
    least_new_token_ratio: Amount = 0.7 * 0.14
    ratio_decay_steps: Count = 600
    retract_steps: Count = 20  # decode steps that a retraction makes room for
    retraction: Retraction = Retraction.LENGTH
    by_priority: bool = True
    preemption_threshold: float | None = None  # of priorities; None: nothing is preempted
    split_at_prompt: bool = True  # outputs are leaves of their own, evicted before their prompts
    evicts_pages: bool = False  # from the end of a leaf, instead of whole leaves
    shares_retracted: bool = False  # what retracted requests computed stays until evicted

    @property
    def grid_tokens(self) -> int:
        """A state's depth below the start of its prefill is a multiple of it."""
        assert self.states is not None
        chunk = max(self.states.chunk_tokens, self.page_tokens)
        return math.lcm(chunk, self.page_tokens)

    @property
    def track_tokens(self) -> int | None:
        """A state that decoding keeps is at a multiple of it; None: it keeps none."""
        if self.states is None or not self.states.track_tokens or not self.states.num_tracking:
            return None
        return math.lcm(self.grid_tokens, self.states.track_tokens)

    @property
    def max_request_tokens(self) -> int:
        """Prompt and output of the longest request that an empty worker takes in."""
        return min(self.max_context, self.kv_tokens - self.page_tokens) - 1


VLLM: dict[str, Any] = {
    "is_mixed": True,
    "overlap": False,
    "clip_new_tokens": 0,
    "retraction": Retraction.YOUNGEST,
    "retract_steps": 0,
    "split_at_prompt": False,
    "evicts_pages": True,
    "shares_retracted": True,
}
"""Rules of vLLM 0.33 (`v1/core/sched/scheduler.py`, `v1/core/block_pool.py`) beside pages and
states: decoding goes along with prefills, nothing is reserved for what may still be said, and
blocks are evicted one by one.
"""
