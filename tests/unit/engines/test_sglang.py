"""What the sglang engine says to a server, and how it takes what servers do wrong."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rolloutkit.engines.sglang import SGLangConfig, SGLangEngine, SGLangWorker
from rolloutkit.errors import (
    ConfigError,
    ContextFullError,
    EngineError,
    RequestError,
    WorkerLost,
)
from rolloutkit.protocols import PauseMode, WeightUpdate
from rolloutkit.types import (
    FinishReason,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
    VersionSpan,
)
from tests.unit.engines.fake_server import Handler, events, whole

pytestmark = pytest.mark.real_time

INFO = {"served_model_name": "m", "max_req_input_len": 4_000, "max_running_requests": 8}


def event(*ids: int, reason: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    """An event with so many tokens, each with a log-prob that is its id's."""
    return {
        "text": "",
        "output_ids": list(ids),
        "meta_info": {
            "finish_reason": reason,
            "prompt_tokens": 3,
            "completion_tokens": len(ids),
            "output_token_logprobs": [[-one / 100, one, None] for one in ids],
            **meta,
        },
    }


STOP = {"type": "stop", "matched": 2}
WHOLE = event(7, 8, 2, reason=STOP, cached_tokens=2)
GOOD = (event(7), WHOLE)


class FakeSGLang:
    """A server that answers each `/generate` with the next of `answers`, the last one for ever."""

    def __init__(self, info: dict[str, Any], answers: list[Handler]) -> None:
        self.info = info
        self.answers = answers
        self.told: list[tuple[str, Any]] = []
        self.was_told = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/server_info":
                return web.json_response(self.info)
            case "/v1/loads":
                return web.json_response({"loads": [LOAD | {"dp_rank": rank} for rank in (0, 1)]})
            case "/generate":
                self.told.append(("/generate", await request.json()))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                return await answer(request)
            case path:
                self.told.append((path, await request.json()))
                self.was_told.set()
                return web.json_response({})


LOAD = {
    "num_running_reqs": 2,
    "num_waiting_reqs": 1,
    "max_total_num_tokens": 1_000,
    "total_prefill_uncached_tokens": 40,
    "decode_moments": [1.0, 1.0, 1.0, 1.0, 1.0, 60.0],
}


@asynccontextmanager
async def served(
    *answers: Handler, info: dict[str, Any] | None = None, **config: Any
) -> AsyncIterator[tuple[SGLangWorker, FakeSGLang]]:
    """The first worker of a server that it has asked what it can do."""
    fake = FakeSGLang(INFO | (info or {}), [events(WHOLE), *(answers or (events(*GOOD),))])
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", fake.handle)
    async with TestServer(app) as server:
        url = str(server.make_url("/")).rstrip("/")
        worker = SGLangEngine(SGLangConfig(workers=(url,), **config), "key").make_workers()[-1]
        async with worker:
            fake.told.clear()
            yield worker, fake


def request_for(**fields: Any) -> GenerateRequest:
    return GenerateRequest(
        **{
            "sample_id": SampleId("t", 0),
            "attempt": 0,
            "chain_index": 0,
            "turn": 0,
            "prompt": TokenPrompt(array("i", (1, 2, 3)), (2,)),
            "sampling": SamplingParams(),
        }
        | fields
    )


async def test_the_last_event_of_a_repeating_stream_is_the_completion() -> None:
    counts: list[int] = []
    async with served() as (worker, _):
        completion = await worker.generate(request_for(), counts.append)

    assert list(completion.token_ids) == [7, 8, 2]
    assert list(completion.logprobs) == pytest.approx([-0.07, -0.08, -0.02])
    assert completion.finish_reason is FinishReason.STOP
    assert (completion.prompt_tokens, completion.cached_tokens) == (3, 2)
    assert completion.versions == ()
    assert counts == [1, 3]


async def test_events_of_an_incremental_stream_are_joined() -> None:
    first, rest = event(7), event(8, 2, reason=STOP)
    rest["meta_info"]["completion_tokens"] = 3
    counts: list[int] = []
    async with served(events(first, rest), info={"incremental_streaming_output": True}) as (
        worker,
        _,
    ):
        completion = await worker.generate(request_for(), counts.append)

    assert list(completion.token_ids) == [7, 8, 2]
    assert len(completion.logprobs) == 3
    assert counts == [1, 3]


async def test_a_request_says_what_is_asked_and_no_more() -> None:
    info = {"enable_priority_scheduling": True}
    async with served(info=info) as (worker, fake):
        await worker.generate(
            request_for(priority=2.4, sampling=SamplingParams(max_tokens=64, seed=5))
        )

    ((_, said),) = fake.told
    name = said.pop("rid")
    assert name.endswith("/t#0/0/0/0")
    assert said == {
        "input_ids": [1, 2, 3],
        "sampling_params": {
            "max_new_tokens": 64,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": -1,
            "min_p": 0.0,
            "stop_token_ids": [2],
            "sampling_seed": 5,
            "stream_interval": 32,
        },
        "return_logprob": True,
        "routing_key": "t#0",
        "priority": 2,
        "stream": True,
    }


@pytest.mark.parametrize(
    ("info", "max_tokens", "interval"),
    [({}, 64, 32), ({}, 8_000, 500), ({"incremental_streaming_output": True}, 8_000, 32)],
)
async def test_a_stream_that_repeats_itself_does_so_seldom(
    info: dict[str, Any], max_tokens: int, interval: int
) -> None:
    async with served(events(WHOLE), info=info) as (worker, fake):
        await worker.generate(request_for(sampling=SamplingParams(max_tokens=max_tokens)))

    assert fake.told[0][1]["sampling_params"]["stream_interval"] == interval


@pytest.mark.parametrize(("is_low_first", "priority"), [(False, 3), (True, -3)])
async def test_the_larger_priority_is_the_more_urgent(is_low_first: bool, priority: int) -> None:
    info = {
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": is_low_first,
    }
    async with served(info=info) as (worker, fake):
        await worker.generate(request_for(priority=3.0))

    assert fake.told[0][1]["priority"] == priority


async def test_a_server_without_priorities_is_told_none() -> None:
    async with served() as (worker, fake):
        await worker.generate(request_for(priority=3.0))

    assert "priority" not in fake.told[0][1]


async def test_weight_versions_that_are_numbers_become_spans() -> None:
    spans = [
        {"version": "default", "start": 0, "end": 1},
        {"version": "4", "start": 1, "end": 3},
    ]
    async with served(events(event(7, 8, 2, reason=STOP, weight_versions=spans))) as (worker, _):
        completion = await worker.generate(request_for())

    assert completion.versions == (VersionSpan(0, 0, 1), VersionSpan(4, 1, 3))


def hang(is_asked: asyncio.Event) -> Handler:
    """An answer that stops after its first event."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"output_ids":[7],"meta_info":{"completion_tokens":1}}\n\n')
        is_asked.set()
        await asyncio.sleep(3_600)
        return response

    return handle


async def test_a_cancelled_call_is_aborted_by_name() -> None:
    is_asked = asyncio.Event()
    async with served(hang(is_asked)) as (worker, fake):
        job = asyncio.create_task(worker.generate(request_for()))
        await is_asked.wait()

        job.cancel()

        with pytest.raises(asyncio.CancelledError):
            await job
        await fake.was_told.wait()
        (_, said), (path, aborted) = fake.told
        assert (path, aborted) == ("/abort_request", {"rid": said["rid"]})


async def test_leaving_sends_the_last_aborts() -> None:
    is_asked = asyncio.Event()
    async with served(hang(is_asked)) as (worker, fake):
        job = asyncio.create_task(worker.generate(request_for()))
        await is_asked.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job

    assert [path for path, _ in fake.told] == ["/generate", "/abort_request"]


async def test_no_name_of_a_request_begins_with_that_of_another() -> None:
    """The server aborts all whose names begin with the one that it is told."""
    async with served() as (worker, fake):
        for _ in range(12):
            await worker.generate(request_for())

    names = [said["rid"] for _, said in fake.told]
    assert not any(a.startswith(b) for a in names for b in names if a is not b)


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (events(event(7), is_cut=True), WorkerLost, "is the server running"),
        (events(event(7)), WorkerLost, "ended early"),
        (whole({}, 503), WorkerLost, "answered 503"),
        (whole({}, 500), EngineError, "answered 500"),
        (whole({"error": "unknown field"}, 400), RequestError, "unknown field"),
        (
            events({"error": {"message": "longer than the model's context", "code": 400}}),
            ContextFullError,
            "context",
        ),
        (
            events(
                event(
                    7, reason={"type": "abort", "message": "no grammar backend", "status_code": 400}
                )
            ),
            RequestError,
            "no grammar backend",
        ),
        (
            events(event(reason={"type": "abort", "message": "shutting down", "status_code": 503})),
            WorkerLost,
            "shutting down",
        ),
        (
            events(event(7, 8, reason=STOP, completion_tokens=3)),
            EngineError,
            "the ids of 2 of 3 tokens",
        ),
        (
            events(event(7, 8, reason=STOP, output_token_logprobs=[[-1.0, 7, None]])),
            EngineError,
            "1 log-probs of 2 tokens",
        ),
    ],
)
async def test_what_a_server_does_wrong_has_a_kind(
    answer: Handler, error: type[EngineError], words: str
) -> None:
    async with served(answer) as (worker, _):
        with pytest.raises(error, match=words):
            await worker.generate(request_for())


async def test_an_abort_that_we_did_not_ask_for_brings_what_there_is() -> None:
    async with served(events(event(7, 8, reason={"type": "abort"}))) as (worker, _):
        completion = await worker.generate(request_for())

    assert completion.finish_reason is FinishReason.ABORT
    assert list(completion.token_ids) == [7, 8]


async def test_ranks_are_workers_of_their_own() -> None:
    async with served(info={"dp_size": 2}, dp_ranks=2) as (worker, fake):
        await worker.generate(request_for())
        load = await worker.probe()

        assert worker.name.endswith("#1")
        assert fake.told[0][1]["routed_dp_rank"] == 1
        assert (load.num_running, load.num_waiting, load.capacity_tokens) == (2, 1, 1_000)
        assert load.num_generated == 100


async def test_a_server_that_is_one_worker_counts_all_its_ranks() -> None:
    async with served(info={"dp_size": 2}) as (worker, _):
        load = await worker.probe()

    assert (load.num_running, load.num_generated, load.capacity_tokens) == (4, 200, 2_000)


async def test_only_the_first_rank_controls_the_server() -> None:
    async with served(info={"dp_size": 2}, dp_ranks=2) as (worker, fake):
        await worker.pause(PauseMode.HOLD)
        await worker.resume()

    assert fake.told == []


async def test_controls_are_those_of_the_server() -> None:
    async with served() as (worker, fake):
        await worker.pause(PauseMode.ABORT)
        await worker.pause(PauseMode.HOLD)
        await worker.update_weights(WeightUpdate(version=3, path="/weights"))
        await worker.update_weights(WeightUpdate(version=4))
        await worker.resume()

    assert fake.told == [
        ("/pause_generation", {"mode": "abort"}),
        ("/pause_generation", {"mode": "retract"}),
        ("/update_weights_from_disk", {"model_path": "/weights", "weight_version": "3"}),
        ("/update_weight_version", {"new_version": "4", "abort_all_requests": False}),
        ("/continue_generation", {}),
    ]


@pytest.mark.parametrize(
    ("info", "config", "words"),
    [
        ({}, {"model": "other"}, "serves m, expected other"),
        ({}, {"dp_ranks": 2}, "has 1, got 2"),
    ],
)
async def test_a_server_that_does_not_fit_is_a_config_error(
    info: dict[str, Any], config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        async with served(info=info, **config):
            pass


async def test_another_kind_of_server_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="is no SGLang server of use"):
        async with served(info={"max_req_input_len": "many"}):
            pass


async def test_workers_must_serve_one_model() -> None:
    async with served() as (first, _), served(info={"served_model_name": "n"}) as (second, _):
        engine = SGLangEngine(SGLangConfig(workers=(first.name, second.name)))
        one, other = engine.make_workers()
        async with one:
            with pytest.raises(ConfigError, match=r"serves 'n', but .* serves 'm'"):
                async with other:
                    pass


async def test_a_server_that_is_not_there_yet_is_examined_by_a_probe(
    unused_tcp_port_factory: Callable[[], int],
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port_factory()}"
    (worker,) = SGLangEngine(SGLangConfig(workers=(url,))).make_workers()
    async with worker:
        assert worker.capabilities.max_context is None
        with pytest.raises(WorkerLost, match="is the server running"):
            await worker.probe()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "give the URLs"),
        ({"workers": ("localhost:30000",)}, "expected a URL"),
        ({"workers": ("http://a", "http://a")}, "named twice"),
    ],
)
def test_a_configuration_without_servers_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SGLangEngine(SGLangConfig(**config))
