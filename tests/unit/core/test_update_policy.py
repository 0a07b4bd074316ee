"""New weights in the middle of a run: what waits, what is charged for it, and what is stamped."""

import asyncio

import pytest

from rolloutkit import clock
from rolloutkit.batch import Settings, prepare
from rolloutkit.errors import ConfigError, EngineError
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.protocols import PauseMode, WeightUpdate
from rolloutkit.record.events import WeightsUpdated
from rolloutkit.record.recorder import Recorder
from rolloutkit.routing import Router
from rolloutkit.sinks import CollectSink
from rolloutkit.types import Status, Task, VersionSpan
from tests.fakes import FakeEngine, completion

TIGHT = Limits(model_call=8, turn=10, sample=30, action=5, pause=1_000)


class Held(FakeEngine):
    """Takes weights after `load_seconds`; calls under way stand still meanwhile."""

    name = "held"

    def __init__(self, seconds=5.0, load_seconds=100.0, fails=False):
        super().__init__(seconds)
        self.load_seconds = load_seconds
        self.fails = fails
        self.version = 0
        self.log = []
        self.going = asyncio.Event()
        self.going.set()

    async def generate(self, request, on_progress=None):
        self.num_running += 1
        try:
            await asyncio.sleep(self.seconds / 2)
            first = self.version
            await self.going.wait()
            await asyncio.sleep(self.seconds / 2)
            spans = (VersionSpan(first, 0, 1), VersionSpan(self.version, 1, 3))
            return completion(request, versions=spans)
        finally:
            self.num_running -= 1

    async def pause(self, mode):
        self.log.append((clock.now(), str(mode), self.num_running))
        self.going.clear()

    async def resume(self):
        self.going.set()

    async def update_weights(self, update):
        await asyncio.sleep(self.load_seconds)
        if self.fails:
            raise EngineError("no such file")
        self.version = update.version


def play(engine_of, *, at=1.0, mode=PauseMode.HOLD, num_samples=2, num_turns=1, limits=TIGHT):
    """Run samples that only generate, and update the weights once."""
    sink, events, problems = CollectSink(), [], []

    async def program(sample):
        for _ in range(num_turns):
            await sample.generate(token_ids=[1, 2])

    async def main():
        engine = engine_of()
        orchestrator = prepare(
            sink,
            engine=engine,
            program=program,
            settings=Settings(limits=limits, retry=RetryPolicy(max_attempts=1)),
            recorder=Recorder([events.append]),
        )

        async def update():
            await asyncio.sleep(at)
            try:
                await orchestrator.update_policy(WeightUpdate(version=7), mode)
            except (EngineError, ConfigError) as error:
                problems.append(error)

        updating = asyncio.create_task(update())
        await orchestrator.run([Task(task_id="t", num_samples=num_samples)])
        await updating
        return engine

    return clock.run(main(), time="virtual"), sink.trajectories, events, problems


def versions_of(trajectory):
    mask, versions = trajectory.chains[0].sampled_mask, trajectory.chains[0].policy_versions
    return [version for sampled, version in zip(mask, versions, strict=True) if sampled]


def test_calls_stand_still_and_the_pause_is_charged_to_no_limit_of_theirs():
    _, trajectories, events, _ = play(Held, num_turns=2)

    assert [one.status for one in trajectories] == [Status.COMPLETED] * 2
    (updated,) = [event for event in events if isinstance(event, WeightsUpdated)]
    assert (updated.version, updated.mode, updated.seconds) == (7, "hold", 100.0)


def test_every_token_carries_the_version_that_sampled_it():
    _, trajectories, _, _ = play(Held, num_turns=2)

    assert versions_of(trajectories[0]) == [0, 7, 7, 7, 7, 7]


def test_calls_finish_first_and_later_ones_wait_at_the_gate():
    engine, trajectories, _, _ = play(Held, mode=PauseMode.FINISH, num_turns=2)

    assert engine.log == [(5.0, "finish", 0)]
    assert [one.status for one in trajectories] == [Status.COMPLETED] * 2
    assert versions_of(trajectories[0]) == [0, 0, 0, 7, 7, 7]
    assert trajectories[0].timings.finished_at == 110.0


def test_a_pause_that_takes_too_long_ends_with_a_message_and_the_run_goes_on():
    limits = Limits(pause=50, model_call=8)

    _, trajectories, _, (problem,) = play(Held, num_turns=2, limits=limits)

    assert "limits.pause of 50 s" in str(problem)
    assert [one.status for one in trajectories] == [Status.COMPLETED] * 2
    assert versions_of(trajectories[0]) == [0] * 6


def test_weights_that_cannot_be_loaded_leave_the_run_going():
    _, trajectories, _, (problem,) = play(lambda: Held(fails=True), num_turns=2)

    assert "no such file" in str(problem)
    assert [one.status for one in trajectories] == [Status.COMPLETED] * 2


def test_an_engine_without_control_is_refused_by_name():
    _, trajectories, _, (problem,) = play(FakeEngine)

    assert "FakeEngine cannot change its weights" in str(problem)
    assert [one.status for one in trajectories] == [Status.COMPLETED] * 2


class Probed(Held):
    async def probe(self):
        raise NotImplementedError


@pytest.mark.parametrize("mode", [PauseMode.FINISH, PauseMode.HOLD])
def test_a_router_passes_it_on(mode):
    _, trajectories, _, problems = play(lambda: Router([Probed()]), mode=mode, num_turns=2)

    assert problems == []
    assert [one.status for one in trajectories] == [Status.COMPLETED] * 2
    assert versions_of(trajectories[0])[-1] == 7
