"""What the layers of a model keep per token and per sequence, on one GPU of a replica.

Two kinds keep anything: attention (keys and values of every token) and recurrences (one state of
fixed size). Five recurrences are one formula with different fields; shapes are those of SGLang
0.5.23, `srt/configs/mamba_utils.py`. Sizes are in elements; `model_spec` knows their bytes.
"""

from __future__ import annotations

import msgspec

from rolloutkit.errors import ConfigError


class Attention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layer that keeps keys and values."""

    num_query_heads: int
    num_kv_heads: int | None  # None: one latent vector a token, the same on every GPU (MLA)
    cached_per_head: int  # elements of a token: key and value of one head, or the latent vector
    qk_head_dim: int  # of the scores
    v_head_dim: int
    window: int | None = None  # tokens; None: all of them
    num_parameters: int = 0

    def cached(self, tp: int) -> int:
        """Elements a token on each GPU; a head is the smallest share, copied beyond that."""
        if self.num_kv_heads is None:
            return self.cached_per_head
        return max(1, self.num_kv_heads // tp) * self.cached_per_head

    def flops_per_pair(self, tp: int) -> float:
        """Of scores and values for one pair of a query and a key."""
        return 2 * self.num_query_heads / tp * (self.qk_head_dim + self.v_head_dim)

    def check(self, tp: int) -> None:
        """Raise ConfigError where the heads cannot be shared out."""
        if self.num_query_heads % tp:
            raise ConfigError(_indivisible(tp, self.num_query_heads, "attention heads"))
        heads = self.num_kv_heads
        if heads is not None and heads % tp and tp % heads:
            raise ConfigError(_indivisible(tp, heads, "key-value heads"))


class Recurrence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A layer that keeps one state: the tail of a convolution, and a matrix per head (temporal).

    `kind` names it for people. Convolution: `inner` channels and two group vectors, K-1 columns.
    """

    kind: str
    num_heads: int
    temporal_per_head: int
    inner: int = 0  # channels of the convolution that shard with the heads
    num_groups: int = 0  # pairs of vectors that the heads of a group share
    group_width: int = 0
    kernel: int = 1  # width K of the convolution
    num_parameters: int = 0

    def conv(self, tp: int) -> int:
        """Elements on each GPU; groups are copied until every GPU has one."""
        groups = self.num_groups if self.num_groups % tp == 0 else tp
        return (self.inner + 2 * groups * self.group_width) // tp * (self.kernel - 1)

    def temporal(self, tp: int) -> int:
        """Elements on each GPU."""
        return self.num_heads // tp * self.temporal_per_head

    def check(self, tp: int) -> None:
        """Raise ConfigError where the heads cannot be shared out."""
        if self.num_heads % tp:
            raise ConfigError(_indivisible(tp, self.num_heads, f"{self.kind} heads"))


def _indivisible(tp: int, heads: int, what: str) -> str:
    below = max(size for size in range(1, tp) if heads % size == 0)
    return f"tp: {tp} does not divide the {heads} {what}: use a divisor, such as {below}"


class Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer: what it keeps, and its feed-forward weights. Some keep nothing, some both."""

    attention: Attention | None = None
    recurrence: Recurrence | None = None
    num_parameters: int = 0  # of feed-forward weights that every token reads, routers included
    num_expert_parameters: int = 0  # of all its routed experts


# The ways to fill in a recurrence, with the parameters of their projections.


def mamba1(hidden: int, inner: int, state: int, kernel: int, rank: int) -> Recurrence:
    """Selective scan of full rank: every channel is a head (Gu and Dao 2023)."""
    return Recurrence(
        kind="mamba1",
        num_heads=inner,
        temporal_per_head=state,
        inner=inner,
        kernel=kernel,
        num_parameters=3 * hidden * inner + inner * (2 * rank + 2 * state),
    )


def mamba2(
    hidden: int, heads: int, head_dim: int, groups: int, state: int, kernel: int
) -> Recurrence:
    """State-space duality (Dao and Gu 2024)."""
    inner = heads * head_dim
    projected = 2 * inner + 2 * groups * state + heads
    return Recurrence(
        kind="mamba2",
        num_heads=heads,
        temporal_per_head=head_dim * state,
        inner=inner,
        num_groups=groups,
        group_width=state,
        kernel=kernel,
        num_parameters=hidden * (projected + inner),
    )


def gated_delta_net(
    hidden: int, key_heads: int, value_heads: int, key_dim: int, value_dim: int, kernel: int
) -> Recurrence:
    """Gated DeltaNet (Yang et al. 2024), as in Qwen3-Next."""
    keys, values = key_heads * key_dim, value_heads * value_dim
    return Recurrence(
        kind="gated_delta_net",
        num_heads=value_heads,
        temporal_per_head=value_dim * key_dim,
        inner=values,
        num_groups=key_heads,
        group_width=key_dim,
        kernel=kernel,
        num_parameters=hidden * (2 * keys + 3 * values + 2 * value_heads),
    )


def kimi_delta(hidden: int, heads: int, head_dim: int, kernel: int) -> Recurrence:
    """Kimi Delta Attention (Kimi Linear 2025): convolutions over queries, keys and values."""
    inner = heads * head_dim
    gates = 2 * (hidden * head_dim + head_dim * inner) + hidden * heads
    return Recurrence(
        kind="kimi_delta",
        num_heads=heads,
        temporal_per_head=head_dim * head_dim,
        inner=3 * inner,
        kernel=kernel,
        num_parameters=4 * hidden * inner + gates,
    )


def lightning(hidden: int, heads: int, head_dim: int) -> Recurrence:
    """Lightning attention (Qin et al. 2024): no convolution."""
    return Recurrence(
        kind="lightning",
        num_heads=heads,
        temporal_per_head=head_dim * head_dim,
        num_parameters=5 * hidden * heads * head_dim,
    )
