import asyncio
import time
from collections import Counter

import msgspec
import pytest

from rolloutkit import clock
from rolloutkit.errors import DeadlockError, EnvironmentFailed
from rolloutkit.sim import (
    Act,
    Fault,
    FaultRates,
    Script,
    ScriptedConfig,
    ScriptedEnvironment,
    ScriptedSession,
    Spread,
    Turn,
    show,
)
from rolloutkit.types import (
    AssistantMessage,
    Completion,
    FinishReason,
    Reply,
    SampleId,
    Score,
    Task,
)

TASK = Task(task_id="t")
REPLY = Reply(Completion(finish_reason=FinishReason.STOP), AssistantMessage())
TURNS = (Turn(show(3), Act(2.0)), Turn(show(4, done=True), Act(3.0)))


def _open(script: Script, sample_index: int = 0) -> ScriptedSession:
    environment = ScriptedEnvironment(script_of=lambda task, sample_id: script)
    return environment.open(TASK, SampleId("t", sample_index), 0)


async def test_a_script_is_followed_to_the_letter() -> None:
    acts = {"set_up": Act(1.0), "scoring": Act(4.0), "closing": Act(5.0)}
    session = _open(Script(prompt=show(5), turns=TURNS, score=0.5, **acts))

    prompt = await session.reset()
    observations = [await session.step(REPLY), await session.step(REPLY)]
    score = await session.score()
    await session.close()

    assert [len(one.token_ids) for one in (prompt, *observations)] == [5, 3, 4]
    assert [one.done for one in observations] == [False, True]
    assert score == Score(0.5)
    assert clock.now() == 1.0 + 2.0 + 3.0 + 4.0 + 5.0


async def test_a_script_that_is_over_refuses_another_step() -> None:
    session = _open(Script(prompt=show(5), turns=TURNS[1:]))
    await session.reset()
    await session.step(REPLY)

    with pytest.raises(EnvironmentFailed, match="the script of t#0 is over"):
        await session.step(REPLY)


@pytest.mark.parametrize("stage", ["reset", "step", "score", "close"])
async def test_each_call_can_crash(stage: str) -> None:
    crash = Act(fault=Fault.CRASH)
    session = _open(
        Script(
            prompt=show(5),
            turns=(Turn(show(3), crash if stage == "step" else Act()),),
            set_up=crash if stage == "reset" else Act(),
            scoring=crash if stage == "score" else Act(),
            closing=crash if stage == "close" else Act(),
        )
    )

    async def live() -> None:
        await session.reset()
        await session.step(REPLY)
        await session.score()
        await session.close()

    with pytest.raises(RuntimeError, match="the script says crash"):
        await live()


async def test_a_hang_ends_by_cancellation_only() -> None:
    session = _open(Script(prompt=show(5), turns=TURNS, set_up=Act(fault=Fault.HANG)))

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(86_400):
            await session.reset()


def test_a_hang_without_a_limit_is_a_deadlock() -> None:
    session = _open(Script(prompt=show(5), turns=TURNS, set_up=Act(fault=Fault.HANG)))

    with pytest.raises(DeadlockError, match="_perform"):
        clock.run(session.reset(), time="virtual")


@pytest.mark.real_time
async def test_a_block_blocks_the_loop() -> None:
    session = _open(Script(prompt=show(5), turns=TURNS, set_up=Act(0.05, Fault.BLOCK)))
    started = time.monotonic()
    ticks: list[float] = []
    asyncio.get_running_loop().call_later(0.01, lambda: ticks.append(time.monotonic()))

    await session.reset()
    await asyncio.sleep(0)

    assert ticks == [] or ticks[0] - started >= 0.05


def test_a_sample_has_the_same_script_in_every_run() -> None:
    config = ScriptedConfig(num_turns=Spread(20, 1.0), step_faults=FaultRates(crash=0.1))
    environments = [ScriptedEnvironment(config) for _ in range(2)]
    sample_id = SampleId("t", 3)

    first, second = (one._draw(TASK, sample_id) for one in environments)

    assert first == second
    assert first != environments[0]._draw(TASK, SampleId("t", 4))
    assert first != ScriptedEnvironment(msgspec.structs.replace(config, seed=1))._draw(
        TASK, sample_id
    )


def test_draws_follow_their_distributions() -> None:
    config = ScriptedConfig(
        num_turns=Spread(10, 0.5),
        step_seconds=Spread(2.0, 1.0),
        step_faults=FaultRates(crash=0.05, hang=0.1),
    )
    environment = ScriptedEnvironment(config)

    scripts = [environment._draw(TASK, SampleId("t", index)) for index in range(1_000)]

    turns = [turn for script in scripts for turn in script.turns]
    faults = Counter(turn.act.fault for turn in turns)
    assert len(turns) / len(scripts) == pytest.approx(10, rel=0.1)
    assert sum(turn.act.seconds for turn in turns) / len(turns) == pytest.approx(2.0, rel=0.1)
    assert faults[Fault.CRASH] / len(turns) == pytest.approx(0.05, rel=0.2)
    assert faults[Fault.HANG] / len(turns) == pytest.approx(0.1, rel=0.2)
    assert faults[Fault.BLOCK] == 0
    assert all(script.turns[-1].observation.done for script in scripts)


def test_observations_can_be_messages() -> None:
    environment = ScriptedEnvironment(ScriptedConfig(text=True, prompt_tokens=Spread(3)))

    script = environment._draw(TASK, SampleId("t", 0))

    assert script.prompt.messages == ({"role": "user", "content": "word word word "},)
    assert not script.prompt.token_ids


def test_an_environment_gives_its_tasks() -> None:
    tasks = ScriptedEnvironment(ScriptedConfig(num_tasks=2, num_samples=5)).tasks()

    assert [(task.task_id, task.num_samples) for task in tasks] == [("task-0", 5), ("task-1", 5)]


def test_a_rate_above_one_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"<= 1.*step_faults\.crash"):
        msgspec.convert({"step_faults": {"crash": 1.5}}, ScriptedConfig)
