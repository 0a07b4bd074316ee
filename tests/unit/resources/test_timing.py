"""Step times against figures that others measured and composed, and their fit to reports."""

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.resources import Deployment, load_gpu, load_model, step_time
from rolloutkit.resources.timing import DecodeMoments, attended_pairs, calibrated, fit_line

# Whole steps in ms from measured SGLang kernels (aiconfigurator-core 0.12, SGLang 0.5.14).
DECODE = [
    ("qwen3.5-35b-a3b", "H200", 1, None, 8_192, {1: 3.73, 16: 9.4, 64: 19.0, 128: 25.3, 256: 44.4}),
    ("qwen3.5-35b-a3b", "H200", 1, None, 32_768, {16: 11.2, 64: 27.3, 128: 45.9}),
    ("qwen3.5-35b-a3b", "H100", 1, None, 8_192, {1: 4.1, 16: 12.1, 64: 25.7, 128: 34.4, 256: 49.2}),
    ("qwen3-32b", "H200", 2, None, 8_192, {1: 10.5, 16: 14.5, 64: 26.6, 128: 43.5}),
    ("llama-3.1-70b", "H200", 4, None, 8_192, {1: 11.9, 32: 17.6, 128: 34.3}),
    ("qwen3.5-27b", "H200", 2, None, 32_768, {1: 9.2, 32: 18.1, 128: 53.8}),
    ("qwen3.5-397b-a17b", "H200", 8, "fp8", 32_768, {1: 5.1, 32: 17.1, 128: 36.8, 256: 57.0}),
]
PREFILL = [
    ("qwen3.5-35b-a3b", "H200", 1, None, {1_024: 34, 8_192: 153, 32_768: 748}),
    ("qwen3.5-35b-a3b", "H100", 1, None, {8_192: 170, 32_768: 721}),
    ("qwen3-32b", "H200", 2, None, {1_024: 56, 8_192: 503, 32_768: 2_668}),
    ("llama-3.1-70b", "H200", 4, None, {8_192: 569, 32_768: 2_926}),
    ("qwen3.5-27b", "H200", 2, None, {8_192: 406, 32_768: 1_739}),
    ("qwen3.5-397b-a17b", "H200", 8, "fp8", {8_192: 170, 32_768: 602}),
]


def worker(name, gpu="H200", tp=1, weights=None):
    deployment = Deployment(tp=tp, weight_dtype=weights)
    return step_time(load_model(name), deployment, load_gpu(gpu))


@pytest.mark.parametrize(("name", "gpu", "tp", "weights", "context", "steps"), DECODE)
def test_decode_steps_are_near_measured_ones(name, gpu, tp, weights, context, steps):
    step = worker(name, gpu, tp, weights)

    predicted = {batch: 1e3 * step.decode(batch, batch * context) for batch in steps}

    assert predicted == pytest.approx(steps, rel=0.23 if tp == 8 else 0.17)


@pytest.mark.parametrize(("name", "gpu", "tp", "weights", "prompts"), PREFILL)
def test_prefill_is_near_measured(name, gpu, tp, weights, prompts):
    step = worker(name, gpu, tp, weights)

    predicted = {size: 1e3 * step.prefill_prompt(size, size, 8_192) for size in prompts}

    assert predicted == pytest.approx(prompts, rel=0.24)


def test_a_prompt_in_chunks_attends_to_all_its_pairs():
    chunks = [attended_pairs(100, 100), attended_pairs(100, 200), attended_pairs(50, 250)]

    assert sum(chunks) == attended_pairs(250, 250)


def test_attention_groups_share_the_experts_of_a_step():
    model, gpu = load_model("deepseek-v3"), load_gpu("H200")

    alone = step_time(model, Deployment(tp=8), gpu)
    grouped = step_time(model, Deployment(tp=8, attention_dp=8), gpu)

    assert grouped.weights_read_seconds(1) > alone.weights_read_seconds(1)


def test_a_gpu_without_fp8_computes_in_16_bits():
    model = load_model("deepseek-v3")

    a100 = step_time(model, Deployment(tp=8), load_gpu("A100"))
    h100 = step_time(model, Deployment(tp=8), load_gpu("H100"))

    assert a100.token_seconds > 5 * h100.token_seconds


def moments(pairs):
    return DecodeMoments(
        steps=len(pairs),
        requests=sum(b for b, _ in pairs),
        micros=sum(t for _, t in pairs),
        requests_squared=sum(b * b for b, _ in pairs),
        requests_micros=sum(b * t for b, t in pairs),
    )


def test_decode_moments_give_the_line_back():
    line = fit_line(moments([(b, 4_000 + 100 * b) for b in (1, 8, 16, 64)]))

    assert line == pytest.approx((4e-3, 100e-6))


def test_steps_of_one_batch_size_give_no_line():
    assert fit_line(moments([(8, 5_000)] * 9)) is None


def test_calibration_meets_what_was_measured():
    step = worker("qwen3-32b", tp=2)
    measured = 2 * step.decode(32, 32 * 10_000)

    fitted = calibrated(step, decode=moments([(32, 1e6 * measured)] * 5), context_tokens=10_000)

    assert fitted.decode(32, 32 * 10_000) == pytest.approx(measured)
    assert fitted.prefill(1_000, 0) == step.prefill(1_000, 0)


def test_prefill_is_calibrated_apart():
    step = worker("qwen3-32b", tp=2)
    alone = step.prefill_share(8_192, 8_192, 8_192)

    fitted = calibrated(step, prefill_tokens=8_192, prefill_seconds=3 * alone)

    assert fitted.prefill_scale == pytest.approx(3)
    assert fitted.decode_scale == 1


def test_moments_without_time_are_refused():
    with pytest.raises(ConfigError, match="hold no request or no time"):
        calibrated(worker("qwen3-8b"), decode=DecodeMoments(5, 0, 0, 0, 0))


def test_unknown_gpus_are_refused_by_name():
    with pytest.raises(ConfigError, match="unknown: 'H300': choose from A100, H100"):
        load_gpu("H300")


def test_a_gpu_may_be_given_by_its_figures():
    gpu = load_gpu({"name": "mine", "memory_bytes": 1e9, "bytes_per_second": 1e12, "flops": 1e14})

    assert gpu.name == "mine"
    with pytest.raises(ConfigError, match="flops"):
        load_gpu({"name": "mine", "memory_bytes": 1e9, "bytes_per_second": 1e12, "flops": -1})
