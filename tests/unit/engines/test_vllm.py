"""What the vllm engine says to a server beside the completions API, and what it reads of it."""

from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rolloutkit.engines.vllm import VLLMConfig, VLLMEngine, VLLMWorker
from rolloutkit.errors import ConfigError, EngineError, RequestError
from rolloutkit.protocols import PauseMode, WeightUpdate
from rolloutkit.types import GenerateRequest, SampleId, SamplingParams, TokenPrompt
from tests.unit.engines.fake_server import IDS, Handler, choice, events, whole

pytestmark = pytest.mark.real_time

METRICS = """\
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 100.0
vllm:prompt_tokens_total{engine="1",model_name="m"} 40.0
vllm:generation_tokens_total{engine="0",model_name="m"} 10.0
vllm:generation_tokens_total{engine="1",model_name="m"} 4.0
vllm:cache_config_info{engine="0",kv_cache_size_tokens="500"} 1.0
vllm:cache_config_info{engine="1",kv_cache_size_tokens="600"} 1.0
"""


class FakeVLLM:
    """A server that keeps what it was asked; it may know no priorities, and have no controls."""

    def __init__(
        self, answer: Handler, *, has_priority: bool, has_controls: bool, model: str
    ) -> None:
        self.answer = answer
        self.has_priority = has_priority
        self.has_controls = has_controls
        self.model = model
        self.told: list[tuple[str, Any]] = []
        self.ranks: list[str | None] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/v1/models":
                return web.json_response({"data": [{"id": self.model, "max_model_len": 4_096}]})
            case "/metrics":
                return web.Response(text=METRICS)
            case "/v1/completions":
                said = await request.json()
                self.ranks.append(request.headers.get("X-data-parallel-rank"))
                if said.get("priority") and not self.has_priority:
                    return web.json_response({"error": "no priority scheduling"}, status=400)
                self.told.append((request.path, said))
                return await self.answer(request)
            case _:
                self.told.append((request.path_qs, await request.json()))
                if not self.has_controls:
                    return web.json_response({}, status=404)
                return web.json_response({"success": True})


@asynccontextmanager
async def served(
    *answers: Handler,
    has_priority: bool = True,
    has_controls: bool = True,
    served_model: str = "m",
    **config: Any,
) -> AsyncIterator[tuple[VLLMWorker, FakeVLLM]]:
    """The last worker of a server that it has asked what it can do."""
    fake = FakeVLLM(
        whole(choice()), has_priority=has_priority, has_controls=has_controls, model=served_model
    )
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        worker = VLLMEngine(VLLMConfig(workers=(url,), **config), "key").make_workers()[-1]
        async with worker:
            fake.told.clear()
            if answers:
                (fake.answer,) = answers
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


async def test_a_completion_has_ids_and_logprobs() -> None:
    async with served() as (worker, fake):
        completion = await worker.generate(request_for())

    assert tuple(completion.token_ids) == IDS
    assert list(completion.logprobs) == [-0.5, -0.25, -0.125]
    ((_, said),) = fake.told
    assert (said["prompt"], said["stop_token_ids"], said["model"]) == ([1, 2, 3], [2], "m")


async def test_the_larger_priority_is_the_smaller_number() -> None:
    async with served() as (worker, fake):
        await worker.generate(request_for(priority=2.6))

        assert worker.capabilities.priority
    assert fake.told[0][1]["priority"] == -3


async def test_a_server_without_priorities_is_told_none() -> None:
    async with served(has_priority=False) as (worker, fake):
        await worker.generate(request_for(priority=2.6))

        assert not worker.capabilities.priority
    assert "priority" not in fake.told[0][1]


async def test_a_rank_is_named_in_the_header_and_has_a_load_of_its_own() -> None:
    async with served(dp_ranks=2) as (worker, fake):
        load = await worker.probe()

        assert worker.name.endswith("#1")
        assert set(fake.ranks) == {"1"}
    assert (load.num_running, load.num_waiting) == (3, 0)
    assert (load.num_generated, load.capacity_tokens) == (44, 600)


async def test_a_server_that_is_one_worker_counts_all_its_ranks() -> None:
    async with served() as (worker, fake):
        load = await worker.probe()

        assert set(fake.ranks) == {None}
    assert (load.num_running, load.num_waiting) == (5, 1)
    assert (load.num_generated, load.capacity_tokens) == (154, 1_100)


async def test_controls_are_those_of_its_development_mode() -> None:
    async with served() as (worker, fake):
        await worker.pause(PauseMode.HOLD)
        await worker.pause(PauseMode.ABORT)
        await worker.update_weights(WeightUpdate(version=3, path="/weights"))
        await worker.resume()

    assert fake.told == [
        ("/pause?mode=keep", {}),
        ("/pause?mode=abort", {}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/weights"}}),
        ("/reset_prefix_cache?reset_running_requests=true", {}),
        ("/update_weight_version", {"new_version": "3"}),
        ("/resume", {}),
    ]


async def test_a_server_outside_its_development_mode_is_told_apart() -> None:
    async with served(has_controls=False) as (worker, _):
        with pytest.raises(RequestError, match="VLLM_SERVER_DEV_MODE=1"):
            await worker.pause(PauseMode.HOLD)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "Token id 60000 is out of vocabulary", "code": 400}, RequestError),
        ({"message": "the engine died", "code": 500}, EngineError),
        ("something else", EngineError),
    ],
)
async def test_an_error_in_a_stream_has_a_kind(error: object, kind: type[EngineError]) -> None:
    async with served(events({"error": error})) as (worker, _):
        with pytest.raises(kind) as caught:
            await worker.generate(request_for())

    assert type(caught.value) is kind


async def test_a_server_that_keeps_ids_back_is_a_config_error() -> None:
    fake = FakeVLLM(whole(choice(token_ids=None)), has_priority=True, has_controls=True, model="m")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", fake.handle)
    async with TestServer(app) as server:
        (worker,) = VLLMEngine(VLLMConfig(workers=(str(server.make_url("/")),))).make_workers()
        with pytest.raises(ConfigError, match="no ids or log-probs"):
            async with worker:
                pass


async def test_another_model_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="serves served, expected wanted"):
        async with served(served_model="served", model="wanted"):
            pass
