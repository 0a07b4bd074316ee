"""The openai engine against the contract, with a real server in another process."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rolloutkit.engines.openai import Api, OpenAIConfig, OpenAIEngine
from rolloutkit.protocols import Capabilities
from tests.contract.engine_suite import CHECKS, Check, Subject
from tests.contract.smollm2 import END_OF_TURN, GREETING, running_requests, text_of

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[Api.CHAT, Api.COMPLETIONS], ids=str
)
async def subject(request: pytest.FixtureRequest, llama_url: str) -> AsyncIterator[Subject]:
    async def num_running() -> int:
        return await asyncio.to_thread(running_requests, llama_url)

    config = OpenAIConfig(base_url=f"{llama_url}/v1", api=request.param)
    async with OpenAIEngine(config) as engine:
        yield Subject(
            engine=engine,
            num_running=num_running,
            text=text_of,
            stop_token_ids=(END_OF_TURN,),
            short_ids=GREETING,
        )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_openai_engine(check: Check, subject: Subject) -> None:
    await check(subject)


async def test_the_probe_finds_what_the_server_can_do(llama_url: str) -> None:
    async with OpenAIEngine(OpenAIConfig(base_url=f"{llama_url}/v1")) as engine:
        found = engine.capabilities

    assert found == Capabilities(
        token_ids=True,
        logprobs=True,
        grammar=True,
        progress=True,
        cached_tokens=True,
        max_context=2_048,
    )
