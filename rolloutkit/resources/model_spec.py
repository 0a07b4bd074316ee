"""What a model keeps per token and per sequence, and what its weights weigh, on each GPU.

`load_model` takes a bundled name, a `config.json` or a dict; `ModelSpec` can be filled in by hand.
Formulas and their sources: SGLang 0.5.23 (`pool_configurator.py`, `mamba_utils.py`), explained in
docs/resources.md. All bytes are per GPU of one replica.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, cast

import msgspec

from rolloutkit.errors import ConfigError
from rolloutkit.resources.families import EXPERTS, family_of, layers_of
from rolloutkit.resources.fields import Fields
from rolloutkit.resources.layers import Layer

Dtype: TypeAlias = Literal["float32", "bfloat16", "float16", "fp8", "fp4"]
BYTES: Mapping[str, float] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp4": 0.5625,  # with one scale byte for 16 values (NVFP4)
}
MIN_STATE_GRID = 64  # tokens; SGLang: states of linear attention lie on chunk boundaries
Count = Annotated[int, msgspec.Meta(ge=1)]


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one replica is spread over GPUs, and in which types it keeps things."""

    tp: Count = 1  # tensor-parallel GPUs
    attention_dp: Count = 1  # of them, groups that each keep their own cache (DP attention)
    pp: Count = 1  # pipeline stages, `tp` GPUs each
    kv_dtype: Dtype = "bfloat16"
    conv_dtype: Dtype = "bfloat16"
    state_dtype: Dtype | None = None  # None: what the model's configuration makes SGLang use
    weight_dtype: Dtype | None = None  # None: as the model's configuration says
    speculative: bool = False  # whether the model's own draft layers run

    @property
    def attention_tp(self) -> int:
        """GPUs that share one sequence's heads. Raises ConfigError."""
        if self.tp % self.attention_dp:
            raise ConfigError(
                f"attention_dp: {self.attention_dp} does not divide tp of {self.tp}: use a divisor"
            )
        return self.tp // self.attention_dp


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model as the resource model sees it."""

    name: str
    layers: tuple[Layer, ...]  # in order
    hidden_size: int
    num_head_parameters: int = 0  # of the output projection, which every step reads
    num_embedding_parameters: int = 0  # stored and hardly read
    num_experts: int = 0  # routed ones of a sparse layer
    experts_per_token: int = 0
    draft_layers: int = 0  # multi-token prediction; they keep keys and values when they run
    state_grid: int = MIN_STATE_GRID  # tokens between places where a state can be kept
    state_dtype: Dtype = "float32"
    weight_dtype: Dtype = "bfloat16"
    expert_dtype: Dtype | None = None  # None: that of the other weights
    source: str = ""  # where the facts come from
    is_verified: bool = True  # False: some of them are taken from the family's pattern

    @property
    def has_state(self) -> bool:
        """Whether any layer keeps a recurrent state."""
        return any(layer.recurrence is not None for layer in self.layers)

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return self.num_embedding_parameters + self.num_shared_parameters + self.num_routed

    @property
    def num_shared_parameters(self) -> int:
        """Those that every token reads."""
        return self.num_head_parameters + sum(map(_shared_parameters, self.layers))

    @property
    def num_routed(self) -> int:
        """Those of routed experts."""
        return sum(layer.num_expert_parameters for layer in self.layers)

    @property
    def num_active_parameters(self) -> float:
        """Those that one token reads."""
        share = self.experts_per_token / self.num_experts if self.num_experts else 0.0
        return self.num_shared_parameters + share * self.num_routed

    def check(self, deployment: Deployment) -> None:
        """Raise ConfigError where heads or layers cannot be shared out as asked."""
        for layer in self.layers:
            for part in (layer.attention, layer.recurrence):
                if part is not None:
                    part.check(deployment.attention_tp)
        if deployment.pp > len(self.layers):
            raise ConfigError(
                f"pp: {deployment.pp} stages for {len(self.layers)} layers: use fewer stages"
            )

    def kv_bytes_per_token(self, deployment: Deployment) -> int:
        """Keys and values of one token in the layers that see all tokens; the fullest stage's."""
        tp, size = deployment.attention_tp, BYTES[deployment.kv_dtype]

        def cached(layer: Layer) -> float:
            attention = layer.attention
            return attention.cached(tp) * size if attention and attention.window is None else 0.0

        largest = _largest_stage(self.layers, deployment.pp, cached)
        full = sum(1 for layer in self.layers if layer.attention and not layer.attention.window)
        if deployment.speculative and full:  # SGLang: cell size grows by draft layers / full ones
            largest *= 1 + self.draft_layers / full
        return round(largest)

    def window_bytes_per_sequence(self, deployment: Deployment) -> int:
        """Keys and values of the layers with a sliding window, once it is full."""
        tp, size = deployment.attention_tp, BYTES[deployment.kv_dtype]

        def kept(layer: Layer) -> float:
            attention = layer.attention
            if attention is None or attention.window is None:
                return 0.0
            return attention.window * attention.cached(tp) * size

        return round(_largest_stage(self.layers, deployment.pp, kept))

    def state_bytes_per_sequence(self, deployment: Deployment) -> int:
        """One recurrent state, convolutions and matrices, over all layers: one slot of SGLang."""
        return round(
            _largest_stage(
                self.layers, deployment.pp, lambda layer: self._state_bytes(layer, deployment)
            )
        )

    def weight_bytes(self, deployment: Deployment) -> int:
        """Weights on each GPU; those of attention are copied for each attention group."""
        mixers = sum(map(_mixer_parameters, self.layers))
        rest = self.num_shared_parameters - mixers + self.num_embedding_parameters
        size, expert_size = self.weight_sizes(deployment)
        shared = mixers / deployment.attention_tp + rest / deployment.tp
        return round(
            (shared * size + self.num_routed / deployment.tp * expert_size) / deployment.pp
        )

    def weight_sizes(self, deployment: Deployment) -> tuple[float, float]:
        """Bytes of a parameter: of those that every token reads, and of routed experts."""
        if deployment.weight_dtype is not None:
            size = BYTES[deployment.weight_dtype]
            return size, size
        size = BYTES[self.weight_dtype]
        return size, size if self.expert_dtype is None else BYTES[self.expert_dtype]

    def _state_bytes(self, layer: Layer, deployment: Deployment) -> float:
        if layer.recurrence is None:
            return 0.0
        tp = deployment.attention_tp
        temporal = BYTES[deployment.state_dtype or self.state_dtype]
        conv = BYTES[deployment.conv_dtype]
        return layer.recurrence.conv(tp) * conv + layer.recurrence.temporal(tp) * temporal


def vllm_block_tokens(spec: ModelSpec, deployment: Deployment, alignment: int = 0) -> int:
    """Tokens in a block of vLLM 0.33, raised until an attention block holds a layer's state.

    `alignment` is the kernel's own block; 0 takes 16, or 128 for latent attention. Prefix hits of
    hybrid models are multiples of the result (`align` mode).
    """
    latent = any(layer.attention and layer.attention.num_kv_heads is None for layer in spec.layers)
    alignment = alignment or (128 if latent else 16)
    if not spec.has_state:
        return alignment
    per_layer = msgspec.structs.replace
    states = [
        per_layer(spec, layers=(layer,)).state_bytes_per_sequence(deployment)
        for layer in spec.layers
        if layer.recurrence is not None
    ]
    tokens = [
        per_layer(spec, layers=(layer,)).kv_bytes_per_token(deployment)
        for layer in spec.layers
        if layer.attention is not None
    ]
    return alignment * math.ceil(max(states) / (alignment * max(tokens))) if tokens else alignment


def load_model(model: str | Path | Mapping[str, Any]) -> ModelSpec:
    """A bundled model by name, a `config.json` (or the directory that holds it), or its fields.

    Blocks. Raises ConfigError, which names the value and the fields that are missing.
    """
    if isinstance(model, Mapping):
        return model_from_config(model)
    path = Path(model)
    if path.is_dir():
        path /= "config.json"
    if path.is_file():
        return model_from_config(_read(path), name=path.parent.name or path.stem, source=str(path))
    known = _bundle()
    facts = known.get(str(model).lower())
    if facts is None:
        import difflib

        like = difflib.get_close_matches(str(model).lower(), known, n=1)
        hint = f"did you mean {like[0]!r}?" if like else f"names are {', '.join(sorted(known))}"
        raise ConfigError(f"model: {str(model)!r} is no file and no bundled model: {hint}")
    return model_from_config(
        facts["config"],
        name=str(model).lower(),
        source=facts["source"],
        is_verified=facts.get("verified", True),
    )


def bundled_models() -> list[str]:
    """Names that `load_model` knows, sorted."""
    return sorted(_bundle())


def model_from_config(
    config: Mapping[str, Any], *, name: str = "model", source: str = "", is_verified: bool = True
) -> ModelSpec:
    """The model that the fields of a Hugging Face `config.json` describe. Raises ConfigError."""
    fields = Fields(config, name)
    layers = layers_of(fields)
    hidden = fields.number("hidden_size", "d_model")
    head = hidden * fields.number("vocab_size", default=0)
    family = family_of(fields)
    dtype = fields.get("mamba_ssm_dtype") if family.reads_state_dtype else None
    weight_dtype, expert_dtype = _weight_dtypes(fields)
    return ModelSpec(
        name=name,
        layers=layers,
        hidden_size=hidden,
        num_head_parameters=head,
        num_embedding_parameters=0 if fields.get("tie_word_embeddings") else head,
        num_experts=fields.number(*EXPERTS, default=0),
        experts_per_token=fields.number(
            "num_experts_per_tok", "num_experts_per_token", "experts_per_token", default=0
        ),
        draft_layers=fields.number(
            "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", default=0
        ),
        state_grid=max(MIN_STATE_GRID, fields.number("mamba_chunk_size", "chunk_size", default=0)),
        state_dtype=cast("Dtype", dtype) if dtype in BYTES else "float32",
        weight_dtype=weight_dtype,
        expert_dtype=expert_dtype,
        source=source,
        is_verified=is_verified,
    )


def _weight_dtypes(fields: Fields) -> tuple[Dtype, Dtype | None]:
    """Of dense weights and of experts. Four-bit checkpoints keep attention in 16 bits."""
    section = fields.section("quantization_config")
    method = str(section.get("quant_method", "quant_algo") or "").lower()
    text = method + str(section.get("config_groups") or "").lower()
    if "fp4" in text or method in ("awq", "gptq"):
        return "bfloat16", "fp4"
    return ("fp8" if "fp8" in text else "bfloat16"), None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ConfigError(f"model: cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"model: {path} is no configuration: {error}: restore it") from None


@cache
def _bundle() -> dict[str, dict[str, Any]]:
    text = files("rolloutkit.resources").joinpath("models.toml").read_text()
    return tomllib.loads(text)


def _mixer_parameters(layer: Layer) -> int:
    parts = (layer.attention, layer.recurrence)
    return sum(part.num_parameters for part in parts if part is not None)


def _shared_parameters(layer: Layer) -> int:
    return layer.num_parameters + _mixer_parameters(layer)


def _largest_stage(
    layers: tuple[Layer, ...], stages: int, bytes_of: Callable[[Layer], float]
) -> float:
    """The largest sum of a pipeline stage; the last stages take the layers that are left over."""
    size, extra = divmod(len(layers), stages)
    bounds = [index * size + max(0, index - (stages - extra)) for index in range(stages + 1)]
    bounds[-1] = len(layers)

    def total(part: Iterable[Layer]) -> float:
        return sum(map(bytes_of, part))

    return max(total(layers[start:end]) for start, end in itertools.pairwise(bounds))
