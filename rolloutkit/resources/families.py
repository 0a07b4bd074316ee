"""From the fields of a `config.json` to layers, family by family.

A family says which layers attend and which recur (`kinds`), and how each is shaped. The traps that
the research found are handled where they bite: two `head_dim`s, 1-based layer lists, group sizes
that are numbers or lists, patterns of letters, layers that do both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.resources.fields import Fields
from rolloutkit.resources.layers import (
    Attention,
    Layer,
    Recurrence,
    gated_delta_net,
    kimi_delta,
    lightning,
    mamba1,
    mamba2,
)

FULL, WINDOW, STATE, BOTH, NEITHER = "attention", "window", "state", "both", "neither"
_WORDS = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": WINDOW,
    "linear_attention": STATE,
    "mamba": STATE,
    "hybrid": BOTH,
    "moe": NEITHER,
    "mlp": NEITHER,
    "*": FULL,
    "M": STATE,
    "E": NEITHER,
    "-": NEITHER,
}

Kinds: TypeAlias = Callable[[Fields], list[str]]


class Family(NamedTuple):
    """How the configurations of some architectures are read."""

    kinds: Kinds
    attention: Callable[[Fields], Attention]
    recurrence: Callable[[Fields], Recurrence] | None = None
    reads_state_dtype: bool = False  # whether SGLang reads `mamba_ssm_dtype` for it
    num_matrices: int = 3  # of a feed-forward block: gate, up and down; 0: there is none


def layers_of(fields: Fields) -> tuple[Layer, ...]:
    """The layers, in order. Raises ConfigError, which names the missing fields."""
    family = family_of(fields)
    kinds = family.kinds(fields)
    num_layers = fields.number("num_hidden_layers", "n_layer", default=len(kinds))
    if num_layers != len(kinds):
        raise ConfigError(
            f"model: {fields.name}: num_hidden_layers is {num_layers}, but {len(kinds)} layers are "
            "listed: correct one of them"
        )
    attention = family.attention(fields) if {FULL, WINDOW, BOTH} & set(kinds) else None
    recurrence = family.recurrence(fields) if family.recurrence else None
    if recurrence is None and {STATE, BOTH} & set(kinds):
        raise ConfigError(
            f"model: {fields.name}: architecture {fields.model_type!r} has recurrent layers whose "
            "shape it does not tell: give a rolloutkit.resources.ModelSpec by hand"
        )
    windowed = None
    if attention is not None and WINDOW in kinds:
        windowed = msgspec.structs.replace(attention, window=fields.number("sliding_window"))
    attentions = {FULL: attention, BOTH: attention, WINDOW: windowed}
    weights = _FeedForward(fields, family.num_matrices)
    return tuple(
        Layer(
            attention=attentions.get(kind),
            recurrence=recurrence if kind in (STATE, BOTH) else None,
            num_parameters=weights.shared(index, kind),
            num_expert_parameters=weights.experts(index, kind),
        )
        for index, kind in enumerate(kinds)
    )


def family_of(fields: Fields) -> Family:
    """The family of an architecture. One that is not known must tell all by `layer_types`."""
    return _FAMILIES.get(fields.model_type, _UNKNOWN)


# Which layers attend, which recur.


def _words(fields: Fields, name: str) -> list[str]:
    words = fields.words(name)
    unknown = sorted({word for word in words if word not in _WORDS})
    if unknown:
        raise ConfigError(
            f"model: {fields.name}: {name} names unknown layers {', '.join(unknown)}: expected "
            f"{', '.join(word for word in _WORDS if len(word) > 1)}"
        )
    return [_WORDS[word] for word in words]


def _listed(fields: Fields) -> list[str]:
    return _words(fields, "layer_types")


def _or_listed(kinds: Kinds) -> Kinds:
    """Go by `layer_types` where they are given: a library that saved the model wrote them."""

    def either(fields: Fields) -> list[str]:
        return _listed(fields) if fields.has("layer_types") else kinds(fields)

    return either


def _all(kind: str) -> Kinds:
    return lambda fields: [kind] * fields.number("num_hidden_layers", "n_layer")


def _window_or_full(fields: Fields) -> list[str]:
    """Sliding windows count unless they are switched off, as Qwen's configurations do."""
    is_on = fields.has("sliding_window") and fields.get("use_sliding_window") is not False
    return _all(WINDOW if is_on else FULL)(fields)


def _every_second(fields: Fields) -> list[str]:
    return _period(fields.number("num_hidden_layers"), 2, WINDOW)


def _by_interval(fields: Fields) -> list[str]:
    return _period(
        fields.number("num_hidden_layers"), fields.number("full_attention_interval"), STATE
    )


def _period(num_layers: int, period: int, others: str) -> list[str]:
    """The last layer of each period attends to all."""
    return [FULL if (index + 1) % max(1, period) == 0 else others for index in range(num_layers)]


def _by_group(fields: Fields) -> list[str]:
    """`layer_group_size` is a number, whose last layer attends, or a list in which 1 recurs."""
    if isinstance(fields.get("layer_group_size"), list):
        return [STATE if one == 1 else FULL for one in fields.numbers("layer_group_size")]
    return _period(fields.number("num_hidden_layers"), fields.number("layer_group_size"), STATE)


def _by_kimi_lists(fields: Fields) -> list[str]:
    """The lists count layers from 1."""
    recurrent = set(fields.section("linear_attn_config").numbers("kda_layers"))
    num_layers = fields.number("num_hidden_layers")
    return [STATE if index + 1 in recurrent else FULL for index in range(num_layers)]


def _by_pattern(fields: Fields) -> list[str]:
    fields.require("layers_block_type|hybrid_override_pattern")
    if fields.has("layers_block_type"):
        return _words(fields, "layers_block_type")
    letters = list(str(fields.get("hybrid_override_pattern")))
    return _words(Fields({"letters": letters}, fields.name), "letters")


def _by_indices(fields: Fields) -> list[str]:
    attending = set(fields.numbers("attn_layer_indices"))
    num_layers = fields.number("num_hidden_layers")
    return [FULL if index in attending else STATE for index in range(num_layers)]


def _by_offset(fields: Fields) -> list[str]:
    fields.require("num_hidden_layers", "attn_layer_period", "attn_layer_offset")
    period, offset = fields.number("attn_layer_period"), fields.number("attn_layer_offset")
    num_layers = fields.number("num_hidden_layers")
    return [FULL if index % period == offset else STATE for index in range(num_layers)]


def _by_attention_list(fields: Fields) -> list[str]:
    """MiniMax: 1 attends, 0 is lightning."""
    return [FULL if one == 1 else STATE for one in fields.numbers("attn_type_list")]


# The shapes of layers.


def _heads(fields: Fields) -> Attention:
    fields.require("hidden_size", "num_attention_heads")
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    head_dim = fields.number("head_dim", "attention_head_dim", default=hidden // heads)
    kv_heads = fields.number("num_key_value_heads", default=heads)
    query_copies = 2 if fields.get("attn_output_gate") else 1
    value_dim = fields.number("v_head_dim", default=head_dim)
    return Attention(
        num_query_heads=heads,
        num_kv_heads=kv_heads,
        cached_per_head=head_dim + value_dim,
        qk_head_dim=head_dim,
        v_head_dim=value_dim,
        num_parameters=hidden
        * (query_copies * heads * head_dim + kv_heads * (head_dim + value_dim) + heads * value_dim),
    )


def _gated_heads(fields: Fields) -> Attention:
    """Qwen3-Next gates its attention without saying so."""
    attention = _heads(fields)
    if fields.get("attn_output_gate"):
        return attention
    gate = fields.number("hidden_size") * attention.num_query_heads * attention.qk_head_dim
    return msgspec.structs.replace(attention, num_parameters=attention.num_parameters + gate)


def _latent(fields: Fields) -> Attention:
    fields.require(
        "hidden_size", "num_attention_heads", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"
    )
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    rank, rope = fields.number("kv_lora_rank"), fields.number("qk_rope_head_dim")
    nope = fields.number("qk_nope_head_dim")
    value = fields.number("v_head_dim", default=nope)
    query_rank = fields.number("q_lora_rank", default=0)
    query_out = heads * (nope + rope)
    queries = query_rank * (hidden + query_out) if query_rank else hidden * query_out
    return Attention(
        num_query_heads=heads,
        num_kv_heads=None,
        cached_per_head=rank + rope,
        qk_head_dim=nope + rope,
        v_head_dim=value,
        num_parameters=queries
        + hidden * (rank + rope)
        + rank * heads * (nope + value)
        + heads * value * hidden,
    )


def _latent_or_heads(fields: Fields) -> Attention:
    return _latent(fields) if fields.has("kv_lora_rank") else _heads(fields)


def _delta_net(fields: Fields) -> Recurrence:
    names = (
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
    )
    fields.require("hidden_size", *names)
    return gated_delta_net(fields.number("hidden_size"), *(fields.number(name) for name in names))


def _kimi(fields: Fields) -> Recurrence:
    """The model's own `head_dim` is another one: that of its latent attention."""
    section = fields.section("linear_attn_config")
    if section.has("num_heads"):
        section.require("head_dim", "short_conv_kernel_size")
        heads, head_dim = section.number("num_heads"), section.number("head_dim")
        kernel = section.number("short_conv_kernel_size")
    else:
        fields.require("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        heads, head_dim = fields.number("linear_num_heads"), fields.number("linear_head_dim")
        kernel = fields.number("linear_conv_kernel_dim")
    return kimi_delta(fields.number("hidden_size"), heads, head_dim, kernel)


def _bailing(fields: Fields) -> Recurrence:
    """Short convolutions tell KDA (Ling 3) from lightning (2.5, 2.6). A library that saves the
    model puts the rotary width into `head_dim` and keeps the true one in `linear_head_dim`.
    """
    fields.require("hidden_size", "num_attention_heads", "linear_head_dim|head_dim")
    hidden = fields.number("hidden_size")
    heads = fields.number("linear_num_heads", "num_attention_heads")
    head_dim = fields.number("linear_head_dim", "head_dim")
    if not fields.has("short_conv_kernel_size"):
        return lightning(hidden, heads, head_dim)
    return kimi_delta(hidden, heads, head_dim, fields.number("short_conv_kernel_size"))


def _minimax(fields: Fields) -> Recurrence:
    fields.require("hidden_size", "num_attention_heads", "head_dim")
    return lightning(*map(fields.number, ("hidden_size", "num_attention_heads", "head_dim")))


def _nemotron(fields: Fields) -> Recurrence:
    names = ("mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "conv_kernel")
    fields.require("hidden_size", *names)
    return mamba2(fields.number("hidden_size"), *(fields.number(name) for name in names))


def _mamba_n(fields: Fields) -> Recurrence:
    """Falcon-H1, Granite and Bamba; a head's width may be "auto"."""
    fields.require(
        "hidden_size", "mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv"
    )
    hidden, heads = fields.number("hidden_size"), fields.number("mamba_n_heads")
    head_dim = fields.get("mamba_d_head")
    if not isinstance(head_dim, int):
        fields.require("mamba_d_ssm|mamba_expand")
        inner = fields.get("mamba_d_ssm") or fields.number("mamba_expand") * hidden
        head_dim = int(inner) // heads
    groups, state = fields.number("mamba_n_groups"), fields.number("mamba_d_state")
    return mamba2(hidden, heads, head_dim, groups, state, fields.number("mamba_d_conv"))


def _mamba2_alone(fields: Fields) -> Recurrence:
    names = ("num_heads", "head_dim", "n_groups", "state_size", "conv_kernel")
    fields.require("hidden_size", *names)
    return mamba2(fields.number("hidden_size"), *(fields.number(name) for name in names))


def _mamba1(fields: Fields) -> Recurrence:
    fields.require(
        "hidden_size",
        "intermediate_size|expand|mamba_expand",
        "state_size|mamba_d_state",
        "conv_kernel|mamba_d_conv",
    )
    hidden = fields.number("hidden_size")
    factor = fields.number("expand", "mamba_expand", default=0)
    inner = factor * hidden or fields.number("intermediate_size")
    rank = fields.get("time_step_rank", "mamba_dt_rank")
    return mamba1(
        hidden,
        inner,
        fields.number("state_size", "mamba_d_state"),
        fields.number("conv_kernel", "mamba_d_conv"),
        rank if isinstance(rank, int) else -(-hidden // 16),
    )


class _FeedForward:
    """Weights of the feed-forward blocks, as the usual fields tell them."""

    def __init__(self, fields: Fields, num_matrices: int) -> None:
        self._fields = fields
        self._matrices = num_matrices
        self._hidden = fields.number("hidden_size", "d_model")
        self._num_experts = fields.number(*EXPERTS, default=0)
        self._has_own_layers = fields.model_type == "nemotron_h"

    def shared(self, index: int, kind: str) -> int:
        """What every token reads."""
        if self._is_absent(kind):
            return 0
        if not self._is_sparse(index):
            return self._matrices * self._hidden * self._dense_width()
        router = self._hidden * self._num_experts
        latent = self._fields.number(*_LATENT_WIDTHS, default=0)
        return (
            self._matrices * self._hidden * self._shared_width()
            + router
            + 2 * (self._hidden * latent)
        )

    def experts(self, index: int, kind: str) -> int:
        """All routed experts of the layer."""
        if self._is_absent(kind) or not self._is_sparse(index):
            return 0
        width = self._fields.number("moe_intermediate_size", "intermediate_size")
        hidden = self._fields.number(*_LATENT_WIDTHS, default=self._hidden)
        return self._num_experts * self._matrices * hidden * width

    def _is_absent(self, kind: str) -> bool:
        """Nemotron's feed-forward blocks are layers of their own."""
        return self._has_own_layers and kind != NEITHER

    def _is_sparse(self, index: int) -> bool:
        if not self._num_experts or index < self._fields.number("first_k_dense_replace", default=0):
            return False
        dense = (
            self._fields.numbers("mlp_only_layers") if self._fields.has("mlp_only_layers") else ()
        )
        period = self._fields.number("expert_layer_period", "decoder_sparse_step", default=1)
        offset = self._fields.number("expert_layer_offset", default=period - 1)
        return index not in dense and index % max(1, period) == offset % max(1, period)

    def _dense_width(self) -> int:
        return self._fields.number("intermediate_size", "shared_intermediate_size", default=0)

    def _shared_width(self) -> int:
        names = ("moe_shared_expert_intermediate_size", "shared_expert_intermediate_size")
        width = self._fields.number(*names, "shared_intermediate_size", default=0)
        if width:
            return width
        count = self._fields.number("n_shared_experts", "num_shared_experts", default=0)
        return count * self._fields.number("moe_intermediate_size", default=0)


EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
"""Fields that count the routed experts of a layer."""

_LATENT_WIDTHS = ("moe_latent_size", "routed_expert_hidden_size")  # inside which experts work

_PLAIN = Family(_or_listed(_window_or_full), _heads)
_LATENT = Family(_all(FULL), _latent)
_DELTA = Family(_or_listed(_by_interval), _gated_heads, _delta_net, reads_state_dtype=True)
_KIMI = Family(_or_listed(_by_kimi_lists), _latent_or_heads, _kimi)
_BAILING = Family(_or_listed(_by_group), _latent_or_heads, _bailing)
_NEMOTRON = Family(
    _by_pattern, _heads, _nemotron, reads_state_dtype=True, num_matrices=2
)  # squared ReLU has no gate
_MINIMAX = Family(_or_listed(_by_attention_list), _heads, _minimax)
_MAMBA1 = Family(_all(STATE), _heads, _mamba1, num_matrices=0)
_UNKNOWN = Family(_listed, _latent_or_heads, None)

_FAMILIES = {
    **dict.fromkeys(
        (
            "llama",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen2_moe",
            "qwen3",
            "qwen3_moe",
            "qwen3_vl_text",
            "qwen3_vl_moe_text",
            "glm4_moe",
            "minimax_m2",
            "olmo2",
            "olmo3",
            "phi3",
            "granite",
            "seed_oss",
        ),
        _PLAIN,
    ),
    "gpt_oss": Family(_or_listed(_every_second), _heads),
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "glm4_moe_lite": _LATENT,
    "qwen3_next": _DELTA,
    "qwen3_5_text": _DELTA,
    "qwen3_5_moe_text": _DELTA,
    "kimi_linear": _KIMI,
    "bailing_hybrid": _BAILING,
    "bailing_moe_linear": _BAILING,
    "nemotron_h": _NEMOTRON,
    "falcon_h1": Family(_all(BOTH), _heads, _mamba_n, reads_state_dtype=True),
    "granitemoehybrid": Family(_listed, _heads, _mamba_n),
    "bamba": Family(_by_indices, _heads, _mamba_n),
    "jamba": Family(_by_offset, _heads, _mamba1),
    "mamba": _MAMBA1,
    "falcon_mamba": _MAMBA1,
    "mamba2": Family(_all(STATE), _heads, _mamba2_alone, num_matrices=0),
    "minimax": _MINIMAX,
    "minimax_m1": _MINIMAX,
}
