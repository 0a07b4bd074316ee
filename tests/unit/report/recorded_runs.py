"""Event streams for the tests of recorder and report: one by hand, any number simulated."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from rolloutkit.clock import now, run
from rolloutkit.record.events import (
    Action,
    AttemptStarted,
    Event,
    ModelCall,
    RunEnded,
    RunStarted,
    SampleAdmitted,
    SampleEnded,
)
from rolloutkit.types import FailureKind, FinishReason, Status, StopReason

STEP = "files.step"


def small_run(*, time: str = "virtual") -> list[Event]:
    """Two samples and one slot: `a#0` completes in two turns, `b#0` waits for it and fails."""
    return [
        RunStarted(t=0.0, time=time, num_samples=2, slots={STEP: 1}, parallelism=2),
        admitted("a#0", t=0.0, seq=0),
        AttemptStarted(t=0.0, sample_id="a#0", attempt=0),
        admitted("b#0", t=1.0, seq=1, wait=1.0),
        call("a#0", t=2.0, seconds=2.0, queue=0.5, context=100, new=100, cached=0, output=10),
        call("b#0", t=3.0, seconds=2.0, queue=0.0, context=80, new=80, cached=0, output=10),
        step("a#0", t=6.0, seconds=4.0),
        step("b#0", t=10.0, seconds=4.0, wait=3.0),
        call("a#0", t=10.5, seconds=4.5, queue=0.0, context=130, new=20, cached=60, output=5),
        ended("a#0", t=10.5, score=1.0, num_turns=2),
        ended("b#0", t=12.0, failure=FailureKind.ENVIRONMENT, num_turns=1),
        step("b#0", t=40.0, seconds=28.0, kind="files.close"),
        RunEnded(t=40.0, scheduler_cpu_seconds=0.25, lag_p99_seconds=0.01, lag_max_seconds=0.02),
    ]


def admitted(sample_id: str, *, t: float, seq: int, wait: float = 0.0) -> SampleAdmitted:
    return SampleAdmitted(t=t, sample_id=sample_id, environment="files", seq=seq, wait_seconds=wait)


def call(
    sample_id: str,
    *,
    t: float,
    seconds: float,
    queue: float | None = None,
    context: int = 0,
    new: int = 0,
    cached: int | None = None,
    output: int | None = None,
    chain: int = 0,
    parked: float = 0.0,
) -> ModelCall:
    return ModelCall(
        t=t,
        sample_id=sample_id,
        chain=chain,
        worker="w0",
        parked_seconds=parked,
        seconds=seconds,
        queue_seconds=queue,
        context_tokens=context,
        new_tokens=new,
        cached_tokens=cached,
        output_tokens=output,
        finish_reason=FinishReason.STOP,
    )


def step(
    sample_id: str, *, t: float, seconds: float, wait: float = 0.0, kind: str = STEP
) -> Action:
    return Action(t=t, sample_id=sample_id, kind=kind, wait_seconds=wait, seconds=seconds)


def ended(
    sample_id: str,
    *,
    t: float,
    score: float | None = None,
    failure: FailureKind | None = None,
    num_turns: int = 0,
) -> SampleEnded:
    return SampleEnded(
        t=t,
        sample_id=sample_id,
        environment="files",
        status=Status.COMPLETED if failure is None else Status.FAILED,
        stop_reason=StopReason.DONE if failure is None else StopReason.FAILED,
        failure=failure,
        score=score,
        num_turns=num_turns,
    )


class TurnPlan(NamedTuple):
    """How long a turn's model call takes, and each of the actions that it runs side by side."""

    generate_seconds: float
    action_seconds: Sequence[float]


def simulated_run(
    samples: Sequence[Sequence[TurnPlan]],
    *,
    slots: int,
    parallelism: int,
    max_samples: int,
    tells_queueing: bool = True,
) -> list[Event]:
    """The events of list scheduling: each free place serves whoever has waited for it longest."""
    events: list[Event] = [
        RunStarted(
            t=0.0,
            time="virtual",
            num_samples=len(samples),
            slots={STEP: slots},
            parallelism=parallelism if tells_queueing else None,
        )
    ]

    async def main() -> None:
        alive = asyncio.Semaphore(max_samples)
        slot = asyncio.Semaphore(slots)
        engine = asyncio.Semaphore(parallelism)

        async def generate(name: str, seconds: float) -> None:
            asked = now()
            async with engine:
                queue = now() - asked
                await asyncio.sleep(seconds)
            told = queue if tells_queueing else None
            events.append(call(name, t=now(), seconds=now() - asked, queue=told))

        async def act(name: str, seconds: float) -> None:
            asked = now()
            async with slot:
                wait, started = now() - asked, now()
                await asyncio.sleep(seconds)
            events.append(step(name, t=now(), seconds=now() - started, wait=wait))

        async def live(index: int, turns: Sequence[TurnPlan]) -> None:
            name = f"task#{index}"
            async with alive:
                events.append(admitted(name, t=now(), seq=index, wait=now()))
                for turn in turns:
                    await generate(name, turn.generate_seconds)
                    await asyncio.gather(*(act(name, seconds) for seconds in turn.action_seconds))
                events.append(ended(name, t=now(), num_turns=len(turns)))

        await asyncio.gather(*(live(index, turns) for index, turns in enumerate(samples)))
        events.append(RunEnded(t=now()))

    run(main(), time="virtual")
    return events
