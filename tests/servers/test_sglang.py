"""The sglang engine against a real SGLang server, which it starts itself."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from rolloutkit.engines.sglang import SGLangConfig, SGLangEngine, SGLangWorker
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


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[(), ("--incremental-streaming-output",)], ids=str
)
async def worker(request: pytest.FixtureRequest) -> AsyncIterator[SGLangWorker]:
    engine = SGLangEngine(SGLangConfig(launch=launch("sglang", *request.param)))
    (worker,) = engine.make_workers()
    async with worker:
        yield worker


@pytest.fixture
def subject(worker: SGLangWorker) -> Subject:
    async def num_running() -> int:
        return await asyncio.to_thread(num_alive, worker.name)

    return Subject(
        engine=worker,
        num_running=num_running,
        text=text_of,
        stop_token_ids=(END_OF_TURN,),
        short_ids=GREETING,
    )


def num_alive(url: str) -> int:
    (load,) = json.loads(asked(f"{url}/v1/loads"))["loads"]
    return load["num_running_reqs"] + load["num_waiting_reqs"]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_sglang_engine(check: Check, subject: Subject) -> None:
    await check(subject)


async def test_it_claims_what_the_server_was_started_with(worker: SGLangWorker) -> None:
    claims = worker.capabilities

    assert (claims.token_ids, claims.logprobs, claims.priority) == (True, True, True)
    assert (claims.grammar, claims.seeds, claims.parallelism) == (False, False, 16)
    assert claims.max_context == 8_186


async def test_a_probe_tells_load_and_progress(subject: Subject, worker: SGLangWorker) -> None:
    before = await worker.probe()

    await worker.generate(request_for(subject))

    after = await worker.probe()
    assert (after.num_running, after.num_waiting, after.capacity_tokens) == (0, 0, 16_384)
    assert after.num_generated > before.num_generated


async def test_progress_is_told_every_so_many_tokens(subject: Subject) -> None:
    counts: list[int] = []

    await subject.engine.generate(request_for(subject, max_tokens=100, seed=1), counts.append)

    assert counts[0] == 1
    assert 100 in counts
    assert len(counts) <= 6


async def test_cancelled_calls_that_run_or_wait_are_aborted(subject: Subject) -> None:
    await cancelled_calls_are_aborted(subject)


async def test_tokens_stay_what_they_are(subject: Subject, worker: SGLangWorker) -> None:
    async def score(ids: list[int]) -> list[float]:
        answer = await asyncio.to_thread(
            posted,
            f"{worker.name}/generate",
            input_ids=ids,
            sampling_params={"max_new_tokens": 0},
            return_logprob=True,
            logprob_start_len=0,
        )
        entries = answer["meta_info"]["input_token_logprobs"]
        assert [token_id for _, token_id, _ in entries] == ids
        return [logprob for logprob, _, _ in entries[1:]]

    await tokens_stay_what_they_are(subject, score)


async def test_resumed_turns_hit_their_prefix(subject: Subject) -> None:
    await resumed_turns_hit_their_prefix(subject)


async def test_the_more_urgent_call_runs_first(subject: Subject) -> None:
    await the_more_urgent_call_runs_first(subject)


async def test_held_calls_go_on_under_the_new_weights(
    subject: Subject, worker: SGLangWorker
) -> None:
    job = await one_that_runs(subject, max_tokens=40)

    await worker.pause(PauseMode.HOLD)
    await worker.update_weights(WeightUpdate(version=3, path=str(MODEL)))
    await worker.resume()

    completion = await job
    versions = [span.version for span in completion.versions]
    assert versions[-1] == 3
    assert completion.versions[0].start == 0
    assert completion.versions[-1].end == len(completion.token_ids)


async def test_aborted_calls_return_what_they_have(subject: Subject, worker: SGLangWorker) -> None:
    job = await one_that_runs(subject, max_tokens=1_000)

    await worker.pause(PauseMode.ABORT)
    completion = await job
    await worker.update_weights(WeightUpdate(version=4))
    await worker.resume()

    assert completion.finish_reason is FinishReason.ABORT
    assert len(completion.logprobs) == len(completion.token_ids) > 0
    after = await worker.generate(request_for(subject))
    assert [span.version for span in after.versions] == [4]


async def test_new_weights_and_a_flush_forget_the_prefixes(
    subject: Subject, worker: SGLangWorker
) -> None:
    ids = tuple(range(2_000, 2_100))
    first = await worker.generate(request_for(subject, ids=ids))
    second = await worker.generate(request_for(subject, ids=ids))

    await worker.flush_cache()
    third = await worker.generate(request_for(subject, ids=ids))
    await worker.update_weights(WeightUpdate(version=5, path=str(MODEL)))
    fourth = await worker.generate(request_for(subject, ids=ids))

    cached = [one.cached_tokens for one in (first, second, third, fourth)]
    assert cached == [0, 99, 0, 0]
