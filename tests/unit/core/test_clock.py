"""Virtual time jumps, names who is stuck, and the watchdog bounds waits."""

import asyncio
import socket

import pytest

from rolloutkit import clock
from rolloutkit.clock import Watchdog
from rolloutkit.errors import DeadlockError, LimitExceeded
from rolloutkit.jobs import blocking


def virtually(main):
    return clock.run(main, time="virtual")


async def test_a_day_of_sleep_costs_nothing_and_moves_the_clock():
    started = clock.now()

    await asyncio.sleep(86_400)

    assert clock.now() - started == 86_400
    assert clock.is_virtual()


def test_a_deadlock_names_each_waiting_coroutine_and_its_line():
    async def wait_for_nothing():
        await asyncio.get_running_loop().create_future()

    async def main():
        stuck = asyncio.create_task(wait_for_nothing(), name="the stuck one")
        await stuck

    with pytest.raises(DeadlockError) as caught:
        virtually(main())

    assert "the stuck one waits in" in str(caught.value)
    assert "wait_for_nothing" in str(caught.value)
    assert "test_clock.py" in str(caught.value)


async def test_virtual_time_refuses_real_sockets():
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    left.setblocking(False)

    with left, right, pytest.raises(RuntimeError, match="time='real'"):
        await loop.sock_recv(left, 1)


async def test_blocking_code_runs_inline_in_virtual_time():
    started = clock.now()

    assert await blocking(pow, 2, 10) == 1024
    with pytest.raises(ZeroDivisionError):
        await blocking(divmod, 1, 0)

    assert clock.now() == started


async def test_equal_timers_fire_in_the_order_in_which_they_were_armed():
    order = []
    loop = asyncio.get_running_loop()

    for index in range(50):
        loop.call_later(1, order.append, index)
    await asyncio.sleep(2)

    assert order == list(range(50))


async def test_a_busy_coroutine_does_not_keep_due_timers_waiting():
    fired = []

    asyncio.get_running_loop().call_later(0, fired.append, True)
    while not fired:  # noqa: ASYNC110 - being busy is the point
        await asyncio.sleep(0)

    assert clock.now() == 0


async def test_cancelled_timers_do_not_pile_up():
    loop = asyncio.get_running_loop()

    for _ in range(10_000):
        loop.call_later(1e9, print).cancel()

    assert loop.num_timers == 0
    assert len(loop._timers._heap) < 1_000


@pytest.mark.real_time
async def test_real_time_passes():
    assert not clock.is_virtual()
    started = clock.now()
    await asyncio.sleep(0.01)
    assert clock.now() > started


class TestWatchdog:
    async def test_a_wait_that_overruns_raises_its_limit(self):
        watchdog = Watchdog()

        with pytest.raises(LimitExceeded, match=r"limits\.action of 5 s") as caught:
            with watchdog.limit("action", 5):
                await asyncio.sleep(6)

        assert caught.value.limit == "action"
        assert clock.now() == 5
        watchdog.close()

    async def test_waits_in_time_pass_and_leave_one_timer(self):
        watchdog = Watchdog()

        for _ in range(1_000):
            with watchdog.limit("action", 5):
                await asyncio.sleep(1)

        assert clock.now() == 1_000
        assert asyncio.get_running_loop().num_timers <= 2
        watchdog.close()

    async def test_a_shorter_limit_after_a_longer_one_still_bites(self):
        watchdog = Watchdog()
        with watchdog.limit("model_call", 100):
            await asyncio.sleep(1)

        with pytest.raises(LimitExceeded, match=r"limits\.action of 2 s"):
            with watchdog.limit("action", 2):
                await asyncio.sleep(50)

        assert clock.now() == 3
        watchdog.close()

    async def test_progress_moves_the_deadline_but_never_past_the_hard_one(self):
        watchdog = Watchdog()

        with pytest.raises(LimitExceeded, match=r"limits\.model_call of 10 s"):
            with watchdog.limit("model_call", 10):
                while True:
                    watchdog.progress("model_progress", 3)
                    await asyncio.sleep(2)
        assert clock.now() == 10

        with pytest.raises(LimitExceeded, match=r"limits\.model_progress of 3 s"):
            with watchdog.limit("model_call", 10):
                watchdog.progress("model_progress", 3)
                await asyncio.sleep(9)
        assert clock.now() == 13
        watchdog.close()

    async def test_cancellation_from_outside_in_the_same_tick_wins(self):
        async def bounded():
            watchdog = Watchdog()
            try:
                with watchdog.limit("action", 5):
                    await asyncio.get_running_loop().create_future()
            finally:
                watchdog.close()

        task = asyncio.create_task(bounded())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_at(5, task.cancel)

        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    async def test_an_error_inside_is_not_hidden_by_the_limit(self):
        watchdog = Watchdog()

        with pytest.raises(KeyError):
            with watchdog.limit("action", 5):
                await asyncio.sleep(1)
                raise KeyError("mine")
        watchdog.close()

    async def test_an_eager_watchdog_leaves_no_timer(self):
        watchdog = Watchdog(lazy=False)

        with watchdog.limit("action", 5):
            await asyncio.sleep(1)

        assert asyncio.get_running_loop().num_timers == 0


def test_garbage_collection_is_rarer_during_a_run_and_as_before_after_it():
    import gc

    before = gc.get_threshold()

    async def main():
        return gc.get_threshold()

    assert virtually(main())[0] > before[0]
    assert gc.get_threshold() == before
