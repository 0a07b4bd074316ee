"""The same batch on the real and on the virtual loop: same samples, same endings, same turns."""

import pytest

import rolloutkit as rk
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.engines.simulated import SimulatedConfig, SimulatedEngine
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.sim.scripted import FaultRates, ScriptedConfig, ScriptedEnvironment, Spread

SPEED = 1_000.0  # an hour of scripts in seconds

SETTINGS = rk.Settings(
    admission=AdmissionLimits(max_samples=12),
    actions=ActionSettings(order="caas", step=PoolLimits(slots=4)),
    limits=Limits(max_turns=12),
    retry=RetryPolicy(delay_seconds=0),
    breaker_failures=100,
)


def outcomes(time):
    scripted = ScriptedEnvironment(
        ScriptedConfig(
            num_tasks=10,
            num_samples=4,
            num_turns=Spread(6, 0.8),
            step_seconds=Spread(2 / SPEED, 1.0),
            set_up_seconds=Spread(5 / SPEED),
            score_seconds=Spread(1 / SPEED),
            close_seconds=Spread(1 / SPEED),
            step_faults=FaultRates(crash=0.01),
            seed=3,
        )
    )
    engine = SimulatedEngine(
        SimulatedConfig(
            decode_tokens_per_second=50 * SPEED,
            prefill_tokens_per_second=10_000 * SPEED,
            max_context=4_000,
            parallelism=8,
        )
    )
    trajectories = rk.run(
        scripted.tasks(), engine=engine, environment=scripted, settings=SETTINGS, time=time
    )
    return [
        (str(t.sample_id), t.status, t.stop_reason, t.num_turns, t.attempt, t.score)
        for t in trajectories
    ]


@pytest.mark.real_time
def test_real_and_virtual_runs_agree_on_every_sample():
    virtual = outcomes("virtual")

    assert virtual == outcomes("real")
    assert len({stop_reason for _, _, stop_reason, *_ in virtual}) >= 3


def test_two_virtual_runs_are_identical():
    assert outcomes("virtual") == outcomes("virtual")
