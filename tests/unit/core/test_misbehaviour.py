"""Extension code that does what it should not: the sample pays, never the batch."""

import asyncio
import functools
import sys

import pytest

import rolloutkit as rk
from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Policies, Settings, opened, prepare, run_anywhere
from rolloutkit.errors import ConfigError, ProgramError, RolloutError, StopSample
from rolloutkit.limits import Limits
from rolloutkit.protocols import Capabilities
from rolloutkit.record.events import Action, PoolOpened
from rolloutkit.record.recorder import Recorder
from rolloutkit.report import RunStatistics
from rolloutkit.sinks import CollectSink
from rolloutkit.types import (
    CancelReason,
    FailureKind,
    Observation,
    SampleId,
    Score,
    Status,
    StopReason,
    Task,
)
from tests.fakes import PROMPT, FakeEngine, FakeEnvironment, Plan

ONE = [Task(task_id="t")]


def run(program=None, *, tasks=ONE, engine=None, time="virtual", **given):
    return rk.run(tasks, engine=engine or FakeEngine(), program=program, time=time, **given)


class OneSession(FakeEnvironment):
    """An environment whose every session is `session`."""

    def __init__(self, session):
        super().__init__({})
        self.session = session

    def open(self, task, sample_id, seed):
        return self.session


class Session:
    """A session that does nothing wrong: one turn, and a score of 1."""

    async def reset(self):
        return Observation(token_ids=PROMPT)

    async def step(self, reply):
        return Observation(done=True)

    async def score(self):
        return Score(1.0)

    async def close(self):
        pass


def one(**methods):
    """The outcome of a sample whose session has these methods."""

    def method(value):
        async def call(self, *_):
            if isinstance(value, BaseException):
                raise value
            return value

        return call

    session = type("Odd", (Session,), {name: method(value) for name, value in methods.items()})()
    return run(environment=OneSession(session))[0]


class TestWrongValues:
    def test_a_plain_number_is_a_score(self):
        async def program(sample):
            return 0.25

        assert run(program)[0].score == 0.25
        assert one(score=1).score == 1.0

    @pytest.mark.parametrize("value", ["good", Score("good"), [1.0]])
    def test_a_score_that_is_no_number_fails_the_sample(self, value):
        async def program(sample):
            return value

        assert run(program)[0].failure.kind is FailureKind.PROGRAM
        assert one(score=value).failure.kind is FailureKind.SCORE

    @pytest.mark.parametrize("value", [None, "done", Observation(token_ids=["a"])])
    def test_an_observation_that_is_none_fails_the_sample(self, value):
        assert one(reset=value).failure.kind in {FailureKind.SET_UP, FailureKind.ENVIRONMENT}
        assert one(step=value).failure.kind is FailureKind.ENVIRONMENT

    def test_an_engine_whose_finish_raises_ends_the_run_and_loses_nothing(self):
        class Raising(FakeEngine):
            def finish(self, sample_id):
                raise OSError("no such cache")

        sink = CollectSink()

        async def main():
            orchestrator = prepare(sink, engine=Raising(), environment=OneSession(Session()))
            await orchestrator.run([Task(task_id="t", num_samples=3)])

        with pytest.raises(OSError, match="no such cache"):
            clock.run(main(), time="virtual")
        assert len(sink.trajectories) == 3


class TestWrongExits:
    def test_sys_exit_fails_its_own_sample_only(self):
        async def program(sample):
            if sample.sample_id.sample_index == 0:
                sys.exit(3)
            return 1.0

        first, second = run(program, tasks=[Task(task_id="t", num_samples=2)])

        assert first.failure.kind is FailureKind.PROGRAM
        assert "SystemExit" in first.failure.message
        assert second.score == 1.0

    @pytest.mark.real_time
    def test_sys_exit_in_a_threaded_action_fails_its_own_sample_only(self):
        async def program(sample):
            await sample.act("bash", sys.exit)

        (trajectory,) = run(program, time="real", engine=FakeEngine(seconds=0))

        assert trajectory.failure.kind is FailureKind.ENVIRONMENT
        assert "sys.exit" in trajectory.failure.message

    def test_a_cancellation_that_nobody_asked_for_is_a_failure(self):
        assert one(step=asyncio.CancelledError()).failure.kind is FailureKind.ENVIRONMENT

    def test_catching_exceptions_does_not_keep_a_used_up_sample_alive(self):
        async def program(sample):
            while True:
                try:
                    await sample.generate(token_ids=PROMPT)
                except Exception:  # noqa: BLE001 - what such programs do
                    continue

        (trajectory,) = run(program, settings=Settings(limits=Limits(max_turns=3)))

        assert trajectory.stop_reason is StopReason.MAX_TURNS

    def test_a_used_up_child_reports_it_as_its_outcome(self):
        async def program(sample):
            outcome = await sample.spawn(sample.generate(token_ids=PROMPT)).outcome()
            assert isinstance(outcome.error, StopSample)
            return 1.0

        settings = Settings(limits=Limits(output_tokens=1))

        async def spend(sample):
            await sample.generate(token_ids=PROMPT)
            return await program(sample)

        assert run(spend, settings=settings)[0].score == 1.0


class TestWrongWaits:
    def test_a_program_that_waits_by_itself_is_bounded_too(self):
        async def program(sample):
            await asyncio.sleep(1e9)

        (trajectory,) = run(program, settings=Settings(limits=Limits(sample=10)))

        assert (trajectory.status, trajectory.failure.limit) == (Status.FAILED, "sample")
        assert trajectory.timings.finished_at == 10

    def test_the_limit_that_is_reported_is_the_configured_one(self):
        async def program(sample):
            await sample.generate(token_ids=PROMPT)
            await sample.act("bash", functools.partial(asyncio.sleep, 100))

        def message_of(**limits):
            return run(program, settings=Settings(limits=Limits(**limits)))[0].failure.message

        assert message_of(turn=5) == "limits.turn of 5 s ran out"
        assert message_of(sample=5) == "limits.sample of 5 s ran out"
        assert message_of(action=5) == "limits.action of 5 s ran out"

    def test_a_turn_limit_leaves_set_up_scoring_and_close_alone(self):
        plan = Plan(seconds=8.0, num_turns=1)
        environment = FakeEnvironment({SampleId("t", 0): plan})
        plan.faults = {}

        settings = Settings(limits=Limits(turn=9.5))
        (trajectory,) = run(environment=environment, settings=settings)

        assert trajectory.status is Status.COMPLETED
        assert trajectory.timings.set_up_seconds == 8.0

    def test_actions_side_by_side_are_charged_once(self):
        async def program(sample):
            acts = [sample.act("bash", functools.partial(asyncio.sleep, 2)) for _ in range(10)]
            jobs = [sample.spawn(act) for act in acts]
            for job in jobs:
                (await job.outcome()).unwrap()
            await sample.act("bash", functools.partial(asyncio.sleep, 2))
            return 1.0

        assert run(program, settings=Settings(limits=Limits(sample=5)))[0].score == 1.0

    def test_the_engines_own_queue_does_not_count_as_a_lack_of_progress(self):
        class Queueing(FakeEngine):
            @property
            def capabilities(self):
                return Capabilities(token_ids=True, logprobs=True, progress=True)

            async def generate(self, request, on_progress=None):
                await asyncio.sleep(700)  # in a queue
                on_progress(1)
                if request.sample_id.sample_index:
                    await asyncio.sleep(700)  # stuck: the same count again is no progress
                    on_progress(1)
                return await super().generate(request, on_progress)

        trajectories = run(
            engine=Queueing(),
            environment=OneSession(Session()),
            tasks=[Task(task_id="t", num_samples=2)],
        )

        assert trajectories[0].status is Status.COMPLETED
        assert trajectories[1].failure.limit == "model_progress"

    def test_progress_that_comes_late_disturbs_nothing(self):
        reports = []

        class Keeping(FakeEngine):
            async def generate(self, request, on_progress=None):
                reports.append(on_progress)
                return await super().generate(request, on_progress)

        async def program(sample):
            await sample.generate(token_ids=PROMPT)
            reports[0](1_000)
            await asyncio.sleep(2_000)
            return 1.0

        assert run(program, engine=Keeping())[0].score == 1.0

    def test_children_let_go_before_the_sample_is_scored(self):
        order = []

        class Scored(Session):
            async def score(self):
                order.append("scored")
                return 1.0

        async def slow_to_end():
            try:
                await asyncio.sleep(1_000)
            finally:
                order.append("child ended")

        async def program(sample):
            await sample.reset(sample.session)
            sample.spawn(sample.act("bash", slow_to_end))
            await asyncio.sleep(7)

        (trajectory,) = run(program, environment=OneSession(Scored()))

        assert order == ["child ended", "scored"]
        assert (trajectory.timings.act_seconds, trajectory.timings.score_seconds) == (7, 0)

    def test_an_action_may_generate(self):
        async def program(sample):
            async def judge():
                return await sample.generate(token_ids=PROMPT)

            await sample.act("judge", judge)
            return 1.0

        assert run(program)[0].score == 1.0

    async def test_an_engine_that_does_not_start_is_refused_in_time(self):
        class Stuck(FakeEngine):
            async def __aenter__(self):
                await asyncio.sleep(1e6)

            async def __aexit__(self, *_):
                pass

        with pytest.raises(ConfigError, match=r"no answer within limits\.admin of 60 s"):
            async with opened(Stuck(), 60):
                pass


class TestWrongOrder:
    def test_a_second_request_for_a_chain_is_refused(self):
        async def program(sample):
            first = sample.spawn(sample.generate(token_ids=PROMPT))
            await asyncio.sleep(0)
            with pytest.raises(ProgramError, match="chain 0 has a request in flight"):
                await sample.generate(token_ids=PROMPT)
            (await first.outcome()).unwrap()
            return 1.0

        (trajectory,) = run(program)
        assert trajectory.score == 1.0
        assert len(trajectory.chains[0]) == 8

    def test_a_result_that_comes_after_the_end_does_not_land(self):
        async def program(sample):
            kept.append(asyncio.create_task(sample.generate(token_ids=PROMPT)))
            await asyncio.sleep(0)

        kept = []

        async def main():
            async for trajectory in rk.rollout(ONE, engine=FakeEngine(), program=program):
                before = len(trajectory.chains[0])
                with pytest.raises(RolloutError, match="is over"):
                    await kept[0]
                assert len(trajectory.chains[0]) == before

        clock.run(main(), time="virtual")

    def test_samples_of_a_half_read_task_are_emitted_when_the_run_drains(self):
        sink = CollectSink()

        async def source():
            yield Task(task_id="t", num_samples=8)

        async def main():
            orchestrator = prepare(
                sink,
                engine=FakeEngine(),
                environment=OneSession(Session()),
                settings=Settings(admission=AdmissionLimits(max_samples=1, lookahead=2)),
            )
            asyncio.get_running_loop().call_later(0.5, orchestrator.drain)
            await orchestrator.run(source())

        clock.run(main(), time="virtual")

        ids = sorted(trajectory.sample_id for trajectory in sink.trajectories)
        assert ids == [SampleId("t", index) for index in range(8)]

    @pytest.mark.real_time
    def test_interrupting_a_notebook_cell_ends_the_batch(self, monkeypatch):
        import concurrent.futures

        ended = []

        async def batch():
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)

        def interrupted(self, timeout=None):
            raise KeyboardInterrupt

        async def notebook():
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                patch.setattr(concurrent.futures.Future, "result", interrupted)
                run_anywhere(batch)

        asyncio.run(notebook())
        assert ended == [True]


class TestWrongNames:
    def test_limits_for_what_does_not_exist_are_refused(self):
        for settings in (
            Settings(admission=AdmissionLimits(max_sessions={"fakee": 1})),
            Settings(actions=ActionSettings(kinds={"fake.stepp": PoolLimits(slots=1)})),
            Settings(actions=ActionSettings(kinds={"other.step": PoolLimits(slots=1)})),
        ):
            with pytest.raises(ConfigError, match=r"this run has: fake|one of fake"):
                run(environment=OneSession(Session()), settings=settings)

    def test_the_bound_knows_the_kinds_that_programs_use(self):
        async def program(sample):
            await sample.act("bash", functools.partial(asyncio.sleep, 10))

        statistics, events = RunStatistics(), []
        run(
            program,
            tasks=[Task(task_id="t", num_samples=4)],
            settings=Settings(actions=ActionSettings(kinds={"bash": PoolLimits(slots=1)})),
            recorder=Recorder([statistics, events.append]),
        )

        summary = statistics.summary()
        assert [event.kind for event in events if isinstance(event, PoolOpened)] == ["bash"]
        assert summary.lower_bound_seconds == summary.makespan_seconds == 40
        assert summary.binding_resource == "environment bash"


class TestCircuitBreaker:
    def test_broken_samples_beside_healthy_ones_do_not_open_it(self):
        plans = {SampleId("t", index): Plan(num_turns=5, seconds=3) for index in range(64)}
        for index in range(10):
            plans[SampleId("t", index)] = Plan(faults={"set_up": "crash"}, seconds=0)

        trajectories = run(
            environment=FakeEnvironment(plans), tasks=[Task(task_id="t", num_samples=64)]
        )

        statuses = [trajectory.status for trajectory in trajectories]
        assert statuses == [Status.FAILED] * 10 + [Status.COMPLETED] * 54

    def test_a_stretch_of_broken_samples_after_good_ones_does_not_open_it(self):
        plans = {
            SampleId("t", index): Plan(faults={"step": "crash"} if 20 <= index < 80 else {})
            for index in range(100)
        }

        trajectories = run(
            environment=FakeEnvironment(plans),
            tasks=[Task(task_id="t", num_samples=100)],
            settings=Settings(admission=AdmissionLimits(max_samples=4)),
        )

        assert sum(t.status is Status.COMPLETED for t in trajectories) == 40
        assert not any(t.cancel_reason is CancelReason.CIRCUIT_OPEN for t in trajectories)


class TestStubbornness:
    def test_clean_up_after_the_limit_does_not_hide_it(self):
        async def program(sample):
            try:
                await asyncio.sleep(1e6)
            finally:
                await sample.act("tidy", functools.partial(asyncio.sleep, 5))

        (trajectory,) = run(program, settings=Settings(limits=Limits(sample=10)))

        assert (trajectory.status, trajectory.failure.limit) == (Status.FAILED, "sample")
        assert trajectory.timings.finished_at == 15

    def test_a_program_that_swallows_the_limit_is_cancelled_again_and_fails(self):
        async def program(sample):
            for _ in range(3):
                try:
                    await asyncio.sleep(1e6)
                except asyncio.CancelledError:
                    continue
            return 1.0

        (trajectory,) = run(program, settings=Settings(limits=Limits(sample=10)))

        assert (trajectory.status, trajectory.failure.limit) == (Status.FAILED, "sample")
        assert trajectory.timings.finished_at < 100

    def test_a_program_that_swallows_an_interrupt_is_cancelled_again(self):
        sink = CollectSink()

        async def program(sample):
            for _ in range(3):
                try:
                    await asyncio.sleep(1e5)
                except asyncio.CancelledError:
                    continue

        async def main():
            orchestrator = prepare(sink, engine=FakeEngine(), program=program)
            asyncio.get_running_loop().call_later(1, orchestrator.cancel, CancelReason.INTERRUPTED)
            await orchestrator.run(ONE)
            return clock.now()

        assert clock.run(main(), time="virtual") < 1_000
        assert len(sink.trajectories) == 1

    def test_two_sub_agents_do_not_share_one_turn(self):
        async def agent(sample):
            chain = sample.chain()
            for _ in range(5):
                await sample.generate(token_ids=PROMPT, chain=chain)

        async def program(sample):
            jobs = [sample.spawn(agent(sample)) for _ in range(2)]
            for job in jobs:
                (await job.outcome()).unwrap()
            return 1.0

        settings = Settings(limits=Limits(turn=10))
        assert run(program, engine=FakeEngine(seconds=3), settings=settings)[0].score == 1.0

    def test_a_wait_that_never_got_a_slot_is_in_the_figures(self):
        events = []

        async def program(sample):
            await sample.act("bash", functools.partial(asyncio.sleep, 500))

        _, waited = run(
            program,
            tasks=[Task(task_id="t", num_samples=2)],
            settings=Settings(
                limits=Limits(queue=100),
                actions=ActionSettings(kinds={"bash": PoolLimits(slots=1)}),
            ),
            recorder=Recorder([events.append]),
        )

        assert waited.failure.limit == "queue"
        assert waited.timings.slot_wait_seconds == 100
        (action,) = [e for e in events if isinstance(e, Action) and e.sample_id == "t#1"]
        assert (action.wait_seconds, action.seconds, action.outcome) == (100, 0, "limit")


class Raising:
    """A policy whose every method that is named raises."""

    def __init__(self, *names):
        self.names = names
        self.demands = []

    def _may(self, name):
        if name in self.names:
            raise OSError(f"{name} broke")

    def place(self, demand):
        self._may("place")
        return "worker"

    def next_turn(self, demand, context_tokens):
        self._may("next_turn")
        return "worker"

    def leave(self, demand):
        self._may("leave")

    def watch(self, on_change):
        pass


@pytest.mark.parametrize("method", ["place", "leave"])
def test_a_placement_that_raises_ends_the_run_and_loses_nothing(method):
    sink = CollectSink()

    async def main():
        orchestrator = prepare(
            sink,
            engine=FakeEngine(),
            environment=OneSession(Session()),
            policies=Policies(placement=Raising(method)),
        )
        await orchestrator.run([Task(task_id="t", num_samples=3)])

    with pytest.raises(OSError, match=f"{method} broke"):
        clock.run(main(), time="virtual")
    assert len(sink.trajectories) == 3
