"""A node of the radix tree: a run of tokens, and what the cache keeps at its end."""

from __future__ import annotations

from collections.abc import Iterator

TOKEN_BYTES = 4  # of an id, int32


class Node:
    """A run of tokens below its parent; only the tree changes it."""

    __slots__ = (
        "accessed_at",
        "children",
        "has_state",
        "key",
        "num_locks",
        "num_state_locks",
        "parent",
        "state_used_at",
    )

    def __init__(self, key: bytes, parent: Node | None) -> None:
        self.key = key  # ids, TOKEN_BYTES each
        self.parent = parent  # None: the root, or evicted
        self.children: dict[bytes, Node] = {}  # by their first page
        self.has_state = False
        self.num_locks = 0  # of requests that use the path down to here or further
        self.num_state_locks = 0  # of requests that started from this very node
        self.accessed_at = 0
        self.state_used_at = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of this node alone."""
        return len(self.key) // TOKEN_BYTES

    @property
    def depth(self) -> int:
        """Tokens from the root to the end of this node."""
        return sum(node.num_tokens for node in self.path())

    def path(self) -> Iterator[Node]:
        """This node and those above, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent
