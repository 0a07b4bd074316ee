"""The vllm engine against a real vLLM server, which it starts itself."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rolloutkit.engines.prometheus import read_samples
from rolloutkit.engines.vllm import VLLMConfig, VLLMEngine, VLLMWorker
from rolloutkit.errors import RequestError
from rolloutkit.protocols import PauseMode, WeightUpdate
from rolloutkit.types import FinishReason
from tests.contract.engine_suite import CHECKS, Check, Subject, request_for
from tests.contract.smollm2 import END_OF_TURN, GREETING, text_of
from tests.servers.checks import (
    cancelled_calls_are_aborted,
    one_that_runs,
    resumed_turns_hit_their_prefix,
    the_more_urgent_call_runs_first,
    tokens_stay_what_they_are,
)
from tests.servers.places import MODEL, asked, launch, posted

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.integration_slow,
    pytest.mark.timeout(400),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[VLLMWorker]:
    (worker,) = VLLMEngine(VLLMConfig(launch=launch("vllm"))).make_workers()
    async with worker:
        yield worker


@pytest.fixture
def subject(worker: VLLMWorker) -> Subject:
    async def num_running() -> int:
        return await asyncio.to_thread(num_alive, worker.name)

    return Subject(
        engine=worker,
        num_running=num_running,
        text=text_of,
        stop_token_ids=(END_OF_TURN,),
        short_ids=GREETING,
        cache_block=32,
    )


def num_alive(url: str) -> int:
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return int(sum(one.value for one in read_samples(asked(f"{url}/metrics").decode(), names)))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_vllm_engine(check: Check, subject: Subject) -> None:
    await check(subject)


async def test_it_claims_what_the_server_was_started_with(worker: VLLMWorker) -> None:
    claims = worker.capabilities

    assert (claims.token_ids, claims.logprobs, claims.priority) == (True, True, True)
    assert (claims.grammar, claims.cached_tokens, claims.max_context) == (True, True, 8_192)


async def test_a_probe_tells_load_and_progress(subject: Subject, worker: VLLMWorker) -> None:
    before = await worker.probe()

    await worker.generate(request_for(subject))

    after = await worker.probe()
    assert (after.num_running, after.num_waiting, after.capacity_tokens) == (0, 0, 23_296)
    assert after.num_generated > before.num_generated


async def test_cancelled_calls_that_run_or_wait_are_aborted(subject: Subject) -> None:
    await cancelled_calls_are_aborted(subject)


async def test_tokens_stay_what_they_are(subject: Subject, worker: VLLMWorker) -> None:
    async def score(ids: list[int]) -> list[float]:
        answer = await asyncio.to_thread(
            posted,
            f"{worker.name}/v1/completions",
            model="smollm2",
            prompt=ids,
            max_tokens=1,
            prompt_logprobs=0,
        )
        entries = answer["choices"][0]["prompt_logprobs"]
        return [entry[str(one)]["logprob"] for one, entry in zip(ids[1:], entries[1:], strict=True)]

    await tokens_stay_what_they_are(subject, score)


async def test_resumed_turns_hit_their_prefix(subject: Subject) -> None:
    await resumed_turns_hit_their_prefix(subject)


async def test_the_more_urgent_call_runs_first(subject: Subject) -> None:
    await the_more_urgent_call_runs_first(subject)


async def test_a_token_that_the_vocabulary_lacks_is_refused(subject: Subject) -> None:
    with pytest.raises(RequestError, match="out of vocabulary"):
        await subject.engine.generate(request_for(subject, ids=(60_000,)))


async def test_held_calls_go_on_under_the_new_weights(subject: Subject, worker: VLLMWorker) -> None:
    job = await one_that_runs(subject, max_tokens=40)

    await worker.pause(PauseMode.HOLD)
    await worker.update_weights(WeightUpdate(version=3, path=str(MODEL)))
    await worker.resume()

    completion = await job
    assert completion.finish_reason is not FinishReason.ABORT
    assert len(completion.logprobs) == len(completion.token_ids) > 0


async def test_aborted_calls_return_what_they_have(subject: Subject, worker: VLLMWorker) -> None:
    job = await one_that_runs(subject, max_tokens=1_000)

    await worker.pause(PauseMode.ABORT)
    completion = await job
    await worker.resume()

    assert completion.finish_reason is FinishReason.ABORT
    assert len(completion.logprobs) == len(completion.token_ids) > 0
    assert await worker.generate(request_for(subject))


async def test_new_weights_and_a_flush_forget_the_prefixes(
    subject: Subject, worker: VLLMWorker
) -> None:
    ids = tuple(range(2_000, 2_100))  # three blocks of 32, and a rest that is not kept
    first = await worker.generate(request_for(subject, ids=ids))
    second = await worker.generate(request_for(subject, ids=ids))

    await worker.flush_cache()
    third = await worker.generate(request_for(subject, ids=ids))
    await worker.update_weights(WeightUpdate(version=5, path=str(MODEL)))
    fourth = await worker.generate(request_for(subject, ids=ids))

    cached = [one.cached_tokens for one in (first, second, third, fourth)]
    assert cached == [0, 96, 0, 0]


async def test_without_its_development_mode_it_says_what_to_do(worker: VLLMWorker) -> None:
    with pytest.raises(RequestError, match="VLLM_SERVER_DEV_MODE=1"):
        await worker._control("/not_there")
