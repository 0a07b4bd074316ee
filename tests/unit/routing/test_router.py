"""The router's life with workers: who is asked, who is ejected, and that turns come back once."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from rolloutkit.clock import now
from rolloutkit.errors import ConfigError, EngineError, RequestError, RunFailed
from rolloutkit.protocols import PauseMode, WeightUpdate
from rolloutkit.routing import Router, RouterSettings
from rolloutkit.types import FinishReason, SampleId
from tests.unit.routing.workers import FakeWorker, request_of


@asynccontextmanager
async def routed(*workers, **settings):
    """A router over workers, and what it told of them."""
    router = Router(workers, RouterSettings(**settings))
    told = []
    async with router:
        router.on_worker_change = lambda name, change, reason: told.append((name, str(change)))
        yield router, told


def pair():
    return FakeWorker("a"), FakeWorker("b")


async def test_a_sample_returns_to_its_worker_and_another_goes_elsewhere():
    a, b = pair()
    async with routed(a, b) as (router, _):
        for turn in range(3):
            await router.generate(request_of(0, turn))
            await router.generate(request_of(1, turn))

    homes = [{request.sample_id for request in worker.served} for worker in (a, b)]
    assert sorted(map(len, homes)) == [1, 1]
    assert len(a.served) == len(b.served) == 3


async def test_priorities_reach_the_worker_as_they_are():
    a = FakeWorker("a")
    async with routed(a) as (router, _):
        await router.generate(request_of(0, priority=3.5))

    assert [request.priority for request in a.served] == [3.5]


async def test_the_worker_is_stamped_on_the_completion():
    async with routed(FakeWorker("only")) as (router, _):
        completion = await router.generate(request_of(0))

    assert completion.worker == "only"


async def test_a_turn_whose_worker_dies_comes_from_another_once():
    a, b = pair()
    async with routed(a, b) as (router, told):
        call = asyncio.create_task(router.generate(request_of(0)))
        await asyncio.sleep(0.5)
        (lost,) = [worker for worker in (a, b) if worker.running]
        (other,) = {a, b} - {lost}
        lost.kill()
        completion = await call

    assert completion.worker == other.name
    assert completion.num_retries == 1
    assert (lost.served, len(other.served)) == ([], 1)
    assert told == [(lost.name, "ejected")]


async def test_residents_of_a_lost_worker_get_other_homes_and_its_calls_end_at_once():
    a, b = FakeWorker("a", 50.0), FakeWorker("b", 50.0)
    async with routed(a, b, probe_seconds=1, poll_seconds=1, max_failures=2) as (router, told):
        calls = [asyncio.create_task(router.generate(request_of(index))) for index in range(6)]
        await asyncio.sleep(0.5)
        a.is_mute = True
        await asyncio.sleep(5)

        assert told == [("a", "ejected")]
        assert (a.num_running, b.num_running) == (0, 6)
        for call in calls:
            assert (await call).worker == "b"


async def test_a_worker_without_progress_is_ejected():
    a, b = FakeWorker("a", 1e6), FakeWorker("b")
    a.num_generated = b.num_generated = 5
    async with routed(a, b, stall_seconds=30) as (router, told):
        calls = [asyncio.create_task(router.generate(request_of(index))) for index in range(2)]
        for call in calls:
            assert (await call).worker == "b"
        assert 30 <= now() <= 45

    assert told == [("a", "ejected")]


async def test_a_worker_that_tells_no_progress_is_not_ejected_for_it():
    a = FakeWorker("a", 1_000.0)
    async with routed(a, stall_seconds=30) as (router, told):
        await router.generate(request_of(0))

    assert told == []


async def test_failures_in_a_row_eject_and_one_does_not():
    a, b = pair()
    async with routed(a, b, policy="sticky", max_failures=2, max_tries=4) as (router, told):
        a.breaks = 1
        assert (await router.generate(request_of(0))).worker == "a"
        assert told == []
        a.breaks = 2
        assert (await router.generate(request_of(0, 1))).worker == "b"

    assert told[0] == ("a", "ejected")


async def test_a_turn_that_fails_everywhere_fails_in_bounded_tries():
    a, b = pair()
    a.error = b.error = EngineError("cannot do that")
    async with routed(a, b, max_failures=100, max_tries=3) as (router, _):
        with pytest.raises(EngineError, match="cannot do that"):
            await router.generate(request_of(0))
        assert now() == pytest.approx(3)


async def test_a_refused_request_is_passed_on_and_held_against_nobody():
    a, b = pair()
    a.error = b.error = RequestError("too long")
    async with routed(a, b, max_failures=1) as (router, told):
        with pytest.raises(RequestError):
            await router.generate(request_of(0))

    assert told == []


async def test_a_worker_that_answers_again_is_readmitted_and_eased_in():
    a, b = pair()
    async with routed(a, b) as (router, told):
        a.kill()
        await asyncio.sleep(30)
        a.is_down = False
        await asyncio.sleep(10)
        await asyncio.gather(*[router.generate(request_of(index)) for index in range(20)])

        assert told == [("a", "ejected"), ("a", "readmitted")]
        assert len(a.served) == 4
        await asyncio.gather(*[router.generate(request_of(index)) for index in range(20, 40)])
        assert len(a.served) == 4 + 2 * 4


async def test_one_that_comes_and_goes_must_answer_longer_each_time():
    a, b = pair()
    waits = []
    async with routed(a, b, poll_seconds=1, max_failures=1) as (router, told):
        router.on_worker_change = lambda *change: told.append((*change[:2], now()))
        for _ in range(4):
            a.is_down = True
            await asyncio.sleep(5)
            a.is_down = False
            came_at = now()
            await asyncio.sleep(60)
            waits.append(told[-1][2] - came_at)

    assert waits == sorted(waits)
    assert waits[-1] > waits[0] + 5


async def test_a_run_without_workers_ends_with_a_clear_message():
    a, b = pair()
    async with routed(a, b, gone_seconds=100) as (router, _):
        call = asyncio.create_task(router.generate(request_of(0)))
        await asyncio.sleep(0.5)
        a.kill()
        b.kill()
        with pytest.raises(RunFailed, match=r"gone_seconds of 100 s: a, b"):
            await call
        assert now() == pytest.approx(100.5, abs=1)


async def test_a_worker_that_comes_back_in_time_takes_the_turn():
    a = FakeWorker("a")
    async with routed(a, gone_seconds=100) as (router, _):
        call = asyncio.create_task(router.generate(request_of(0)))
        await asyncio.sleep(0.5)
        a.kill()
        await asyncio.sleep(50)
        a.is_down = False
        completion = await call

    assert completion.worker == "a"


async def test_a_worker_joins_and_another_leaves_when_its_calls_are_done():
    a, b = pair()
    async with routed(a) as (router, told):
        first = asyncio.create_task(router.generate(request_of(0)))
        await asyncio.sleep(0.5)
        await router.add(b)
        await asyncio.sleep(0)
        await router.remove("a")

        assert first.done()
        assert (await first).worker == "a"
        assert (await router.generate(request_of(0, 1))).worker == "b"
        assert told == [("b", "joined"), ("b", "readmitted"), ("a", "left")]
        with pytest.raises(ConfigError, match="there is no 'a'"):
            await router.remove("a")


async def test_no_worker_at_the_start_is_refused_and_one_is_enough():
    a, b = pair()
    a.is_down = True
    async with routed(a, b) as (router, _):
        assert (await router.generate(request_of(0))).worker == "b"
    b.is_down = True
    with pytest.raises(EngineError, match="no worker answers: a, b"):
        async with routed(a, b):
            pass


def test_workers_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="a is named twice"):
        Router([FakeWorker("a"), FakeWorker("a")])
    with pytest.raises(ConfigError, match="at least one"):
        Router([])


async def test_finish_is_told_to_the_workers_that_were_visited_and_leaves_nothing():
    a, b = pair()
    async with routed(a, b, policy="round_robin") as (router, _):
        await router.generate(request_of(0))
        await router.generate(request_of(0, 1))
        await router.generate(request_of(1))
        router.finish(SampleId("t", 0))
        router.finish(SampleId("t", 0))
        router.finish(SampleId("t", 1))

        assert sorted(a.finished + b.finished) == [
            SampleId("t", 0), SampleId("t", 0), SampleId("t", 1)
        ]  # fmt: skip
        assert not router._visited
        assert not router.fleet.num_residents.any()


async def test_a_call_that_avoids_its_home_runs_beside_it_and_the_home_stays():
    a, b = pair()
    async with routed(a, b) as (router, _):
        home = (await router.generate(request_of(0))).worker
        avoiding = await router.generate(request_of(0, 1, avoid_worker=home))
        again = await router.generate(request_of(0, 2))

    assert avoiding.worker != home
    assert again.worker == home


class Opened(FakeWorker):
    """Counts how often it was opened and closed."""

    problem = None
    opened = closed = 0

    async def __aenter__(self):
        await asyncio.sleep(1)
        if self.problem is not None:
            raise self.problem
        self.opened += 1
        return self

    async def __aexit__(self, *_):
        await asyncio.sleep(1)
        self.closed += 1


async def test_workers_are_opened_side_by_side_and_all_closed():
    a, b = Opened("a"), Opened("b")
    async with routed(a, b) as (router, _):
        assert now() == 1
        await router.remove("a")
        assert (a.opened, a.closed, b.closed) == (1, 1, 0)

    assert (b.opened, b.closed) == (1, 1)


async def test_a_worker_that_cannot_be_opened_is_raised_and_the_others_are_closed():
    a, b = Opened("a"), Opened("b")
    b.problem = ConfigError("no token ids")

    with pytest.raises(ConfigError, match="no token ids"):
        async with routed(a, b):
            pass

    assert (a.opened, a.closed) == (1, 1)


async def test_cancelling_a_call_aborts_it_on_its_worker():
    a = FakeWorker("a", 100.0)
    async with routed(a) as (router, _):
        call = asyncio.create_task(router.generate(request_of(0)))
        await asyncio.sleep(1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert a.num_running == 0


async def test_weights_are_updated_after_the_calls_that_run():
    a, b = pair()
    async with routed(a, b) as (router, _):
        call = asyncio.create_task(router.generate(request_of(0)))
        await asyncio.sleep(0.5)
        await router.pause(PauseMode.FINISH)
        assert call.done()
        held = asyncio.create_task(router.generate(request_of(1)))
        await asyncio.sleep(10)
        await router.update_weights(WeightUpdate(version=3))
        assert not held.done()
        await router.resume()

        assert (await held).versions == ((3, 0, 2),)
        assert (await call).versions == ()


async def test_an_aborted_call_goes_on_from_its_tokens_under_the_new_weights():
    a = FakeWorker("a", 10.0)
    async with routed(a) as (router, _):
        await router.update_weights(WeightUpdate(version=1))
        call = asyncio.create_task(router.generate(request_of(0, tokens=5)))
        await asyncio.sleep(1)
        await router.pause(PauseMode.ABORT)
        await router.update_weights(WeightUpdate(version=2))
        await router.resume()
        completion = await call

    (rest,) = [request for request in a.served if len(request.prompt.token_ids) > 5]
    assert list(rest.prompt.token_ids) == [0, 1, 2, 3, 4, 100, 101, 102]
    assert rest.sampling.max_tokens == 5
    assert list(completion.token_ids) == [100, 101, 102, 100, 101]
    assert len(completion.logprobs) == 5
    assert completion.versions == ((1, 0, 3), (2, 3, 5))
    assert completion.prompt_tokens == 5
    assert completion.finish_reason is FinishReason.STOP


async def test_a_worker_that_cannot_take_the_weights_is_ejected_until_it_can():
    a, b = pair()
    a.refuses_weights = True
    async with routed(a, b) as (router, told):
        await router.pause(PauseMode.FINISH)
        await router.update_weights(WeightUpdate(version=1))
        await router.resume()
        await asyncio.sleep(30)
        assert told == [("a", "ejected")]
        a.refuses_weights = False
        await asyncio.sleep(30)

        assert told == [("a", "ejected"), ("a", "readmitted")]
        assert "weights 1" in a.controls
