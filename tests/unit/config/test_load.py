import pytest

from rolloutkit.config import load
from rolloutkit.engines.llamacpp import LlamaCppConfig
from rolloutkit.engines.openai import OpenAIConfig
from rolloutkit.errors import ConfigError
from rolloutkit.sim import ScriptedConfig

SCRIPTED = ("engine=simulated", "environment=scripted")


def test_the_quick_start_is_bfcl_on_the_embedded_engine():
    config = load("quickstart")

    assert isinstance(config.engine.config, LlamaCppConfig)
    assert config.environment.made_by.__name__ == "BfclEnvironment"
    assert config.settings().actions.step.slots == 4


def test_overrides_reach_the_structs_that_own_the_fields():
    config = load(
        "quickstart",
        [
            *SCRIPTED,
            "limits.action=2.5",
            "run.seed=7",
            "environment.num_turns.mean=3",
            "output.dir=x",
        ],
    )

    assert config.limits.action == 2.5
    assert config.settings().seed == 7
    assert isinstance(config.environment.config, ScriptedConfig)
    assert config.environment.config.num_turns.mean == 3
    assert config.output.dir == "x"


def test_an_override_may_add_a_key_that_no_file_mentions():
    config = load("quickstart", ["actions.kinds.bash.slots=3", "admission.max_sessions.bfcl=2"])

    assert config.actions.kinds["bash"].slots == 3
    assert config.admission.max_sessions == {"bfcl": 2}


def test_an_openai_engine_needs_its_address_only():
    config = load("quickstart", ["engine=openai", "engine.base_url=http://127.0.0.1:1/v1"])

    assert config.engine.config == OpenAIConfig(base_url="http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("admision.max_samples=3", "admision: unknown key: did you mean 'admission'?"),
        (
            "admission.max_sample=3",
            "admission.max_sample: unknown key: did you mean 'max_samples'?",
        ),
        ("admission.max_samples=0", "admission.max_samples: expected `int` >= 1, got 0"),
        ("admission=3", "admission: expected `object`, got 3"),
        (
            "actions.order=lifo",
            (
                "actions.order: expected one of auto, caas, caas_service, clairvoyant, fifo, "
                "oldest, remaining, got 'lifo'"
            ),
        ),
        ("actions.kinds.bash.slots=0", "actions.kinds.*.slots: expected `int` >= 1"),
        ("limits.action=-1", "limits.action: expected `float` > 0.0, got -1"),
        ("limits.action=soon", "limits.action: expected `float`, got 'soon'"),
        ("retry.kinds=[luck]", "retry.kinds.0: expected one of "),
        ("run.time=imaginary", "run.time: expected one of real, virtual, got 'imaginary'"),
        ("run.time=virtual", "run.time: only simulated engines run in virtual time"),
        (
            "engine=opnai",
            "engine=opnai: no such option: choose from llamacpp, openai, recorded, sglang",
        ),
        ("engine=openai", "engine.base_url: not set"),
        (
            "engine.kind=vlm",
            "sglang, sim_reference, sim_sglang, simulated, vllm, got 'vlm': did you mean 'vllm'?",
        ),
        ("engine.slots=3", "engine.slots: unknown key: did you mean 'num_slots'?"),
        ("engine.quantization=Q2", "engine.quantization: expected one of auto, Q8_0"),
        ("environment.limt=3", "environment.limt: unknown key: did you mean 'limit'?"),
        ("environment.categories=3", "environment.categories: expected `array`, got 3"),
        ("environment.where=here", "environment.where: expected one of auto, loop"),
        ("~environment", "environment: not chosen"),
        ("environment=null", "Config group override must be a string or a list"),
        ("sampling.max_tokens=${nope}", "sampling.max_tokens: Interpolation key 'nope' not found"),
        ("sampling.seed=1,2", "Ambiguous value for argument"),
        ("engin=openai", "engin: unknown key: did you mean 'engine'?"),
        ("colour=red", "colour: unknown key: choose from "),
        ("max samples", "'max samples': not an override: write key=value"),
        (
            "actions.step.needs={cpu: 2}",
            "actions: step needs 2 of 'cpu', and actions.pools has: none: add actions.pools.cpu=",
        ),
        ("actions.step.needs={cpu: 0}", "actions.step.needs"),
        ("actions.pools={step: 2}", "actions.pools: 'step' is a kind of action too"),
        ("admission.control=adaptive", "admission.control=adaptive needs admission.reference"),
        ("environment.target=nope:Class", "environment.target: 'nope:Class' cannot be imported"),
        ("environment.target=nope", "environment.target: not a class: write module:Class"),
        (
            "environment.target=rolloutkit.sim:ScriptedEnviron",
            "has no class 'ScriptedEnviron': did you mean 'ScriptedEnvironment'?",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(override: str, message: str):
    with pytest.raises(ConfigError) as caught:
        load("quickstart", [override])

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_config_is_answered_with_those_that_exist():
    with pytest.raises(
        ConfigError,
        match="choose from base, bfcl_eval, quickstart, replay: did you mean 'quickstart'",
    ):
        load("quickstrat")


def test_own_configs_stand_before_ours_and_may_build_on_them(tmp_path):
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "mine.yaml").write_text(
        "target: rolloutkit.sim:ScriptedEnvironment\nnum_tasks: 3\n"
    )
    (tmp_path / "own.yaml").write_text(
        "defaults: [base, {engine: simulated}, {environment: mine}, _self_]\nrun: {seed: 5}\n"
    )

    by_directory = load("own", ["engine.mean_tokens=9"], tmp_path)
    by_path = load(str(tmp_path / "own.yaml"))

    assert isinstance(by_directory.environment.config, ScriptedConfig)
    assert by_directory.environment.config.num_tasks == 3
    assert by_directory.run.seed == by_path.run.seed == 5


def test_broken_yaml_is_named_by_file_and_line(tmp_path):
    (tmp_path / "own.yaml").write_text("run:\n  seed: [1\n")

    with pytest.raises(ConfigError, match=r"own\.yaml:3: not valid YAML"):
        load(str(tmp_path / "own.yaml"))


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--config-dir: no such directory"):
        load("own", [], tmp_path / "nowhere")


def test_the_text_keeps_secrets_out(monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET", "hunter2")
    (tmp_path / "own.yaml").write_text(
        "defaults: [base, {engine: openai}, {environment: scripted}, _self_]\n"
        "engine: {base_url: 'http://x/v1', extra_body: {keys: ['${oc.env:SECRET}']}}\n"
        "sampling: {max_tokens: 5}\nlimits: {max_turns: '${sampling.max_tokens}'}\n"
        "renderer: {options: {again: '${engine.extra_body}', name: '${sampling.max_tokens}'}}\n"
    )

    config = load(str(tmp_path / "own.yaml"))

    assert isinstance(config.engine.config, OpenAIConfig)
    assert config.engine.config.extra_body == {"keys": ["hunter2"]}
    assert "hunter2" not in config.text
    assert "max_turns: 5" in config.text


def test_the_text_can_be_loaded_again_and_does_not_say_where_it_lies(tmp_path):
    config = load("quickstart", [*SCRIPTED, "run.seed=3", "output.dir=somewhere"])
    (tmp_path / "config.yaml").write_text(config.text)

    again = load(str(tmp_path / "config.yaml"))

    assert "somewhere" not in config.text
    assert again.text == config.text
    assert again.settings() == config.settings()
