"""The reference engine in virtual time: its durations, its waits, and what cancelling frees."""

import asyncio

import pytest

from rolloutkit.errors import RequestError
from rolloutkit.sim.reference import ReferenceConfig, ReferenceEngine
from rolloutkit.sim.timing import QWEN3_32B
from rolloutkit.sim.uncontended import UncontendedConfig, UncontendedEngine
from rolloutkit.sim.worker import Sizes
from rolloutkit.types import ChatPrompt, GenerateRequest, SampleId, SamplingParams


def request_of(index, *, turn=0, worker=None, priority=0.0):
    return GenerateRequest(
        sample_id=SampleId("s", index),
        attempt=0,
        chain_index=0,
        turn=turn,
        prompt=ChatPrompt(()),
        sampling=SamplingParams(),
        worker=worker,
        priority=priority,
    )


SIZES = Sizes(4_000, 4_000, 100)


def engine_of(sizes=SIZES, **config):
    return ReferenceEngine(ReferenceConfig(**config), lambda request: sizes)


async def test_a_call_alone_takes_its_uncontended_time_and_waits_for_nothing():
    completion = await engine_of().generate(request_of(0))

    prefill = QWEN3_32B.prefill_alone_seconds(4_000, 4_000)
    assert completion.prefill_seconds == pytest.approx(prefill)
    assert completion.service_seconds == pytest.approx(
        prefill + QWEN3_32B.decode_alone_seconds(4_000, 100), rel=1e-3
    )
    assert completion.queue_seconds == pytest.approx(0, abs=1e-2)
    assert (completion.prompt_tokens, completion.output_tokens) == (4_000, 100)


async def test_sharing_a_worker_is_queueing_and_another_worker_is_not_shared():
    engine = engine_of(num_workers=2)

    one, two, apart = await asyncio.gather(
        engine.generate(request_of(0, worker="worker-0")),
        engine.generate(request_of(1, worker="worker-0")),
        engine.generate(request_of(2, worker="worker-1")),
    )

    assert one.queue_seconds > 0.1
    assert two.queue_seconds > 0.1
    assert apart.queue_seconds < 0.01
    assert apart.worker == "worker-1"


async def test_the_more_urgent_of_two_waiting_calls_runs_first():
    engine = engine_of(max_running=1)
    ends = []

    async def call(index, priority):
        await engine.generate(request_of(index, priority=priority))
        ends.append(index)

    await asyncio.gather(call(0, 0.0), call(1, 0.0), call(2, 5.0))

    assert ends == [0, 2, 1]


@pytest.mark.parametrize("after", [0.0, 0.05, 0.3, 0.75])
async def test_cancelling_at_any_time_frees_the_memory(after):
    engine = engine_of(memory_scale=0.01)
    (worker,) = engine.workers
    jobs = [asyncio.create_task(engine.generate(request_of(index))) for index in range(4)]
    await asyncio.sleep(after)

    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)

    assert worker.memory.reserved_bytes == 0
    assert worker.num_running == worker.num_waiting == 0
    await engine.generate(request_of(9))


async def test_a_finished_sample_leaves_nothing_behind():
    engine = engine_of()
    (worker,) = engine.workers
    await engine.generate(request_of(0))
    kept = worker.memory.idle_bytes

    engine.finish(SampleId("s", 0))

    assert kept > 0
    assert worker.memory.idle_bytes == 0


async def test_what_cannot_be_served_is_refused():
    with pytest.raises(RequestError, match="no worker 'elsewhere'"):
        await engine_of().generate(request_of(0, worker="elsewhere"))

    with pytest.raises(RequestError, match="do not fit"):
        await engine_of(Sizes(700_000, 1, 1)).generate(request_of(0))


async def test_the_uncontended_engine_serves_everybody_at_once():
    engine = UncontendedEngine(UncontendedConfig(), lambda request: Sizes(9_000, 8_000, 60))
    loop = asyncio.get_running_loop()
    started = loop.time()

    await asyncio.gather(*(engine.generate(request_of(index)) for index in range(50)))

    assert loop.time() - started == pytest.approx(2.0)
