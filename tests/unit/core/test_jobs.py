"""Children end as values, threads never hold the program, and nothing is left behind."""

import asyncio
import threading

import pytest

from rolloutkit.jobs import DaemonThreads, GroupEnded, JobGroup, background, blocking, spawn


async def fail():
    await asyncio.sleep(1)
    raise KeyError("mine")


async def give(value, seconds=1):
    await asyncio.sleep(seconds)
    return value


async def test_a_child_that_fails_is_a_value_and_ends_nobody_else():
    async with JobGroup() as jobs:
        good, bad = jobs.spawn(give(7), name="good"), jobs.spawn(fail(), name="bad")

        assert (await good.outcome()).unwrap() == 7
        outcome = await bad.outcome()

    assert isinstance(outcome.error, KeyError)
    with pytest.raises(KeyError):
        outcome.unwrap()


async def test_cancelling_the_wait_for_a_child_leaves_the_child_alone():
    async with JobGroup() as jobs:
        child = jobs.spawn(give(7, 10), name="child")
        waiter = asyncio.create_task(child.outcome())
        await asyncio.sleep(1)

        waiter.cancel()
        await asyncio.sleep(1)

        assert waiter.cancelled()
        assert not child.is_done
        assert (await child.outcome()).value == 7


async def test_a_child_cancelled_before_its_first_step_still_reports():
    async with JobGroup() as jobs:
        child = jobs.spawn(give(7), name="child")
        ends = []
        child.on_end(ends.append)

        child.cancel()

        assert isinstance((await child.outcome()).error, asyncio.CancelledError)
    assert isinstance(ends[0].error, asyncio.CancelledError)


async def test_spawn_finds_the_group_of_the_run():
    with pytest.raises(RuntimeError, match="spawn needs a run"):
        spawn(give(7), name="nobody's")

    async with JobGroup():
        assert (await spawn(give(7), name="child").outcome()).value == 7


async def test_leaving_a_background_block_ends_the_job():
    async with background(give(7, 1_000), name="beside") as job:
        await asyncio.sleep(1)

    assert isinstance((await job.outcome()).error, asyncio.CancelledError)


@pytest.mark.real_time
class TestBlocking:
    async def test_calls_run_off_the_loop_and_side_by_side(self):
        barrier = threading.Barrier(20, timeout=10)
        async with JobGroup() as jobs:
            calls = [jobs.spawn(blocking(barrier.wait), name=str(n)) for n in range(20)]
            indices = [(await call.outcome()).unwrap() for call in calls]

        assert sorted(indices) == list(range(20))

    async def test_an_abandoned_call_neither_blocks_the_waiter_nor_lands_late(self):
        release, late = threading.Event(), []

        def hang():
            release.wait(10)
            late.append("ran on")

        async with JobGroup():
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await blocking(hang)
            release.set()
            assert await blocking(lambda: "next") == "next"

    async def test_an_error_comes_back_to_the_waiter(self):
        with pytest.raises(ZeroDivisionError):
            await blocking(divmod, 1, 0)

    async def test_threads_are_reused_and_end_with_the_group(self):
        async with JobGroup():
            names = {await blocking(threading.get_ident) for _ in range(20)}
        assert len(names) <= 2


def test_idle_threads_end_by_themselves():
    threads = DaemonThreads()
    threads.IDLE_SECONDS = 0.01
    thread = threads.submit(threading.current_thread).result(timeout=5)

    thread.join(timeout=5)

    assert not thread.is_alive()
    assert threads.submit(lambda: 7).result(timeout=5) == 7


async def test_a_group_that_is_torn_down_starts_nothing_more():
    refused = []

    async def start_another(jobs):
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            with pytest.raises(GroupEnded, match="late was not started"):
                jobs.spawn(give(7), name="late")
            refused.append(True)
            raise

    with pytest.RaisesGroup(KeyError):
        async with JobGroup() as jobs:
            jobs.spawn(start_another(jobs), name="first")
            await asyncio.sleep(1)
            raise KeyError("the body fails")

    assert refused == [True]
