"""The embedded engine with its real model against the contract, and what else it promises."""

import asyncio
import json
from array import array
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from rolloutkit.engines.llamacpp import LlamaCppConfig, LlamaCppEngine
from rolloutkit.errors import ConfigError, RequestError
from rolloutkit.types import FinishReason, TokenPrompt
from tests.contract.engine_suite import CHECKS, Check, Subject, request_for, until_idle
from tests.contract.smollm2 import (
    EMOJI_PARTS,
    END_OF_TURN,
    GREETING,
    completion_events,
    running_requests,
    text_of,
)

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[LlamaCppEngine]:
    async with LlamaCppEngine(LlamaCppConfig(context_tokens=2048)) as engine:
        yield engine


@pytest.fixture
def subject(engine: LlamaCppEngine) -> Subject:
    async def num_running() -> int:
        return await asyncio.to_thread(running_requests, engine.base_url)

    return Subject(
        engine=engine,
        num_running=num_running,
        text=text_of,
        stop_token_ids=(END_OF_TURN,),
        short_ids=GREETING,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_llamacpp_engine(check: Check, subject: Subject) -> None:
    await check(subject)


async def test_parts_of_a_character_are_reported_one_by_one(engine: LlamaCppEngine) -> None:
    first = EMOJI_PARTS[0]

    events = await asyncio.to_thread(
        completion_events,
        engine.base_url,
        prompt=list(GREETING),
        n_predict=4,
        logit_bias=[[first, 1_000.0]],
    )

    assert [event["tokens"] for event in events] == [[first]] * 4 + [[]]


async def test_sampling_is_from_the_whole_vocabulary(subject: Subject) -> None:
    hot = request_for(subject, temperature=100.0, max_tokens=8, seed=1)

    completion = await subject.engine.generate(hot)

    assert completion.logprobs is not None
    assert min(completion.logprobs) < -9.0  # top_k 40 alone would keep it near the likeliest


async def test_cancelling_while_the_prompt_is_read_stops_the_server(subject: Subject) -> None:
    started = asyncio.Event()
    request = request_for(subject, ids=tuple(range(400, 1_900)))
    job = asyncio.create_task(subject.engine.generate(request, lambda _: started.set()))
    await started.wait()

    job.cancel()

    with pytest.raises(asyncio.CancelledError):
        await job
    await until_idle(subject)


async def test_an_end_that_is_not_the_chats_is_dropped_from_a_constrained_completion(
    subject: Subject,
) -> None:
    request = request_for(subject, ids=GREETING, schema={"enum": ["yes"]})

    completion = await subject.engine.generate(request)

    assert completion.finish_reason is FinishReason.STOP
    assert completion.token_ids[-1] in (END_OF_TURN, 18)  # 18 is the closing quote
    assert json.loads(text_of(completion)) == "yes"


async def test_a_stop_token_of_the_request_ends_it(subject: Subject) -> None:
    plain = await subject.engine.generate(request_for(subject, ids=GREETING))
    third = plain.token_ids[2]
    request = msgspec.structs.replace(
        request_for(subject), prompt=TokenPrompt(array("i", GREETING), (third,))
    )

    completion = await subject.engine.generate(request)

    assert list(completion.token_ids) == list(plain.token_ids[:3])
    assert completion.finish_reason is FinishReason.STOP


async def test_more_samples_than_slots_find_their_prefixes(subject: Subject) -> None:
    length = 20
    prompts = [tuple(range(first, first + length)) for first in range(1_000, 1_600, 100)]
    requests = [request_for(subject, ids=ids, max_tokens=1) for ids in prompts]
    for request in requests:
        await subject.engine.generate(request)

    answers = [await subject.engine.generate(request) for request in requests]

    assert [answer.cached_tokens for answer in answers] == [length - 1] * len(prompts)


async def test_a_schema_with_other_letters_is_refused(subject: Subject) -> None:
    request = request_for(subject, schema={"enum": ["\u6f22"]})

    with pytest.raises(RequestError, match="ASCII"):
        await subject.engine.generate(request)


async def test_a_file_that_is_no_model_is_a_config_error(tmp_path: Path) -> None:
    missing = LlamaCppConfig(model=str(tmp_path / "none.gguf"))

    with pytest.raises(ConfigError, match="no such file"):
        async with LlamaCppEngine(missing):
            pass
