"""What holds for the steady state and the plan of any worker."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolloutkit.resources import Deployment, load_gpu, load_model, step_time
from rolloutkit.resources.plan import Question, plan
from rolloutkit.resources.steady import Memory, Rules, Worker
from rolloutkit.resources.workload import Pauses, TurnSizes, Workload, WorkloadMeter
from tests.property.examples import NUM_EXAMPLES

# A plan takes a quarter of a second: fewer of them in the default suite.
few = settings(max_examples=50 if NUM_EXAMPLES > 150 else 15)

MODELS = {
    "ling-3.0-flash": Deployment(tp=2, weight_dtype="fp8"),
    "qwen3-next-80b-a3b": Deployment(tp=2),
    "qwen3.5-35b-a3b": Deployment(),
    "qwen3-32b": Deployment(tp=2),
    "gpt-oss-120b": Deployment(),
}


@st.composite
def workloads(draw):
    context = draw(st.integers(2_000, 100_000))
    return Workload(
        turns=draw(st.floats(1, 200)),
        new_tokens=draw(st.integers(1, 2_000)),
        output_tokens=draw(st.integers(1, 2_000)),
        pauses=Pauses.of(
            draw(st.floats(0, 300)), draw(st.sampled_from(["fixed", "exponential", "lognormal"]))
        ),
        resume_context=context,
        running_context=context,
        idle_context=context,
        final_context=context * draw(st.floats(1, 2)),
        context_deviation=draw(st.floats(0, context / 2)),
    )


def worker(name, workload, slots=None, memory_bytes=55e9):
    model, deployment = load_model(name), MODELS[name]
    memory = Memory(
        memory_bytes,
        model.kv_bytes_per_token(deployment),
        model.state_bytes_per_sequence(deployment),
        model.window_bytes_per_sequence(deployment),
        slots,
    )
    return Worker(step_time(model, deployment, load_gpu("H200")), memory, workload, Rules())


@given(st.sampled_from(sorted(MODELS)), workloads(), st.integers(1, 2_000))
@few
def test_samples_are_running_waiting_or_pausing(name, workload, num_samples):
    one = worker(name, workload)

    point = one.at(num_samples)

    pausing = point.turns_per_second * one.resumed_share * workload.pauses.mean
    assert 0 <= point.hit_rate <= 1
    assert 0 <= point.prefill_share < 1
    assert point.num_running <= one.max_running + 1e-6
    assert point.num_running + point.num_waiting + pausing == pytest.approx(num_samples, rel=0.02)


@given(st.sampled_from(sorted(MODELS)), workloads())
@pytest.mark.timeout(180)
@few
def test_the_plan_fits_its_memory(name, workload):
    question = Question(
        model=load_model(name),
        gpu=load_gpu("H200"),
        deployment=MODELS[name],
        memory_bytes=55e9,
    )

    found = plan(question, workload)

    memory, split = found.worker.memory, found.split
    used = split.kv_tokens * memory.kv_bytes_per_token
    used += (split.slots + 1) * memory.state_bytes if split.slots else 0
    assert used <= 55e9
    assert 1 <= found.num_reference <= max(1, found.best.num_samples)
    assert found.num_collapse is None or found.num_collapse > found.num_reference
    best = found.best.turns_per_second
    assert all(point.turns_per_second <= 1.02 * best for point in found.curve()[::6])


@given(st.lists(st.floats(0, 1_000), min_size=1, max_size=50), st.floats(0, 2_000))
@few
def test_pauses_agree_with_their_points(points, seconds):
    pauses = Pauses(points)

    within = sum(point <= seconds for point in points) / len(points)
    assert pauses.share_within(seconds) == within
    assert pauses.mean_within(seconds) == pytest.approx(
        sum(min(point, seconds) for point in points) / len(points)
    )


SIZES = st.builds(
    TurnSizes, st.integers(1, 10_000), st.integers(1, 100), st.integers(1, 500), st.floats(0, 100)
)


@given(st.lists(st.lists(SIZES, min_size=1, max_size=6), min_size=1, max_size=8))
@few
def test_the_order_of_samples_does_not_matter_to_a_meter_that_forgets_nothing(samples):
    forward, backward = WorkloadMeter(), WorkloadMeter()
    for turns in samples:
        forward.add(turns)
    for turns in reversed(samples):
        backward.add(turns)

    one, other = forward.workload(), backward.workload()

    for name in set(Workload._fields) - {"pauses"}:
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-3)
