"""Counts the tokens of a run: processed, found in the cache, computed again, generated.

A total in which one completion did not report its part is unknown, and None.
"""

from __future__ import annotations

from rolloutkit.record.events import ModelCall


class TokenCounts:
    """Folds model calls; one without a completion counts nothing, since nobody knows its part."""

    def __init__(self) -> None:
        self.prompt: int | None = 0
        self.cached: int | None = 0
        self.recomputed: int | None = 0
        self.output: int | None = 0
        self._seen: dict[str, dict[tuple[int, int], int]] = {}  # by sample, attempt and chain

    def add(self, call: ModelCall) -> int | None:
        """Count a call; returns how many tokens it computed again, None where nobody knows."""
        if call.finish_reason is None:
            return 0
        prompt = call.context_tokens or None  # no prompt is empty: 0 stands for unknown
        recomputed = self._recomputed(call)
        self.prompt = _add(self.prompt, prompt)
        self.cached = _add(self.cached, call.cached_tokens)
        self.recomputed = _add(self.recomputed, recomputed)
        self.output = _add(self.output, call.output_tokens)
        return recomputed

    def end_sample(self, sample_id: str) -> None:
        self._seen.pop(sample_id, None)

    def _recomputed(self, call: ModelCall) -> int | None:
        """Tokens that were computed for the chain before and that the cache has lost."""
        chains = self._seen.setdefault(call.sample_id, {})
        key = (call.attempt, call.chain)
        seen = chains.get(key, 0)
        chains[key] = call.context_tokens + (call.output_tokens or 0)
        if call.cached_tokens is None or not call.context_tokens:
            return None
        computed = min(seen, call.context_tokens) - 1  # the last sampled token was never fed back
        return max(0, computed - call.cached_tokens)


def _add(total: int | None, part: int | None) -> int | None:
    return None if total is None or part is None else total + part
