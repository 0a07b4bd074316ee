"""The sections of a run's configuration, as frozen Structs.

A knob lives with the component that reads it: these sections bring the components' own Structs
together and add what belongs to a run as a whole.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from rolloutkit.actions import ActionSettings
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings
from rolloutkit.config.components import Component
from rolloutkit.estimate import ReferenceRates
from rolloutkit.hosting import Where
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.routing import RouterSettings
from rolloutkit.tail import TailSettings
from rolloutkit.types import SamplingParams

Count = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run as a whole."""

    seed: int = 0
    time: Literal["real", "virtual"] = "real"
    max_failed: Share = 0.5  # a larger share of failed samples makes the exit code 1
    breaker_failures: Count = 10
    constrain_calls: bool | Literal["auto"] = False
    keep_messages: bool = True
    record_responses: bool = False


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks; the environment's own where no file is named."""

    file: str | None = None  # one Task per line, as JSON
    num_samples: Count | None = None  # of each task; null = as the task says


class RendererOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How messages become tokens, for engines that take token ids."""

    name: str = "auto"
    tokenizer: str | None = None  # path; bundled = SmolLM2's; null = the engine's own model
    model: str | None = None  # the model's public name, by which `auto` finds the renderer
    max_string_length: Count | None = 256  # characters of each string of a constrained call
    options: dict[str, Any] = {}  # the renderer's own


class HistoryOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What earlier epochs of the workload say of its tasks' lengths."""

    path: str | None = None  # a history.json that a run wrote beside its output
    rates: ReferenceRates = ReferenceRates()


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the outputs go."""

    dir: str | None = None  # null = runs/<config>-<time>


class Hosting(msgspec.Struct, frozen=True, kw_only=True):
    """What every environment's section may say beside the class's own fields."""

    where: Where = "auto"  # its blocking code runs


class Sections(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every section whose fields are known beforehand; absent ones have their defaults."""

    admission: AdmissionLimits = AdmissionLimits()
    actions: ActionSettings = ActionSettings()
    router: RouterSettings = RouterSettings()
    limits: Limits = Limits()
    retry: RetryPolicy = RetryPolicy()
    tail: TailSettings = TailSettings()
    sampling: SamplingParams = SamplingParams()
    run: RunOptions = RunOptions()
    tasks: TaskOptions = TaskOptions()
    renderer: RendererOptions = RendererOptions()
    history: HistoryOptions = HistoryOptions()
    output: OutputOptions = OutputOptions()

    def settings(self) -> Settings:
        """What the orchestrator is told."""
        return Settings(
            admission=self.admission,
            actions=self.actions,
            limits=self.limits,
            retry=self.retry,
            tail=self.tail,
            sampling=self.sampling,
            seed=self.run.seed,
            constrain_calls=self.run.constrain_calls,
            keep_messages=self.run.keep_messages,
            record_responses=self.run.record_responses,
            rates=self.history.rates,
            breaker_failures=self.run.breaker_failures,
        )


class RunConfig(Sections, frozen=True, kw_only=True):
    """A whole configuration. `engine` and `environment` name classes with Structs of their own."""

    engine: Component
    environment: Component
    where: Where  # the environment's blocking code runs
    text: str  # what `config.yaml` says
