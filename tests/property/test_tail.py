"""Hedges, caps and spare samples: nothing lands twice, nothing leaks, the budget holds."""

import asyncio
import contextlib
from array import array
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutkit import clock
from rolloutkit.actions import ActionSettings, PoolLimits
from rolloutkit.admission import AdmissionLimits
from rolloutkit.batch import Settings, prepare
from rolloutkit.errors import EngineError, RunFailed
from rolloutkit.limits import Limits, RetryPolicy
from rolloutkit.protocols import Capabilities
from rolloutkit.record.events import Action, CallHedged, ModelCall, RunEnded, SampleEnded
from rolloutkit.record.recorder import Recorder
from rolloutkit.sinks import CollectSink, GroupSink, TeeSink
from rolloutkit.tail import (
    HedgeSettings,
    OutputCapSettings,
    OversamplingSettings,
    TailSettings,
)
from rolloutkit.tail.bounds import AdaptiveBound
from rolloutkit.tail.budget import HedgeBudget
from rolloutkit.types import (
    CancelReason,
    Completion,
    FinishReason,
    SampleId,
    SamplingParams,
    Status,
    Task,
)
from tests.property.examples import core_examples, moments, order_examples, ticks
from tests.property.moments import at

NUM_TOKENS = 4
PROMPT = array("i", range(5))

ISSUES = st.builds(
    lambda seconds, silent_after, stall, fault, lingers: (
        seconds,
        silent_after,
        stall,
        fault,
        lingers,
    ),
    ticks,
    st.integers(0, NUM_TOKENS),
    st.sampled_from([0.0, 0.0, 2.0, 3.5, 60.0]),
    st.sampled_from([None, None, None, "break", "hang"]),
    st.sampled_from([0.0, 0.0, 1.0]),
)
PLANS = st.dictionaries(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 2)), ISSUES, max_size=8
)
ENDINGS = st.none() | st.tuples(
    st.sampled_from(["drain", "cancel", "cancel caller", "cancel sample"]),
    moments,
    st.integers(0, 3),
)
LIMITS = Limits(model_call=20, action=20, close=9, sample=200, run=5_000)
HEDGE = HedgeSettings(
    model_calls=True, actions=True, floor_seconds=1, patience_seconds=2, max_share=0.5
)


class StallingEngine:
    """Token `k` of a turn is 100 x turn + k. `plans` says how each issue of a call goes: seconds,
    tokens after which it is silent, for how long, how it fails, and how long it takes to let go.
    """

    def __init__(self, plans, can_continue):
        self.plans = plans
        self.num_running = 0
        self.heard = {}
        self.num_issues = Counter()
        self.capabilities = Capabilities(token_ids=True, logprobs=True, progress=True)
        if can_continue:
            self.received = self._received

    async def generate(self, request, on_progress=None):
        sample_id, turn = request.sample_id, request.turn
        key = (sample_id.sample_index, turn, request.reissue)
        seconds, silent_after, stall, fault, lingers = self.plans.get(key, (0.5, 4, 0.0, None, 0.0))
        self.num_issues[sample_id, request.attempt, turn] += 1
        self.num_running += 1
        assert (
            list(request.prompt.token_ids)[-request.continued :]
            == self._tokens(turn, request.continued)
            or not request.continued
        )
        try:
            for count in range(1, NUM_TOKENS - request.continued + 1):
                await asyncio.sleep(seconds / NUM_TOKENS)
                if request.continued + count <= silent_after:
                    self.heard[request.request_id] = count
                    on_progress(count)
            await asyncio.sleep(stall)
            if fault == "hang":
                await asyncio.get_running_loop().create_future()
            if fault == "break":
                raise EngineError("the worker died")
            tokens = self._tokens(turn, NUM_TOKENS)[request.continued :]
            return Completion(
                finish_reason=FinishReason.STOP,
                token_ids=array("i", tokens),
                logprobs=array("f", [-1.0] * len(tokens)),
                prompt_tokens=len(request.prompt.token_ids),
                cached_tokens=0,
            )
        except asyncio.CancelledError:
            if lingers:  # an abort that the server takes its time with
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(lingers)
            raise
        finally:
            self.num_running -= 1

    def _tokens(self, turn, count):
        return [100 * (turn + 1) + index for index in range(count)]

    def _received(self, request):
        count = self.heard.get(request.request_id, 0)
        return Completion(
            finish_reason=FinishReason.ABORT,
            token_ids=array("i", self._tokens(request.turn, count)),
            logprobs=array("f", [-1.0] * count),
        )

    def finish(self, sample_id):
        pass


@pytest.mark.timeout(300)
@core_examples
@given(
    plans=PLANS,
    can_continue=st.booleans(),
    tool_seconds=st.lists(st.sampled_from([0.5, 1.0, 3.0, 15.0, 30.0]), min_size=1, max_size=6),
    num_samples=st.integers(1, 4),
    slots=st.integers(1, 3),
    ends=ENDINGS,
)
def test_a_turn_is_appended_once_and_no_issue_outlives_its_run(
    plans, can_continue, tool_seconds, num_samples, slots, ends
):
    engine = StallingEngine(plans, can_continue)
    sink, events, running, problems = CollectSink(), [], Counter(), []
    durations = iter(tool_seconds * 100)

    async def tool():
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        try:
            await asyncio.sleep(next(durations))
        finally:
            running["now"] -= 1

    async def program(sample):
        for _ in range(3):
            await sample.generate(token_ids=PROMPT)
            await sample.act("tool", tool, idempotent=True)

    async def main():
        asyncio.get_running_loop().set_exception_handler(
            lambda _, problem: problems.append(problem)
        )
        orchestrator = prepare(
            sink,
            engine=engine,
            program=program,
            settings=Settings(
                admission=AdmissionLimits(max_samples=3),
                actions=ActionSettings(order="fifo", step=PoolLimits(slots=slots)),
                limits=LIMITS,
                retry=RetryPolicy(max_attempts=2),
                tail=TailSettings(hedge=HEDGE),
            ),
            recorder=Recorder([events.append]),
        )
        run = asyncio.create_task(orchestrator.run([Task(task_id="t", num_samples=num_samples)]))
        if ends is not None:
            what, moment, index = ends
            at(moment, lambda: end(orchestrator, run, what, index))
        with contextlib.suppress(asyncio.CancelledError, RunFailed):
            await run
        scheduler = orchestrator._services.actions
        assert set(scheduler.num_running.values()) <= {0}
        assert scheduler.num_waiting == 0
        assert len(asyncio.all_tasks()) == 1

    clock.run(main(), time="virtual")

    assert problems == []
    assert engine.num_running == 0
    assert running["now"] == 0
    assert running["most"] <= slots
    assert sorted(one.sample_id for one in sink.trajectories) == [
        SampleId("t", index) for index in range(num_samples)
    ]
    for one in sink.trajectories:
        expected = [
            token
            for turn in range(one.num_turns)
            for token in [*PROMPT, *(100 * (turn + 1) + k for k in range(NUM_TOKENS))]
        ]
        chain = list(one.chains[0].token_ids) if one.chains else []
        assert chain[: len(expected)] == expected
        assert one.output_tokens == NUM_TOKENS * one.num_turns
        if one.status is Status.COMPLETED:
            assert len(chain) == len(expected)
    check_hedges(events)
    assert isinstance(events[-1], RunEnded)


def check_hedges(events):
    """At most one hedge of a kind in advance and half of its calls, each told once."""
    hedges = [event for event in events if isinstance(event, CallHedged)]
    num_calls = sum(isinstance(event, ModelCall) for event in events)
    num_actions = sum(isinstance(event, Action) and event.slots > 0 for event in events)
    num_hedged_calls = sum(hedge.kind == "model_call" for hedge in hedges)
    assert num_hedged_calls <= 1 + HEDGE.max_share * num_calls
    assert len(hedges) - num_hedged_calls <= 1 + HEDGE.max_share * num_actions
    for hedge in hedges:
        assert hedge.stalled_seconds >= HEDGE.floor_seconds
        assert 0 <= hedge.received_tokens <= NUM_TOKENS
        assert 0 <= hedge.lost_tokens <= NUM_TOKENS


def end(orchestrator, run, what, index):
    if what == "drain":
        orchestrator.drain()
    elif what == "cancel":
        orchestrator.cancel(CancelReason.INTERRUPTED)
    elif what == "cancel caller":
        run.cancel()
    else:
        jobs = list(orchestrator._sample_jobs.values())
        if jobs:
            jobs[index % len(jobs)].cancel()


def num_failed(group):
    return sum(one.status is Status.FAILED for one in group.trajectories)


async def live(seconds, *, swallows, fails):
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        if swallows:
            await asyncio.sleep(1)
        raise
    if fails:
        raise ValueError("no luck")


@pytest.mark.timeout(300)
@core_examples
@given(
    seconds=st.lists(st.lists(ticks, min_size=3, max_size=5), min_size=1, max_size=3),
    extra=st.integers(1, 2),
    max_samples=st.integers(1, 6),
    failing=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=4),
    swallows=st.booleans(),
    ends=ENDINGS,
)
def test_a_group_keeps_what_was_asked_for_and_each_sample_ends_once(
    seconds, extra, max_samples, failing, swallows, ends
):
    sink, events, groups = CollectSink(), [], []
    sizes = {f"g{index}": len(row) for index, row in enumerate(seconds)}

    async def deliver(group):
        groups.append(group)

    async def program(sample):
        group, index = int(sample.task.task_id[1:]), sample.sample_id.sample_index
        await live(seconds[group][index], swallows=swallows, fails=(group, index) in failing)

    async def main():
        orchestrator = prepare(
            TeeSink(sink, GroupSink(deliver, sizes.__getitem__)),
            engine=StallingEngine({}, can_continue=False),
            program=program,
            settings=Settings(
                admission=AdmissionLimits(max_samples=max_samples, lookahead=4),
                limits=LIMITS,
                breaker_failures=100,
                tail=TailSettings(oversampling=OversamplingSettings(extra=extra)),
            ),
            recorder=Recorder([events.append]),
        )
        tasks = [Task(task_id=name, num_samples=size - extra) for name, size in sizes.items()]
        run = asyncio.create_task(orchestrator.run(tasks))
        if ends is not None:
            what, moment, index = ends
            at(moment, lambda: end(orchestrator, run, what, index))
        with contextlib.suppress(asyncio.CancelledError):
            await run
        assert orchestrator._admission.num_alive == 0
        assert len(orchestrator._admission) == 0
        assert len(asyncio.all_tasks()) == 1

    clock.run(main(), time="virtual")

    emitted = sorted(one.sample_id for one in sink.trajectories)
    assert emitted == [SampleId(name, i) for name, size in sizes.items() for i in range(size)]
    ended = sorted(event.sample_id for event in events if isinstance(event, SampleEnded))
    assert ended == sorted(map(str, emitted))
    assert sorted(group.task_id for group in groups) == sorted(sizes)
    for group in groups:
        closed = [
            one
            for one in sink.trajectories
            if one.sample_id.task_id == group.task_id
            and one.cancel_reason is CancelReason.GROUP_FULL
        ]
        size = sizes[group.task_id]
        assert len(group.trajectories) + len(closed) == size
        num_completed = sum(one.status is Status.COMPLETED for one in group.trajectories)
        assert num_completed <= size - extra
        if closed:
            assert num_completed == size - extra
        elif ends is None:
            assert num_completed == len(group.trajectories) - num_failed(group)


@order_examples
@given(
    outputs=st.lists(st.integers(1, 50), min_size=60, max_size=80),
    fixed=st.none() | st.integers(1, 40),
    adaptive=st.booleans(),
)
def test_capped_turns_say_so_and_no_others(outputs, fixed, adaptive):
    from rolloutkit.tail import CappedEngine, OutputCap
    from rolloutkit.types import GenerateRequest, TokenPrompt

    lengths = iter(outputs)

    class Engine:
        capabilities = Capabilities(token_ids=True)

        async def generate(self, request, on_progress=None):
            wanted, room = next(lengths), request.sampling.max_tokens
            is_cut = wanted > room
            return Completion(
                finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
                token_ids=array("i", [1] * min(wanted, room)),
            )

    settings = OutputCapSettings(tokens=fixed, adaptive=adaptive, floor_tokens=5, factor=1.5)
    engine = CappedEngine(Engine(), OutputCap(settings))

    async def main():
        for turn, wanted in enumerate(outputs):
            request = GenerateRequest(
                sample_id=SampleId("t", 0),
                attempt=0,
                chain_index=0,
                turn=turn,
                prompt=TokenPrompt(PROMPT),
                sampling=SamplingParams(max_tokens=45),
            )
            done = await engine.generate(request)
            assert (done.finish_reason is FinishReason.STOP) == (len(done.token_ids) == wanted)
            if done.finish_reason is FinishReason.LENGTH:
                assert len(done.token_ids) == 45
            if done.finish_reason is FinishReason.CAPPED:
                assert len(done.token_ids) < 45
            if fixed is not None:
                assert len(done.token_ids) <= fixed
            if fixed is None and not adaptive:
                assert done.finish_reason is not FinishReason.CAPPED

    clock.run(main(), time="virtual")


@order_examples
@given(
    values=st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=700),
    factor=st.sampled_from([1.0, 3.0]),
)
def test_bound_is_a_multiple_of_a_quantile_and_what_it_cuts_off_leaves_it_alone(values, factor):
    bound = AdaptiveBound(quantile=0.9, factor=factor, floor=2.0, until_known=77.0)
    for value, was_cut in values:
        before = bound.value()
        bound.observe(value, was_cut=was_cut)
        if was_cut and len(bound._latest) > 50:
            assert bound.value() <= max(before, 2.0) * (1 + 1e-9) or len(bound._latest) == 51
    if len(values) < 50:
        assert bound.value() == 77.0
    else:
        assert bound.value() >= 2.0
        assert len(bound._ordered) == len(bound._latest) <= 500
        assert bound._ordered == sorted(bound._latest)


@order_examples
@given(calls=st.lists(st.booleans(), max_size=300), share=st.sampled_from([0.05, 0.5, 1.0]))
def test_hedges_never_exceed_their_share_and_one(calls, share):
    budget = HedgeBudget(share)
    for wants in calls:
        budget.earn()
        if wants:
            budget.take()
        assert budget.num_hedges <= 1 + share * budget.num_calls + 1e-9
