"""Whatever workers do and whoever is cancelled: no turn is lost or doubled, nothing is kept."""

import asyncio
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutkit import clock
from rolloutkit.errors import ConfigError, EngineError, RunFailed
from rolloutkit.protocols import PauseMode, WeightUpdate
from rolloutkit.routing import Router, RouterSettings
from rolloutkit.types import SampleId
from tests.property.examples import NUM_EXAMPLES, moments, ticks
from tests.property.moments import at
from tests.unit.routing.workers import FakeWorker, request_of

POLICIES = ["round_robin", "sticky", "sticky_least_loaded", "sticky_least_work", "cost"]
EVENTS = st.lists(
    st.tuples(
        moments,
        st.integers(0, 2),
        st.sampled_from(["kill", "start", "mute", "break", "remove", "update", "abort"]),
    ),
    max_size=8,
)
SAMPLES = st.lists(
    st.tuples(ticks, st.integers(1, 4), st.none() | moments), min_size=1, max_size=8
)  # starts, turns, cancelled


# An example takes 0.15 s: fewer of them in the default suite, as many as of the others in CI.
router_examples = settings(max_examples=NUM_EXAMPLES if NUM_EXAMPLES > 150 else 40)


@pytest.mark.timeout(300)
@router_examples
@given(
    samples=SAMPLES,
    events=EVENTS,
    seconds=st.lists(ticks, min_size=3, max_size=3),
    policy=st.sampled_from(POLICIES),
    gone_seconds=st.sampled_from([5, 10_000]),
)
def test_no_turn_is_lost_or_doubled_and_nothing_is_kept(  # noqa: C901 - one scenario, read top to bottom
    samples, events, seconds, policy, gone_seconds
):
    workers = [FakeWorker(f"w{index}", each) for index, each in enumerate(seconds)]
    answered = {}
    failed = set()

    async def main():  # noqa: C901 - as above
        settings = RouterSettings(
            policy=policy,
            poll_seconds=1,
            probe_seconds=1,
            stall_seconds=9,
            max_failures=2,
            gone_seconds=gone_seconds,
        )
        router = Router(workers, settings)
        controls = []

        async def live(index, num_turns):
            sample_id = SampleId("t", index)
            try:
                for turn in range(num_turns):
                    completion = await router.generate(request_of(index, turn))
                    assert (index, turn) not in answered
                    answered[index, turn] = completion
            except (EngineError, RunFailed):
                failed.add(index)
            finally:
                router.finish(sample_id)

        def happen(worker, what):
            match what:
                case "kill":
                    worker.kill()
                case "start":
                    worker.start()
                case "mute":
                    worker.is_mute = True
                case "break":
                    worker.breaks += 3
                case "remove":
                    controls.append(asyncio.create_task(remove(worker.name)))
                case "update" | "abort":
                    mode = PauseMode.ABORT if what == "abort" else PauseMode.FINISH
                    controls.append(asyncio.create_task(update(mode)))

        async def remove(name):
            with contextlib.suppress(ConfigError):  # it has left already
                await router.remove(name)

        async def update(mode):
            try:
                await router.pause(mode)
                await router.update_weights(WeightUpdate(version=len(controls)))
            except EngineError:
                pass
            finally:
                await router.resume()

        async with router:
            lives = []
            for index, (starts, num_turns, cancelled) in enumerate(samples):
                await asyncio.sleep(starts)
                lives.append(asyncio.create_task(live(index, num_turns)))
                if cancelled is not None:
                    at(cancelled, lives[-1].cancel)
            for moment, index, what in events:
                at(moment, lambda index=index, what=what: happen(workers[index], what))
            await asyncio.sleep(100)
            for worker in workers:  # whatever happened to them, they are well in the end
                worker.start()
                worker.breaks = 0
            await asyncio.sleep(1_000)
            assert all(control.done() for control in controls)
            assert all(task.done() for task in lives)
            assert not any(task.exception() for task in lives if not task.cancelled())
            assert not router._visited
            assert not router.fleet._residents
            assert not router.fleet._groups
            assert not router.fleet._prefixes
            assert not any(member.num_calls for member in router._by_index)
            for counts in (router.fleet.num_residents, router.fleet.num_tokens):
                assert not counts.any()
        assert not any(worker.num_running for worker in workers)
        assert len(asyncio.all_tasks()) == 1

    clock.run(main(), time="virtual")

    for index, (_, num_turns, cancelled) in enumerate(samples):
        turns = [turn for sample, turn in answered if sample == index]
        assert turns == list(range(len(turns)))
        if cancelled is None and index not in failed:
            assert len(turns) == num_turns
