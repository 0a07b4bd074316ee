"""One radix tree over token ids: full KV on every path, recurrent states at the ends of nodes.

It owns which prefixes are cached, which of them are locked, and what goes first when room is
needed. Invariants: a node with a state has its whole path; the tokens and states of all nodes are
taken from the pools; `evictable_tokens` are those of unlocked nodes. The rules are those of SGLang
0.5.23 (`mem_cache/unified_cache`), of which it follows the order of evictions exactly.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rolloutkit.sim.sglang.node import TOKEN_BYTES, Node
from rolloutkit.sim.sglang.pools import Pool

_TICK = 1 << 20  # between two accesses; the nodes of one path are accessed at ticks in a row


class Match(NamedTuple):
    """The longest usable prefix. Beyond it there may be KV without a state (`num_full`)."""

    node: Node
    num_tokens: int
    num_full: int


class Inserted(NamedTuple):
    """Where an insert ended, and whether the state was taken."""

    node: Node
    took_state: bool


class RadixTree:
    """Costs O(length of the path) a call; evictions cost O(log n) each.

    With `states` a prefix is usable only where a node ends in a state. Token strings are ids as
    int32 bytes; lengths are in tokens, and only whole pages of `page_tokens` are kept. Leaves are
    evicted as a whole, or with `evicts_pages` from their end, as far as needed.
    """

    def __init__(
        self,
        kv: Pool,
        states: Pool | None = None,
        *,
        page_tokens: int = 1,
        max_states_per_path: int | None = None,
        evicts_pages: bool = False,
        shares_memory: bool = False,
    ) -> None:
        self._kv = kv
        self._states = states
        self._page_tokens = page_tokens
        self._page_bytes = page_tokens * TOKEN_BYTES
        self._max_states_per_path = max_states_per_path
        self._evicts_pages = evicts_pages
        self._shares_memory = shares_memory
        self.num_evicted_tokens = 0  # since the start
        self.num_evicted_states = 0
        self._clock = 0
        self._entries = itertools.count()
        self._forget_all()

    def _forget_all(self) -> None:
        self.root = Node(b"", None)
        self.num_nodes = 0
        self.num_tokens = 0  # of all nodes
        self.evictable_tokens = 0
        self.evictable_states = 0  # those that no request has started from
        self._lru: OrderedDict[Node, None] = OrderedDict()  # nodes with a state, oldest first
        # Unlocked leaves by access. An entry counts only while it is the node's last access.
        self._leaves: list[tuple[int, int, Node]] = []

    @property
    def num_states(self) -> int:
        """States of all nodes."""
        return len(self._lru)

    def match(self, tokens: bytes, limit: int) -> Match:
        """Find the longest usable prefix of the first `limit` tokens, and refresh its path.

        Splits a node that the prefix leaves midway.
        """
        end = limit // self._page_tokens * self._page_bytes
        node = best = self.root
        at = best_at = 0
        page, anywhere = self._page_bytes, self._states is None
        while child := node.children.get(tokens[at : at + page]):
            key = child.key
            if at + len(key) <= end and tokens.startswith(key, at):
                node = child
                at += len(key)
                if anywhere or node.has_state:
                    best, best_at = node, at
                continue
            if common := self._common(key, tokens, at, end):
                upper = self._split(child, common)
                at += common
                if anywhere:
                    best, best_at = upper, at
            break
        self._clock += _TICK
        if best.has_state:
            self._lru.move_to_end(best)
            best.state_used_at = self._clock
        self._touch(best)
        return Match(best, best_at // TOKEN_BYTES, at // TOKEN_BYTES)

    def lock(self, node: Node) -> None:
        """Keep the path of the node, and its state, until `unlock`."""
        for above in node.path():
            if above.num_locks == 0:
                self.evictable_tokens -= above.num_tokens
            above.num_locks += 1
        self._lock_state(node, +1)

    def unlock(self, node: Node) -> None:
        """Undo one `lock` of the node."""
        self._lock_state(node, -1)
        for above in node.path():
            above.num_locks -= 1
            if above.num_locks == 0:
                self.evictable_tokens += above.num_tokens
                self._offer(above)

    def relock(self, old: Node, new: Node) -> None:
        """Lock another node instead, whose path goes through the old one. O(distance)."""
        above = new
        while above is not old:
            if above.num_locks == 0:
                self.evictable_tokens -= above.num_tokens
            above.num_locks += 1
            assert above.parent is not None
            above = above.parent
        self._lock_state(old, -1)
        self._lock_state(new, +1)

    def insert(
        self, tokens: bytes, length: int, start: Node, num_known: int, *, state: bool = False
    ) -> Inserted:
        """Keep the first `length` tokens. The caller holds their KV from `num_known` on, where
        `start` ends.

        What is new passes to the tree; what others had cached meanwhile is given back to the pool.
        With `state` the caller also hands over the state at the end, unless there is one already.
        """
        end = length // self._page_tokens * self._page_bytes
        node, at = start, num_known * TOKEN_BYTES
        self._clock += _TICK
        self._touch(start)
        while at < end and (child := node.children.get(tokens[at : at + self._page_bytes])):
            self._clock += _TICK
            self._access(child, self._clock)
            common = self._common(child.key, tokens, at, end)
            node = child if common == len(child.key) else self._split(child, common)
            at += common
        self._kv.give_back(at // TOKEN_BYTES - num_known)
        if at < end:
            node = self._add(node, tokens[at:end])
        return Inserted(node, state and self._keep_state(node))

    def cut(self, node: Node, depth: int, at: int) -> None:
        """Have a node end at the token `at` of the path to `node`, which is `depth` tokens long,
        and use the path up to there.
        """
        while node.parent is not None and depth - node.num_tokens >= at:
            depth -= node.num_tokens
            node = node.parent
        self._clock += _TICK
        if depth == at or node.parent is None:
            self._touch(node)
            return
        self._touch(node.parent)
        self._split(node, (at - depth + node.num_tokens) * TOKEN_BYTES)

    def evict_tokens(self, num_free: int) -> None:
        """Evict leaves, the least recently used first, until so many tokens are free or none is
        left.

        Where states are made of tokens too, a state goes whose last use is longer ago.
        """
        while self._kv.num_free < num_free and (leaf := self._oldest_leaf()) is not None:
            if self._shares_memory:
                state = self._oldest_state()
                if state is not None and state.state_used_at <= leaf.accessed_at:
                    self._drop_state(state)
                    continue
            heapq.heappop(self._leaves)
            short = num_free - self._kv.num_free
            short = -(-short // self._page_tokens) * self._page_tokens
            if self._evicts_pages and not leaf.has_state and short < leaf.num_tokens:
                self._shorten(leaf, short)
            else:
                self._remove(leaf)

    def evict_states(self, num_free: int) -> None:
        """Evict states, the least recently used first, until so many slots are free or none is
        left.

        A leaf goes as a whole; above it only the state goes, and the KV is of use no more.
        """
        assert self._states is not None
        while self._states.num_free < num_free:
            node = self._oldest_state()
            if node is None:
                return
            if self._is_evictable(node):
                self._remove(node)
            else:
                self._drop_state(node)

    def clear(self) -> None:
        """Forget everything; nothing may be locked."""
        self._kv.give_back(self.num_tokens)
        if self._states is not None:
            self._states.give_back(self.num_states)
        self._forget_all()

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents first."""
        queue = list(self.root.children.values())
        while queue:
            node = queue.pop()
            queue.extend(node.children.values())
            yield node

    def states_by_age(self) -> list[Node]:
        """Nodes with a state, the next to be evicted first."""
        return list(self._lru)

    def _oldest_leaf(self) -> Node | None:
        """The leaf to be evicted next; it is on top of the heap."""
        while self._leaves:
            accessed_at, _, node = self._leaves[0]
            if accessed_at == node.accessed_at and self._is_evictable(node):
                return node
            heapq.heappop(self._leaves)
        return None

    def _oldest_state(self) -> Node | None:
        """The state to be evicted next."""
        return next((node for node in self._lru if not node.num_state_locks), None)

    def _common(self, key: bytes, tokens: bytes, at: int, end: int) -> int:
        """Bytes, in whole pages, that the key shares with the tokens from `at` on."""
        size = min(len(key), end - at)
        if size == len(key) and tokens.startswith(key, at):
            return size
        count = size // TOKEN_BYTES
        if count <= 0:
            return 0
        ours = np.frombuffer(key, np.int32, count)
        differs = ours != np.frombuffer(tokens, np.int32, count, at)
        shared = int(differs.argmax()) if differs.any() else count
        return shared // self._page_tokens * self._page_bytes

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two; the upper part, which has no state."""
        upper = Node(node.key[:at], node.parent)
        assert node.parent is not None
        node.parent.children[upper.key[: self._page_bytes]] = upper
        node.key = node.key[at:]
        node.parent = upper
        upper.children[node.key[: self._page_bytes]] = node
        upper.num_locks = node.num_locks
        self.num_nodes += 1
        if self._evicts_pages:
            upper.accessed_at = node.accessed_at
        else:  # as SGLang does, though the lower part was not used
            self._clock += 2 * _TICK
            upper.accessed_at = self._clock - _TICK
            self._access(node, self._clock)
        return upper

    def _add(self, parent: Node, key: bytes) -> Node:
        leaf = Node(key, parent)
        parent.children[key[: self._page_bytes]] = leaf
        self.num_nodes += 1
        self.num_tokens += leaf.num_tokens
        self.evictable_tokens += leaf.num_tokens
        self._clock += _TICK
        self._access(leaf, self._clock)
        return leaf

    def _keep_state(self, node: Node) -> bool:
        """Attach a state, unless the node has one; either way it is the most recently used."""
        is_new = not node.has_state
        self.evictable_states += is_new and not node.num_state_locks
        node.has_state = True
        self._lru[node] = None
        self._lru.move_to_end(node)
        self._clock += _TICK
        node.state_used_at = self._clock
        self._access(node, self._clock)
        if is_new and self._max_states_per_path is not None:
            self._thin_out(node, self._max_states_per_path)
        return is_new

    def _thin_out(self, tail: Node, most: int) -> None:
        """Drop the shallowest states of a path beyond `most`: not forks, nor what is in use."""
        holders = [node for node in tail.path() if node.has_state]
        excess = len(holders) - most
        for node in reversed(holders[1:]):
            if excess <= 0:
                return
            if node.num_state_locks or len(node.children) != 1:
                continue
            self._drop_state(node)
            excess -= 1

    def _lock_state(self, node: Node, change: int) -> None:
        was_free = not node.num_state_locks
        node.num_state_locks += change
        if node.has_state:
            self.evictable_states += (not node.num_state_locks) - was_free

    def _touch(self, node: Node) -> None:
        """Access a path, its end last."""
        at = self._clock
        self._access(node, at)
        while (above := node.parent) is not None:  # it has children: it is no leaf
            at -= 1
            above.accessed_at = at
            node = above

    def _access(self, node: Node, at: int) -> None:
        node.accessed_at = at
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Note an evictable leaf under its last access."""
        if not node.children and self._is_evictable(node):
            heapq.heappush(self._leaves, (node.accessed_at, next(self._entries), node))
            if len(self._leaves) > 4 * self.num_nodes + 64:
                self._leaves = [
                    entry
                    for entry in self._leaves
                    if entry[0] == entry[2].accessed_at and self._is_evictable(entry[2])
                ]
                heapq.heapify(self._leaves)

    @staticmethod
    def _is_evictable(node: Node) -> bool:
        return (
            node.num_locks == 0
            and not node.children
            and node.parent is not None
            and node.num_state_locks == 0
        )

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None
        if leaf.has_state:
            self._drop_state(leaf)
        del parent.children[leaf.key[: self._page_bytes]]
        leaf.parent = None
        self.num_nodes -= 1
        self.num_tokens -= leaf.num_tokens
        self.evictable_tokens -= leaf.num_tokens
        self.num_evicted_tokens += leaf.num_tokens
        self._kv.give_back(leaf.num_tokens)
        self._offer(parent)

    def _shorten(self, leaf: Node, num_tokens: int) -> None:
        leaf.key = leaf.key[: -num_tokens * TOKEN_BYTES]
        self.num_tokens -= num_tokens
        self.evictable_tokens -= num_tokens
        self.num_evicted_tokens += num_tokens
        self._kv.give_back(num_tokens)
        self._offer(leaf)

    def _drop_state(self, node: Node) -> None:
        assert self._states is not None
        node.has_state = False
        self.evictable_states -= not node.num_state_locks
        del self._lru[node]
        self.num_evicted_states += 1
        self._states.give_back(1)
