"""The configuration of a replay: a run's sections, and the recording in the environment's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, cast

import msgspec

from rolloutkit.actions import refuse_needs
from rolloutkit.admission import refuse_unplanned
from rolloutkit.config.schema import Count, Sections, Share
from rolloutkit.config.suggest import nearest
from rolloutkit.config.validate import convert
from rolloutkit.errors import ConfigError
from rolloutkit.record.numeric import Fills, NumericRule
from rolloutkit.sim.faults import FaultConfig
from rolloutkit.sim.recorded import RecordedConfig
from rolloutkit.sim.reference import ReferenceConfig
from rolloutkit.sim.sglang import ServerSettings, server_of
from rolloutkit.sim.sglang.speaking import SglangConfig
from rolloutkit.sim.speaking import SpeakingConfig
from rolloutkit.sim.uncontended import UncontendedConfig
from rolloutkit.tail import refuse_stages

ReplayEngine: TypeAlias = RecordedConfig | ReferenceConfig | ServerSettings | UncontendedConfig
"""The engines that ask the recording for the sizes or durations of calls."""

_ENGINES: Mapping[str, type[Any]] = {
    "recorded": RecordedConfig,
    "sim_reference": SpeakingConfig,  # of which a replay leaves the drawn lengths aside
    "sim_sglang": SglangConfig,  # likewise
    "uncontended": UncontendedConfig,
}


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which recorded samples are replayed: all as recorded, or groups drawn from them."""

    num_groups: Count | None = None  # null = as recorded
    group_size: Count = 8
    icc: Share = 0.64  # of the variance of length, what the samples of a group share
    seed: int = 0
    num_earlier: Annotated[int, msgspec.Meta(ge=0)] = 0  # of each group, in the epoch before
    environment: str | None = None  # only samples of this one
    rule: NumericRule = NumericRule.AUTO  # how files of numbers are completed
    fill_tokens: Count | None = None  # for unknown token counts; null refuses them
    fill_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None  # for unknown tool times
    # Of the first prompt, what the samples of a task share, for engines that find prefixes.
    shared_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0

    @property
    def fills(self) -> Fills:
        """What stands in for unknown figures."""
        return Fills(tokens=self.fill_tokens, seconds=self.fill_seconds)


class ReplaySections(Sections, frozen=True, kw_only=True):
    """The sections of a replay whose fields are known beforehand."""

    trace: str
    batch: BatchOptions = BatchOptions()
    parking: bool = True  # of samples whose contexts outgrow a worker's memory
    faults: FaultConfig = FaultConfig()  # that the recording did not have


class ReplayConfig(ReplaySections, frozen=True, kw_only=True):
    """A whole configuration of a replay."""

    engine: ReplayEngine
    text: str  # what `config.yaml` says


def load_replay(
    name: str, overrides: Sequence[str] = (), config_dir: Path | None = None
) -> ReplayConfig:
    """Compose the config `name` with overrides and validate it. Raises ConfigError."""
    from rolloutkit.config.compose import compose

    composed = compose(name, overrides, config_dir)
    values = dict(composed.values)
    engine = values.pop("engine", None)
    if not isinstance(engine, dict):
        raise ConfigError(f"engine: not chosen: add engine=NAME, one of {', '.join(_ENGINES)}")
    if values.pop("environment", None) is not None:
        raise ConfigError("environment: the recording stands in for it: leave it out")
    sections = convert(values, ReplaySections)
    chosen = _engine(cast("dict[str, Any]", engine))
    _refuse_tactics(sections, chosen)
    refuse_unplanned(sections.admission)
    refuse_needs(sections.actions)
    return ReplayConfig(
        engine=chosen,
        text=composed.text,
        **msgspec.structs.asdict(sections),
    )


def _refuse_tactics(sections: ReplaySections, engine: ReplayEngine) -> None:
    """Refuse what a recording, or an engine that only knows durations, cannot show."""
    tail = sections.tail
    refuse_stages(tail.hedge)
    if tail.oversampling.extra and sections.batch.num_groups is None:
        raise ConfigError(
            f"tail.oversampling.extra: a batch as recorded has no spare samples, got "
            f"{tail.oversampling.extra}: set batch.num_groups"
        )
    if isinstance(engine, RecordedConfig) and tail.output_cap.is_on:
        raise ConfigError(
            "tail.output_cap: engine=recorded knows durations, no sizes: use engine=sim_reference"
        )
    reports = isinstance(engine, ReferenceConfig) and engine.progress_seconds is not None
    if (tail.hedge.model_calls or sections.faults.has_calls) and not reports:
        name = "tail.hedge.model_calls" if tail.hedge.model_calls else "faults"
        raise ConfigError(
            f"{name}: only calls that report progress can be seen to stall: use "
            "engine=sim_reference and set engine.progress_seconds, e.g. to 5"
        )


def _engine(section: dict[str, Any]) -> ReplayEngine:
    fields = dict(section)
    kind = str(fields.pop("kind", ""))
    if kind not in _ENGINES:
        hint = nearest(kind, _ENGINES)
        raise ConfigError(
            f"engine.kind: a replay needs one of {', '.join(_ENGINES)}, got {kind!r}{hint}"
        )
    config = convert(fields, _ENGINES[kind], "engine")
    match config:
        case SpeakingConfig():
            return _without_lengths(config, ReferenceConfig)
        case SglangConfig():
            settings = _without_lengths(config, ServerSettings)
            server_of(settings)  # which says early what cannot be started
            return settings
        case _:
            return config


_Engine = TypeVar("_Engine", ReferenceConfig, ServerSettings)


def _without_lengths(config: msgspec.Struct, kind: type[_Engine]) -> _Engine:
    """The engine whose lengths are recorded; it refuses settings of drawn ones."""
    plain = type(config)()
    kept = kind.__struct_fields__
    for name in config.__struct_fields__:
        value = getattr(config, name)
        if name not in kept and value != getattr(plain, name):
            raise ConfigError(
                f"engine.{name}: lengths are those of the recording: leave it out, got {value!r}"
            )
    return kind(**{name: getattr(config, name) for name in kept})
