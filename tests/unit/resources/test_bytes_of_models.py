"""Bytes of the bundled models against arithmetic written out by hand.

Each row says how many layers keep what; the numbers are fields of the model's config.json, not
results of the code. KV in bf16 (2 bytes), states in fp32 (4), convolutions in bf16 (2).
"""

import pytest

from rolloutkit.resources import Deployment, bundled_models, load_model, vllm_block_tokens

# Elements of one token's latent vector: kv_lora_rank + qk_rope_head_dim.
LATENT = 512 + 64


def kimi_delta(heads, tp):
    """Matrix of 128 x 128 a head; three convolutions of width 4 over 128 channels a head."""
    return heads // tp * 128 * 128 * 4 + 3 * (3 * heads * 128) // tp * 2


def lightning(heads, tp):
    return heads // tp * 128 * 128 * 4


def delta_net(value_heads, tp):
    """16 key heads of 128; convolution over values, keys and queries."""
    key_heads = 16 if 16 % tp == 0 else tp
    return (
        value_heads // tp * 128 * 128 * 4
        + 3 * ((value_heads * 128 + 2 * key_heads * 128) // tp) * 2
    )


def mamba2(heads, width, state, groups, tp):
    groups = groups if groups % tp == 0 else tp
    conv = 3 * ((heads * width + 2 * groups * state) // tp) * 2
    return heads // tp * width * state * 4 + conv


# name: layers of full attention x bytes of a token, layers of state x bytes, by tp
ROWS = {
    ("ling-3.0-flash", 1): (7 * LATENT * 2, 35 * kimi_delta(32, 1)),
    ("ling-3.0-flash", 2): (7 * LATENT * 2, 35 * kimi_delta(32, 2)),
    ("ling-3.0-flash", 8): (7 * LATENT * 2, 35 * kimi_delta(32, 8)),
    ("ling-3.0-tiny", 1): (6 * LATENT * 2, 18 * kimi_delta(16, 1)),
    ("ling-3.0-tiny", 8): (6 * LATENT * 2, 18 * kimi_delta(16, 8)),
    ("ling-3.1-flash", 1): (9 * LATENT * 2, 63 * kimi_delta(64, 1)),
    ("ling-3.1-flash", 2): (9 * LATENT * 2, 63 * kimi_delta(64, 2)),
    ("ling-2.6-flash", 1): (4 * LATENT * 2, 28 * lightning(32, 1)),
    ("ling-2.6-flash", 8): (4 * LATENT * 2, 28 * lightning(32, 8)),
    ("ring-2.5-1t", 1): (10 * LATENT * 2, 70 * lightning(64, 1)),
    ("ring-2.5-1t", 8): (10 * LATENT * 2, 70 * lightning(64, 8)),
    ("kimi-linear-48b-a3b", 1): (7 * LATENT * 2, 20 * kimi_delta(32, 1)),
    ("kimi-linear-48b-a3b", 8): (7 * LATENT * 2, 20 * kimi_delta(32, 8)),
    ("kimi-k3", 1): (24 * LATENT * 2, 69 * kimi_delta(96, 1)),
    ("kimi-k3", 8): (24 * LATENT * 2, 69 * kimi_delta(96, 8)),
    ("qwen3-next-80b-a3b", 1): (12 * 2 * (256 + 256) * 2, 36 * delta_net(32, 1)),
    ("qwen3-next-80b-a3b", 2): (12 * 1 * (256 + 256) * 2, 36 * delta_net(32, 2)),
    ("qwen3-next-80b-a3b", 8): (12 * 1 * (256 + 256) * 2, 36 * delta_net(32, 8)),
    ("qwen3.5-35b-a3b", 1): (10 * 2 * (256 + 256) * 2, 30 * delta_net(32, 1)),
    ("qwen3.5-35b-a3b", 2): (10 * 1 * (256 + 256) * 2, 30 * delta_net(32, 2)),
    ("qwen3.5-27b", 1): (16 * 4 * (256 + 256) * 2, 48 * delta_net(48, 1)),
    ("qwen3.5-27b", 8): (16 * 1 * (256 + 256) * 2, 48 * delta_net(48, 8)),
    ("qwen3.5-122b-a10b", 1): (12 * 2 * (256 + 256) * 2, 36 * delta_net(64, 1)),
    ("qwen3.5-397b-a17b", 1): (15 * 2 * (256 + 256) * 2, 45 * delta_net(64, 1)),
    ("qwen3.5-397b-a17b", 8): (15 * 1 * (256 + 256) * 2, 45 * delta_net(64, 8)),
    ("qwen3.5-4b", 1): (8 * 4 * (256 + 256) * 2, 24 * delta_net(32, 1)),
    ("nemotron-3-nano-30b-a3b", 1): (6 * 2 * (128 + 128) * 2, 23 * mamba2(64, 64, 128, 8, 1)),
    ("nemotron-3-nano-30b-a3b", 8): (6 * 1 * (128 + 128) * 2, 23 * mamba2(64, 64, 128, 8, 8)),
    ("nemotron-3-super-120b-a12b", 1): (8 * 2 * (128 + 128) * 2, 40 * mamba2(128, 64, 128, 8, 1)),
    ("nemotron-3-ultra-550b-a55b", 1): (12 * 2 * (128 + 128) * 2, 48 * mamba2(256, 64, 128, 8, 1)),
    ("nemotron-h-56b", 1): (10 * 8 * (128 + 128) * 2, 54 * mamba2(256, 64, 256, 8, 1)),
    ("nemotron-h-56b", 8): (10 * 1 * (128 + 128) * 2, 54 * mamba2(256, 64, 256, 8, 8)),
    ("falcon-h1-34b", 1): (72 * 4 * (128 + 128) * 2, 72 * mamba2(32, 128, 256, 2, 1)),
    ("falcon-h1-34b", 2): (72 * 2 * (128 + 128) * 2, 72 * mamba2(32, 128, 256, 2, 2)),
    ("granite-4.0-h-micro", 1): (4 * 8 * (64 + 64) * 2, 36 * mamba2(64, 64, 128, 1, 1)),
    ("granite-4.0-h-micro", 8): (4 * 1 * (64 + 64) * 2, 36 * mamba2(64, 64, 128, 1, 8)),
    ("granite-4.0-h-small", 1): (4 * 8 * (128 + 128) * 2, 36 * mamba2(128, 64, 128, 1, 1)),
    ("minimax-m1-456b", 1): (10 * 8 * (128 + 128) * 2, 70 * lightning(64, 1)),
    ("qwen3-32b", 1): (64 * 8 * (128 + 128) * 2, 0),
    ("qwen3-32b", 8): (64 * 1 * (128 + 128) * 2, 0),
    ("qwen3-8b", 1): (36 * 8 * (128 + 128) * 2, 0),
    ("llama-3.1-70b", 1): (80 * 8 * (128 + 128) * 2, 0),
    ("llama-3.1-70b", 2): (80 * 4 * (128 + 128) * 2, 0),
    ("llama-3.1-8b", 1): (32 * 8 * (128 + 128) * 2, 0),
    ("deepseek-v3", 1): (61 * LATENT * 2, 0),
    ("deepseek-v3", 8): (61 * LATENT * 2, 0),
    ("gpt-oss-120b", 1): (18 * 8 * (64 + 64) * 2, 0),
    ("gpt-oss-120b", 8): (18 * 1 * (64 + 64) * 2, 0),
}


@pytest.mark.parametrize(("name", "tp"), ROWS)
def test_bytes_are_those_of_the_arithmetic(name, tp):
    model, deployment = load_model(name), Deployment(tp=tp)

    assert model.kv_bytes_per_token(deployment) == ROWS[name, tp][0]
    assert model.state_bytes_per_sequence(deployment) == ROWS[name, tp][1]


def test_every_bundled_model_has_a_row():
    assert {name for name, _ in ROWS} == set(bundled_models())


def test_the_worked_example_of_the_documentation():
    model = load_model("ling-3.0-flash")

    assert model.kv_bytes_per_token(Deployment()) == 8_064
    assert model.state_bytes_per_sequence(Deployment()) == 75_980_800


def test_a_sliding_window_is_a_constant_of_the_sequence():
    gpt_oss = load_model("gpt-oss-120b")

    assert gpt_oss.window_bytes_per_sequence(Deployment()) == 18 * 128 * 8 * (64 + 64) * 2


def test_vllm_blocks_hold_a_state():
    assert vllm_block_tokens(load_model("qwen3.5-4b"), Deployment()) == 528  # vllm#40696
    assert vllm_block_tokens(load_model("ling-3.0-flash"), Deployment()) == 1_920
    assert vllm_block_tokens(load_model("qwen3-32b"), Deployment()) == 16


@pytest.mark.parametrize(
    ("name", "billions"),
    [  # stated in the names or on the cards
        ("deepseek-v3", 671),
        ("llama-3.1-70b", 70.6),
        ("qwen3-32b", 32.8),
        ("qwen3-next-80b-a3b", 80),
        ("qwen3.5-397b-a17b", 397),
        ("nemotron-3-nano-30b-a3b", 31.6),
        ("nemotron-3-super-120b-a12b", 120),
        ("nemotron-h-56b", 56),
        ("kimi-linear-48b-a3b", 48),
        ("ling-3.0-flash", 124),
        ("gpt-oss-120b", 117),
        ("minimax-m1-456b", 456),
        ("granite-4.0-h-small", 32),
    ],
)
def test_parameters_add_up_to_what_a_model_is_called(name, billions):
    assert load_model(name).num_parameters / 1e9 == pytest.approx(billions, rel=0.03)


def test_rows_that_follow_a_pattern_are_marked():
    unverified = [name for name in bundled_models() if not load_model(name).is_verified]

    assert unverified == [
        "falcon-h1-34b",
        "granite-4.0-h-small",
        "ling-2.6-flash",
        "ling-3.0-tiny",
        "ling-3.1-flash",
        "minimax-m1-456b",
        "qwen3.5-4b",
        "ring-2.5-1t",
    ]
    assert all(load_model(name).source for name in bundled_models())
