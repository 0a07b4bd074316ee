"""What requests hold of a worker's memory, and how it passes between them and the tree.

Owns the pools, the tree and every rule of who keeps what: prefixes are locked while a request uses
them, states are copied on a hit and handed over at checkpoints. Invariants: free units, those of
the tree and those of requests make up each pool; nothing is freed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from rolloutkit.sim.sglang.pools import Pool
from rolloutkit.sim.sglang.request import Request
from rolloutkit.sim.sglang.rules import StateRules, WorkerRules
from rolloutkit.sim.sglang.tree import RadixTree


class Memory:
    """The memory of one worker. Costs O(length of a path) a call, plus evictions."""

    def __init__(self, rules: WorkerRules) -> None:
        self._rules = rules
        self._page_tokens = rules.page_tokens
        self.kv = Pool("KV tokens", rules.kv_tokens // rules.page_tokens * rules.page_tokens)
        self._state_rules = rules.states
        self.states = _state_pool(rules.states, self.kv)
        self.tree = RadixTree(
            self.kv,
            self.states,
            page_tokens=rules.page_tokens,
            max_states_per_path=None if rules.states is None else rules.states.max_per_path,
            evicts_pages=rules.evicts_pages,
            shares_memory=rules.states is not None and rules.states.unit_tokens > 0,
        )
        self._track_tokens = rules.track_tokens
        # Of one memory for both: what a state is worth in KV tokens.
        self._state_tokens = 0 if rules.states is None else rules.states.unit_tokens

    @property
    def available_tokens(self) -> int:
        """KV tokens that are free or would be after evictions."""
        evictable = self.tree.evictable_tokens + self._state_tokens * self.tree.evictable_states
        return self.kv.num_free + evictable

    def match(self, request: Request) -> None:
        """Find the request's prefix. A state that it starts from is copied into a slot of its own.

        One token is always left to compute, so that there is something to sample from.
        """
        found = self.tree.match(request.tokens, request.num_fill - 1)
        request.node = found.node
        request.num_prefix = request.num_protected = request.num_kv = found.num_tokens
        request.branch_at = None
        if self._state_rules is None or self.states is None:
            return
        branch = found.num_full // self._rules.grid_tokens * self._rules.grid_tokens
        if branch > found.num_tokens:
            request.branch_at = branch
        if found.node.has_state and not request.num_slots:
            self.tree.lock(found.node)
            self._evict_states(1)
            self.tree.unlock(found.node)
            self.states.take(1)
            request.num_slots = 1

    def touch(self, request: Request) -> None:
        """Refresh the prefix of a request that waits."""
        self.tree.match(request.tokens, request.num_fill)

    def reject(self, request: Request) -> None:
        """Undo `match`: the request is not taken in."""
        if self.states is not None:
            self.states.give_back(request.num_slots)
        request.num_slots = 0
        request.node = None

    def lock(self, request: Request) -> None:
        """Keep what the request found, until it lets go."""
        assert request.node is not None
        self.tree.lock(request.node)

    def unlock(self, request: Request) -> None:
        """Undo `lock`."""
        assert request.node is not None
        self.tree.unlock(request.node)

    def extend(self, batch: Sequence[tuple[Request, int]]) -> None:
        """Take KV and slots for a prefill batch: requests, and how far each is computed."""
        if self.states is not None:
            slots = [(request, self._slots_of_running - request.num_slots) for request, _ in batch]
            needed = sum(count for _, count in slots)
            self._evict_states(needed)
            for request, count in slots:
                self.states.take(count)
                request.num_slots += count
        tokens = sum(end - request.num_kv for request, end in batch)
        slack = len(batch) * self._page_tokens if self._page_tokens > 1 else 0
        self._evict(tokens + slack)
        for request, end in batch:
            self.kv.take(self._paged(end) - self._paged(request.num_kv))
            request.num_kv = end
            self._track_prefill(request, end)

    def grow(self, num_pages: int) -> None:
        """Take pages for decoding, evicting as needed. They are accounted for by `num_kv`."""
        tokens = num_pages * self._page_tokens
        self._evict(tokens)
        self.kv.take(tokens)

    def has_room(self, num_pages: int) -> bool:
        """Whether so many pages are free once enough is evicted, which is done."""
        tokens = num_pages * self._page_tokens
        self._evict(tokens)
        return self.kv.num_free >= tokens

    def checkpoint(self, request: Request) -> None:
        """Share what a running request has computed, and go on from there."""
        rules = self._state_rules
        if rules is not None and self.states is not None:
            if not rules.num_tracking:
                request.state_at = request.num_kv
            if not request.state_at:
                return
            self._evict_states(1)
            self.states.take(1)
        if not self._insert(request) and self.states is not None:
            self.states.give_back(1)

    def finish(self, request: Request) -> None:
        """Share what an ended request has computed, as far as it can be used, and free the rest."""
        rules = self._state_rules
        took_state = False
        if rules is None:
            self._insert(request)
        else:
            if not rules.num_tracking:
                request.state_at = request.num_kv
            if request.state_at:
                took_state = self._insert(request)
        if took_state:
            request.num_slots -= 1
        self.release(request)

    def release(self, request: Request) -> None:
        """Free what the request holds, and let go of its prefix."""
        self.kv.give_back(self._paged(request.num_kv) - request.num_protected)
        self.unlock(request)
        if self.states is not None:
            self.states.give_back(request.num_slots)
        request.let_go()

    def track_decode(self, request: Request) -> None:
        """Note the last state that was kept while it decoded, after its prefix."""
        track = self._track_tokens
        if track is None:
            return
        boundary = request.num_kv // track * track
        if boundary > request.num_prefix:
            request.state_at = boundary

    def clear(self) -> None:
        """Forget the cache; nothing may be running."""
        self.tree.clear()

    def make_room(self, num_tokens: int) -> None:
        """Evict until so many tokens are free, as far as possible."""
        self._evict(num_tokens)

    def _evict(self, num_tokens: int) -> None:
        self.tree.evict_tokens(num_tokens)
        if self._state_tokens and self.states is not None:
            short = num_tokens - self.kv.num_free
            if short > 0:  # states of paths in use are left
                self.tree.evict_states(self.states.num_free - (-short // self._state_tokens))

    def _evict_states(self, count: int) -> None:
        assert self.states is not None
        if self.states.num_free >= count:
            return
        if self._state_tokens:
            self._evict(count * self._state_tokens)
        else:
            self.tree.evict_states(count)

    @property
    def _slots_of_running(self) -> int:
        assert self._state_rules is not None
        return 1 + self._state_rules.num_tracking

    def _track_prefill(self, request: Request, end: int) -> None:
        """Note where this prefill leaves a state that can be handed over."""
        rules = self._state_rules
        if rules is None or not rules.num_tracking:
            return
        grid, start = self._rules.grid_tokens, request.num_prefix
        if rules.leaves_last:
            end = min(end, request.num_fill - 1)
        extend = end - start
        if extend < grid:
            return
        request.state_at = start + extend // grid * grid
        # The kernels keep states at their own chunks; a coarser grid is read one token further.
        own = start + extend // rules.chunk_tokens * rules.chunk_tokens
        limit = end if own == request.state_at else request.state_at + 1
        branch = request.branch_at
        chunk = max(rules.chunk_tokens, self._page_tokens)
        if branch is not None and start < branch < limit and (branch - start) % chunk == 0:
            request.state_at = branch

    def _insert(self, request: Request) -> bool:
        """Hand computed KV, and the state if there are any, to the tree; whether it took that."""
        length = request.num_kv
        has_states = self.states is not None
        if has_states:
            assert request.state_at is not None
            length = min(length, request.state_at)
        length = length // self._page_tokens * self._page_tokens
        assert request.node is not None
        inserted = self.tree.insert(
            request.tokens, length, request.node, request.num_protected, state=has_states
        )
        self.tree.relock(request.node, inserted.node)
        request.node = inserted.node
        prompt = request.num_prompt // self._page_tokens * self._page_tokens
        if self._rules.split_at_prompt and not has_states and 0 < prompt < length:
            self.tree.cut(inserted.node, length, prompt)
        request.num_protected = length
        request.state_at = None
        return inserted.took_state

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self._page_tokens) * self._page_tokens


def _state_pool(rules: StateRules | None, kv: Pool) -> Pool | None:
    if rules is None:
        return None
    if not rules.unit_tokens:
        return Pool("state slots", rules.slots)
    unit = rules.unit_tokens
    return Pool("state slots", kv.capacity // unit, made_of=kv, size=unit)
