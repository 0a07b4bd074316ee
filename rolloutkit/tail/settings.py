"""What a run says about its tail. Everything is off by default."""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Quantile = Annotated[float, msgspec.Meta(gt=0, lt=1)]
Factor = Annotated[float, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class HedgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When what makes no progress is issued again beside itself.

    The deadline is `max(floor_seconds, factor x quantile)` of the last 500 waits of its kind, and
    `patience_seconds` until 50 are known (policy study, section 5, "Stalls"). At most `max_share`
    of the calls of a kind are issued again, the share of Dean and Barroso, "The Tail at Scale"
    (CACM 56(2), 2013, section on hedged requests).
    """

    model_calls: bool = False  # needs an engine that reports progress
    actions: bool = False  # those that are declared idempotent, by the program or in `idempotent`
    idempotent: tuple[str, ...] = ()  # kinds of actions that may run twice at once
    floor_seconds: Seconds = 30.0
    factor: Factor = 3.0
    quantile: Quantile = 0.99
    patience_seconds: Seconds = 300.0
    max_share: Share = 0.05


class OutputCapSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tokens one turn may have beside `sampling.max_tokens`.

    `adaptive` caps at `max(floor_tokens, factor x quantile)` of the last 500 outputs, once 50 are
    known. With both, the smaller counts.
    """

    tokens: Count | None = None
    adaptive: bool = False
    floor_tokens: Count = 1024
    factor: Factor = 4.0
    quantile: Quantile = 0.99

    @property
    def is_on(self) -> bool:
        """Whether there is any cap."""
        return self.adaptive or self.tokens is not None


class OversamplingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many samples more than asked for are started of each task; the slowest are closed.

    A group so closed holds its fastest samples: it is biased towards short ones.
    """

    extra: Annotated[int, msgspec.Meta(ge=0)] = 0


class TailSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The three tactics."""

    hedge: HedgeSettings = HedgeSettings()
    output_cap: OutputCapSettings = OutputCapSettings()
    oversampling: OversamplingSettings = OversamplingSettings()
