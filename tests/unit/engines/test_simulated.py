import asyncio
from array import array
from typing import Any

import pytest

from rolloutkit.clock import now
from rolloutkit.engines.simulated import SimulatedConfig, SimulatedEngine
from rolloutkit.errors import RequestError
from rolloutkit.types import (
    ChatPrompt,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
)


def request_for(index: int = 0, length: int = 100, **fields: Any) -> GenerateRequest:
    return GenerateRequest(
        **{
            "sample_id": SampleId("t", index),
            "attempt": 0,
            "chain_index": 0,
            "turn": 0,
            "prompt": TokenPrompt(array("i", (7,)) * length),
            "sampling": SamplingParams(max_tokens=10_000),
        }
        | fields
    )


def engine_with(**config: Any) -> SimulatedEngine:
    fields: dict[str, Any] = {
        "mean_tokens": 20.0,
        "sigma": 0.0,
        "prefill_tokens_per_second": 100.0,
        "decode_tokens_per_second": 10.0,
    }
    return SimulatedEngine(SimulatedConfig(**fields | config))


async def test_time_is_prefill_plus_decode() -> None:
    await engine_with().generate(request_for())

    assert now() == pytest.approx(1.0 + 2.0)


async def test_only_new_tokens_are_prefilled_on_the_second_turn() -> None:
    engine = engine_with()
    await engine.generate(request_for())
    started = now()

    completion = await engine.generate(request_for(length=170, turn=1))

    assert completion.cached_tokens == 120
    assert now() - started == pytest.approx(0.5 + 2.0)


async def test_a_finished_sample_leaves_no_cache() -> None:
    engine = engine_with()
    await engine.generate(request_for())
    engine.finish(SampleId("t", 0))

    completion = await engine.generate(request_for(turn=1))

    assert completion.cached_tokens == 0


async def test_requests_beyond_the_parallelism_queue() -> None:
    engine = engine_with(parallelism=2)

    answers = await asyncio.gather(*(engine.generate(request_for(index)) for index in range(4)))

    assert [answer.queue_seconds for answer in answers] == pytest.approx([0.0, 0.0, 3.0, 3.0])


async def test_lengths_depend_on_seed_sample_and_turn_only() -> None:
    async def lengths(seed: int) -> list[int]:
        engine = engine_with(sigma=1.0, seed=seed)
        requests = [request_for(index, turn=turn) for index in range(4) for turn in range(3)]
        return [len((await engine.generate(request)).token_ids) for request in requests]

    first, again, other = await lengths(1), await lengths(1), await lengths(2)

    assert first == again
    assert first != other
    assert len(set(first)) > 6


async def test_the_mean_length_is_what_the_config_says() -> None:
    engine = engine_with(sigma=0.8, mean_tokens=200.0, parallelism=10_000)
    requests = (request_for(index) for index in range(4_000))

    answers = await asyncio.gather(*map(engine.generate, requests))

    assert sum(len(answer.token_ids) for answer in answers) / 4_000 == pytest.approx(200, rel=0.05)


async def test_cancelling_gives_the_server_to_the_next() -> None:
    engine = engine_with(parallelism=1)
    jobs = [asyncio.create_task(engine.generate(request_for(index))) for index in range(3)]
    await asyncio.sleep(0.5)

    jobs[0].cancel()
    jobs[1].cancel()
    completion = await jobs[2]

    assert now() == pytest.approx(0.5 + 3.0)
    assert completion.queue_seconds == pytest.approx(0.5)
    assert engine.num_running == 0


async def test_messages_are_refused() -> None:
    with pytest.raises(RequestError):
        await engine_with().generate(request_for(prompt=ChatPrompt(())))


async def test_progress_is_told_in_steps_of_the_configured_length() -> None:
    engine = engine_with(progress_seconds=0.75)
    told: list[tuple[float, int]] = []

    await engine.generate(request_for(), lambda count: told.append((now(), count)))

    assert [time for time, _ in told] == pytest.approx([0.75, 1.5, 2.25, 3.0])
    assert [count for _, count in told] == [0, 5, 12, 20]
