"""What programs can do with their context, and what stops them."""

import asyncio
import functools
import threading

import pytest

import rolloutkit as rk
from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings
from rolloutkit.errors import AttemptEnded, ConfigError, RunFailed
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.protocols import Capabilities
from rolloutkit.record.recorder import Recorder
from rolloutkit.types import (
    AssistantMessage,
    CancelReason,
    Completion,
    FailureKind,
    FinishReason,
    SampleId,
    Score,
    Status,
    StopReason,
    Task,
)
from tests.fakes import PROMPT, SPOKEN, FakeEngine, FakeEnvironment, Plan

ONE = [Task(task_id="t")]


def run(program=None, *, tasks=ONE, engine=None, time="virtual", **given):
    return rk.run(tasks, engine=engine or FakeEngine(), program=program, time=time, **given)


def environment_of(*plans, **fields):
    ids = [SampleId("t", index) for index in range(len(plans))]
    return FakeEnvironment(dict(zip(ids, plans, strict=True)), **fields)


class TestPrograms:
    def test_a_program_generates_acts_and_scores_itself(self):
        async def tool():
            await asyncio.sleep(3)
            return "result"

        async def program(sample):
            reply = await sample.generate(token_ids=PROMPT)
            assert list(reply.completion.token_ids) == list(SPOKEN)
            assert await sample.act("bash", tool) == "result"
            await sample.generate(token_ids=PROMPT)
            return Score(0.5, {"why": "half"})

        (trajectory,) = run(program)

        assert trajectory.status is Status.COMPLETED
        assert (trajectory.score, trajectory.score_details) == (0.5, {"why": "half"})
        assert (trajectory.num_turns, trajectory.num_actions) == (2, 1)
        assert trajectory.timings.act_seconds == 3
        assert trajectory.timings.generate_seconds == 2
        chain = trajectory.chains[0]
        assert list(chain.token_ids) == [*PROMPT, *SPOKEN, *PROMPT, *SPOKEN]
        assert trajectory.prompt_tokens == 5 + 13
        assert trajectory.output_tokens == 6

    def test_a_program_that_raises_fails_its_sample_with_its_words(self):
        async def program(sample):
            raise KeyError("oops")

        (trajectory,) = run(program)

        assert trajectory.failure.kind is FailureKind.PROGRAM
        assert "KeyError: 'oops'" in trajectory.failure.message
        assert "raise KeyError" in trajectory.failure.detail

    def test_turns_tokens_and_context_end_a_program_without_failing_it(self):
        async def program(sample):
            while True:
                await sample.generate(token_ids=PROMPT)

        def stop_of(**limits):
            return run(program, settings=Settings(limits=Limits(**limits)))[0].stop_reason

        assert stop_of(max_turns=3) is StopReason.MAX_TURNS
        assert stop_of(output_tokens=7) is StopReason.TOKEN_BUDGET
        (full,) = run(program, engine=FakeEngine(max_context=20))
        assert full.stop_reason is StopReason.CONTEXT_FULL
        assert full.status is Status.COMPLETED

    def test_parallel_calls_come_back_as_values_and_are_bounded_each(self):
        async def call(seconds):
            await asyncio.sleep(seconds)
            return seconds

        async def program(sample):
            jobs = [
                sample.spawn(sample.act("bash", functools.partial(call, seconds), timeout=5))
                for seconds in (1, 2, 9)
            ]
            outcomes = [await job.outcome() for job in jobs]
            assert [outcome.value for outcome in outcomes] == [1, 2, None]
            assert "limits.action of 5 s" in str(outcomes[2].error)
            assert clock.now() == 5
            return Score(1.0)

        assert run(program)[0].score == 1.0

    def test_children_end_with_their_sample(self):
        ended = []

        async def child():
            try:
                await asyncio.sleep(1_000)
            finally:
                ended.append(clock.now())

        async def program(sample):
            sample.spawn(child())
            await asyncio.sleep(1)

        run(program)

        assert ended == [1]

    def test_an_attempt_that_is_over_can_do_nothing_more(self):
        kept = []

        async def program(sample):
            kept.append(sample)
            if len(kept) == 1:
                raise rk.RolloutError("again")
            with pytest.raises(AttemptEnded):
                await kept[0].generate(token_ids=PROMPT)
            with pytest.raises(AttemptEnded):
                await kept[0].act("bash", asyncio.Event().wait)
            return Score(1.0)

        retry = RetryPolicy(kinds=(FailureKind.PROGRAM,))
        (trajectory,) = run(program, settings=Settings(retry=retry))

        assert (trajectory.score, trajectory.attempt) == (1.0, 1)

    def test_chains_fork_and_keep_their_parent(self):
        async def program(sample):
            await sample.generate(token_ids=PROMPT)
            side = sample.chain(sample.dialogue.chains[0])
            fresh = sample.chain()
            await sample.generate(token_ids=[1], chain=side)
            await sample.generate(token_ids=[1], chain=fresh)

        (trajectory,) = run(program)

        assert [len(chain) for chain in trajectory.chains] == [8, 12, 4]
        assert [chain.parent for chain in trajectory.chains] == [None, 0, None]

    @pytest.mark.real_time
    def test_a_plain_function_runs_in_a_thread(self):
        async def program(sample):
            here = threading.get_ident()
            assert await sample.act("bash", threading.get_ident) != here
            return Score(1.0)

        assert run(program, time="real", engine=FakeEngine(seconds=0))[0].score == 1.0

    def test_a_sample_cannot_outlast_its_own_limit(self):
        async def program(sample):
            while True:
                await sample.act("bash", functools.partial(asyncio.sleep, 4))

        (trajectory,) = run(program, settings=Settings(limits=Limits(sample=10)))

        assert trajectory.failure.limit == "sample"
        assert trajectory.timings.finished_at == 10

    def test_waiting_for_a_slot_is_not_charged_to_the_sample(self):
        async def program(sample):
            await sample.act("bash", functools.partial(asyncio.sleep, 8))

        trajectories = run(
            program,
            tasks=[Task(task_id="t", num_samples=4)],
            settings=Settings(
                limits=Limits(sample=10),
                actions=ActionSettings(kinds={"bash": PoolLimits(slots=1)}),
            ),
        )

        assert {trajectory.status for trajectory in trajectories} == {Status.COMPLETED}
        assert [trajectory.timings.slot_wait_seconds for trajectory in trajectories] == [
            0,
            8,
            16,
            24,
        ]


class TextEngine(FakeEngine):
    """An engine that speaks messages only."""

    @property
    def capabilities(self):
        return Capabilities()

    async def generate(self, request, on_progress=None):
        assert request.prompt.messages[-1]["content"] == "hello"
        return Completion(
            finish_reason=FinishReason.STOP, message=AssistantMessage("hi"), output_tokens=4
        )


class TestEnvironments:
    def test_the_built_in_loop_runs_the_environment_to_its_end(self):
        environment = environment_of(Plan(num_turns=3))

        (trajectory,) = run(environment=environment)

        assert (trajectory.status, trajectory.stop_reason) == (Status.COMPLETED, StopReason.DONE)
        assert trajectory.num_turns == 3
        assert trajectory.score == 1.0
        assert trajectory.timings.set_up_seconds == 1
        assert trajectory.timings.score_seconds == 1
        assert environment.closed == {SampleId("t", 0): 1}

    @pytest.mark.parametrize(
        ("stage", "fault", "kind", "limit"),
        [
            ("set_up", "crash", FailureKind.SET_UP, None),
            ("set_up", "hang", FailureKind.LIMIT, "set_up"),
            ("step", "crash", FailureKind.ENVIRONMENT, None),
            ("step", "hang", FailureKind.LIMIT, "action"),
            ("score", "crash", FailureKind.SCORE, None),
            ("score", "hang", FailureKind.LIMIT, "scoring"),
        ],
    )
    def test_each_fault_is_a_failure_of_its_kind_and_the_session_is_closed(
        self, stage, fault, kind, limit
    ):
        environment = environment_of(Plan(faults={stage: fault}))

        (trajectory,) = run(environment=environment)

        assert (trajectory.failure.kind, trajectory.failure.limit) == (kind, limit)
        assert environment.closed == environment.opened

    def test_a_session_that_breaks_once_is_tried_again_from_the_start(self):
        environment = environment_of(Plan(faults={"step": "crash"}, heals=True))

        (trajectory,) = run(environment=environment)

        assert (trajectory.status, trajectory.attempt) == (Status.COMPLETED, 1)
        assert len(trajectory.chains[0]) == 8
        assert environment.closed[SampleId("t", 0)] == 2

    def test_a_session_that_cannot_be_closed_costs_its_limit_and_nothing_else(self, caplog):
        environment = environment_of(Plan(faults={"close": "hang"}), Plan())

        trajectories = run(
            environment=environment,
            tasks=[Task(task_id="t", num_samples=2)],
            settings=Settings(admission=AdmissionLimits(max_sessions={"fake": 1})),
        )

        assert [trajectory.status for trajectory in trajectories] == [Status.COMPLETED] * 2
        assert "closing the session of t#0 failed: limits.close of 120 s" in caplog.text
        assert trajectories[1].timings.admitted_at > 120

    def test_an_engine_without_token_ids_gives_text_trajectories(self):
        class Talking(FakeEnvironment):
            def open(self, task, sample_id, seed):
                return TalkingSession()

        class TalkingSession:
            async def reset(self):
                return rk.Observation(messages=({"role": "user", "content": "hello"},))

            async def step(self, reply):
                assert reply.message.content == "hi"
                return rk.Observation(done=True)

            async def score(self):
                return None

            async def close(self):
                pass

        (trajectory,) = run(environment=Talking({}), engine=TextEngine())

        assert not trajectory.token_exact
        assert trajectory.chains == ()
        assert [message["role"] for message in trajectory.messages] == ["user", "assistant"]
        assert trajectory.output_tokens == 4
        assert trajectory.prompt_tokens is None
        assert trajectory.score is None


class TestBatches:
    def test_results_come_in_the_order_of_the_tasks(self):
        plans = {
            SampleId(task, index): Plan(seconds=seconds)
            for task, seconds in (("slow", 9), ("quick", 1))
            for index in range(2)
        }
        tasks = [Task(task_id="slow", num_samples=2), Task(task_id="quick", num_samples=2)]

        trajectories = run(environment=FakeEnvironment(plans), tasks=tasks)

        assert [str(trajectory.sample_id) for trajectory in trajectories] == [
            "slow#0",
            "slow#1",
            "quick#0",
            "quick#1",
        ]

    def test_a_stream_of_tasks_is_read_as_room_allows(self):
        read = []

        async def source():
            for index in range(1_000_000):
                read.append(index)
                yield Task(task_id=str(index))

        async def main():
            async def program(sample):
                await sample.generate(token_ids=PROMPT)

            seen = 0
            async for _ in rk.rollout(
                source(),
                engine=FakeEngine(),
                program=program,
                settings=Settings(admission=AdmissionLimits(max_samples=4, lookahead=8)),
            ):
                seen += 1
                if seen == 20:
                    break
            return seen

        assert clock.run(main(), time="virtual") == 20
        assert len(read) < 200

    def test_leaving_a_stream_early_closes_what_is_open(self):
        environment = environment_of(*[Plan(num_turns=50)] * 6, Plan())

        async def main():
            stream = rk.rollout(
                [Task(task_id="t", num_samples=7)], engine=FakeEngine(), environment=environment
            )
            async for trajectory in stream:
                assert trajectory.sample_id == SampleId("t", 6)
                break
            await stream.aclose()

        clock.run(main(), time="virtual")

        assert environment.closed == environment.opened

    def test_a_slow_consumer_holds_admission_back(self):
        engine = FakeEngine(seconds=0)

        async def program(sample):
            await sample.generate(token_ids=PROMPT)

        async def main():
            tasks = [Task(task_id="t", num_samples=5_000)]
            stream = rk.rollout(tasks, engine=engine, program=program)
            async for _ in stream:
                await asyncio.sleep(1_000)
                break
            admitted = len(engine.finished)
            await stream.aclose()
            return admitted

        assert clock.run(main(), time="virtual") < 300

    def test_everything_failing_opens_the_circuit_breaker(self):
        environment = environment_of(*[Plan(faults={"set_up": "crash"})] * 100)
        events = []

        with pytest.raises(RunFailed, match=r"all of the first 10 samples failed.*set_up broke"):
            run(
                environment=environment,
                tasks=[Task(task_id="t", num_samples=100)],
                settings=Settings(admission=AdmissionLimits(max_samples=2)),
                recorder=Recorder([events.append]),
            )

        ended = [event for event in events if type(event).__name__ == "SampleEnded"]
        assert len(ended) == 100
        assert {event.cancel_reason for event in ended if event.status is Status.CANCELLED} <= {
            CancelReason.CIRCUIT_OPEN,
            CancelReason.NOT_STARTED,
        }

    def test_the_run_deadline_cancels_what_is_left_and_returns_it(self):
        environment = environment_of(Plan(num_turns=1), Plan(num_turns=1_000))

        trajectories = run(
            environment=environment,
            tasks=[Task(task_id="t", num_samples=2)],
            settings=Settings(limits=Limits(run=50)),
        )

        assert [trajectory.status for trajectory in trajectories] == [
            Status.COMPLETED,
            Status.CANCELLED,
        ]
        assert trajectories[1].cancel_reason is CancelReason.DEADLINE

    def test_a_sink_that_breaks_ends_the_run_with_its_words(self):
        from rolloutkit.batch import prepare

        class FullDisk:
            async def put(self, trajectory):
                raise OSError("no space left")

            async def close(self):
                pass

        environment = environment_of(*[Plan()] * 4)

        async def main():
            await prepare(FullDisk(), engine=FakeEngine(), environment=environment).run(
                [Task(task_id="t", num_samples=4)]
            )

        with pytest.raises(RunFailed, match="the sink did not take t#0: no space left"):
            clock.run(main(), time="virtual")
        assert environment.closed == environment.opened

    @pytest.mark.parametrize(
        ("tasks", "message"),
        [
            ([Task(task_id="t"), Task(task_id="t")], "sample t#0 was given twice"),
            ([Task(task_id="t", environment="moon")], "'moon'; this run has: fake"),
        ],
    )
    def test_tasks_that_cannot_be_run_are_refused(self, tasks, message):
        with pytest.raises(ConfigError, match=message):
            run(environment=environment_of(Plan()), tasks=tasks)

    def test_parts_that_do_not_fit_are_refused(self):
        with pytest.raises(ConfigError, match="give an environment, a program, or both"):
            run()
        with pytest.raises(ConfigError, match="names must be unique"):
            run(environment=[environment_of(Plan()), environment_of(Plan())])
        with pytest.raises(ConfigError, match="constrain_calls needs an engine"):
            run(environment=environment_of(Plan()), settings=Settings(constrain_calls=True))

    @pytest.mark.real_time
    def test_run_works_where_a_loop_runs_already(self):
        async def notebook():
            return rk.run(
                ONE, engine=FakeEngine(seconds=0), environment=environment_of(Plan(seconds=0))
            )

        assert asyncio.run(notebook())[0].status is Status.COMPLETED

    def test_an_engine_that_can_be_entered_is_entered_for_the_run(self):
        class Opened(FakeEngine):
            is_open = False

            async def __aenter__(self):
                self.is_open = True
                return self

            async def __aexit__(self, *_):
                self.is_open = False

        async def program(sample):
            assert engine.is_open

        engine = Opened()
        assert run(program, engine=engine)[0].status is Status.COMPLETED
        assert not engine.is_open
