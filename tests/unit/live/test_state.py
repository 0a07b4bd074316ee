import asyncio

from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.engines.simulated import SimulatedConfig, SimulatedEngine
from rolloutkit.jobs import background
from rolloutkit.live.progress import Progress
from rolloutkit.live.state import look
from rolloutkit.record.recorder import Recorder
from rolloutkit.sim import ScriptedConfig, ScriptedEnvironment, Spread
from rolloutkit.sinks import CollectSink
from rolloutkit.types import Status


async def test_a_look_tells_what_every_sample_does():
    environment = ScriptedEnvironment(
        ScriptedConfig(
            num_tasks=10,
            num_turns=Spread(2),
            step_seconds=Spread(10.0),
            set_up_seconds=Spread(0.0),
            score_seconds=Spread(0.0),
            close_seconds=Spread(0.0),
        )
    )
    engine = SimulatedEngine(
        SimulatedConfig(mean_tokens=100, sigma=0, decode_tokens_per_second=100)
    )
    progress = Progress(10)
    orchestrator = prepare(
        CollectSink(),
        engine=engine,
        environment=environment,
        settings=Settings(
            admission=AdmissionLimits(max_samples=4),
            actions=ActionSettings(step=PoolLimits(slots=1)),
        ),
        recorder=Recorder([progress]),
    )
    started = asyncio.get_running_loop().time()
    async with background(orchestrator.run(environment.tasks()), name="run") as job:
        await asyncio.sleep(0.5)
        early = look(orchestrator, progress, started + 0.5, started)
        await asyncio.sleep(4.5)
        later = look(orchestrator, progress, started + 5.0, started)
        (await job.outcome()).unwrap()
    end = look(orchestrator, progress, asyncio.get_running_loop().time(), started)

    assert (early.num_queued, early.num_alive, early.num_ended) == (6, 4, 0)
    assert early.activities["generating"] == 4
    assert later.activities["waiting for an action"] == 3
    assert later.activities["acting"] == 1
    assert [sample.sample_id for sample in later.oldest] == [f"task-{i}#0" for i in range(4)]
    (acting,) = [sample for sample in later.oldest if sample.activity == "scripted.step"]
    assert 3.5 < acting.activity_seconds < 4.5
    assert (end.num_alive, end.num_queued, end.ended[Status.COMPLETED]) == (0, 0, 10)
    assert end.seconds_left is None
