import asyncio
import signal
from collections import Counter

from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.cli.interrupts import Interrupts
from rolloutkit.engines.simulated import SimulatedConfig, SimulatedEngine
from rolloutkit.sim import ScriptedConfig, ScriptedEnvironment, Spread
from rolloutkit.sinks import CollectSink

GRACE = 20.0


async def run_and_interrupt(*moments: float) -> tuple[Counter, list[str], float]:
    """Ten samples of 60 s, four at once: how they ended, what was said, when it was over."""
    environment = ScriptedEnvironment(
        ScriptedConfig(num_tasks=10, num_turns=Spread(1), step_seconds=Spread(60.0))
    )
    sink = CollectSink()
    orchestrator = prepare(
        sink,
        engine=SimulatedEngine(SimulatedConfig(mean_tokens=1, sigma=0)),
        environment=environment,
        settings=Settings(admission=AdmissionLimits(max_samples=4)),
    )
    said: list[str] = []
    loop = asyncio.get_running_loop()
    started = loop.time()
    for moment in moments:
        loop.call_later(moment, signal.raise_signal, signal.SIGINT)
    with Interrupts(orchestrator, GRACE, said.append):
        await orchestrator.run(environment.tasks())
    ends = Counter(it.cancel_reason or it.status for it in sink.trajectories)
    return ends, said, loop.time() - started


async def test_the_living_samples_may_finish_within_the_grace_limit():
    ends, said, seconds = await run_and_interrupt(50.0)

    assert ends == {"completed": 4, "not_started": 6}
    assert said == ["interrupted: 4 samples may finish within 20 s; interrupt again to stop them"]
    assert 60 < seconds < 70


async def test_what_outlives_the_grace_limit_is_cancelled():
    ends, _, seconds = await run_and_interrupt(10.0)

    assert ends == {"interrupted": 4, "not_started": 6}
    assert 30 <= seconds < 31


async def test_the_second_interrupt_cancels_at_once():
    ends, said, seconds = await run_and_interrupt(10.0, 12.0)

    assert ends == {"interrupted": 4, "not_started": 6}
    assert said[1] == "interrupted again: closing the environments and writing what there is"
    assert 12 <= seconds < 13


async def test_former_handlers_are_back_after_the_run():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    await run_and_interrupt(10.0, 12.0)
    await run_and_interrupt()

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
