"""Simulated SGLang servers as an engine: what completions say, what breaks, and for whom."""

import asyncio
from array import array

import msgspec
import pytest

from rolloutkit.errors import ConfigError, EngineError, RequestError
from rolloutkit.sim.sglang import Pause, ServersEngine, ServerSettings, StateRules, server_of
from rolloutkit.sim.sglang.speaking import SglangConfig, SglangEngine
from rolloutkit.sim.sglang.speech import RecordedSpeaker
from rolloutkit.sim.worker import Sizes
from rolloutkit.types import (
    ChatPrompt,
    FinishReason,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
)

PLAIN = {"mean_tokens": 50.0, "sigma": 0.0}


def request_of(ids, *, sample=0, turn=0, worker=None, **sampling):
    return GenerateRequest(
        sample_id=SampleId("s", sample),
        attempt=0,
        chain_index=0,
        turn=turn,
        prompt=TokenPrompt(array("i", ids)),
        sampling=SamplingParams(**sampling),
        worker=worker,
    )


async def test_a_call_alone_takes_its_own_time_and_waits_for_nothing():
    engine = SglangEngine(SglangConfig(**PLAIN))
    timer = server_of(SglangConfig()).timer

    completion = await engine.generate(request_of(range(4_000)))

    assert completion.prefill_seconds == pytest.approx(timer.prefill(4_000, 4_000 * 2_000))
    assert completion.output_tokens == len(completion.token_ids) == 50
    assert completion.queue_seconds == pytest.approx(0, abs=0.02)


async def test_workers_have_caches_of_their_own():
    engine = SglangEngine(SglangConfig(**PLAIN, num_workers=2))
    ids = range(1_000)
    await engine.generate(request_of(ids, worker="worker-0"))

    here = await engine.generate(request_of(ids, sample=1, worker="worker-0"))
    there = await engine.generate(request_of(ids, sample=2, worker="worker-1"))

    assert (here.cached_tokens, there.cached_tokens) == (999, 0)


async def test_samples_say_different_things_and_the_same_again():
    said = []
    for _ in range(2):
        engine = SglangEngine(SglangConfig(**PLAIN))
        said.append([(await engine.generate(request_of([1], sample=n))).token_ids for n in (0, 1)])

    assert said[0] == said[1]
    assert said[0][0] != said[0][1]


async def test_cancelling_leaves_nothing_running():
    engine = SglangEngine(SglangConfig(**PLAIN))
    jobs = [
        asyncio.create_task(engine.generate(request_of(range(n, 3_000), sample=n)))
        for n in range(4)
    ]
    await asyncio.sleep(0.2)

    for job in jobs:
        job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    await asyncio.sleep(5.0)

    assert engine.num_running == 0
    assert all(worker.held() == (0, 0) for worker in engine.workers)


async def test_a_request_that_never_fits_is_refused():
    engine = SglangEngine(SglangConfig(**PLAIN, max_total_tokens=9_000, chunked_prefill_size=512))

    with pytest.raises(RequestError, match=r"20000 prompt and 50 output tokens do not fit"):
        await engine.generate(request_of(range(20_000)))


async def test_what_is_not_token_ids_or_names_no_worker_is_refused():
    engine = SglangEngine(SglangConfig(**PLAIN))
    request = request_of([1])

    with pytest.raises(RequestError, match="no worker 'elsewhere'; known: worker-0"):
        await engine.generate(request_of([1], worker="elsewhere"))
    with pytest.raises(RequestError, match="takes token ids"):
        await engine.generate(
            GenerateRequest(
                sample_id=request.sample_id,
                attempt=0,
                chain_index=0,
                turn=0,
                prompt=ChatPrompt(()),
                sampling=request.sampling,
            )
        )


async def test_a_server_without_slots_fails_everybody():
    server = server_of(ServerSettings(model="ling-3.0-flash", weights="fp8"))
    rules = msgspec.structs.replace(server.rules, states=StateRules(slots=4), max_running=8)
    server = msgspec.structs.replace(server, rules=rules)
    speaker = RecordedSpeaker(lambda request: Sizes(3_000, 3_000, 500), 0)
    engine = ServersEngine(server, 1, speaker, says_tokens=False)
    requests = [request_of([1], sample=n) for n in range(3)]

    outcomes = await asyncio.gather(*map(engine.generate, requests), return_exceptions=True)

    assert {type(outcome) for outcome in outcomes} == {EngineError}
    assert "state slots are needed and" in str(outcomes[0])
    with pytest.raises(EngineError, match="stopped"):
        await engine.generate(request_of([1], sample=9))


async def test_completions_say_which_weights_sampled_what():
    engine = SglangEngine(SglangConfig(**PLAIN))
    job = asyncio.create_task(engine.generate(request_of(range(100), max_tokens=50)))
    await asyncio.sleep(0.2)

    await engine.pause(Pause.IN_PLACE)
    await asyncio.sleep(1.0)
    flushed = await engine.update_weights(3)
    await engine.resume()
    completion = await job

    assert not flushed  # its KV is in use
    old, new = completion.versions
    assert (old.version, old.start, new.version, new.end) == (0, 0, 3, 50)
    assert 0 < old.end == new.start < 50


async def test_an_abort_pause_gives_back_what_was_said():
    engine = SglangEngine(SglangConfig(**PLAIN))
    job = asyncio.create_task(engine.generate(request_of(range(100))))
    await asyncio.sleep(0.2)

    await engine.pause(Pause.ABORT)
    completion = await job

    assert completion.finish_reason is FinishReason.ABORT
    assert 0 < len(completion.token_ids) < 50
    assert (await engine.update_weights(1)) is True
    await engine.resume()


async def test_a_replayed_chain_keeps_what_was_not_new():
    turns = [Sizes(1_000, 1_000, 50), Sizes(1_500, 450, 50), Sizes(800, 300, 50)]
    speaker = RecordedSpeaker(lambda request: turns[request.turn], shared_tokens=600)
    engine = ServersEngine(server_of(ServerSettings()), 1, speaker, says_tokens=False)

    cached = [
        (await engine.generate(request_of([1], sample=sample, turn=turn))).cached_tokens
        for sample in (0, 1)
        for turn in range(3)
    ]

    # The last token said has no KV; the second sample of the task finds the shared prompt.
    assert cached == [0, 1_049, 500, 600, 1_049, 500]


def test_pools_follow_from_model_and_memory():
    plain = server_of(ServerSettings(memory_bytes=13_107_200_000))
    hybrid = server_of(ServerSettings(model="ling-3.0-flash", memory_bytes=55e9))
    blocks = server_of(ServerSettings(model="ling-3.0-flash", memory_bytes=55e9, server="vllm"))

    assert plain.rules.kv_tokens == 100_000  # of 131,072 bytes
    assert hybrid.rules.states.slots == 684  # 0.9 : 1, one slot pads
    assert hybrid.rules.max_running == 684 // 5
    assert hybrid.rules.kv_tokens == (55e9 - 685 * 37_990_400) // 8_064
    assert blocks.rules.page_tokens == 1_024
    assert blocks.rules.states.unit_tokens == 5 * 1_024  # 35 linear layers, 7 of attention


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tp": 3}, "tp: 3 does not divide the 64 attention heads"),
        ({"model": "qwen"}, "model: 'qwen' is no file and no bundled model"),
        ({"gpu": "H300"}, "gpu: unknown: 'H300'"),
        ({"memory_bytes": 1e6}, "less than a prefill of 8192: give more memory"),
        ({"model": "deepseek-v3", "tp": 1}, "deepseek-v3 at tp=1 needs"),
        (
            {"model": "ling-3.0-flash", "weights": "fp8", "max_mamba_cache_size": 4},
            "4 slots are too few for one running request, which needs 5",
        ),
    ],
)
def test_what_cannot_be_started_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        server_of(ServerSettings(**settings))
