"""The options of `rolloutkit plan`: a model, a GPU and a workload as `key=value`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from rolloutkit.config.validate import convert
from rolloutkit.errors import ConfigError
from rolloutkit.record.imports import ImportOptions
from rolloutkit.record.numeric import Fills, NumericRule
from rolloutkit.record.workload import read_workload
from rolloutkit.resources import Deployment, load_gpu, load_model
from rolloutkit.resources.model_spec import Count, Dtype
from rolloutkit.resources.plan import Question
from rolloutkit.resources.steady import Rules
from rolloutkit.resources.workload import Declared, Shape, Workload, declared

Positive = Annotated[float, msgspec.Meta(gt=0)]
AtLeastZero = Annotated[float, msgspec.Meta(ge=0)]
NUMBERS = Declared.__struct_fields__


class PlanOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that `rolloutkit plan` can be told."""

    model: str  # a bundled name, or a config.json or its directory
    gpu: str | dict[str, Any]  # a name, or figures (gpu.name=..., gpu.memory_bytes=...)
    tp: Count = 1
    attention_dp: Count = 1
    pp: Count = 1
    workers: Count = 1
    weights: Dtype | None = None  # null: as the model's configuration says
    kv_dtype: Dtype = "bfloat16"
    state_dtype: Dtype | None = None
    speculative: bool = False
    memory_gb: Positive | None = None  # of both pools on a GPU, in 1e9 bytes
    memory_fraction: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    slots: Count | None = None  # look at this split instead of the best
    ratio: Positive | None = None
    chunk: Count = 8_192  # tokens of a prefill batch
    page: Count = 1
    max_running: Count = 4_096
    states_per_path: Count | None = 1  # null: no cap
    keeps_finished: bool = True  # whether finished samples stay in the cache until LRU finds them
    workload: str | None = None  # a trace; without one, the numbers below
    turns: Count | None = None
    first_prompt: Count | None = None
    new_tokens: Count | None = None
    output_tokens: Count | None = None
    act_seconds: AtLeastZero | None = None
    act_shape: Shape | None = None
    act_variation: Positive | None = None
    group_size: Annotated[float, msgspec.Meta(ge=1)] | None = None
    shared_prefix: AtLeastZero = 0.0
    rule: NumericRule = NumericRule.AUTO  # how files of numbers are completed
    fill_tokens: Count | None = None
    fill_seconds: AtLeastZero | None = None
    chars_per_token: Positive | None = None

    def question(self) -> Question:
        """What the plan is made for. Blocks. Raises ConfigError."""
        deployment = Deployment(
            tp=self.tp,
            attention_dp=self.attention_dp,
            pp=self.pp,
            kv_dtype=self.kv_dtype,
            state_dtype=self.state_dtype,
            weight_dtype=self.weights,
            speculative=self.speculative,
        )
        model = load_model(self.model)
        model.check(deployment)
        if not model.has_state:
            self._refuse_state_options()
        return Question(
            model=model,
            gpu=load_gpu(self.gpu),
            deployment=deployment,
            rules=Rules(
                chunk_tokens=self.chunk,
                page_tokens=self.page,
                max_running=self.max_running,
                states_per_path=self.states_per_path,
                keeps_finished=self.keeps_finished,
            ),
            num_workers=self.workers,
            memory_bytes=None if self.memory_gb is None else self.memory_gb * 1e9,
            memory_fraction=self.memory_fraction,
            slots=self.slots,
            ratio=self.ratio,
        )

    def _refuse_state_options(self) -> None:
        for name in ("slots", "ratio", "state_dtype"):
            value = getattr(self, name)
            if value is not None:
                raise ConfigError(
                    f"{name}: {self.model} keeps no recurrent state: leave {name}={value} out"
                )

    def load_workload(self) -> Workload:
        """The workload: of a trace, or of plain numbers. Blocks. Raises ConfigError."""
        numbers = {name: getattr(self, name) for name in NUMBERS}
        given = {name: value for name, value in numbers.items() if value is not None}
        if self.workload is None:
            if not given:
                raise ConfigError(
                    "workload: not set: give a trace file, or numbers (turns=... new_tokens=... "
                    "output_tokens=... act_seconds=...)"
                )
            size = 1 if self.group_size is None else self.group_size
            return declared(Declared(**given), group_size=size, shared_prefix=self.shared_prefix)
        if given:
            name, value = next(iter(given.items()))
            raise ConfigError(
                f"workload={self.workload} and {name}={value} both say what samples ask for: leave "
                "one out"
            )
        fills = Fills(tokens=self.fill_tokens, seconds=self.fill_seconds)
        options = ImportOptions(rule=self.rule, fills=fills, chars_per_token=self.chars_per_token)
        return read_workload(
            Path(self.workload),
            options,
            group_size=self.group_size,
            shared_prefix=self.shared_prefix,
        )


def load_plan(settings: Sequence[str]) -> PlanOptions:
    """The options of a command line. Raises ConfigError."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    for setting in settings:
        if "=" not in setting:
            raise ConfigError(f"expected key=value, got {setting!r}: see rolloutkit plan --help")
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(list(settings)), resolve=True)
    except (OmegaConfBaseException, YAMLError) as error:
        line = str(error).splitlines()[0]
        raise ConfigError(f"cannot read {' '.join(settings)}: {line}: correct it") from None
    return convert(cast("dict[str, Any]", values), PlanOptions)
