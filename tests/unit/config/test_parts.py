import msgspec
import pytest

from rolloutkit.config import load, make_parts
from rolloutkit.config.components import component
from rolloutkit.config.engines import make_engine
from rolloutkit.errors import ConfigError
from rolloutkit.sim import ScriptedEnvironment

HERE = __name__


class Frugal:
    """An environment that takes no configuration and brings no tasks."""

    name = "frugal"

    def open(self, task, sample_id, seed):
        raise NotImplementedError


class Picky:
    class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        size: int = 1

    def __init__(self, config):
        raise ValueError(f"size {config.size}\nis not enough")


class Nothing:
    """Not an environment."""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "my_parts", sys.modules[HERE])


def test_a_class_without_config_takes_no_fields():
    made = component("environment", {"target": "my_parts:Frugal"}).make()

    assert isinstance(made, Frugal)
    with pytest.raises(
        ConfigError, match="Frugal declares no `Config`, so it takes no fields, got a"
    ):
        component("environment", {"target": "my_parts:Frugal", "a": 1})


def test_a_class_that_refuses_its_configuration_is_quoted_in_one_line():
    picky = component("environment", {"target": "my_parts:Picky", "size": 3})

    with pytest.raises(ConfigError) as caught:
        picky.make()

    assert str(caught.value) == (
        "environment: Picky cannot be made: ValueError: size 3 is not enough"
    )


def test_what_is_no_environment_is_refused(tmp_path):
    config = load(str(own_config(tmp_path, "my_parts:Nothing")))

    with pytest.raises(ConfigError, match="Nothing is no Environment: it lacks 'name'"):
        make_parts(config)


def test_tasks_of_another_environment_are_refused(tmp_path):
    (tmp_path / "tasks.jsonl").write_text('{"task_id": "a", "environment": "bash"}\n')
    config = load(
        str(own_config(tmp_path, "my_parts:Frugal")), [f"tasks.file={tmp_path / 'tasks.jsonl'}"]
    )

    with pytest.raises(ConfigError, match="task 'a': environment: expected 'frugal', got 'bash'"):
        make_parts(config)


def test_parts_of_a_simulated_run_need_no_model(tmp_path):
    parts = make_parts(
        load("quickstart", ["engine=simulated", "environment=scripted", "renderer.name=none"])
    )

    assert isinstance(parts.environment, ScriptedEnvironment)
    assert len(parts.tasks) == 4
    assert parts.renderer is None


def test_a_missing_tokenizer_is_refused():
    config = load(
        "quickstart",
        ["engine=simulated", "environment=scripted", "renderer.tokenizer=/nowhere.json"],
    )

    with pytest.raises(ConfigError, match=r"renderer\.tokenizer: no such file: /nowhere\.json"):
        make_parts(config)


def test_a_key_that_is_not_in_the_environment_is_refused(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    config = load(
        "quickstart",
        ["engine=openai", "engine.base_url=http://x/v1", "engine.api_key_env=MY_KEY"],
    )

    with pytest.raises(
        ConfigError, match=r"api_key_env: the environment variable 'MY_KEY' is not set"
    ):
        make_engine(config.engine, config.router, has_tokenizer=False, seed=0)


def own_config(tmp_path, target: str):
    path = tmp_path / "own.yaml"
    path.write_text(
        f"defaults: [base, {{engine: simulated}}, _self_]\nenvironment: {{target: '{target}'}}\n"
    )
    return path
