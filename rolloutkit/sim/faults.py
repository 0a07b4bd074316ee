"""Faults by a seed, for replays: calls and actions that fall silent, for a while or for ever.

A stalled call is heard of up to a uniform point of its output, while the engine does all its work;
then nothing comes for a log-normal time. What is issued again draws anew, so that it can stall too.
The same seed stalls the same calls whatever the settings.
"""

from __future__ import annotations

import asyncio
import math
import random
from array import array
from hashlib import blake2b
from typing import Annotated, NamedTuple

import msgspec

from rolloutkit.protocols import Capabilities, Engine, HasPlacement, OnProgress, Placement
from rolloutkit.sim.station import SizesOf
from rolloutkit.types import Completion, FinishReason, GenerateRequest, SampleId

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class FaultConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chances per call and per action; the duration of stalls is that of the policy study."""

    call_stalls: Share = 0.0
    call_hangs: Share = 0.0
    action_stalls: Share = 0.0
    action_hangs: Share = 0.0
    median_seconds: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    sigma: Annotated[float, msgspec.Meta(ge=0)] = 1.0  # of the logarithm
    seed: int = 0

    @property
    def has_calls(self) -> bool:
        return self.call_stalls + self.call_hangs > 0

    @property
    def has_actions(self) -> bool:
        return self.action_stalls + self.action_hangs > 0


class Stall(NamedTuple):
    """How long nothing is heard, `inf` = for ever, and the share of the output heard before."""

    seconds: float
    share_heard: float


class Faults:
    """Draws them; batches of different seeds have different ones."""

    def __init__(self, config: FaultConfig, batch_seed: int = 0) -> None:
        self._config = config
        self._prefix = f"{config.seed}/{batch_seed}/"

    def of_call(self, request: GenerateRequest) -> Stall | None:
        """What befalls a call; the same for the same request."""
        config = self._config
        return self._draw(f"call/{request.request_id}", config.call_stalls, config.call_hangs)

    def of_action(self, name: str) -> Stall | None:
        """What befalls an action of that name, which is unique in its run."""
        config = self._config
        return self._draw(f"action/{name}", config.action_stalls, config.action_hangs)

    def _draw(self, name: str, stalls: float, hangs: float) -> Stall | None:
        config = self._config
        key = f"{self._prefix}{name}".encode()
        rng = random.Random(int.from_bytes(blake2b(key, digest_size=8).digest(), "little"))
        chance = rng.random()
        if chance >= stalls + hangs:
            return None
        share_heard, variate = rng.random(), rng.gauss(0.0, 1.0)
        if chance < hangs:
            return Stall(math.inf, share_heard)
        return Stall(config.median_seconds * math.exp(config.sigma * variate), share_heard)


class FaultyEngine:
    """Wraps a simulated engine that is told the sizes of its calls."""

    def __init__(self, engine: Engine, faults: Faults, sizes_of: SizesOf) -> None:
        self._engine = engine
        self._faults = faults
        self._sizes_of = sizes_of
        self._heard: dict[str, int] = {}  # tokens of the calls under way

    @property
    def capabilities(self) -> Capabilities:
        return self._engine.capabilities

    @property
    def placement(self) -> Placement | None:
        """That of the engine, if it has one."""
        return self._engine.placement if isinstance(self._engine, HasPlacement) else None

    async def generate(
        self, request: GenerateRequest, on_progress: OnProgress | None = None
    ) -> Completion:
        """See `Engine.generate`."""
        name = request.request_id
        stall = self._faults.of_call(request)
        most = None if stall is None else int(stall.share_heard * self._sizes_of(request).output)
        self._heard[name] = 0

        def heard(num_tokens: int) -> None:
            if most is None or num_tokens <= most:
                self._heard[name] = num_tokens
                if on_progress is not None:
                    on_progress(num_tokens)

        try:
            completion = await self._engine.generate(request, heard)
            if stall is not None:
                await be_silent(stall)
            return completion
        finally:
            del self._heard[name]

    def received(self, request: GenerateRequest) -> Completion | None:
        """How many tokens were heard of; which, a call of known sizes does not say."""
        count = self._heard.get(request.request_id)
        if not count:
            return None
        return Completion(
            finish_reason=FinishReason.ABORT, token_ids=array("i"), output_tokens=count
        )

    def finish(self, sample_id: SampleId) -> None:
        self._engine.finish(sample_id)


async def be_silent(stall: Stall) -> None:
    """Wait for the end of a stall, which may never come."""
    if stall.seconds == math.inf:
        await asyncio.get_running_loop().create_future()
    await asyncio.sleep(stall.seconds)
