"""How much one prefill batch may take in: compute of the batch, and memory that running requests
will still need. The arithmetic of SGLang 0.5.23 (`schedule_policy.py`, `prefill_budget.py`).
"""

from __future__ import annotations

from enum import Enum

from rolloutkit.sim.sglang.rules import WorkerRules


class Verdict(Enum):
    """How a request fared, or what is left for the next one."""

    CONTINUE = "continue"
    NO_TOKENS = "no_tokens"  # memory
    SPENT = "spent"  # the batch is as large as it may be


class PrefillBudget:
    """Counts down while a batch is put together.

    `promised` tokens are set aside for what running requests may still say. Free and evictable
    tokens are asked of the caller at each step, since locking a prefix changes them.
    """

    __slots__ = ("_now", "_page_tokens", "_rules", "_total", "chunk_tokens", "prefill_tokens")

    def __init__(self, rules: WorkerRules, promised: float, num_decoding: int) -> None:
        self._rules = rules
        self._page_tokens = rules.page_tokens
        self._total = promised + num_decoding  # of memory, with what requests will say
        self._now = num_decoding  # of memory, at once
        self.chunk_tokens = rules.chunked_prefill_tokens - num_decoding
        self.prefill_tokens = rules.max_prefill_tokens - num_decoding

    def verdict(self, available: int) -> Verdict:
        """What is left, when so many tokens are free or evictable."""
        if available <= self._total or available <= self._now:
            return Verdict.NO_TOKENS
        if self.prefill_tokens <= 0 or self.chunk_tokens <= 0:
            return Verdict.SPENT
        return Verdict.CONTINUE

    def fits(self, extend: int, max_new: int, available: int) -> bool:
        """Whether there is memory for a whole prefill of `extend` tokens and what may follow."""
        new = min(max_new, self._rules.clip_new_tokens)
        return extend + new + self._page_tokens < available - self._total

    def cut(self, extend: int) -> int:
        """As much of a prefill as the batch has room for; whole pages if it is cut."""
        if self._paged(extend) <= self.chunk_tokens:
            return extend
        return max(0, self.chunk_tokens) // self._page_tokens * self._page_tokens

    def go_on(self, extend: int, available: int) -> int:
        """Tokens to compute of the prefill that was cut; it must go on, even without memory."""
        room = min(self.chunk_tokens, int(available - self._total))
        return min(extend, room if room > 0 else self.chunk_tokens)

    def charge(self, extend: int, max_new: int) -> None:
        """Take a request in; `max_new` is 0 for one that is cut."""
        paged = self._paged(extend)
        self._total += paged + self._page_tokens + min(max_new, self._rules.clip_new_tokens)
        self._now += paged + self._page_tokens
        self.prefill_tokens -= paged
        self.chunk_tokens -= paged

    def missing(self, extend: int, max_new: int, available: int) -> float:
        """Tokens that a request lacks; for preemption."""
        return extend + min(max_new, self._rules.clip_new_tokens) - (available - self._total)

    def promise_less(self, tokens: float) -> None:
        """A running request went: what was set aside for it is free."""
        self._total -= tokens

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens) * self._page_tokens
