"""CPU of one turn over HTTP: our engine against a bare aiohttp client, 500 chains of 4,000 tokens.

Run `make bench`, or this file as a script. Goal (issue "Foundation"): at most 1.3 times the bare
client's CPU. The bare client does the same requests with `session.post(json=...)` and `json.loads`;
`frugal` is one that is handed ready bytes and never looks at the answer: the floor of aiohttp.
"""

import asyncio
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

from rolloutkit import clock
from rolloutkit.engines.openai import Api, OpenAIConfig, OpenAIEngine
from rolloutkit.types import GenerateRequest, SampleId, SamplingParams, TokenPrompt

NUM_CHAINS, PROMPT_TOKENS, NEW_TOKENS, OUTPUT_TOKENS = 500, 4_000, 64, 32
GOAL = 1.3
SAMPLING = SamplingParams(max_tokens=OUTPUT_TOKENS)
IDS = [20_000 + k for k in range(OUTPUT_TOKENS)]

Program = Callable[[str, int], Awaitable[float]]


class Row(NamedTuple):
    answers: str
    num_turns: int
    engine_us: float
    bare_us: float
    frugal_us: float

    @property
    def ratio(self) -> float:
        return self.engine_us / self.bare_us


def new_chain(index: int) -> "array[int]":
    return array("i", (10_000 + (index * 7 + k * 13) % 30_000 for k in range(PROMPT_TOKENS)))


def grow(chain: "array[int]") -> None:
    chain.extend(IDS)
    chain.extend(range(15_000, 15_000 + NEW_TOKENS))


def fields() -> dict[str, Any]:
    return {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": OUTPUT_TOKENS,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "logprobs": 1,
        "return_token_ids": True,
    }


async def run_engine(url: str, num_turns: int) -> float:
    watched: list[int] = []

    async def play(index: int, chain: "array[int]") -> None:
        for turn in range(num_turns):
            request = GenerateRequest(
                sample_id=SampleId("t", index),
                attempt=0,
                chain_index=0,
                turn=turn,
                prompt=TokenPrompt(chain),
                sampling=SAMPLING,
            )
            completion = await engine.generate(request, watched.append)
            assert len(completion.token_ids) == OUTPUT_TOKENS
            grow(chain)
        engine.finish(SampleId("t", index))

    async with OpenAIEngine(OpenAIConfig(base_url=url, api=Api.COMPLETIONS)) as engine:
        return await cpu_seconds(play)


async def run_bare(url: str, num_turns: int) -> float:
    async def play(index: int, chain: "array[int]") -> None:
        for _ in range(num_turns):
            body = {"prompt": chain.tolist(), **fields()}
            ids: list[int] = []
            async with session.post(f"{url}/completions", json=body) as response:
                if response.content_type == "application/json":
                    ids = (await response.json())["choices"][0]["token_ids"]
                else:
                    async for line in response.content:
                        if line.startswith(b"data: {"):
                            for choice in json.loads(line[6:])["choices"]:
                                ids += choice["token_ids"]
            assert len(ids) == OUTPUT_TOKENS
            grow(chain)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1024)) as session:
        return await cpu_seconds(play)


async def run_frugal(url: str, num_turns: int) -> float:
    bodies: list[bytes] = []
    chain = new_chain(0)
    for _ in range(num_turns):
        bodies.append(json.dumps({"prompt": chain.tolist(), **fields()}).encode())
        grow(chain)

    async def play(*_: object) -> None:
        for body in bodies:
            async with session.post(f"{url}/completions", data=body) as response:
                await response.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1024)) as session:
        return await cpu_seconds(play)


async def cpu_seconds(play: Callable[[int, "array[int]"], Awaitable[None]]) -> float:
    """CPU of this process while all chains are played at once."""
    chains = [new_chain(index) for index in range(NUM_CHAINS)]
    started_at = time.process_time()
    await asyncio.gather(*map(play, range(NUM_CHAINS), chains))
    return time.process_time() - started_at


def serve() -> None:
    """Answer every completion with the same tokens, streamed or whole, by the path."""
    tokens = [
        {"choices": [{"text": "x", "token_ids": [i], "logprobs": {"token_logprobs": [-1.0]}}]}
        for i in IDS
    ]
    end = {"choices": [{"text": "", "token_ids": [], "finish_reason": "length"}]}
    usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS}
    events = [json.dumps(token).encode() for token in tokens]
    events += [json.dumps(end | {"usage": usage}).encode(), b"[DONE]"]
    choice = {"text": "x", "token_ids": IDS, "finish_reason": "length"}
    logprobs = {"token_logprobs": [-1.0] * OUTPUT_TOKENS}
    whole = {"choices": [choice | {"logprobs": logprobs}], "usage": usage}

    async def complete(request: web.Request) -> web.StreamResponse:
        await request.read()
        if request.match_info["answers"] == "whole":
            return web.json_response(whole)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + event + b"\n\n")
        return response

    async def models(_: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "m", "max_model_len": 100_000}]})

    async def main() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/{answers}/completions", complete)
        app.router.add_get("/{answers}/models", models)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=NUM_CHAINS)
        await site.start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    clock.run(main())


def measure() -> list[Row]:
    """The least CPU of three runs each, in turns, so that neighbours disturb all alike."""
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        base_url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        rows = []
        for answers in ("whole", "stream"):
            for num_turns in (1, 4):
                programs: tuple[Program, ...] = (run_engine, run_bare, run_frugal)
                runs = [
                    [clock.run(program(f"{base_url}/{answers}", num_turns)) for program in programs]
                    for _ in range(3)
                ]
                scale = 1e6 / (NUM_CHAINS * num_turns)
                rows.append(
                    Row(answers, num_turns, *(min(run) * scale for run in zip(*runs, strict=True)))
                )
        return rows
    finally:
        server.kill()
        server.communicate()


def test_http_engine() -> None:
    report()


def report() -> None:
    for row in measure():
        is_met = "goal met" if row.ratio <= GOAL else "goal missed"
        figures = {name: round(value, 1) for name, value in row._asdict().items() if "us" in name}
        line = {"answers": row.answers, "turns": row.num_turns, **figures}
        print(json.dumps(line | {"ratio": round(row.ratio, 2), "verdict": is_met}))


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else report()
