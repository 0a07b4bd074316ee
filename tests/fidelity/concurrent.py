"""Samples side by side on a real SGLang server, and on the simulated one: a benchmark, no gate.

    python -m tests.fidelity.concurrent http://127.0.0.1:PORT max_total_tokens=6000 page_size=1 \
        chunked_prefill_size=512 max_running_requests=16 context_length=8192 num_samples=8

Flush the server before. Step times are a line over the batch for decoding and one over
tokens for prefill, fitted to what the server says of itself (`/v1/loads`); then both makespans and
the cached tokens are compared.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from array import array
from typing import NamedTuple

import aiohttp

from rolloutkit import clock
from rolloutkit.resources.timing import DecodeMoments, fit_line
from rolloutkit.sim.sglang import Server, ServersEngine, WorkerRules
from rolloutkit.sim.sglang.speech import RecordedSpeaker
from rolloutkit.sim.worker import Sizes
from rolloutkit.types import GenerateRequest, SampleId, SamplingParams, TokenPrompt
from tests.fidelity.turns import VOCABULARY

NUM_TURNS, GROUP_SIZE = 6, 4
SHARED_TOKENS, FIRST_TOKENS = 200, 260
START_SECONDS = 0.05  # between two samples, so that it is known who comes first


class Turn(NamedTuple):
    new: int
    output: int
    act_seconds: float


class Outcome(NamedTuple):
    makespan: float
    cached: int
    prompt: int


def turns_of(sample: int) -> list[Turn]:
    """What a sample does, on either server."""
    rng = random.Random(sample)
    return [
        Turn(
            FIRST_TOKENS if turn == 0 else rng.randint(20, 160),
            rng.randint(4, 40),
            rng.uniform(0.2, 4.0),
        )
        for turn in range(NUM_TURNS)
    ]


async def on_real(url: str, num_samples: int) -> Outcome:
    """All samples on the real server."""
    cached = prompt = 0
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:

        async def live(sample: int) -> None:
            nonlocal cached, prompt
            await asyncio.sleep(sample * START_SECONDS)
            shared = random.Random(sample // GROUP_SIZE)
            own = random.Random(1_000 + sample)
            context = [shared.choice(VOCABULARY) for _ in range(SHARED_TOKENS)]
            for index, turn in enumerate(turns_of(sample)):
                fresh = turn.new - SHARED_TOKENS if index == 0 else turn.new
                context += [own.choice(VOCABULARY) for _ in range(fresh)]
                body = {
                    "input_ids": context,
                    "sampling_params": {
                        "max_new_tokens": turn.output,
                        "temperature": 0,
                        "ignore_eos": True,
                    },
                }
                async with session.post(f"{url}/generate", json=body) as reply:
                    answer = await reply.json()
                context = context + answer["output_ids"]
                cached += answer["meta_info"]["cached_tokens"]
                prompt += answer["meta_info"]["prompt_tokens"]
                await asyncio.sleep(turn.act_seconds)

        started = time.perf_counter()
        await asyncio.gather(*map(live, range(num_samples)))
        return Outcome(time.perf_counter() - started, cached, prompt)


class LineTimer(NamedTuple):
    """Step times of a server that has reported on itself."""

    decode_base: float
    decode_per_request: float
    prefill_per_token: float

    def decode(self, num_running: float, context_tokens: float) -> float:
        return self.decode_base + self.decode_per_request * num_running

    def prefill(self, num_tokens: float, attended: float) -> float:
        return self.prefill_per_token * num_tokens


class Report(NamedTuple):
    """What the server has counted so far."""

    moments: DecodeMoments
    prefill_tokens: float
    prefill_seconds: float


async def report_of(url: str) -> Report:
    """What the server says of itself."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/loads") as reply:
        (load,) = (await reply.json())["loads"]
    return Report(
        DecodeMoments(*(load["decode_moments"] or [0.0] * 6)),
        load["total_prefill_uncached_tokens"],
        load["total_prefill_busy_us"] * 1e-6,
    )


def timer_of(before: Report, after: Report) -> LineTimer:
    """The step times of what ran in between."""
    moments = (new - old for old, new in zip(before.moments, after.moments, strict=True))
    line = fit_line(DecodeMoments(*moments))
    assert line is not None, "the server ran too little to be measured"
    seconds = after.prefill_seconds - before.prefill_seconds
    return LineTimer(*line, seconds / (after.prefill_tokens - before.prefill_tokens))


async def on_simulated(rules: WorkerRules, timer: LineTimer, num_samples: int) -> Outcome:
    """The same samples on the simulated server."""
    cached = prompt = 0

    def sizes_of(request: GenerateRequest) -> Sizes:
        turns = turns_of(request.sample_id.sample_index)[: request.turn + 1]
        context = sum(turn.new for turn in turns) + sum(turn.output for turn in turns[:-1])
        return Sizes(context, turns[-1].new, turns[-1].output)

    server = Server(rules=rules, timer=timer, kv_bytes_per_token=1, state_bytes=0, memory_bytes=0.0)
    speaker = RecordedSpeaker(sizes_of, SHARED_TOKENS)
    engine = ServersEngine(server, 1, speaker, says_tokens=False)

    async def live(sample: int) -> None:
        nonlocal cached, prompt
        await asyncio.sleep(sample * START_SECONDS)
        for index, turn in enumerate(turns_of(sample)):
            request = GenerateRequest(
                sample_id=SampleId(f"group-{sample // GROUP_SIZE}", sample),
                attempt=0,
                chain_index=0,
                turn=index,
                prompt=TokenPrompt(array("i")),
                sampling=SamplingParams(max_tokens=turn.output),
            )
            completion = await engine.generate(request)
            cached += completion.cached_tokens or 0
            prompt += completion.prompt_tokens or 0
            await asyncio.sleep(turn.act_seconds)

    started = clock.now()
    await asyncio.gather(*map(live, range(num_samples)))
    return Outcome(clock.now() - started, cached, prompt)


async def measure(url: str, num_samples: int) -> tuple[Outcome, LineTimer]:
    """The real server's outcome and step times."""
    before = await report_of(url)
    outcome = await on_real(url, num_samples)
    return outcome, timer_of(before, await report_of(url))


def main(url: str, arguments: dict[str, int]) -> None:
    """Print both outcomes."""
    rules = WorkerRules(
        kv_tokens=arguments["max_total_tokens"],
        page_tokens=arguments["page_size"],
        chunked_prefill_tokens=arguments["chunked_prefill_size"],
        max_running=arguments["max_running_requests"],
        max_context=arguments["context_length"],
        overlap=False,
        first_new_token_ratio=1.0,  # requests that ignore the end say all that they may
        least_new_token_ratio=1.0,
    )
    real, timer = asyncio.run(measure(url, arguments["num_samples"]))
    simulated = clock.run(on_simulated(rules, timer, arguments["num_samples"]), time="virtual")
    print(json.dumps({"timer": timer._asdict()}))
    print(json.dumps({"real": real._asdict()}))
    print(json.dumps({"simulated": simulated._asdict()}))
    print(f"makespan simulated / real: {simulated.makespan / real.makespan:.3f}")


if __name__ == "__main__":
    address, *named = sys.argv[1:]
    main(address, {name: int(value) for name, value in (one.split("=") for one in named)})
