"""Simulated SGLang or vLLM servers for samples that speak in tokens (`engine=sim_sglang`).

Any environment can so run on them in virtual time. What the tokens say is nothing; how many there
are follows from the seed, and prefixes are found by their ids.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from rolloutkit.engines.lengths import LengthDraw
from rolloutkit.sim.sglang.engine import ServersEngine
from rolloutkit.sim.sglang.settings import ServerSettings, server_of
from rolloutkit.sim.sglang.speech import DrawnSpeaker


class SglangConfig(ServerSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Servers, and how long completions are."""

    seed: int = 0
    mean_tokens: Annotated[float, msgspec.Meta(gt=0)] = 200.0  # of a completion
    sigma: Annotated[float, msgspec.Meta(ge=0)] = 0.8  # of the logarithm of the length


class SglangEngine(ServersEngine):
    """Servers that take token ids, and answer with as many as the seed says."""

    Config = SglangConfig

    def __init__(self, config: SglangConfig) -> None:
        lengths = LengthDraw(
            seed=config.seed,
            mean_tokens=config.mean_tokens,
            sigma=config.sigma,
            max_context=config.max_context,
        )
        speaker = DrawnSpeaker(lengths, config.seed)
        super().__init__(server_of(config), config.num_workers, speaker, says_tokens=True)
