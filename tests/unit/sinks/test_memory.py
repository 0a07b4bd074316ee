import pytest

from rolloutkit.sinks import CollectSink, TeeSink
from rolloutkit.types import SampleId, Trajectory
from tests.unit.sinks.trajectories import ended_sample


class BrokenSink:
    async def put(self, trajectory: Trajectory) -> None:
        raise OSError(f"no room for {trajectory.sample_id}")

    async def close(self) -> None:
        raise OSError("no room")


async def test_collected_trajectories_come_back_in_input_order() -> None:
    sink = CollectSink()
    for index in (2, 0, 1):
        await sink.put(ended_sample("a", index))

    ordered = sink.in_order([SampleId("a", index) for index in range(3)])

    assert [trajectory.sample_id.sample_index for trajectory in ordered] == [0, 1, 2]
    with pytest.raises(KeyError):
        sink.in_order([SampleId("b", 0)])


async def test_tee_reaches_every_sink() -> None:
    first, second = CollectSink(), CollectSink()
    sink = TeeSink(first, second)

    await sink.put(ended_sample())
    await sink.close()

    assert first.trajectories == second.trajectories == [ended_sample()]


async def test_tee_closes_every_sink_and_raises_the_first_failure() -> None:
    last = CollectSink()
    sink = TeeSink(BrokenSink(), last)

    with pytest.raises(OSError, match="no room for"):
        await sink.put(ended_sample())
    with pytest.raises(OSError, match="no room"):
        await sink.close()

    with pytest.raises(RuntimeError, match="put after close"):
        await last.put(ended_sample())
