"""CPU of one turn with SGLang: our worker against a bare aiohttp client, 500 chains in flight.

Run `make bench`, or this file as a script. Goal as for `bench_http_engine.py`, whose chains these
are: at most 1.3 times the bare client, which asks for the same stream and decodes its last event
with `json.loads`. The server is a fake one that answers what SGLang 0.5.23 does.
"""

import asyncio
import json
import subprocess
import sys
from array import array
from typing import Any

import aiohttp
from aiohttp import web

from rolloutkit import clock
from rolloutkit.engines.sglang import SGLangConfig, SGLangEngine
from rolloutkit.types import GenerateRequest, SampleId, TokenPrompt
from tests.benchmarks.bench_http_engine import (
    GOAL,
    IDS,
    NUM_CHAINS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    SAMPLING,
    cpu_seconds,
    grow,
)

NUM_TURNS = 4


def event(ids: list[int], *, is_last: bool) -> bytes:
    """Everything up to the last of the ids."""
    meta = {
        "id": "x",
        "finish_reason": {"type": "length", "length": len(ids)} if is_last else None,
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": len(ids),
        "cached_tokens": PROMPT_TOKENS - 64,
        "weight_versions": [{"version": "1", "start": 0, "end": len(ids)}],
        "output_token_logprobs": [[-1.25, one, None] for one in ids],
    }
    said = {"text": "x" * 4 * len(ids), "output_ids": ids, "meta_info": meta}
    return b"data: " + json.dumps(said).encode() + b"\n\n"


def serve() -> None:
    """Answer with a first event and a last one, as a stream with an interval of 32 tokens does."""
    stream = (event(IDS[:1], is_last=False), event(IDS, is_last=True), b"data: [DONE]\n\n")
    probe = (event(IDS[:2], is_last=True), b"data: [DONE]\n\n")
    info = {"served_model_name": "m", "max_req_input_len": 100_000}

    async def generate(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in stream if len(body) > 1_000 else probe:
            await response.write(part)
        return response

    async def server_info(_: web.Request) -> web.StreamResponse:
        return web.json_response(info)

    async def main() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/generate", generate)
        app.router.add_get("/server_info", server_info)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=NUM_CHAINS).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()

    clock.run(main())


async def run_worker(url: str) -> float:
    counts: list[int] = []

    async def play(index: int, chain: "array[int]") -> None:
        for turn in range(NUM_TURNS):
            request = GenerateRequest(
                sample_id=SampleId("t", index),
                attempt=0,
                chain_index=0,
                turn=turn,
                prompt=TokenPrompt(chain),
                sampling=SAMPLING,
            )
            completion = await worker.generate(request, counts.append)
            assert len(completion.token_ids) == OUTPUT_TOKENS
            grow(chain)
        worker.finish(SampleId("t", index))

    (worker,) = SGLangEngine(SGLangConfig(workers=(url,))).make_workers()
    async with worker:
        return await cpu_seconds(play)


async def run_bare(url: str) -> float:
    async def play(index: int, chain: "array[int]") -> None:
        for turn in range(NUM_TURNS):
            body = {
                "input_ids": chain.tolist(),
                "sampling_params": {
                    "max_new_tokens": OUTPUT_TOKENS,
                    "temperature": 1.0,
                    "stream_interval": 32,
                },
                "return_logprob": True,
                "stream": True,
                "rid": f"{index}/{turn}",
            }
            last = b""
            async with session.post(f"{url}/generate", json=body) as response:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        last = line[6:]
            answer: dict[str, Any] = json.loads(last)
            assert len(answer["meta_info"]["output_token_logprobs"]) == OUTPUT_TOKENS
            grow(chain)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1024)) as session:
        return await cpu_seconds(play)


def report() -> None:
    server = subprocess.Popen([sys.executable, __file__, "serve"], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        runs = [(clock.run(run_worker(url)), clock.run(run_bare(url))) for _ in range(5)]
    finally:
        server.kill()
        server.communicate()
    ours, bare = (min(run) * 1e6 / (NUM_CHAINS * NUM_TURNS) for run in zip(*runs, strict=True))
    line = {"worker_us": round(ours, 1), "bare_us": round(bare, 1), "ratio": round(ours / bare, 2)}
    print(json.dumps(line | {"verdict": "goal met" if ours <= GOAL * bare else "goal missed"}))


def test_sglang_engine() -> None:
    report()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else report()
