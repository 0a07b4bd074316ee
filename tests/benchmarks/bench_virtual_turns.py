"""Scheduler cost in virtual time: turns per CPU second and memory per living sample.

Run `make bench`, or this file as a script with `num_samples` arguments. Goals (issue "Foundation"):
8,000 turns per CPU second at 10,000 samples alive, no fall-off above 20 % at 50,000, at most 12 KiB
per living sample beyond its tokens. The bare program does the same sleeps and nothing else.
"""

import asyncio
import json
import subprocess
import sys
import time
import tracemalloc
from array import array

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.protocols import Capabilities
from rolloutkit.sim.scripted import ScriptedConfig, ScriptedEnvironment, Spread
from rolloutkit.types import Completion, FinishReason

NUM_TURNS = 7
SPOKEN = array("i", range(20))
LOGPROBS = array("f", [-1.0] * 20)


class SleepingEngine:
    """Two seconds a call and nothing else: what is left is the scheduler."""

    capabilities = Capabilities(token_ids=True, logprobs=True)

    async def generate(self, request, on_progress=None):
        await asyncio.sleep(2.0)
        return Completion(
            finish_reason=FinishReason.STOP,
            token_ids=SPOKEN,
            logprobs=LOGPROBS,
            prompt_tokens=len(request.prompt.token_ids),
            cached_tokens=0,
        )

    def finish(self, sample_id):
        pass


class CountingSink:
    """Counts the turns of what ends."""

    def __init__(self):
        self.num_turns = 0

    async def put(self, trajectory):
        self.num_turns += trajectory.num_turns

    async def close(self):
        pass


def environment(num_samples):
    return ScriptedEnvironment(
        ScriptedConfig(
            num_tasks=num_samples // 10,
            num_samples=10,
            num_turns=Spread(NUM_TURNS, 0.3),
            step_seconds=Spread(1.0, 0.5),
            prompt_tokens=Spread(50),
            observation_tokens=Spread(30),
        )
    )


def settings(num_samples):
    return Settings(
        admission=AdmissionLimits(max_samples=num_samples, lookahead=num_samples),
        actions=ActionSettings(
            order="fifo",
            step=PoolLimits(slots=num_samples // 3),
            set_up=PoolLimits(),
            score=PoolLimits(),
        ),
        keep_messages=False,
    )


async def run_batch(num_samples):
    """CPU seconds and turns of the whole batch."""
    scripted = environment(num_samples)
    sink = CountingSink()
    tasks = scripted.tasks()
    orchestrator = prepare(
        sink, engine=SleepingEngine(), environment=scripted, settings=settings(num_samples)
    )
    started = time.process_time()
    await orchestrator.run(tasks)
    return time.process_time() - started, sink.num_turns


async def run_bare(num_samples):
    """The same number of coroutines with the same sleeps under a semaphore, on the same loop."""
    slots = asyncio.Semaphore(num_samples // 3)

    async def sample():
        for _ in range(NUM_TURNS):
            await asyncio.sleep(2.0)
            async with slots:
                await asyncio.sleep(1.0)

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(num_samples):
            group.create_task(sample())
    return time.process_time() - started, num_samples * NUM_TURNS


async def measure_memory(num_samples):
    """Bytes per living sample beyond its tokens, at a moment when all live and have a few turns."""
    scripted = environment(num_samples)
    tasks = scripted.tasks()
    orchestrator = prepare(
        CountingSink(),
        engine=SleepingEngine(),
        environment=scripted,
        settings=settings(num_samples),
    )
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    job = asyncio.create_task(orchestrator.run(tasks))
    await asyncio.sleep(6.5)
    lives = list(orchestrator.alive.values())
    token_bytes = sum(chain.nbytes() for life in lives for chain in life.context.dialogue.chains)
    num_tokens = sum(len(chain) for life in lives for chain in life.context.dialogue.chains)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    orchestrator.drain()
    job.cancel()
    return {
        "alive": len(lives),
        "kib_per_sample": round((used - token_bytes) / len(lives) / 1024, 2),
        "tokens_per_sample": round(num_tokens / len(lives)),
    }


def chain_bytes_per_token():
    """Bytes that a grown chain really holds per token, spare capacity included."""
    from rolloutkit.types import Chain

    chain = Chain()
    for _ in range(500):
        chain.append_context(range(100))
        chain.append_completion(
            Completion(finish_reason=FinishReason.STOP, token_ids=SPOKEN, logprobs=LOGPROBS)
        )
    arrays = (chain.token_ids, chain.logprobs, chain.sampled_mask, chain.policy_versions)
    return round(sum(sys.getsizeof(one) for one in arrays) / len(chain), 2)


def measure(what, num_samples):
    """Run one measurement in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, __file__, what, str(num_samples)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_virtual_turns():
    best = {}
    for num_samples in (10_000, 50_000):
        runs = [measure("batch", num_samples) for _ in range(3)]
        best[num_samples] = max(runs, key=lambda run: run["turns_per_cpu_second"])
    bare = measure("bare", 10_000)
    at_10, at_50 = (best[n]["turns_per_cpu_second"] for n in (10_000, 50_000))
    report = {
        "turns_per_cpu_second_10k": at_10,
        "turns_per_cpu_second_50k": at_50,
        "fall_off": round(1 - at_50 / at_10, 3),
        "bare_turns_per_cpu_second_10k": bare["turns_per_cpu_second"],
        "memory": measure("memory", 10_000),
        "chain_bytes_per_token": chain_bytes_per_token(),
        "goals": {"turns": 8_000, "fall_off": 0.2, "kib_per_sample": 12, "bytes_per_token": 16},
    }
    print(json.dumps(report))


def main():
    what, num_samples = sys.argv[1], int(sys.argv[2])
    if what == "memory":
        print(json.dumps(clock.run(measure_memory(num_samples), time="virtual")))
        return
    program = run_batch if what == "batch" else run_bare
    seconds, num_turns = clock.run(program(num_samples), time="virtual")
    print(json.dumps({"turns_per_cpu_second": round(num_turns / seconds), "turns": num_turns}))


if __name__ == "__main__":
    main()
