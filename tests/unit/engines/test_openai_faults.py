"""How the openai engine takes what servers do wrong, and answers that are right but unusual."""

import asyncio
import random
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any

import pytest

from rolloutkit.engines.openai import Api, OpenAIConfig, OpenAIEngine
from rolloutkit.errors import ConfigError, ContextFullError, EngineError, RequestError
from rolloutkit.types import (
    ChatPrompt,
    Completion,
    FinishReason,
    GenerateRequest,
    SampleId,
    SamplingParams,
    TokenPrompt,
    ToolCall,
)
from tests.unit.engines.fake_server import (
    IDS,
    FakeServer,
    Handler,
    choice,
    events,
    fake_server,
    text,
    whole,
)

pytestmark = pytest.mark.real_time


@asynccontextmanager
async def served(
    *answers: Handler, **config: Any
) -> AsyncIterator[tuple[OpenAIEngine, FakeServer]]:
    """An engine that has probed its server, which then gives `answers`."""
    good = chat_answer("yes") if config.get("api") is Api.CHAT else whole(choice())
    async with fake_server(good, good) as server:
        engine = OpenAIEngine(OpenAIConfig(base_url=server.url, **config), "key")
        async with engine:
            server.answers = list(answers)
            server.requests.clear()
            yield engine, server


def chat_answer(content: str) -> Handler:
    return whole({"choices": [{"message": {"content": content}, "finish_reason": "stop"}]})


def token_request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(
        **{
            "sample_id": SampleId("t", 0),
            "attempt": 0,
            "chain_index": 0,
            "turn": 0,
            "prompt": TokenPrompt(array("i", (7, 8, 9))),
            "sampling": SamplingParams(),
        }
        | fields
    )


def chat_request() -> GenerateRequest:
    tool = {"name": "ls", "description": "Lists.", "parameters": {"type": "object"}}
    prompt = ChatPrompt(({"role": "user", "content": "go"},), (tool,))  # type: ignore[arg-type]
    return token_request(prompt=prompt)


async def generate(*answers: Handler, **config: Any) -> Completion:
    async with served(*answers, **config) as (engine, _):
        return await engine.generate(token_request())


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_transient_status_is_tried_again(status: int) -> None:
    completion = await generate(whole({}, status), whole(choice()))

    assert tuple(completion.token_ids) == IDS
    assert completion.num_retries == 1


async def test_a_server_that_stays_broken_is_an_engine_error_with_its_words() -> None:
    with pytest.raises(EngineError, match=r"/v1/completions answered 500: .*out of memory"):
        await generate(whole({"error": "out of memory"}, 500), max_tries=2)


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_retry_after_is_waited_for(form: str) -> None:
    value = "1" if form == "seconds" else formatdate(time.time() + 2, usegmt=True)
    busy = whole({}, 429, **{"Retry-After": value})

    started = time.monotonic()
    await generate(busy, whole(choice()))

    assert time.monotonic() - started >= 0.9


async def test_a_retry_after_beyond_the_budget_ends_it_at_once() -> None:
    busy = whole({}, 429, **{"Retry-After": "3600"})

    with pytest.raises(EngineError, match="answered 429"):
        await generate(busy, whole(choice()))


async def test_a_refused_request_is_not_tried_again() -> None:
    async with served(whole({"error": {"message": "no such field"}}, 400)) as (engine, server):
        with pytest.raises(RequestError, match=r"400.*no such field"):
            await engine.generate(token_request())

        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "message",
    [
        "request (9 tokens) exceeds the available context size (8 tokens)",
        "This model's maximum context length is 8 tokens. However, you requested 9 tokens",
        "The decoder prompt (length 9) is longer than the maximum model length of 8",
        "Requested token count exceeds the model's maximum context length of 8 tokens",
    ],
)
async def test_a_full_context_is_told_from_other_refusals(message: str) -> None:
    with pytest.raises(ContextFullError):
        await generate(whole({"error": {"message": message}}, 400))


async def test_json_that_breaks_off_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="makes no sense"):
        await generate(text('{"choices": [{"text": "a'))


async def test_a_stream_that_breaks_off_is_tried_again() -> None:
    part = choice(finish_reason=None)

    completion = await generate(events(part, is_cut=True), events(choice()))

    assert tuple(completion.token_ids) == IDS
    assert completion.num_retries == 1


async def test_an_error_inside_a_stream_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="worker died"):
        await generate(events({"error": {"message": "worker died"}}))


async def test_ids_that_the_server_kept_back_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match="2 of 3"):
        await generate(whole(choice(token_ids=[101, 2], logprobs=None)))


async def test_a_stop_token_that_the_server_does_not_know_ends_the_completion() -> None:
    prompt = TokenPrompt(array("i", (7, 8, 9)), (102,))

    async with served(whole(choice(finish_reason="length"))) as (engine, _):
        completion = await engine.generate(token_request(prompt=prompt))

    assert list(completion.token_ids) == [101, 102]
    assert completion.logprobs is not None
    assert list(completion.logprobs) == [-0.5, -0.25]
    assert completion.finish_reason is FinishReason.STOP


async def test_the_second_turn_sends_the_whole_chain() -> None:
    chain = array("i", (7, 8, 9))

    async with served(whole(choice())) as (engine, server):
        await engine.generate(token_request(prompt=TokenPrompt(chain)))
        chain.extend((101, 102, 2, 5))
        await engine.generate(token_request(prompt=TokenPrompt(chain), turn=1))

    assert [request["prompt"] for request in server.requests] == [[7, 8, 9], list(chain)]


async def test_streamed_parts_of_tool_calls_are_put_together() -> None:
    parts = [
        {"content": "Look: "},
        {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "ls", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"path":'}}]},
        {"tool_calls": [{"index": 1, "id": "c2", "function": {"name": "rm", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"/"}'}}]},
    ]
    chunks = [{"choices": [{"delta": part, "finish_reason": None}]} for part in parts]
    end = {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}

    async with served(events(*chunks, end, usage), api=Api.CHAT) as (engine, server):
        completion = await engine.generate(chat_request())

    assert completion.message is not None
    assert completion.message.content == "Look: "
    assert completion.message.tool_calls == (ToolCall("ls", {"path": "/"}, "c1"),)
    assert completion.message.malformed_calls == ("rm({)",)
    assert completion.output_tokens == 9
    assert server.requests[0]["tools"][0]["function"]["name"] == "ls"


async def test_the_key_is_sent() -> None:
    seen: list[str | None] = []

    async def look(request: Any) -> Any:
        seen.append(request.headers.get("Authorization"))
        return await whole(choice())(request)

    await generate(look)

    assert seen == ["Bearer key"]


async def test_auto_falls_back_to_chat_when_there_are_no_ids() -> None:
    no_ids = whole({"choices": [{"text": "x", "finish_reason": "stop"}]})

    async with fake_server(no_ids, chat_answer("yes")) as server:
        engine = OpenAIEngine(OpenAIConfig(base_url=server.url))
        async with engine:
            assert not engine.capabilities.token_ids

    assert server.paths[:2] == ["/v1/completions", "/v1/chat/completions"]


async def start(*answers: Handler, models: Handler | None = None, **config: Any) -> None:
    async with fake_server(*answers, models=models) as server:
        await OpenAIEngine(OpenAIConfig(base_url=server.url, **config)).__aenter__()


async def test_completions_without_ids_are_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"engine\.api"):
        await start(whole(choice(token_ids=None, logprobs=None)), api=Api.COMPLETIONS)


async def test_missing_logprobs_are_a_config_error_when_they_are_needed() -> None:
    with pytest.raises(ConfigError, match="no log-probs"):
        await start(whole(choice(logprobs=None)), needs_logprobs=True)


async def test_a_wrong_key_is_a_config_error_that_names_the_field() -> None:
    with pytest.raises(ConfigError, match="api_key_env"):
        await start(whole(choice()), models=whole({}, 401))


async def test_a_server_without_models_needs_a_name() -> None:
    with pytest.raises(ConfigError, match=r"engine\.model"):
        await start(whole(choice()), models=whole({"data": []}))


async def test_a_dead_port_is_a_config_error_with_its_url(unused_tcp_port: int) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}/v1"

    with pytest.raises(ConfigError, match=f"{url}/models"):
        async with OpenAIEngine(OpenAIConfig(base_url=url)):
            pass


async def test_a_server_that_dies_is_an_engine_error() -> None:
    async with fake_server(whole(choice())) as server:
        config = OpenAIConfig(base_url=server.url, max_tries=2)
        engine = await OpenAIEngine(config).__aenter__()

    with pytest.raises(EngineError, match="is the server running"):
        await engine.generate(token_request())
    await engine.__aexit__(None, None, None)


async def test_cancelling_closes_the_connection() -> None:
    is_asked, is_closed = asyncio.Event(), asyncio.Event()

    async def hang(request: Any) -> Any:
        is_asked.set()
        try:
            await asyncio.sleep(60)
        finally:
            is_closed.set()
        return await whole(choice())(request)

    async with served(hang) as (engine, _):
        job = asyncio.create_task(engine.generate(token_request()))
        await is_asked.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        async with asyncio.timeout(5):
            await is_closed.wait()


async def test_a_long_context_is_sent_without_a_warning() -> None:
    chain = array("i", random.Random(0).choices(range(10_000, 50_000), k=250_000))

    async with served(whole(choice())) as (engine, _):
        completion = await engine.generate(token_request(prompt=TokenPrompt(chain)))

    assert completion.num_tokens == 3
