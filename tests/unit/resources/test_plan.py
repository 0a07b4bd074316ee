"""The plan: known workers, cases that degenerate, and what must hold for any."""

import msgspec
import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.resources import Deployment, load_gpu, load_model
from rolloutkit.resources.advice import reasons, sglang_flags, vllm_flags
from rolloutkit.resources.plan import Question, plan
from rolloutkit.resources.pools import default_fraction, pool_bytes
from rolloutkit.resources.steady import Rules
from rolloutkit.resources.workload import Declared, Pauses, Workload, declared

LONG = 34_000


def agents(act_seconds, *, context=LONG, turns=1_000.0, shape="exponential"):
    """The set-up of the research: 1,500 new and 500 output tokens a turn."""
    return Workload(
        turns=turns,
        new_tokens=1_500,
        output_tokens=500,
        pauses=Pauses.of(act_seconds, shape),
        resume_context=context,
        running_context=context,
        idle_context=context,
        final_context=context,
    )


def ling(**fields):
    """Ling-3.0-flash in FP8 on two H200, with 55 GB for caches on each."""
    return Question(
        **{
            "model": load_model("ling-3.0-flash"),
            "gpu": load_gpu("H200"),
            "deployment": Deployment(tp=2, weight_dtype="fp8"),
            "memory_bytes": 55e9,
            "rules": Rules(keeps_finished=False),
            **fields,
        }
    )


def other(name, tp=1, **fields):
    deployment = Deployment(tp=tp)
    return Question(model=load_model(name), gpu=load_gpu("H200"), deployment=deployment, **fields)


@pytest.mark.parametrize(
    ("act_seconds", "num_best"),
    [(20, 152), (60, 208), (180, 424)],  # N* of the research, by its closed form and simulation
)
def test_the_best_concurrency_is_that_of_the_research(act_seconds, num_best):
    found = plan(ling(), agents(act_seconds))

    assert found.best.num_samples == pytest.approx(num_best, rel=0.06)


@pytest.mark.parametrize("act_seconds", [20, 60, 180])
def test_the_reference_is_nearly_as_good_and_below_the_collapse(act_seconds):
    found = plan(ling(), agents(act_seconds))

    assert found.reference.turns_per_second >= 0.95 * found.best.turns_per_second
    assert found.num_reference < found.num_collapse
    assert found.margin == found.num_collapse / found.num_reference


def test_what_fits_is_what_a_person_computes():
    found = plan(ling(slots=200), agents(20))
    worker, state = found.worker, 36.25 * 2**20

    kv_tokens = (55e9 - 201 * worker.memory.state_bytes) / 8_064
    running = worker.num_running(found.num_fit)
    states = 4 * running + (found.num_fit - running)

    assert worker.memory.state_bytes == pytest.approx(state, rel=0.001)
    assert found.split.kv_tokens == int(kv_tokens)
    assert found.num_fit * LONG <= 0.97 * kv_tokens
    assert states <= 200 < states + 4


def test_recomputation_pays_where_samples_pause_long():
    short, long = plan(ling(), agents(20)), plan(ling(), agents(180))

    assert short.best.hit_rate > 0.95
    assert short.best.num_samples <= 1.02 * short.num_fit
    assert long.best.hit_rate < 0.6
    assert long.best.num_samples > 2 * long.num_fit


def test_the_default_ratio_costs_what_the_research_measured():
    best, usual = plan(ling(), agents(20)), plan(ling(ratio=0.9), agents(20))

    assert usual.split.slots == 684  # 0.9 / 1.9 of 55 GB in slots of 38.0 MB, one of them padding
    assert usual.best.num_samples == pytest.approx(103, abs=3)
    assert usual.best.turns_per_second < 0.8 * best.best.turns_per_second


def test_dead_states_cost_concurrency():
    capped = plan(ling(), agents(20))
    endless = plan(ling(rules=Rules(keeps_finished=False, states_per_path=None)), agents(20))

    assert endless.num_reference < 0.8 * capped.num_reference
    assert endless.split.slots > capped.split.slots


def test_finished_samples_that_linger_cost_concurrency():
    lean = plan(ling(), agents(20, turns=10))
    full = plan(ling(rules=Rules(keeps_finished=True)), agents(20, turns=10))

    assert full.num_reference < lean.num_reference


def test_pauses_of_one_length_end_in_a_cliff():
    fixed = plan(ling(), agents(60, shape="fixed"))
    spread = plan(ling(), agents(60))

    assert fixed.best.hit_rate == pytest.approx(1, abs=0.01)
    assert fixed.num_collapse - fixed.best.num_samples < spread.best.num_samples / 10


def test_a_model_without_state_needs_no_split():
    found = plan(other("qwen3-32b", 2), agents(20))

    assert (found.split.slots, found.split.ratio) == (0, 0.0)
    assert "mamba" not in sglang_flags(other("qwen3-32b", 2), found)


def test_a_model_without_attention_has_no_context_to_run_out_of():
    config = {
        "model_type": "mamba2",
        "num_hidden_layers": 4,
        "hidden_size": 1_024,
        "num_heads": 32,
        "head_dim": 64,
        "n_groups": 8,
        "state_size": 128,
        "conv_kernel": 4,
        "vocab_size": 1_000,
    }
    question = Question(model=load_model(config), gpu=load_gpu("H200"), memory_bytes=1e9)

    short, long = (plan(question, agents(20, context=size)) for size in (2_000, 200_000))

    assert short.num_fit == long.num_fit
    assert short.split.kv_tokens == 0


def test_a_single_turn_keeps_what_runs():
    numbers = Declared(turns=1, first_prompt=1_000, output_tokens=2_000)
    found = plan(other("qwen3-8b"), declared(numbers))

    assert found.best.num_samples <= found.split.max_running + 2
    assert found.best.hit_rate == 1
    assert found.num_collapse is None


def test_without_act_time_every_sample_runs():
    found = plan(other("qwen3-32b", 2), agents(0))

    assert found.reference.num_running == pytest.approx(found.num_reference, rel=0.01)


def test_windows_count_as_a_constant_of_each_sample():
    found = plan(other("gpt-oss-120b"), agents(20))

    assert found.worker.idle_bytes == pytest.approx(36_864 * (LONG + 0.5) + 18 * 128 * 2_048)


def test_attention_groups_are_workers_of_their_own():
    question = other("deepseek-v3", 8)
    groups = msgspec.structs.replace(question, deployment=Deployment(tp=8, attention_dp=8))

    assert plan(groups, agents(20)).num_workers == 8


def test_several_workers_multiply():
    found = plan(ling(num_workers=4), agents(20))

    assert found.total == 4 * found.num_reference


def test_more_memory_keeps_more_samples():
    counts = [
        plan(ling(memory_bytes=size), agents(60)).num_reference for size in (3e10, 5e10, 9e10)
    ]

    assert counts == sorted(counts)
    assert counts[0] < 0.6 * counts[2]


def test_the_curve_is_what_its_points_are():
    found = plan(ling(), agents(20))

    curve = found.curve()

    assert [point.num_samples for point in curve] == sorted({one.num_samples for one in curve})
    assert max(point.turns_per_second for point in curve) <= found.best.turns_per_second
    assert curve[-1].num_samples > found.num_collapse
    assert curve[-1].hit_rate < 0.1


def test_default_memory_is_that_of_the_engine():
    gpu, deployment = load_gpu("H200"), Deployment(tp=2, weight_dtype="fp8")
    fraction = default_fraction(gpu, deployment, 8_192, 256)  # by hand: 13,568 of 143,771 MiB

    assert fraction == round(1 - (512 + 1.5 * 8_192 + 2 / 8 * 1_024 + 2 * 256) / 143_771, 3)
    weights = load_model("ling-3.0-flash").weight_bytes(deployment)
    assert pool_bytes(load_model("ling-3.0-flash"), deployment, gpu, fraction) == (
        (143_771 * 2**20 - 0.6e9) * fraction - weights
    )


def test_the_words_hold_the_numbers():
    question = ling()
    found = plan(question, agents(20))

    text = " ".join(reasons(question, found))

    assert 3 <= len(reasons(question, found)) <= 4
    for figure in (
        "8,064 bytes",
        "36.2 MiB",
        "55.0 GB",
        str(found.num_fit),
        str(found.split.slots),
    ):
        assert figure in text
    assert f"Keep {found.num_reference} alive" in text


def test_the_flags_are_the_plans():
    question = ling()
    found = plan(question, agents(20))

    assert sglang_flags(question, found) == (
        f"--tp-size 2 --max-total-tokens {found.split.kv_tokens} "
        f"--max-mamba-cache-size {found.split.slots} --mamba-max-states-per-path 1 "
        f"--max-running-requests {found.split.slots // 5} --chunked-prefill-size 8192"
    )
    assert "--mamba-cache-mode align" in vllm_flags(question, found)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (ling(slots=10, ratio=0.5), "slots=10 and ratio=0.5 both set the split"),
        (ling(slots=5_000), "slots: 5000 states of 38.0 MB leave nothing of 55.0 GB"),
        (ling(memory_fraction=0.9), "memory_gb and memory_fraction both say"),
        (ling(memory_bytes=4e8), "keeps 0.4 GB for caches, and one sample of 34,000 tokens needs"),
        (other("llama-3.1-70b"), "needs 141 GB of weights on each GPU: use tp=2 or more"),
    ],
)
def test_what_cannot_be_planned_says_why(question, message):
    with pytest.raises(ConfigError, match=message):
        plan(question, agents(20))
