"""A router over two workers against the contract, in virtual time."""

import pytest

from rolloutkit.routing import Router
from rolloutkit.sim.speaking import SpeakingConfig, SpeakingEngine
from tests.contract.engine_suite import CHECKS, Check, Subject


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_router_over_two(check: Check) -> None:
    config = SpeakingConfig(num_workers=2, mean_tokens=40.0, sigma=0.0, max_context=2_048)
    engine = SpeakingEngine(config)

    async def num_running() -> int:
        return engine.num_running

    async with Router(engine.make_workers()) as router:
        subject = Subject(
            engine=router,
            num_running=num_running,
            text=lambda completion: str(completion.token_ids),
            stop_token_ids=(2,),
            short_ids=(300, 301),
        )

        await check(subject)
