"""The simulated SGLang and vLLM servers against the contract, in virtual time."""

import pytest

from rolloutkit.sim.sglang.speaking import SglangConfig, SglangEngine
from tests.contract.engine_suite import (
    CHECKS,
    Check,
    Subject,
    the_second_turn_finds_the_first_in_the_cache,
)

SERVERS = {
    "sglang": {"server": "sglang"},
    "without overlap": {"overlap_schedule": False},
    "hybrid": {"model": "ling-3.0-flash"},
    "vllm": {"server": "vllm"},
}
COARSE = ("hybrid", "vllm")  # a real one keeps nothing of so short a prompt: states or whole blocks


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_simulated_sglang(check: Check, server: str) -> None:
    if check is the_second_turn_finds_the_first_in_the_cache and server in COARSE:
        pytest.skip("the suite's prompt is shorter than what is kept at one go")
    config = SglangConfig(mean_tokens=60.0, sigma=0.0, max_context=2_048, **SERVERS[server])
    engine = SglangEngine(config)

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
