"""An OpenAI-compatible server that answers as a test says, one prepared answer per request."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

IDS = (101, 102, 2)


def choice(**fields: Any) -> dict[str, Any]:
    """A vLLM answer of three tokens; `fields` replace parts of its choice."""
    whole = {
        "text": "a b",
        "token_ids": list(IDS),
        "logprobs": {"token_logprobs": [-0.5, -0.25, -0.125]},
        "finish_reason": "stop",
    }
    return {"choices": [whole | fields], "usage": {"prompt_tokens": 3, "completion_tokens": 3}}


def whole(body: Any, status: int = 200, **headers: str) -> Handler:
    """An answer in one piece."""

    async def handle(_: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return handle


def events(*bodies: Any, is_cut: bool = False) -> Handler:
    """An event stream; when `is_cut` the connection breaks after the last of them."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for body in bodies:
            await response.write(b"data: " + json.dumps(body).encode() + b"\n\n")
        if is_cut:
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write(b"data: [DONE]\n\n")
        return response

    return handle


def text(body: str, status: int = 200, **headers: str) -> Handler:
    """Any text, sent as JSON."""

    async def handle(_: web.Request) -> web.StreamResponse:
        headers_ = {"Content-Type": "application/json", **headers}
        return web.Response(text=body, status=status, headers=headers_)

    return handle


class FakeServer:
    """What the server was asked, and what it has left to answer; the last answer is repeated."""

    def __init__(self, answers: Sequence[Handler], models: Handler) -> None:
        self.answers = list(answers)
        self.models = models
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.times: list[float] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return await self.models(request)
        self.requests.append(await request.json())
        self.paths.append(request.path)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)


@asynccontextmanager
async def fake_server(
    *answers: Handler, models: Handler | None = None
) -> AsyncIterator[FakeServer]:
    """Serve `answers` in order on loopback."""
    fake = FakeServer(answers, models or whole({"data": [{"id": "m", "max_model_len": 4_096}]}))
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", fake.handle)
    async with TestServer(app) as server:
        fake.url = str(server.make_url("/v1"))
        yield fake
