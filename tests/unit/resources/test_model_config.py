"""Reading configurations: each trap, each family, and what a wrong one says."""

import json

import pytest

from rolloutkit.errors import ConfigError
from rolloutkit.resources import Deployment, ModelSpec, load_model
from rolloutkit.resources.layers import Attention, Layer, lightning

PLAIN = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1_024,
    "vocab_size": 1_000,
}
KIMI = {
    "model_type": "kimi_linear",
    "num_hidden_layers": 4,
    "hidden_size": 2_304,
    "num_attention_heads": 32,
    "head_dim": 72,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "intermediate_size": 9_216,
    "linear_attn_config": {
        "num_heads": 32,
        "head_dim": 128,
        "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3],
        "full_attn_layers": [4],
    },
}
BAILING = {
    "model_type": "bailing_hybrid",
    "num_hidden_layers": 6,
    "layer_group_size": 3,
    "hidden_size": 1_024,
    "num_attention_heads": 8,
    "head_dim": 128,
    "short_conv_kernel_size": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "intermediate_size": 2_048,
}
NEMOTRON = {
    "model_type": "nemotron_h",
    "num_hidden_layers": 4,
    "hybrid_override_pattern": "M-*E",
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_num_heads": 16,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "chunk_size": 128,
    "intermediate_size": 1_024,
}
FALCON = {
    "model_type": "falcon_h1",
    "num_hidden_layers": 3,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "mamba_n_heads": 8,
    "mamba_d_head": "auto",
    "mamba_d_ssm": 1_024,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "intermediate_size": 1_024,
}
DELTA = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "intermediate_size": 1_024,
}


def kinds(model):
    return "".join(
        {(True, False): "a", (False, True): "s", (True, True): "b", (False, False): "-"}[
            layer.attention is not None, layer.recurrence is not None
        ]
        for layer in model.layers
    )


def state_of(config, **deployment):
    return load_model(config).state_bytes_per_sequence(Deployment(**deployment))


def test_kimis_own_head_dim_is_not_that_of_its_recurrence():
    assert state_of(KIMI) == 3 * (32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2)


def test_kimis_layers_are_counted_from_one():
    assert kinds(load_model(KIMI)) == "sssa"


def test_a_model_saved_by_transformers_keeps_its_recurrence_beside_a_rotary_head_dim():
    saved = {**KIMI, "head_dim": 64, "linear_attn_config": None}
    saved |= {"linear_num_heads": 32, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
    saved |= {"layer_types": ["linear_attention"] * 3 + ["full_attention"]}

    assert state_of(saved) == state_of(KIMI)
    assert state_of({**BAILING, "head_dim": 64, "linear_head_dim": 128}) == state_of(BAILING)


def test_the_text_model_of_a_multimodal_one_is_read():
    wrapped = {"model_type": "qwen3_5", "text_config": {**DELTA, "model_type": "qwen3_5_text"}}

    assert kinds(load_model(wrapped)) == "sssasssa"


def test_the_state_type_inside_a_wrapper_counts():
    inner = {**DELTA, "model_type": "qwen3_5_text", "mamba_ssm_dtype": "bfloat16"}

    assert load_model({"model_type": "qwen3_5", "text_config": inner}).state_dtype == "bfloat16"


def test_group_size_may_be_a_number_or_a_list():
    assert kinds(load_model(BAILING)) == "ssassa"
    assert kinds(load_model({**BAILING, "layer_group_size": [1, 1, 0, 1, 0, 0]})) == "ssasaa"


def test_short_convolutions_tell_kda_from_lightning():
    plain = {name: value for name, value in BAILING.items() if name != "short_conv_kernel_size"}

    assert state_of(plain) == 4 * 8 * 128 * 128 * 4
    assert state_of(BAILING) == 4 * (8 * 128 * 128 * 4 + 3 * 3 * 8 * 128 * 2)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {
            "hybrid_override_pattern": None,
            "layers_block_type": ["mamba", "mlp", "attention", "moe"],
        },
    ],
)
def test_nemotrons_pattern_is_read_as_letters_or_words(change):
    assert kinds(load_model({**NEMOTRON, **change})) == "s-a-"


def test_nemotrons_cache_dtype_is_not_the_engines():
    assert load_model({**NEMOTRON, "mamba_ssm_cache_dtype": "bfloat16"}).state_dtype == "float32"


def test_a_kimi_state_stays_in_32_bits_whatever_the_config_says():
    assert load_model({**KIMI, "mamba_ssm_dtype": "bfloat16"}).state_dtype == "float32"


def test_nemotrons_chunks_set_the_grid():
    assert load_model(NEMOTRON).state_grid == 128
    assert load_model(DELTA).state_grid == 64


def test_every_layer_of_falcon_attends_and_recurs():
    model = load_model(FALCON)

    assert kinds(model) == "bbb"
    assert model.kv_bytes_per_token(Deployment()) == 3 * 2 * (64 + 64) * 2
    assert state_of(FALCON) == 3 * (8 * 128 * 256 * 4 + 3 * (1_024 + 2 * 256) * 2)


def test_draft_layers_add_keys_and_values_when_they_run():
    model = load_model({**DELTA, "mtp_num_hidden_layers": 1})
    plain = model.kv_bytes_per_token(Deployment())

    assert plain == 2 * 2 * (64 + 64) * 2
    assert model.kv_bytes_per_token(Deployment(speculative=True)) == plain * 3 // 2


def test_groups_are_copied_until_every_gpu_has_one():
    four = state_of({**NEMOTRON, "mamba_num_heads": 16}, tp=4)

    assert four == (16 // 4) * 64 * 128 * 4 + 3 * ((16 * 64 + 2 * 4 * 128) // 4) * 2


def test_a_switched_off_window_is_none():
    with_window = {**PLAIN, "sliding_window": 128}

    assert load_model(with_window).kv_bytes_per_token(Deployment()) == 0
    assert (
        load_model({**with_window, "use_sliding_window": False}).kv_bytes_per_token(Deployment())
        == 4 * 2 * 128 * 2
    )


def test_listed_windows_count_apart():
    listed = {**PLAIN, "sliding_window": 100}
    listed["layer_types"] = ["sliding_attention", "full_attention"] * 2
    model = load_model(listed)

    assert model.kv_bytes_per_token(Deployment()) == 2 * 2 * 128 * 2
    assert model.window_bytes_per_sequence(Deployment()) == 2 * 100 * 2 * 128 * 2


def test_mamba1_has_a_head_for_every_channel():
    config = {
        "model_type": "falcon_mamba",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "state_size": 16,
        "conv_kernel": 4,
    }

    assert state_of(config) == 2 * (128 * 16 * 4 + 3 * 128 * 2)
    assert load_model(config).kv_bytes_per_token(Deployment()) == 0


def test_jamba_attends_at_an_offset():
    config = {**PLAIN, "model_type": "jamba", "attn_layer_period": 4, "attn_layer_offset": 2}
    config |= {"mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4}

    assert kinds(load_model(config)) == "ssas"


def test_bamba_attends_where_it_says():
    config = {**FALCON, "model_type": "bamba", "mamba_expand": 2, "attn_layer_indices": [1]}

    assert kinds(load_model(config)) == "sas"


def test_minimax_lists_which_layers_attend():
    config = {**PLAIN, "model_type": "minimax_m1", "attn_type_list": [0, 0, 0, 1], "head_dim": 64}

    assert kinds(load_model(config)) == "sssa"


def test_granite_names_its_layers():
    config = {**FALCON, "model_type": "granitemoehybrid", "mamba_expand": 2}
    config["layer_types"] = ["mamba", "attention", "linear_attention"]

    assert kinds(load_model(config)) == "sas"


def test_latent_vectors_are_the_same_on_every_gpu():
    model = load_model(KIMI)

    assert model.kv_bytes_per_token(Deployment(tp=8)) == model.kv_bytes_per_token(Deployment())


def test_attention_groups_keep_whole_states():
    whole = state_of(DELTA)

    assert state_of(DELTA, tp=4) < whole
    assert state_of(DELTA, tp=4, attention_dp=4) == whole


def test_a_pipeline_counts_its_fullest_stage():
    model = load_model({**DELTA, "num_hidden_layers": 7})  # sss | assss would be uneven: sss assa

    assert model.state_bytes_per_sequence(Deployment(pp=2)) * 2 == (
        model.state_bytes_per_sequence(Deployment())
    )
    assert model.kv_bytes_per_token(Deployment(pp=2)) == model.kv_bytes_per_token(Deployment())


def test_a_checkpoint_in_four_bits_keeps_attention_in_sixteen():
    packed = {**PLAIN, "quantization_config": {"quant_method": "mxfp4"}}
    model = load_model(packed)

    assert (model.weight_dtype, model.expert_dtype) == ("bfloat16", "fp4")
    assert load_model({**PLAIN, "quantization_config": {"quant_method": "fp8"}}).weight_dtype == (
        "fp8"
    )


def test_a_spec_can_be_filled_in_by_hand():
    attention = Attention(
        num_query_heads=8, num_kv_heads=2, cached_per_head=128, qk_head_dim=64, v_head_dim=64
    )
    layers = (Layer(attention=attention), Layer(recurrence=lightning(512, 8, 64)))
    model = ModelSpec(name="mine", layers=layers, hidden_size=512)

    assert model.kv_bytes_per_token(Deployment()) == 2 * 128 * 2
    assert model.state_bytes_per_sequence(Deployment()) == 8 * 64 * 64 * 4


def test_a_file_and_its_directory_are_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PLAIN))

    by_file, by_directory = load_model(tmp_path / "config.json"), load_model(str(tmp_path))

    assert by_file == by_directory
    assert by_file.kv_bytes_per_token(Deployment()) == 4 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "newmodel", "hidden_size": 8}, "'newmodel' lacks layer_types"),
        ({**PLAIN, "hidden_size": None, "num_attention_heads": None}, "lacks hidden_size, num_att"),
        ({**DELTA, "linear_num_key_heads": None}, "lacks linear_num_key_heads"),
        ({**PLAIN, "num_hidden_layers": "many"}, "num_hidden_layers must be a whole number"),
        ({**PLAIN, "layer_types": ["rotor"] * 4}, "layer_types names unknown layers rotor"),
        ({**PLAIN, "layer_types": ["full_attention"]}, "num_hidden_layers is 4, but 1 layers"),
        ({**PLAIN, "layer_types": "all"}, "layer_types must be a list, got 'all'"),
        ({**BAILING, "layer_group_size": [1.5] * 6}, "layer_group_size must hold whole numbers"),
        (
            {**PLAIN, "model_type": "other", "layer_types": ["mamba"] * 4},
            "recurrent layers whose shape it does not tell",
        ),
    ],
)
def test_a_configuration_that_lacks_something_says_what(config, message):
    with pytest.raises(ConfigError, match=message):
        load_model(config)


def test_an_unknown_name_suggests_one():
    with pytest.raises(ConfigError, match=r"did you mean 'qwen3-32b'\?"):
        load_model("qwen3-33b")
    with pytest.raises(ConfigError, match="names are deepseek-v3"):
        load_model("zzz")


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")

    with pytest.raises(ConfigError, match=r"config\.json is no configuration"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"tp": 3}, "tp: 3 does not divide the 8 gated_delta_net heads: use a divisor, such as 2"),
        ({"tp": 4, "attention_dp": 3}, "attention_dp: 3 does not divide tp of 4"),
        ({"pp": 99}, "pp: 99 stages for 8 layers"),
    ],
)
def test_a_deployment_that_does_not_fit_is_refused(deployment, message):
    with pytest.raises(ConfigError, match=message):
        load_model(DELTA).check(Deployment(**deployment))
