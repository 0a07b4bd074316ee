"""The acceptance scenarios of the scheduling policies, and the makespans that they must reproduce.

Batches and settings come from `tests/data/policy_scenarios.json`, the expected figures from the
policy study ("Acceptance scenarios"). A makespan here is one run of the production scheduler in
virtual time.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, CaasOrder, PoolLimits
from rolloutkit.admission import AdmissionLimits, MemoryBudget
from rolloutkit.batch import Policies, Settings, prepare
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.protocols import Engine
from rolloutkit.record.chains import RecordedTurn, read_chains
from rolloutkit.sim.bound import chains_bound
from rolloutkit.sim.clairvoyant import ClairvoyantActions, ClairvoyantAdmission
from rolloutkit.sim.reference import ReferenceConfig, ReferenceEngine, SizesOf
from rolloutkit.sim.replay import Batch
from rolloutkit.sim.uncontended import UncontendedConfig, UncontendedEngine
from rolloutkit.types import Status

DATA = Path(__file__).parents[2] / "data"
SEEDS = ("100", "101", "102", "103")


class SeedBatch(msgspec.Struct, frozen=True):
    samples: tuple[int, ...]  # line numbers in the trace file, in dataset order
    previous_epoch: tuple[tuple[int, ...], ...] = ()  # those of each group's earlier rollouts


class Scenario(msgspec.Struct, frozen=True, rename={"num_samples": "N", "slots": "C"}):
    fam: str
    model: str
    num_samples: int
    slots: int
    n_ref: int
    batches: dict[str, SeedBatch]
    W: int = 1
    mem: float = 1.0
    maxrun: int = 256


class ScenarioFile(msgspec.Struct, frozen=True):
    files: dict[str, str]
    scenarios: dict[str, Scenario]


@cache
def scenario_file():
    return msgspec.json.decode((DATA / "policy_scenarios.json").read_bytes(), type=ScenarioFile)


@cache
def chains_of(family):
    return read_chains(DATA / scenario_file().files[family], family)


class Model(NamedTuple):
    """What a scenario runs on. `work` is the reference work of a turn, `alone` its model call on an
    idle engine.
    """

    make_engine: Callable[[SizesOf], Engine]
    work: Callable[[RecordedTurn], float]
    alone: Callable[[RecordedTurn], float]
    engine: ReferenceConfig | None
    budget: MemoryBudget | None


def fixed_model():
    config = UncontendedConfig()

    def alone(turn):
        return turn.new / config.prefill_tokens_per_second + (
            turn.output / config.decode_tokens_per_second
        )

    def work(turn):
        return turn.tool_seconds + alone(turn)

    return Model(partial(UncontendedEngine, config), work, alone, None, None)


def reference_model(scenario, chains):
    config = ReferenceConfig(
        model={"qwen": "qwen3-32b", "ling": "ling-3.0-flash"}[scenario.model],
        num_workers=scenario.W,
        memory_scale=scenario.mem,
        max_running=scenario.maxrun,
    )
    timing = config.timing
    turns = [turn for chain in chains for turn in chain.turns]
    mean_context = sum(turn.context for turn in turns) / len(turns)
    token_seconds = timing.decode_seconds(24, 24 * mean_context)  # tau_ref of the policy study

    def work(turn):
        prefill = timing.prefill_alone_seconds(turn.new, turn.context)
        return turn.tool_seconds + turn.output * token_seconds + prefill

    def alone(turn):
        decode = timing.decode_alone_seconds(turn.context, turn.output)
        return timing.prefill_alone_seconds(turn.new, turn.context) + decode

    budget = MemoryBudget(
        capacity_bytes=config.memory_bytes,
        bytes_per_token=timing.kv_bytes_per_token,
        bytes_per_sample=2 * timing.state_bytes,
    )
    make_engine = partial(ReferenceEngine, config)
    return Model(make_engine, work, alone, config, budget)


class Setup(NamedTuple):
    """How a policy is set up in a scenario."""

    max_samples: int
    parks: bool
    policies: Policies


def coupled(scenario, _total_of):
    """A sample holds its slot for its whole life."""
    return Setup(scenario.slots, parks=False, policies=Policies())


def unlimited(scenario, _total_of):
    return Setup(scenario.num_samples, parks=False, policies=Policies())


def fifo(scenario, _total_of):
    return Setup(scenario.n_ref, parks=True, policies=Policies())


def caas(scenario, _total_of):
    policies = Policies(actions=CaasOrder, priority=lambda demand: demand.num_turns)
    return Setup(scenario.n_ref, parks=True, policies=policies)


def clairvoyant(scenario, total_of):
    policies = Policies(
        admission=ClairvoyantAdmission(total_of),
        actions=lambda: ClairvoyantActions(total_of),
        priority=lambda demand: total_of(demand.sample_id),
    )
    return Setup(scenario.n_ref, parks=True, policies=policies)


POLICIES = {
    "coupled": coupled,
    "M=N fifo": unlimited,
    "fifo": fifo,
    "caas": caas,
    "clairvoyant": clairvoyant,
}

UNBOUNDED = Limits(
    pause=1e9, model_call=1e9, model_progress=1e9, action=1e9, turn=1e9, sample=1e9, max_turns=10**6
)


class CountingSink:
    """Remembers when the last sample ended and how many turns there were."""

    def __init__(self):
        self.makespan_seconds = 0.0
        self.num_turns = 0

    async def put(self, trajectory):
        assert trajectory.status is Status.COMPLETED, trajectory.failure
        self.makespan_seconds = max(self.makespan_seconds, trajectory.timings.finished_at)
        self.num_turns += trajectory.num_turns

    async def close(self):
        pass


def chains_and_model(name, seed):
    scenario = scenario_file().scenarios[name]
    family = chains_of(scenario.fam)
    chains = [family[line] for line in scenario.batches[seed].samples]
    is_fixed = scenario.model == "fixed"
    return chains, fixed_model() if is_fixed else reference_model(scenario, chains)


def bound(name, seed):
    """The lower bound of a batch, and what sets it."""
    chains, model = chains_and_model(name, seed)
    slots = scenario_file().scenarios[name].slots
    return chains_bound(chains, alone_seconds=model.alone, slots=slots, engine=model.engine)


def replay(name, seed, policy):
    """Run a batch; its makespan in seconds of virtual time, and how many turns it had."""
    scenario = scenario_file().scenarios[name]
    chains, model = chains_and_model(name, seed)
    batch = Batch(chains)
    totals = {sample_id: sum(map(model.work, chain.turns)) for sample_id, chain in batch.items()}
    setup = POLICIES[policy](scenario, totals.__getitem__)
    sink = CountingSink()
    settings = Settings(
        admission=AdmissionLimits(order="dataset", max_samples=setup.max_samples),
        actions=ActionSettings(order="fifo", step=PoolLimits(slots=scenario.slots)),
        limits=UNBOUNDED,
        retry=RetryPolicy(max_attempts=1),
        keep_messages=False,
    )
    budget = model.budget if setup.parks else None
    policies = msgspec.structs.replace(setup.policies, budget=budget)

    async def main():
        orchestrator = prepare(
            sink,
            engine=model.make_engine(batch.sizes_of),
            program=batch.live,
            settings=settings,
            policies=policies,
        )
        await orchestrator.run(batch.tasks())

    clock.run(main(), time="virtual")
    return sink
