"""The routing scenarios: recorded chains on eight simulated workers, one of them unlike the others.

A batch holds `HOLD` times as many samples as the workers' memory, all alive from the start, drawn
anew for each seed; samples are parked when a worker's contexts outgrow its memory. Tools have
slots without end, so that nothing but the workers is contended.
"""

import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits, MemoryBudget
from rolloutkit.batch import Policies, Settings, opened, prepare
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.record.chains import read_chains
from rolloutkit.routing import Router, RouterSettings
from rolloutkit.sim.reference import ReferenceConfig, ReferenceEngine
from rolloutkit.sim.replay import Batch
from rolloutkit.sim.worker_faults import WorkerFault, arm
from rolloutkit.types import Status

DATA = Path(__file__).parents[2] / "data"
NUM_WORKERS = 8
GROUP_SIZE = 8
HOLD = 2.5
LAST = f"worker-{NUM_WORKERS - 1}"  # the one that differs
LONGEST = 0.45  # of a worker's memory that a context may fill: it must fit half of it
UNBOUNDED = Limits(
    pause=1e9, model_call=1e9, model_progress=1e9, action=1e9, turn=1e9, sample=1e9, max_turns=10**6
)


class Load(NamedTuple):
    """A model, a recording, and the share of the model's memory that a worker has: a small one,
    so that a batch stays small.
    """

    model: str
    file: str
    family: str
    memory_scale: float

    def config(self):
        return ReferenceConfig(
            model=self.model, num_workers=NUM_WORKERS, memory_scale=self.memory_scale
        )


LOADS = {
    "qwen3-32b, mini-swe": Load("qwen3-32b", "miniswe_gemini3_verified.jsonl.gz", "miniswe", 0.25),
    "ling-3.0-flash, weka": Load("ling-3.0-flash", "weka_claude_code.jsonl.gz", "weka", 0.25),
}


def equal(_):
    return ()


def slow(_):
    return (WorkerFault(worker=LAST, kind="slow", factor=1 / 0.6),)


def joins(makespan):
    return (
        WorkerFault(worker=LAST, kind="kill"),
        WorkerFault(worker=LAST, kind="start", at=makespan / 2),
    )


def dies(makespan):
    return (WorkerFault(worker=LAST, kind="kill", at=makespan / 3),)


def shrinks(makespan):
    return (WorkerFault(worker=LAST, kind="shrink", at=makespan / 6, factor=0.5),)


SCENARIOS = {  # the faults by the makespan that sticky_least_loaded has without any
    "equal workers": equal,
    "one at 60 % speed": slow,
    "one joins at half time": joins,
    "one dies at a third": dies,
    "one loses half its memory at a sixth": shrinks,
}


class Outcome(NamedTuple):
    makespan_seconds: float
    num_moves: int
    cached_share: float  # of the prompt tokens


class CountingSink:
    def __init__(self):
        self.makespan_seconds = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    async def put(self, trajectory):
        assert trajectory.status is Status.COMPLETED, trajectory.failure
        self.makespan_seconds = max(self.makespan_seconds, trajectory.timings.finished_at)
        self.prompt_tokens += trajectory.prompt_tokens
        self.cached_tokens += trajectory.cached_tokens

    async def close(self):
        pass


@cache
def chains_of(file, family):
    return read_chains(DATA / file, family)


def longest(chain):
    return max(turn.context + turn.output for turn in chain.turns)


def mean_context(chain):
    """By the time that it is held, at the speeds of the reference rates."""
    seconds = [turn.tool_seconds + turn.output / 60 for turn in chain.turns]
    held = sum(turn.context * each for turn, each in zip(chain.turns, seconds, strict=True))
    return held / sum(seconds)


def batch_of(load, seed):
    """Chains drawn with replacement, in whole groups."""
    config = load.config()
    timing, memory = config.timing, config.memory_bytes
    pool = [
        chain
        for chain in chains_of(load.file, load.family)
        if timing.running_bytes(longest(chain)) < LONGEST * memory
    ]
    rng = random.Random(seed)
    chains, needed = [], 0.0
    while needed < HOLD * NUM_WORKERS * memory or len(chains) % GROUP_SIZE:
        chains.append(rng.choice(pool))
        needed += timing.idle_bytes(mean_context(chains[-1]))
    return chains


def play(load, chains, policy, faults=(), seed=0):
    """Run a batch by the production scheduler in virtual time."""
    config = load.config()
    batch = Batch(chains, GROUP_SIZE)
    budget = MemoryBudget(
        capacity_bytes=config.memory_bytes,
        bytes_per_token=config.timing.kv_bytes_per_token,
        bytes_per_sample=2 * config.timing.state_bytes,
    )
    settings = Settings(
        admission=AdmissionLimits(max_samples=10**6, order="dataset"),
        actions=ActionSettings(order="fifo", step=PoolLimits(slots=None)),
        limits=UNBOUNDED,
        retry=RetryPolicy(max_attempts=1),
        keep_messages=False,
    )
    sink = CountingSink()

    async def main():
        stations = ReferenceEngine(config, batch.sizes_of).make_workers()
        arm(faults, {station.name: station for station in stations})
        router = Router(stations, RouterSettings(policy=policy), seed=seed)
        async with opened(router, UNBOUNDED.admin):
            orchestrator = prepare(
                sink,
                engine=router,
                program=batch.live,
                settings=settings,
                policies=Policies(budget=budget),
            )
            await orchestrator.run(batch.tasks())
        return router.fleet.num_moves

    num_moves = clock.run(main(), time="virtual")
    return Outcome(sink.makespan_seconds, num_moves, sink.cached_tokens / sink.prompt_tokens)
