"""The reference engine with token ids against the contract, in virtual time."""

import pytest

from rolloutkit.sim.speaking import SpeakingConfig, SpeakingEngine
from tests.contract.engine_suite import CHECKS, Check, Subject


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_reference_engine(check: Check) -> None:
    engine = SpeakingEngine(SpeakingConfig(mean_tokens=40.0, sigma=0.0, max_context=2_048))

    async def num_running() -> int:
        return engine.num_running

    subject = Subject(
        engine=engine,
        num_running=num_running,
        text=lambda completion: str(completion.token_ids),
        stop_token_ids=(2,),
        short_ids=(300, 301),
    )

    await check(subject)
