import asyncio
import logging
import threading
import time

import pytest

from rolloutkit.lag import LoopLagMonitor


def block_the_loop(seconds: float) -> None:
    time.sleep(seconds)


@pytest.mark.real_time
async def test_lag_is_measured_while_the_loop_turns() -> None:
    async with LoopLagMonitor() as monitor:
        await asyncio.sleep(0.3)

        snapshot = monitor.snapshot()

    assert snapshot.max_seconds is not None
    assert snapshot.p99_seconds is not None
    assert 0 <= snapshot.p99_seconds <= snapshot.max_seconds


@pytest.mark.real_time
async def test_blocking_code_is_named_once_however_often_it_blocks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)

    async with LoopLagMonitor() as monitor:
        for _ in range(2):
            await asyncio.sleep(0.1)
            block_the_loop(0.6)
        await asyncio.sleep(0.1)
        snapshot = monitor.snapshot()

    (culprit,) = (one for one in snapshot.culprits if one.place.startswith("block_the_loop"))
    assert culprit.place.startswith(f"block_the_loop ({__file__}:")
    assert culprit.num_times == 2
    messages = [record.getMessage() for record in caplog.records]
    (message,) = (one for one in messages if culprit.place in one)
    assert "where=thread" in message


@pytest.mark.real_time
async def test_a_long_block_weighs_as_much_as_the_beats_it_swallowed() -> None:
    async with LoopLagMonitor() as monitor:
        await asyncio.sleep(0.1)
        block_the_loop(0.4)
        await asyncio.sleep(0.1)

        snapshot = monitor.snapshot()

    assert snapshot.max_seconds is not None
    assert snapshot.max_seconds > 0.3
    assert snapshot.p99_seconds is not None
    assert snapshot.p99_seconds > 0.25


@pytest.mark.real_time
async def test_the_thread_ends_with_the_monitor() -> None:
    async with LoopLagMonitor():
        assert "rolloutkit-lag" in {thread.name for thread in threading.enumerate()}

    for _ in range(100):
        if "rolloutkit-lag" not in {thread.name for thread in threading.enumerate()}:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the thread is still there")


async def test_virtual_time_has_no_lag() -> None:
    async with LoopLagMonitor() as monitor:
        await asyncio.sleep(3600)

    assert monitor.snapshot() == (None, None, ())
